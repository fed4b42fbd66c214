"""A role's place on its machine: work takes its time there, and waits if others are busy with it.

Law of this file: a place has one piece of work at a time, and ``started_ms`` is when it began.
Waiting work is served in the order in which it was asked for. How long the machine was idle is
looked at where ``fresh`` is set, and holds for all work behind it until it is set again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from math import inf

from treepipe.physics.timing import IdleFactor
from treepipe.scenario.machines import Machine
from treepipe.sim.clock import Callback, Clock


class RolePlace:
    """A role's place if it has a machine to itself, and one that idling does not change."""

    fresh = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_ms = 0.0

    def work(self, duration_ms: float, done: Callback) -> None:
        """Work for so long; ``done`` is called at its end."""
        self.started_ms = self._clock.now
        self._clock.after(duration_ms, done)


class SharedPlace(RolePlace):
    """A place on a machine with waiting or an idle effect."""

    def __init__(self, clock: Clock, machine: SharedMachine, *, always_fresh: bool) -> None:
        """Args: ``always_fresh``: each piece of work stands for itself (a stage's pass)."""
        super().__init__(clock)
        self._machine, self._always_fresh = machine, always_fresh
        self._factor = 1.0

    def work(self, duration_ms: float, done: Callback) -> None:
        self._machine.ask(self, duration_ms, done)

    def begin(self, gap_ms: float, idle: IdleFactor) -> float:
        """The machine begins with our work after so long a gap; returns the factor on its time."""
        self.started_ms = self._clock.now
        if self.fresh:
            self._factor = idle(gap_ms)
            self.fresh = self._always_fresh
        return self._factor


class SharedMachine:
    """``capacity`` pieces of work at once, first come first served."""

    def __init__(self, clock: Clock, machine: Machine) -> None:
        self._clock = clock
        self._capacity, self._idle = machine.capacity, IdleFactor(machine.idle_factor)
        self._busy = 0
        self._ended_ms = -inf
        self._waiting: deque[tuple[SharedPlace, float, Callback]] = deque()

    def ask(self, place: SharedPlace, duration_ms: float, done: Callback) -> None:
        """Work as soon as there is room for it."""
        if self._busy < self._capacity:
            self._begin(place, duration_ms, done)
        else:
            self._waiting.append((place, duration_ms, done))

    def _begin(self, place: SharedPlace, duration_ms: float, done: Callback) -> None:
        gap = 0.0 if self._busy else self._clock.now - self._ended_ms
        factor = place.begin(gap, self._idle)
        self._busy += 1
        self._clock.after(factor * duration_ms, partial(self._end, done))

    def _end(self, done: Callback, event: object) -> None:
        """A role that waits goes before what the role that has just ended asks for next."""
        self._busy -= 1
        self._ended_ms = self._clock.now
        if self._waiting:
            self._begin(*self._waiting.popleft())
        done(event)


def places(
    clock: Clock, machines: dict[str, Machine], always_fresh: set[str]
) -> dict[str, RolePlace]:
    """The place at which each role works.

    Args:
        machines: by role.
        always_fresh: roles whose pieces of work stand for themselves.
    """
    shared: dict[str, SharedMachine] = {}
    found: dict[str, RolePlace] = {}
    for role, machine in machines.items():
        if not (machine.contended or machine.idle_factor):
            found[role] = RolePlace(clock)
            continue
        if machine.name not in shared:
            shared[machine.name] = SharedMachine(clock, machine)
        found[role] = SharedPlace(clock, shared[machine.name], always_fresh=role in always_fresh)
    return found
