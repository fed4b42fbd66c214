"""The command line as a user meets it: results, and one sentence with exit code 2 for bad input."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.worlds.command_line import ROOT, Terminal, run_with
from tests.worlds.examples import THOROUGH
from treepipe import Scenario, simulate
from treepipe.results import show
from treepipe.studies.study import STUDIES

SCENARIOS = [
    path
    for path in sorted((ROOT / "studies" / "scenarios").glob("*.toml"))
    if THOROUGH or path.stem in ("spd", "starsd")
]
SMALL = ["--set", "workload.requests=1", "--set", "workload.new_tokens=6", "--runs", "1"]


def test_simulate_writes_a_result_a_trace_and_a_picture(scenario: Path, terminal: Terminal) -> None:
    result, trace, plot = (Path(name) for name in ("r.json", "t.json", "p.png"))
    options = ["--json", result, "--trace", trace, "--plot", plot, "--quiet"]
    terminal.succeeds("simulate", scenario, *options)
    content = json.loads(result.read_text())
    assert content["schema"] == "treepipe.result/1"
    assert (content["source"], content["runs"], content["seed"]) == ("simulation", 2, 3)
    assert set(content["utilization"]) == {"draft0", "pipeline0.stage1", "pipeline0.stage2"}
    assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} == set("XM")
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("rule", ["exact", "relaxed_best", "relaxed_top_p"])
def test_a_lossy_rule_is_reported_as_lossy(scenario: Path, rule: str) -> None:
    result = simulate(Scenario.load(scenario, [f"sampling.rule={rule}"]))
    assert result.to_json()["lossless"] is (rule == "exact")


def test_the_version_is_shown(terminal: Terminal) -> None:
    versions = importlib.metadata.version("treepipe"), platform.python_version()
    assert terminal.succeeds("--version") == "treepipe {} (Python {})\n".format(*versions)


def test_keys_are_shown_below_a_path(terminal: Terminal) -> None:
    shown = terminal.succeeds("keys", "pipelines.0.stages")
    assert "pipelines.stages.device.stage_ms" in shown
    assert "links.default" not in shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["profiles"], "emulated-20ms"),
        (["profiles", "emulated-20ms"], "stage_ms"),
        (["check"], "answered_once"),
        (["check", "--list"], "tree_attention"),
        *((["study", *alone], name) for name in STUDIES for alone in ((), ("--list",))),
    ],
)
def test_what_there_is_is_listed(arguments: list[str], shown: str, terminal: Terminal) -> None:
    assert shown in terminal.succeeds(*arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["keys", "schedule.gama"], "did you mean 'gamma'?"),
        (["profiles", "nothing"], "there is none of that name"),
        (["study", "which-sistem"], "did you mean 'which-system'?"),
        (["study", "xyz"], "there are clusters, dsd-region"),
        (["study", "--full"], "treepipe study needs a name"),
        (["demo", "--out", "."], "holds something else than an earlier demonstration"),
    ],
)
def test_what_there_is_not_is_one_sentence(
    arguments: list[str], sentence: str, terminal: Terminal
) -> None:
    Path("thesis.txt").write_text("years of work")
    terminal.refuses(sentence, *arguments)


def test_run_without_the_extra_says_which(
    scenario: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    terminal.refuses("pip install 'treepipe[executor]'", "run", scenario)


@pytest.mark.processes
def test_recorded_run_is_replayed_by_simulate(terminal: Terminal) -> None:
    path = run_with(terminal.folder, "reference", "reference")
    options = ["--runs", 1, "--json", "m.json", "--recording", "rec.json", "--quiet"]
    terminal.succeeds("run", path, *options)
    path.write_text(
        path.read_text().replace('"bernoulli"\nbeta = 0.7', '"replay"\nfile = "rec.json"')
    )
    terminal.succeeds("simulate", path, "--json", "p.json", "--quiet")
    one, two = (json.loads(Path(file).read_text()) for file in ("m.json", "p.json"))
    assert one["metrics"]["tokens_per_round"] == two["metrics"]["tokens_per_round"]
    assert one["metrics"]["tokens_per_step"] == two["metrics"]["tokens_per_step"]
    assert set(one["memory"]) == set(one["utilization"])


@pytest.mark.processes
@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_run(path: Path, terminal: Terminal) -> None:
    """One with several pipelines, and one whose stages report states; ``test_local_runs.py`` has
    the workers of all of them decode without processes."""
    terminal.succeeds("run", path, *SMALL, "--json", "result.json", "--quiet")
    assert json.loads(Path("result.json").read_text())["sessions"][0]["new_tokens"] == 6


@pytest.mark.processes
def test_a_terminal_that_knows_only_ascii_is_shown_all_it_can(scenario: Path) -> None:
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    shown = subprocess.run(
        [sys.executable, "-m", "treepipe", "simulate", str(scenario)],
        env={**os.environ, **plain},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"small" in shown.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "place", "answer"), [("si", 1, "simulate"), ("plan --ques", 2, "--question")]
)
def test_a_shell_completes_commands_and_options(words: str, place: int, answer: str) -> None:
    """As bash asks, by the script that ``--show-completion`` prints."""
    command, undetected = (
        [sys.executable, "-m", "treepipe"],
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION",
    )
    script = subprocess.run(
        [*command, "--show-completion", "bash"],
        env={**os.environ, undetected: "1"},
        capture_output=True,
        check=True,
        text=True,
    )
    assert "_TREEPIPE_COMPLETE=complete_bash" in script.stdout
    asks = {"_TREEPIPE_COMPLETE": "complete_bash", "COMP_WORDS": f"treepipe {words}"}
    shown = subprocess.run(
        command,
        env={**os.environ, **asks, "COMP_CWORD": str(place)},
        capture_output=True,
        check=False,
        text=True,
    )
    assert shown.stdout.split() == [answer]


class _Piped:
    """Standard error that is no terminal, and tells when something is written to it."""

    def __init__(self) -> None:
        self.text, self.written = "", threading.Event()

    def write(self, text: str) -> int:
        self.text += text
        self.written.set()
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


@pytest.mark.parametrize("quiet", [False, True])
def test_work_on_a_pipe_tells_how_far_it_is(quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    error = _Piped()
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr(show, "LINE_S", 1e-3)
    with show.ProgressBars(quiet) as say:
        say("12 plans, 2 runs", 12)
        say("", 3)
        say("best so far: chain, 40 ms", 0)
        error.text = ""
        error.written.clear()
        told = error.written.wait(0.2 if quiet else 60)
    assert told == (not quiet)
    if told:
        assert error.text.startswith("12 plans, 2 runs: 3 of 12; best so far: chain, 40 ms\n")


def test_half_of_the_gaps_being_0_is_explained_and_stands_last(
    scenario: Path, terminal: Terminal
) -> None:
    longer = ("--set", "workload.new_tokens=40", "--verbose")
    shown = terminal.succeeds("simulate", scenario, *longer)
    lines = [line.split()[0] for line in shown.splitlines()[2:]]
    assert lines.index("p50_time_between_tokens") > lines.index("throughput_tokens_s")
    assert lines.index("p50_time_between_tokens") > lines.index("draft_idle")
    assert "p50_time_between_tokens is 0: most tokens come together with the one before" in shown


def test_a_title_names_the_schedule_that_runs(scenario: Path, terminal: Terminal) -> None:
    changed = ("--set", "schedule.name=pp", "--json", "-")
    assert "small, schedule flowspec: pred" in terminal.succeeds("simulate", scenario)
    assert "small, schedule pp: predicted" in terminal.succeeds("simulate", scenario, *changed[:2])
    assert json.loads(terminal.succeeds("simulate", scenario, *changed))["schedule"] == "pp"
