"""One open request of a simulated draft server: what the target says, what was emitted.

Law of this file: the target's answers are the text's next tokens wherever a row's path is the
text's, whatever schedule asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treepipe.core.draft_context import DraftContext
from treepipe.core.messages import Segment
from treepipe.core.protocol import Schedule
from treepipe.sim.acceptance import NEVER, Oracle


@dataclass(slots=True)
class OpenText:
    """One open request: its answers, and what it has emitted."""

    oracle: Oracle
    schedule: Schedule
    pipeline: int
    prompt_tokens: int
    started_ms: float
    never_misses: bool  # the rule takes a child wherever there is one (relaxed_best)
    emitted: list[tuple[float, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    context: DraftContext = field(default_factory=DraftContext)

    def answers(self, segment: Segment) -> tuple[int, ...]:
        """What the target says at each row: the text's next token on the true path."""
        truth, prompt = self.oracle.truth, self.prompt_tokens
        if segment.committed:
            index = segment.positions[-1] - prompt + 1
            return (truth(index) if index >= 0 else NEVER,)
        answers, text = [], tuple[int, ...]()
        for offer in self.schedule.offers(segment, children=self.never_misses):
            answer = NEVER
            if offer is not None:
                path = offer.path
                index = offer.position - prompt + 1
                while len(text) < len(path):  # the tokens below the root, as far as they matter
                    text += (truth(index - len(path) + len(text)),)
                if path == text[: len(path)]:
                    answer = truth(index)
                    if offer.children and answer not in offer.children:
                        answer = offer.children[0]
                        self.oracle.rewrite(index, answer)
                        text = ()
            answers.append(answer)
        return tuple(answers)
