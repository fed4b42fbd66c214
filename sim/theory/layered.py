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

    The papers' step is a group's time and a transfer. Ours has two chains in parallel: a layer goes
    on to the next group (``hop_ms``); the last group's result goes to the draft server, which
    decides and tells every stage (``end_ms`` there and back). After a miss the root passes all
    stages alone, while the markers ahead of it cost nothing, and no broadcast is waited for. Exact
    where a stage's time does not depend on the layer's rows and, for misses, where drafting hides
    behind a step.

    Attributes:
        stages, group: stages of the pipeline, and how many form a group.
        stage_ms: a stage's pass.
        hop_ms: a transfer between stages.
        end_ms: a transfer from or to the draft server.
        prune_ms: of a stage, per word.
        decide_ms: evaluation and decision at the draft server.
        verify_ms: the same at the last stage; one of both is 0.
        marker_ms: decision on a flight that holds nothing.
        draft_ms: the draft's pass over a layer.
    """

    stages: int
    group: int
    stage_ms: float
    hop_ms: float = 0.0
    end_ms: float = 0.0
    prune_ms: float = 0.0
    decide_ms: float = 0.0
    marker_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0

    @property
    def pipeline_ms(self) -> float:
        """The time between hits as far as the stages and links tell, in the long run.

        The longest of the loops that steps wait for, per step: of the last group and the draft
        server (one step), and of all M groups in a row (M steps). Where the second is longer,
        every M-th step is shorter and the others are longer than this.

        >>> LockStep(4, 1, 20.0, 1.0, 1.0, 0.5, 3.0).pipeline_ms, LockStep(4, 2, 20.0).pipeline_ms
        (25.5, 40.0)
        """
        passed = self.group * self.stage_ms + self._group_hops_ms
        groups, ends = self.stages // self.group, self.end_to_end_ms
        around = ((groups - 1) * self.hop_ms + ends) / groups
        return passed + self.prune_ms + max(ends, around)

    @property
    def end_to_end_ms(self) -> float:
        """The time from the last stage's pass to its next one, but for pruning: evaluation and
        decision, wherever they are, and the way to the draft server and back.

        >>> LockStep(4, 1, 20.0, end_ms=1.0, verify_ms=3.0).end_to_end_ms
        5.0
        """
        return 2 * self.end_ms + self.decide_ms + self.verify_ms

    @property
    def hit_ms(self) -> float:
        """The time from a hit to the next decision. It is ``pipedec_latency_ms`` if the way to the
        draft and back is one transfer; a shorter one makes up to 1 / M of a transfer less of it.

        >>> LockStep(4, 1, 20.0, 2.0, 1.0).hit_ms == pipedec_latency_ms(5.0, [20.0], [2.0])
        True
        >>> LockStep(4, 1, 20.0, 2.0).hit_ms
        21.5
        """
        return max(self.pipeline_ms, self.draft_ms + self.decide_ms)

    @property
    def first_ms(self) -> float:
        """The time to the first decision; the markers leave together with the root.

        >>> LockStep(4, 1, 20.0, 1.0, 1.0, 0.5, 3.0).first_ms
        88.0
        >>> LockStep(4, 1, 20.0, 12.0, 12.0, decide_ms=3.0, marker_ms=1.0).first_ms
        172.0
        """
        return self._decided_ms((self.stages - 1) * self.hop_ms + 3 * self.end_ms)

    @property
    def miss_ms(self) -> float:
        """The time from a miss to the next decision.

        >>> LockStep(4, 1, 20.0, 1.0, 1.0, 0.5, 3.0).miss_ms
        88.5
        """
        return self.prune_ms + self._decided_ms(self._group_hops_ms + 3 * self.end_ms)

    def _decided_ms(self, told_ms: float) -> float:
        """When a root is decided that leaves at 0, behind markers in all groups but the first.

        Group m + 1 takes it when m markers have been around; over slow links that is later than
        its own arrival.

        Args:
            told_ms: when group 2 hears of the first marker, but for its decision.
        """
        latest = self._way_ms(self.stages) + self.verify_ms + self.end_ms
        told = told_ms + self.marker_ms
        for passed in range(self.group, self.stages, self.group):
            latest = max(latest, told + self._way_ms(self.stages - passed) + self.verify_ms)
            told += max(self._group_hops_ms + 2 * self.end_ms, self.draft_ms) + self.marker_ms
        return latest + self.end_ms + self.decide_ms

    @property
    def _group_hops_ms(self) -> float:
        return (self.group - 1) * self.hop_ms

    def _way_ms(self, stages: int) -> float:
        """How long the root takes through the last ``stages``."""
        return stages * self.stage_ms + (stages - 1) * self.hop_ms

    def tbt_ms(self, hit: float) -> float:
        """Expected time between tokens in the long run.

        >>> LockStep(4, 1, 20.0).tbt_ms(0.75) == specpipe_even_tbt_ms(20.0, 0.75, 4)
        True
        """
        return hit * self.hit_ms + (1 - hit) * self.miss_ms
