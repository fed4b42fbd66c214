"""Keys and values: the cache entries of a draft server's requests, and preemption.

Invariant: open requests never hold more than the room, at the pipelines and at the draft. A request
holds its text and, beside it, the most nodes its system has in flight (in a stage's cache) or on
trial (in the draft's). Reserved, that is its longest text from the beginning. Paged, it is the text
so far in whole pages; when that has grown beyond the room, the request that was admitted last is
preempted and is computed again later, as in vLLM (Kwon et al. 2023, PagedAttention, sections 4.3
and 4.5). The first of all requests is never preempted, so every request ends.

Requests begin in order of arrival, preempted ones first. One without room blocks those behind it
from the pipeline, or the draft, that it lacks.

A closed request's entries are free at once, though its ``Close`` is on its way to the stages.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from math import inf

from treepipe.core.draft_work import Orders
from treepipe.core.protocol import Started

PAGE = 16
"""Entries of a page (vLLM's default)."""
DRAFT = -1
"""Number of the draft's own cache, beside pipelines counted from 0."""


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """The entries (one is a token's keys and values) that one draft server's requests may hold.

    Attributes:
        pipelines: entries in every stage of each pipeline; unbounded for one that is not listed.
        draft: entries in the draft's cache.
        tree_tokens, scratch_tokens: maximum number of a request's nodes beside its text, in a
            stage's cache and in the draft's.
        paged: requests hold their present need, not the most that they may need.
    """

    pipelines: tuple[float, ...] = ()
    draft: float = inf
    tree_tokens: int = 0
    scratch_tokens: int = 0
    paged: bool = False

    def of(self, pool: int) -> float:
        """Return the entries of a pool: a pipeline's number, or ``DRAFT``."""
        if pool == DRAFT:
            return self.draft
        return self.pipelines[pool] if pool < len(self.pipelines) else inf

    def held(self, pool: int, length: int) -> int:
        """Return the entries that a request with ``length`` tokens of text holds.

        >>> CacheRoom(tree_tokens=5).held(0, 30), CacheRoom(tree_tokens=5, paged=True).held(0, 30)
        (35, 48)
        """
        entries = length + (self.scratch_tokens if pool == DRAFT else self.tree_tokens)
        return -(-entries // PAGE) * PAGE if self.paged else entries


@dataclass(slots=True)
class _Holding:
    pipeline: int
    length: int


class CacheBook:
    """The entries of each admitted request of one draft server, in the order of admission, and the
    requests that wait for room."""

    def __init__(self, room: CacheRoom | None = None) -> None:
        """Begin without a request. ``room``: None: no bound."""
        self._room = room or CacheRoom()
        self._holdings: dict[int, _Holding] = {}
        self._taken: Counter[int] = Counter()
        self._waiting = deque[tuple[int, int, Started]]()

    def __len__(self) -> int:
        return len(self._holdings)

    def taken(self, pool: int) -> int:
        """Return the entries that all requests hold of a pool."""
        return self._taken[pool]

    def wait(self, session: int, pipeline: int, started: Started, *, first: bool = False) -> None:
        """Let a request wait behind all others, or before them."""
        waiting = session, pipeline, started
        if first:
            self._waiting.appendleft(waiting)
        else:
            self._waiting.append(waiting)

    def next(self) -> list[tuple[int, int]]:
        """Admit waiting requests as far as there is room; return session and pipeline of each."""
        admitted, blocked = list[tuple[int, int]](), set[int]()
        waiting, self._waiting = self._waiting, deque()
        for session, pipeline, started in waiting:
            if blocked.isdisjoint((pipeline, DRAFT)):
                lacking = self.lacking(pipeline, started)
                if not lacking:
                    self.admit(session, pipeline, started)
                    admitted.append((session, pipeline))
                    continue
                blocked.update(lacking)
            self._waiting.append((session, pipeline, started))
        return admitted

    def lacking(self, pipeline: int, started: Started) -> list[int]:
        """Return the pools that have no room for a waiting request."""
        length, room = self._length(started), self._room
        return [
            pool
            for pool in (pipeline, DRAFT)
            if self._taken[pool] + room.held(pool, length) > room.of(pool)
        ]

    def admit(self, session: int, pipeline: int, started: Started) -> None:
        self._holdings[session] = holding = _Holding(pipeline, self._length(started))
        self._count(holding, 1)

    def left(self, session: int) -> None:
        """Forget a request; one that was not admitted holds nothing."""
        holding = self._holdings.pop(session, None)
        if holding is not None:
            self._count(holding, -1)
        elif any(session == each for each, *_ in self._waiting):
            self._waiting = deque([each for each in self._waiting if each[0] != session])

    def take(self, orders: Orders) -> None:
        """Add emitted tokens, and preempt the requests without room, the last admitted first.

        All tokens emitted by then are final, so a preempted request repeats no draw for them.
        """
        if not self._room.paged or not orders.emitted:
            return
        for session, tokens in orders.emitted:
            holding = self._holdings.get(session)
            if holding is not None:
                self._count(holding, -1)
                holding.length += len(tokens)
                self._count(holding, 1)
        for pool in (*range(len(self._room.pipelines)), DRAFT):
            while self._taken[pool] > self._room.of(pool):
                orders.preempted.append(self._last(pool))
                self.left(orders.preempted[-1])

    def _last(self, pool: int) -> int:
        held = reversed(self._holdings.items())
        return next(s for s, each in held if pool in (each.pipeline, DRAFT))

    def _count(self, holding: _Holding, sign: int) -> None:
        for pool in (holding.pipeline, DRAFT):
            self._taken[pool] += sign * self._room.held(pool, holding.length)

    def _length(self, started: Started) -> int:
        return len(started.prompt) + (0 if self._room.paged else started.max_new_tokens)
