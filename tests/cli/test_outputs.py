"""Files that commands write: refused before the work, whole or not at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.worlds.command_line import ARGUMENTS, WORK, Terminal
from treepipe.core.errors import RunError
from treepipe.files.outputs import Failures, WriteError, check_outputs, write_file
from treepipe.results.plots import save_figure


def no_work(*_: object, **__: object) -> None:
    raise AssertionError("the work began")


THERE = "there is such a file already; --force overwrites it"
REFUSED = [
    *((c, ["--json", "none/x.json"], "--json none/x.json: there is no folder none") for c in WORK),
    *((c, ["--json", "taken"], "--json taken: is a folder, not a file") for c in WORK),
    *((c, ["--plot", "x.xyz"], "--plot x.xyz: a picture's name ends in one of .") for c in WORK),
    *((c, ["--plot", "x"], "--plot x: a picture's name ends in one of .") for c in WORK),
    *((c, ["--plot", "none/x.png"], "there is no folder none") for c in WORK),
    *((c, ["--trace", "taken"], "--trace taken: is a folder, not a file") for c in WORK),
    *((c, ["--trace", "-"], "only --json can be written to standard output") for c in WORK),
    *((c, ["--json", "a", "--trace", "./a"], "--json is the same file") for c in WORK),
    ("run", ["--recording", "none/r.json"], "--recording none/r.json: there is no folder none"),
    ("run", ["--recording", "r", "--json", "r"], "--json is the same file"),
    ("simulate", ["--json", "small.toml"], "is a file that this command reads"),
    ("validate", ["--json", "small.toml"], "is a file that this command reads"),
    ("validate", ["--timelines", "small.toml"], "is a file, not a folder"),
    ("simulate", ["--json", "x" * 300], "cannot be written: File name too long"),
    ("simulate", ["--json", "/proc/x.json"], "cannot be written"),
    ("plan", ["--out", "none/best.toml"], "--out none/best.toml: there is no folder none"),
    ("plan", ["--out", "small.toml"], "small.toml: there is such a file already; --force"),
    ("plan", ["--out", "a.toml", "--json", "a.toml"], "--json is the same file"),
    ("calibrate", ["--out", "small.toml"], "small.toml: there is such a file already; --force"),
    ("study", ["--out", "small.toml"], "--out small.toml: is a file, not a folder"),
    ("demo", ["--out", "small.toml"], "--out small.toml: is a file, not a folder"),
    ("demo", ["--out", "/proc/demo"], "--out /proc/demo: cannot be made"),
    ("plan", ["--report", "small.toml"], "--report small.toml: is a file, not a"),
    ("plan", ["--report", "taken"], "--report taken/index.html: " + THERE),
    ("plan", ["--json", "x", "--report", "x"], "--json x: is a folder, not a file"),
    ("plan", ["--out", "r/index.html", "--report", "r"], "--out is the same file"),
    ("study", ["--out", "x", "--json", "x"], "--json x: is a folder, not a file"),
    ("validate", ["--timelines", "x", "--json", "x"], "--json x: is a folder, not a file"),
]
OPTIONS = {
    "--trace": ("simulate", "run"),
    "--plot": ("simulate", "run", "plan"),
    "--json": ("simulate", "run", "validate", "plan", "sweep", "study"),
}


def _takes(command: str, options: list[str]) -> bool:
    return all(command in OPTIONS.get(o, (command,)) for o in options if o.startswith("--"))


@pytest.mark.parametrize(
    ("command", "options", "sentence"),
    [each for each in REFUSED if _takes(each[0], each[1])],
    ids=lambda each: " ".join(each)[:40] if isinstance(each, list) else None,
)
@pytest.mark.usefixtures("scenario")
def test_outputs_are_refused_before_the_work(
    command: str,
    options: list[str],
    sentence: str,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("taken").mkdir()
    Path("taken", "index.html").write_text("mine")
    monkeypatch.setattr(WORK[command], no_work)
    terminal.refuses(sentence, command, *ARGUMENTS.get(command, ["small.toml"]), *options)


@pytest.mark.usefixtures("scenario")
def test_an_earlier_page_is_replaced_where_the_work_is_done(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``--force`` the work begins: else the test above could pass for another reason."""
    Path("index.html").write_text("mine")
    monkeypatch.setattr(WORK["plan"], no_work)
    with pytest.raises(AssertionError, match="the work began"):
        terminal.succeeds("plan", *ARGUMENTS["plan"], "--out", "own", "--report", ".", "--force")
    assert Path("index.html").read_text() == "mine"


def test_a_plan_is_not_written_over_another_unasked(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = ARGUMENTS["plan"]
    Path("c.toml").write_bytes(Path(str(example)).read_bytes())
    best = Path("c-best.toml")
    best.write_text("mine")
    monkeypatch.setattr(WORK["plan"], no_work)
    terminal.refuses("c-best.toml: there is such a file already; --force", "plan", "c.toml")
    for force in ([], ["--force"]):
        own = ("plan", "c.toml", "--out", "c.toml", *force)
        terminal.refuses("is a file that this command reads", *own)
    with pytest.raises(AssertionError, match="the work began"):
        terminal.succeeds("plan", "c.toml", "--force")
    assert best.read_text() == "mine"


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "jpg"])
def test_pictures_have_the_format_of_their_name(ending: str, tmp_path: Path) -> None:
    save_figure(Figure(), tmp_path / f"x.{ending}", 50)
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "jpg": b"\xff\xd8"}
    assert (tmp_path / f"x.{ending}").read_bytes().startswith(begins[ending])


@contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """As on a full disk: writing more ends in the middle of the file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_was_there_stays_if_writing_fails(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    out.write_text("earlier")
    with no_file_above(1000), pytest.raises(WriteError, match=r"--json .*: cannot be written: F"):
        write_file(out, "x" * 5000, "--json")
    assert out.read_text() == "earlier"
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]


def test_files_are_replaced_with_their_links_and_rights(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    write_file(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "real"]


def test_devices_are_written_to_and_not_replaced() -> None:
    null = Path(os.devnull)
    check_outputs({"--json": null, "--trace": null})
    write_file(null, "nothing")
    assert null.is_char_device()


def test_the_others_are_written_where_one_cannot_be(scenario: Path, terminal: Terminal) -> None:
    sentence = "--json /dev/full: cannot be written: No space left on device"
    given = ("simulate", scenario, "--json", "/dev/full", "--trace", "trace.json")
    assert "time_between_tokens" in terminal.fails(sentence, *given, code=1)
    assert Path("trace.json").exists()


def test_faults_are_told_together_and_hide_nothing_else() -> None:
    def fail(what: str) -> None:
        raise RunError(what)

    def several(last: Exception) -> None:
        with Failures() as failures:
            failures.attempt(fail, "one")
            failures.attempt(fail, what="two")
            raise last

    with pytest.raises(RunError, match=r"^one; two; three$"):
        several(RunError("three"))
    with pytest.raises(ValueError, match="other"):
        several(ValueError("other"))
