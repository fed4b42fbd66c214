"""The token tree of one request, and the record of fed and verified nodes.

The schedules decide when to feed, walk and prune; ``drafting.py`` and ``layered.py`` how it grows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from treepipe.core.decoding.request import RequestState
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Segment, Word, record
from treepipe.core.protocol import Announce, Command, Feed, Offer, Returned, RoundRecord
from treepipe.core.tree import TokenTree
from treepipe.core.words import WordLog


@record
class Walk:
    """The path of verified tokens: the accepted nodes (root first) and the token behind them.

    ``next_node`` is the tree node that holds ``next_token``, None at a miss.
    """

    accepted: tuple[int, ...]
    next_token: int
    next_node: int | None


class TreeInFlight:
    """A tree whose nodes are fed in sequence order, and the record of its rounds.

    Attributes:
        tree: the live nodes; node 0 is the root.
        fed: number of its nodes that were fed.
        text: the committed tokens, prompt and root included.
        outstanding: useful segments in the pipeline, in the order they were fed.
        cancelled: tickets of useless segments in the pipeline.
    """

    def __init__(self, request: RequestState) -> None:
        self.tree = TokenTree(0)
        self.fed = 0
        self.text: list[int] = []
        self.outstanding: deque[Segment] = deque()
        self.cancelled: set[int] = set()
        self.rounds: list[RoundRecord] = []
        self._request = request
        self._log = WordLog()
        self._verified: list[int | None] = []
        self._round = 0
        self._per_step: list[int] = []
        self._fed_count = self._accepted_count = 0

    # --- growing and feeding ---------------------------------------------------------------------

    def open_round(self, root_token: int) -> None:
        """Begin a new tree that consists of its root."""
        self.tree = TokenTree(root_token)
        self.fed = 0
        self._verified = [None]
        self._per_step = []
        self._fed_count = self._accepted_count = 0
        self.text.append(root_token)

    @property
    def opened(self) -> bool:
        return self._fed_count > 0

    @property
    def waiting(self) -> int:
        return len(self.tree) - self.fed

    def append(
        self, tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float]
    ) -> range:
        """Merge candidates below the root into the tree; return the new nodes."""
        added = self.tree.merge(tokens, parents, scores)
        self._verified += [None] * len(added)
        return added

    def append_layer(
        self, tokens: Sequence[int], parents: Sequence[int], scores: Sequence[float]
    ) -> None:
        """Append candidates that are not in the tree, without edges between them."""
        self.tree.append_layer(tokens, parents, scores)
        self._verified += [None] * len(tokens)

    def append_chain(self, tokens: Sequence[tuple[int, float]]) -> None:
        """Append tokens with their log probabilities below the tree's last node."""
        for token, log_prob in tokens:
            last = len(self.tree) - 1
            self.append_layer([token], [last], [self.tree.scores[last] + log_prob])

    def feed(self, count: int, step: int | None) -> Feed:
        tree, first, last = self.tree, self.fed, self.fed + count
        length = self._request.length
        segment = Segment(
            session=self._request.session,
            ticket=self._request.ticket(),
            round=self._round,
            version=self._log.version,
            start=first,
            tokens=tuple(tree.tokens[first:last]),
            positions=tuple([length + depth for depth in tree.depths[first:last]]),
            parents=tuple(tree.parents[first:last]),
            step=step,
        )
        self.fed = last
        self._fed_count += count
        self.outstanding.append(segment)
        return Feed(segment)

    # --- returned segments -----------------------------------------------------------------------

    def take(self, event: Returned) -> bool:
        """Remove a returned segment from the outstanding ones; return False if it is useless, and
        raise ``ProtocolError`` if it is not the next one to come back."""
        if event.ticket in self.cancelled:
            self.cancelled.remove(event.ticket)
            return False
        if not self.outstanding or event.ticket != self.outstanding[0].ticket:
            raise ProtocolError(f"no segment with ticket {event.ticket} is next to come back")
        if event.version > self._log.version:
            raise ProtocolError(f"version {event.version} has not been announced yet")
        self.outstanding.popleft()
        return True

    def verify(self, event: Returned) -> None:
        """Record the target's tokens at returned nodes that are still in the tree."""
        count = len(event.next_tokens)
        self._log.forget(event.version)
        rows, start = self._log.survivors(event.version, event.start, count)
        tokens = event.next_tokens if rows is None else [event.next_tokens[i] for i in rows]
        self._verified[start : start + len(tokens)] = tokens

    def judged(self, event: Returned) -> Walk:
        """Take a pass that comes back whole, root first; follow the target's tokens."""
        if not event.next_tokens:
            raise ProtocolError("a pass comes back with the target's token at its root")
        self.take(event)
        self.verify(event)
        walk = self.walk()
        assert walk is not None  # the root came back
        return walk

    def shortened(self) -> None:
        """Count as fed only the nodes that came back: the rest was cut off before it left."""
        self._fed_count = sum(token is not None for token in self._verified)

    def offers(self, returned: Segment, *, children: bool) -> list[Offer | None]:
        """Return place and children of each row of a returned segment; None for a pruned row."""
        count = len(returned.tokens)
        found: list[Offer | None] = [None] * count
        if returned.committed or returned.round != self._round:
            return found
        rows, start = self._log.survivors(returned.version, returned.start, count)
        kept = range(count) if rows is None else rows
        tree, length = self.tree, self._request.length
        paths: dict[int, tuple[int, ...]] = {0: ()}
        for row, node in zip(kept, range(start, start + len(kept)), strict=True):
            if node:
                above = paths.get(parent := tree.parents[node])
                above = tree.path_tokens(parent)[1:] if above is None else above
                paths[node] = (*above, tree.tokens[node])
            path = paths[node]
            below = tuple(tree.children(node)) if children else ()
            found[row] = Offer(path, length + tree.depths[node], below)
        return found

    def walk(self) -> Walk | None:
        """Follow the target's tokens from the root as far as they are known."""
        node, accepted = 0, []
        while (token := self._verified[node]) is not None:
            accepted.append(node)
            child = self.tree.child(node, token)
            if child is None or self._verified[child] is None:
                return Walk(tuple(accepted), token, child)
            node = child
        return None

    # --- deciding --------------------------------------------------------------------------------

    def nothing_committed(self) -> None:
        self._per_step.append(0)

    def commit(self, walk: Walk) -> list[Command]:
        """Emit the accepted path's tokens and the target's own token behind it."""
        request = self._request
        tokens = [self.tree.tokens[node] for node in walk.accepted[1:]] + [walk.next_token]
        request.length += len(walk.accepted)
        # A token that becomes the next round's root is added there.
        self.text += tokens if walk.next_node is not None else tokens[:-1]
        wanted = request.wanted
        commands = request.emit(tokens)
        useful = wanted - request.wanted  # without tokens beyond the wanted length
        self._per_step.append(useful)
        self._accepted_count += useful
        return commands

    def prune(self, walk: Walk, kept: Sequence[int], *, lock_step: bool) -> Announce:
        """Keep the accepted nodes and ``kept``, the new root's subtree, here and on every stage."""
        accepted = len(walk.accepted)
        retained = (*walk.accepted, *kept)
        self.fed = bisect_left(kept, self.fed)
        self._verified = [self._verified[index] for index in kept]
        self.tree.retain(retained, accepted)
        return self.announce(retained, accepted, lock_step=lock_step)

    def announce(
        self,
        retained: tuple[int, ...] | None,
        accepted: int,
        *,
        lock_step: bool,
        ends_round: bool = False,
    ) -> Announce:
        session, version = self._request.session, self._log.version
        word = Word(session, self._round, version, retained, accepted, ends_round, lock_step)
        self._log.add(word)
        return Announce(word)

    def drop_round(self, walk: Walk, *, lock_step: bool) -> Announce:
        """Keep the accepted nodes, drop the rest and all segments of the round, everywhere."""
        word = self.announce(
            walk.accepted, len(walk.accepted), lock_step=lock_step, ends_round=True
        )
        self._round += 1
        self.cancelled.update(segment.ticket for segment in self.outstanding)
        self.outstanding.clear()
        return word

    def record_round(self) -> None:
        steps = tuple(self._per_step)
        self.rounds.append(
            RoundRecord(sum(steps), len(steps), steps, self._fed_count, self._accepted_count)
        )
