"""SpecPipe and PipeDec: a tree layer per step of a pipeline in lock-step; the papers' formulas and
the step of our own protocol in the same terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Refill = Literal["N", "N-1"]


def specpipe_tbt_ms(step_ms: Sequence[float], hit: float) -> float:
    """Expected time between tokens over uneven steps (SpecPipe, eq. 1, rebuilt from its text).

    The slowest step is paid for every token, all of them when a miss (1 - ``hit``) has emptied the
    pipeline.

    >>> specpipe_tbt_ms([10.0, 20.0, 10.0], 0.75)
    30.0
    """
    return max(step_ms) + (1 - hit) * sum(step_ms)


def specpipe_even_tbt_ms(step_ms: float, hit: float, stages: int, refill: Refill = "N-1") -> float:
    """Expected time between tokens with even steps (SpecPipe, eq. 2, rebuilt from its text).

    Two readings of a miss: ``N`` further steps, the text's worst case; ``N-1`` if the new root
    enters in the very step that follows the miss. The simulator does the latter, so it agrees
    exactly with ``N-1`` where a step is nothing but the stages' time.

    >>> specpipe_even_tbt_ms(20.0, 0.75, 4), specpipe_even_tbt_ms(20.0, 0.75, 4, "N")
    (35.0, 40.0)
    """
    return step_ms * (1 + (1 - hit) * (stages if refill == "N" else stages - 1))


def pipedec_latency_ms(
    draft_ms: float, stage_ms: Sequence[float], transfer_ms: Sequence[float], factor: float = 1.0
) -> float:
    """PipeDec's time per token if every prediction hits (section 2.3): the draft's pass, or the
    slowest group times ``factor`` (C, the cost of more rows) and the slowest transfer.

    >>> pipedec_latency_ms(5.0, [20.0, 22.0], [1.0, 2.0], 1.5)
    35.0
    """
    return max(draft_ms, factor * max(stage_ms) + max(transfer_ms))


def pp_latency_ms(stage_ms: Sequence[float], transfer_ms: Sequence[float]) -> float:
    """Plain pipeline: one token passes every stage and transfer (PipeDec, section 2.2).

    >>> pp_latency_ms([10.0, 20.0], [1.0, 1.0, 2.0])
    34.0
    """
    return sum(stage_ms) + sum(transfer_ms)


@dataclass(frozen=True, slots=True)
class LockStep:
    """Steps of equal stages as our protocol runs them, exactly; all in milliseconds.

    The papers' step is ``stage_ms`` alone. Ours has in sequence: the draft server decides, its
    word reaches the last group (a hop), which prunes and computes, and the result comes back (a
    hop). After a miss the root passes all stages alone, while the markers ahead of it cost
    nothing, and no broadcast is waited for. Exact where the draft's layer hides behind a step and
    a stage's time does not depend on the layer's rows.

    Attributes:
        stages, group: stages of the pipeline, and how many form a group.
        stage_ms, hop_ms: a stage's pass, one transfer.
        prune_ms: of a stage, per word.
        decide_ms: evaluation and decision at the draft server.
    """

    stages: int
    group: int
    stage_ms: float
    hop_ms: float = 0.0
    prune_ms: float = 0.0
    decide_ms: float = 0.0

    @property
    def hit_ms(self) -> float:
        """From a hit to the next decision.

        >>> LockStep(4, 1, 20.0, 1.0, 0.5, 3.0).hit_ms, LockStep(4, 2, 20.0).hit_ms
        (25.5, 40.0)
        """
        passed = self.group * self.stage_ms + (self.group + 1) * self.hop_ms
        return passed + self.prune_ms + self.decide_ms

    @property
    def first_ms(self) -> float:
        """From the first token to the first decision: as a miss, but nothing is pruned.

        >>> LockStep(4, 1, 20.0, 1.0, 0.5, 3.0).first_ms
        88.0
        """
        return self.stages * self.stage_ms + (self.stages + 1) * self.hop_ms + self.decide_ms

    @property
    def miss_ms(self) -> float:
        """From a miss to the next decision.

        >>> LockStep(4, 1, 20.0, 1.0, 0.5, 3.0).miss_ms
        88.5
        """
        return self.first_ms + self.prune_ms

    def tbt_ms(self, hit: float) -> float:
        """Expected time between tokens in the long run.

        >>> LockStep(4, 1, 20.0).tbt_ms(0.75) == specpipe_even_tbt_ms(20.0, 0.75, 4)
        True
        """
        return hit * self.hit_ms + (1 - hit) * self.miss_ms
