"""SpecPipe and PipeDec: a tree layer per step of a pipeline in lock-step; the papers' formulas and
the step of our own protocol in the same terms.

All groups end a step together, so a step's length is a sum of what follows its decision:

    ready(n)   = word(n) + prune(n)                              a stage has heard, and pruned
    arrives(g) = ready(the stage before) + hop                   in phases, of group g
                 computed(g - 1) in the step before + hop        where pruning overlaps
    computed(g): the stages of the group one after another, each when it is ready
    step       = decide + the last to arrive at the draft server of what groups say, the last one
                 with its result; or the draft's pass, if that takes longer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from statistics import fmean
from typing import Literal, TypeAlias

from treepipe.core.barrier import group_sizes
from treepipe.results.statistics import ROUNDING
from treepipe.scenario.passage import Passage
from treepipe.sim.theory.alone import request_metrics
from treepipe.sim.theory.tokens import DecisionOutcome, decoding_ms

Refill = Literal["N", "N-1"]


def specpipe_even_tbt_ms(step_ms: float, hit: float, stages: int, refill: Refill = "N-1") -> float:
    """Expected time between tokens with even steps (SpecPipe, eq. 2, rebuilt from its text).

    Two readings of a miss: ``N`` further steps, the text's worst case; ``N-1`` if the new root
    enters in the very step that follows the miss. The simulator does the latter, so it agrees
    exactly with ``N-1`` where a step is nothing but the stages' time.

    >>> specpipe_even_tbt_ms(20.0, 0.75, 4), specpipe_even_tbt_ms(20.0, 0.75, 4, "N")
    (35.0, 40.0)
    """
    return step_ms * (1 + (1 - hit) * (stages if refill == "N" else stages - 1))


Transfer: TypeAlias = tuple[float, float]
"""Time to a message's delivery, and its part at a port (ms)."""


def delivered_ms(sent: Sequence[tuple[float, Transfer]]) -> list[float]:
    """Compute delivery times (ms) at a receiver that takes one message at a time, in order of
    arrival, from each message's time of sending (ms) and transfer.

    >>> delivered_ms([(0.0, (5.0, 4.0)), (0.5, (2.0, 1.0)), (9.0, (1.0, 0.0))])
    [5.0, 6.0, 10.0]
    """
    comes = [at + lasts - port for at, (lasts, port) in sent]
    found, free = [at + lasts for at, (lasts, _) in sent], 0.0
    for number in sorted(range(len(sent)), key=lambda n: comes[n]):
        port = sent[number][1][1]
        if port:
            free = found[number] = max(comes[number], free) + port
    return found


@dataclass(frozen=True, slots=True)
class Broadcast:
    """The words behind a decision.

    Attributes:
        words: time at which each stage receives the word.
        sent_ms: time at which they have left the draft server, so that the next flight may.
        prunes: whether stages have to prune.
    """

    words: tuple[float, ...]
    sent_ms: float = 0.0
    prunes: bool = False


@dataclass(frozen=True)
class LockStep:
    """Steps as our protocol runs them, exactly, where a stage's time does not depend on a layer's
    rows; all in milliseconds. Stages, links and groups may be uneven.

    After a miss the root is alone in the pipeline, with a layer more behind it in each step; the
    markers before it cost only their transfers. With ``overlapped`` pruning layers go on while
    stages prune (SpecPipe, section 4); else after they have (PipeDec, section 3.4).

    Attributes:
        groups: stages of each group.
        stage_ms, prune_ms: time of a pass, and of pruning, of each stage.
        hops, marker_hops: a layer's, and a marker's, way to each stage and back.
        reports: transfers of the reports of computed flights, of each group but the last.
        hit, flush, marker: the words behind a hit, a miss and a marker.
        decide_ms, verify_ms: evaluation and decision at the draft server, or at the last stage.
        draft_ms: the draft's pass over a layer.
        read_ms: the draft's reading before it knows the first layer.
        central: whether a device takes part in one transfer at a time of the flights behind a
            decision.
    """

    groups: tuple[int, ...]
    stage_ms: tuple[float, ...]
    prune_ms: tuple[float, ...]
    hops: tuple[Transfer, ...]
    marker_hops: tuple[Transfer, ...]
    reports: tuple[Transfer, ...]
    hit: Broadcast
    flush: Broadcast
    marker: Broadcast
    decide_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    read_ms: float = 0.0
    overlapped: bool = True
    central: bool = False

    @cached_property
    def ends(self) -> list[int]:
        """The last stage of each group, as a count of stages."""
        return [*accumulate(self.groups)]

    @cached_property
    def _hits(self) -> tuple[list[float], list[float]]:
        """Times of steps between hits in the steady state, and when groups end in the last one."""
        full, gaps = [True] * len(self.groups), list[float]()
        computed = [0.0] * len(full)
        for _ in range(4 * len(full) + 8):
            gap, computed = self._step(self.hit, full, computed, self.decide_ms)
            gaps.append(gap)
        return gaps[-2 * len(full) :], computed

    @property
    def hit_ms(self) -> float:
        """The mean time of a step between hits in the steady state."""
        return fmean(self._hits[0])

    @property
    def alternates(self) -> bool:
        """Whether steps between hits take different times in turn, in the steady state."""
        return max(self._hits[0]) - min(self._hits[0]) > ROUNDING * self.hit_ms

    @property
    def miss_ms(self) -> float:
        """The time from a miss to the next decision, behind hits: a step for each group."""
        return self._filled_ms(self.flush, self._hits[1], 0)

    @property
    def first_ms(self) -> float:
        """The time to the first decision; the markers leave right before the root."""
        groups = len(self.groups)
        port = self.marker_hops[0][0 if self.central else 1]
        reached = [*accumulate(lasts for lasts, _ in self.marker_hops[:-1])]
        root = (groups - 1) * port + self.hops[0][0]
        computed = [self._through(0, root, [0.0] * len(self.stage_ms), full=True)]
        for number, end in enumerate(self.ends[1:], start=2):
            computed.append(reached[end - 1] + (groups - number) * port)
        over = max(self._over_ms(computed, full=groups == 1), self.read_ms)
        if groups == 1:
            return over + self.decide_ms
        return over + self._filled_ms(self.marker, [at - over for at in computed], 1)

    def _filled_ms(self, told: Broadcast, computed: list[float], begun: int) -> float:
        """Return the time from a decision to the root's, a step before it is in group ``begun``; on
        markers nothing is decided."""
        last, sum_ms = len(self.groups) - 1, 0.0
        for group in range(begun, last + 1):
            full = [each <= group for each in range(last + 1)]
            decide_ms = self.decide_ms if group == last else 0.0
            gap, computed = self._step(told, full, computed, decide_ms)
            sum_ms, told = sum_ms + gap, self.marker
        return sum_ms

    def _step(
        self, told: Broadcast, full: Sequence[bool], before: Sequence[float], decide_ms: float
    ) -> tuple[float, list[float]]:
        """Return the time from a decision at 0 to the next, and when groups have computed.

        Args:
            full: whether each group has a layer, not a marker.
            before: time at which each had computed its last one.
        """
        ready = [*told.words]
        if told.prunes:
            ready = [at + prune for at, prune in zip(ready, self.prune_ms, strict=True)]
        firsts = [0, *self.ends[:-1]]
        hops = [self.hops if each else self.marker_hops for each in full]
        ways = [hop[first] for hop, first in zip(hops, firsts, strict=True)]
        leaves = [told.sent_ms, *[ready[first - 1] for first in firsts[1:]]]
        if self.overlapped:
            leaves[1:] = [
                at + report[1] for at, report in zip(before[:-1], self.reports, strict=True)
            ]
        arrives = self._arrive(leaves, ways)
        computed = [
            self._through(group, at, ready, full=full[group]) for group, at in enumerate(arrives)
        ]
        over = max(self._over_ms(computed, full=full[-1]), self.draft_ms) + decide_ms
        return over, [at - over for at in computed]

    def _arrive(self, leaves: Sequence[float], ways: Sequence[Transfer]) -> list[float]:
        """Return when flights that are ready to leave reach their groups."""
        if not self.central:
            return [at + lasts for at, (lasts, _) in zip(leaves, ways, strict=True)]
        free, found = [0.0] * (len(leaves) + 1), [0.0] * len(leaves)
        waiting = sorted(range(len(leaves)), key=lambda n: leaves[n])
        while waiting:  # the first that can begin; of several the first requested
            number = min(waiting, key=lambda n: max(leaves[n], free[n], free[n + 1]))
            waiting.remove(number)
            begin = max(leaves[number], free[number], free[number + 1])
            found[number] = free[number] = free[number + 1] = begin + ways[number][0]
        return found

    def _through(self, group: int, arrives: float, ready: Sequence[float], *, full: bool) -> float:
        end, hops = self.ends[group], self.hops if full else self.marker_hops
        at, first = arrives, end - self.groups[group]
        for stage in range(first, end):
            at = max(at, ready[stage]) + (self.stage_ms[stage] if full else 0.0)
            at += hops[stage + 1][0] if stage + 1 < end else 0.0
        return at

    def _over_ms(self, computed: Sequence[float], *, full: bool) -> float:
        back = self.hops[-1] if full else self.marker_hops[-1]
        last = computed[-1] + (self.verify_ms if full else 0.0)
        sent = [*zip(computed[:-1], self.reports, strict=True), (last, back)]
        return max(delivered_ms(sent))

    def tbt_ms(self, hit: float) -> float:
        """Return the expected time between tokens in the long run."""
        return hit * self.hit_ms + (1 - hit) * self.miss_ms


MARKER_TURNS = 3
"""Number of transfers per group until all markers before a text's first layer are in place."""


def steps_of(passage: Passage, width: int, read_ms: float) -> LockStep:
    """Compute the steps of a deployment, with words as if all nodes below a hit stayed: the root,
    and the layers behind it in flight. ``read_ms`` is the draft's reading between the first token
    and its first layer."""
    deployment, stages = passage.deployment, passage.stages
    groups = group_sizes(deployment.service.groups, len(stages))
    ends = [*accumulate(groups)][:-1]
    return LockStep(
        groups=groups,
        stage_ms=tuple(passage.passes_ms(width)),
        prune_ms=tuple(stage.times.prune for stage in stages),
        hops=passage.ways(width),
        marker_hops=passage.ways(0),
        reports=tuple(map(passage.report, ends)),
        hit=Broadcast(*passage.told(1 + (len(groups) - 1) * width), prunes=True),
        flush=Broadcast(*passage.told(1), prunes=True),
        marker=Broadcast(*passage.told(0)),
        decide_ms=passage.decide_ms(width),
        draft_ms=passage.draft.times.draft(width),
        verify_ms=passage.verify_ms(width),
        read_ms=read_ms,
        overlapped=deployment.service.overlapped_pruning,
        central=deployment.wiring.central_transfers,
    )


def prefill_ms(passage: Passage, chunks: list[int], *, parallel: bool) -> tuple[float, float]:
    """Compute the time to the first token, and the draft's reading from there on.

    Args:
        parallel: the draft reads the prompt's chunks while the target does, and the first token
            behind them; else all of it then, in one pass.
    """
    read = passage.draft.times.read
    if not parallel:
        return passage.prefill_ms(chunks), read(sum(chunks) + 1)
    first, left = passage.first_token_ms(chunks, [*map(read, chunks)])
    return first, left + read(1)


def stepped_metrics(
    steps: LockStep, hit: float, prefill: float, new_tokens: int
) -> dict[str, float]:
    """Compute expected values of a request that finds an empty pipeline."""
    left = new_tokens - 1
    outcomes = [DecisionOutcome(hit, 1, steps.hit_ms), DecisionOutcome(1 - hit, 1, steps.miss_ms)]
    decode = decoding_ms(left, steps.first_ms, outcomes)
    return request_metrics(prefill, decode, new_tokens, 1 + (1 - hit) * (left - 1))


def stepped_terms(steps: LockStep, hit: float) -> dict[str, float]:
    """Return the steps of hits and misses, and the time between tokens of a text without end."""
    return {
        "hit_probability": hit,
        "hit_ms": steps.hit_ms,
        "miss_ms": steps.miss_ms,
        "long_run_time_between_tokens_ms": steps.tbt_ms(hit),
    }


def bent(passage: Passage, steps: LockStep, width: int, prefilled: int) -> list[str]:
    """Return the assumptions that the deployment breaks, for prompts of ``prefilled`` chunks."""
    central, groups = steps.central, steps.groups
    rippled_ms = MARKER_TURNS * len(groups) * max(lasts for lasts, _ in steps.marker_hops)
    waits = {
        "flights inside a group, or while stages prune, may wait for others in the central "
        "scheduler": central and (steps.overlapped or max(groups) > 1),
        "the prompt's chunks may wait for each other in the central scheduler": central
        and prefilled > 1,
        "words and layers may wait for each other at ports that every message keeps busy (links, "
        "message_ms)": any(link.message_ms for link in passage.links),
        "steps between hits take different times in turn, so that figures depend on where a text "
        "ends": steps.alternates,
        "the markers before a text's first layer wait for each other in the central scheduler": (
            central and len(groups) > 1 and rippled_ms > steps.stage_ms[0]
        ),
    }
    found = [f"the closed form leaves out that {each}" for each, bent in waits.items() if bent]
    if _times(passage, width) != _times(passage, 1):
        found.append(
            f"the closed form assumes that a layer takes as long as one of {width} rows, however "
            f"few are left"
        )
    return found


def _times(passage: Passage, rows: int) -> list[float]:
    return [*passage.stage_ms(rows), *passage.hops_ms(rows), passage.decide_ms(rows)]
