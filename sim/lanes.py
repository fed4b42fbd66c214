"""One simulation for many deployments that differ in numbers only: time with a place per lane.

The schedules, desks and roles are those of any simulation, and run once, in the order of lane 0.
Their times are ``Times``, which hold a number per lane; every operation is that of the lane's own
simulation, so its results are the same to the last bit. A lane is given up where it may differ:

* a comparison of times turns out otherwise than in lane 0;
* a *place* (a role, a port, a machine, a host, the front desk) would meet two steps in another
  order. If no place does, then the lane's own simulation takes the same steps: a step reads and
  changes only places that it has touched (``touch``; ``lane_world.py`` says where).

Steps due together run in the order of their requests; who asked first is found by the same rule.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from treepipe.results.trace import Span
from treepipe.sim.clock import Callback, Clock, Place

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
TOGETHER = 256
"""Pairs of steps whose order is checked together."""
DEEPEST = 16
"""Requests of requests followed to tell which of two steps due together was asked for first."""
REMEMBERED = 2048
"""Steps, at least, whose requests are remembered to tell the order of steps due together."""


NO_KINDS: Mapping[type[Any], type[Any]] = {}


class NotAlikeError(Exception):
    """Deployments differ in more than numbers, or something needs a single number of all lanes."""


class Kept:
    """The lanes that have decided as lane 0 so far.

    Attributes:
        lanes: whether each lane has.
    """

    def __init__(self, count: int) -> None:
        self.lanes: Flags = np.ones(count, np.bool_)

    def decide(self, found: Flags) -> bool:
        """Return lane 0's decision, and give up the lanes that decide otherwise."""
        if found[0]:
            self.lanes &= found
            return True
        self.lanes &= ~found
        return False


def _paired(apply: Callable[[Any, Any], Any]) -> Any:
    def both(self: Times, other: Any) -> Times:
        return Times(apply(self.of, other.of if type(other) is Times else other), self.kept)

    return both


def _reflected(apply: Callable[[Any, Any], Any]) -> Any:
    return lambda self, other: Times(apply(other, self.of), self.kept)


def _decided(apply: Callable[[Any, Any], Any]) -> Any:
    def decide(self: Times, other: Any) -> bool:
        if other is self:
            return bool(apply(0.0, 0.0))
        return self.kept.decide(apply(self.of, other.of if type(other) is Times else other))

    return decide


class Times:
    """A number per lane. A comparison returns that of lane 0, on which the kept lanes agree."""

    __slots__ = ("kept", "of")
    __array_ufunc__ = None  # NumPy's own numbers leave operations to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, of: Floats, kept: Kept) -> None:
        self.of, self.kept = of, kept

    __add__, __radd__ = _paired(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _paired(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _paired(operator.mul), _reflected(operator.mul)
    __truediv__, __rtruediv__ = _paired(operator.truediv), _reflected(operator.truediv)
    __mod__, __rmod__ = _paired(operator.mod), _reflected(operator.mod)
    __lt__, __le__ = _decided(operator.lt), _decided(operator.le)
    __gt__, __ge__ = _decided(operator.gt), _decided(operator.ge)
    __eq__, __ne__ = _decided(operator.eq), _decided(operator.ne)

    def __neg__(self) -> Times:
        return Times(-self.of, self.kept)

    def __bool__(self) -> bool:
        return self.kept.decide(self.of != 0)

    def __float__(self) -> float:
        raise NotAlikeError

    def __format__(self, spec: str) -> str:
        return format(self.first, spec)

    @property
    def first(self) -> float:
        """The number of lane 0."""
        return float(self.of[0])

    def later(self, other: Any) -> Times:
        """Return the larger number in each lane (``physics.timing.later``)."""
        return Times(np.maximum(self.of, other.of if type(other) is Times else other), self.kept)


class LaneStep:
    """A callback at a time, requested by another one.

    Attributes:
        due: its time in each lane.
        parent: the step that requested it; None: the start of the simulation.
        number: its place among all requests of lane 0.
        old: whether its parent has been forgotten.
    """

    __slots__ = ("due", "number", "old", "parent")

    def __init__(self, due: Floats, parent: LaneStep | None, number: int) -> None:
        self.due, self.parent, self.number, self.old = due, parent, number, False


class NotedSpans(list[Span]):
    """Spans, and the step that noted each."""

    def __init__(self, clock: LaneClock) -> None:
        super().__init__()
        self._clock, self.steps = clock, list[LaneStep]()

    def append(self, span: Span) -> None:
        assert self._clock.acting is not None  # nothing works before the first step
        self.steps.append(self._clock.acting)
        super().append(span)


class LaneClock(Clock):
    """A clock of ``Times``, which notes which places its steps touch, and gives up lanes."""

    def __init__(self, kept: Kept, kinds: Mapping[type[Any], type[Any]] = NO_KINDS) -> None:
        """Begin at 0. ``kinds``: of places that report themselves (``lane_world.py``)."""
        super().__init__()
        self.kept, self._kinds = kept, kinds
        self._moment = Times(np.zeros(len(kept.lanes)), kept)
        self.acting: LaneStep | None = None
        self._last: dict[Any, dict[str | None, LaneStep]] = {}
        self._pairs: list[tuple[LaneStep, LaneStep]] = []
        self._young: list[LaneStep] = []
        self._aging: list[LaneStep] = []
        self._pending: set[LaneStep] = set()
        self.spans = NotedSpans(self)
        self.end: LaneStep | None = None
        self._noted = 0
        self.turns = 0  # those of draft servers before the end of lane 0

    @property
    def now(self) -> Any:
        """The time of the current step in each lane."""
        return self._moment

    def after(self, delay_ms: Any, callback: Callback) -> None:
        lanes = type(delay_ms) is Times
        moment = self._moment if not lanes and delay_ms == 0 else self._moment + delay_ms
        self.events += 1
        step = LaneStep(moment.of, self.acting, self.events)
        self._young.append(step)
        if len(self._young) >= REMEMBERED:
            self._forget()
        self._pending.add(step)
        timeout = simpy.Timeout(self, delay_ms.first if lanes else delay_ms)
        timeout.callbacks.append(partial(self._take, step, moment, callback))

    def _take(self, step: LaneStep, moment: Times, callback: Callback, event: object) -> None:
        self.acting, self._moment = step, moment
        self._pending.discard(step)
        callback(event)

    def kind(self, place: type[Place]) -> type[Place]:
        return self._kinds.get(place, place)

    def passed(self, time_ms: Any) -> bool:
        """Whether a time has come; gives up the lanes that decide otherwise than lane 0."""
        return bool(time_ms <= self._moment)

    def advance(self, *times_ms: Any) -> None:
        """Go on with the callback at the latest of these times, where that is to come."""
        moment = self._moment
        for each in times_ms:
            if type(each) is Times and each is not moment and (each.of > moment.of).any():
                moment = moment.later(each)
        if moment is not self._moment:
            self.events += 1
            self.acting = LaneStep(moment.of, self.acting, self.events)
            self._young.append(self.acting)
            self._moment = moment

    def touch(self, place: object, part: str | None = None) -> None:
        """Report that the callback reads or changes a place; what it does commutes with what
        touches another ``part``."""
        step, last = self.acting, self._last.get(place)
        if step is None:
            return  # everything is requested by the start
        if last is None:
            self._last[place] = {part: step}
            return
        if part is None:
            if last.get(None) is step and len(last) == 1:
                return
            for before in last.values():
                self._in_order(before, step)
            self._last[place] = {None: step}
            return
        for other in (None, part):
            if other in last:
                self._in_order(last[other], step)
        last[part] = step

    def _in_order(self, first: LaneStep, then: LaneStep) -> None:
        if first is then or then.parent is first:
            return
        self._pairs.append((first, then))
        if len(self._pairs) == TOGETHER:
            self.check()

    def check(self) -> None:
        """Give up the lanes in which a noted pair of steps has another order."""
        pairs = self._pairs
        if pairs:
            earlier = np.array([first.due for first, _ in pairs])
            later = np.array([then.due for _, then in pairs])
            for row in np.flatnonzero(~(earlier < later).all(axis=1)).tolist():
                wrong = ~before(*pairs[row])
                wrong[0] = False  # its order is the one that is followed
                if self.end is not None:
                    wrong &= np.minimum(earlier[row], later[row]) <= self.end.due
                self.kept.lanes &= ~wrong
            self._pairs = []

    def _forget(self) -> None:
        """Check what is noted, and drop the parents of old steps, which take memory."""
        self.check()
        for step in self._aging:
            step.parent, step.old = None, True
        self._aging, self._young = self._young, []

    def drain(self) -> None:
        """Take the steps behind the end of lane 0, which may lie before another lane's."""
        self.check()
        end = self.end = self.acting
        self._noted = len(self.spans)
        assert end is not None
        while any((step.due <= end.due)[self.kept.lanes].any() for step in self._pending):
            self.step()
        self.check()

    def before_end(self, steps: Sequence[LaneStep]) -> Flags:
        """Return whether each step ran before the end: [steps, lanes]; give up doubtful lanes."""
        end = self.end
        assert end is not None
        due = np.array([step.due for step in steps]).reshape(len(steps), len(end.due))
        found = due < end.due
        for row in np.flatnonzero((due == end.due).any(axis=1)).tolist():
            found[row] = before(steps[row], end)
            self.kept.lanes[1:] &= (found[row] | before(end, steps[row]))[1:]
        found[:, 0] = np.arange(len(steps)) < self._noted
        return found


def before(first: LaneStep, then: LaneStep) -> Flags:
    """Return the lanes in which ``first`` surely runs before ``then``."""
    found, tied = first.due < then.due, first.due == then.due
    for _ in range(DEEPEST):
        if not tied.any():
            break
        if then.parent is first or first.parent is then:
            return found | tied if then.parent is first else found
        if first.old or then.old:
            return found  # who asked first is forgotten
        above, below = first.parent, then.parent
        if above is below:
            return found | tied if first.number < then.number else found
        if above is None or below is None:
            return found | tied if above is None else found
        first, then = above, below
        found = found | (tied & (first.due < then.due))
        tied = tied & (first.due == then.due)
    return found
