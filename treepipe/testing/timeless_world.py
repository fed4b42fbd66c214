"""Drives schedules through the real desks without time: the smallest possible world.

It has draft servers, pipelines of stages, a draft and a target given as
functions of the token path, and events that happen in the order that ``choose`` gives. A draft
server takes work only from its desk and is then busy until ``choose`` lets it end; messages arrive
meanwhile. Stages are in ``pipeline.py``, what everything is held against in ``ledger.py``.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import inf, log
from typing import Any

import numpy as np

from treepipe.core.barrier import Groups, group_sizes
from treepipe.core.cache_room import DRAFT, CacheBook, CacheRoom
from treepipe.core.dock import Dock
from treepipe.core.draft_desk import DraftDesk
from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders
from treepipe.core.front_desk import ArrivalQueue, Policy, ServiceLevels
from treepipe.core.levels import Letters, LevelDesk
from treepipe.core.messages import Close, Flight, Message, Segment, Text
from treepipe.core.protocol import Drafted, DraftPass, Schedule, Started
from treepipe.core.requests import LIVES, numbered
from treepipe.core.scratch import Scratch
from treepipe.core.stage_desk import Place
from treepipe.core.system import Bounds
from treepipe.core.verify_length import RoundMs
from treepipe.testing.law import hold
from treepipe.testing.ledger import DraftReader
from treepipe.testing.pipeline import Event, Logits, TimelessPipeline
from treepipe.testing.story import Noted, Story

Choose = Callable[[int], int]


def candidates(draft: Logits, order: DraftPass, paths: Sequence[list[int]]) -> Drafted:
    """The most probable tokens behind each path, as a draft pass asks for them."""
    if not order.top_k:
        return Drafted(order.ticket, (), ())
    tokens, log_probs = [], []
    for path in paths:
        ranked, logs = _ranked(draft, tuple(path))
        tokens.append(ranked[: order.top_k])
        log_probs.append(logs[: order.top_k])
    return Drafted(order.ticket, tokens, log_probs)


@lru_cache(50_000)
def _ranked(draft: Logits, path: tuple[int, ...]) -> tuple[list[int], list[float]]:
    """All tokens behind a path, most probable first, and their log probabilities."""
    logits = draft([*path])
    logs = logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
    ranked = np.argsort(-logs, kind="stable")
    return ranked.tolist(), logs[ranked].tolist()


MOST_MOVES = 20_000
"""Bound on the moves of a trial, several times as many as its requests take."""


def first(count: int) -> int:
    """Choose the first of all possible moves."""
    return 0


@dataclass
class TimelessRequest:
    """One request, open or finished.

    Attributes:
        offered: what the draft has proposed below each token path, of a block at each place.
        begun: whether the schedule has been told.
        reason: why it is finished, None while it is not.
    """

    schedule: Noted
    started: Started
    pipeline: int
    text: list[int] = field(default_factory=list)
    reader: DraftReader = field(default_factory=DraftReader)
    scratch: Scratch[None] = field(default_factory=Scratch)
    offered: dict[tuple[int, ...] | int, set[int]] = field(default_factory=dict)
    begun: bool = False
    reason: str | None = None

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.started.prompt

    @property
    def committed(self) -> list[int]:
        return [*self.prompt, *self.text]


@dataclass
class Server:
    """One draft server: its desk, and what it is busy with."""

    desk: DraftDesk
    flight: Flight | None = None
    drafted: list[tuple[int, Drafted]] = field(default_factory=list)


@dataclass
class LevelServer:
    """A draft of a draft: its desk, and the pass that it is busy with."""

    desk: LevelDesk
    draft: Logits
    drafted: tuple[Draft, Drafted] | None = None
    readers: dict[int, DraftReader] = field(default_factory=lambda: defaultdict(DraftReader))


@dataclass(frozen=True, slots=True)
class Sharing:
    """How requests share the servers and stages of a world.

    Attributes:
        groups: stages that step together, in lock-step.
        in_phases: in lock-step, stages prune before results travel on.
        drafts: number of draft servers.
        policy: order of the requests that wait for a server.
        batch: most requests in a pass.
        prompts: place of prompts among the segments that wait for a stage.
        room: for keys and values of each server's requests; None: no bound.
        least: probability of a candidate that a draft still offers.
        block: levels of a block draft; 0: the draft answers by token path.
        round_ms: what a flight of so many rows costs; None: no chain is cut.
        cancels: a stage gives up a pass of which a word leaves no row.
    """

    groups: Groups = 1
    in_phases: bool = False
    drafts: int = 1
    policy: Policy = "fifo"
    batch: int = 1
    prompts: Place = "last"
    room: CacheRoom | None = None
    least: float = 0.0
    block: int = 0
    round_ms: RoundMs | None = None
    cancels: bool = False


ALONE = Sharing()


class TimelessWorld:
    """Draft servers and pipelines; ``choose`` picks which of the possible moves is next.

    Attributes:
        draft_calls: rows of every draft pass, in order.
        lost: pipelines that are gone; what is under way in them still moves.
        new_schedule: of a session that begins again; to be set where there is room for few.
        preemptions: how often that happened.
    """

    new_schedule: Callable[[int], Schedule]

    def __init__(
        self,
        pipelines: Sequence[int],
        target: Logits,
        draft: Logits,
        choose: Choose = first,
        sharing: Sharing = ALONE,
        *,
        levels: Sequence[tuple[Logits, int]] = (),
        bounds: Bounds | None = None,
        story: Story | None = None,
    ) -> None:
        """Make a world of idle servers and stages.

        Args:
            pipelines: number of stages of each.
            levels: drafts of each server's draft, the uppermost first, with the tokens beyond the
                final ones that each may come to.
            bounds: those that the system's record states; None: nobody looks at them.
            story: notes each event and each message that comes.
        """
        self.sharing, self.bounds, self.story = sharing, bounds, story
        self.target, self.draft, self.choose = target, draft, choose
        self._least = log(sharing.least) if sharing.least else -inf
        per_pipeline = [len(group_sizes(sharing.groups, stages)) for stages in pipelines]
        self.servers = [
            Server(
                DraftDesk(
                    d,
                    per_pipeline,
                    ArrivalQueue(sharing.policy, ServiceLevels((2.0, 1.0), (9.0, 1.0))),
                    CacheBook(sharing.room),
                    Dock(
                        sharing.batch,
                        rounds_ms=[sharing.round_ms] * len(pipelines) if sharing.round_ms else (),
                    ),
                    leads=bool(levels),
                    least_log_prob=self._least,
                )
            )
            for d in range(sharing.drafts)
        ]
        self.levels = dict[str, LevelServer]()
        names = [f"draft{n}" for n in range(sharing.drafts * (1 + len(levels)))]
        for n, name in enumerate(names[sharing.drafts :]):
            above, below = names[n : n + 1], names[n + 2 * sharing.drafts :][:1]
            of, most = levels[n // sharing.drafts]
            self.levels[name] = LevelServer(LevelDesk(above, below, most), of)
        self._letters = defaultdict[tuple[str, str], deque[Message]](deque)
        self.pipelines = [self.new_pipeline(stages) for stages in pipelines]
        self.requests: dict[int, TimelessRequest] = {}
        self.draft_calls: list[int] = []
        self.preemptions = 0
        self.lost: set[int] = set()
        self._now = 0.0

    def new_pipeline(self, stages: int) -> TimelessPipeline:
        s = self.sharing
        sharing = s.groups, s.drafts, s.batch, s.prompts
        return TimelessPipeline(
            stages, self.target, *sharing, in_phases=s.in_phases, cancels=s.cancels
        )

    @property
    def desk(self) -> DraftDesk:
        """The first draft server's desk."""
        return self.servers[0].desk

    def text(self, session: int) -> list[int]:
        """A request's text: the last life's prompt holds what the lives before it emitted."""
        lives = [each for number, each in self.requests.items() if numbered(number)[1] == session]
        return lives[-1].committed[len(lives[0].prompt) :]

    def open(
        self, session: int, schedule: Schedule, started: Started, pipeline: int = 0, draft: int = 0
    ) -> None:
        """Add a request that waits to begin."""
        noted: Any = Noted(schedule, session, self.story)
        self.entered(session, TimelessRequest(noted, started, pipeline))
        self.servers[draft].desk.open(session, pipeline, noted, started, self._now)

    def entered(self, session: int, request: TimelessRequest) -> None:
        """Note a request that is opened, or opened again."""
        self.requests[session] = request
        if self.story is not None:
            self.story.ledgers[session] = self.pipelines[request.pipeline].ledger(session)

    def reopen(self, session: int, draft: int) -> None:
        """Open a preempted request again; its prompt now holds what it has emitted."""
        old, again = self.requests[session], session + LIVES
        old.reason, self.preemptions = "preempted", self.preemptions + 1
        wanted = old.started.max_new_tokens - len(old.text)
        started = replace(old.started, prompt=tuple(old.committed), max_new_tokens=wanted)
        schedule: Any = Noted(self.new_schedule(again), again, self.story)
        self.entered(again, TimelessRequest(schedule, started, old.pipeline))
        desk = self.servers[draft].desk
        desk.open(again, old.pipeline, schedule, started, self._now, again=True)

    # --- moving ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Move until nothing can; then every request must be finished."""
        moves = 0
        while self.step():
            moves += 1
            hold(moves < MOST_MOVES, "termination", f"no end after {MOST_MOVES} moves")
        waiting = [session for session, each in self.requests.items() if each.reason is None]
        hold(not waiting, "termination", f"nothing moves, and requests {waiting} wait")

    def step(self) -> bool:
        """Make one move; returns False if there is none."""
        moves = self.moves()
        self._now += 1.0
        if moves:
            moves[self.choose(len(moves))]()
        if self.sharing.room is not None:
            self._assert_room(self.sharing.room)
        return bool(moves)

    def _assert_room(self, room: CacheRoom) -> None:
        """No stage and no draft holds more of the open requests than there is room for."""
        for server in self.servers:
            open_, taken_of = server.desk.sessions, server.desk.room.taken
            for number, pipeline in enumerate(self.pipelines):
                for desk in pipeline.desks:
                    held = [each for s, each in desk.sessions.items() if s in open_]
                    entries = sum(each.committed + each.cached for each in held)
                    taken = taken_of(number)
                    hold(entries <= taken <= room.of(number), "rooms", "a stage's cache overflows")
            entries = sum(self.requests[session].scratch.cached for session in open_)
            taken = taken_of(DRAFT)
            hold(entries <= taken <= room.of(DRAFT), "rooms", "a draft's cache overflows")

    def moves(self) -> list[Callable[[], None]]:
        """Return all possible moves: of a draft server, of a stage, or on a link."""
        found: list[Callable[[], None]] = []
        for number, server in enumerate(self.servers):
            if server.drafted or server.flight is not None:
                found.append(partial(self._end, number))
            elif server.desk.has_work:
                found.append(partial(self._take, number))
        for number, pipeline in enumerate(self.pipelines):
            found += [partial(self._move, number, event) for event in pipeline.events()]
        for name, level in self.levels.items():
            if level.drafted is not None or level.desk.has_work:
                found.append(partial(self._go_on, name))
        busy = {name for name, level in self.levels.items() if level.drafted is not None}
        ways = [way for way, box in self._letters.items() if box and way[1] not in busy]
        return found + [partial(self._hear, *way) for way in ways]

    def _move(self, number: int, event: Event) -> None:
        pipeline = self.pipelines[number]
        if event.kind != "work" and self.story is not None:
            sender, receiver = pipeline.ends(event)
            self.story.came(sender, receiver, pipeline.boxes[event][0])
        flight = pipeline.move(event)
        if event.kind == "work" and self.bounds is not None:
            held = [each.cached for each in pipeline.desks[event.stage].sessions.values()]
            within = max(held, default=0) <= self.bounds.tree_tokens
            hold(within, "bounds", f"a stage holds {max(held, default=0)} nodes of a request")
        if flight is not None:
            self.servers[flight.draft].desk.receive(flight, None, self._now)

    # --- a draft server --------------------------------------------------------------------------

    def _take(self, number: int) -> None:
        """Begin with the next thing that the desk gives out."""
        server = self.servers[number]
        work = server.desk.next(self._now)
        hold(work or not server.desk.has_work, "termination", "a draft server forgets its work")
        if isinstance(work, Begin):
            self.requests[work.session].begun = True
            self.carry_out(number, server.desk.began(work))
        elif isinstance(work, Draft):
            server.drafted = [(session, self.drafted(session, p)) for session, p in work.passes]
        elif isinstance(work, Evaluate):
            server.flight = work.flight

    def _end(self, number: int) -> None:
        """End what the server is busy with."""
        server = self.servers[number]
        flight, drafted = server.flight, server.drafted
        server.flight, server.drafted = None, []
        if flight is None:
            self.carry_out(number, server.desk.drafted(drafted))
            return
        known = self.pipelines[flight.pipeline].answers
        answers = [known.get((each.session, each.ticket), ()) for each in flight.segments]
        self.carry_out(number, server.desk.returned(flight, answers))

    def carry_out(self, number: int, orders: Orders) -> None:
        for session, tokens in orders.emitted:
            self.requests[session].text += tokens
        for pipeline, message in orders.messages:
            hold(pipeline not in self.lost, "failover", "a message is sent to a lost pipeline")
            self.post(pipeline, message, number)
        for session, reason in orders.finished:
            ended = self.requests[session].reason
            hold(ended is None, "termination", f"request {session} ends twice")
            self.requests[session].reason = reason
        for session in orders.preempted:
            self.reopen(session, number)
        self.servers[number].desk.admit(self._now)

    def post(self, pipeline: int, message: Message, draft: int) -> None:
        if pipeline == len(self.pipelines):  # to the draft below
            self._letters[f"draft{draft}", f"draft{draft + self.sharing.drafts}"].append(message)
            return
        self.pipelines[pipeline].send(message, draft)
        for segment in message.segments if isinstance(message, Flight) else ():
            self._check_bounds(segment)
            self._check_offered(segment.session)

    def _check_bounds(self, segment: Segment) -> None:
        if self.bounds is not None:
            rows, kind = len(segment.tokens), "committed tokens" if segment.committed else "nodes"
            most = self.bounds.pass_tokens if segment.committed else self.bounds.segment_tokens
            hold(rows <= most, "bounds", f"a segment has {rows} {kind}; the record states {most}")

    def _check_offered(self, session: int) -> None:
        """The root is the newest committed token, others were drafted for their own path."""
        request = self.requests[session]
        above, root = (*request.prompt, *request.text[:-1]), request.text[-1:]
        for path in self.pipelines[request.pipeline].ledger(session).paths():
            at = self._place(above + path[:-1])
            known = request.offered.get(at, ()) if len(path) > 1 else root
            hold(path[-1] in known, "drafted", f"the node {path} was not drafted for its path")

    def drafted(self, session: int, order: DraftPass) -> Drafted:
        """Run one pass."""
        self.draft_calls.append(order.rows)
        request = self.requests[session]
        given_up = order.ticket in request.schedule.withdrawn
        hold(not given_up, "wanted", f"draft pass {order.ticket} begins, which was withdrawn")
        paths = request.reader.ask(order, request.committed)
        followed = request.scratch.follow(order)
        below = [path[request.scratch.read :] for path in paths]
        ahead = len(request.reader.read) + len(request.reader.scratch) - len(request.committed)
        within = self.bounds is None or ahead <= self.bounds.scratch_tokens
        hold(within, "bounds", f"the draft holds {ahead} tokens beyond the committed ones")
        same = request.scratch.read == len(request.reader.read)
        same = same and list(map(list, followed.asked)) == below
        hold(same, "drafted", "the draft's scratch has other nodes than the passes gave it")
        if order.catch_up and order.top_k and not request.schedule.listens:
            all_read = request.reader.read == request.committed
            hold(all_read, "drafted", "a draft pass over committed tokens does not read them all")
        drafted = self.answer(session, order, paths)
        rows = zip(paths, drafted.tokens, drafted.log_probs, strict=order.top_k > 0)
        for path, tokens, shares in rows:
            there = {int(t) for t, s in zip(tokens, shares, strict=True) if -inf < s >= self._least}
            request.offered.setdefault(self._place(tuple(path)), set()).update(there)
        return drafted

    def _place(self, path: tuple[int, ...]) -> tuple[int, ...] | int:
        return len(path) if self.sharing.block else path

    def answer(self, session: int, order: DraftPass, paths: list[list[int]]) -> Drafted:
        """The draft's candidates for each path; a block's are those along its own text."""
        levels, own = self.sharing.block, [*self.requests[session].reader.read]
        if not levels:
            return candidates(self.draft, order, paths)
        last = len(own) + levels
        deepest = max(map(len, paths))
        hold(deepest <= last, "blocks", "the draft is asked about a node below its block")
        while len(own) < last:
            own.append(_ranked(self.draft, tuple(own))[0][0])
        found = candidates(self.draft, order, [own[: len(path)] for path in paths])
        said = zip(paths, found.log_probs, strict=order.top_k > 0)
        log_probs = [row if len(path) < last else [-inf] * len(row) for path, row in said]
        return Drafted(order.ticket, found.tokens, log_probs)

    # --- drafts of drafts ------------------------------------------------------------------------

    def _hear(self, sender: str, receiver: str) -> None:
        """Let a message come to a draft that is not busy with a pass, or to a draft server."""
        message = self._letters[sender, receiver].popleft()
        if self.story is not None:
            self.story.came(sender, receiver, message)
        if isinstance(message, Text | Close) and receiver in self.levels:
            self._tell(receiver, self.levels[receiver].desk.hear(message))
        else:
            self.servers[int(receiver.removeprefix("draft"))].desk.receive(message, None, self._now)

    def _tell(self, sender: str, letters: Letters) -> None:
        for receivers, message in letters:
            for each in receivers:
                self._letters[sender, each].append(message)

    def _go_on(self, name: str) -> None:
        """Let a draft of a draft end its pass, or begin one."""
        level = self.levels[name]
        if level.drafted is not None:
            ended, level.drafted = level.drafted, None
            self._tell(name, level.desk.drafted(*ended))
        elif (work := level.desk.next()) is not None:
            ((session, order),) = work.passes
            reader, committed = level.readers[session], self.requests[session].committed
            paths, most = reader.ask(order, committed), level.desk.most
            ahead = len(reader.read) + len(reader.scratch) - len(committed)
            hold(ahead <= most, "bounds", f"{name} is {ahead} tokens ahead, of {most}")
            level.drafted = work, candidates(level.draft, order, paths)

    # --- the end ---------------------------------------------------------------------------------

    def lose(self, pipeline: int) -> None:
        """A worker of the pipeline is gone, and every draft server hears of it."""
        self.lost.add(pipeline)
        for number, server in enumerate(self.servers):
            orders = server.desk.lose(pipeline, f"pipeline{pipeline}.stage1")
            self.carry_out(number, orders)

    def assert_waste(self, session: int) -> None:
        """The rounds' records agree with the text and with what was fed."""
        request = self.requests[session]
        rounds = request.schedule.rounds
        behind_prompt = len(request.text) - 1
        counted = sum(r.tokens for r in rounds) == behind_prompt
        hold(counted, "rounds", f"the rounds' tokens are not the {behind_prompt} of the text")
        for r in rounds:
            hold(sum(r.committed_per_step) == r.tokens, "rounds", "steps do not add up to a round")
            hold(len(r.committed_per_step) == r.steps > 0, "rounds", "a round miscounts its steps")
            hold(r.accepted <= r.fed, "rounds", "a round accepts more nodes than it fed")
        uncut = all(r.tokens == r.accepted for r in rounds[:-1])
        hold(uncut, "rounds", "a round before the last one commits other tokens than it accepts")
        fed = len(self.pipelines[request.pipeline].ledger(session).tokens)
        if fed:  # plain decoding feeds committed rows alone
            hold(sum(r.fed for r in rounds) == fed, "rounds", "the rounds miscount the fed nodes")

    def assert_freed(self) -> None:
        """With nothing under way, nobody knows anything of a finished request."""
        for server in self.servers:
            hold(not server.desk.sessions, "freed", "a draft server keeps a finished request")
            hold(server.desk.at_rest, "freed", "a draft server has work for finished requests")
        for pipeline in self.pipelines:
            pipeline.assert_freed()
        left = [name for name, level in self.levels.items() if level.desk.levels]
        hold(not left, "freed", f"{left} keep a finished request")
