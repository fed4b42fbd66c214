"""Keys, values and the tree mask of one session on one stage, pruned in place.

Invariant (index law (i), FlowSpec section 3.3): entries before ``committed`` always stay; the kept
entries of the tree part move together, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from treepipe.core.messages import NO_PARENT

Places: TypeAlias = npt.NDArray[np.int64]
"""Numbers of entries, [entries]."""


class TreeCache:
    """Preallocated keys and values: entries of committed tokens, then the tree part.

    Decoder layers of transformers call ``update`` on it as on any cache, within the pass that
    ``begin`` opened.

    Attributes:
        start: slot of its first entry, where it lies in a pool of several.
        committed: number of committed entries.
        length: number of all entries.
        parents: parent of each entry of the tree part, in it.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        head_size: int,
        capacity: int,
        dtype: torch.dtype,
        device: str = "cpu",
        pool: tuple[torch.Tensor, int] | None = None,
    ) -> None:
        """Allocate room for ``capacity`` entries of ``heads`` key/value heads, or take that of a
        pool [2, layers, heads, slots, head_size] from a slot on."""
        self.capacity, self.committed, self.length, self._rows = capacity, 0, 0, 0
        self.parents, self._mask = list[int](), torch.zeros((0, 0), dtype=torch.bool)
        shape = (2, layers, heads, capacity, head_size)
        self.lie_in(*pool or (torch.empty(shape, dtype=dtype, device=device), 0))

    def lie_in(self, store: torch.Tensor, start: int) -> None:
        """Have the entries at a place of a tensor that holds them already."""
        self._store, self.start = store[:, :, :, start : start + self.capacity], start

    @property
    def tree_mask(self) -> torch.Tensor:
        """[t, t] boolean over the tree part, on the host: row i marks entry i and its ancestors."""
        if len(self._mask) < len(self.parents):
            new = self.parents[len(self._mask) :]
            self._mask = torch.from_numpy(with_rows(self._mask.numpy(), new))
        return self._mask

    def reserve(self, rows: int, parents: Sequence[int] | None) -> None:
        """Open a pass over ``rows`` new entries.

        Args:
            parents: index in the tree part per row; None for committed rows.

        Raises:
            MemoryError: the entries do not fit.
        """
        if self.length + rows > self.capacity:
            raise MemoryError(f"a cache of {self.capacity} entries cannot take {rows} more")
        self._rows = rows
        self.parents += parents or ()

    def begin(self, rows: int, parents: Sequence[int] | None) -> torch.Tensor:
        """Open a pass as ``reserve``; return its mask [rows, length + rows]."""
        self.reserve(rows, parents)
        if parents is None:
            seen = torch.ones((rows, self.length + rows), dtype=torch.bool)
            return seen if rows == 1 else seen.tril_(self.length)
        nodes = self.length - self.committed
        seen = torch.ones((rows, self.length + rows), dtype=torch.bool)
        seen[:, self.committed :] = self.tree_mask[nodes:]
        return seen

    def within(self, mask: torch.Tensor, window: int) -> torch.Tensor:
        """Return the open pass's mask without the entries ``window`` or more positions before a
        row. A committed entry's position is its index; the first nodes of a tree follow them."""
        if self.length + self._rows <= window:
            return mask
        places = torch.arange(self.length + self._rows)
        nodes = self.committed + len(self.tree_mask)
        places[self.committed : nodes] = self.committed - 1 + self.tree_mask.sum(1)
        return mask & (places[self.length :, None] - places[None] < window)

    def preorder(self) -> tuple[Places, Places, Places]:
        """Return, of each entry of the open pass, its place in a preorder of the text with its
        tree below, the place behind its subtree, and its position. A row attends to the entries
        whose subtrees hold it.

        Raises:
            ValueError: an entry stands before its parent.
        """
        size, parents, nodes = self.length + self._rows, self.parents, len(self.parents)
        first, last, places = np.arange(size), np.full(size, size), np.arange(size)
        # The index NO_PARENT is the last one, which stands for the text above the tree.
        below, depths, behind = (
            [1] * (nodes + 1),
            [-1] * (nodes + 1),
            [self.committed] * (nodes + 1),
        )
        starts = list[int]()
        for node in range(nodes - 1, -1, -1):
            below[parents[node]] += below[node]
        for node, above in enumerate(parents):
            if above >= node:
                raise ValueError("a node of a tree stands before its parent")
            start = behind[above]
            starts.append(start)
            behind[above], behind[node] = start + below[node], start + 1
            depths[node] = depths[above] + 1
        if nodes:
            tree = slice(self.committed, self.committed + nodes)
            first[tree], last[tree], places[tree] = starts, below[:-1], depths[:-1]
            last[tree] += first[tree]
            places[tree] += self.committed
        return first, last, places

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's [1, heads, rows, size]; return all its entries. Layers call this."""
        end = self.length + self._rows
        self._store[0, layer, :, self.length : end] = keys[0]
        self._store[1, layer, :, self.length : end] = values[0]
        return self._store[0, layer, None, :, :end], self._store[1, layer, None, :, :end]

    def finish(self, committed: bool) -> None:
        """Close the pass."""
        self.length += self._rows
        if committed:
            self.committed = self.length
        self._rows = 0

    def prune(self, keep: Sequence[int], accepted: int) -> None:
        """Keep the tree entries at ``keep`` (ascending), and commit the first ``accepted``."""
        base = self.committed
        still = next((i for i, old in enumerate(keep) if i != old), len(keep))
        moved = torch.tensor(keep[still:], dtype=torch.long, device=self._store.device)
        if len(moved):
            # Source and destination may overlap, since indexing copies.
            first = base + still
            self._store[:, :, :, first : first + len(moved)] = self._store[:, :, :, base + moved]
        live = torch.tensor(keep[accepted:], dtype=torch.long)
        whole = len(self._mask) == len(self.parents)  # else it is made anew of the parents
        self._mask = self._mask[live][:, live] if whole else self._mask[:0, :0]
        number = {node: new for new, node in enumerate(keep[accepted:])}
        self.parents = [number.get(self.parents[node], NO_PARENT) for node in number]
        self.committed = base + accepted
        self.length = base + len(keep)

    def truncate(self, length: int) -> None:
        """Drop committed entries from ``length`` on; there must be no tree part."""
        if self.length != self.committed or length > self.length:
            raise ValueError(f"{self.length} entries cannot be cut to {length} committed ones")
        self.length = self.committed = length

    def append(self, entries: torch.Tensor) -> None:
        """Append [2, layers, heads, n, size] keys and values of n committed tokens, without a pass;
        there must be no tree part. Raises ``MemoryError`` if they do not fit."""
        if self.length != self.committed:
            raise ValueError("committed entries cannot be put behind a tree part")
        end = self.length + entries.shape[3]
        if end > self.capacity:
            raise MemoryError(f"a cache of {self.capacity} entries cannot hold {end}")
        self._store[:, :, :, self.length : end] = entries
        self.length = self.committed = end

    def entries(self) -> torch.Tensor:
        """View of the keys and values of all entries: [2, layers, heads, length, size]."""
        return self._store[:, :, :, : self.length]


def with_rows(mask: npt.NDArray[np.bool_], parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Extend a tree's mask [t, t] by n rows, each below its parent: [t + n, t + n].

    Pointer doubling: a row adds the ancestors of the row at the end of its jump, then jumps twice
    as far. ``NO_PARENT`` is the index of the last row, which has no ancestors.
    """
    nodes, size = len(mask), len(mask) + len(parents)
    grown = np.zeros((size + 1, size), bool)
    grown[:nodes, :nodes] = mask
    new = grown[nodes:size]
    np.fill_diagonal(new[:, nodes:], True)
    jump = np.full(size + 1, NO_PARENT)
    jump[nodes:size] = parents
    while (jump != NO_PARENT).any():
        new |= grown[jump[nodes:size]]
        jump = jump[jump]
    return grown[:size]


class RaggedCache:
    """The caches of several sessions during one pass over all their rows (SpecPipe, section 3.5).

    To the layers it is one cache; its mask lets every row see its own session's entries only.
    """

    def __init__(self, caches: Sequence[TreeCache], rows: Sequence[int]) -> None:
        """Combine caches, given each session's rows in the pass that ``begin`` opened there."""
        self._caches, self._rows = list(caches), list(rows)

    @staticmethod
    def mask(masks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Combine sessions' masks [rows, entries] into [all rows, all entries], False across."""
        return torch.block_diag(*[mask.to(torch.uint8) for mask in masks]).bool()

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's entries, session by session, as ``TreeCache.update``."""
        found = [
            cache.update(key, value, layer)
            for cache, key, value in zip(
                self._caches, keys.split(self._rows, 2), values.split(self._rows, 2), strict=True
            )
        ]
        return torch.cat([key for key, _ in found], 2), torch.cat([value for _, value in found], 2)
