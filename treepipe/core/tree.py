"""The token tree: flat lists in sequence order, and the operations of the schedules.

Invariant (the *order law*): a node comes after all its ancestors, in every tree and in every result
of an operation here; pruning keeps the relative order. Nothing here knows a schedule, a stage or a
model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from treepipe.core.messages import NO_PARENT

SORTED_WHOLE = 256
"""Number of scores up to which sorting all is faster than selecting the best first."""


class TokenTree:
    """Drafted tokens below a root, the newest committed token (node 0).

    Attributes:
        tokens: token id per node.
        parents: index of the parent per node, ``NO_PARENT`` for the root.
        depths: edges from the root per node.
        scores: sum of log draft probabilities along the path from the root (root: 0.0). After
            ``retain`` the scores of old nodes keep their old reference on purpose (FlowSpec,
            section 3.4: expansion appends behind the present nodes).
    """

    __slots__ = ("depths", "parents", "scores", "tokens")

    def __init__(self, root_token: int) -> None:
        self.tokens: list[int] = [root_token]
        self.parents: list[int] = [NO_PARENT]
        self.depths: list[int] = [0]
        self.scores: list[float] = [0.0]

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int, parent: int, score: float) -> int:
        """Append one node behind the last one and return its index.

        Raises:
            ValueError: the parent is not in the tree, or has a child with this token.
        """
        index = len(self.tokens)
        if not 0 <= parent < index:
            raise ValueError(f"parent {parent} is not among the {index} nodes before it")
        if self.child(parent, token) is not None:
            raise ValueError(f"node {parent} already has a child with token {token}")
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        self.scores.append(score)
        return index

    def append_layer(
        self, tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float]
    ) -> None:
        """Append nodes without edges between them.

        Raises:
            ValueError: as in ``append``; nothing is changed then.
        """
        known, first = range(len(self.tokens)), min(parents, default=0)
        if parents and not (first in known and max(parents) in known):
            raise ValueError(f"a parent is not among the {len(known)} nodes before the layer")
        new = set(zip(parents, tokens, strict=True))
        fresh = max(self.parents) < first  # nearly always: below the deepest layer
        if len(new) < len(tokens) or not (
            fresh or new.isdisjoint(zip(self.parents, self.tokens, strict=True))
        ):
            raise ValueError("a node of the layer is there already, or twice in it")
        depths = self.depths
        depths += [depths[parent] + 1 for parent in parents]
        self.tokens += tokens
        self.parents += parents
        self.scores += scores

    def child(self, node: int, token: int) -> int | None:
        """Return the index of the child of ``node`` that holds ``token``, None if it has none."""
        for child in self._children(node):
            if self.tokens[child] == token:
                return child
        return None

    def children(self, node: int) -> list[int]:
        """Return the tokens of the node's children, in sequence order."""
        return [self.tokens[child] for child in self._children(node)]

    def _children(self, node: int) -> Iterator[int]:
        find, child = self.parents.index, node
        for _ in range(self.parents.count(node)):
            child = find(node, child + 1)
            yield child

    def path(self, node: int) -> tuple[int, ...]:
        """Return the node indices from the root down to ``node``, both included."""
        nodes = [node]
        while (node := self.parents[node]) != NO_PARENT:
            nodes.append(node)
        return tuple(reversed(nodes))

    def path_tokens(self, node: int) -> tuple[int, ...]:
        """Return the token ids from the root down to ``node``, both included."""
        return tuple(self.tokens[i] for i in self.path(node))

    def subtree(self, node: int) -> list[int]:
        """Return the ascending indices of ``node`` and everything below it."""
        return subtree(self.parents, node)

    def retain(self, retained: Sequence[int], accepted: int) -> None:
        """Keep the nodes at ``retained``; the first ``accepted`` of them leave as committed.

        The rest must be a tree whose root is the first retained node behind the accepted ones
        (FlowSpec, section 3.3: a prune is announced as the indices to retain).

        Raises:
            ValueError: nothing remains, or the parent of a remaining node does not.
        """
        kept = list(retained[accepted:])
        if not kept:
            raise ValueError("a tree keeps at least its root")
        new_index = dict(zip(kept, range(len(kept)), strict=True))
        try:
            parents = [NO_PARENT, *[new_index[self.parents[old]] for old in kept[1:]]]
        except KeyError as missing:
            raise ValueError(f"node {missing} is dropped, but a child of it is retained") from None
        base = self.depths[kept[0]]
        self.tokens = [self.tokens[old] for old in kept]
        self.depths = [self.depths[old] - base for old in kept]
        self.scores = [self.scores[old] for old in kept]
        self.parents = parents

    def merge(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        scores: Sequence[float],
    ) -> range:
        """Append candidates whose token path is new, in the given order; return their indices.

        Nodes already here keep their place: they may be in flight or verified (FlowSpec, section
        3.4, context-aware expansion).
        """
        first = last = len(self.tokens)
        known = dict(zip(zip(self.parents, self.tokens, strict=True), range(first), strict=True))
        here, depths = [0], self.depths
        below = zip(tokens[1:], parents[1:], scores[1:], strict=True)
        for token, old_parent, score in below:
            parent = here[old_parent]
            node = known.setdefault((parent, token), last)
            if node == last:
                self.tokens.append(token)
                self.parents.append(parent)
                depths.append(depths[parent] + 1)
                self.scores.append(score)
                last += 1
            here.append(node)
        return range(first, last)


def subtree(parents: Sequence[int], node: int) -> list[int]:
    """Return the ascending indices of ``node`` and everything below it in a parent list.

    >>> subtree([-1, 0, 0, 1, 2], 1)
    [1, 3]
    """
    inside = [False] * len(parents)
    inside[node] = True
    for index, parent in enumerate(parents[node + 1 :], start=node + 1):
        if inside[parent]:
            inside[index] = True
    return [index for index, within in enumerate(inside) if within]


def best(scores: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.intp]:
    """Return the indices of the ``size`` highest scores, descending; ties keep insertion order.

    If scores never rise from parent to child and parents are inserted first, the result holds the
    ancestors of every node in it, each before its descendants (order law).

    >>> best(np.array([-1.0, -3.0, -1.0, -2.0]), 3).tolist()
    [0, 2, 3]
    """
    falling = -scores
    if not SORTED_WHOLE < len(scores) > 4 * size > 0:
        return falling.argsort(kind="stable")[:size]
    ordered = falling.copy()
    ordered.partition(size - 1)
    bound = ordered[size - 1]
    among: npt.NDArray[np.intp] = (falling <= bound).nonzero()[0]
    chosen: npt.NDArray[np.intp] = among[falling[among].argsort(kind="stable")[:size]]
    return chosen


def split(count: int, parts: int, limit: int) -> list[int]:
    """Return the lengths of the segments of ``count`` nodes (FlowSpec, section 3.2).

    As equal as possible, larger ones last, ``parts`` of them; where the shorter ones would exceed
    ``limit``: ``parts`` segments of ``limit``, without the rest, which waits. A tree of fewer nodes
    than parts goes in node by node, then as empty markers.

    >>> split(81, 5, 16), split(100, 5, 16), split(3, 5, 16)
    ([16, 16, 16, 16, 17], [16, 16, 16, 16, 16], [1, 1, 1, 0, 0])
    """
    length, longer = divmod(count, parts)
    if length == 0:
        return [1] * longer + [0] * (parts - longer)
    if length > limit:
        return [limit] * parts
    return [length] * (parts - longer) + [length + 1] * longer
