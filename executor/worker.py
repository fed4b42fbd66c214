"""The body of every worker process: it opens its place, serves, and answers the controller.

Law of this file: a worker ends when its control pipe does, and a failure is said once, on it.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

from treepipe.core.errors import UserError
from treepipe.executor.clock import LOOK_MS
from treepipe.executor.fork_server import end_with_fork_server
from treepipe.executor.pulse import Pulse
from treepipe.executor.station import RoleSettings, Station


def worker_main(role: RoleSettings, control: Connection, pulse_pipe: Connection) -> None:
    """Serve one role until the controller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends us
    end_with_fork_server()
    pulse = Pulse(pulse_pipe, role.timeout_s)
    import torch

    torch.set_num_threads(1)
    try:
        baseline = peak_memory()
        _told(control)  # to listen
        station = Station.open(role, control)
        try:
            control.send(("listening", station.inbox.address))
            station.connect(*_told(control))
            worker = _worker(station)
            pulse.idle = station.inbox.rests
            control.send(("loaded", (baseline, peak_memory())))
            while True:
                worker.serve()
                _obey(station, worker, control.recv())
        finally:
            station.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the controller is gone
    except UserError as error:
        _report(control, "user error", str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        _report(control, "failed", f"{type(error).__name__}: {error} ({place})")


def _told(control: Connection) -> Any:
    """What the controller says next; waiting for it looks up now and then (``pulse.py``)."""
    while not control.poll(LOOK_MS / 1e3):
        pass
    return control.recv()


def _worker(station: Station) -> Any:
    if station.settings.is_switch:
        from treepipe.executor.switch_worker import SwitchWorker

        return SwitchWorker(station)
    if station.settings.pipeline is None:
        from treepipe.executor.draft_worker import DraftWorker

        return DraftWorker(station)
    from treepipe.executor.stage_worker import StageWorker

    return StageWorker(station)


def _obey(station: Station, worker: Any, order: tuple[str, Any]) -> None:
    """One order of the controller; questions are answered under their own name."""
    what, content = order
    if what == "open":
        worker.open(*content)
    elif what == "lose":
        worker.lose(*content)
    elif what == "spans":
        station.control.send((what, station.take_spans()))
    elif what == "turns":
        station.control.send((what, worker.take_turns()))
    elif what == "texts":
        station.control.send((what, worker.texts()))
    elif what == "dropped":
        station.control.send((what, station.take_dropped()))
    elif what == "memory":
        station.control.send((what, peak_memory()))
    else:
        assert what == "sessions"
        station.control.send((what, worker.open_sessions))


def _report(control: Connection, tag: str, sentence: str) -> None:
    with contextlib.suppress(OSError):  # nobody may be there to hear it
        control.send((tag, sentence))


def peak_memory() -> int:
    """Highest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
