"""Control lines whose other end stops anywhere: noticed in time, and nobody else is ended."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.deployments import small_deployment, worker_roles
from treepipe.executor.hosts.fork_server import WorkerLines
from treepipe.executor.run import pulse
from treepipe.executor.run.crew import Crew
from treepipe.executor.run.lines import ControlLines
from treepipe.executor.run.pulse import LostWorkerError
from treepipe.executor.wire.control import (
    ANSWERS,
    ORDERS,
    Ask,
    Holdings,
    Lacks,
    Listen,
    Loaded,
    Notes,
)
from treepipe.executor.wire.frames import HEAD, Frames
from treepipe.executor.wire.session import AT_WORK
from treepipe.results.trace import Span
from treepipe.scenario.faults import Faults

TIMEOUT_MS = 1000.0
NAMES = "draft0", "pipeline0.stage1"

notes = st.builds(
    Notes,
    st.lists(st.integers(0, 99).map(lambda n: Span("draft0", "draft", 1.0, 2.0, n)), max_size=3),
    st.just([]),
    st.dictionaries(st.text(max_size=9), st.integers(0, 9), max_size=3),
)
answers = st.one_of(notes, st.builds(Holdings, st.integers(0, 2**40), st.integers(0, 9)))


def framed(*messages: bytes) -> bytes:
    return b"".join(len(each).to_bytes(8, "big") + each for each in messages)


# --- one line ------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40), max_size=4), st.data())
def test_messages_are_whole_or_not_there_wherever_the_other_end_stops(
    messages: list[bytes], data: st.DataObject
) -> None:
    """Nothing that is called waits: the other end says no more, then it is closed."""
    whole = framed(*messages)
    cut = data.draw(st.integers(0, len(whole)))
    ends = [len(framed(*messages[: n + 1])) for n in range(len(messages))]
    near, far = socket.socketpair()
    with closing(Frames(near)) as line:
        far.sendall(whole[:cut])
        line.read()
        for message, end in zip(messages, ends, strict=True):
            assert line.take() == (message if end <= cut else None)
            if end > cut:
                break
        assert line.take() is None
        far.close()
        line.read()
        for _ in range(2):
            with pytest.raises(EOFError):
                line.take()


def test_what_the_line_does_not_take_is_sent_later() -> None:
    near, far = socket.socketpair()
    with closing(Frames(near)) as one, closing(Frames(far)) as other:
        sent = [bytes([number]) * 2**20 for number in range(3)]
        for each in sent:
            one.put(each)
        assert one.left_bytes > 2**21
        found = list[bytes]()
        while len(found) < len(sent):
            other.read()
            one.flush()
            if (message := other.take()) is not None:
                found.append(message)
        assert (found, one.left_bytes) == (sent, 0)


# --- all lines -----------------------------------------------------------------------------------


class _World:
    """Control lines to workers of which a test has the other ends, in time that it sets."""

    def __init__(self, stack: ExitStack) -> None:
        self.ms = 0.0
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(pulse, "now_ms", lambda: self.ms)
        patch.setattr("treepipe.executor.run.lines.now_ms", lambda: self.ms)
        self.heard = list[tuple[str, Any]]()
        self.lines = ControlLines(TIMEOUT_MS, {Loaded: lambda *news: self.heard.append(news)})
        stack.callback(self.lines.close)
        self.far, self._beats = dict[str, socket.socket](), dict[str, Any]()
        for name in NAMES:
            near, self.far[name] = socket.socketpair()
            stack.enter_context(self.far[name])
            self.far[name].setblocking(False)
            process: Any = SimpleNamespace(join=lambda within_s: None, exitcode=-9)
            look, self._beats[name] = Pipe(duplex=False)
            stack.enter_context(self._beats[name])
            self.lines.add(name, WorkerLines(process, Frames(near), look))
            self.lines.watch.serves(name)

    def look(self, *alive: str) -> None:
        """Time passes until the next look; these show that they live."""
        for name in alive:
            os.write(self._beats[name].fileno(), AT_WORK)
        self.ms += self.lines.watch.look_ms
        self.lines.listen(until_ms=0.0)

    def work_on(self, name: str) -> None:
        """Only this one takes orders and answers from now on."""
        while self.ms < 2 * TIMEOUT_MS:
            self.lines.order(name, Ask("Notes"))
            assert ORDERS.decoded(self.far[name].recv(2**20)[HEAD.size :]) == Ask("Notes")
            self.far[name].sendall(framed(ANSWERS.encoded(Loaded())))
            self.look(name)


@pytest.fixture
def world() -> Iterator[_World]:
    with ExitStack() as stack:
        yield _World(stack)


@given(answers, st.data())
def test_a_worker_that_stops_in_any_answer_is_named_in_time(answer: Any, data: Any) -> None:
    """The other one is heard meanwhile, and goes on."""
    message = framed(ANSWERS.encoded(answer))
    cut = data.draw(st.integers(0, len(message) - 1))
    stopped, other = data.draw(st.permutations(NAMES))
    with ExitStack() as stack:
        world = _World(stack)
        world.far[stopped].sendall(message[:cut])
        world.look(*NAMES)
        with pytest.raises(LostWorkerError, match=rf"^{stopped} has not answered") as lost:
            world.work_on(other)
        assert (lost.value.name, lost.value.kind) == (stopped, "stop")
        assert abs(world.ms - TIMEOUT_MS) <= world.lines.watch.look_ms
        assert len(world.heard) >= world.ms / world.lines.watch.look_ms - 2, "the other's answers"
        world.lines.forget(stopped)
        world.far[other].sendall(framed(ANSWERS.encoded(answer)))
        world.look(other)
        assert world.lines.take(other, type(answer)) == answer


@given(answers, st.data())
def test_a_worker_that_dies_in_any_answer_is_one_sentence(answer: Any, data: Any) -> None:
    message = framed(ANSWERS.encoded(answer))
    with ExitStack() as stack:
        world = _World(stack)
        world.far["draft0"].sendall(message[: data.draw(st.integers(0, len(message) - 1))])
        world.far["draft0"].close()
        with pytest.raises(LostWorkerError, match=r"^draft0 died \(exit code -9\)$"):
            world.lines.answer("draft0", Holdings)


def test_a_worker_that_takes_no_order_is_named_in_time(world: _World) -> None:
    """Others get theirs meanwhile, and are heard."""
    stopped, other = NAMES
    world.lines.order(stopped, Listen("a" * 2**22))
    with pytest.raises(LostWorkerError, match=rf"^{stopped} has not answered"):
        world.work_on(other)
    assert world.ms <= TIMEOUT_MS


def test_what_came_before_a_failure_is_heard_after_it(world: _World) -> None:
    """One read takes in several answers: none of them is lost where the first one is bad news."""

    def cut_off(name: str, lacks: Lacks) -> None:
        raise LostWorkerError(name, "is cut off", "cut")

    world.lines._news = {Lacks: cut_off}
    said = [Lacks("draft0", "pipeline0.stage1", 7), Holdings(1, 2)]
    world.far["draft0"].sendall(framed(*map(ANSWERS.encoded, said)))
    with pytest.raises(LostWorkerError, match="is cut off"):
        world.lines.answer("draft0", Holdings)
    assert world.lines.answer("draft0", Holdings) == said[1]


@pytest.mark.parametrize("spares", [2, 1])
def test_workers_that_die_while_all_start_take_the_spares_that_there_are(
    monkeypatch: pytest.MonkeyPatch, spares: int
) -> None:
    """Two of them, one after the other."""
    deployment = replace(small_deployment("pp"), faults=Faults(spares=spares))
    crew = Crew(worker_roles((Path("target"), Path("draft")), deployment), deployment)
    losses = [LostWorkerError(name, "died") for name in NAMES]
    dying, secrets = iter(losses), set[bytes]()

    def start(self: Crew) -> None:
        secrets.add(self.roles[0].token)
        if (lost := next(dying, None)) is not None:
            raise lost

    monkeypatch.setattr(Crew, "_start_all", start)
    with pytest.raises(LostWorkerError, match=NAMES[1]) if spares < 2 else nullcontext():
        crew.start()
    assert [*crew.replaced] == (losses if spares == 2 else [])
    assert len(secrets) == spares + 1, "each attempt has its own"
    crew.close()
