"""The cost of a message and of a step of a pipeline beyond compute: part of ``benchmarks.py``.

Other processes of this machine affect all figures of a run alike; therefore each figure comes with
its minimum beside its median, and with bare ZeroMQ messages of the same bytes as a yardstick.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import torch
import zmq
from zmq.auth import CURVE_ALLOW_ANY
from zmq.auth.thread import ThreadAuthenticator

from treepipe.core.messages import Flight, Segment
from treepipe.executor.hosts.fork_server import fork_server
from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import Launch
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.envelope import TOKEN_BYTES, Gate
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.mailbox import Inbox, Outbox
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.results.trace import BUSY, Trace
from treepipe.studies.workshop.simulator_speed import Figure, figure

ROWS, WIDTH, TIMES = 81, 192, 500
SIZES = {"64 B": 64, "64 KiB": 2**16, "1 MiB": 2**20}
"""Sizes of the messages that CURVE is timed with."""
BARE = [bytes(600), bytes(4 * ROWS * WIDTH)]
"""Frames as long as those of the message."""
PLACES = tuple(range(ROWS))
FLIGHT = Flight(0, 0, (Segment(1, 7, 3, 2, 0, PLACES, PLACES, tuple(range(-1, ROWS - 1))),))
TOKEN = bytes(TOKEN_BYTES)
GATE = Gate(TOKEN, frozenset("ab"), frozenset("ab"), (Flight,), WIDTH, ROWS)
Ends: TypeAlias = tuple[str, Callable[[str], None], Callable[[], None], Callable[[], None]]
"""Address of the own end; functions that connect to the other end, send, and wait for a message."""


def message_cost() -> list[Figure]:
    """Measure the sender's and receiver's work for one message, and its way to another process."""
    name = f"message of {ROWS} rows of {WIDTH}"
    return [
        *_figures(f"{name}, work of its two ends", _work(), "aim 0.25 ms"),
        *_figures(f"{name}, one way between processes", _one_way(_our_ends)),
        *_figures(f"{name}, one way, bare ZeroMQ", _one_way(partial(_raw_ends, BARE, None))),
    ]


def curve_cost() -> list[Figure]:
    """Measure what CURVE adds to a message between two local processes, over TCP, one way."""
    found = []
    for name, size in SIZES.items():
        plain, guarded = (
            _one_way(partial(_raw_ends, [bytes(size)], key)) for key in (None, KeyPair.new())
        )
        label = f"message of {name}, one way over TCP"
        found += [
            figure(f"{label}: median", statistics.median(plain), "ms"),
            figure(f"{label}, with CURVE: median", statistics.median(guarded), "ms"),
            figure(f"{label}, CURVE adds at least", min(guarded) - min(plain), "ms"),
        ]
    return found


def step_cost(launch: Launch) -> list[Figure]:
    """Measure the time of a token of plain decoding beyond all work: messages and waking up.

    Devices are not emulated, as an emulated time hides the host's work in between.
    """
    with Controller(launch.roles, launch.deployment) as controller:
        controller.run(launch.deployment)  # warm-up
        trace, _ = controller.run(launch.deployment)
    stages = len(launch.deployment.roles.pipelines[0])
    return _figures(f"step of pp with {stages} stages, beyond compute", _idle(trace), "aim 0.5 ms")


def _figures(name: str, samples: Sequence[float], aim: str = "") -> list[Figure]:
    median, least = statistics.median(samples), min(samples)
    return [figure(f"{name}: median", median, "ms", aim), figure(f"{name}: least", least, "ms")]


def _idle(trace: Trace) -> list[float]:
    """Return milliseconds per token, except the first of a text, in which no worker was busy.

    Requests come one after another here, and so does the work for a token.
    """
    busy = [span for span in trace.spans if span.kind in BUSY]
    found = []
    for request in trace.requests:
        times = [at for at, _ in request.emitted]
        for start, end in itertools.pairwise(times):
            worked = sum(max(0.0, min(s.end_ms, end) - max(s.start_ms, start)) for s in busy)
            found.append(end - start - worked)
    return found


def _work() -> list[float]:
    """Return milliseconds of work of a message's sender and receiver together."""
    samples = []
    transport = ZeroMQ()
    with zmq.Context() as context, context.socket(zmq.PULL) as arrived:
        port = arrived.bind_to_random_port(f"tcp://{LOOPBACK}")
        outbox = Outbox(transport, f"tcp://{LOOPBACK}:{port}", ("a", "b"), None, TOKEN)
        inbox = Inbox(transport, 0, "b", gate=GATE)
        hidden = torch.randn(ROWS, WIDTH)
        for _ in range(TIMES):
            start = time.perf_counter()
            outbox.send(FLIGHT, now_ms(), 0, hidden)
            sent = time.perf_counter()
            arrived.poll()
            begin = time.perf_counter()
            inbox.take([frame.buffer for frame in arrived.recv_multipart(copy=False)])
            assert inbox.get() is not None
            samples.append(1e3 * (time.perf_counter() - begin + sent - start))
    transport.close()
    return samples


def _one_way(ends: Callable[[Any, str], Ends]) -> list[float]:
    """Return half the milliseconds of each round trip between two processes."""
    samples, processes = [], fork_server()
    ours, theirs = processes.Pipe()
    process = processes.Process(target=_echo, args=(ends, theirs), daemon=True)
    process.start()
    with zmq.Context() as context:
        address, connect, send, wait = ends(context, "a")
        ours.send(address)
        connect(ours.recv())
        for _ in range(TIMES):
            start = time.perf_counter()
            send()
            wait()
            samples.append(1e3 * (time.perf_counter() - start) / 2)
        process.kill()
        process.join()
        context.destroy(linger=0)
    return samples


def _echo(ends: Callable[[Any, str], Ends], control: Connection) -> None:
    """Echo messages in the other process until it is killed."""
    torch.set_num_threads(1)
    address, connect, send, wait = ends(zmq.Context(), "b")
    control.send(address)
    connect(control.recv())
    while True:
        wait()
        send()


def _our_ends(context: Any, name: str) -> Ends:
    transport, hidden = ZeroMQ(), torch.randn(ROWS, WIDTH)
    inbox = Inbox(transport, 0, name, gate=GATE)
    outboxes: list[Outbox] = []

    def connect(address: str) -> None:
        other = "b" if name == "a" else "a"
        outboxes.append(Outbox(transport, address, (name, other), None, TOKEN))

    def send() -> None:
        outboxes[0].send(FLIGHT, now_ms(), 0, hidden)

    def wait() -> None:
        assert inbox.get() is not None

    return inbox.address, connect, send, wait


def _raw_ends(frames: Sequence[bytes], key: KeyPair | None, context: Any, name: str) -> Ends:
    """Open bare sockets, encrypted if a key is given."""
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    if key is not None:
        guard = ThreadAuthenticator(context)
        guard.start()
        guard.configure_curve(location=CURVE_ALLOW_ANY)
        for socket in (pull, push):
            socket.curve_publickey = key.public.encode()
            socket.curve_secretkey = key.secret.encode()
        pull.curve_server, push.curve_serverkey = True, key.public.encode()
    address = f"tcp://{LOOPBACK}:{pull.bind_to_random_port(f'tcp://{LOOPBACK}')}"
    return (
        address,
        push.connect,
        partial(push.send_multipart, frames, copy=False),
        pull.recv_multipart,
    )
