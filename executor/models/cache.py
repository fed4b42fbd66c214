"""Keys, values and the tree mask of one session on one stage, pruned in place.

Invariant (index law (i), FlowSpec section 3.3): entries before ``committed`` always stay; the kept
entries of the tree part move together, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from treepipe.core.messages import NO_PARENT


class TreeCache:
    """Preallocated keys and values: entries of committed tokens, then the tree part.

    Decoder layers of transformers call ``update`` on it as on any cache, within the pass that
    ``begin`` opened.

    Attributes:
        committed: number of committed entries.
        length: number of all entries.
        tree_mask: [t, t] boolean over the tree part, on the host: row i marks entry i and its
            ancestors.
    """

    def __init__(
        self,
        layers: int,
        heads: int,
        head_size: int,
        capacity: int,
        dtype: torch.dtype,
        device: str = "cpu",
    ) -> None:
        """Allocate room for ``capacity`` entries of ``heads`` key/value heads."""
        shape = (2, layers, heads, capacity, head_size)
        self._store = torch.empty(shape, dtype=dtype, device=device)
        self.tree_mask = torch.zeros((0, 0), dtype=torch.bool)
        self.capacity, self.committed, self.length, self._rows = capacity, 0, 0, 0

    def begin(self, rows: int, parents: Sequence[int] | None) -> torch.Tensor:
        """Open a pass over ``rows`` new entries; return its mask [rows, length + rows].

        Args:
            parents: index in the tree part per row; None for committed rows.

        Raises:
            MemoryError: the entries do not fit.
        """
        if self.length + rows > self.capacity:
            raise MemoryError(f"a cache of {self.capacity} entries cannot take {rows} more")
        self._rows = rows
        if parents is None:
            seen = torch.ones((rows, self.length + rows), dtype=torch.bool)
            return seen if rows == 1 else seen.tril_(self.length)
        nodes = self.length - self.committed
        self.tree_mask = torch.from_numpy(with_rows(self.tree_mask.numpy(), parents))
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
        self.tree_mask = self.tree_mask[live][:, live]
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
