"""Who is served when and where: the order of service, admission and routing of requests.

(StarSD, section 4, serves first-in-first-out and refuses targets beyond N_max; the weighted and
deadline-aware queues and several drafts are what its section on limitations leaves open.) Nothing
here knows a tree or a message; time enters as an argument.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from treepipe.core.requests import Assignment, RequestTrace

Policy: TypeAlias = Literal["fifo", "weighted_fair", "earliest_deadline"]


@dataclass(frozen=True, slots=True)
class ServiceLevels:
    """What each pipeline (each target) may expect of the draft server; 0 and 1 if not listed."""

    weights: tuple[float, ...] = ()
    deadlines_ms: tuple[float, ...] = ()

    def weight(self, pipeline: int) -> float:
        return self.weights[pipeline] if pipeline < len(self.weights) else 1.0

    def deadline_ms(self, pipeline: int) -> float:
        return self.deadlines_ms[pipeline] if pipeline < len(self.deadlines_ms) else 0.0


class ArrivalQueue:
    """What waits for a draft server, in the order in which it is to be served; ties first come.

    * ``fifo``: by arrival.
    * ``weighted_fair``: self-clocked fair queueing (Golestani 1994): a pipeline of weight 2 gets
      two turns where one of weight 1 gets one, if both always wait.
    * ``earliest_deadline``: by arrival plus the pipeline's deadline.
    """

    def __init__(self, policy: Policy = "fifo", levels: ServiceLevels | None = None) -> None:
        self._policy, self._levels = policy, levels or ServiceLevels()
        self._items: list[tuple[float, int, Any]] = []
        self._count = 0
        self._virtual = 0.0
        self._finish: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, pipeline: int, item: Any, now_ms: float) -> None:
        key = 0.0
        if self._policy == "earliest_deadline":
            key = now_ms + self._levels.deadline_ms(pipeline)
        elif self._policy == "weighted_fair":
            start = max(self._virtual, self._finish.get(pipeline, 0.0))
            key = self._finish[pipeline] = start + 1.0 / self._levels.weight(pipeline)
        heapq.heappush(self._items, (key, self._count, item))
        self._count += 1

    def pop(self) -> Any:
        """The item to serve next; raises ``IndexError`` if none waits."""
        self._virtual, _, item = heapq.heappop(self._items)
        return item


@dataclass(slots=True)
class Dispatcher:
    """Who asks when, and who is served where: a closed loop of clients, or given arrival times.

    A client asks for the next request when its last one is over; with arrival times every request
    is asked for at its own, however many are open. A request goes to the pipeline and the draft
    server with the fewest open requests (ties: the lower number) and stays there, since its caches
    are there; while all places are taken it waits.

    Attributes:
        requests: how many there are.
        clients: how many ask at once, where there are no arrival times.
        drafts, pipelines: how many there are.
        limit: open requests per pipeline; more wait (SpecPipe-DB, section 3.5: B). None: no limit.
        admission: more than this at once are refused (StarSD, section 4: N_max). None: no limit.
        arrivals_ms: ascending, from the start; one per request, or none for the closed loop.
        lost: pipelines that are gone.
    """

    requests: int
    clients: int
    drafts: int = 1
    pipelines: int = 1
    limit: int | None = None
    admission: int | None = None
    arrivals_ms: Sequence[float] = ()
    lost: set[int] = field(default_factory=set)
    _origin_ms: float = 0.0
    _next: int = 0
    _waiting: deque[Assignment] = field(default_factory=deque)
    _open: dict[int, Assignment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.arrivals_ms and len(self.arrivals_ms) != self.requests:
            raise ValueError("either every request has an arrival time, or none has")

    def start(self, now_ms: float) -> list[Assignment]:
        """Time begins to count; what becomes of every client's first request."""
        self._origin_ms = now_ms
        if self.arrivals_ms:
            return []
        return [a for _ in range(self.clients) for a in self._ask(now_ms)]

    @property
    def next_arrival_ms(self) -> float | None:
        """When ``arrive`` is to be called next; None in a closed loop and after the last one."""
        if self._next >= len(self.arrivals_ms):
            return None
        return self._origin_ms + self.arrivals_ms[self._next]

    def arrive(self) -> list[Assignment]:
        """The next request arrives, at its own time."""
        now_ms = self.next_arrival_ms
        assert now_ms is not None, "no request is left to arrive"
        return self._enter(now_ms) + self._serve_waiting()

    def finished(self, request: int, now_ms: float) -> list[Assignment]:
        """A request is over: who waits is served, and its client asks for another."""
        del self._open[request]
        served = self._serve_waiting()
        return served if self.arrivals_ms else served + self._ask(now_ms)

    @property
    def done(self) -> bool:
        return not self._open and not self._waiting and self._next == self.requests

    def _ask(self, now_ms: float) -> list[Assignment]:
        """The client goes on asking as long as it is refused."""
        refused: list[Assignment] = []
        while self._next < self.requests:
            answer = self._enter(now_ms)
            if not answer:
                break
            refused += answer
        return refused + self._serve_waiting()

    def _enter(self, now_ms: float) -> list[Assignment]:
        """The next request is asked for: it waits to be served, or is returned as refused."""
        asked = Assignment(self._next, now_ms)
        self._next += 1
        inside = len(self._open) + len(self._waiting)
        if len(self.lost) < self.pipelines and inside < (self.admission or inside + 1):
            self._waiting.append(asked)
            return []
        return [asked]

    def _serve_waiting(self) -> list[Assignment]:
        served = []
        while self._waiting and (found := self._place(self._waiting[0])) is not None:
            self._waiting.popleft()
            self._open[found.request] = found
            served.append(found)
        return served

    def _place(self, asked: Assignment) -> Assignment | None:
        pipelines = [a.pipeline for a in self._open.values()]
        drafts = [a.draft for a in self._open.values()]
        free = [
            p
            for p in range(self.pipelines)
            if p not in self.lost and (self.limit is None or pipelines.count(p) < self.limit)
        ]
        if not free:
            return None
        draft = min(range(self.drafts), key=drafts.count)
        return replace(asked, draft=draft, pipeline=min(free, key=pipelines.count))


class FrontDesk:
    """The requests of one run, from when they are asked for until they are over.

    What is assigned, the world opens; when it is over, the world tells.

    Attributes:
        over: requests that are finished or were refused, in the order in which that happened.
    """

    def __init__(self, dispatcher: Dispatcher, prompt_tokens: Sequence[int]) -> None:
        """Args: ``prompt_tokens``: of each request of the run."""
        self._dispatcher, self._prompt_tokens = dispatcher, prompt_tokens
        self.over: list[RequestTrace] = []

    @property
    def done(self) -> bool:
        """Whether every request is over."""
        return self._dispatcher.done

    @property
    def next_arrival_ms(self) -> float | None:
        """When ``arrive`` is to be called next; None in a closed loop and after the last one."""
        return self._dispatcher.next_arrival_ms

    def start(self, now_ms: float) -> list[Assignment]:
        """Time begins to count; returns what is to be opened."""
        return self._served(self._dispatcher.start(now_ms))

    def arrive(self) -> list[Assignment]:
        """The next request arrives, at its own time; returns what is to be opened."""
        return self._served(self._dispatcher.arrive())

    def finished(self, request: RequestTrace) -> list[Assignment]:
        """A request is over; returns what is to be opened."""
        self.over.append(request)
        return self._served(self._dispatcher.finished(request.session - 1, request.finished_ms))

    @property
    def lost(self) -> frozenset[int]:
        """Pipelines that are gone."""
        return frozenset(self._dispatcher.lost)

    def lose(self, pipeline: int) -> bool:
        """A pipeline is gone, and is given nothing more, if there is another; returns that."""
        dispatcher = self._dispatcher
        if len(dispatcher.lost | {pipeline}) == dispatcher.pipelines:
            return False
        dispatcher.lost.add(pipeline)
        return True

    def _served(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """Those that were not refused."""
        self.over += [
            RequestTrace.refused(each.session, self._prompt_tokens[each.request], each.asked_ms)
            for each in assignments
            if each.draft is None
        ]
        return [each for each in assignments if each.draft is not None]
