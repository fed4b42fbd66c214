"""The records between a schedule and a world, validated when made.

Events tell a schedule what happened, commands ask its world to act; messages to the stages are in
``messages.py``. Every command that has an answer carries a ticket and is answered exactly once,
unless it is withdrawn. The verifying side reports tokens; no record holds a distribution of the
target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Flight, Segment, Text, Word, record, require

# --- events: world -> schedule -------------------------------------------------------------------


@record
class Started:
    """A request begins; any of ``end_tokens`` ends its text early. The pipeline's caches already
    hold the first ``known`` tokens of the prompt (in a simulation)."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_tokens: frozenset[int] = frozenset()
    known: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.known < len(self.prompt), "a prompt has at least one unknown token")
        require(self.max_new_tokens > 0, "at least one new token must be wanted")


@record
class Drafted:
    """A draft pass finished: candidates per asked node, most probable first.

    ``tokens`` and ``log_probs`` have shape [nodes][top_k]. If a node has fewer candidates, its last
    entries have the log probability -inf and do not count.
    """

    ticket: int
    tokens: Sequence[Sequence[int]] | npt.NDArray[np.integer[Any]]
    log_probs: Sequence[Sequence[float]] | npt.NDArray[np.float64]

    def expect(self, nodes: int) -> None:
        """Raise ``ProtocolError`` unless all ``nodes`` nodes have equally many candidates."""
        if not len(self.tokens) == len(self.log_probs) == nodes:
            raise ProtocolError("a draft pass answers for every node it was asked about")
        tokens, log_probs = self.tokens, self.log_probs
        if isinstance(tokens, np.ndarray) and isinstance(log_probs, np.ndarray) and nodes:
            fits = tokens.shape[1] == log_probs.shape[1] > 0
        else:
            widths = {len(row) for table in (tokens, log_probs) for row in table}
            fits = len(widths) < 2 and 0 not in widths
        if not fits:
            raise ProtocolError("a draft pass gives every node as many log_probs as tokens, not 0")

    def least(self, log_prob: float) -> Drafted:
        """Return the answer without candidates below a log probability."""
        log_probs = np.asarray(self.log_probs, dtype=np.float64)
        likely = np.where(log_probs < log_prob, -np.inf, log_probs)
        return Drafted(self.ticket, self.tokens, likely)


@record
class Returned:
    """A segment came back: the target's next token at each row that survived.

    Attributes:
        version: number of words applied to the segment when it left the last stage.
        start: tree index of the first surviving row at that version.
        next_tokens: the target's next token per surviving row; of committed rows only the last.
        seen: note of the draft server's gauge at that time.
    """

    ticket: int
    version: int
    start: int
    next_tokens: tuple[int, ...]
    seen: Any = None


@record
class Stepped:
    """A step of a pipeline in lock-step ended for a session that takes part in it; ``returned`` is
    the session's own segment, None if the returned flight had none."""

    returned: Returned | None


@record
class WorkerLost:
    """A worker is gone; the schedule ends with its committed tokens."""

    worker: str


Event: TypeAlias = Started | Drafted | Returned | Stepped | WorkerLost | Text
"""A ``Text`` comes from the draft below, at any time; it causes no command."""


# --- commands: schedule -> world -----------------------------------------------------------------


@record
class DraftPass:
    """Run the draft once; answered by ``Drafted`` unless it is withdrawn.

    Attributes:
        catch_up: committed tokens that the draft has not read yet; the pass reads them and answers
            for the last one. Only accepted scratch nodes remain. Empty if the pass is over scratch
            nodes.
        tokens: token id per scratch node (empty if ``catch_up`` is given).
        parents: per scratch node the index of its parent among the scratch nodes in feeding order,
            ``NO_PARENT`` if it hangs at the newest committed token.
        reset: drop all scratch nodes first (a new tree begins).
        top_k: candidates per node; 0: the pass only reads, and its answer is empty.
        keep: before the pass, keep only the scratch nodes at these ascending indices; None keeps
            all. ``parents`` count the remaining nodes.
        accepted: number of leading nodes of ``keep`` that become committed and leave the scratch.
        drawn: candidates are draws without replacement from the draft's distribution, in the order
            drawn, instead of its most probable ones.
    """

    ticket: int
    catch_up: tuple[int, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    reset: bool
    top_k: int
    keep: tuple[int, ...] | None = None
    accepted: int = 0
    drawn: bool = False

    @classmethod
    def over_committed(
        cls,
        ticket: int,
        unread: Sequence[int],
        top_k: int,
        held: tuple[int, ...] = (),
        *,
        drawn: bool = False,
    ) -> DraftPass:
        """Make a pass over committed tokens; the scratch nodes ``held`` hold the first of them,
        which the pass need not compute. There is at least one token more."""
        computed, kept = tuple(unread[len(held) :]), held or None
        return cls(ticket, computed, (), (), not held, top_k, kept, len(held), drawn)

    @property
    def rows(self) -> int:
        """Number of tokens that the pass computes."""
        return len(self.catch_up) or len(self.tokens)

    @property
    def asked(self) -> int:
        """Number of tokens whose distribution the pass reads: of committed ones only the last."""
        return 1 if self.catch_up else len(self.tokens)

    @property
    def renews(self) -> int:
        """Number of committed tokens that are new to the draft with this pass."""
        return len(self.catch_up) + self.accepted

    @property
    def cut(self) -> tuple[tuple[int, ...], int] | None:
        """The scratch nodes that it keeps before it runs, and the number of leading ones that
        become committed; None if all stay as they are."""
        if self.reset:
            return (), 0
        return None if self.keep is None else (self.keep, self.accepted)


@record
class Withdraw:
    """Take back an ordered draft pass: it is not run, and not answered.

    A draft server tells a schedule an event between two of its works, so a pass without an answer
    has not begun. What the pass would have changed in the draft's memory stays as it was.
    """

    ticket: int


@record
class Feed:
    """Send a segment to the first stage; answered by ``Returned``.

    An empty one is a marker: it costs a step of a lock-step pipeline, and no compute.

    Attributes:
        chances: of a chain that may be cut before it leaves (``verify_length.py``), the chance of
            each row behind the root to be accepted; empty: it travels whole.
    """

    segment: Segment
    chances: tuple[float, ...] = ()


@record
class Announce:
    """Broadcast a word to every stage; not answered."""

    word: Word


@record
class Emit:
    """These tokens are final; not answered."""

    tokens: tuple[int, ...]


@record
class Judged:
    """A round's tree had ``drafted`` levels, the first ``accepted`` accepted; not answered."""

    accepted: int
    drafted: int


@record
class Finish:
    """The request is done ("length", "end of text" or "worker lost"); not answered."""

    reason: str


Command: TypeAlias = DraftPass | Withdraw | Feed | Announce | Emit | Judged | Finish | Text
"""A ``Text`` goes to the draft below; not answered."""


@record
class Offer:
    """A node's place and children, for verification rules.

    Attributes:
        path: token ids from the root's child down to the node (empty for the root).
        position: position id of the node.
        children: token ids of its children, in the order in which they were drafted.
    """

    path: tuple[int, ...]
    position: int
    children: tuple[int, ...]


class Gauge:
    """The notes that a draft server may keep while it serves, for all its requests.

    The draft desk calls this interface; ``decoding/pace.py`` implements it. This one records
    nothing. Times are in milliseconds.
    """

    def given(self, work: object, now_ms: float) -> None:
        """Record that the last work is over and its segments are on their way.

        Args:
            work: the next work, of ``draft_work.py``; None if there is none.
        """

    def arrived(self, flight: Flight, now_ms: float) -> None:
        """Record that a flight came back, and waits for its turn."""

    def commanded(self, session: int, command: Command) -> None:
        """Record a command of a request's schedule."""

    def left(self, session: int) -> None:
        """Record that a request is closed."""

    def seen(self, requests: int) -> Any:
        """Return the value of ``seen`` in the next ``Returned``, with ``requests`` open."""
        return None


@runtime_checkable
class Schedule(Protocol):
    """A decoding schedule of one request: a pure state machine.

    ``handle`` takes one event and returns the commands it causes, in order. It raises
    ``ProtocolError`` for an illegal event and then has changed nothing.
    """

    def handle(self, event: Event) -> Sequence[Command]: ...

    def offers(self, returned: Segment, *, children: bool) -> Sequence[Offer | None]:
        """Return the offers at the rows of a returned segment; None for rows pruned since.

        Without ``children`` these are left empty, which saves the time of collecting them.
        """

    @property
    def in_step(self) -> bool:
        """Whether the request takes part in the lock-step of its whole pipeline."""

    @property
    def listens(self) -> bool:
        """Whether the schedule receives returned segments between the passes of a draft; else one
        is illegal while a pass is under way."""

    @property
    def gauge(self) -> type[Gauge]:
        """The kind of notes that its draft server keeps, for all its requests."""

    @property
    def rounds(self) -> Sequence[RoundRecord]: ...


@record
class RoundRecord:
    """The record of one round.

    Attributes:
        tokens: tokens committed in the round.
        steps: segments (markers included) that came back before the round ended.
        committed_per_step: tokens committed at each of those steps.
        fed: nodes fed to the pipeline.
        accepted: nodes whose key and value became committed.
    """

    tokens: int
    steps: int
    committed_per_step: tuple[int, ...]
    fed: int
    accepted: int
