"""What a draft holds of one request: the committed tokens it has read, and scratch nodes behind.

Law of this file: this is the one reading of what a ``DraftPass`` does to a draft's memory. Whoever
follows passes (a cache, a recording, an oracle, a clock) keeps its own payload per scratch node
here, so the same passes give everyone the same nodes at the same paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass

Payload = TypeVar("Payload")


@dataclass(slots=True)
class ScratchNode(Generic[Payload]):
    """A drafted token that the draft has read without its being committed.

    Attributes:
        parent: the node above it; None if that is the newest committed token.
    """

    token: int
    parent: ScratchNode[Payload] | None
    payload: Payload

    def path(self) -> tuple[int, ...]:
        """Token ids from the newest committed token's child down to this node."""
        found, node = [], self
        while True:
            found.append(node.token)
            if node.parent is None:
                return tuple(reversed(found))
            node = node.parent


class Scratch(Generic[Payload]):
    """One request's passes, followed.

    Attributes:
        read: committed tokens that the draft has read.
        nodes: the scratch nodes, in the order in which they were fed.

    >>> scratch = Scratch[str]()
    >>> scratch.add(DraftPass(1, (5, 6, 7), (), (), True, 2))  # nothing to follow before the first
    >>> scratch.add(DraftPass(2, (), (8, 9), (-1, 0), False, 2), ["a", "b"])
    >>> scratch.nodes[1].path()
    (8, 9)
    >>> keeping = DraftPass(3, (), (4,), (0,), False, 2, keep=(0, 1), accepted=1)
    >>> [node.payload for node in scratch.follow(keeping)], scratch.read, scratch.cached
    (['a'], 4, 5)
    >>> scratch.nodes[0].path()
    (9,)
    """

    def __init__(self) -> None:
        self.read = 0
        self.nodes: list[ScratchNode[Payload]] = []

    @property
    def cached(self) -> int:
        """Tokens that the draft holds in all."""
        return self.read + len(self.nodes)

    def follow(self, order: DraftPass) -> list[ScratchNode[Payload]]:
        """What a pass does before it runs; returns the nodes that it commits, in order.

        The tokens of its ``catch_up`` are read by the pass itself and count from ``add`` on.
        """
        cut = order.cut
        if cut is None:
            return []
        slots, accepted = cut
        kept = [self.nodes[slot] for slot in slots]
        self.read += accepted
        committed, self.nodes = kept[:accepted], kept[accepted:]
        below = set(map(id, committed))
        for node in self.nodes if accepted else ():
            if node.parent is not None and id(node.parent) in below:
                node.parent = None
        return committed

    def parents(self, order: DraftPass) -> list[ScratchNode[Payload] | None]:
        """Node above each row of a pass that has been followed; None: the newest committed token.

        Raises ``IndexError`` for a parent that comes in the same pass.
        """
        nodes = self.nodes
        return [None if parent == NO_PARENT else nodes[parent] for parent in order.parents]

    def add(self, order: DraftPass, payloads: Sequence[Payload] = ()) -> None:
        """The pass ran: what it caught up with is read, its rows are nodes with their payloads."""
        self.read += len(order.catch_up)
        for token, parent, payload in zip(order.tokens, order.parents, payloads, strict=True):
            above = None if parent == NO_PARENT else self.nodes[parent]
            self.nodes.append(ScratchNode(token, above, payload))
