"""Coordinator and workers in memory: a network that loses, doubles and delays, hosts whose workers
are scripted, and a clock that goes on when somebody waits.

Coordinator (lines, crew, recovery) and the workers' ends of their lines are the real ones; only
transport, processes and decoding are replaced.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from treepipe.core.failover import FaultKind, beat_ms
from treepipe.core.recovery import CommitReporter
from treepipe.core.requests import RUN_ENDED, RequestTrace
from treepipe.executor.hosts.processes import Processes
from treepipe.executor.wire import records
from treepipe.executor.wire.dialled import DialledLine, LeaveError
from treepipe.executor.wire.line import BrokenLineError
from treepipe.results.recording import RecordedRequest
from treepipe.scenario.deployment import RequestSpec

WAY_MS, TICK_MS = 1.0, 20.0
"""Time of a message, and of a token."""
MOST_STEPS = 50_000
"""More than any run of these tests takes, unless it hangs."""
RUN = ("crew", "fleet", "lines", "pulse", "run_requests")
CLOCKED = ("wire.dialled", *(f"run.{module}" for module in RUN))
"""Modules that read the clock."""


def text_of(spec: RequestSpec) -> tuple[int, ...]:
    """The text that a scripted draft server gives a request."""
    return tuple((sum(spec.prompt) + 7 * n) % 97 for n in range(spec.max_new_tokens))


class Channel:
    """One end of a connection in memory."""

    def __init__(self, network: Network, address: str) -> None:
        self.network, self.address = network, address
        self.came = deque[Sequence[bytes]]()
        self.peers = dict[bytes, Channel]()  # of a listening end
        self.there: Channel | None = None  # of a connecting end
        self.name, self.owner = b"", ""

    def send(self, *frames: bytes) -> None:
        if self.there is None:
            peer, data = frames
            self.network.post(self.peers[peer], [data], self.peers[peer].owner)
        else:
            self.network.post(self.there, [self.name, *frames], self.owner)

    def receive(self) -> Sequence[memoryview] | None:
        return [memoryview(each) for each in self.came.popleft()] if self.came else None

    @property
    def waiting(self) -> bool:
        return bool(self.came)

    def poll(self, within_ms: int | None, others: Sequence[Any] = ()) -> bool:
        assert within_ms is not None, "a coordinator looks now and then"
        self.network.wait(within_ms, lambda: any(each.waiting for each in (self, *others)))
        return any(each.waiting for each in others)

    def close(self, linger_ms: int = 0) -> None:
        """Leave what was sent under way; nothing comes here any more."""
        if self.there is not None:
            del self.there.peers[self.name]


class Transport:
    """Channels of one end; the coordinator's transport listens, a worker's connects."""

    def __init__(self, network: Network, owner: str = "") -> None:
        self._network, self._owner, self.refused = network, owner, 0
        self._opened = list[str]()

    def listen(self, host: str, port: int, *_: int, answers: bool) -> Channel:
        address = f"memory{next(self._network.numbers)}"
        self._opened.append(address)
        self._network.listening[address] = Channel(self._network, address)
        return self._network.listening[address]

    def connect(self, address: str, most_bytes: int, *, asks: bool) -> Channel:
        made = Channel(self._network, address)
        made.name, made.owner = str(next(self._network.numbers)).encode(), self._owner
        made.there = self._network.listening.get(address, Channel(self._network, "nowhere"))
        made.there.peers[made.name] = made
        return made

    def close(self, linger_ms: int = 0) -> None:
        for address in self._opened:
            del self._network.listening[address]


class Network:
    """Messages under way, things that happen at a time, and the clock.

    Attributes:
        ms: the time.
        fates: what happens to the n-th message: "lose", "double", or a delay in ms.
        cut: workers whose messages are lost, both ways.
        happened: how often each fate and fault did.
    """

    def __init__(self, fates: Mapping[int, str | float] | None = None) -> None:
        self.ms, self.fates, self.cut = 0.0, dict(fates or {}), set[str]()
        self.listening, self.numbers = dict[str, Channel](), itertools.count()
        self.happened = Counter[str]()
        self._events = list[tuple[float, int, Callable[[], object]]]()
        self._sent = self._steps = 0

    def at(self, ms: float, act: Callable[[], object]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._events, (ms, next(self.numbers), act))

    def post(self, channel: Channel, frames: Sequence[bytes], owner: str) -> None:
        fate, self._sent = self.fates.get(self._sent), self._sent + 1
        if owner in self.cut:
            return
        if fate is not None:
            self.happened[fate if isinstance(fate, str) else "delay"] += 1
        for _ in range({"lose": 0, "double": 2}.get(str(fate), 1)):
            late_ms = fate if isinstance(fate, float) else 0.0
            copied = [bytes(each) for each in frames]
            self.at(self.ms + WAY_MS + late_ms, partial(channel.came.append, copied))

    def wait(self, within_ms: float, ready: Callable[[], bool]) -> None:
        """Let time go on until something is ready, at most so long."""
        until = self.ms + within_ms
        while not ready() and self._events and self._events[0][0] <= until:
            self._steps += 1
            assert self._steps < MOST_STEPS, "it hangs"
            at, _, act = heapq.heappop(self._events)
            self.ms = max(self.ms, at)
            act()
        if not ready():
            self._steps += 1
            assert self._steps < MOST_STEPS, "it hangs"
            self.ms = max(self.ms, until)

    def sleep_until(self, at_ms: float) -> None:
        self.wait(max(0.0, at_ms - self.ms), lambda: False)


class Worker:
    """A scripted worker on the real end of a line: it serves as soon as an order comes, and a draft
    server commits a token of each open request at a time."""

    def __init__(self, host: MemoryHost, post: records.Post) -> None:
        self.host, self.name, self.network = host, post.name, host.network
        self.line, self.stopped, self.loaded = DialledLine(post), False, False
        self.say_beat, self._beat_ms = self.line.beats(), beat_ms(post.timeout_ms)
        self.open = dict[int, tuple[records.Open, list[tuple[float, int]], list[int]]]()
        self.reporter = CommitReporter()
        self.beat()
        self.tick()

    @property
    def alive(self) -> bool:
        return self.host.workers.get(self.name) is self

    def beat(self) -> None:
        if self.alive or self.name not in self.host.workers:
            if not self.stopped:
                self.say_beat(not self.open)
            self.network.at(self.network.ms + self._beat_ms, self._if_alive(self.beat))

    def _if_alive(self, act: Callable[[], object]) -> Callable[[], object]:
        return lambda: act() if self.alive else None

    def tick(self) -> None:
        """Serve what has come, then decode."""
        if not self.stopped:
            try:
                while (order := self.line.take()) is not None:
                    self.obey(order)
            except LeaveError:
                self.host.over(self.name, 0)
                return
            except (BrokenLineError, Exception) as error:  # as the body of a worker does
                self.line.say(records.Failed(str(error), by_user=False))
                self.host.over(self.name, 3)
                return
            for session in [*self.open]:
                self.decode(session)
            for report in self.reporter.due(self.network.ms):
                self.line.say(report)
        self.network.at(self.network.ms + TICK_MS, self._if_alive(self.tick))

    def obey(self, order: Any) -> None:
        say = self.line.say
        match order:
            case records.Listen():
                say(records.Listening(f"port of {self.name}"))
            case records.Connect():
                say(records.Loaded())
            case records.Open(held):
                known = [*held.trace.emitted], [*held.trace.tokens]
                self.open[held.session] = (order, *known)
            case records.Lose(pipeline):
                for session, (request, _, _) in [*self.open.items()]:
                    if request.held.assignment.pipeline == pipeline:
                        self.finish(session, "worker lost")
            case records.Ask("OpenTexts"):
                self.reporter.end()
                say(records.OpenTexts([self.state(each, RUN_ENDED) for each in self.open]))
            case records.Ask("Notes"):
                say(records.Notes([], [], {}))
            case records.Ask("Holdings"):
                say(records.Holdings(0, len(self.open)))

    def decode(self, session: int) -> None:
        request, emitted, tokens = self.open[session]
        text = text_of(request.spec)
        if len(tokens) < len(text):
            token = text[len(tokens)]
            emitted.append((self.network.ms, 1))
            tokens.append(token)
            self.reporter.emitted(self.network.ms, [(session, (token,))])
        if len(tokens) == len(text):
            self.finish(session, "length")

    def state(self, session: int, reason: str) -> records.Finished:
        request, emitted, tokens = self.open[session]
        own, prompt = request.held.trace.session, len(request.spec.prompt)
        times = request.held.trace.started_ms, self.network.ms
        pipeline = request.held.assignment.pipeline
        text = tuple(emitted), tuple(tokens), ()
        trace = RequestTrace(own, prompt, *times, *text, reason, pipeline)
        return records.Finished(trace, RecordedRequest(prompt, tuple(tokens)))

    def finish(self, session: int, reason: str) -> None:
        self.line.say(self.state(session, reason))
        self.reporter.over(self.open.pop(session)[0].held.trace.session)


class MemoryHost(Processes):
    """A host whose processes are scripted workers.

    Attributes:
        workers: those that run, by name.
        started: how many there were.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network, self.workers, self.started = network, dict[str, Worker](), 0
        self._over = list[tuple[str, int | None]]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.workers)

    @property
    def watched(self) -> list[Any]:
        return [self]

    @property
    def waiting(self) -> bool:
        return bool(self._over)

    def start(self, post: records.Post) -> None:
        self.started += 1
        self.network.cut.discard(post.name)
        self.workers[post.name] = Worker(self, post)

    def pid(self, name: str) -> int | None:
        return None

    def kill(self, name: str) -> None:
        if name in self.workers:
            self.over(name, -9)

    def over(self, name: str, exit_code: int) -> None:
        del self.workers[name]
        self._over.append((name, exit_code))

    def ended(self) -> list[tuple[str, int | None]]:
        over, self._over = self._over, []
        return over

    def end(self) -> list[tuple[str, int | None]]:
        for name in [*self.workers]:
            self.kill(name)
        return self.ended()

    def fail(self, name: str, kind: FaultKind) -> None:
        """Let a worker fail now, if it runs."""
        if (worker := self.workers.get(name)) is None:
            return
        self.network.happened[kind] += 1
        if kind == "kill":
            self.kill(name)
        elif kind == "stop":
            worker.stopped = True
        else:
            self.network.cut.add(name)


@contextmanager
def in_memory(network: Network) -> Iterator[None]:
    """Lines and clocks of the coordinator and of workers are the network's."""
    with pytest.MonkeyPatch.context() as patch:
        for module in CLOCKED:
            patch.setattr(f"treepipe.executor.{module}.now_ms", lambda: network.ms)
        patch.setattr("treepipe.executor.run.run_requests.wait_until", network.sleep_until)
        patch.setattr("treepipe.executor.run.lines.ZeroMQ", lambda key: Transport(network))
        dialled = "treepipe.executor.wire.dialled"
        first = DialledLine.__init__

        def dial(line: DialledLine, post: records.Post) -> None:
            patch.setattr(f"{dialled}.ZeroMQ", lambda key: Transport(network, post.name))
            first(line, post)

        patch.setattr(DialledLine, "__init__", dial)
        yield
