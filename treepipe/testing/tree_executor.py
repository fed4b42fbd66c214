"""The laws of tree attention and of pruned caches, for any engine that implements ``TreeExecutor``.

An engine's logits at every row are held against a plain pass over the same tokens, without a tree
and without a cache. Adapters of engines that this project knows are in ``adapters.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from treepipe.core.messages import NO_PARENT
from treepipe.testing.case import Trial, TrialCase
from treepipe.testing.law import hold
from treepipe.testing.story import Step

Logits = npt.NDArray[np.floating[Any]]


class TreeExecutor(Protocol):
    """A model whose cache holds committed tokens and, behind them, the nodes of a token tree.

    Attributes:
        name: its name in reports.
        vocabulary: number of token ids.
        tolerance: largest absolute difference between two computations of one logit; 1e-3 suits
            float32, bfloat16 needs as much as its logits' last places.
    """

    name: str
    vocabulary: int
    tolerance: float

    def open(self, session: int) -> None:
        """Begin a session with an empty cache. Up to three are open at once."""

    def forward(
        self,
        session: int,
        tokens: Sequence[int],
        positions: Sequence[int],
        parents: Sequence[int] | None,
    ) -> Logits:
        """Compute rows and append them to the session's cache; return logits [rows, vocabulary].

        Args:
            tokens: token id per row.
            positions: position id per row, counted from the session's first token.
            parents: per row the index of its parent among the tree's nodes, those of this call
                included (``NO_PARENT``, -1: it hangs at the newest committed token). A row attends
                to all committed tokens, to its ancestors and to itself. None: the rows are
                committed tokens, and there is no tree.
        """

    def prune(self, session: int, keep: Sequence[int], accepted: int) -> None:
        """Keep the tree's nodes at these ascending indices; the first ``accepted`` of them form a
        path from a root and become committed tokens."""

    def close(self, session: int) -> None:
        """End a session and free its cache."""

    def plain(self, tokens: Sequence[int]) -> Logits:
        """Return the logits [len(tokens), vocabulary] of one pass without cache and tree."""


@dataclass
class _Session:
    """The reference of one session: committed tokens, and token and parent of each node."""

    number: int
    committed: list[int] = field(default_factory=list)
    nodes: list[tuple[int, int]] = field(default_factory=list)
    pruned: bool = False

    def above(self, node: int) -> list[int]:
        """Indices of the nodes from the root down to this one."""
        path = []
        while node != NO_PARENT:
            path.append(node)
            node = self.nodes[node][1]
        return path[::-1]

    def subtree(self, node: int) -> list[int]:
        return [each for each in range(node, len(self.nodes)) if node in self.above(each)]

    def path(self, node: int) -> list[int]:
        return [*self.committed, *(self.nodes[each][0] for each in self.above(node))]


NUMBERS = st.integers(0, 99)
_ROWS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5)
GROWING = st.one_of(
    st.tuples(st.just("commit"), st.lists(NUMBERS, min_size=1, max_size=5)),
    st.tuples(st.just("grow"), _ROWS),
    st.tuples(st.just("grow"), _ROWS),
)
"""Compute committed tokens; or nodes, each below a node and with a token, modulo what there is."""
ACTIONS = GROWING | st.tuples(st.just("prune"), NUMBERS) | st.tuples(st.just("end"), NUMBERS)
"""Also: keep a node's subtree, its ancestors accepted; accept a node's path and drop the rest."""


class _Play:
    """One case: an executor, and the reference of its sessions."""

    def __init__(self, executor: TreeExecutor, case: TrialCase, law: str | None = None) -> None:
        """Args: ``law``: the broken law wherever rows are wrong; None: by what was done before."""
        self.executor, self.case, self.law = executor, case, law
        self.open_: dict[int, _Session] = {}

    def note(self, session: _Session, text: str) -> None:
        if self.case.story is not None:
            self.case.story.steps.append(Step(f"session {session.number}", text))

    def open(self, number: int) -> None:
        self.open_[number] = _Session(number)
        self.executor.open(number)
        self.commit(self.open_[number], [number, 2 * number])

    def close(self) -> None:
        for number in [*self.open_]:
            self.executor.close(number)
            del self.open_[number]

    def commit(self, session: _Session, numbers: Sequence[int]) -> None:
        if session.nodes:
            return
        tokens = [each % self.executor.vocabulary for each in numbers]
        first = len(session.committed)
        positions = range(first, first + len(tokens))
        self.note(session, f"compute committed tokens {tokens}")
        found = self.executor.forward(session.number, tokens, positions, None)
        session.committed += tokens
        expected = self.executor.plain(session.committed)[first:]
        self._compare(session, found, expected, "committed", "committed row")

    def grow(self, session: _Session, rows: Sequence[tuple[int, int]]) -> None:
        tokens, parents, first = list[int](), list[int](), len(session.nodes)
        for above, token in rows:
            tokens.append(token % self.executor.vocabulary)
            parents.append(above % (len(session.nodes) + 1) - 1)
            session.nodes.append((tokens[-1], parents[-1]))
        nodes = range(first, len(session.nodes))
        depths = [len(session.above(node)) for node in nodes]
        positions = [len(session.committed) + depth - 1 for depth in depths]
        self.note(session, f"compute nodes {tokens} below {parents} at positions {positions}")
        found = self.executor.forward(session.number, tokens, positions, parents)
        expected = np.stack([self.executor.plain(session.path(node))[-1] for node in nodes])
        self._compare(session, found, expected, "tree_attention", "node row")

    def decode(self, session: _Session, root: int, rows: Sequence[tuple[int, int]]) -> int:
        """Verify a tree below a root by the rows' best tokens, and accept their path; return the
        token behind it. Every second node holds the token that a plain pass puts there."""
        tokens, parents = [root], [NO_PARENT]
        session.nodes = [(root, NO_PARENT)]
        for above, number in rows:
            parents.append(above % len(tokens))
            token = number % self.executor.vocabulary
            if number % 2:
                token = int(np.argmax(self.executor.plain(session.path(parents[-1]))[-1]))
            tokens.append(token)
            session.nodes.append((token, parents[-1]))
        depths = [len(session.above(node)) for node in range(len(tokens))]
        positions = [len(session.committed) + depth - 1 for depth in depths]
        self.note(session, f"verify nodes {tokens} below {parents}")
        best = self.executor.forward(session.number, tokens, positions, parents).argmax(-1)
        path = [0]
        for node in range(1, len(tokens)):
            if parents[node] == path[-1] and tokens[node] == best[path[-1]]:
                path.append(node)
        self._keep(session, path, len(path))
        return int(best[path[-1]])

    def prune(self, session: _Session, number: int) -> None:
        """Keep one node's subtree; its ancestors are accepted."""
        if session.nodes:
            node = number % len(session.nodes)
            above = session.above(node)[:-1]
            self._keep(session, [*above, *session.subtree(node)], len(above))

    def end(self, session: _Session, number: int) -> None:
        """Accept one node's path, and drop all other nodes."""
        if session.nodes:
            path = session.above(number % len(session.nodes))
            self._keep(session, path, len(path))

    def _keep(self, session: _Session, keep: list[int], accepted: int) -> None:
        self.note(session, f"keep nodes {keep}, {accepted} of them accepted")
        self.executor.prune(session.number, keep, accepted)
        session.pruned = True
        session.committed += [session.nodes[each][0] for each in keep[:accepted]]
        place = {old: new - accepted for new, old in enumerate(keep)}
        session.nodes = [
            (session.nodes[each][0], max(place.get(session.nodes[each][1], -1), NO_PARENT))
            for each in keep[accepted:]
        ]

    def _compare(
        self, session: _Session, found: Logits, expected: Logits, law: str, what: str
    ) -> None:
        law = self.law or ("compaction" if session.pruned else law)
        shape = np.shape(found) == expected.shape
        hold(shape, law, f"logits of shape {np.shape(found)}, not {expected.shape}")
        far = np.abs(np.asarray(found, dtype=np.float64) - expected).max(axis=1)
        row = int(np.argmax(far))
        close = bool(far[row] <= self.executor.tolerance)  # false for what is no number
        hold(close, law, f"{what} {row} is off by {far[row]:.3g} from a plain pass")


def one_session(action: st.SearchStrategy[Any], executor: TreeExecutor, case: TrialCase) -> None:
    play = _Play(executor, case)
    try:
        play.open(1)
        for name, argument in case.draw("actions", st.lists(action, max_size=10)):
            getattr(play, name)(play.open_[1], argument)
    finally:
        play.close()


def decoding(executor: TreeExecutor, case: TrialCase) -> None:
    """Decode greedily by the executor's rows; each round has a tree of right and other tokens."""
    play = _Play(executor, case)
    rounds = case.draw("rounds", st.lists(_ROWS, min_size=1, max_size=6))
    try:
        play.open(1)
        session = play.open_[1]
        begun = len(session.committed)
        root = int(np.argmax(executor.plain(session.committed)[-1]))
        for rows in rounds:
            root = play.decode(session, root, rows)
        text = [*session.committed, root]
        plain = executor.plain(text[:-1])
        for at in range(begun, len(text)):
            below = float(plain[at - 1].max() - plain[at - 1][text[at]])
            near = below <= 2 * executor.tolerance
            hold(near, "near_argmax", f"token {at} is {below:.3g} below a plain pass's best")
    finally:
        play.close()


def several_sessions(executor: TreeExecutor, case: TrialCase) -> None:
    """Up to three sessions take turns; one of them may end and begin again."""
    play = _Play(executor, case, "sessions")
    whose = st.lists(st.tuples(st.integers(1, 3), ACTIONS | st.just(("again", 0))), max_size=12)
    try:
        for number, (name, argument) in case.draw("actions", whose):
            if name == "again" and number in play.open_:
                play.note(play.open_.pop(number), "end, to begin again")
                executor.close(number)
            if number not in play.open_:
                play.open(number)
            if name != "again":
                getattr(play, name)(play.open_[number], argument)
    finally:
        play.close()


TREE_TRIALS: Mapping[str, Trial] = {
    "growing": Trial("growing", partial(one_session, GROWING), 20),
    "pruned": Trial("pruned", partial(one_session, ACTIONS), 30),
    "decoding": Trial("decoding", decoding, 20),
    "sessions": Trial("sessions", several_sessions, 25),
}
