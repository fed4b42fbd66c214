"""What a message and a step of a pipeline cost beyond compute: part of ``benchmarks.py``.

Law of this file: other processes of this machine hit all figures of a run alike, so each has its
least value beside its median, and bare ZeroMQ messages of the same bytes are a yardstick.
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

from treepipe.core.messages import Flight, Segment
from treepipe.executor.clock import now_ms
from treepipe.executor.controller import Controller
from treepipe.executor.fork_server import fork_server
from treepipe.executor.keys import KeyPair, Porter
from treepipe.executor.launch import Launch
from treepipe.executor.transport import LOOPBACK, TOKEN_BYTES, Gate, Inbox, Outbox
from treepipe.results.trace import BUSY, Trace
from treepipe.studies.workshop.simulator_speed import Figure, figure

ROWS, WIDTH, TIMES = 81, 192, 500
SIZES = {"64 B": 64, "64 KiB": 2**16, "1 MiB": 2**20}
"""Of what CURVE is timed with."""
PLACES = tuple(range(ROWS))
FLIGHT = Flight(0, 0, (Segment(1, 7, 3, 2, 0, PLACES, PLACES, tuple(range(-1, ROWS - 1))),))
TOKEN = bytes(TOKEN_BYTES)
GATE = Gate(TOKEN, frozenset("ab"), frozenset("ab"), (Flight,), WIDTH, ROWS)
Ends: TypeAlias = tuple[str, Callable[[str], None], Callable[[], None], Callable[[], None]]
"""Address of one's own end; connecting to the other one; sending a message; waiting for one."""


def message_cost() -> list[Figure]:
    """Sender's and receiver's work of one message, and its way to another process."""
    name = f"message of {ROWS} rows of {WIDTH}"
    return [
        *_figures(f"{name}, work of its two ends", _work(), "aim 0.25 ms"),
        *_figures(f"{name}, one way between processes", _one_way(_our_ends)),
        *_figures(f"{name}, one way, bare ZeroMQ", _one_way(_bare_ends)),
    ]


def curve_cost() -> list[Figure]:
    """What CURVE adds to a message between two processes of this host, over TCP, one way."""
    found = []
    for name, size in SIZES.items():
        plain, guarded = (
            _one_way(partial(_sized_ends, size, key)) for key in (None, KeyPair.new())
        )
        label = f"message of {name}, one way over TCP"
        found += [
            figure(f"{label}: median", statistics.median(plain), "ms"),
            figure(f"{label}, with CURVE: median", statistics.median(guarded), "ms"),
            figure(f"{label}, CURVE adds at least", min(guarded) - min(plain), "ms"),
        ]
    return found


def step_cost(launch: Launch) -> list[Figure]:
    """What a token of plain decoding takes beyond all work on its way: messages and waking up.

    Without emulation, as a device's time hides what this host spends between two pieces of work.
    """
    with Controller(launch.roles, launch.deployment) as controller:
        controller.run(launch.deployment)  # what is done once only
        trace, _ = controller.run(launch.deployment)
    stages = len(launch.deployment.pipelines[0])
    return _figures(f"step of pp with {stages} stages, beyond compute", _idle(trace), "aim 0.5 ms")


def _figures(name: str, samples: Sequence[float], aim: str = "") -> list[Figure]:
    median, least = statistics.median(samples), min(samples)
    return [figure(f"{name}: median", median, "ms", aim), figure(f"{name}: least", least, "ms")]


def _idle(trace: Trace) -> list[float]:
    """Milliseconds per token, the first of a text aside, in which no worker was busy.

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
    """Milliseconds of a message's sender, and of the receiver of what has arrived."""
    samples = []
    with zmq.Context() as context, context.socket(zmq.PULL) as arrived:
        port = arrived.bind_to_random_port(f"tcp://{LOOPBACK}")
        outbox = Outbox(context, f"tcp://{LOOPBACK}:{port}", ("a", "b"), None, TOKEN)
        inbox = Inbox(context, 0, "b", gate=GATE)
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
        outbox.close()
        inbox.close()
    return samples


def _one_way(ends: Callable[[Any, str], Ends]) -> list[float]:
    """Half the milliseconds of each round trip between two processes."""
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
    """The other process: answers until it is killed."""
    torch.set_num_threads(1)
    address, connect, send, wait = ends(zmq.Context(), "b")
    control.send(address)
    connect(control.recv())
    while True:
        wait()
        send()


def _our_ends(context: Any, name: str) -> Ends:
    inbox, hidden = Inbox(context, 0, name, gate=GATE), torch.randn(ROWS, WIDTH)
    outboxes: list[Outbox] = []

    def connect(address: str) -> None:
        other = "b" if name == "a" else "a"
        outboxes.append(Outbox(context, address, (name, other), None, TOKEN))

    def send() -> None:
        outboxes[0].send(FLIGHT, now_ms(), 0, hidden)

    def wait() -> None:
        assert inbox.get() is not None

    return inbox.address, connect, send, wait


def _sized_ends(size: int, key: KeyPair | None, context: Any, name: str) -> Ends:
    """Bare sockets, closed by a key or not."""
    pull, push, frame = context.socket(zmq.PULL), context.socket(zmq.PUSH), bytes(size)
    if key is not None:
        Porter(context, key)
        key.open(pull)
        key.enter(push)
    port = pull.bind_to_random_port(f"tcp://{LOOPBACK}")
    return f"tcp://{LOOPBACK}:{port}", push.connect, lambda: push.send(frame, copy=False), pull.recv


def _bare_ends(context: Any, name: str) -> Ends:
    pull, push = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    port, frames = (
        pull.bind_to_random_port(f"tcp://{LOOPBACK}"),
        [bytes(600), bytes(4 * ROWS * WIDTH)],
    )
    return (
        f"tcp://{LOOPBACK}:{port}",
        push.connect,
        lambda: push.send_multipart(frames),
        pull.recv_multipart,
    )
