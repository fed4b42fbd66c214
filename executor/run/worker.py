"""The body of every worker process: it dials the coordinator, opens its station, and serves.

Invariant: a worker ends when the coordinator lets it leave; it reports a failure once.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from treepipe.core.errors import UserError
from treepipe.core.failover import FaultKind
from treepipe.executor.hosts.fork_server import end_with_fork_server
from treepipe.executor.models.computing import fault_of, peak_memory, use
from treepipe.executor.models.static_pass import graphs_bytes
from treepipe.executor.run.lines import END_S, FAILED
from treepipe.executor.run.pulse import Pulse
from treepipe.executor.run.station import Station
from treepipe.executor.wire import records
from treepipe.executor.wire.clock import set_ahead
from treepipe.executor.wire.dialled import DialledLine, LeaveError
from treepipe.executor.wire.role import RoleSettings
from treepipe.scenario.deployment import ONE_CORE

MOST_SENTENCE = 10_000
"""Limit of the characters of an error that a worker reports."""
SetUp = TypeVar("SetUp", records.Listen, records.Connect, records.Measure)


def worker_main(post: records.Post, elsewhere: bool, models: Path | None) -> None:
    """Serve one role, or be an end of a measured link, until the coordinator lets it leave.

    Args:
        elsewhere: the coordinator is on another host, whose folders mean nothing here.
        models: this host's folder of checkpoints in that case.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the coordinator ends us
    end_with_fork_server()
    line = DialledLine(post)
    pulse = Pulse(line.beats(), post.timeout_ms, lambda: line.waits)
    exit_code = 0
    try:
        order = line.wait()
        if isinstance(order, records.LinkEnd):
            _serve_link(order, line, pulse)
        assert isinstance(order, records.Become)
        _serve_role(_at_home(order, models) if elsewhere else order.role, line, pulse)
    except LeaveError:
        pass
    except Exception as error:
        exit_code = FAILED
        sentence = str(error)
        if not isinstance(error, UserError):
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
            sentence = f"{type(error).__name__}: {error} ({place})"
        line.say(records.Failed(sentence[:MOST_SENTENCE], by_user=isinstance(error, UserError)))
    pulse.end()
    line.close(linger_ms=round(1e3 * END_S))
    sys.exit(exit_code)


def _serve_role(role: RoleSettings, line: DialledLine, pulse: Pulse) -> NoReturn:
    use(role.placed.compute)
    listen = _expect(line, records.Listen)
    set_ahead(listen.ahead_ms)
    station = Station(role, line, listen.host)
    line.say(records.Listening(station.inbox.address))
    connect = _expect(line, records.Connect)
    station.connect(connect.addresses, connect.links)
    worker = _worker(station)
    station.warm_up()
    pulse.idle = station.inbox.rests
    station.inbox.lacks = lambda *missing: line.say(records.Lacks(*missing))
    gc.freeze()  # collections in a run skip a million objects of the libraries
    line.say(records.Loaded())
    while True:
        while (order := line.take()) is not None:
            _obey(station, worker, order)
        worker.serve()
        station.enter("control")


def _serve_link(named: records.LinkEnd, line: DialledLine, pulse: Pulse) -> NoReturn:
    """Answer the other end of a link, and time round trips to it on the coordinator's order."""
    from treepipe.executor.measure.link import End, round_trips, serve

    use(ONE_CORE)
    listen = _expect(line, records.Listen)
    end = End(line.transport, listen.host, named)
    end.inbox.watch(line.channel)
    line.say(records.Listening(end.inbox.address))
    end.connect(_expect(line, records.Connect).addresses[named.peer])
    pulse.idle = end.inbox.rests
    line.say(records.Loaded())
    while True:
        serve(end)
        if (order := line.take()) is not None:
            assert isinstance(order, records.Measure)
            line.say(round_trips(end, order))


def _expect(line: DialledLine, kind: type[SetUp]) -> SetUp:
    order = line.wait()
    assert isinstance(order, kind)
    return order


def _at_home(become: records.Become, models: Path | None) -> RoleSettings:
    """Replace the role's checkpoints by this host's own. Raises ``UserError``."""
    role = become.role
    assert role.placed.worker is not None  # every role on another host has one
    if (fault := fault_of(role.placed.compute)) is not None:
        raise UserError(f"{role.placed.worker}, which {role.placed.name} is on, has {fault}")
    return role.with_copies([each.copy(models, role.placed.worker) for each in become.models])


def _worker(station: Station) -> Any:
    """Create the role's worker, importing only its modules."""
    match station.settings.kind:
        case "draft" | "level" as kind:
            from treepipe.executor.run.draft_worker import DraftWorker, LevelWorker

            return DraftWorker(station) if kind == "draft" else LevelWorker(station)
        case "stage":
            from treepipe.executor.run.stage_worker import StageWorker

            return StageWorker(station)
        case "switch":
            from treepipe.executor.run.switch_worker import SwitchWorker

            return SwitchWorker(station)


def _obey(station: Station, worker: Any, order: object) -> None:
    say = station.line.say
    match order:
        case records.SetClock(ahead_ms):
            set_ahead(ahead_ms)
        case records.Open():
            worker.open(order)
        case records.Lose(pipeline, lost):
            worker.lose(pipeline, lost)
        case records.Ask("OpenTexts"):
            say(records.OpenTexts(worker.texts()))
        case records.Ask("Notes"):
            turns = worker.take_turns() if station.settings.kind == "draft" else []
            say(records.Notes(station.take_spans(), turns, station.take_dropped()))
        case records.Ask("Holdings"):
            device = station.settings.placed.compute.device
            peak_bytes = peak_memory(device)
            if device != "cpu":  # torch counts what graphs hold as reserved only
                peak_bytes += graphs_bytes()
            say(records.Holdings(peak_bytes, worker.open_sessions))
        case records.Fail(kind, for_ms):
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
            station.line.wait(look_ms=None)
    os.kill(os.getpid(), signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
