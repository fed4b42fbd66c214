"""Messages that no worker of the run sent: dropped, counted, and without effect."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import zmq
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.examples import THOROUGH
from tests.worlds.hosts import free_port
from tests.worlds.real_runs import assert_greedy
from treepipe.core.messages import Beat, Close, Flight, MessageLimits, Segment, Word
from treepipe.executor.run.controller import Controller
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.envelope import KINDS, TOKEN_BYTES, Envelope, Gate, Ping
from treepipe.executor.wire.mailbox import MOST_WAITING, Inbox, Outbox
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.results.trace import Trace
from treepipe.testing.random_model import VOCABULARY

TOKEN = bytes(range(TOKEN_BYTES))
WIDTH, ROWS = 32, 2
SEGMENT = Segment(1, 7, 0, 0, 0, (3, 4), (0, 1))
FLIGHT = Flight(0, 0, (SEGMENT,))
HIDDEN = torch.zeros(ROWS, WIDTH)
EVERY_KIND = (Flight, Beat, Close)


def a_gate(kinds: tuple[type, ...] = EVERY_KIND) -> Gate:
    names = frozenset(["draft0"]), frozenset(["stage1"])
    limits = MessageLimits(VOCABULARY, entries=300, rows=300, drafts=1, pipelines=1)
    return Gate(TOKEN, *names, kinds, WIDTH, most_rows=300, limits=limits)


@pytest.fixture
def connect() -> Iterator[Callable[..., Any]]:
    """A stranger's socket to an address, which sends as much as ``waiting`` messages at once."""
    made = list[Any]()  # the context closes them
    with zmq.Context() as context:

        def connected(address: str, waiting: int = 0) -> Any:
            socket = context.socket(zmq.PUSH)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, waiting)
            socket.connect(address)
            made.append(socket)
            return socket

        yield connected
        context.destroy()


@pytest.fixture
def transport() -> Iterator[ZeroMQ]:
    made = ZeroMQ()
    yield made
    made.close()


class _Wiretap:
    """Takes the place of a channel: what an outbox would have sent."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def send(self, *frames: Any) -> None:
        self.sent.append([bytes(frames[0]), *map(bytearray, frames[1:])])  # writable, as received


def frames_of(
    body: Flight | Beat | Close | Ping,
    hidden: torch.Tensor | None,
    transport: ZeroMQ,
    ends: tuple[str, str] = ("draft0", "stage1"),
    token: bytes = TOKEN,
) -> list[bytes]:
    """A message as an outbox writes it."""
    outbox, tap = Outbox(transport, f"tcp://{LOOPBACK}:9", ends, None, token), _Wiretap()
    outbox.close()
    outbox._channel = tap  # type: ignore[assignment]
    outbox.send(body, now_ms(), 0, hidden)
    return tap.sent[0]


NAMES = [each.name for each in fields(Envelope)]
BODY = TOKEN_BYTES + 1
"""Where a header's values begin, behind the token and the mark of its kind."""


def changed(frames: list[bytes], **values: object) -> list[bytes]:
    """The same with other values in its header."""
    found = dict(zip(NAMES, msgspec.msgpack.decode(frames[0][BODY:]), strict=True))
    header = msgspec.msgpack.encode([*{**found, **values}.values()])
    return [frames[0][:BODY] + header, *frames[1:]]


def changed_segment(frames: list[bytes], **values: object) -> list[bytes]:
    body = msgspec.msgpack.decode(frames[0][BODY:])[NAMES.index("body")]
    body["segments"][0].update(values)
    return changed(frames, body=body)


def changed_word(frames: list[bytes], **values: object) -> list[bytes]:
    word = {"session": 1, "round": 0, "number": 0, "retained": [0], "accepted": 1}
    draft = values.pop("draft", 0)
    whole = {**word, "ends_round": True, "lock_step": False, **values}
    beat = [TOKEN + bytes([KINDS.index(Beat)]) + frames[0][BODY:]]
    return changed(beat, body={"draft": draft, "words": [whole]}, rows=0, width=0)


DEEP = msgspec.Raw(b"\x91" * 20_000 + b"\xc0")
"""A list in a list, and so on."""

Attack = Callable[[list[bytes]], list[bytes]]
FORGED = "does not carry the run's token"
BROKEN = "has a broken header"
SHAPE = "does not hold the hidden states of its rows"
TIMES = "has impossible times"
ENDS = "names other ends"
LIMIT = "holds numbers beyond the limits of this run"
ATTACKS: dict[str, tuple[str, Attack]] = {
    "text": (FORGED, lambda frames: [b"GET / HTTP/1.1\r\n\r\n"]),
    "no kind": (BROKEN, lambda f: [TOKEN + b"\xff" + f[0][BODY:], *f[1:]]),
    "another kind": (BROKEN, lambda f: [TOKEN + b"\1" + f[0][BODY:], *f[1:]]),
    "a name that is no text": (
        BROKEN,
        lambda frames: [frames[0].replace(b"draft0", b"\xffraft0"), *frames[1:]],
    ),
    "a deep nest": (BROKEN, lambda f: [f[0][:BODY] + b"\x91" * 20_000]),
    "a deep nest where nothing belongs": (BROKEN, lambda f: changed_segment(f, more=DEEP)),
    "no body": (BROKEN, lambda frames: changed(frames, body=None)),
    "a position less than tokens": (BROKEN, lambda f: changed_segment(f, positions=[0])),
    "text for tokens": (BROKEN, lambda frames: changed_segment(frames, tokens=["a", "b"])),
    "more accepted than kept": (BROKEN, lambda frames: changed_word(frames, accepted=5)),
    "a round that ends with live nodes": (BROKEN, lambda f: changed_word(f, accepted=0)),
    "due at NaN": (TIMES, lambda frames: changed(frames, due_ms=float("nan"))),
    "due in 1e25 ms": (TIMES, lambda frames: changed(frames, due_ms=1e25)),
    "due before it was sent": (TIMES, lambda frames: changed(frames, due_ms=0.0)),
    "sent before time began": (TIMES, lambda frames: changed(frames, sent_ms=-1e9)),
    "another sender": (ENDS, lambda frames: changed(frames, sender="stage9")),
    "another receiver": (ENDS, lambda frames: changed(frames, receiver="nobody")),
    "another width": (SHAPE, lambda frames: changed(frames, width=WIDTH // 2, rows=4)),
    "more rows than tokens": (SHAPE, lambda frames: changed(frames, rows=3)),
    "too few floats": (SHAPE, lambda frames: [frames[0], frames[1][:-4]]),
    "no floats": (SHAPE, lambda frames: frames[:1]),
    "three frames": (SHAPE, lambda frames: [*frames, b"more"]),
    "a token beyond the vocabulary": (LIMIT, lambda f: changed_segment(f, tokens=[3, VOCABULARY])),
    "a negative token": (LIMIT, lambda frames: changed_segment(frames, tokens=[-1, 3])),
    "a position of another world": (LIMIT, lambda f: changed_segment(f, positions=[0, 2**40])),
    "a parent that is not there": (LIMIT, lambda f: changed_segment(f, parents=[-1, 9])),
    "a parent before all": (LIMIT, lambda f: changed_segment(f, parents=[-1, -2])),
    "a negative session": (LIMIT, lambda frames: changed_segment(frames, session=-1)),
    "a session beyond all": (LIMIT, lambda frames: changed_segment(frames, session=2**63)),
    "a start beyond the cache": (LIMIT, lambda frames: changed_segment(frames, start=10**9)),
    "an unknown draft": (LIMIT, lambda f: changed_word(f, draft=3)),
    "a node that no tree has": (LIMIT, lambda f: changed_word(f, retained=[10**9])),
    "a word before the first": (LIMIT, lambda f: changed_word(f, number=-1)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_message_is_dropped_with_its_reason(transport: ZeroMQ, name: str) -> None:
    reason, attack = ATTACKS[name]
    inbox = Inbox(transport, 0, "stage1", gate=a_gate())
    good = frames_of(FLIGHT, HIDDEN, transport)
    inbox.take(attack(good))
    assert inbox.dropped == {reason: 1}
    assert inbox.get(now_ms()) is None
    inbox.take(good)
    received = inbox.get(now_ms())
    assert received is not None, "the next good one comes in"
    assert received.envelope.body == FLIGHT
    assert torch.equal(received.hidden, HIDDEN)  # type: ignore[arg-type]


@given(st.data())
def test_noise_and_what_is_cut_off_are_dropped(data: st.DataObject) -> None:
    """Without the whole token nothing is read, however good the rest is."""
    with closing(ZeroMQ()) as transport:
        header, states = frames_of(FLIGHT, HIDDEN, transport)
        place = data.draw(st.integers(0, TOKEN_BYTES - 1))
        other = header[place] ^ data.draw(st.integers(1, 255))
        forged = header[:place] + bytes([other]) + header[place + 1 :]
        noise = TOKEN + data.draw(st.binary(max_size=300))
        cut = header[: data.draw(st.integers(0, len(header) - 1))]
        inbox = Inbox(transport, 0, "stage1", gate=a_gate())
        for each in (forged, noise, cut):
            inbox.take([each, states])
        assert inbox.dropped[FORGED] + inbox.dropped[BROKEN] == 3
        assert inbox.dropped[FORGED] == 1 + (len(cut) < TOKEN_BYTES)


def test_a_message_comes_in_once(transport: ZeroMQ) -> None:
    inbox = Inbox(transport, 0, "stage1", gate=a_gate())
    good = frames_of(FLIGHT, HIDDEN, transport)
    inbox.take(good)
    inbox.take(good)
    assert inbox.dropped == {"has come before": 1}
    assert inbox.count == 1


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (Close(1), (Flight,)),
        (Beat(0, (Word(1, 0, 0, None, 0, False, False),)), (Flight,)),
        (Ping("answer"), EVERY_KIND),
    ],
)
def test_a_worker_takes_only_what_is_sent_to_its_kind(
    transport: ZeroMQ, body: Close | Beat | Ping, kinds: tuple[type, ...]
) -> None:
    """A draft server takes flights only; a ping is for measured links."""
    inbox = Inbox(transport, 0, "stage1", gate=a_gate(kinds))
    inbox.take(frames_of(body, None, transport))
    assert inbox.dropped == {"is of a kind that this worker never gets": 1}


def test_outside_a_run_a_broken_message_is_dropped_too(transport: ZeroMQ) -> None:
    inbox = Inbox(transport, 0, "calibration")
    (header,) = frames_of(Ping("answer"), None, transport, token=b"")
    for each in (b"GET / HTTP/1.1\r\n\r\n", header.replace(b"answer", b"shout"), header):
        inbox.take([each])
    received = inbox.get(now_ms())
    assert received is not None
    assert received.envelope.body == Ping("answer")
    assert (inbox.dropped, inbox.count) == ({BROKEN: 2}, 1)


def test_a_port_holds_so_many_messages_of_a_connection(connect: Any, transport: ZeroMQ) -> None:
    """More stay with who sends them, however fast that is."""
    gate = a_gate()
    inbox, longest, sent = Inbox(transport, 0, "stage1", gate=gate), bytes(gate.most_bytes), 0
    flood = connect(inbox.address, 1)
    while flood.poll(500, zmq.POLLOUT):
        flood.send(longest)
        sent += 1
        assert sent < 2 * MOST_WAITING
    assert sent >= MOST_WAITING


def raw(address: str, data: bytes) -> socket.socket:
    """A connection that says this, and stays open."""
    if address.startswith("ipc://"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(5)
        connection.connect(address.replace("ipc://@", "\0"))
    else:
        host, port = address.removeprefix("tcp://").split(":")
        connection = socket.create_connection((host, int(port)), timeout=5)
    connection.settimeout(0.5)
    with contextlib.suppress(OSError):  # cut, as it may be
        connection.sendall(data)
    return connection


def assert_a_message_comes_in(transport: ZeroMQ, inbox: Inbox) -> None:
    """Whatever else comes with it."""
    outbox = Outbox(transport, inbox.address, ("draft0", "stage1"), None, TOKEN)
    outbox.send(FLIGHT, now_ms(), 0, HIDDEN)
    received = inbox.get(now_ms() + 10_000)
    assert received is not None
    assert received.envelope.body == FLIGHT


HUGE_FRAME = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00NULL".ljust(54, b"\0")


@pytest.mark.parametrize("port", [0, None], ids=["this host alone", "TCP"])
@pytest.mark.parametrize(
    "data",
    [b"A" * 2**20, b"\x00" * 2**20, np.random.default_rng(1).bytes(2**20), HUGE_FRAME, b""],
    ids=["letters", "zeros", "noise", "half a greeting", "silence"],
)
def test_bytes_without_a_handshake_do_not_hold_up_a_message(
    transport: ZeroMQ, data: bytes, port: int | None
) -> None:
    inbox = Inbox(transport, free_port() if port is None else port, "stage1", gate=a_gate())
    strangers = [raw(inbox.address, data) for _ in range(20 if not data else 1)]
    assert_a_message_comes_in(transport, inbox)
    for stranger in strangers:
        stranger.close()


def test_a_frame_longer_than_the_deployment_needs_is_cut_off(
    connect: Any, transport: ZeroMQ
) -> None:
    gate = a_gate()
    inbox = Inbox(transport, 0, "stage1", gate=gate)
    connect(inbox.address).send(bytes(gate.most_bytes + 1))
    assert_a_message_comes_in(transport, inbox)
    assert (inbox.count, inbox.dropped) == (1, {}), "the frame never came in"


ROUNDS = 600 if THOROUGH else 4
"""So often all attacks come to each worker of a run."""


@pytest.mark.processes
def test_a_run_under_attack_ends_with_its_text_and_a_warning(
    pair: tuple[Path, Path], connect: Any, transport: ZeroMQ
) -> None:
    """All at once, at every worker, while it decodes; every message is counted."""
    deployment, base = small_deployment("flowspec"), free_port()
    roles = worker_roles(pair, deployment, emulate=False, vocabulary=VOCABULARY)
    roles = [replace(role, port=base + n) for n, role in enumerate(roles)]
    addresses = {role.placed.name: f"tcp://{LOOPBACK}:{role.port}" for role in roles}
    strangers = list[Any]()

    def attack(token: bytes) -> None:
        for name, address in addresses.items():
            good = frames_of(FLIGHT, HIDDEN, transport, ("draft0", name), token)
            strangers.append(raw(address, b"A" * 2**20))
            pusher = connect(address)
            for _, (_, spoiled) in product(range(ROUNDS), ATTACKS.values()):
                pusher.send_multipart(spoiled(good))

    with Controller(roles, deployment) as running:
        attacker = threading.Thread(target=attack, args=(running.roles[0].token,))
        attacker.start()
        traces = [running.run(deployment)[0]]
        attacker.join()
        while _dropped(traces) < ROUNDS * len(ATTACKS) * len(addresses):
            traces.append(running.run(deployment)[0])
    for stranger in strangers:
        stranger.close()
    for trace in traces:
        assert_greedy(trace, deployment, pair[0])
    said = [sentence for trace in traces for sentence in trace.warnings]
    for name in addresses:
        for reason in (FORGED, BROKEN):
            assert any(f"were dropped by {name}, each of which {reason}" in each for each in said)


def _dropped(traces: list[Trace]) -> int:
    said = [re.match(r"(\d+) foreign", each) for trace in traces for each in trace.warnings]
    return sum(int(each[1]) for each in said if each is not None)
