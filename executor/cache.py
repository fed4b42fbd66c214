"""Keys, values and the tree mask of one session on one stage, pruned in place.

Law of this file (index law (i), FlowSpec section 3.3): entries before ``committed`` always stay;
of the tree part, the entries at the kept indices stay in their order and move together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from treepipe.core.messages import NO_PARENT


class TreeCache:
    """Preallocated keys and values: committed entries first, the tree part behind them.

    Decoder layers of transformers call ``update`` on it as on any cache; the entries they write
    belong to the pass that ``begin`` opened.

    Attributes:
        committed: entries of committed tokens.
        length: all entries.
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
        """Args: ``heads``: key/value heads; ``capacity``: entries that fit."""
        shape = (2, layers, heads, capacity, head_size)
        self._store = torch.empty(shape, dtype=dtype, device=device)
        self._mask = torch.zeros((0, 0), dtype=torch.bool)
        self.committed = 0
        self.length = 0
        self._rows = 0

    @property
    def capacity(self) -> int:
        return int(self._store.shape[3])

    @property
    def tree_mask(self) -> torch.Tensor:
        """[t, t] boolean over the tree part: row i marks entry i and its ancestors.

        Masks are made by the host, whatever device holds the entries.
        """
        return self._mask

    def begin(self, rows: int, parents: Sequence[int] | None) -> torch.Tensor:
        """Open a pass over ``rows`` new entries; returns its mask [rows, length + rows].

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
        self._mask = torch.from_numpy(with_rows(self._mask.numpy(), parents))
        seen = torch.ones((rows, self.length + rows), dtype=torch.bool)
        seen[:, self.committed :] = self._mask[nodes:]
        return seen

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each layer: [1, heads, rows, size] in, all entries so far out."""
        end = self.length + self._rows
        self._store[0, layer, :, self.length : end] = keys[0]
        self._store[1, layer, :, self.length : end] = values[0]
        return self._store[0, layer, None, :, :end], self._store[1, layer, None, :, :end]

    def finish(self, committed: bool) -> None:
        """Close the pass: its entries are there now."""
        self.length += self._rows
        if committed:
            self.committed = self.length
        self._rows = 0

    def prune(self, keep: Sequence[int], accepted: int) -> None:
        """Keep the tree entries at ``keep`` (ascending); the first ``accepted`` are committed."""
        base = self.committed
        still = next((i for i, old in enumerate(keep) if i != old), len(keep))
        moved = torch.tensor(keep[still:], dtype=torch.long, device=self._store.device)
        if len(moved):
            # Indexing copies, so source and destination may overlap.
            first = base + still
            self._store[:, :, :, first : first + len(moved)] = self._store[:, :, :, base + moved]
        live = torch.tensor(keep[accepted:], dtype=torch.long)
        self._mask = self._mask[live][:, live]
        self.committed = base + accepted
        self.length = base + len(keep)

    def truncate(self, length: int) -> None:
        """Forget committed entries from ``length`` on; there must be no tree part."""
        if self.length != self.committed or length > self.length:
            raise ValueError(f"{self.length} entries cannot be cut to {length} committed ones")
        self.length = self.committed = length

    def append(self, entries: torch.Tensor) -> None:
        """Take [2, layers, heads, n, size] keys and values as those of n committed tokens.

        There must be no tree part; so a cache is filled without the passes that would fill it.

        Raises:
            MemoryError: the entries do not fit.
        """
        if self.length != self.committed:
            raise ValueError("committed entries cannot be put behind a tree part")
        end = self.length + entries.shape[3]
        if end > self.capacity:
            raise MemoryError(f"a cache of {self.capacity} entries cannot hold {end}")
        self._store[:, :, :, self.length : end] = entries
        self.length = self.committed = end

    def entries(self) -> torch.Tensor:
        """[2, layers, heads, length, size]: keys and values of all entries (a view)."""
        return self._store[:, :, :, : self.length]


def with_rows(mask: npt.NDArray[np.bool_], parents: Sequence[int]) -> npt.NDArray[np.bool_]:
    """A tree's mask [t, t] with n rows more, each below its parent: [t + n, t + n].

    Every row takes over what the row at the end of its jump knows, and then jumps twice as far, so
    that the depth of d new layers takes log2(d) steps. ``NO_PARENT`` is the index of the last row,
    which knows nothing.
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
        """Args: ``rows``: per session, the rows of the pass that ``begin`` opened there."""
        self._caches, self._rows = list(caches), list(rows)

    @staticmethod
    def mask(masks: Sequence[torch.Tensor]) -> torch.Tensor:
        """Masks [rows, entries] of sessions as one [all rows, all entries], False across them."""
        return torch.block_diag(*[mask.to(torch.uint8) for mask in masks]).bool()

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by each layer, as ``TreeCache.update``; entries come session by session."""
        found = [
            cache.update(key, value, layer)
            for cache, key, value in zip(
                self._caches, keys.split(self._rows, 2), values.split(self._rows, 2), strict=True
            )
        ]
        return torch.cat([key for key, _ in found], 2), torch.cat([value for _, value in found], 2)
