"""A role's place on its machine: work takes its time there, and waits if others are busy with it.

Law of this file: a place has one piece of work at a time, and ``started_ms`` is when it began.
Waiting work is served in the order in which it was asked for. How long the machine was idle is
looked at where ``fresh`` is set, and holds for all work behind it until it is set again.
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
"""Work that ends within so little ends together."""


class RolePlace:
    """A role's place if it has a machine to itself, and one that idling does not change."""

    fresh = True
    costs: HostTimes | None = None
    """Of the role's process, where they count."""
    until_ms = 0.0
    """A role that stands still begins nothing before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.started_ms = 0.0

    def work(self, duration_ms: float, done: Callback) -> None:
        """Work for so long; ``done`` is called at its end."""
        self.started_ms = self._clock.now
        self._clock.after(duration_ms, done)

    def next_cold(self) -> float:
        """The factor on a draft pass that begins now, the next one since the role last waited: the
        first ones find the processor's caches full of other things."""
        return 1.0


class StoppedPlace(RolePlace):
    """The place of a role that stands still now and then: what it was at ends so much later, and
    what is brought meanwhile waits."""

    def __init__(self, clock: Clock, place: RolePlace) -> None:
        """Args: ``place``: where it works."""
        super().__init__(clock)
        self._place, self._works, self._owed_ms = place, False, 0.0
        self.costs = place.costs

    def stand_still(self, for_ms: float) -> None:
        """Do nothing for so long from now on."""
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
        """Args: ``always_fresh``: each piece of work stands for itself (a stage's pass)."""
        super().__init__(clock)
        self.role = role
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
        self._waiting: deque[tuple[SharedPlace, float, Callback, float]] = deque()

    def ask(self, place: SharedPlace, duration_ms: float, done: Callback) -> None:
        """Work as soon as there is room for it."""
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
        """A role that waits goes before what the role that has just ended asks for next."""
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
    """The place of a role on a host whose costs are known: it works there beside others, slower
    the more of them are at work, and no piece of work takes exactly as long as the next."""

    def __init__(self, clock: Clock, host: SharedHost, seed: np.random.SeedSequence) -> None:
        super().__init__(clock)
        self._host, self._rng = host, np.random.default_rng(seed)
        self.costs = host.costs
        self._ended_ms = -inf
        self._passes = 0  # since it last waited

    def work(self, duration_ms: float, done: Callback) -> None:
        """Work for so long, if alone; ``done`` is called at its end."""
        self._look()
        self.started_ms = self._clock.now
        factor = self._host.costs.draw(self._rng)
        self._host.begin(duration_ms * factor, self._clock.bound(partial(self._end, done)))

    def next_cold(self) -> float:
        self._look()
        self._passes += 1
        return self._host.costs.cold(self._passes)

    def _look(self) -> None:
        """Whether it waited until now."""
        if self._clock.now > self._ended_ms:
            self._ended_ms, self._passes = self._clock.now, 0

    def _end(self, done: Callback, event: object) -> None:
        self._ended_ms = self._clock.now
        done(event)


class SharedHost:
    """A host's roles at work: each as fast as their number lets it be at that time."""

    def __init__(self, clock: Clock, costs: HostTimes) -> None:
        self._clock, self.costs = clock, costs
        self._left: list[tuple[float, Callback]] = []
        self._looked_ms = 0.0
        self._plans = 0

    def begin(self, alone_ms: float, done: Callback) -> None:
        """A piece of work that takes so long without company."""
        self._go_on()
        self._left.append((alone_ms, done))
        self._plan()

    def _go_on(self) -> None:
        """All that is under way has come nearer to its end."""
        now = self._clock.now
        done_ms = (now - self._looked_ms) / self.costs.slowed(len(self._left) or 1)
        self._left = [(left - done_ms, done) for left, done in self._left]
        self._looked_ms = now

    def _plan(self) -> None:
        """Look again when the first of them ends, unless there is more or less work before."""
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
    """The place at which each role works.

    Args:
        machines: by role.
        always_fresh: roles whose pieces of work stand for themselves.
        seed: of what varies.
    """
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
