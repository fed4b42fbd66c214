"""PipeDec's steps under its central scheduler (section 3.2), where a transfer has both of its
devices to itself.

The recursion of ``CentralSteps`` gives, of all flights n = 0, 1, .. of a request, when each stage
is done with them (``paired.py`` says when a transfer begins; the words after decision n carry its
number). G flights are under way, as many as there are groups; a stage of group g, which has
F = G + 1 - g groups from its own on, does these things one after the other:

    flights 0 .. F - 1, word 0, flight F, word 1, flight F + 1, word 2, ...

    over(thing) = max(over(the thing before), arrived(thing)) + time(thing)

A flight's time is the stage's pass, a word's is pruning; markers, and words about them, take none.
Where layers and pruning overlap, a flight goes on when it is over; else, at the end of a group,
when the word behind it is. The draft server does back(n), then its next layer, one after the other,
and when back(n) is over sends word n to stage 1, 2, .. N and then flight n + G to stage 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, count, pairwise
from typing import TypeAlias

from treepipe.sim.theory.layered import UNEVEN_GROUPS, LockStep
from treepipe.sim.theory.paired import PairedTransfers, Worker

Thing: TypeAlias = tuple[str, int]
"""A flight or a word, with its number."""
ALIKE_MS = 1e-6
"""Two times that differ by no more are the same, summed up in another order."""


@dataclass(frozen=True, slots=True)
class CentralLockStep(LockStep):
    """Lock-step whose transfers wait for each other, by the recursion of this file.

    Exact where all stages are done with their layers when the next decision's word comes: a step
    depends on nothing but its decision then, so all hits are alike, and so are all misses. Where
    hops are much longer than words, or layers travel while stages prune, steps may differ: the time
    of hits is the long run's then.

    Attributes:
        word_ms: a transfer of the word after a hit, which names the nodes that stay.
        flush_ms: of the word after a miss.
        empty_ms: of a marker, or the word about one.

    By hand, with words of 0.5 ms: stage 4 has its word at 2.0, when the hop from stage 2 begins,
    which stage 3 waits for: its own hop, 1.5 later than its word, ends at 4.0. Of two stages, the
    second waits for the first one to get its layer, which was asked for first.

    >>> steps = CentralLockStep((1,) * 4, 20.0, 1.0, 1.0, overlapped=False, word_ms=0.5)
    >>> steps.hit_ms, replace(steps, groups=(1, 1)).hit_ms
    (25.0, 24.0)

    The root of a new tree goes out behind all words; the words after markers, which take no time
    here, reach each stage before it does.

    >>> steps.first_ms, replace(steps, flush_ms=0.5).miss_ms
    (85.0, 87.0)
    """

    word_ms: float = 0.0
    flush_ms: float = 0.0
    empty_ms: float = 0.0

    @property
    def first_ms(self) -> float:
        """The time to the first decision."""
        return _rhythm(self).first_ms

    @property
    def pipeline_ms(self) -> float:
        """The time between hits as far as the stages and links tell, in the long run."""
        return _rhythm(replace(self, draft_ms=0.0)).hit_ms

    @property
    def hit_ms(self) -> float:
        """The time from a hit to the next decision, in the long run."""
        return _rhythm(self).hit_ms

    @property
    def miss_ms(self) -> float:
        """The time from a miss to the next decision, after many hits where that matters."""
        return _rhythm(self).miss_ms

    def bent(self) -> list[str]:
        """What is assumed of the steps and does not hold.

        >>> CentralLockStep((1,) * 4, 20.0, 9.0, 9.0, overlapped=False, word_ms=9.0).bent()
        []
        >>> CentralLockStep((3, 1), 20.0, 9.0, 9.0, overlapped=False).bent() == [UNEVEN_GROUPS]
        True
        """
        if not _rhythm(self).varies:
            return []
        if len({*self.groups}) > 1:
            return [UNEVEN_GROUPS]
        return [
            "the closed form is the long run's: layers, words and results wait for each other in "
            "the central scheduler in an order that changes from step to step, so steps differ"
        ]

    def decided_ms(self, count: int, missed: Collection[int] = ()) -> list[float]:
        """When the first ``count`` flights are decided; the first root leaves at 0.

        Flights 0 to G - 2 are the markers ahead of it. Here flight 0 is one; like flight 2, which a
        miss empties, it has to wait until the root behind it is at stage 1.

        Args: ``missed``: numbers of the flights whose root misses.

        >>> CentralLockStep((1, 1), 20.0, 1.0, 1.0, overlapped=False).decided_ms(3, [1])
        [1.0, 43.0, 44.0]
        """
        return CentralSteps(self, missed).decided_ms(count)


class CentralSteps:
    """The recursion of this file; device 0 is the draft server."""

    def __init__(self, times: CentralLockStep, missed: Collection[int]) -> None:
        """Args: ``missed``: numbers of the flights whose root misses."""
        self._times, self._missed = times, missed
        self._groups, ends = len(times.groups), [*accumulate(times.groups)]
        held = () if times.overlapped else ends[:-1]
        self._stages = [
            _Stage(sum([end >= stage for end in ends]), holds=stage in held)
            for stage in range(1, ends[-1] + 1)
        ]
        self._transfers, self._draft, self._decided = PairedTransfers(), Worker(), list[float]()

    def decided_ms(self, count: int) -> list[float]:
        """When the first ``count`` flights are decided."""
        for flight in range(self._groups):
            self._feed(flight)
        self._draft.work(self._times.read_ms)
        while len(self._decided) < count:
            self._transfers.begin_next()
        return self._decided

    def _is_full(self, flight: int, words: int) -> bool:
        """Whether a flight is no marker after so many words: a miss empties those on their way."""
        missed = any(flight - self._groups < each < words for each in self._missed)
        return flight >= self._groups - 1 and not missed

    def _feed(self, flight: int) -> None:
        words = flight - self._groups + 1  # it was fed behind them
        arrive = partial(self._arrive, 1, ("flight", flight))
        lasts = self._times.end_ms if self._is_full(flight, words) else self._times.empty_ms
        self._transfers.ask(self._draft.over, (0, 1), lasts, arrive)

    def _arrive(self, number: int, thing: Thing, now_ms: float) -> None:
        """A flight or a word is at a stage, which does what it can."""
        times, stage = self._times, self._stages[number - 1]
        stage.arrived[thing] = now_ms
        while stage.due in stage.arrived:
            kind, n = stage.due
            stage.worker.wake(stage.arrived.pop(stage.due))
            stage.due = next(stage.things)
            if kind == "word":
                stage.worker.work(times.prune_ms if self._is_full(n, n) else 0.0)
                if stage.holds:
                    self._send(n + stage.free - 1, n + 1, number)
                continue
            words = n - stage.free + 1
            if self._is_full(n, words):
                stage.worker.work(times.stage_ms)
                stage.worker.work(times.verify_ms if number == len(self._stages) else 0.0)
            if not stage.holds or n < stage.free - 1:
                self._send(n, words, number)

    def _send(self, flight: int, words: int, number: int) -> None:
        """A flight goes on from a stage that has been through so many words."""
        times, full = self._times, self._is_full(flight, words)
        asked, is_last = self._stages[number - 1].worker.over, number == len(self._stages)
        if is_last:
            lasts, arrive = times.end_ms, partial(self._decide, flight)
        else:
            lasts, arrive = times.hop_ms, partial(self._arrive, number + 1, ("flight", flight))
        devices = number, 0 if is_last else number + 1
        self._transfers.ask(asked, devices, lasts if full else times.empty_ms, arrive)

    def _decide(self, flight: int, now_ms: float) -> None:
        """A flight is back: words to all stages, another flight, and the draft's next layer."""
        times, full = self._times, self._is_full(flight, flight)
        self._draft.wake(now_ms)
        self._draft.work(times.decide_ms if full else times.marker_ms)
        self._decided.append(self._draft.over[0])
        lasts = times.flush_ms if flight in self._missed else times.word_ms
        for number in range(1, len(self._stages) + 1):
            arrive = partial(self._arrive, number, ("word", flight))
            word_ms = lasts if full else times.empty_ms
            self._transfers.ask(self._draft.over, (0, number), word_ms, arrive)
        self._feed(flight + self._groups)
        self._draft.work(times.draft_ms)


class _Stage:
    """What a stage does, in order, and what of it is there."""

    def __init__(self, free: int, *, holds: bool) -> None:
        """Args: ``free``: groups from its own on; ``holds``: results go on behind the next word."""
        self.free, self.holds = free, holds
        self.worker = Worker()
        self.arrived: dict[Thing, float] = {}
        self.things = _things(free)
        self.due = next(self.things)


def _things(free: int) -> Iterator[Thing]:
    for flight in range(free):
        yield "flight", flight
    for word in count():
        yield "word", word
        yield "flight", word + free


@dataclass(frozen=True, slots=True)
class _Rhythm:
    """Times to decisions; ``varies``: those after hits, or after misses, are not all alike."""

    first_ms: float
    hit_ms: float
    miss_ms: float
    varies: bool


@lru_cache(maxsize=64)
def _rhythm(steps: CentralLockStep) -> _Rhythm:
    """The times of a text of many hits, and then of misses next to each other and apart."""
    groups = len(steps.groups)
    hits = [*[True] * (8 * groups + 8), False, False, True, False, True, True, False, True]
    roots = [*accumulate([1 if hit else groups for hit in hits], initial=groups - 1)]
    missed = [root for root, hit in zip(roots, hits, strict=False) if not hit]
    decided = steps.decided_ms(roots[-1] + 1, missed)
    gaps = [decided[after] - decided[before] for before, after in pairwise(roots)]
    after_hits = [gap for gap, hit in zip(gaps, hits, strict=True) if hit]
    after_misses = [gap for gap, hit in zip(gaps, hits, strict=True) if not hit]
    varies = any(max(each) - min(each) > ALIKE_MS for each in (after_hits, after_misses))
    long_run_ms = _long_run_ms(gaps[: hits.index(False)])
    return _Rhythm(decided[groups - 1], long_run_ms, after_misses[0], varies)


def _long_run_ms(gaps: Sequence[float]) -> float:
    """The mean of the gaps that come again and again at the end."""
    most = len(gaps) // 4
    for period in range(1, most):
        last, before = gaps[-period:], gaps[-2 * period : -period]
        if all(abs(one - other) <= ALIKE_MS for one, other in zip(last, before, strict=True)):
            return sum(last) / period
    return sum(gaps[-most:]) / most
