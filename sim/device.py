"""A role's place on its machine: work takes its time there, and waits while others keep it busy.

A place has one piece of work at a time, and ``started_ms`` is its begin. Waiting work is served
first come first served. The idle gap is sampled when ``fresh`` is set, and applies until it is set
again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from math import inf

import numpy as np

from treepipe.physics.host import HostTimes
from treepipe.physics.timing import IdleFactor
from treepipe.scenario.machines import Machine
from treepipe.sim.clock import Callback, Clock

ROUNDING_MS = 1e-9
"""Tolerance within which pieces of work end together."""


class RolePlace:
    """The place of a role that has its machine to itself, without an idle effect."""

    fresh = True
    costs: HostTimes | None = None
    """Costs of the role's process, on a host with measured costs."""
    until_ms = 0.0
    """End of a standstill, before which the role begins no work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_ms = 0.0

    def work(self, duration_ms: float, done: Callback) -> None:
        """Work for ``duration_ms``, then call ``done``."""
        self.started_ms = self._clock.now
        self._clock.after(duration_ms, done)

    def next_cold(self) -> float:
        """Return the factor on a draft pass that begins now, high behind a wait (cold caches)."""
        return 1.0


class StoppedPlace(RolePlace):
    """The place of a role that stands still at times: its work is delayed, and messages wait."""

    def __init__(self, clock: Clock, place: RolePlace) -> None:
        super().__init__(clock)
        self._place, self._works, self._owed_ms = place, False, 0.0
        self.costs = place.costs

    def stand_still(self, for_ms: float) -> None:
        if self._works:
            self._owed_ms += for_ms
        else:
            self.until_ms = self._clock.now + for_ms

    def work(self, duration_ms: float, done: Callback) -> None:
        self._works = True
        self._place.fresh, self.fresh = self._place.fresh or self.fresh, False
        self._place.work(duration_ms, partial(self._end, done))

    def next_cold(self) -> float:
        return self._place.next_cold()

    def _end(self, done: Callback, event: object) -> None:
        self.started_ms = self._place.started_ms
        if self._owed_ms:
            owed_ms, self._owed_ms = self._owed_ms, 0.0
            self._clock.after(owed_ms, partial(self._end, done))
            return
        self._works = False
        done(event)


class SharedPlace(RolePlace):
    """A place on a machine with waiting or an idle effect."""

    def __init__(
        self, clock: Clock, role: str, machine: SharedMachine, *, always_fresh: bool
    ) -> None:
        super().__init__(clock)
        self.role = role
        self._machine, self._always_fresh = machine, always_fresh
        self._factor = 1.0

    def work(self, duration_ms: float, done: Callback) -> None:
        self._machine.ask(self, duration_ms, done)

    def begin(self, gap_ms: float, idle: IdleFactor) -> float:
        """Begin the work after an idle gap of the machine; return the factor on its time."""
        self.started_ms = self._clock.now
        if self.fresh:
            self._factor = idle(gap_ms)
            self.fresh = self._always_fresh
        return self._factor


class SharedMachine:
    """A machine that does ``capacity`` pieces of work at once, first come first served."""

    def __init__(self, clock: Clock, machine: Machine) -> None:
        self._clock = clock
        self._capacity, self._idle = machine.capacity, IdleFactor(machine.idle_factor)
        self._busy = 0
        self._ended_ms = -inf
        self._waiting: deque[tuple[SharedPlace, float, Callback, float]] = deque()

    def ask(self, place: SharedPlace, duration_ms: float, done: Callback) -> None:
        if self._busy < self._capacity:
            self._begin(place, duration_ms, done)
        else:
            self._waiting.append((place, duration_ms, done, self._clock.now))

    def _begin(self, place: SharedPlace, duration_ms: float, done: Callback) -> None:
        gap = 0.0 if self._busy else self._clock.now - self._ended_ms
        factor = place.begin(gap, self._idle)
        self._busy += 1
        self._clock.after(factor * duration_ms, partial(self._end, place, done))

    def _end(self, place: SharedPlace, done: Callback, event: object) -> None:
        """End a piece of work; a waiting role goes before the next work of the same role."""
        self._busy -= 1
        self._ended_ms = self._clock.now
        done = self._clock.bound(done)
        if self._waiting:
            self._clock.spent(place.role, "compute", place.started_ms)
            first, duration_ms, first_done, asked_ms = self._waiting.popleft()
            self._clock.waited(first.role, "compute", asked_ms)
            self._begin(first, duration_ms, first_done)
        done(event)


class HostedPlace(RolePlace):
    """A place on a host with measured costs: slower the more roles work, and of random speed."""

    def __init__(self, clock: Clock, host: SharedHost, seed: np.random.SeedSequence) -> None:
        super().__init__(clock)
        self._host, self._rng = host, np.random.default_rng(seed)
        self.costs = host.costs
        self._ended_ms = -inf
        self._passes = 0  # since it last waited

    def work(self, duration_ms: float, done: Callback) -> None:
        self._look()
        self.started_ms = self._clock.now
        factor = self._host.costs.draw(self._rng)
        self._host.begin(duration_ms * factor, self._clock.bound(partial(self._end, done)))

    def next_cold(self) -> float:
        self._look()
        self._passes += 1
        return self._host.costs.cold(self._passes)

    def _look(self) -> None:
        if self._clock.now > self._ended_ms:
            self._ended_ms, self._passes = self._clock.now, 0

    def _end(self, done: Callback, event: object) -> None:
        self._ended_ms = self._clock.now
        done(event)


class SharedHost:
    """The work of a host's roles; the number of working roles sets the speed of each."""

    def __init__(self, clock: Clock, costs: HostTimes) -> None:
        self._clock, self.costs = clock, costs
        self._left: list[tuple[float, Callback]] = []
        self._looked_ms = 0.0
        self._plans = 0

    def begin(self, alone_ms: float, done: Callback) -> None:
        self._go_on()
        self._left.append((alone_ms, done))
        self._plan()

    def _go_on(self) -> None:
        now = self._clock.now
        done_ms = (now - self._looked_ms) / self.costs.slowed(len(self._left) or 1)
        self._left = [(left - done_ms, done) for left, done in self._left]
        self._looked_ms = now

    def _plan(self) -> None:
        """Schedule a check when the first piece of work ends, unless work begins or ends before."""
        self._plans += 1
        if self._left:
            first = max(0.0, min(left for left, _ in self._left))
            after = first * self.costs.slowed(len(self._left))
            self._clock.after(after, partial(self._look, self._plans))

    def _look(self, plan: int, event: object) -> None:
        if plan != self._plans:
            return
        self._go_on()
        least = min(left for left, _ in self._left) + ROUNDING_MS
        ended = [done for left, done in self._left if left <= least]
        self._left = [each for each in self._left if each[0] > least]
        self._plan()
        for done in ended:
            done(event)


def places(
    clock: Clock, machines: dict[str, Machine], always_fresh: set[str], seed: int
) -> dict[str, RolePlace]:
    """Make the place of each role; an ``always_fresh`` role samples the idle gap at each work."""
    shared: dict[str, SharedMachine] = {}
    hosts: dict[str, SharedHost] = {}
    found: dict[str, RolePlace] = {}
    for role, machine in machines.items():
        if machine.costs is not None:
            host = hosts.setdefault(machine.name, SharedHost(clock, machine.costs))
            found[role] = HostedPlace(clock, host, np.random.SeedSequence([seed, *role.encode()]))
            continue
        if not (machine.contended or machine.idle_factor):
            found[role] = RolePlace(clock)
            continue
        if machine.name not in shared:
            shared[machine.name] = SharedMachine(clock, machine)
        fresh = role in always_fresh
        found[role] = SharedPlace(clock, role, shared[machine.name], always_fresh=fresh)
    return found
