"""A pipeline of real stage desks without time, and the boxes of messages in front of them.

Boxes keep their order; in which order they are emptied, and when a stage gets round to its work, is
up to the test. Every action of every stage is held against the records of ``ledger.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from treepipe.core.barrier import Groups
from treepipe.core.messages import Beat, Close, Flight, Message, Through
from treepipe.core.stage import Prune, StageSession
from treepipe.core.stage_desk import Move, Place, Send, StageDesk, StageWork
from treepipe.testing.law import hold
from treepipe.testing.ledger import NodeLedger, StageRecord

Logits = Callable[[list[int]], np.ndarray]


class Event(NamedTuple):
    """Something that can happen next: a message reaches its place, or a stage does its next thing.

    ``stage`` counts from 0; a flight at ``stages`` reaches the draft. ``draft`` is the server whose
    link it is: flights between stages share theirs (0).
    """

    kind: str
    stage: int
    draft: int = 0


class TimelessPipeline:
    """N stages, the boxes between them, and what an executor's caches would hold.

    Attributes:
        ledgers: by session; those of closed sessions stay.
        records: by (stage, session), as long as the stage knows the session.
        answers: what the target says at the rows of (session, ticket).
        forward_sizes: rows of each pass, per stage.
        shared: how many requests each pass was for, per stage.
    """

    def __init__(
        self,
        stages: int,
        target: Logits | None = None,
        groups: Groups = 1,
        drafts: int = 1,
        batch: int = 1,
        prompts: Place = "last",
        *,
        in_phases: bool = False,
        cancels: bool = False,
    ) -> None:
        """Make stages at rest; with ``cancels`` messages may come while one computes."""
        self.desks = [
            StageDesk(n, stages, groups, batch, prompts, in_phases=in_phases)
            for n in range(1, stages + 1)
        ]
        ends = {0: drafts, stages: drafts}
        boxes = [Event("flight", n, d) for n in range(stages + 1) for d in range(ends.get(n, 1))]
        boxes += [Event("word", n, d) for n in range(stages) for d in range(drafts)]
        boxes += [Event("through", n, d) for n in range(stages - 1) for d in range(drafts)]
        self.boxes: dict[Event, deque[Message]] = {box: deque() for box in boxes}
        self.ledgers: dict[int, NodeLedger] = {}
        self.records: dict[tuple[int, int], StageRecord] = {}
        self.answers: dict[tuple[int, int], tuple[int, ...]] = {}
        self.answered: set[tuple[int, int]] = set()
        self.forward_sizes: list[list[int]] = [[] for _ in range(stages)]
        self.shared: list[list[int]] = [[] for _ in range(stages)]
        self._target = target
        self._busy: set[int] = set()
        self._cancels, self._under_way = cancels, dict[int, Flight]()

    # --- what the draft sends --------------------------------------------------------------------

    def send(self, message: Message, draft: int = 0) -> None:
        """A flight goes to the first stage, everything else to all of them."""
        if isinstance(message, Flight):
            for segment in message.segments:
                self.ledger(segment.session).feed(segment)
            self.boxes[Event("flight", 0, draft)].append(message)
            return
        for word in message.words if isinstance(message, Beat) else ():
            self.ledger(word.session).announce(word)
        for n in range(len(self.desks)):
            self.boxes[Event("word", n, draft)].append(message)

    def ledger(self, session: int = 0) -> NodeLedger:
        return self.ledgers.setdefault(session, NodeLedger())

    # --- what is where ---------------------------------------------------------------------------

    def ends(self, box: Event) -> tuple[str, str]:
        """Names of a box's sender and receiver."""
        n, draft, last = box.stage, f"draft{box.draft}", len(self.desks)
        if box.kind == "through":
            return f"stage{n + 1}", draft
        sender = f"stage{n}" if box.kind == "flight" and n else draft
        return sender, draft if box.kind == "flight" and n == last else f"stage{n + 1}"

    # --- moving ----------------------------------------------------------------------------------

    def events(self) -> list[Event]:
        """Return all events that could happen next."""
        work = [Event("work", n) for n in sorted(self._busy)]
        return work + [box for box, waiting in self.boxes.items() if waiting]

    def move(self, event: Event) -> Flight | Through | None:
        """Let it happen; returns what came back to its draft, if anything did."""
        n = event.stage
        if event.kind == "work":
            self._work(n)
            return None
        message = self.boxes[event].popleft()
        if isinstance(message, Through):
            return message
        if n == len(self.desks):
            assert isinstance(message, Flight)
            for segment in message.segments:
                key = segment.session, segment.ticket
                hold(
                    key not in self.answered, "answered_once", f"ticket {key[1]} is answered twice"
                )
                self.answered.add(key)
            return message
        self._deliver(n, message)
        return None

    def _deliver(self, n: int, message: Message) -> None:
        self._busy.add(n)
        for session in self.desks[n].receive(message):
            self.opened(n, session)
        if isinstance(message, Close):
            self.closed(n, message.session)

    def _work(self, n: int) -> None:
        flight = self._under_way.pop(n, None)
        if flight is not None:
            given_up = self.desks[n].given_up(flight)
            if given_up is not None:
                for segment in flight.segments:
                    self.answers.pop((segment.session, segment.ticket), None)
            self._computed(n, flight if given_up is None else given_up)
            return
        action = self.desks[n].next_action()
        if action is None:
            self._busy.discard(n)
            return
        self.act(n, action)
        for (stage, session), record in self.records.items():
            if stage == n and not self.desks[n].gathers(session):
                record.check(self.stage(n, session))

    def stage(self, n: int, session: int = 0) -> StageSession:
        return self.desks[n].sessions[session]

    # --- what a stage does -----------------------------------------------------------------------

    def opened(self, n: int, session: int) -> None:
        """A stage hears of a request for the first time."""
        self.records[n, session] = StageRecord(self.ledger(session))

    def closed(self, n: int, session: int) -> None:
        """A stage hears of its end."""
        self.records.pop((n, session), None)

    def act(self, n: int, action: StageWork) -> None:
        if isinstance(action, Prune):
            self.records[n, action.session].prune(action, self.stage(n, action.session).version)
            self.pruned(n, action)
            return
        if isinstance(action, Send):
            for segment, rows in zip(action.flight.segments, action.rows, strict=True):
                version = self.stage(n, segment.session).version
                self.records[n, segment.session].left(segment, rows, version)
            self._pass_on(n, action.flight)
            return
        for segment, rows in zip(action.flight.segments, action.rows, strict=True):
            version = self.stage(n, segment.session).version
            self.records[n, segment.session].run(segment, rows, version)
        if action.tokens:
            self.forward_sizes[n].append(action.tokens)
            self.shared[n].append(sum(bool(each.tokens) for each in action.flight.segments))
        self.compute(n, action)
        if self._cancels and action.tokens:
            self._under_way[n] = action.flight
        else:
            self._computed(n, action.flight)

    def _computed(self, n: int, flight: Flight) -> None:
        said = self.desks[n].through(flight)
        if said is not None:
            self.boxes[Event("through", n, said.draft)].append(said)
        if self.desks[n].computed(flight):
            self._pass_on(n, flight)

    def _pass_on(self, n: int, flight: Flight) -> None:
        last = n + 1 == len(self.desks)
        self.boxes[Event("flight", n + 1, flight.draft if last else 0)].append(flight)

    def pruned(self, n: int, action: Prune) -> None:
        """A stage's cache is to be compacted."""

    def compute(self, n: int, move: Move) -> None:
        """The target answers from what the last stage's cache says that each row attends to."""
        assert len(move.rows) == len(move.payloads) == len(move.flight.segments)
        if self._target is None or n + 1 < len(self.desks):
            return
        for segment in move.flight.segments:
            paths = self.records[n, segment.session].paths(segment)
            tokens = tuple([int(np.argmax(self._target(path))) for path in paths])
            self.answers[segment.session, segment.ticket] = tokens

    def assert_freed(self) -> None:
        """With nothing under way, no stage knows anything of a finished request."""
        hold(not self.records, "freed", "a stage has not heard that a request ended")
        for desk in self.desks:
            hold(not desk.sessions, "freed", "a stage keeps a finished request")
            hold(desk.at_rest, "freed", "a stage keeps flights or beats of finished requests")
