"""A role's place on its machine: work takes its time there, and waits while others keep it busy.

A place has one piece of work at a time, and ``started_ms`` is its begin. Waiting work is served
first come first served. The idle gap is sampled when ``fresh`` is set, and applies until it is set
again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from treepipe.physics.timing import HostTimes, IdleFactor, later
from treepipe.scenario.deployment import Machine
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
    """A place on a machine with waiting, an idle effect, or passes that words end."""

    def __init__(
        self, clock: Clock, role: str, machine: SharedMachine, *, always_fresh: bool
    ) -> None:
        super().__init__(clock)
        self.role = role
        self._machine, self._always_fresh = machine, always_fresh
        self.works, self.factor = 0, 1.0  # pieces that have ended; on the time of the one under way
        self.done: Callback | None = None  # what follows it

    def work(self, duration_ms: float, done: Callback) -> None:
        self._machine.ask(self, duration_ms, done)

    def cut(self, layer_ms: float) -> None:
        """End a pass with its layer under way, each of which takes so long."""
        self._machine.cut(self, layer_ms)

    def begin(self, gap_ms: float, idle: IdleFactor, done: Callback) -> None:
        """Begin the work after an idle gap of the machine."""
        self.started_ms, self.done = self._clock.now, done
        if self.fresh:
            self.factor = idle(gap_ms)
            self.fresh = self._always_fresh


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
        place.begin(gap, self._idle, self._clock.bound(done))
        self._busy += 1
        self._clock.after(place.factor * duration_ms, partial(self._end, place, place.works))

    def cut(self, place: SharedPlace, layer_ms: float) -> None:
        """End a pass with its layer under way, one that waits with its first."""
        for number, (each, _, done, asked_ms) in enumerate(self._waiting):
            if each is place:
                self._waiting[number] = (each, layer_ms, done, asked_ms)
                return
        end, now = place.started_ms, self._clock.now
        while end <= now:
            end += place.factor * layer_ms
        self._clock.after(end - now, partial(self._end, place, place.works))

    def _end(self, place: SharedPlace, work: int, event: object) -> None:
        """End a piece of work; a waiting role goes before the next work of the same role."""
        if work < place.works or place.done is None:
            return  # it was cut
        place.works += 1
        self._busy -= 1
        self._ended_ms = self._clock.now
        done = place.done
        if self._waiting:
            self._clock.spent(place.role, "compute", place.started_ms)
            first, duration_ms, first_done, asked_ms = self._waiting.popleft()
            self._clock.waited(first.role, "compute", asked_ms)
            self._begin(first, duration_ms, first_done)
        done(event)


class HostedPlace(RolePlace):
    """A place on a host with measured costs: a process that takes turns at the host's processors,
    slower the more of them are at work, and of random speed."""

    def __init__(self, clock: Clock, host: SharedHost, seed: np.random.SeedSequence) -> None:
        super().__init__(clock)
        self._host, self._rng = host, np.random.default_rng(seed)
        self.costs = host.costs
        self._process = Process()
        self._ended_ms = -inf
        self._passes = 0  # since it last waited

    def work(self, duration_ms: float, done: Callback) -> None:
        self._look()
        factor = self._host.costs.draw(self._rng)
        self._host.work(self._process, duration_ms * factor, partial(self._end, done))

    def next_cold(self) -> float:
        self._look()
        self._passes += 1
        return self._host.costs.cold(self._passes)

    def _look(self) -> None:
        if self._clock.now > self._ended_ms:
            self._ended_ms, self._passes = self._clock.now, 0

    def _end(self, done: Callback, event: object) -> None:
        self._ended_ms, self.started_ms = self._clock.now, self._process.started_ms
        done(event)


@dataclass(slots=True, eq=False)
class Process:
    """A process of a host.

    Attributes:
        left_ms: what is left of its piece of work, alone.
        done: what follows the piece; None while it has none.
        turn_ms: what is left of its turn at a processor.
        lasts: whether it has had a whole turn since it last waited.
        started_ms: when it first had a processor for the piece.
    """

    left_ms: float = 0.0
    done: Callback | None = None
    turn_ms: float = 0.0
    lasts: bool = False
    started_ms: float = 0.0


class SharedHost:
    """A host's processors, which its processes take in turns.

    A process keeps its processor until it waits; after each whole turn others that are ready go
    before it, and from the first one on it yields to a process that wakes, as the schedulers of
    systems do. The number of processors at work sets the speed of each.
    """

    def __init__(self, clock: Clock, costs: HostTimes) -> None:
        self._clock, self.costs = clock, costs
        self._working: list[Process] = []
        endless = (Process(inf, lambda _: None, lasts=True) for _ in range(costs.company))
        self._ready = list(endless)
        self._looked_ms = 0.0
        self._plans = 0

    def work(self, process: Process, alone_ms: float, done: Callback) -> None:
        """Give a piece of work to a process that has none."""
        self._go_on()
        process.left_ms, process.done = alone_ms, self._clock.bound(done)
        if process in self._working:
            process.started_ms = self._clock.now
        else:
            process.started_ms, process.lasts = inf, False
            self._ready.append(process)
        self._plan()

    def _go_on(self) -> None:
        passed = self._clock.now - self._looked_ms
        self._looked_ms = self._clock.now
        for process in self._working if passed else ():
            process.left_ms -= passed / self.costs.together(len(self._working))
            process.turn_ms -= passed
            if process.turn_ms <= 0 and not self._ready:
                process.turn_ms = self.costs.turn - -process.turn_ms % self.costs.turn
                process.lasts = True

    def _plan(self) -> None:
        """Give processors to ready processes, and look again when the first piece of work or turn
        ends, unless work begins or ends before."""
        while self._ready and self._has_room(first := min(self._ready, key=lambda p: p.lasts)):
            self._ready.remove(first)
            first.turn_ms = self.costs.turn
            first.started_ms = min(first.started_ms, self._clock.now)
            self._working.append(first)
        self._plans += 1
        slow = self.costs.together(len(self._working) or 1)
        ends = [process.left_ms * slow for process in self._working if process.done]
        ends += [process.turn_ms for process in self._working if self._ready]
        if min(ends, default=inf) < inf:
            self._clock.after(later(min(ends), 0.0), partial(self._look, self._plans))

    def _has_room(self, process: Process) -> bool:
        """Whether a processor is free for this process, or made free."""
        if len(self._working) < self.costs.processors:
            return True
        yields = [each for each in self._working if each.lasts and each.done]
        if process.lasts or not yields:
            return False
        self._back(yields[0])
        return True

    def _back(self, process: Process) -> None:
        self._working.remove(process)
        self._ready.append(process)

    def _look(self, plan: int, event: object) -> None:
        if plan != self._plans:
            return
        self._go_on()
        ended = [process for process in self._working if process.left_ms <= ROUNDING_MS]
        for process in [p for p in self._working if self._ready and p.turn_ms <= ROUNDING_MS]:
            process.lasts = True
            if process not in ended:
                self._back(process)
        follow = [(process, process.done) for process in ended]
        for process, _ in follow:
            process.done = None
        for _, done in follow:
            if done is not None:
                done(event)
        self._working = [process for process in self._working if process.done]
        self._plan()


def places(
    clock: Clock, machines: dict[str, Machine], stages: set[str], seed: int, *, cancels: bool
) -> dict[str, RolePlace]:
    """Make the place of each role; ``cancels``: words may end a stage's pass."""
    shared: dict[str, SharedMachine] = {}
    hosts: dict[str, SharedHost] = {}
    found: dict[str, RolePlace] = {}
    for role, machine in machines.items():
        if machine.costs is not None:
            host = hosts.setdefault(machine.name, clock.kind(SharedHost)(clock, machine.costs))
            found[role] = HostedPlace(clock, host, np.random.SeedSequence([seed, *role.encode()]))
            continue
        if not (machine.contended or machine.idle_factor or (cancels and role in stages)):
            found[role] = RolePlace(clock)
            continue
        if machine.name not in shared:
            shared[machine.name] = clock.kind(SharedMachine)(clock, machine)
        found[role] = SharedPlace(clock, role, shared[machine.name], always_fresh=role in stages)
    return found
