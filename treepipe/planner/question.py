"""Questions that ``treepipe plan --question NAME`` answers by a formula, without a search.

A question is one file under ``questions/`` that ends in its record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treepipe.planner.cluster import Cluster
from treepipe.report.background import background
from treepipe.report.page import Chapter, Report
from treepipe.results.sheet import Sheet
from treepipe.scenario.scenario import Scenario


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """What a question finds.

    Attributes:
        scenario: what was computed, for the page's table of inputs.
        sentences: the answer in two or three sentences, and what it leaves out.
        content: the file of ``--json``.
    """

    scenario: Scenario
    sentences: Sequence[str]
    tables: Sequence[Sheet]
    content: Mapping[str, Any]
    warnings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question as the command line and the page see it.

    Attributes:
        asks: the question in words.
        answer: raises ``UserError`` if something that the cluster names is wrong.
    """

    name: str
    asks: str
    answer: Callable[[Cluster], QuestionAnswer]

    def page(self, answer: QuestionAnswer, command: str) -> Report:
        """Return the page that shows an answer."""
        return Report(
            f"{self.asks} ({answer.scenario.name})",
            [self.asks],
            answer.sentences,
            [
                Chapter("Table", tables=answer.tables),
                *background(answer.scenario, answer.warnings, command),
            ],
        )
