"""Workers that do not answer, and runs that end underway: named, saved, nothing left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.worlds.command_line import SCENARIO, assert_sentence, call
from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
from tests.worlds.tiny_models import greedy
from treepipe.core.errors import RunError, UserError
from treepipe.core.requests import RequestTrace
from treepipe.executor import execute as execute_module
from treepipe.executor import fork_server, pulse
from treepipe.executor.controller import Controller, RunEndedError
from treepipe.executor.pulse import AT_WORK, IDLE, LostWorkerError, Pulse, Watch
from treepipe.executor.transport import LOOPBACK
from treepipe.results.recording import RecordedRequest, Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import SWITCH, RequestSpec
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario

TIMEOUT_MS = 1000.0
"""Of the runs; half of the default, so that nobody waits for long."""
LONG = (RequestSpec(PROMPT[:20], 10), RequestSpec(PROMPT[:9], 60))
"""The first is over while the second has some tokens and wants many more."""

# --- the controller's side, in memory -----------------------------------------------------------


class _Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(pulse, "now_ms", made)
    return made


def watched(*names: str) -> tuple[Watch, dict[str, Any]]:
    watch, ends = Watch(30_000.0), {}
    for name in names:
        look, ends[name] = multiprocessing.Pipe(duplex=False)
        watch.add(name, look)
    return watch, ends


def test_the_silent_worker_is_named_and_no_other(clock: _Clock) -> None:
    watch, ends = watched("draft0", "stage1")
    watch.serves("draft0")
    watch.serves("stage1")
    os.write(ends["stage1"].fileno(), AT_WORK)
    for _ in range(59):
        clock.ms += 500.0
        os.write(ends["draft0"].fileno(), AT_WORK)
        watch.look()
    clock.ms += 500.0
    os.write(ends["draft0"].fileno(), AT_WORK)
    with pytest.raises(LostWorkerError, match=r"^stage1 has not answered for 29500 ms \(faults\."):
        watch.look()
    watch.close()


def test_a_pause_of_all_processes_is_nobodys_silence(clock: _Clock) -> None:
    """Ctrl-Z, or a computer that slept: the controller was not there to listen, either."""
    watch, ends = watched("stage1")
    for _ in range(20):
        clock.ms += 3_600_000.0
        watch.look()
    os.write(ends["stage1"].fileno(), AT_WORK)
    clock.ms += 500.0
    watch.look()
    watch.close()


def test_a_worker_that_never_shows_itself_is_named_in_the_end(clock: _Clock) -> None:
    watch, _ = watched("stage1")
    while clock.ms < pulse.START_MS + 29_000.0:
        clock.ms += 500.0
        watch.look()
    clock.ms += 500.0
    with pytest.raises(LostWorkerError, match=r"^stage1 has not answered"):
        watch.look()
    watch.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of threads")
def test_a_worker_that_gets_no_processor_is_not_silent(clock: _Clock) -> None:
    """Our own process would run right now, since it does; one that ended would not."""
    for process, named in ((os.getpid(), False), (2**22 + 1, True)):
        watch = Watch(30_000.0)
        look, _end = multiprocessing.Pipe(duplex=False)
        watch.add("stage1", look, process)
        watch.serves("stage1")
        lost = list[str]()
        for _ in range(61):
            clock.ms += 500.0
            try:
                watch.look()
            except LostWorkerError as error:
                lost.append(error.name)
        assert bool(lost) == named
        watch.close()


def test_all_are_idle_only_together(clock: _Clock) -> None:
    watch, ends = watched("draft0", "stage1")
    for step in range(20):
        clock.ms += 500.0
        os.write(ends["draft0"].fileno(), IDLE)
        os.write(ends["stage1"].fileno(), AT_WORK if step < 10 else IDLE)
        watch.look()
    assert watch.all_idle_ms() == pytest.approx(5000.0)
    watch.close()


# --- the worker's side ---------------------------------------------------------------------------


def _beats_of(main: Callable[[threading.Event], None], seconds: float) -> int:
    """How often a worker beats within a time in which its main thread does this."""
    look, beat = multiprocessing.Pipe(duplex=False)
    over, left = threading.Event(), threading.Event()

    def work() -> None:
        Pulse(beat, 400.0, leave=lambda code: left.set())
        main(over)

    thread = threading.Thread(target=work)
    thread.start()
    deadline, beats = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        if look.poll(0.05):
            beats += len(os.read(look.fileno(), 100))
    over.set()
    thread.join()
    look.close()
    assert left.wait(pulse.LEAVE_S + 5), "it leaves when nobody looks any more"
    return beats


def _compute(over: threading.Event) -> None:
    while not over.is_set():
        sum(range(1000))


@pytest.fixture
def leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "LEAVE_S", 0.1)


@pytest.mark.processes
@pytest.mark.usefixtures("leaves_at_once")
def test_a_worker_that_computes_is_not_silent() -> None:
    assert _beats_of(_compute, 1.0) >= 2


@pytest.mark.processes
@pytest.mark.usefixtures("leaves_at_once")
def test_a_worker_that_is_stuck_is_silent() -> None:
    assert _beats_of(lambda over: over.wait() and None, 1.5) <= 2, "only for what came before"


# --- real processes ------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("name", ["draft0", "pipeline0.stage2", SWITCH])
def test_a_stopped_worker_ends_the_run(pair: tuple[Path, Path], name: str) -> None:
    deployment = replace(small_deployment("flowspec", clients=2), requests=LONG)
    if name == SWITCH:
        deployment = replace(deployment, central_transfers=True)
    roles = worker_roles(pair, deployment, timeout_ms=TIMEOUT_MS)
    with Controller(roles, deployment) as running:
        processes = {name: p.pid for name, p in running.crew.lines.processes.items()}
        stopped = processes[name]
        assert stopped is not None
        sentence = rf"^{name} has not answered for \d+ ms \(faults\.timeout_ms = 1000\)"
        moments = list[float]()

        def stop() -> None:
            moments.append(time.monotonic())
            os.kill(stopped, signal.SIGSTOP)

        begun = time.monotonic()
        with pytest.raises(RunEndedError, match=sentence) as ended:
            running.run(deployment, stop)
    noticed_ms = ended.value.at_ms - 1e3 * (moments[0] - begun)
    assert TIMEOUT_MS / 2 < noticed_ms < TIMEOUT_MS + 500, "a busy host may look late"
    assert not any(psutil.pid_exists(pid) for pid in processes.values() if pid is not None)
    requests = ended.value.trace.requests
    assert [r.reason for r in requests] == ["length", "run ended"]
    for request, spec in zip(requests, LONG, strict=True):
        text = greedy(pair[0], list(spec.prompt), spec.max_new_tokens)
        assert list(request.tokens) == text[: len(request.tokens)]
        assert request.tokens
        assert ended.value.recording.requests[request.session].text == request.tokens
    assert not ended.value.recording.complete


@pytest.mark.processes
def test_a_lost_message_does_not_hang_a_run(pair: tuple[Path, Path]) -> None:
    """One stage's messages are dropped as foreign, so that all wait for each other."""
    deployment = small_deployment("pp")
    controller = Controller(worker_roles(pair, deployment, timeout_ms=TIMEOUT_MS), deployment)
    controller.crew.roles[2] = replace(controller.crew.roles[2], token=bytes(16))
    sentence = r"^nothing happened for \d+ ms: requests are open"
    with controller, pytest.raises(RunError, match=sentence):
        controller.run(deployment)


@pytest.mark.processes
def test_of_two_controllers_with_the_same_ports_one_goes_on(pair: tuple[Path, Path]) -> None:
    deployment = small_deployment("pp")
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        base = int(probe.getsockname()[1])
    roles = [replace(r, port=base + n) for n, r in enumerate(worker_roles(pair, deployment))]
    controllers = [Controller(roles, deployment) for _ in range(2)]
    together, errors = threading.Barrier(2), list[UserError]()

    def enter(controller: Controller) -> None:
        together.wait()
        try:
            controller.__enter__()
        except UserError as error:
            errors.append(error)

    threads = [threading.Thread(target=enter, args=(controller,)) for controller in controllers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for controller in controllers:
        controller.close()
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


STOPPED_CHILD = """
import os, signal, sys, time
from treepipe.executor.fork_server import end_with_fork_server, fork_server, start

def child():
    end_with_fork_server()
    os.kill(os.getpid(), signal.SIGSTOP)

if __name__ == "__main__":
    process = fork_server([]).Process(target=child)
    start(process)
    print(process.pid, flush=True)
    time.sleep(60)
"""


def _script(folder: Path, text: str) -> subprocess.Popen[str]:
    file = folder / "script.py"
    file.write_text(text)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": f"{root}:{folder}"}
    return subprocess.Popen(
        [sys.executable, str(file)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end a child with its parent")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
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


STOPPED_SERVER = """
import os, signal
from multiprocessing import forkserver
from treepipe.core.errors import RunError
from treepipe.executor import fork_server as module
from treepipe.executor.fork_server import end_process, end_with_fork_server, fork_server, start

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def stop():
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)

def child():
    end_with_fork_server()
    signal.pause()

if __name__ == "__main__":
    context = fork_server([])
    before = descriptors()
    processes = [context.Process(target=child) for _ in range(3)]
    for each in processes:
        start(each)
    module.START_S = module.KILLED_S = 0.3
    stop()
    print([end_process(each) for each in processes], descriptors() - before)
    fork_server([])
    stop()
    try:
        start(context.Process(target=child, name="draft0"))
    except RunError as error:
        print(error)
"""


@pytest.mark.processes
def test_a_stopped_fork_server_is_not_waited_for(tmp_path: Path) -> None:
    """Neither to end what it has started, which leaves no descriptor, nor to start more."""
    with _script(tmp_path, STOPPED_SERVER) as script:
        said, _ = script.communicate(timeout=60)
    ended, started = said.splitlines()
    assert ended == "[255, 255, 255] 0"
    assert started.startswith("the fork server, from which draft0 was to be started, ended")


DYING_SERVER = """
import gc, os
from treepipe.core.errors import RunError
from treepipe.executor.fork_server import fork_server, start

if __name__ == "__main__":
    process = fork_server(["kills_itself"]).Process(target=print, name="draft0")
    gc.disable()
    before, errors = len(os.listdir("/proc/self/fd")), []
    try:
        start(process)
    except RunError as error:
        errors.append(error)
    print(len(os.listdir("/proc/self/fd")) - before, *errors)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for open descriptors")
def test_a_fork_server_that_is_killed_is_one_sentence_and_leaves_no_descriptor(
    tmp_path: Path,
) -> None:
    (tmp_path / "kills_itself.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    with _script(tmp_path, DYING_SERVER) as script:
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
def failing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder to work in, with a scenario whose second run fails."""
    (tmp_path / "small.toml").write_text(SCENARIO)
    deployment = deploy(Scenario.load(tmp_path / "small.toml"))
    launch = SimpleNamespace(roles=(), deployment=deployment, runs=(deployment, deployment))
    monkeypatch.setattr(execute_module, "prepare", lambda scenario: launch)
    monkeypatch.setattr(execute_module, "Controller", _FailingController)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_failed_run_saves_its_texts_where_the_user_asked(
    failing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--json", "out.json", "--recording", "heard.json")
    assert call(monkeypatch, "run", "small.toml", "--quiet", *files) == 1
    said = capsys.readouterr().err
    failure = "stage1 died (exit code -9), 9 ms after the run began"
    assert_sentence(said, f"{failure}; 2 tokens of 1 requests were committed")
    assert "saved in out.json, heard.json" in said
    result = json.loads((failing / "out.json").read_text())
    assert result["complete"] is False
    assert result["runs"] == 1
    assert result["failure"] == failure
    assert [session["tokens"] for session in result["sessions"]] == [[7, 8]]
    recording = Recording.load(failing / "heard.json")
    assert not recording.complete
    assert recording.requests[1].text == (7, 8)


def test_a_failed_run_says_where_its_texts_are_if_nothing_was_asked_for(
    failing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("small-incomplete.json", "small-incomplete-2.json"):
        assert call(monkeypatch, "run", "small.toml", "--quiet") == 1
        assert f"saved in {name}" in capsys.readouterr().err
        assert json.loads((failing / name).read_text())["sessions"][0]["tokens"] == [7, 8]


def test_texts_that_cannot_be_saved_are_still_one_sentence(
    failing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "run", "small.toml", "--quiet", "--recording", "/dev/full") == 1
    assert_sentence(capsys.readouterr().err, "but they could not be saved: ")
