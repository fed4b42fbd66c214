"""A draft tree, grown one draft pass at a time. The places of its nodes are not decided here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.tree import best, subtree

Scores: TypeAlias = list[float] | npt.NDArray[np.float64]
"""Scores of a layer: a list for a single node."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of a tree: one entry of ``children`` per draft pass, the first for the root.

    Attributes:
        children: number of candidates per expanded node; beyond the end the last entry holds.
        frontier: number of the last layer's nodes that are expanded, best first; None: all.
        drawn: candidates are draws from the draft's distribution, not its most probable ones.
    """

    children: tuple[int, ...]
    frontier: int | None = None
    drawn: bool = False

    @classmethod
    def dynamic(cls, top_k: int, depth: int) -> Growth:
        """Make EAGLE-2's growth as FlowSpec uses it (section 3.1): one catch-up pass yields the
        root's ``top_k`` children, then each of ``depth`` passes gives the ``top_k`` best of the
        last layer ``top_k`` children."""
        return cls((top_k,) * (depth + 1), top_k)

    @property
    def nodes(self) -> int:
        """Number of nodes below the root if every node is expanded."""
        total, layer = 0, 1
        for count in self.children:
            layer *= count
            total += layer
        return total


class TreeDraft:
    """Candidates below one root, in insertion order (candidate 0 is the root itself).

    Attributes:
        tokens, parents, scores: per candidate its token id, its parent's index among the
            candidates, and the sum of log draft probabilities below the root.
        behind: scratch nodes that the draft holds before those of this tree, the root last.
    """

    def __init__(
        self,
        root_token: int,
        unread: Sequence[int],
        growth: Growth,
        behind: int = 0,
        held: tuple[int, ...] = (),
    ) -> None:
        """Begin a draft below one root.

        Args:
            unread: committed tokens to read first, the root last; empty if ``behind`` is given.
            behind: length of the chain of scratch nodes that ends in the root, a token that the
                draft guessed and has to read first.
            held: scratch nodes of the round before that hold the first of ``unread``.
        """
        self.tokens: list[int] = [root_token]
        self.parents: list[int] = [NO_PARENT]
        self._scores: list[Scores] = [[0.0]]  # by layer
        self._unread, self._held = unread, held
        self.growth, self.behind = growth, behind
        self._pass = 0
        self._passes = len(growth.children)
        self._layer = range(1)
        self._asked: list[int] = []
        self._asked_scores = self._layer_scores = self._scores[0]
        self._scratch: dict[int, int] = {0: behind - 1}
        self._taken = np.empty(0, dtype=np.intp)

    @property
    def scores(self) -> npt.NDArray[np.float64]:
        if len(self._scores) > 1:
            self._scores = [np.concatenate(self._scores)]
        return np.asarray(self._scores[0])

    @property
    def complete(self) -> bool:
        return self._pass == self._passes

    @property
    def ended(self) -> bool:
        return not self._layer

    @property
    def layers(self) -> int:
        return self._pass

    def locate(self, path: Sequence[int]) -> int | None:
        """Return the candidate at the end of a token path below the root, None if it is missing."""
        node = 0
        for token in path:
            below = range(node + 1, len(self.tokens))
            found = [i for i in below if self.parents[i] == node and self.tokens[i] == token]
            if not found:
                return None
            node = found[0]
        return node

    def likeliest(self) -> list[int]:
        """Return the candidates from the root to the best one of the deepest layer."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        node = max(range(len(depths)), key=lambda each: (depths[each], self.scores[each]))
        path = [node]
        while path[-1]:
            path.append(self.parents[path[-1]])
        return path[::-1]

    def kept_scratch(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return the scratch nodes to keep for going on below these nodes, with those behind."""
        return (*range(self.behind), *(self._scratch[node] for node in nodes))

    def misses(self, path: Sequence[int]) -> bool:
        """Whether no further pass can produce this path."""
        return not self.reaches(path[: self._pass])

    def reaches(self, path: Sequence[int]) -> bool:
        """Whether a token path below the root is drafted."""
        return self.locate(path) is not None

    def extend(self, layers: int) -> None:
        """Ask for ``layers`` more passes behind a complete tree (score-aware expansion)."""
        self._passes += layers

    def next_pass(self, ticket: int) -> DraftPass:
        """Return the next draft pass to run; ``absorb`` takes its answer."""
        growth = self.growth
        top_k = growth.children[min(self._pass, len(growth.children) - 1)]
        if not self._pass:
            self._asked = [0]
            if self.behind:
                root, parent = (self.tokens[0],), (self.behind - 2,)
                return DraftPass(ticket, (), root, parent, False, top_k, drawn=growth.drawn)
            unread, held = self._unread, self._held
            return DraftPass.over_committed(ticket, unread, top_k, held, drawn=growth.drawn)
        layer = self._layer
        self._asked, self._asked_scores = list(layer), self._layer_scores
        if growth.frontier is not None and len(layer) > 1:
            scores = np.asarray(self._layer_scores)
            chosen = best(scores, growth.frontier)
            self._asked = (layer.start + chosen).tolist()
            self._asked_scores = scores[chosen]
        asked, places = self._asked, self._scratch
        parents = tuple([places[self.parents[node]] for node in asked])
        scratch = self.behind + len(places) - 1
        places.update(zip(asked, range(scratch, scratch + len(asked)), strict=True))
        tokens = tuple([self.tokens[node] for node in asked])
        return DraftPass(ticket, (), tokens, parents, False, top_k, drawn=growth.drawn)

    def absorb(self, drafted: Drafted) -> None:
        self._pass += 1
        tokens, parents, scores = self._offered(drafted)
        first = len(self.tokens)
        self._layer = range(first, first + len(tokens))
        self.tokens += tokens
        self.parents += parents
        self._layer_scores = scores
        self._scores.append(scores)
        if not tokens:
            self._passes = self._pass

    def _offered(self, drafted: Drafted) -> tuple[list[int], list[int], Scores]:
        asked, tokens, log_probs = self._asked, drafted.tokens, drafted.log_probs
        if len(asked) == len(tokens[0]) == 1:  # a chain: arrays take longer to make
            score = self._asked_scores[0] + float(log_probs[0][0])
            return ([int(tokens[0][0])], asked, [score]) if score > -inf else ([], [], [])
        below = np.asarray(self._asked_scores)[:, None] + log_probs
        width = below.shape[1]
        flat: npt.NDArray[np.float64] = below.ravel()
        found: list[int] = np.asarray(tokens).ravel().tolist()
        parents = [node for node in asked for _ in range(width)]
        there = flat > -inf
        if np.count_nonzero(there) < len(found):  # some nodes have fewer candidates
            kept = np.flatnonzero(there)
            found, parents = [found[i] for i in kept], [parents[i] for i in kept]
            flat = flat[kept]
        return found, parents, flat

    def best_tree(
        self, size: int, score_order: bool, path: Sequence[int] = ()
    ) -> tuple[list[int], list[int], list[float]]:
        """Return tokens, parents and scores of the candidate at the end of a drafted ``path``, and
        below it of those that earlier calls returned and of the ``size`` best others.

        Parents are indices into the result. Descending score with ``score_order``, else the order
        of insertion ("tree order"); both obey the order law.
        """
        root = self.locate(path)
        assert root is not None  # the path is drafted
        if not root and not score_order and size >= len(self.tokens) - 1:  # all of them
            self._taken = np.arange(1, len(self.tokens))
            return [*self.tokens], [*self.parents], self.scores.tolist()
        if root or len(self._taken):
            inside = np.asarray(subtree(self.parents, root)[1:], dtype=np.intp)
            others = np.setdiff1d(inside, self._taken)
            chosen = np.intersect1d(inside, self._taken)
            chosen = np.concatenate([chosen, others[best(self.scores[others], size)]])
            chosen.sort()  # ties keep the order of insertion
            chosen = chosen[best(self.scores[chosen], len(chosen))]
        else:
            chosen = best(self.scores[1:], size) + 1
        self._taken = chosen
        if not score_order:
            chosen = np.sort(chosen)
        picked: list[int] = [root, *chosen.tolist()]
        place = dict(zip(picked, range(len(picked)), strict=True))
        parents = [NO_PARENT, *[place[self.parents[node]] for node in picked[1:]]]
        scores: list[float] = self.scores[picked].tolist()
        return [self.tokens[node] for node in picked], parents, scores
