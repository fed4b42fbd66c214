"""The body of every worker process: it opens its place, serves, and answers the controller.

Law of this file: a worker ends when its control line does, and a failure is said once, on it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from treepipe.core.errors import UserError
from treepipe.core.losses import FaultKind
from treepipe.executor.clock import set_ahead
from treepipe.executor.control import (
    ANSWERS,
    ORDERS,
    Ask,
    Become,
    Connect,
    Fail,
    Failed,
    Holdings,
    Lacks,
    LinkEnd,
    Listen,
    Listening,
    Loaded,
    Lose,
    Measure,
    Notes,
    Open,
    OpenTexts,
    Order,
    SetClock,
)
from treepipe.executor.fork_server import end_with_fork_server
from treepipe.executor.frames import Frames
from treepipe.executor.pulse import Pulse
from treepipe.executor.station import RoleSettings, Station
from treepipe.scenario.computing import ONE_CORE, Compute

Told = TypeVar("Told", Listen, Connect, Measure)


def worker_main(
    line: socket.socket,
    pulse_pipe: Connection,
    elsewhere: bool = False,
    models: Path | None = None,
) -> None:
    """Serve one role, or be an end of a link, until the controller is gone.

    Args:
        line: to the controller.
        pulse_pipe: on which this process shows that it lives.
        elsewhere: the controller is on another host, whose folders mean nothing here.
        models: this host's folder of checkpoints then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends us
    end_with_fork_server()
    control = Frames(line)
    try:
        order = _next(control)
        if isinstance(order, LinkEnd):
            _serve_link(order, control, pulse_pipe)
            return
        assert isinstance(order, Become)
        role, pulse = order.role, Pulse(pulse_pipe, order.role.timeout_ms)
        if elsewhere:
            role = _at_home(order, models)
        _serve_role(role, control, pulse)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the controller is gone
    except UserError as error:
        _report(control, Failed(str(error), by_user=True))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        _report(control, Failed(f"{type(error).__name__}: {error} ({place})", by_user=False))


def _serve_role(role: RoleSettings, control: Frames, pulse: Pulse) -> NoReturn:
    from treepipe.executor.computing import use

    use(role.placed.compute)
    listen = _told(control, Listen)
    set_ahead(listen.ahead_ms)
    with contextlib.closing(Station.open(role, control, listen.host)) as station:
        _say(control, Listening(station.inbox.address))
        connect = _told(control, Connect)
        station.connect(connect.addresses, connect.links)
        worker = _worker(station)
        pulse.idle = station.inbox.rests
        station.inbox.lacks = lambda *missing: _say(control, Lacks(*missing))
        gc.freeze()  # the libraries' objects, a million, are not looked through in a run
        _say(control, Loaded())
        while True:
            while (order := control.take()) is not None:
                _obey(station, worker, ORDERS.decoded(order))
            worker.serve()
            station.turn_to("control")
            control.read()


def _serve_link(named: LinkEnd, control: Frames, pulse_pipe: Connection) -> None:
    """Answer the other end of a link, and time round trips to it when told."""
    from treepipe.executor.computing import use
    from treepipe.executor.measure.link import round_trips
    from treepipe.executor.measure.peer import End, serve

    use(ONE_CORE)
    pulse, listen = Pulse(pulse_pipe, named.timeout_ms), _told(control, Listen)
    with contextlib.closing(End(listen.host, named.port, "key base_port", named)) as end:
        end.inbox.watch(control.fileno())
        _say(control, Listening(end.inbox.address))
        end.ways = _told(control, Connect).addresses
        pulse.idle = end.inbox.rests
        _say(control, Loaded())
        serve(end)
        _say(control, round_trips(end, named.peer, _told(control, Measure)))
        _next(control)  # it is of no more use, and its line ends


def _report(control: Frames, failure: Failed) -> None:
    with contextlib.suppress(OSError):  # nobody may be there to hear it
        _say(control, failure)


def _say(control: Frames, answer: object) -> None:
    control.send_bytes(ANSWERS.encoded(answer))


def _next(control: Frames) -> Order:
    """Wait for what the controller says next."""
    order: Order = ORDERS.decoded(control.recv_bytes())
    return order


def _told(control: Frames, kind: type[Told]) -> Told:
    order = _next(control)
    assert isinstance(order, kind)
    return order


def _at_home(become: Become, models: Path | None) -> RoleSettings:
    """The role with this host's own checkpoints; raises ``UserError``."""
    from treepipe.executor.computing import fault_of

    role = become.role
    assert role.placed.worker is not None  # as of every role on another host
    if (fault := fault_of(role.placed.compute)) is not None:
        raise UserError(f"{role.placed.worker}, which {role.placed.name} is on, has {fault}")
    return role.with_copies([each.copy(models, role.placed.worker) for each in become.models])


def _worker(station: Station) -> Any:
    """The role that this process has; it imports no other one's modules."""
    match station.settings.kind:
        case "draft":
            from treepipe.executor.draft_worker import DraftWorker

            return DraftWorker(station)
        case "stage":
            from treepipe.executor.stage_worker import StageWorker

            return StageWorker(station)
        case "switch":
            from treepipe.executor.switch_worker import SwitchWorker

            return SwitchWorker(station)


def _obey(station: Station, worker: Any, order: Order) -> None:
    """Carry out one order of the controller."""
    match order:
        case SetClock(ahead_ms):
            set_ahead(ahead_ms)
        case Open():
            worker.open(order)
        case Lose(pipeline, lost):
            worker.lose(pipeline, lost)
        case Ask(kind):
            _say(station.control, ASKED[kind](station, worker))
        case Fail(kind, for_ms):
            _fail(station, kind, for_ms)


def _fail(station: Station, kind: FaultKind, for_ms: float | None) -> None:
    """Be lost, as the coordinator sees it, until it ends us or it is over."""
    if for_ms is not None:
        time.sleep(for_ms / 1e3)  # sends nothing, takes nothing, and shows no sign of life
        return
    if kind == "cut":
        station.cut()
        while True:
            # Nobody who is cut off obeys, or shows that it lives.
            station.control.recv_bytes(look_ms=None)
    os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)


def _notes(station: Station, worker: Any) -> Notes:
    turns = worker.take_turns() if station.settings.kind == "draft" else []
    return Notes(station.take_spans(), turns, station.take_dropped())


ASKED: dict[str, Callable[[Station, Any], OpenTexts | Notes | Holdings]] = {
    "OpenTexts": lambda station, worker: OpenTexts(worker.texts()),
    "Notes": _notes,
    "Holdings": lambda station, worker: Holdings(
        peak_memory(station.settings.placed.compute), worker.open_sessions
    ),
}


def peak_memory(compute: Compute) -> int:
    """The most that this process has held so far, in bytes: on its GPU, or resident on the host."""
    if compute.kind == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(compute.index))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
