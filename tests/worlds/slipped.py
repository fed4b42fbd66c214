"""PipeDec as FlowSpec's public code runs it, where it is a baseline: with one index slip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.core.decoding.frontier import Frontier
from treepipe.core.messages import NO_PARENT
from treepipe.core.schedules.pipedec import PipeDecKeys
from treepipe.core.tree import TokenTree

Path: TypeAlias = tuple[int, ...]
"""Tokens below the root that the round began with."""


class SlippedFrontier(Frontier):
    """The draft's candidates and scores with the slip.

    Per drafted node that code keeps a row: the path up to the node's parent as the draft itself
    read it, and the node's cumulative score. The root that a round begins with has none, so node i
    has row i - 1, and a commit that keeps the nodes K keeps the rows k - 1. From the second commit
    of a round on the root does have a row, and k - 1 gives each node the row of its predecessor in
    the old tree. The slip adds up over commits and ends with the round. Read off
    Leosang-lx/FlowSpec at f0c055a; ``tests/core/test_pipedec_traces.py`` replays recorded runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[tuple[Path, float]] = []  # path read for the parent, cumulative score
        self._read: list[Path] = [()]  # path that the draft read, per node of the deepest layer
        self._scores = np.zeros(1)  # the row's score of each of them

    def prune(self, accepted: Sequence[int], kept: Sequence[int], tree: TokenTree) -> None:
        super().prune(accepted, kept, tree)
        self._rows = [self._rows[node - 1] for node in kept]

    def scores(self, tree: TokenTree, layer: range) -> npt.NDArray[np.float64]:
        return self._scores

    def grown(self, parents: npt.NDArray[np.intp], scores: npt.NDArray[np.float64]) -> None:
        super().grown(parents, scores)
        self._rows += [(self._read[i], float(s)) for i, s in zip(parents, scores, strict=True)]

    def whole(self, tree: TokenTree, layer: range) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the rows that this pass needs, behind as many others as that code also computes.

        The last ones are the layer's, each behind the path of its row, which may lead through nodes
        that were pruned: then there are a few rows more than that code computes.
        """
        last = self._rows[-len(layer) :]
        self._scores = np.array([score for _, score in last])
        self._read = [
            (*path, token)
            for (path, _), token in zip(last, tree.tokens[layer.start :], strict=True)
        ]
        places: dict[Path, int] = {(): NO_PARENT}
        tokens: list[int] = []
        parents: list[int] = []
        inner = (read[:end] for read in self._read for end in range(1, len(read)))
        for path in (*dict.fromkeys(inner), *self._read):
            parents.append(places[path[:-1]])
            places.setdefault(path, len(tokens))
            tokens.append(path[-1])
        others = super().whole(tree, layer)
        first = max(0, len(others[0]) - len(tokens))
        moved = [parent + first if parent >= 0 else NO_PARENT for parent in parents]
        return (*others[0][:first], *tokens), (*others[1][:first], *moved)


@dataclass(frozen=True)
class SlippedKeys(PipeDecKeys):
    """Keys of a draft that is run anew for every layer, with the slip."""

    draft_reuse: bool = False

    def frontier(self) -> Frontier:
        return SlippedFrontier()
