"""The simulated world in lanes: what its places report to a ``LaneClock``, and nothing else.

Roles, links, machines and the simulation itself are those of any simulation. Here each *entry* of a
place, a method by which a callback comes to it, first reports the place (``LaneClock.touch``); a
callback reads and changes only places that it has entered. A stage reports less, where it can tell
that the order of steps is of no matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treepipe.core.messages import Beat, Close, Message
from treepipe.core.requests import RequestTrace
from treepipe.core.stage_desk import StageWork
from treepipe.physics.timing import later
from treepipe.physics.transfers import Port
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.sim.acceptance import AcceptanceSource
from treepipe.sim.clock import Callback
from treepipe.sim.device import RolePlace, SharedHost, SharedMachine
from treepipe.sim.lanes import Kept, LaneClock
from treepipe.sim.link import SimulatedLink, Traffic
from treepipe.sim.roles import DraftServer, StageRole
from treepipe.sim.world import Simulation


def entered(place: type[Any], *entries: str) -> type[Any]:
    """Return a kind of place that reports itself at each of these methods."""

    def reporting(entry: Any) -> Any:
        def enter(self: Any, *args: Any) -> Any:
            self._clock.touch(self)
            return entry(self, *args)

        return enter

    methods = {name: reporting(getattr(place, name)) for name in entries}
    return type(f"Lane{place.__name__}", (place,), methods)


class LaneLink(SimulatedLink[Any]):
    """A link, which reports the ports that it shares with others."""

    def _begin(self, item: Any, size_bytes: int) -> float:
        self._clock.touch(self._wire.port)
        return super()._begin(item, size_bytes)

    def _receive(self, port: Port, *rest: Any) -> None:
        self._clock.touch(port)
        super()._receive(port, *rest)


class LaneStage(StageRole):
    """A stage, of whose steps some commute if it serves a single request.

    It then acts in each lane when it would alone (``_look``).
    """

    _clock: LaneClock

    def __init__(
        self, world: Any, deployment: Deployment, pipeline: int, number: int, place: RolePlace
    ) -> None:
        super().__init__(world, deployment, pipeline, number, place)
        self._alone = deployment.service.clients == 1 and not deployment.arrivals_ms
        self._looks = self._alone and type(place) is RolePlace
        self._resumed = False  # whether it has been at work until now
        self._idle_ms: Any = 0.0

    def hear(self, sender: str, message: Message) -> None:
        self._clock.touch(self)
        super().hear(sender, message)

    def deliver(self, message: Message) -> None:
        self._clock.touch(self, self._inlet(message))
        super().deliver(message)

    def _inlet(self, message: Message) -> str | None:
        """Return the queue that a message joins, where the order of queues is of no matter: of a
        single request, at a stage that looks into each (``_look``) or is busy (the index law)."""
        queue = self._desk.queue if self._looks else None
        known = self._serving is not None if queue is None else queue[0] == message.session
        if isinstance(message, Close) or not (known and self._alone):
            return None
        return "words" if isinstance(message, Beat) else "segments"

    def _begin(self, wake_ms: float, callback: Callback) -> None:
        self._resumed = False
        super()._begin(wake_ms, callback)

    def _go_on(self, event: object) -> None:
        if not self._looks:
            self._clock.touch(self)
        elif self._verifies and self._resumed:  # else it looks at once
            self._clock.touch(self, "work")
        super()._go_on(event)
        self._resumed = self._serving is not None
        if not self._resumed:
            self._idle_ms = self._clock.now

    def _next_action(self) -> StageWork | None:
        if self._looks:
            self._look()
        return super()._next_action()

    def _look(self) -> None:
        """Let what follows happen when it does in each lane.

        The desk acts upon words, and upon the first segment; later ones change nothing. Where no
        word is due without a segment, it does nothing before the first one has come: so it acts at
        the later one of this time and of the segment's arrival. A segment that wakes the stage may
        have come while its last work lasted: then the stage acts when that ended. (If it came
        before that work began, the tie of these two times gives up the lane.)
        """
        clock, queue = self._clock, self._desk.queue
        if queue is None:
            clock.touch(self)
            return
        _, word_is_due, since_ms = queue
        if since_ms is not None and word_is_due:
            clock.passed(later(since_ms, self._idle_ms))
        elif since_ms is not None:
            clock.advance(since_ms, self._idle_ms)
        elif word_is_due:  # the first segment comes after this in each lane
            clock.touch(self, "segments")
        clock.touch(self, "words")


KINDS: Mapping[type[Any], type[Any]] = {
    DraftServer: entered(
        DraftServer, "hear", "open", "lose", "deliver", "answers", "_go_on", "_ring"
    ),
    StageRole: LaneStage,
    SimulatedLink: LaneLink,
    Traffic: entered(Traffic, "ask", "_end"),
    SharedMachine: entered(SharedMachine, "ask", "_end"),
    SharedHost: entered(SharedHost, "_go_on", "_look"),
}
"""The places of a simulation in lanes, by those of any simulation."""


class LaneSimulation(Simulation):
    """One run of deployments that were merged into one whose numbers are ``Times``."""

    clock: LaneClock

    def __init__(self, deployment: Deployment, source: AcceptanceSource, lanes: Kept) -> None:
        clock = LaneClock(lanes, KINDS)
        super().__init__(deployment, source, record_spans=True, clock=clock, spans=clock.spans)

    def run(self) -> Trace:
        """Run until all requests are over in all lanes that keep together with lane 0."""
        trace, clock = super().run(), self.clock
        clock.turns = len(trace.turns)
        known = [len(draft.turns) for draft in self._running.drafts]
        clock.drain()
        behind = zip(self._running.drafts, known, strict=True)
        more = [turn for draft, count in behind for turn in draft.turns[count:]]
        trace.turns = [*trace.turns, *more]
        return trace

    def finished(self, request: RequestTrace) -> None:
        self.clock.touch(self)
        super().finished(request)

    def _arrive(self, since_ms: float, at_ms: float, event: object) -> None:
        self.clock.touch(self)
        super()._arrive(since_ms, at_ms, event)
