"""Signals that end a command: one sentence, 128 and the signal's number, no traceback and nothing
left of any process, and what is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.worlds.command_line import ARGUMENTS, ROOT, WORK, Terminal, assert_sentence, on_one_host
from tests.worlds.examples import THOROUGH
from tests.worlds.hosts import free_port
from treepipe.files.outputs import write_file
from treepipe.interruption import Interruption, children_shielded


def press(*_: object, **__: object) -> None:
    signal.raise_signal(signal.SIGINT)


def press_in_an_import(*_: object, **__: object) -> None:
    """An import may turn an interruption into any other error."""
    try:
        press()
    except KeyboardInterrupt:
        raise RecursionError("while importing") from None


def press_in_exec(*_: object, **__: object) -> None:
    exec("press()")


def press_after_a_file(*_: object, **__: object) -> None:
    write_file(Path("of the work alone.toml"), "what only the work needs, as in a temporary folder")
    Path("of the work alone.toml").unlink()
    write_file(Path("half.toml"), "what is known")
    press()


@pytest.fixture
def works(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[object]]:
    """Gives a command something else to do; returns the words that call it."""

    def replaced(command: str, work: Callable[..., None]) -> list[object]:
        monkeypatch.setattr(WORK[command], work)
        return [command, *ARGUMENTS.get(command, [scenario])]

    return replaced


class _PressesAtTheCommandLine:
    """A finder of modules that is interrupted at the command line's own."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "treepipe.cli.main":
            press_in_an_import()


def test_an_interruption_before_the_command_line_is_there_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from treepipe import __main__

    monkeypatch.delitem(sys.modules, "treepipe.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_PressesAtTheCommandLine(), *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        __main__.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "treepipe: interrupted; nothing was written\n"


@pytest.mark.parametrize("command", [name for name in WORK if name != "profiles"])
@pytest.mark.parametrize("work", [press, press_in_an_import], ids=["plain", "in an import"])
def test_an_interruption_is_one_sentence(
    command: str, work: Callable[..., None], terminal: Terminal, works: Callable[..., list[object]]
) -> None:
    sentence = "treepipe: interrupted; nothing was written"
    assert not terminal.fails(sentence, *works(command, work), code=130)


def test_what_is_written_until_then_is_named(
    terminal: Terminal, works: Callable[..., list[object]]
) -> None:
    """Of this call alone, not of those before."""
    kept = "interrupted; half.toml holds what was done until"
    terminal.fails(kept, *works("plan", press_after_a_file), code=130)
    terminal.fails("interrupted; noth", *works("plan", press), code=130)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_it_alike(
    number: signal.Signals, terminal: Terminal, works: Callable[..., list[object]]
) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # we may ignore it

    def end(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # as ``timeout`` sends it twice: it cuts no cleaning up

    sentence = "treepipe: interrupted; nothing was written"
    try:
        terminal.fails(sentence, *works("simulate", end), code=128 + number)
    finally:
        signal.signal(number, before)


def test_an_error_without_an_interruption_stays_an_error(
    terminal: Terminal, works: Callable[..., list[object]]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RecursionError("a fault of ours")

    with pytest.raises(RecursionError, match="a fault of ours"):
        terminal.succeeds(*works("simulate", fail))


def test_the_handler_of_before_is_back_and_ignoring_stays_ignoring() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Interruption.noted() as interruption:
        press()
    assert interruption.happened
    assert signal.getsignal(signal.SIGINT) is before
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Interruption.noted() as interruption:
            press()
        assert not interruption.happened
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def _start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


DEMO = ROOT / "studies" / "scenarios" / "demo.toml"
CLUSTER, GRID = ARGUMENTS["plan"][0], ARGUMENTS["sweep"][0]
AT_WORK = {
    "plan": ("loky", "plan", CLUSTER, "--out", "best.toml", "--jobs", 2),
    "sweep": ("loky", "sweep", GRID, "--out", "swept", "--jobs", 2),
    "study": ("loky", "study", "which-system"),
    "run": ("forkserver", "run", DEMO, "--set", "workload.new_tokens=300"),
    "validate": ("forkserver", "validate", DEMO, "--set", "workload.new_tokens=8"),
    "demo": ("", "demo"),
    "calibrate": ("", "calibrate"),
    "calibrate links": ("forkserver", "calibrate", "links"),
    "calibrate run": ("forkserver", "calibrate", "run", "hosts.toml"),
    "worker": ("stderr", "worker", "--listen", "127.0.0.1:PORT"),
    "check": ("", "check", "--executor", "ours"),
}
"""Commands that start processes, or serve; first what the processes are called, or where it is said
that the command serves; nothing: the work begins with PyTorch."""
ALIKE = {"sweep", "study", "validate", "calibrate", "calibrate links", "calibrate run", "demo"}
"""Begun as others are: in the processes of a plan, in those of a run, or by PyTorch."""
ENDS = [
    *((name, signal.SIGTERM, "alone") for name in AT_WORK if THOROUGH or name not in ALIKE),
    ("run", signal.SIGHUP, "all"),
    *((name, signal.SIGINT, "all") for name in ("sweep", "worker")),
]


@pytest.mark.processes
@pytest.mark.parametrize(("command", "number", "whom"), ENDS)
def test_nothing_is_left_of_a_command_that_is_ended(
    command: str, number: signal.Signals, whom: str, tmp_path: Path
) -> None:
    """Whether its main process alone gets the signal or all do; its output ends, too."""
    called, *arguments = AT_WORK[command]
    (tmp_path / "hosts.toml").write_text(on_one_host(DEMO.read_text()))
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            DEFAULTS,
            *(str(each).replace("PORT", str(free_port())) for each in arguments),
        ],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    below = _at_work(process, called)
    if whom == "all":
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, error = process.communicate(timeout=60)
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive
    assert not [*tmp_path.glob("pymp-*")]
    assert process.returncode == (0 if command == "worker" else 128 + number)
    assert "Traceback" not in error
    assert error.count("interrupted; ") == (command != "worker")


DEFAULTS = """
import signal
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.default_int_handler if each == signal.SIGINT else signal.SIG_DFL)
from treepipe.__main__ import main
if __name__ == "__main__":
    main()
"""
"""The command as from a terminal: whoever runs the tests may ignore a signal, which children do
then, too."""


def _at_work(process: subprocess.Popen[str], called: str) -> list[psutil.Process]:
    """Wait until the command has two processes of that name, or has loaded PyTorch; or serves."""
    deadline, main = time.monotonic() + 200, psutil.Process(process.pid)
    if called.startswith("std"):
        assert "listening" in getattr(process, called).readline()
        return main.children(recursive=True)
    while time.monotonic() < deadline and process.poll() is None:
        below = main.children(recursive=True)
        named = [each for each in below if called and called in " ".join(_words(each))]
        if len(named) >= 2:
            return below
        with suppress(psutil.Error):  # it has just ended
            if not called and any("libtorch" in each.path for each in main.memory_maps()):
                return below
        time.sleep(0.05)  # what is waited for needs the processor
    process.kill()
    raise AssertionError(f"it did not come to work: {process.communicate()}")


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


EXEC = """
import sys
from tests.cli.test_interruption import press_in_exec
from treepipe.cli import main as cli
import treepipe.cli.show_profiles as display
display.show_profiles = press_in_exec
sys.argv = ["treepipe", "profiles"]
cli.main()
"""


@pytest.mark.processes
def test_the_process_ends_by_its_exit_code_and_not_by_the_signal() -> None:
    """Python ends by the signal where ``exec`` was interrupted, as dataclasses call it."""
    process = _start(EXEC)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert_sentence(error, "interrupted")


@pytest.mark.processes
def test_children_started_in_the_shield_do_not_get_it() -> None:
    code = "print('ready', flush=True); input(); print('still here')"
    with children_shielded():
        child = _start(code)
    assert child.stdout.readline() == "ready\n"
    os.killpg(child.pid, signal.SIGINT)
    assert child.communicate("\n", timeout=60) == ("still here\n", "")
    assert child.returncode == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


IMPORTING = """
import sys
from treepipe.executor.hosts.fork_server import fork_server
fork_server(["imports_slowly"])
sys.stdin.readline()
"""


@pytest.mark.processes
def test_a_fork_server_that_still_imports_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the signal by its own code only after its imports (seconds, with torch)."""
    (tmp_path / "imports_slowly.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"  # as a terminal sends it, now
        "finally:\n"
        "    print('imported', flush=True)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = _start(IMPORTING)
    assert process.stdout.readline() == "imported\n"
    assert process.communicate("\n", timeout=60) == ("", "")
