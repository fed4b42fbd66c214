"""SpecPipe and PipeDec: a tree layer per step of a pipeline in lock-step; the papers' formulas and
the step of our own protocol in the same terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Refill = Literal["N", "N-1"]
UNEVEN_GROUPS = (
    "the closed form is the long run's: groups differ in size, so steps do, and after a miss a "
    "group may still be busy"
)
"""What a scenario bends where steps or misses are not all alike for that reason."""


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

    The papers' step is a group's time and a transfer. Ours has two chains: a layer goes on to the
    next group (``hop_ms``); the last group's result goes to the draft server, which decides and
    tells every stage (``end_ms`` there and back), and stages prune. With ``overlapped`` pruning
    both go on at once (SpecPipe, section 4); else layers go on when their stages have pruned
    (PipeDec, section 3.4). After a miss the root passes all stages alone, while the markers ahead
    of it cost nothing. Exact where a stage's time does not depend on the layer's rows and, for
    misses, where drafting hides behind a step and groups are of one size.

    Attributes:
        groups: stages of each group.
        stage_ms: a stage's pass.
        hop_ms: a transfer between stages.
        end_ms: a transfer from or to the draft server.
        prune_ms: of a stage, per word.
        decide_ms: evaluation and decision at the draft server.
        verify_ms: the same at the last stage; one of both is 0.
        marker_ms: decision on a flight that holds nothing.
        draft_ms: the draft's pass over a layer.
        read_ms: what the draft has to read before it knows the first layer.
        overlapped: layers go on while stages prune.
    """

    groups: tuple[int, ...]
    stage_ms: float
    hop_ms: float = 0.0
    end_ms: float = 0.0
    prune_ms: float = 0.0
    decide_ms: float = 0.0
    marker_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    read_ms: float = 0.0
    overlapped: bool = True

    @property
    def pipeline_ms(self) -> float:
        """The time between hits as far as the stages and links tell, in the long run.

        The longest of the loops that steps wait for, per step: from a decision through the last
        group and back to the draft server (one step), through the last two (two steps), and so on
        up to all M groups (M steps). Where that is not the first one, steps are not all alike.

        >>> one = LockStep((1, 1, 1, 1), 20.0, 1.0, 1.0, 0.5, 3.0)
        >>> from dataclasses import replace
        >>> one.pipeline_ms, replace(one, overlapped=False).pipeline_ms
        (25.5, 26.5)
        >>> LockStep((2, 2), 20.0).pipeline_ms, LockStep((2, 1), 20.0).pipeline_ms
        (40.0, 30.0)
        """
        loops = []
        for first in range(len(self.groups)):
            last = self.groups[first:]
            way = sum(self._passed_ms(size) for size in last) + (len(last) - 1) * self.hop_ms
            way += self.prune_ms + self.end_to_end_ms
            if not self.overlapped:  # each group prunes before its layer goes on
                way += (len(last) - 1) * self.prune_ms + (self.hop_ms if first else 0.0)
            loops.append(way / len(last))
        return max(loops)

    @property
    def end_to_end_ms(self) -> float:
        """The time from the last stage's pass to its next one, but for pruning: evaluation and
        decision, wherever they are, and the way to the draft server and back.

        >>> LockStep((1,) * 4, 20.0, end_ms=1.0, verify_ms=3.0).end_to_end_ms
        5.0
        """
        return 2 * self.end_ms + self.decide_ms + self.verify_ms

    @property
    def hit_ms(self) -> float:
        """The time from a hit to the next decision. It is ``pipedec_latency_ms`` if the way to the
        draft and back takes no time, or a transfer that others overlap; a shorter one makes up to
        1 / M of a transfer less of that.

        >>> paper = pipedec_latency_ms(5.0, [20.0], [2.0])
        >>> LockStep((1,) * 4, 20.0, 2.0, overlapped=False).hit_ms == paper
        True
        >>> LockStep((1,) * 4, 20.0, 2.0, 1.0).hit_ms == paper
        True
        >>> LockStep((1,) * 4, 20.0, 2.0).hit_ms
        21.5
        """
        return max(self.pipeline_ms, self.draft_ms + self.decide_ms)

    @property
    def first_ms(self) -> float:
        """The time to the first decision; the markers leave together with the root.

        >>> LockStep((1,) * 4, 20.0, 1.0, 1.0, 0.5, 3.0).first_ms
        88.0
        >>> LockStep((1,) * 4, 20.0, 12.0, 12.0, decide_ms=3.0, marker_ms=1.0).first_ms
        172.0
        >>> LockStep((1,) * 4, 20.0, read_ms=500.0).first_ms
        560.0
        """
        return self._decided_ms(
            (sum(self.groups) - 1) * self.hop_ms + 2 * self.end_ms, self.read_ms
        )

    @property
    def miss_ms(self) -> float:
        """The time from a miss to the next decision.

        >>> LockStep((1,) * 4, 20.0, 1.0, 1.0, 0.5, 3.0).miss_ms
        88.5
        """
        return self.prune_ms + self._decided_ms(self._around_ms, 0.0)

    def _decided_ms(self, back_ms: float, free_ms: float) -> float:
        """When a root is decided that leaves at 0, behind markers in all groups but the first.

        Group m + 1 takes it when m markers have been around; over slow links that is later than
        its own arrival.

        Args:
            back_ms: when the first marker is back at the draft server.
            free_ms: when the draft server has time for it.
        """
        first, *others = self.groups
        left = self.end_ms + self._passed_ms(first)
        for size in others:
            decided = max(back_ms, free_ms) + self.marker_ms
            told = decided + self.end_ms
            if self.overlapped:
                taken = max(left + self.hop_ms, told)
            else:
                taken = max(left, told) + self.hop_ms
            left = taken + self._passed_ms(size)
            free_ms, back_ms = decided + self.draft_ms, decided + self._around_ms
        return max(left + self.verify_ms + self.end_ms, free_ms) + self.decide_ms

    @property
    def _around_ms(self) -> float:
        """The time from the decision on a marker to the arrival of the next one."""
        held = 0.0 if self.overlapped else self.hop_ms
        return 2 * self.end_ms + held + (self.groups[-1] - 1) * self.hop_ms

    def _passed_ms(self, size: int) -> float:
        """How long a layer takes through a group."""
        return size * self.stage_ms + (size - 1) * self.hop_ms

    def tbt_ms(self, hit: float) -> float:
        """Expected time between tokens in the long run.

        >>> LockStep((1,) * 4, 20.0).tbt_ms(0.75) == specpipe_even_tbt_ms(20.0, 0.75, 4)
        True
        """
        return hit * self.hit_ms + (1 - hit) * self.miss_ms

    def bent(self) -> list[str]:
        """What is assumed of the steps and does not hold.

        >>> LockStep((1,) * 4, 20.0, draft_ms=30.0).bent()
        ['the closed form assumes that drafting a layer (30 ms) hides behind a step where the \
pipeline is empty']
        """
        found = []
        if len({*self.groups}) > 1:
            found.append(UNEVEN_GROUPS)
        if self.overlapped and self.hop_ms > self.end_to_end_ms:
            found.append(
                "the closed form is the long run's: transfers between stages are slower than those "
                "to the draft server and back, so steps differ"
            )
        if self.draft_ms + self.decide_ms > self.pipeline_ms:
            found.append(
                f"the closed form assumes that drafting a layer ({self.draft_ms:.4g} ms) hides "
                f"behind a step where the pipeline is empty"
            )
        return found
