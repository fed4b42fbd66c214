"""SSD's closed form: a round takes as long as the target's pass or the guessing beside it.

(SSD, arXiv 2603.03251: the draft is busy for t_d(K + 1) + K t_d((K + 1) F).) Whether an outcome was
guessed follows from the ranks of the target's tokens among the draft's candidates: behind a token
that was not accepted it is one of the ``fan_out`` below the first, behind a whole chain one of the
``fan_out`` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from treepipe.scenario.passage import Passage
from treepipe.sim.blocks import Blocks
from treepipe.sim.theory.tokens import StepOutcome, acceptances, decoding_by_kind

GUESSED, ALONE = "guessed", "alone"


@dataclass(frozen=True, slots=True)
class Guessing:
    """The rounds of one request alone in a pipeline; times in milliseconds.

    Args:
        first, below, among: shares of positions whose target token is the draft's first candidate,
            one of the ``fan_out`` behind that, and one of the first ``fan_out``.
        jit: a chain that was not drafted is drafted before the target's pass.
        prompt_tokens: with them the draft reads the first token.
    """

    passage: Passage
    first: float
    below: float
    among: float
    gamma: int
    fan_out: int
    jit: bool
    prompt_tokens: int

    @classmethod
    def of(cls, passage: Passage, pool: Blocks, keys: Any, prompt: int) -> Guessing:
        first, fan_out = pool.hit_ratio(1), keys.fan_out
        below, among = pool.hit_ratio(fan_out + 1) - first, pool.hit_ratio(fan_out)
        return cls(passage, first, below, among, keys.gamma, fan_out, keys.jit_speculate, prompt)

    def guessing_ms(self, drafted: int) -> float:
        """Return how long the draft is busy beside the pass of root and ``drafted`` tokens."""
        draft, places = self.passage.draft.times.draft, drafted + 1
        return draft(places) + self.gamma * draft(places * self.fan_out)

    def round_ms(self, drafted: int, told: int = 0, chain_ms: float = 0.0) -> float:
        """Return the time of a round that verifies ``drafted`` tokens, which are drafted first for
        ``chain_ms``, behind a word of ``told`` indices (0: none)."""
        rows, passage = drafted + 1, self.passage
        way = passage.round_ms(rows, chain_ms, told) if told else chain_ms + passage.lap_ms(rows)
        return max(way, chain_ms + self.guessing_ms(drafted)) + passage.decide_ms(rows)

    @property
    def first_ms(self) -> float:
        """Time of the first round, before which the draft reads the prompt."""
        reading = self.passage.draft.times.read(self.prompt_tokens)
        return self.round_ms(self.gamma, 0, reading + self.chain_ms)

    @property
    def chain_ms(self) -> float:
        return self.gamma * self.passage.draft.times.draft(1)

    def _behind(self, share: float, tokens: int, hit: float) -> list[StepOutcome]:
        """Return the two outcomes of so many tokens: guessed with probability ``hit``, or not."""
        missed = self.round_ms(0, tokens)
        then = ALONE
        if self.jit:
            missed, then = self.round_ms(self.gamma, tokens, self.chain_ms), GUESSED
        guessed = self.round_ms(self.gamma, tokens)
        return [
            StepOutcome(share * hit, tokens, guessed, GUESSED, True),
            StepOutcome(share * (1 - hit), tokens, missed, then, True),
        ]

    def _outcomes(self) -> dict[str, list[StepOutcome]]:
        *failing, whole = acceptances(self.first, self.gamma)
        behind_failure = self.below / (1 - self.first) if self.first < 1 else 0.0
        chained = self._behind(whole, self.gamma + 1, self.among)
        for accepted, share in enumerate(failing):
            chained += self._behind(share, accepted + 1, behind_failure)
        return {GUESSED: chained, ALONE: self._behind(1.0, 1, self.among)}

    def decoding(self, tokens: int) -> tuple[float, float]:
        """Return the expected time and rounds of this many tokens."""
        ms, rounds = decoding_by_kind(tokens, GUESSED, self._outcomes())
        return (self.first_ms + ms if tokens else 0.0), rounds

    def terms(self) -> Mapping[str, float]:
        """Return SSD's own quantities."""
        hits = {
            kind: sum(each.probability for each in found[::2])
            for kind, found in self._outcomes().items()
        }
        return {
            "acceptance": self.first,
            "hit_behind_chain": hits[GUESSED],
            "hit_behind_root": hits[ALONE],
            "guessing_ms": self.guessing_ms(self.gamma),
            "hit_ms": self.round_ms(self.gamma, 1),
            "miss_ms": self._behind(1.0, 1, 0.0)[1].then_ms,
        }
