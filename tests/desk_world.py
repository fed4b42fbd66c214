"""Draft servers, stages and several requests without time: messages move when the test says so.

For tests of the core only. The draft's and the stages' desks are the real ones, the draft and the
target are functions of the token path. What each last stage computes is held against what its
cache says (causality), and every draft pass against what the draft has read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from treepipe.draft_desk import DraftDesk
from treepipe.draft_work import Begin, Draft, Evaluate, Orders
from treepipe.messages import NO_PARENT, Close, Flight, Message, Segment
from treepipe.protocol import Drafted, DraftPass, Schedule, Started
from treepipe.recording import ScratchPaths
from treepipe.schedules.shared_draft import ArrivalQueue
from treepipe.stage import Prune
from treepipe.stage_desk import StageDesk, StageWork

Logits = Callable[[list[int]], np.ndarray]
Choose = Callable[[int], int]


@dataclass
class Cache:
    """What one stage holds of one request: committed tokens, then (token, parent) per node."""

    committed: list[int] = field(default_factory=list)
    nodes: list[tuple[int, int]] = field(default_factory=list)

    def prune(self, action: Prune) -> None:
        kept = [self.nodes[i] for i in action.keep]
        self.committed += [token for token, _ in kept[: action.accepted]]
        moved = {old: new - action.accepted for new, old in enumerate(action.keep)}
        self.nodes = [
            (token, max(moved.get(parent, NO_PARENT), NO_PARENT))
            for token, parent in kept[action.accepted :]
        ]

    def run(self, segment: Segment) -> list[list[int]]:
        """Append the rows; returns the token path that each of them attends to."""
        if segment.committed:
            assert segment.positions[0] == len(self.committed)
            self.committed += segment.tokens
            return [self.committed[: p + 1] for p in segment.positions]
        assert segment.start == len(self.nodes), "rows are contiguous"
        self.nodes += zip(segment.tokens, segment.parents, strict=True)
        paths = [self._path(node) for node in range(segment.start, len(self.nodes))]
        depths = [len(path) - 1 for path in paths]
        assert list(segment.positions) == depths, "committed before the root + depth"
        return paths

    def _path(self, node: int) -> list[int]:
        tail = []
        while node != NO_PARENT:
            token, parent = self.nodes[node]
            assert parent < node, "a node comes after its ancestors"
            tail.append(token)
            node = parent
        return self.committed + tail[::-1]


class DeskWorld:
    """One draft server, pipelines of stages, and the boxes between them."""

    def __init__(
        self,
        pipelines: Sequence[int],
        target: Logits,
        draft: Logits,
        choose: Choose = lambda count: 0,
        group_size: int = 1,
    ) -> None:
        """Args: ``pipelines``: stages of each; ``choose`` picks which possible move is next."""
        self.target, self.draft, self.choose = target, draft, choose
        groups = [-(-stages // group_size) for stages in pipelines]
        self.desk = DraftDesk(0, groups, ArrivalQueue())
        self.stages = [
            [StageDesk(n, count, group_size) for n in range(1, count + 1)] for count in pipelines
        ]
        self.flights: list[list[deque[Flight]]] = [
            [deque() for _ in range(count + 1)] for count in pipelines
        ]
        self.words: list[list[deque[Message]]] = [
            [deque() for _ in range(count)] for count in pipelines
        ]
        self.caches: dict[tuple[int, int, int], Cache] = {}
        self.answers: dict[tuple[int, int], tuple[int, ...]] = {}
        self.texts: dict[int, list[int]] = {}
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.reasons: dict[int, str] = {}
        self.read: dict[int, ScratchPaths] = {}
        self.draft_calls: list[int] = []
        self.forward_sizes = [[[] for _ in range(count)] for count in pipelines]

    def open(self, session: int, pipeline: int, schedule: Schedule, started: Started) -> None:
        self.texts[session], self.prompts[session] = [], started.prompt
        self.read[session] = ScratchPaths()
        self.desk.open(session, pipeline, schedule, started, 0.0)

    def run(self) -> None:
        """Until every request is finished, and then until nothing moves any more."""
        while self.step():
            pass
        assert not self.desk.sessions, f"requests {sorted(self.desk.sessions)} wait for ever"

    def step(self) -> bool:
        """One move; False if there is none."""
        moves = self.moves()
        if moves:
            moves[self.choose(len(moves))]()
        return bool(moves)

    def moves(self) -> list[Callable[[], None]]:
        found: list[Callable[[], None]] = []
        if self.desk.has_work:
            found.append(self._serve)
        for p, boxes in enumerate(self.flights):
            for n, box in enumerate(boxes):
                if box:
                    found.append(lambda p=p, n=n: self._move_flight(p, n))
        for p, words in enumerate(self.words):
            for n, box in enumerate(words):
                if box:
                    found.append(lambda p=p, n=n: self._deliver(p, n, self.words[p][n].popleft()))
        return found

    # --- the draft server ------------------------------------------------------------------------

    def _serve(self) -> None:
        work = self.desk.next(0.0)
        assert work is not None or not self.desk.has_work, "what there is to do is not forgotten"
        if isinstance(work, Begin):
            self.carry_out(self.desk.began(work))
        elif isinstance(work, Draft):
            answers = [(session, self._draft(session, order)) for session, order in work.passes]
            self.carry_out(self.desk.drafted(answers))
        elif isinstance(work, Evaluate):
            self._evaluate(work.flight)

    def _evaluate(self, flight: Flight) -> None:
        answers = []
        for segment in flight.segments:
            answers.append(self.answers.get((segment.session, segment.ticket), ()))
        self.carry_out(self.desk.returned(flight, answers))

    def carry_out(self, orders: Orders) -> None:
        for pipeline, message in orders.messages:
            if isinstance(message, Flight):
                self.flights[pipeline][0].append(message)
                for segment in message.segments:
                    self.fed_segment(segment)
            else:
                for box in self.words[pipeline]:
                    box.append(message)
        for session, tokens in orders.emitted:
            self.texts[session] += tokens
        self.reasons.update(orders.finished)

    def fed_segment(self, segment: Segment) -> None:
        """For tests that follow tickets."""

    def returned_segment(self, segment: Segment) -> None:
        """For tests that follow tickets."""

    def _draft(self, session: int, order: DraftPass) -> Drafted:
        self.draft_calls.append(order.rows)
        scratch = self.read[session]
        paths = scratch.asked(order)
        committed = [*self.prompts[session], *self.texts[session]]
        assert scratch.read <= len(committed), "it reads what is committed"
        assert order.catch_up == tuple(committed[scratch.read - len(order.catch_up) : scratch.read])
        tokens, log_probs = [], []
        for path in paths:
            logits = self.draft(committed[: scratch.read] + list(path))
            logs = logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
            top = np.argsort(-logs, kind="stable")[: order.top_k]
            tokens.append([int(token) for token in top])
            log_probs.append([float(logs[token]) for token in top])
        return Drafted(order.ticket, tokens, log_probs)

    # --- the stages ------------------------------------------------------------------------------

    def _move_flight(self, p: int, n: int) -> None:
        flight = self.flights[p][n].popleft()
        if n < len(self.stages[p]):
            self._deliver(p, n, flight)
        else:
            for segment in flight.segments:
                self.returned_segment(segment)
            self.desk.arrive(flight, None, 0.0)

    def _deliver(self, p: int, n: int, message: Message) -> None:
        desk = self.stages[p][n]
        for session in desk.receive(message):
            self._opened(p, n, session)
        if isinstance(message, Close):
            self.caches.pop((p, n, message.session), None)
        while (action := desk.next_action()) is not None:
            self._act(p, n, action)

    def _opened(self, p: int, n: int, session: int) -> None:
        """A stage hears of a request for the first time."""
        self.caches[p, n, session] = Cache()

    def _act(self, p: int, n: int, action: StageWork) -> None:
        if isinstance(action, Prune):
            self.caches[p, n, action.session].prune(action)
            return
        if action.tokens:
            self.forward_sizes[p][n].append(action.tokens)
        for segment in action.flight.segments:
            if not segment.tokens:
                continue
            paths = self.caches[p, n, segment.session].run(segment)
            if n == len(self.stages[p]) - 1:
                if segment.committed:
                    paths = paths[-1:]
                tokens = tuple([int(np.argmax(self.target(path))) for path in paths])
                self.answers[segment.session, segment.ticket] = tokens
        self.flights[p][n + 1].append(action.flight)
