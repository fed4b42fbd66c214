"""PEARL's closed form: a step takes as long as the target's pass or the drafting beside it.

(PEARL, section 3: max(gamma t_d, t_v).) Steps depend on whether the one before them held, so
expected values of a request of finite length follow from a recursion over the tokens still wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treepipe.scenario.passage import Passage
from treepipe.sim.blocks import Blocks
from treepipe.sim.theory.tokens import StepOutcome, acceptances, decoding_by_kind

PRE, POST = "pre-verify", "post-verify"


@dataclass(frozen=True, slots=True)
class Pearl:
    """The steps of one request alone in a pipeline; times in milliseconds.

    Args:
        beta: probability that a drafted token is the target's.
        prompt_tokens: with them the draft reads the first token.
    """

    passage: Passage
    beta: float
    gamma: int
    prompt_tokens: int

    @classmethod
    def of(cls, passage: Passage, pool: Blocks, keys: Any, prompt: int) -> Pearl:
        return cls(passage, pool.hit_ratio(1), keys.gamma, prompt)

    @property
    def drafting_ms(self) -> float:
        return self.gamma * self.passage.draft.times.draft(1)

    def pre_ms(self, told: int = 0) -> float:
        """Return the time of a step that verifies one token, behind a word of ``told`` indices; 0:
        the first step, behind none, whose draft has to read the prompt."""
        draft, decide = self.passage.draft.times, self.passage.decide_ms(1)
        if told:
            return max(self.passage.round_ms(1, 0.0, told), self.drafting_ms) + decide
        reading = draft.read(self.prompt_tokens + 1) + (self.gamma - 1) * draft.draft(1)
        return max(self.passage.lap_ms(1), reading) + decide

    def post_ms(self, told: int) -> float:
        """Return the time of a step that verifies ``gamma`` tokens."""
        back = self.passage.round_ms(self.gamma, 0.0, told)
        return max(back, self.drafting_ms) + self.passage.decide_ms(self.gamma)

    def decoding(self, tokens: int) -> tuple[float, float]:
        """Return the expected time and rounds of this many tokens; the end ends a round, too."""
        gamma, shares = self.gamma, acceptances(self.beta, self.gamma)
        again = [
            StepOutcome(share, k + 1, self.pre_ms(k + 1), PRE, True)
            for k, share in enumerate(shares[:gamma])
        ]
        first_fails = again[0]._replace(probability=1 - self.beta)
        held = StepOutcome(self.beta, 1, self.post_ms(gamma + 1), POST, False)
        whole = StepOutcome(shares[gamma], gamma, self.post_ms(2 * gamma), POST, False)
        outcomes = {PRE: [held, first_fails], POST: [whole, *again]}
        ms, rounds = decoding_by_kind(tokens, PRE, outcomes)
        return (self.pre_ms() + ms if tokens else 0.0), rounds

    def terms(self) -> Mapping[str, float]:
        """Return PEARL's own quantities."""
        return {
            "acceptance": self.beta,
            "drafting_ms": self.drafting_ms,
            "pre_verify_ms": self.pre_ms(1),
            "post_verify_ms": self.post_ms(2 * self.gamma),
        }
