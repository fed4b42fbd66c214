"""The body of every worker process: it opens its place, serves, and answers the controller.

Law of this file: a worker ends when its control pipe does, and a failure is said once, on it.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from treepipe.core.errors import UserError
from treepipe.executor.clock import LOOK_MS
from treepipe.executor.control import (
    Ask,
    Connect,
    Failed,
    Holdings,
    Listen,
    Listening,
    Loaded,
    Lose,
    Notes,
    Open,
    OpenTexts,
)
from treepipe.executor.fork_server import end_with_fork_server
from treepipe.executor.pulse import Pulse
from treepipe.executor.station import RoleSettings, Station
from treepipe.scenario.computing import Compute


def worker_main(role: RoleSettings, control: Connection, pulse_pipe: Connection) -> None:
    """Serve one role until the controller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends us
    end_with_fork_server()
    pulse = Pulse(pulse_pipe, role.timeout_s)
    from treepipe.executor.computing import use

    try:
        use(role.placed.compute)
        assert isinstance(_told(control), Listen)
        station = Station.open(role, control)
        try:
            control.send(Listening(station.inbox.address))
            connect: Connect = _told(control)
            station.connect(connect.addresses, connect.links)
            worker = _worker(station)
            pulse.idle = station.inbox.rests
            gc.freeze()  # the libraries' objects, a million, are not looked through in a run
            control.send(Loaded())
            while True:
                worker.serve()
                station.turn_to("control")
                _obey(station, worker, control.recv())
        finally:
            station.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the controller is gone
    except UserError as error:
        _report(control, Failed(str(error), by_user=True))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        _report(control, Failed(f"{type(error).__name__}: {error} ({place})", by_user=False))


def _report(control: Connection, failure: Failed) -> None:
    with contextlib.suppress(OSError):  # nobody may be there to hear it
        control.send(failure)


def _told(control: Connection) -> Any:
    """What the controller says next; waiting for it looks up now and then (``pulse.py``)."""
    while not control.poll(LOOK_MS / 1e3):
        pass
    return control.recv()


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


def _obey(station: Station, worker: Any, order: Open | Lose | Ask) -> None:
    """Carry out one order of the controller."""
    match order:
        case Open():
            worker.open(order)
        case Lose(pipeline, lost):
            worker.lose(pipeline, lost)
        case Ask(kind):
            station.control.send(ANSWERS[kind](station, worker))


def _notes(station: Station, worker: Any) -> Notes:
    turns = worker.take_turns() if station.settings.kind == "draft" else []
    return Notes(station.take_spans(), turns, station.take_dropped())


ANSWERS: dict[type, Callable[[Station, Any], OpenTexts | Notes | Holdings]] = {
    OpenTexts: lambda station, worker: OpenTexts(worker.texts()),
    Notes: _notes,
    Holdings: lambda station, worker: Holdings(
        peak_memory(station.settings.placed.compute), worker.open_sessions
    ),
}


def peak_memory(compute: Compute) -> int:
    """The most that this process has held so far, in bytes: on its GPU, or resident on the host."""
    if compute.kind == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(compute.index))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
