"""What one request has its draft do: the pass under way, and the tokens drafted so far.

A tree grows one draft pass at a time; the places of its nodes are not decided here. A chain goes on
while the target verifies earlier parts of it.

Invariant: every pass is answered once or withdrawn; an unexpected answer is an error and changes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.core.errors import ProtocolError
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Command, Drafted, DraftPass, Withdraw
from treepipe.core.scratch import Scratch
from treepipe.core.tree import best, subtree


class PendingPass:
    """The pass that was ordered and is not answered, at most one."""

    def __init__(self, text: Sequence[int], *, keeps: bool = False) -> None:
        """Make the record.

        Args:
            text: the committed tokens, prompt included, which grow.
            keeps: the draft need not reread accepted tokens it drafted from.
        """
        self._text, self._read = text, 0
        self._scratch = Scratch[None]() if keeps else None
        self._order: DraftPass | None = None
        self.hidden = 0
        """Number of the newest committed tokens that the draft guesses by itself."""

    @property
    def under_way(self) -> bool:
        return self._order is not None

    @property
    def unread(self) -> Sequence[int]:
        """Committed tokens that the draft has not read as such, nor will with the pass under way;
        it may hold some of them as scratch nodes."""
        return self._text[self._read : len(self._text) - self.hidden]

    def ask(self, order: DraftPass) -> DraftPass:
        self._order = order
        self._read += order.renews
        return order

    def held(self) -> tuple[int, ...]:
        """Return the scratch nodes that hold the first unread tokens; the last is always read."""
        return () if self._scratch is None else self._scratch.along(self.unread[:-1])

    def withdraw(self) -> list[Command]:
        """Take back the pass under way, if there is one: the draft then reads nothing of it."""
        order, self._order = self._order, None
        if order is None:
            return []
        self._read -= order.renews
        return [Withdraw(order.ticket)]

    def answered(self, event: Drafted) -> None:
        """Take the answer. Raise ``ProtocolError`` if it was not asked for, or does not answer for
        every node."""
        order = self._order
        if order is None or event.ticket != order.ticket:
            raise ProtocolError(f"no draft pass with ticket {event.ticket} is under way")
        event.expect(order.asked if order.top_k else 0)
        if self._scratch is not None:
            self._scratch.follow(order)
        self._order = None


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
        self._scratch: dict[int, int] = {NO_PARENT: NO_PARENT, 0: behind - 1}
        self._moved, self._accepted = False, list[int]()  # scratch nodes, since the last pass
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

    @property
    def scratch(self) -> int:
        """Number of scratch nodes that the draft holds."""
        return 1 + max(self._scratch.values())

    def move(self, path: Sequence[int]) -> None:
        """Make the end of a drafted path the root, which is committed. What is not below it is
        dropped, with the next pass also by the draft, which holds nothing ``behind`` it."""
        root = self.locate(path)
        assert root is not None  # the path is drafted
        inside, line = subtree(self.parents, root), [root]
        while line[0]:
            line.insert(0, self.parents[line[0]])
        scratch, place = self._scratch, {old: new for new, old in enumerate(inside)}
        self._accepted += [scratch[node] for node in line if scratch.get(node, NO_PARENT) >= 0]
        self._moved = True
        self._scratch = {place[node]: at for node, at in scratch.items() if node in place}
        self._scratch[NO_PARENT] = NO_PARENT
        if root in scratch:
            self._scratch[0] = NO_PARENT
        below = self.scores[inside] - self.scores[root]
        self.tokens = [self.tokens[node] for node in inside]
        self.parents = [NO_PARENT, *[place[self.parents[node]] for node in inside[1:]]]
        self._taken = np.array([place[n] for n in self._taken.tolist() if place.get(n)], np.intp)
        first = len(inside) - sum(node in place for node in self._layer)
        self._layer, self._layer_scores = range(first, len(inside)), below[first:]
        self._scores = [below]

    def _cut(self) -> tuple[tuple[int, ...] | None, int]:
        """Return the scratch nodes that the draft keeps, and how many of them are committed."""
        if not self._moved:
            return None, 0
        accepted, nodes = self._accepted, {n: at for n, at in self._scratch.items() if at >= 0}
        self._moved, self._accepted, live = False, [], sorted(nodes.values())
        self._scratch.update({node: live.index(at) for node, at in nodes.items()})
        return (*accepted, *live), len(accepted)

    def extend(self, layers: int) -> None:
        """Ask for ``layers`` more passes behind a complete tree (score-aware expansion)."""
        self._passes = self._pass + layers

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
        (keep, accepted), asked, places = self._cut(), self._asked, self._scratch
        parents = tuple([places[self.parents[node]] for node in asked])
        scratch = self.scratch
        places.update(zip(asked, range(scratch, scratch + len(asked)), strict=True))
        tokens = tuple([self.tokens[node] for node in asked])
        drawn = growth.drawn
        return DraftPass(ticket, (), tokens, parents, False, top_k, keep, accepted, drawn)

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


class ChainDraft:
    """Tokens drafted behind those that the draft has read as committed ones.

    Attributes:
        tokens: token ids with their log probabilities.
        used: number of them that are committed, the root last.
        ended: the draft has no candidate behind the last of them.
        begun: the draft has the committed tokens to read, or has read them.
    """

    def __init__(self, *, drawn: bool) -> None:
        self._drawn = drawn
        self.restart()

    def restart(self) -> None:
        """Forget the tokens drafted below the newest committed token."""
        self.tokens: list[tuple[int, float]] = []
        self.used, self.ended = 0, False
        self._slots = 0  # number of them in the draft's scratch part
        self.begun = False
        self._guesses: Sequence[int] = ()  # of the pass under way, behind the last of them
        self._wrong = 0  # scratch nodes behind those

    @property
    def ahead(self) -> int:
        """Number of tokens below the root."""
        return len(self.tokens) - self.used

    @property
    def behind(self) -> list[int]:
        """The tokens below the root."""
        return [token for token, _ in self.tokens[self.used :]]

    def absorb(self, event: Drafted) -> None:
        """Take the token behind the last one, and one more behind each guess that it confirms."""
        guesses, self._guesses = self._guesses, ()
        self._wrong = len(guesses)
        if self.tokens and not self._slots:
            return  # it read the committed tokens; those behind them were adopted
        first = len(event.tokens) - len(guesses) - 1
        for row in range(len(guesses) + 1):
            at = first + row
            token, log_prob = int(event.tokens[at][0]), float(event.log_probs[at][0])
            self.ended = log_prob == -inf
            if not self.ended:
                self.tokens.append((token, log_prob))
            if self.ended or not self._wrong or token != guesses[row]:
                return
            self._slots, self._wrong = self._slots + 1, self._wrong - 1

    def adopt(self, count: int, tokens: Sequence[int]) -> None:
        """Keep the first ``count`` tokens, and put these behind them, drafted by another model."""
        held = min(self._slots, count)
        self._slots, self._wrong = held, self._wrong + self._slots - held
        self.tokens[count:] = [(token, 0.0) for token in tokens]
        self.ended = False

    def next_pass(
        self, ticket: int, pending: PendingPass, guesses: Sequence[int] = ()
    ) -> DraftPass:
        """Return the pass for one token more, over those that the draft has not read; the first one
        reads the committed tokens.

        Args:
            guesses: tokens behind the last one that the pass also reads, in turn; the first one
                does not.
        """
        if not self.begun:
            self.begun = True
            unread, held = pending.unread, pending.held()
            return DraftPass.over_committed(ticket, unread, 1, held, drawn=self._drawn)
        committed = min(self.used, self._slots)
        keep = tuple(range(self._slots)) if committed or self._wrong else None
        self.tokens, self.used = self.tokens[committed:], self.used - committed
        self._slots -= committed
        first, self._guesses, self._wrong = self._slots, guesses, 0
        fresh = [token for token, _ in self.tokens[first:]]
        tokens = *fresh, *guesses
        parents = tuple(n - 1 if n else NO_PARENT for n in range(first, first + len(tokens)))
        self._slots += len(fresh)
        return DraftPass(ticket, (), tokens, parents, False, 1, keep, committed, self._drawn)
