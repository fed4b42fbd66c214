"""Ctrl-C: one sentence, exit code 130, no traceback of any process, and what is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worlds.command_line import ARGUMENTS, WORK, Terminal, assert_sentence
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
from treepipe.executor.fork_server import fork_server
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
