"""The draft's side of a layered tree: candidates per node, and its own cache's contents.

Invariant: the draft's cache holds the committed tokens it has read and, behind them, the scratch
nodes in the order in which they were fed; a prune of the tree prunes the cache likewise, with the
next pass (the draft keeps two caches as every stage does: PipeDec, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Drafted
from treepipe.core.tree import TokenTree

Candidates: TypeAlias = tuple[Drafted, int]
"""The proposals below one node: a pass's answer, and the node's row in it."""


class Frontier:
    """The draft's side of one tree.

    Attributes:
        candidates: per tree node the draft's proposals below it, None before its pass.
        root_read: whether the draft has read the round's root.
    """

    def __init__(self) -> None:
        self.candidates: list[Candidates | None] = [None]
        self.root_read = False
        self._slots: list[int | None] = []  # tree node per scratch node, None if it was pruned
        self._accepted: list[int] = []  # scratch nodes that were committed since the last pass
        self._chain: list[int] = []  # tokens committed since the round began, the root last

    @property
    def moved(self) -> bool:
        """Whether the root is another one than at the beginning of the round."""
        return bool(self._chain)

    def answer(self, layer: range, drafted: Drafted) -> None:
        """Store the candidates below the deepest layer, which the last pass asked about."""
        rows = range(len(drafted.tokens) - len(layer), len(drafted.tokens))
        self.candidates[layer.start :] = [(drafted, row) for row in rows]

    def offers(
        self, layer: Sequence[int]
    ) -> tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.float64]]:
        """Return the candidates [nodes, top_k] of a layer, whose nodes share one pass."""
        found = [known for node in layer if (known := self.candidates[node]) is not None]
        drafted, rows = found[0][0], [row for _, row in found]
        if len(rows) == len(drafted.tokens):
            return np.asarray(drafted.tokens), np.asarray(drafted.log_probs)
        return np.asarray(drafted.tokens)[rows], np.asarray(drafted.log_probs)[rows]

    def scores(self, tree: TokenTree, layer: range) -> npt.NDArray[np.float64]:
        """Return the deepest layer's [nodes] sums of log draft probabilities below the root."""
        return np.asarray(tree.scores[layer.start :])

    def grown(self, parents: npt.NDArray[np.intp], scores: npt.NDArray[np.float64]) -> None:
        """Add a layer: per node its parent's place in the layer above, and its score."""
        self.candidates += [None] * len(parents)

    def prune(self, accepted: Sequence[int], kept: Sequence[int], tree: TokenTree) -> None:
        """Follow a prune of the tree to ``kept``, whose first node is the new root.

        Args:
            accepted: the nodes that became committed, the old root first.
            tree: the tree before the prune.
        """
        root = kept[0]
        path = [*accepted[1:], root]
        self._chain += [tree.tokens[node] for node in path]
        self.candidates = [self.candidates[node] for node in kept]
        if root not in self._slots:
            self._root_unread()
            return
        self._accepted += [self._slots.index(node) for node in path]
        moved: dict[int | None, int] = dict(zip(kept[1:], range(1, len(kept)), strict=True))
        self._slots = [moved.get(slot) for slot in self._slots]

    def ask_again(self) -> None:
        """Forget the answers without a candidate: the draft's next one reaches further down. A root
        that has none is alone, and is read again with all that was committed."""
        for node, known in enumerate(self.candidates):
            if known is not None and not np.isfinite(known[0].log_probs[known[1]]).any():
                self.candidates[node] = None
                self._slots = [None if slot == node else slot for slot in self._slots]
        if self.candidates[0] is None:  # then nothing is below it
            self._root_unread()

    def _root_unread(self) -> None:
        """Let the draft read the root as a committed token, with no scratch node behind it."""
        self._slots, self._accepted, self.root_read = [], [], False

    def take_prune(self) -> tuple[tuple[int, ...] | None, int]:
        """Return the nodes that the draft's cache keeps, and how many of them are committed."""
        if None not in self._slots:
            return None, 0
        accepted, alive = self._accepted, [i for i, n in enumerate(self._slots) if n is not None]
        self._slots = [node for node in self._slots if node is not None]
        self._accepted = []
        return (*accepted, *alive), len(accepted)

    def extend(self, tree: TokenTree, layer: range) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return tokens and scratch parents of the deepest layer, at its first computation."""
        above = tree.parents[layer.start :]
        first, layer_above = len(self._slots), range(min(above), layer.start)
        while first and self._slots[first - 1] in layer_above:
            first -= 1  # scratch nodes come in sequence order; most of them lie further up
        places: dict[int | None, int] = dict(
            zip(self._slots[first:], range(first, len(self._slots)), strict=True)
        )
        places[0] = NO_PARENT  # the root is committed by now
        self._slots += layer
        return tuple(tree.tokens[layer.start :]), tuple([places[parent] for parent in above])

    def whole(self, tree: TokenTree, layer: range) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return tokens and scratch parents of everything below the root that the round began with.

        The last ones are those of ``layer``, the tree's deepest.
        """
        offset = len(self._chain) - 1
        parents = [*range(NO_PARENT, offset), *[p + offset for p in tree.parents[1:]]]
        return (*self._chain, *tree.tokens[1:]), tuple(parents)
