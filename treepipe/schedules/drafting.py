"""EAGLE-2's draft tree, grown one draft pass at a time. Which nodes go where is not decided here.

(EAGLE-2 as FlowSpec uses it, section 3.1: one catch-up pass yields the root's ``top_k`` children,
then each pass gives the ``top_k`` best nodes of the last layer their ``top_k`` children.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from treepipe.errors import ProtocolError
from treepipe.protocol import NO_PARENT, Drafted, DraftPass
from treepipe.tree import best


class TreeDraft:
    """Candidates below one root, in insertion order (candidate 0 is the root itself).

    Attributes:
        tokens, parents, scores: per candidate its token id, its parent's index among the
            candidates, and the sum of log draft probabilities below the root.
    """

    def __init__(self, root_token: int, catch_up: Sequence[int], top_k: int, depth: int) -> None:
        """Args: ``depth`` passes follow the catch-up pass over the tokens ``catch_up``."""
        self.tokens: list[int] = [root_token]
        self.parents: list[int] = [NO_PARENT]
        self.scores: npt.NDArray[np.float64] = np.zeros(1)
        self._catch_up = tuple(catch_up)
        self._top_k = top_k
        self._passes_left = depth + 1
        self._layer = range(1)
        self._asked: list[int] = []
        self._scratch: dict[int, int] = {0: NO_PARENT}
        self._ticket: int | None = None

    @property
    def complete(self) -> bool:
        return self._passes_left == 0

    def extend(self, layers: int) -> None:
        """Ask for ``layers`` more passes behind a complete tree (score-aware expansion)."""
        self._passes_left += layers

    def next_pass(self, ticket: int) -> DraftPass:
        """The next draft pass to run; ``absorb`` takes its answer."""
        self._ticket = ticket
        if len(self.tokens) == 1:
            self._asked = [0]
            return DraftPass(ticket, self._catch_up, (), (), True, self._top_k)
        first = self._layer.start
        chosen = best(self.scores[first : self._layer.stop], self._top_k)
        self._asked = [first + int(i) for i in chosen]
        parents = tuple([self._scratch[self.parents[i]] for i in self._asked])
        scratch = len(self._scratch) - 1
        for offset, index in enumerate(self._asked):
            self._scratch[index] = scratch + offset
        tokens = tuple([self.tokens[i] for i in self._asked])
        return DraftPass(ticket, (), tokens, parents, False, self._top_k)

    def expects(self, drafted: Drafted) -> None:
        """Raises ``ProtocolError`` if this is not the answer that is waited for."""
        if drafted.ticket != self._ticket:
            raise ProtocolError(f"no draft pass with ticket {drafted.ticket} is under way")
        if len(drafted.tokens) != len(self._asked):
            raise ProtocolError("a draft pass answers for every node it was asked about")
        widths = [len(row) for row in drafted.tokens]
        if [len(row) for row in drafted.log_probs] != widths or min(widths) != max(widths):
            raise ProtocolError("a draft pass gives every node as many log_probs as tokens")

    def absorb(self, drafted: Drafted) -> None:
        """Append the candidates of the nodes that were asked about."""
        self.expects(drafted)
        self._ticket = None
        self._passes_left -= 1
        tokens: npt.NDArray[Any] = np.asarray(drafted.tokens)
        below = self.scores[self._asked][:, None] + np.asarray(drafted.log_probs)
        first = len(self.tokens)
        self.tokens += tokens.ravel().tolist()
        width = tokens.shape[1]
        for index in self._asked:
            self.parents += [index] * width
        self.scores = np.concatenate((self.scores, below.ravel()))
        self._layer = range(first, len(self.tokens))

    def best_tree(self, size: int, score_order: bool) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and scores of the root and the ``size`` best candidates.

        Parents are indices into the result. Descending score with ``score_order``, else the
        order of insertion ("tree order"); both obey the order law.
        """
        chosen = best(self.scores[1:], size) + 1
        if not score_order:
            chosen = np.sort(chosen)
        return self._picked([0, *chosen.tolist()])

    def _picked(self, chosen: list[int]) -> tuple[list[int], list[int], list[float]]:
        place = {old: new for new, old in enumerate(chosen)}
        parents = [NO_PARENT] + [place[self.parents[old]] for old in chosen[1:]]
        scores: list[float] = self.scores[chosen].tolist()
        return [self.tokens[old] for old in chosen], parents, scores
