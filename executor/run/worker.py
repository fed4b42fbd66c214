"""The body of every worker process: it opens its station, serves, and answers the controller.

Invariant: a worker ends when its control line does, and reports a failure once, on it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from treepipe.core.errors import UserError
from treepipe.core.failover import FaultKind
from treepipe.executor.hosts.fork_server import end_with_fork_server
from treepipe.executor.models.computing import fault_of, peak_memory, use
from treepipe.executor.run.pulse import Pulse
from treepipe.executor.run.station import Station
from treepipe.executor.wire import control
from treepipe.executor.wire.clock import set_ahead
from treepipe.executor.wire.frames import Frames
from treepipe.executor.wire.role import RoleSettings
from treepipe.scenario.deployment import ONE_CORE

SetUp = TypeVar("SetUp", control.Listen, control.Connect, control.Measure)


def worker_main(
    end: socket.socket,
    pulse_pipe: Connection,
    elsewhere: bool = False,
    models: Path | None = None,
) -> None:
    """Serve one role, or be an end of a measured link, until the controller is gone.

    Args:
        elsewhere: the controller is on another host, whose folders mean nothing here.
        models: this host's folder of checkpoints in that case.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends us
    end_with_fork_server()
    line = Frames(end)
    try:
        order = _next_order(line)
        if isinstance(order, control.LinkEnd):
            _serve_link(order, line, pulse_pipe)
            return
        assert isinstance(order, control.Become)
        role, pulse = order.role, Pulse(pulse_pipe, order.role.timeout_ms)
        if elsewhere:
            role = _at_home(order, models)
        _serve_role(role, line, pulse)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the controller is gone
    except UserError as error:
        _report(line, control.Failed(str(error), by_user=True))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        _report(line, control.Failed(f"{type(error).__name__}: {error} ({place})", by_user=False))


def _serve_role(role: RoleSettings, line: Frames, pulse: Pulse) -> NoReturn:
    use(role.placed.compute)
    listen = _expect(line, control.Listen)
    set_ahead(listen.ahead_ms)
    with contextlib.closing(Station(role, line, listen.host)) as station:
        _say(line, control.Listening(station.inbox.address))
        connect = _expect(line, control.Connect)
        station.connect(connect.addresses, connect.links)
        worker = _worker(station)
        station.warm_up()
        pulse.idle = station.inbox.rests
        station.inbox.lacks = lambda *missing: _say(line, control.Lacks(*missing))
        gc.freeze()  # collections in a run skip a million objects of the libraries
        _say(line, control.Loaded())
        while True:
            while (order := line.take()) is not None:
                _obey(station, worker, control.ORDERS.decoded(order))
            worker.serve()
            station.enter("control")
            line.read()


def _serve_link(named: control.LinkEnd, line: Frames, pulse_pipe: Connection) -> None:
    """Answer the other end of a link, and time round trips to it on the controller's order."""
    from treepipe.executor.measure.link import End, round_trips, serve

    use(ONE_CORE)
    pulse, listen = Pulse(pulse_pipe, named.timeout_ms), _expect(line, control.Listen)
    with contextlib.closing(End(listen.host, named)) as end:
        end.inbox.watch(line.fileno())
        _say(line, control.Listening(end.inbox.address))
        end.connect(_expect(line, control.Connect).addresses[named.peer])
        pulse.idle = end.inbox.rests
        _say(line, control.Loaded())
        serve(end)
        _say(line, round_trips(end, _expect(line, control.Measure)))
        _next_order(line)  # raises when the line ends


def _report(line: Frames, failure: control.Failed) -> None:
    with contextlib.suppress(OSError):  # the controller may be gone
        _say(line, failure)


def _say(line: Frames, answer: object) -> None:
    line.send_bytes(control.ANSWERS.encoded(answer))


def _next_order(line: Frames) -> control.Order:
    order: control.Order = control.ORDERS.decoded(line.recv_bytes())
    return order


def _expect(line: Frames, kind: type[SetUp]) -> SetUp:
    order = _next_order(line)
    assert isinstance(order, kind)
    return order


def _at_home(become: control.Become, models: Path | None) -> RoleSettings:
    """Replace the role's checkpoints by this host's own. Raises ``UserError``."""
    role = become.role
    assert role.placed.worker is not None  # every role on another host has one
    if (fault := fault_of(role.placed.compute)) is not None:
        raise UserError(f"{role.placed.worker}, which {role.placed.name} is on, has {fault}")
    return role.with_copies([each.copy(models, role.placed.worker) for each in become.models])


def _worker(station: Station) -> Any:
    """Create the role's worker, importing only its modules."""
    match station.settings.kind:
        case "draft":
            from treepipe.executor.run.draft_worker import DraftWorker

            return DraftWorker(station)
        case "stage":
            from treepipe.executor.run.stage_worker import StageWorker

            return StageWorker(station)
        case "switch":
            from treepipe.executor.run.switch_worker import SwitchWorker

            return SwitchWorker(station)


def _obey(station: Station, worker: Any, order: control.Order) -> None:
    match order:
        case control.SetClock(ahead_ms):
            set_ahead(ahead_ms)
        case control.Open():
            worker.open(order)
        case control.Lose(pipeline, lost):
            worker.lose(pipeline, lost)
        case control.Ask("OpenTexts"):
            _say(station.control, control.OpenTexts(worker.texts()))
        case control.Ask("Notes"):
            turns = worker.take_turns() if station.settings.kind == "draft" else []
            notes = control.Notes(station.take_spans(), turns, station.take_dropped())
            _say(station.control, notes)
        case control.Ask("Holdings"):
            peak_bytes = peak_memory(station.settings.placed.compute.device)
            _say(station.control, control.Holdings(peak_bytes, worker.open_sessions))
        case control.Fail(kind, for_ms):
            _fail(station, kind, for_ms)


def _fail(station: Station, kind: FaultKind, for_ms: float | None) -> None:
    """Simulate a loss, for some time or until the coordinator ends this process."""
    if for_ms is not None:
        time.sleep(for_ms / 1e3)  # sends nothing, takes nothing, and shows no sign of life
        return
    if kind == "cut":
        station.cut()
        while True:
            # A worker that is cut off obeys no order, and shows no sign of life.
            station.control.recv_bytes(look_ms=None)
    os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
