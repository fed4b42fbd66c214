"""The questions that ``treepipe plan --question`` answers: a file each, and their table."""

from __future__ import annotations

from treepipe.files.reading import named
from treepipe.planner.question import Question
from treepipe.planner.questions import depth, worth


def question(name: str) -> Question:
    """Return a question by its name; raises ``UserError`` if there is none."""
    known = depth.QUESTION, worth.QUESTION
    return named({each.name: each for each in known}, name, "--question")
