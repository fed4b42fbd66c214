"""Passes over static buffers, with rows and context in buckets, as a captured graph needs them.

The host sends a few numbers per row and entry; masks are made of them on the device. Sessions'
caches lie in one tensor, and a pass gathers the entries that its rows attend to by their slots, so
one graph serves every session, every place of a tree and every batch of the same buckets.

Invariant: padded rows write to ``SCRATCH``, which no row attends to, and no row attends to a padded
entry; so nothing of a pass is read by another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch

from treepipe.executor.models.cache import TreeCache
from treepipe.executor.models.computing import shares_memory
from treepipe.executor.models.replay import PassReplay, replay_on

MOST_ROWS = 256
"""Rows of the largest bucket. A pass over more is bound by its arithmetic, and runs eagerly."""
LEAST_CONTEXT = 64
"""Entries of the smallest bucket of context."""
SCRATCH = 0
"""Slot of padded rows."""
_ALL: WeakSet[StaticPasses] = WeakSet()
"""Those of this process."""


def bucket(count: int, least: int = 1) -> int:
    """Return the first of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, … that holds ``count``, from
    ``least`` on.

    >>> [bucket(rows) for rows in (1, 3, 9, 17, 25, 33, 65)], bucket(5, least=64)
    ([1, 4, 16, 24, 32, 48, 96], 64)
    """
    count = max(count, least)
    power = 1 << (count - 1).bit_length()
    between = power * 3 // 4
    return between if between >= max(count, 24) else power


def buckets(most: int, least: int = 1) -> Iterator[int]:
    """Yield the buckets up to that of ``most``."""
    size = bucket(least)
    while size < most:
        yield size
        size = bucket(size + 1)
    yield size


class Buffers:
    """The static inputs of one bucket; to decoder layers it is a cache, too.

    Attributes:
        states: [1, rows, width] what the pass reads.
        slots, orders, positions: [rows] where a row's keys and values go, its place in preorder
            among all entries, and its position.
        entries, first, last, places: [context] slot of each entry, its place in preorder, the end
            of its subtree there (0 of a padded one), and its position.
        tokens: [rows] token ids, of passes that embed.
        size_bytes: memory of all of them.
    """

    def __init__(self, rows: int, context: int, width: int, store: torch.Tensor) -> None:
        """Make them for passes into ``store`` [2, layers, heads, slots, size]."""
        self._store, self.rows = store, rows
        self.replay: PassReplay | None = None
        self._split = 8 * 4 * (rows + context)
        self.size_bytes = self._split + rows * width * store.element_size()
        self._given = torch.zeros(self.size_bytes, dtype=torch.uint8, device=store.device)
        self._sent, self._copied = self._given, None
        if store.device.type == "cuda":
            pinned = not shares_memory(store.device)
            self._sent = torch.zeros(self.size_bytes, dtype=torch.uint8, pin_memory=pinned)
            self._copied = torch.cuda.Event()
        views = [self._views(each, rows, width) for each in (self._given, self._sent)]
        (by_row, by_entry, self.states), (rows_sent, entries_sent, self._states_sent) = views
        self.slots, self.orders, self.positions, self.tokens = by_row
        self.entries, self.first, self.last, self.places = by_entry
        self._by_row, self._by_entry = rows_sent.numpy(), entries_sent.numpy()

    def _views(self, memory: torch.Tensor, rows: int, width: int) -> tuple[torch.Tensor, ...]:
        numbers = memory[: self._split].view(torch.long)
        states = memory[self._split :].view(self._store.dtype).view(1, rows, width)
        return numbers[: 4 * rows].view(4, rows), numbers[4 * rows :].view(4, -1), states

    def describe(
        self,
        caches: Sequence[TreeCache],
        rows: Sequence[int],
        positions: Sequence[int],
        tokens: Sequence[int] = (),
    ) -> None:
        """Describe a pass over rows of these tokens, which no cache keeps, and then over those that
        were reserved in each cache; ``positions`` are of all of them."""
        if self._copied is not None:
            self._copied.synchronize()  # until the last pass's numbers have left
        row, entry = len(tokens), 0
        self._by_row[:2, :row], self._by_row[3, :row] = SCRATCH, tokens
        for cache, count in zip(caches, rows, strict=True):
            opens, closes, places = cache.preorder()
            size = len(opens)
            slots, new = np.arange(cache.start, cache.start + size), slice(size - count, size)
            self._by_row[:2, row : row + count] = slots[new], entry + opens[new]
            columns = self._by_entry[:, entry : entry + size]
            columns[:] = slots, entry + opens, entry + closes, places
            row, entry = row + count, entry + size
        self._by_row[2, :row] = positions
        # Padded rows attend to what the first row does, so that they are numbers; padded entries
        # are the first entry again, and no row attends to them.
        self._by_row[0, row:], self._by_row[1:, row:] = SCRATCH, self._by_row[1:, :1]
        self._by_entry[0, entry:] = self._by_entry[0, 0] if entry else SCRATCH
        self._by_entry[2, entry:] = 0

    def send(self, states: Sequence[torch.Tensor], first: int = 0) -> None:
        """Send the numbers, and the states [n, width] of the rows from ``first`` on, to the device;
        what is on the host in one copy."""
        on_host = self._copied is None or all(each.device.type == "cpu" for each in states)
        rows = (self._states_sent if on_host else self.states)[0, first:]
        for each in states:
            rows[: len(each)] = each
            rows = rows[len(each) :]
        if self._copied is not None:
            size = None if on_host else self._split
            self._given[:size].copy_(self._sent[:size], non_blocking=True)
            self._copied.record()

    def mask(self, window: int | None = None) -> torch.Tensor:
        """Return [rows, context], true where a row attends to an entry: to one whose subtree holds
        the row, less than ``window`` positions above."""
        orders = self.orders[:, None]
        seen = (self.first <= orders) & (orders < self.last)
        return seen if window is None else seen & (self.positions[:, None] - self.places < window)

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's [1, heads, n, size] of the last n rows; return those of the context.
        Layers call this."""
        gathered, slots = list[torch.Tensor](), self.slots[self.rows - keys.shape[2] :]
        for store, new in zip(self._store[:, layer], (keys, values), strict=True):
            store.index_copy_(1, slots, new[0])
            gathered.append(store.index_select(1, self.entries)[None])
        return gathered[0], gathered[1]


class StaticPasses:
    """The caches of a model's sessions in one tensor, and its passes in buckets: buffers and replay
    of each, made when they are first needed.

    Attributes:
        longest: capacity of the largest cache so far.
    """

    def __init__(
        self,
        forward: Callable[[Buffers], torch.Tensor],
        width: int,
        sizes: tuple[int, int, int],
        capacity: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        """Args: ``forward``: computes [rows, ...] from the buffers alone, without the host, of rows
        of ``width`` numbers; ``sizes``: of caches of the usual ``capacity``, as a ``TreeCache``'s.
        """
        layers, heads, size = self._sizes = sizes
        self._forward, self._width, self._capacity = forward, width, capacity
        self._store = torch.zeros((2, layers, heads, 1, size), dtype=dtype, device=device)
        self._open, self._free, self.longest = list[TreeCache](), dict[int, list[int]](), 0
        self._buckets = dict[tuple[int, int], Buffers]()
        _ALL.add(self)

    @torch.inference_mode(mode=False)  # words compact caches outside of it
    def reserve(self, caches: int, capacity: int) -> list[int]:
        """Make room for so many further caches; return the first slots of all free places."""
        free, start = self._free.setdefault(capacity, []), self._store.shape[3]
        if missing := max(0, caches - len(free)):
            free += range(start, start + missing * capacity, capacity)
            more = (*self._store.shape[:3], missing * capacity, self._store.shape[4])
            self._store = torch.cat((self._store, self._store.new_empty(more)), 3)
            for cache in self._open:
                cache.lie_in(self._store, cache.start)
            self._buckets = {}  # graphs know addresses
        self.longest = max(self.longest, capacity)
        return free

    def open(self, capacity: int) -> TreeCache:
        """Return an empty cache of ``capacity`` entries, in the place of a closed one if any."""
        place, dtype = self.reserve(1, capacity).pop(), self._store.dtype
        self._open.append(TreeCache(*self._sizes, capacity, dtype, pool=(self._store, place)))
        return self._open[-1]

    def close(self, cache: TreeCache) -> None:
        self._open = [each for each in self._open if each is not cache]
        self._free[cache.capacity].append(cache.start)

    def buffers(self, rows: int, context: int) -> Buffers:
        """Return the buffers of the least bucket for these rows and entries."""
        key = bucket(rows), bucket(context, LEAST_CONTEXT)
        if key not in self._buckets:
            self._buckets[key] = Buffers(*key, self._width, self._store)
        return self._buckets[key]

    @torch.inference_mode()
    def begin(
        self,
        caches: Sequence[TreeCache],
        rows: Sequence[int],
        positions: Sequence[int],
        states: Sequence[torch.Tensor],
    ) -> Callable[[object], torch.Tensor]:
        """Describe a pass over the rows reserved in the caches, which reads the states [n, width]
        of each; return the pass, which gives [all rows, ...]."""
        context = sum(cache.length + count for cache, count in zip(caches, rows, strict=True))
        buffers = self.buffers(sum(rows), context)
        buffers.describe(caches, rows, positions)
        buffers.send(states)
        return partial(self.replay, buffers, sum(rows))

    @torch.inference_mode()
    def replay(self, buffers: Buffers, rows: int, _: object = None) -> torch.Tensor:
        """Compute what the buffers hold; return a copy of the first rows."""
        if buffers.replay is None:
            buffers.replay = replay_on(self._store.device.type)(partial(self._forward, buffers))
        return buffers.replay()[:rows].clone()

    @torch.inference_mode()
    def _capture(self, rows: int) -> None:
        """Make the replays of one session's passes over up to so many rows."""
        cache = self.open(self._capacity)
        cache.reserve(1, None)
        for context in buckets(self._capacity, LEAST_CONTEXT):
            for count in buckets(rows):
                buffers = self.buffers(count, context)
                buffers.describe([cache], [1], [0])
                buffers.send([torch.zeros(1, self._width, dtype=self._store.dtype)])
                self.replay(buffers, 1)
        self.close(cache)


def capture(sessions: int, rows: int) -> None:
    """Make the caches of so many sessions, and the replays of each one's passes over up to so many
    rows, of all models of this process that have graphs."""
    for passes in _ALL:
        passes.reserve(sessions, passes._capacity)
        passes._capture(rows)


def graphs_bytes() -> int:
    """Memory of this process's graphs and of their buffers."""
    every = [buffers for passes in _ALL for buffers in passes._buckets.values()]
    return sum(each.size_bytes + (each.replay.size_bytes if each.replay else 0) for each in every)
