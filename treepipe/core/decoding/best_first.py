"""The best tree of a draft whose candidates at a level are the same below every node.

A block draft gives a distribution per level at once, so that a path is as probable as the product
of its tokens' shares (DDTree, arXiv 2604.12989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from treepipe.core.decoding.drafting import Growth, TreeDraft
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Drafted

Level: TypeAlias = tuple[Sequence[int], Sequence[float]]
"""Candidates of a level, most probable first, and their log probabilities."""


def best_first(levels: Sequence[Level], budget: int) -> tuple[list[int], list[int], list[float]]:
    """Return tokens, parents and scores of the ``budget`` most probable nodes, best first.

    A node that is taken offers its next sibling and its first child, so each is seen once. Parents
    are indices into the result, ``NO_PARENT`` at the first level.

    >>> best_first([((7, 8), (-0.5, -1.0)), ((9,), (-0.1,))], 3)
    ([7, 9, 8], [-1, 0, -1], [-0.5, -0.6, -1.0])
    """
    tokens, parents, scores = list[int](), list[int](), list[float]()
    heap: list[tuple[float, int, int, int, float]] = []

    def offer(depth: int, rank: int, parent: int, above: float) -> None:
        if depth < len(levels) and rank < len(levels[depth][0]):
            score = above + levels[depth][1][rank]
            heappush(heap, (-score, depth, rank, parent, above))

    offer(0, 0, NO_PARENT, 0.0)
    while heap and len(tokens) < budget:
        less, depth, rank, parent, above = heappop(heap)
        tokens.append(levels[depth][0][rank])
        parents.append(parent)
        scores.append(-less)
        offer(depth, rank + 1, parent, above)
        offer(depth + 1, 0, len(tokens) - 1, -less)
    return tokens, parents, scores


class BlockTreeDraft(TreeDraft):
    """A draft that asks for one node of every level, since all others have the same candidates.

    Its own nodes are those that are asked for and their siblings; the trees that it gives are of
    all paths.
    """

    def __init__(
        self,
        root_token: int,
        unread: Sequence[int],
        growth: Growth,
        behind: int = 0,
        held: tuple[int, ...] = (),
    ) -> None:
        # Only the best node of each level asks for the next one.
        super().__init__(root_token, unread, replace(growth, frontier=1), behind, held)
        self._levels: list[Level] = []
        self._budget = 0  # nodes of all trees given so far

    def absorb(self, drafted: Drafted) -> None:
        super().absorb(drafted)
        offered = zip(drafted.tokens[0], drafted.log_probs[0], strict=True)
        there = [(int(token), float(share)) for token, share in offered if share > -inf]
        if there:
            self._levels.append(([token for token, _ in there], [share for _, share in there]))

    def reaches(self, path: Sequence[int]) -> bool:
        levels = self._levels[: len(path)]
        return len(levels) == len(path) and all(
            token in tokens for token, (tokens, _) in zip(path, levels, strict=True)
        )

    def best_tree(
        self, size: int, score_order: bool, path: Sequence[int] = ()
    ) -> tuple[list[int], list[int], list[float]]:
        self._budget += size
        tokens, parents, scores = best_first(self._levels[len(path) :], self._budget)
        order = [*range(len(tokens))]
        if not score_order:  # by level, as nodes are drafted
            depths = list[int]()
            for parent in parents:
                depths.append(depths[parent] + 1 if parent >= 0 else 0)
            order.sort(key=lambda node: depths[node])
        place = {NO_PARENT: 0} | {node: new for new, node in enumerate(order, start=1)}
        root = path[-1] if path else self.tokens[0]
        return (
            [root, *[tokens[node] for node in order]],
            [NO_PARENT, *[place[parents[node]] for node in order]],
            [0.0, *[scores[node] for node in order]],
        )
