"""The draft's contents for one request: the committed tokens it has read, and scratch nodes behind.

This is the only interpretation of the effect of a ``DraftPass`` on a draft's memory; each follower
of passes (a head, a recording, an oracle) keeps a payload per scratch node here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.core.records import record

Payload = TypeVar("Payload")


class ScratchNode(Generic[Payload]):
    """A drafted token that the draft has read without its being committed.

    Attributes:
        parent: the node above it; None if that is the newest committed token.
        payload: the follower's data; unset until the follower sets it.
    """

    __slots__ = ("parent", "payload", "token")
    payload: Payload

    def __init__(self, token: int, parent: ScratchNode[Payload] | None) -> None:
        self.token, self.parent = token, parent

    @property
    def path(self) -> tuple[int, ...]:
        """Token ids from the newest committed token's child down to this node."""
        found, node = [self.token], self.parent
        while node is not None:
            found.append(node.token)
            node = node.parent
        return tuple(found[::-1])


@record
class Followed(Generic[Payload]):
    """The effect of one pass: the nodes that became committed before it ran, in order, and a new
    node per token of the pass, parents before their children."""

    committed: list[ScratchNode[Payload]]
    added: list[ScratchNode[Payload]]

    @property
    def asked(self) -> list[tuple[int, ...]]:
        """Token path below the committed tokens of each node that the pass answers for."""
        return [node.path for node in self.added] or [()]


class Scratch(Generic[Payload]):
    """One request's passes, followed.

    Attributes:
        read: committed tokens that the draft has read.
        verified: number of them that it had read with its last catch-up pass. It read those behind
            them as scratch nodes, so a head that reads the target's states guessed theirs.
        nodes: the scratch nodes, in the order in which they were fed.

    >>> scratch = Scratch[str]()
    >>> scratch.follow(DraftPass(1, (5, 6, 7), (), (), True, 2)).asked, scratch.read
    ([()], 3)
    >>> scratch.follow(DraftPass(2, (), (8, 9), (-1, 0), False, 2)).asked
    [(8,), (8, 9)]
    >>> keeping = DraftPass(3, (), (4,), (0,), False, 2, keep=(0, 1), accepted=1)
    >>> followed = scratch.follow(keeping)
    >>> [node.token for node in followed.committed], followed.asked
    ([8], [(9, 4)])
    >>> scratch.along((9, 4, 5)), scratch.along((4,))
    ((0, 1), ())
    >>> scratch.read, scratch.verified, scratch.cached
    (4, 3, 6)
    """

    def __init__(self) -> None:
        self.read = self.verified = 0
        self.nodes: list[ScratchNode[Payload]] = []

    @property
    def cached(self) -> int:
        return self.read + len(self.nodes)

    def follow(self, order: DraftPass) -> Followed[Payload]:
        """Apply a pass.

        Raises:
            IndexError: it names a node that does not exist.
        """
        committed = self._cut(order)
        self.read += len(order.catch_up)
        if order.catch_up:
            self.verified = self.read
        nodes, first = self.nodes, len(self.nodes)
        for token, parent in zip(order.tokens, order.parents, strict=True):
            nodes.append(ScratchNode(token, None if parent == NO_PARENT else nodes[parent]))
        return Followed(committed, nodes[first:])

    def along(self, path: Sequence[int]) -> tuple[int, ...]:
        """Return the indices of scratch nodes that hold a path below the newest committed token."""
        found, above = list[int](), None
        for index, node in enumerate(self.nodes):
            if len(found) == len(path):
                break
            if node.parent is above and node.token == path[len(found)]:
                found.append(index)
                above = node
        return tuple(found)

    def _cut(self, order: DraftPass) -> list[ScratchNode[Payload]]:
        """Drop the nodes that the pass does not keep; return the nodes that it commits."""
        cut = order.cut
        if cut is None:
            return []
        slots, accepted = cut
        kept = [self.nodes[slot] for slot in slots]
        self.nodes = kept[accepted:]
        if not accepted:
            return []
        self.read += accepted
        committed = kept[:accepted]
        above = set(committed)
        for node in self.nodes:
            if node.parent in above:
                node.parent = None
        return committed
