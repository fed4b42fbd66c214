"""References in plain lists: every fed node, what a stage's cache holds, what a draft has read.

No index arithmetic is shared with the core. The records follow the feeds, words and draft passes of
one request in the order in which its draft gave them, and assert the laws on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from treepipe.core.messages import NO_PARENT, Segment, Word
from treepipe.core.protocol import DraftPass
from treepipe.core.stage import Prune, StageSession
from treepipe.testing.law import hold


class NodeLedger:
    """Reference of the index law: every fed node by a number of its own, and the word it left at.

    Attributes:
        live: numbers of the nodes in the draft's tree that were fed, in tree order.
        tickets: every segment that was fed.
        rows: per ticket the numbers of the rows that it still held where it was seen last.
    """

    def __init__(self) -> None:
        self.version = self.round = self.accepted = 0
        self.live: list[int] = []
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.parents: list[int] = []
        self.tickets: dict[int, Segment] = {}
        self.rows: dict[int, list[int]] = {}
        self._left_at: dict[int, int] = {}

    def feed(self, segment: Segment) -> None:
        """Number the rows of a tree segment."""
        hold(
            segment.ticket not in self.tickets,
            "answered_once",
            f"ticket {segment.ticket} is given out twice",
        )
        self.tickets[segment.ticket], self.rows[segment.ticket] = segment, []
        if segment.committed:
            return
        known = (segment.version, segment.round) == (self.version, self.round)
        hold(
            known, "index", f"segment {segment.ticket} is not of the version and round of its words"
        )
        hold(segment.start == len(self.live), "index", f"segment {segment.ticket} leaves a gap")
        places = range(segment.start, segment.start + len(segment.tokens))
        ordered = [parent < place for parent, place in zip(segment.parents, places, strict=True)]
        hold(all(ordered), "order", f"a node of segment {segment.ticket} comes before its parent")
        first = len(self.tokens)
        nodes = list(range(first, first + len(segment.tokens)))
        self.rows[segment.ticket] = nodes
        self.live += nodes
        self.tokens += segment.tokens
        self.positions += segment.positions
        self.parents += [self.live[p] if p != NO_PARENT else p for p in segment.parents]

    def announce(self, word: Word) -> None:
        """Take the word's losses out of the draft's tree; nodes not fed yet do not count."""
        known = (word.number, word.round) == (self.version, self.round)
        hold(known, "index", f"word {word.number} is not the next one of its round")
        self.version += 1
        if word.retained is not None:
            ascend = list(word.retained) == sorted(set(word.retained))
            hold(ascend, "order", f"the indices that word {word.number} retains do not ascend")
            kept = [self.live[i] for i in word.retained if i < len(self.live)]
            for node in set(self.live) - set(kept[word.accepted :]):
                self._left_at[node] = self.version
            self.live = kept[word.accepted :]
            self.accepted += word.accepted
        self.round += word.ends_round

    def alive(self, node: int, version: int) -> bool:
        """True if the node was in the tree after ``version`` words (from when it was fed on)."""
        return self._left_at.get(node, version + 1) > version

    def of_text(self, text: Sequence[int]) -> list[int]:
        """Numbers of the fed nodes that hold the text's tokens at their positions."""
        found = list[int]()
        for node, (token, at) in enumerate(zip(self.tokens, self.positions, strict=True)):
            above = self.parents[node] in (NO_PARENT, *found)
            if above and at < len(text) and text[at] == token:
                found.append(node)
        return found

    def paths(self) -> list[tuple[int, ...]]:
        """Tokens from the root down to each live node."""
        found = dict[int, tuple[int, ...]]()
        for node in self.live:
            found[node] = (*found.get(self.parents[node], ()), self.tokens[node])
        return list(found.values())


class StageRecord:
    """One stage's cache of one request: committed tokens, then a node per row."""

    def __init__(self, ledger: NodeLedger) -> None:
        self.ledger = ledger
        self.committed: list[int] = []
        self.cached: list[tuple[int, int]] = []  # (token, parent)
        self.nodes: list[int] = []

    def prune(self, action: Prune, version: int) -> None:
        """Index law (i): the stage keeps what the draft's tree kept by then."""
        kept = [self.cached[i] for i in action.keep]
        alive = [node for node in self.nodes if self.ledger.alive(node, version)]
        self.nodes = [self.nodes[i] for i in action.keep[action.accepted :]]
        hold(self.nodes == alive, "index", "a stage's prune keeps other nodes than the draft keeps")
        self.committed += [token for token, _ in kept[: action.accepted]]
        moved = {old: new - action.accepted for new, old in enumerate(action.keep)}
        self.cached = [
            (token, max(moved.get(parent, NO_PARENT), NO_PARENT))
            for token, parent in kept[action.accepted :]
        ]

    def run(self, segment: Segment, rows: tuple[int, ...] | None, version: int) -> None:
        """Index law (ii): exactly the rows that the stage's words left alive, as they are now."""
        if segment.committed:
            first = len(self.committed)
            expected = tuple(range(first, first + len(segment.tokens)))
            hold(segment.positions == expected, "causality", "committed rows have wrong positions")
            self.committed += segment.tokens
            return
        ledger, alive = self.ledger, self.left(segment, rows, version)
        hold(segment.start == len(self.nodes) or not alive, "index", "rows leave a gap in a cache")
        tokens = [ledger.tokens[node] for node in alive]
        hold(list(segment.tokens) == tokens, "index", "a stage computes other tokens than were fed")
        positions = [ledger.positions[node] for node in alive]
        hold(list(segment.positions) == positions, "causality", "rows have changed their positions")
        self.nodes += alive
        place = {node: index for index, node in enumerate(self.nodes)}
        parents = [place.get(ledger.parents[node], NO_PARENT) for node in alive]
        hold(list(segment.parents) == parents, "causality", "rows have other parents than were fed")
        self.cached += zip(segment.tokens, segment.parents, strict=True)

    def left(self, segment: Segment, rows: tuple[int, ...] | None, version: int) -> list[int]:
        """Drop a segment's nodes that are pruned in this version; returns those that are left."""
        ledger = self.ledger
        arrived = ledger.rows[segment.ticket]
        alive = [node for node in arrived if ledger.alive(node, version)]
        computed = arrived if rows is None else [arrived[i] for i in rows]
        hold(alive == computed, "index", "a stage computes pruned rows, or drops live ones")
        current = ledger.tickets[segment.ticket].version <= version == segment.version
        hold(current, "index", f"segment {segment.ticket} is of another version than its stage")
        ledger.rows[segment.ticket] = alive
        return alive

    def paths(self, segment: Segment) -> list[list[int]]:
        """Tokens that each computed row attends to (causality): committed, ancestors, itself; for
        committed rows, those of the last row only."""
        if segment.committed:
            return [list(self.committed)]
        return [
            self._path(position, node)
            for node, position in enumerate(segment.positions, segment.start)
        ]

    def _path(self, position: int, node: int) -> list[int]:
        tail = []
        while node != NO_PARENT:
            token, parent = self.cached[node]
            hold(parent < node, "order", "a cached node comes before its parent")
            tail.append(token)
            node = parent
        expected = len(self.committed) + len(tail) - 1
        hold(position == expected, "causality", f"a row has position {position}, not {expected}")
        return self.committed + tail[::-1]

    def check(self, stage: StageSession) -> None:
        """The stage's own counts agree."""
        counted = stage.cached == len(self.nodes) == len(self.cached)
        hold(counted and stage.committed == len(self.committed), "index", "a stage counts wrongly")
        alive = all(self.ledger.alive(node, stage.version) for node in self.nodes)
        hold(alive, "index", "a stage holds a pruned node")


class DraftReader:
    """The draft's cache of one request as ``DraftPass`` documents it: committed tokens that were
    read, then scratch nodes, each by its whole token path from the prompt's first token on."""

    def __init__(self) -> None:
        self.read: list[int] = []
        self.scratch: list[list[int]] = []
        self.tickets: set[int] = set()

    def ask(self, order: DraftPass, committed: Sequence[int]) -> list[list[int]]:
        """Follow one pass; the token path of each node that it answers for."""
        hold(
            order.ticket not in self.tickets,
            "answered_once",
            f"ticket {order.ticket} is given out twice",
        )
        self.tickets.add(order.ticket)
        one_kind = bool(order.catch_up) != bool(order.tokens)
        hold(one_kind, "protocol", "a draft pass is over committed tokens or over scratch nodes")
        asks = order.top_k > 0 or order.catch_up
        hold(asks, "protocol", "a draft pass over scratch nodes asks for no candidate")
        if order.reset:
            hold(order.keep is None, "protocol", "a reset draft pass keeps scratch nodes")
            self.scratch = []
        elif order.keep is not None:
            self._keep(order.keep, order.accepted)
        self.read += order.catch_up
        own = self.read == list(committed[: len(self.read)])
        hold(own, "drafted", "the draft has read tokens that are not committed")
        below = all(path[: len(self.read)] == self.read for path in self.scratch)
        hold(below, "drafted", "a scratch node does not hang at the committed text")
        if order.catch_up:
            return [list(self.read)]
        paths = []
        for token, parent in zip(order.tokens, order.parents, strict=True):
            hold(parent < len(self.scratch), "order", "a scratch node comes before its parent")
            above = self.read if parent == NO_PARENT else self.scratch[parent]
            self.scratch.append([*above, token])
            paths.append(self.scratch[-1])
        return paths

    def _keep(self, keep: tuple[int, ...], accepted: int) -> None:
        """Drop the others; the accepted ones form a path and are read from now on."""
        hold(list(keep) == sorted(set(keep)), "order", "kept scratch indices do not ascend")
        kept = [self.scratch[slot] for slot in keep]
        for path in kept[:accepted]:
            hold(path[:-1] == self.read, "order", "accepted scratch nodes form no path")
            self.read = path
        self.read = list(self.read)
        self.scratch = kept[accepted:]
