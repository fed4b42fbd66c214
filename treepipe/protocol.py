"""The vocabulary between a schedule, the stages and a world: frozen records, validated when made.

Events tell a schedule what happened, commands ask its world to act, and the two messages that
travel through the pipeline (``Segment``, ``Word``) reach the stages. Only records belong here: no
rule of a schedule, no clock, no tensor. Token ids, node indices and tickets are plain integers.

Rules:

* Every command that has an answer carries a ticket and is answered exactly once.
* Tree indices count the nodes of the tree part in sequence order; committed tokens are not
  counted. A ``Segment``'s indices are valid after ``Segment.version`` words.
* The verifying side reports tokens; no record holds a distribution of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.errors import ProtocolError

NO_PARENT = -1
"""Parent of a root, and of a draft node that hangs at the newest committed token."""


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ProtocolError(sentence)


@dataclass(frozen=True, slots=True)
class Segment:
    """An ordered batch of rows that enters the pipeline as one message.

    Attributes:
        session: the request it belongs to.
        ticket: identifies the ``Returned`` that answers it.
        round: number of the round it was fed in; a stage drops segments of ended rounds.
        version: how many words of the session its indices take into account.
        start: tree index of its first row; rows are contiguous. 0 for committed rows.
        tokens: token id per row.
        positions: position id per row, counted from the prompt's first token.
        parents: tree index of each row's parent (``NO_PARENT`` for the root); empty for
            committed rows, which attend to everything before them.
        step: place in the round's sequence if the pipeline runs in lock-step (a stage then
            waits for the word of that step), None if it runs free.
    """

    session: int
    ticket: int
    round: int
    version: int
    start: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    parents: tuple[int, ...] = ()
    step: int | None = None

    def __post_init__(self) -> None:
        _require(len(self.tokens) == len(self.positions), "a segment has one position per token")
        _require(
            not self.parents or len(self.parents) == len(self.tokens),
            "a segment has one parent per token, or none at all",
        )

    @property
    def committed(self) -> bool:
        """True if the rows are committed tokens (prompt or plain decoding), not tree nodes."""
        return bool(self.tokens) and not self.parents


@dataclass(frozen=True, slots=True)
class Word:
    """The draft's announcement to every stage: a prune, or "go on" (``retained`` is None).

    Attributes:
        session: the request it belongs to.
        round: the round it was decided in.
        number: count of the session's words before it (word k turns version k into k + 1).
        retained: ascending tree indices to keep, accepted nodes first; None keeps everything.
        accepted: how many of the retained nodes become committed.
        ends_round: nothing but the accepted nodes survives and segments of the round are dropped.
        lock_step: stages apply it at their own step instead of as soon as it arrives.
    """

    session: int
    round: int
    number: int
    retained: tuple[int, ...] | None
    accepted: int
    ends_round: bool
    lock_step: bool

    def __post_init__(self) -> None:
        kept = len(self.retained) if self.retained is not None else 0
        _require(0 <= self.accepted <= kept, "accepted nodes are among the retained ones")
        _require(not self.ends_round or self.accepted == kept, "an ended round keeps no live node")


Message: TypeAlias = Segment | Word


# --- events: world -> schedule -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """A request begins: ``prompt`` token ids, at most ``max_new_tokens`` more are wanted."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_of_text: int | None = None

    def __post_init__(self) -> None:
        _require(len(self.prompt) > 0, "a prompt has at least one token")
        _require(self.max_new_tokens > 0, "at least one new token must be wanted")


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft pass finished: per asked node its candidates, most probable first.

    ``tokens`` and ``log_probs`` have shape [nodes][top_k].
    """

    ticket: int
    tokens: Sequence[Sequence[int]] | npt.NDArray[np.integer[Any]]
    log_probs: Sequence[Sequence[float]] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Returned:
    """A segment came back: the target's next token at each row that survived.

    Attributes:
        ticket: of the segment.
        version: how many words had been applied to the segment when it left the last stage.
        start: tree index of the first surviving row at that version.
        next_tokens: the target's next token per surviving row; for committed rows only the last
            row's token is reported.
    """

    ticket: int
    version: int
    start: int
    next_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone; the schedule ends with what is committed."""

    worker: str


Event: TypeAlias = Started | Drafted | Returned | WorkerLost


# --- commands: schedule -> world -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DraftPass:
    """Run the draft once; answered by ``Drafted``.

    Attributes:
        ticket: identifies the answer.
        catch_up: committed tokens that the draft has not read yet; the pass reads them and
            answers for the last one. Empty if the pass is over scratch nodes.
        tokens: token id per scratch node (empty if ``catch_up`` is given).
        parents: per scratch node the index of its parent among the scratch nodes in feeding
            order, ``NO_PARENT`` if it hangs at the newest committed token.
        reset: drop all scratch nodes first (a new tree begins).
        top_k: how many candidates to answer per node.
    """

    ticket: int
    catch_up: tuple[int, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    reset: bool
    top_k: int

    @property
    def rows(self) -> int:
        """Number of tokens the pass computes."""
        return len(self.catch_up) or len(self.tokens)


@dataclass(frozen=True, slots=True)
class Feed:
    """Send a segment to the first stage; answered by ``Returned``.

    An empty one is a marker: it costs a step of a lock-step pipeline, and no compute.
    """

    segment: Segment


@dataclass(frozen=True, slots=True)
class Announce:
    """Broadcast a word to every stage; not answered."""

    word: Word


@dataclass(frozen=True, slots=True)
class Emit:
    """These tokens are final; not answered."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The request is done ("length", "end of text" or "worker lost"); not answered."""

    reason: str


Command: TypeAlias = DraftPass | Feed | Announce | Emit | Finish


class Schedule(Protocol):
    """A decoding schedule of one request: a pure state machine.

    ``handle`` takes one event and returns the commands it causes, in order. It raises
    ``ProtocolError`` for an illegal event and then has changed nothing.
    """

    def handle(self, event: Event) -> Sequence[Command]: ...

    @property
    def done(self) -> bool: ...

    @property
    def rounds(self) -> Sequence[RoundRecord]: ...


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round did: tokens committed, pipeline steps, and what became of its nodes.

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
