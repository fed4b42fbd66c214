"""Workers that do not answer, and runs that end underway: named, saved, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.worlds.changed import changed
from tests.worlds.command_line import ROOT, SCENARIO, Terminal
from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.hosts import free_port
from tests.worlds.real_runs import LONG, SHORT, TIMEOUT_MS, controller_of
from tests.worlds.tiny_models import greedy
from treepipe.core.errors import RunError
from treepipe.core.failover import FaultKind
from treepipe.core.requests import RequestTrace
from treepipe.executor.hosts import fork_server
from treepipe.executor.run import controller as execute_module
from treepipe.executor.run import pulse
from treepipe.executor.run.controller import Controller, RunEndedError
from treepipe.executor.run.pulse import LostWorkerError, Pulse, Watch
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.results.recording import RecordedRequest, Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import SWITCH
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario

# --- the controller's side, in memory -----------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that a test sets, as ``ms``."""
    made = SimpleNamespace(ms=0.0)
    monkeypatch.setattr(pulse, "now_ms", lambda: made.ms)
    return made


class _Watched:
    """A watch over workers of which a test has the beats; by default they serve."""

    def __init__(self, clock: Any, *names: str, pid: int | None = None, serve: bool = True) -> None:
        self._clock, self.watch = clock, Watch(30_000.0)
        for name in names:
            self.watch.add(name, pid)
            if serve:
                self.watch.serves(name)

    def after(self, ms: float, **idle: bool) -> None:
        """Time passes, these show themselves as idle or not, and the watch looks."""
        self._clock.ms += ms
        for name, each in idle.items():
            self.watch.beat(name, each)
        self.watch.look()


def test_a_pause_of_all_processes_is_nobodys_silence(clock: Any) -> None:
    """Ctrl-Z, or a computer that slept: the controller was not there to listen, either."""
    watched = _Watched(clock, "stage1", serve=False)
    for _ in range(20):
        watched.after(3_600_000.0)
    watched.after(500.0, stage1=False)


def test_a_worker_that_never_shows_itself_is_named_in_the_end(clock: Any) -> None:
    watched = _Watched(clock, "stage1", serve=False)
    while clock.ms < pulse.START_MS + 29_000.0:
        watched.after(500.0)
    with pytest.raises(LostWorkerError, match=r"^stage1 has not answered"):
        watched.after(500.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of threads")
@pytest.mark.parametrize(
    ("pid", "lost"), [(os.getpid(), False), (2**22 + 1, True)], ids=["ours", "ended"]
)
def test_a_worker_that_gets_no_processor_is_not_silent(clock: Any, pid: int, lost: bool) -> None:
    """Our own process would run right now, since it does; one that ended would not."""
    watched = _Watched(clock, "stage1", pid=pid)
    with pytest.raises(LostWorkerError) if lost else nullcontext():
        for _ in range(61):
            watched.after(500.0)


def test_all_are_idle_only_together(clock: Any) -> None:
    watched = _Watched(clock, "draft0", "stage1", serve=False)
    for step in range(20):
        watched.after(500.0, draft0=True, stage1=step >= 10)
    assert watched.watch.all_idle_ms() == pytest.approx(5000.0)


# --- the worker's side ---------------------------------------------------------------------------


def _beats_of(main: Callable[[threading.Event], None], seconds: float, enough: int) -> int:
    """How often a worker beats within a time in which its main thread does this, or until it has
    often enough."""
    beats, over, ended = threading.Semaphore(0), threading.Event(), list[Pulse]()

    def work() -> None:
        ended.append(Pulse(lambda idle: beats.release(), 400.0, lambda: False))
        main(over)

    thread = threading.Thread(target=work)
    thread.start()
    deadline, found = time.monotonic() + seconds, 0
    while found < enough and beats.acquire(timeout=max(0.0, deadline - time.monotonic())):
        found += 1
    over.set()
    thread.join()
    ended[0].end()
    return found


def _compute(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1000))


@pytest.mark.processes
def test_a_worker_is_silent_where_it_is_stuck_and_not_where_it_computes() -> None:
    assert _beats_of(_compute, 60.0, 3) == 3, "at some time, however busy the machine is"
    assert _beats_of(lambda over: over.wait() and None, 1.5, 3) < 3, "only for what came before"


# --- real processes ------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "kind"),
    [("draft0", "kill"), ("pipeline0.stage2", "stop"), (SWITCH, "stop")],
)
def test_a_lost_worker_ends_the_run(pair: tuple[Path, Path], name: str, kind: FaultKind) -> None:
    """It is named, no process is left, and the committed texts are there."""
    deployment = replace(small_deployment("flowspec", clients=2), requests=(SHORT, LONG))
    if name == SWITCH:
        deployment = changed(deployment, central_transfers=True)
    silent = r"has not answered for \d+ ms \(faults\.timeout_ms = 1000\)"
    how = silent if kind == "stop" else r"died \(exit code -9\)"
    with controller_of(pair, deployment, timeout_ms=TIMEOUT_MS) as running:
        pids = [host.pid(name) for name, host in running.lines.hosts.items()]
        with pytest.raises(RunEndedError, match=rf"^{name} {how}") as ended:
            running.run(deployment, partial(running.inject, name, kind))
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)
    requests = ended.value.trace.requests
    assert [r.reason for r in requests] == ["length", "run ended"]
    for request, spec in zip(requests, deployment.requests, strict=True):
        text = greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
        assert list(request.tokens) == text[: len(request.tokens)]
        assert request.tokens
        assert ended.value.recording.requests[request.session].text == request.tokens
    assert not ended.value.recording.complete


@pytest.mark.processes
def test_a_lost_message_does_not_hang_a_run(pair: tuple[Path, Path]) -> None:
    """One stage's messages are dropped as foreign, so that all wait for each other."""
    deployment = small_deployment("pp")
    controller = controller_of(pair, deployment, timeout_ms=TIMEOUT_MS)
    controller.roles[2] = replace(controller.roles[2], token=bytes(16))
    sentence = r"^nothing happened for \d+ ms: requests are open"
    with controller, pytest.raises(RunError, match=sentence):
        controller.run(deployment)


@pytest.mark.processes
def test_of_two_controllers_with_the_same_ports_one_goes_on(pair: tuple[Path, Path]) -> None:
    deployment, base = small_deployment("pp"), free_port()
    roles = [replace(r, port=base + n) for n, r in enumerate(worker_roles(pair, deployment))]
    controllers = [Controller(roles, deployment) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        entering = [pool.submit(each.__enter__) for each in controllers]
    for controller in controllers:
        controller.close()
    errors = [error for each in entering if (error := each.exception()) is not None]
    assert [str(error) for error in errors] == [
        f"key base_port: port {base}, wanted by draft0, is in use on {LOOPBACK}"
    ]


# --- the fork server -----------------------------------------------------------------------------


def test_it_imports_while_its_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that has PyTorch already would only start what it may not need."""
    started = list[str]()
    monkeypatch.setattr(fork_server, "fork_server", lambda: started.append("fork server"))
    fork_server.import_ahead()
    assert not started
    monkeypatch.delitem(sys.modules, "torch")
    fork_server.import_ahead()
    assert started == ["fork server"]


CHILDREN = """
import os, signal
from treepipe.executor.hosts.fork_server import end_with_fork_server

def stopped():
    end_with_fork_server()
    os.kill(os.getpid(), signal.SIGSTOP)

def waiting():
    end_with_fork_server()
    signal.pause()
"""
"""A module of its own, as workers do not import a script."""
STOPPED_CHILD = """
import time
from children import stopped
from treepipe.executor.hosts.fork_server import fork_server, start

if __name__ == "__main__":
    process = fork_server([]).Process(target=stopped)
    start(process)
    print(process.pid, flush=True)
    time.sleep(60)
"""


def _script(folder: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    file = folder / "script.py"
    file.write_text(text)
    (folder / "children.py").write_text(CHILDREN)
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": f"{ROOT}:{folder}"}
    return subprocess.Popen(
        [sys.executable, str(file), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end a child with its parent")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP])
def test_nothing_is_left_of_a_killed_controller_with_a_stopped_child(
    tmp_path: Path, how: signal.Signals
) -> None:
    """Killed alone; by ``timeout`` or a closed terminal with all that it has started."""
    with _script(tmp_path, STOPPED_CHILD) as controller:
        assert controller.stdout is not None
        child = psutil.Process(int(controller.stdout.readline()))
        while child.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        below = psutil.Process(controller.pid).children(recursive=True)
        assert len(below) == 3, "tracker, fork server, child"
        if how == signal.SIGKILL:
            controller.kill()
        else:
            os.killpg(controller.pid, how)
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive
    assert not [*tmp_path.glob("pymp-*")]


FAILING_SERVER = """
import gc, os, signal, sys
from multiprocessing import forkserver
from children import waiting
from treepipe.core.errors import RunError
from treepipe.executor.hosts import fork_server as module, processes
from treepipe.executor.hosts.fork_server import fork_server, start
from treepipe.executor.hosts.processes import Processes

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def stop():
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)

def refused(context):
    try:
        start(context.Process(target=waiting, name="draft0"))
    except RunError as error:
        return error

if __name__ == "__main__" and sys.argv[1] == "killed":
    gc.disable()
    context = fork_server(["kills_itself"])
    before, error = descriptors(), refused(context)
    print(descriptors() - before, error)
elif __name__ == "__main__":
    context = fork_server([])
    before = descriptors()
    host = Processes()
    for number in range(3):
        each = host._running[str(number)] = context.Process(target=waiting)
        start(each)
    module.START_S = processes.KILLED_S = 0.3
    stop()
    ended = host.end()
    assert [code for _, code in ended] == [255, 255, 255], ended
    del each
    left = descriptors() - before
    fork_server([])
    stop()
    print(left, refused(context))
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for open descriptors")
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_fork_server_that_is_killed_or_stopped_is_not_waited_for(
    tmp_path: Path, how: str
) -> None:
    """Neither to end what it has started, which leaves no descriptor, nor to start more."""
    (tmp_path / "kills_itself.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    with _script(tmp_path, FAILING_SERVER, how) as script:
        said, _ = script.communicate(timeout=60)
    assert said.startswith("0 the fork server, from which draft0 was to be started, ended")


# --- what a failed run leaves --------------------------------------------------------------------


class _FailingController(AbstractContextManager[Any]):
    """Its first run ends, its second fails with 2 tokens of one request."""

    def __init__(self, roles: object, deployment: object) -> None:
        self._runs = 0

    def __exit__(self, *error: object) -> None: ...

    def close(self) -> None: ...

    def run(self, deployment: object, progress: object) -> tuple[Trace, Recording]:
        self._runs += 1
        request = RequestTrace(1, 4, 0.0, 9.0, ((5.0, 2),), (7, 8), (), "run ended")
        trace = Trace(("draft0",), requests=[request], complete=self._runs == 1)
        recording = Recording({1: RecordedRequest(4, (7, 8))}, trace.complete)
        if trace.complete:
            return trace, recording
        raise RunEndedError("stage1 died (exit code -9)", 9.0, trace, recording)


@pytest.fixture
def failing(terminal: Terminal) -> Callable[..., None]:
    """Run a scenario whose second run fails, with one sentence that holds this part."""
    (terminal.folder / "small.toml").write_text(SCENARIO)
    deployment = deploy(Scenario.load(terminal.folder / "small.toml"))
    launch = SimpleNamespace(roles=(), deployment=deployment, runs=(deployment, deployment))
    terminal.monkeypatch.setattr(execute_module, "prepare", lambda scenario: launch)
    terminal.monkeypatch.setattr(execute_module, "Controller", _FailingController)

    def run(part: str, *arguments: str) -> None:
        terminal.fails(part, "run", "small.toml", "--quiet", *arguments, code=1)

    return run


def test_a_failed_run_saves_its_texts_where_the_user_asked(failing: Callable[..., None]) -> None:
    failure = "stage1 died (exit code -9), 9 ms after the run began"
    saved = "; 2 tokens of 1 requests were committed until then, saved in out.json, heard.json"
    failing(failure + saved, "--json", "out.json", "--recording", "heard.json")
    result = json.loads(Path("out.json").read_text())
    assert result["complete"] is False
    assert result["runs"] == 1
    assert result["failure"] == failure
    assert [session["tokens"] for session in result["sessions"]] == [[7, 8]]
    recording = Recording.load(Path("heard.json"))
    assert not recording.complete
    assert recording.requests[1].text == (7, 8)


def test_a_failed_run_says_where_its_texts_are_if_nothing_was_asked_for(
    failing: Callable[..., None],
) -> None:
    for name in ("small-incomplete.json", "small-incomplete-2.json"):
        failing(f"saved in {name}")
        assert json.loads(Path(name).read_text())["sessions"][0]["tokens"] == [7, 8]
    failing("but they could not be saved: ", "--recording", "/dev/full")
