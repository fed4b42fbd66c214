"""The order of service, admission and routing of requests.

(StarSD, section 4, serves first-in-first-out and refuses targets beyond N_max; weighted and
deadline-aware queues and several drafts are what its section on limitations leaves open.)
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from treepipe.core.requests import Assignment, RequestTrace

Policy: TypeAlias = Literal["fifo", "weighted_fair", "earliest_deadline"]


@dataclass(frozen=True, slots=True)
class ServiceLevels:
    """The weight and the deadline of each pipeline (each target); 0 and 1 if not listed."""

    weights: tuple[float, ...] = ()
    deadlines_ms: tuple[float, ...] = ()

    def weight(self, pipeline: int) -> float:
        return self.weights[pipeline] if pipeline < len(self.weights) else 1.0

    def deadline_ms(self, pipeline: int) -> float:
        return self.deadlines_ms[pipeline] if pipeline < len(self.deadlines_ms) else 0.0


class ArrivalQueue:
    """The queue of a draft server, in the order of service; ties first come first served.

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
        """Return the item to serve next.

        Raises:
            IndexError: the queue is empty.
        """
        self._virtual, _, item = heapq.heappop(self._items)
        return item


@dataclass(slots=True)
class FrontDesk:
    """The requests of one run, from their arrival to their end.

    A client asks for the next request when its last one is over; with arrival times every request
    arrives at its own, but for turns of sessions, which also wait for another request to end. A
    request goes to the pipeline and the draft server with the fewest open
    requests (ties: the lower number) and stays there, since its caches are there; while all places
    are taken it waits. Methods return the assignments that the world has to open.

    Attributes:
        prompt_tokens: prompt length of each request of the run.
        clients: number of clients, without arrival times.
        drafts, pipelines: number of draft servers and of pipelines.
        limit: open requests per pipeline; more wait (SpecPipe-DB, section 3.5: B). None: no limit.
        admission: maximum number of requests at once; more are refused (StarSD, section 4: N_max).
            None: no limit.
        arrivals_ms: from the start; one per request, or empty for the closed loop.
        turns: by request the turns that arrive after its end, each with the time from then on.
        over: finished or refused requests, in the order of their ends.
    """

    prompt_tokens: Sequence[int]
    clients: int
    drafts: int = 1
    pipelines: int = 1
    limit: int | None = None
    admission: int | None = None
    arrivals_ms: Sequence[float] = ()
    turns: Mapping[int, Sequence[tuple[int, float]]] = field(default_factory=dict)
    over: list[RequestTrace] = field(default_factory=list)
    _lost: set[int] = field(default_factory=set)
    _origin_ms: float = 0.0
    _next: int = 0
    _coming: list[tuple[float, int]] = field(default_factory=list)
    _waiting: deque[Assignment] = field(default_factory=deque)
    _open: dict[int, Assignment] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.arrivals_ms and len(self.arrivals_ms) != len(self.prompt_tokens):
            raise ValueError("either every request has an arrival time, or none has")
        waiting = {turn for turns in self.turns.values() for turn, _ in turns}
        self._coming = [(at, n) for n, at in enumerate(self.arrivals_ms) if n not in waiting]
        heapq.heapify(self._coming)

    @property
    def done(self) -> bool:
        """Whether every request is over."""
        return not self._open and not self._waiting and self._next == len(self.prompt_tokens)

    @property
    def next_arrival_ms(self) -> float | None:
        """Time of the next ``arrive``; None in a closed loop, after the last one, and if all that
        come wait for others to end."""
        return self._origin_ms + self._coming[0][0] if self._coming else None

    def start(self, now_ms: float) -> list[Assignment]:
        """Start the clock; every client asks for its first request."""
        self._origin_ms = now_ms
        if self.arrivals_ms:
            return []
        return [each for _ in range(self.clients) for each in self._ask(now_ms)]

    def arrive(self) -> list[Assignment]:
        """Take the next request at its arrival time."""
        now_ms = self.next_arrival_ms
        assert now_ms is not None, "no request is left to arrive"
        self._enter(heapq.heappop(self._coming)[1], now_ms)
        return self._serve_waiting()

    def finished(self, request: RequestTrace) -> list[Assignment]:
        """Take the end of a request: a waiting one is served, and its client asks for another."""
        self._end(request)
        del self._open[request.session - 1]
        served = self._serve_waiting()
        return served if self.arrivals_ms else served + self._ask(request.finished_ms)

    @property
    def lost(self) -> frozenset[int]:
        return frozenset(self._lost)

    def lose(self, pipeline: int) -> bool:
        """Stop assigning requests to a pipeline and return True, unless it is the only one."""
        if len(self._lost | {pipeline}) == self.pipelines:
            return False
        self._lost.add(pipeline)
        return True

    def _ask(self, now_ms: float) -> list[Assignment]:
        """Ask for a client's next request, until one is not refused."""
        while self._next < len(self.prompt_tokens) and not self._enter(self._next, now_ms):
            pass
        return self._serve_waiting()

    def _end(self, request: RequestTrace) -> None:
        """Note a request's end; the turns that wait for it are coming."""
        self.over.append(request)
        for turn, delay_ms in self.turns.get(request.session - 1, ()):
            due_ms = request.finished_ms - self._origin_ms + delay_ms
            heapq.heappush(self._coming, (max(self.arrivals_ms[turn], due_ms), turn))

    def _enter(self, request: int, now_ms: float) -> bool:
        """Ask for a request; return False if it is refused."""
        asked = Assignment(request, now_ms)
        self._next += 1
        inside = len(self._open) + len(self._waiting)
        if inside < (self.admission or inside + 1):
            self._waiting.append(asked)
            return True
        refused = RequestTrace.refused(asked.session, self.prompt_tokens[asked.request], now_ms)
        self._end(refused)
        return False

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
            if p not in self._lost and (self.limit is None or pipelines.count(p) < self.limit)
        ]
        if not free:
            return None
        draft = min(range(self.drafts), key=drafts.count)
        return replace(asked, draft=draft, pipeline=min(free, key=pipelines.count))
