"""Calling ``treepipe`` as a user does, and a small scenario to call it with; for tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import typer.main

from tests.worlds.profile_files import model_file
from treepipe.cli import main as cli
from treepipe.core.errors import UserError
from treepipe.results.metrics import METRICS
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

SCENARIO = f"""
name = "small"
seed = 3
runs = 2
[target]
layers = 8
profile = "{model_file(8, 1.0, 4.0)}"
[[drafts]]
device = "emulated-20ms"
[[pipelines]]
stages = [{{ device = {{ stage_ms = {{ 1 = 10.0, 64 = 12.0 }} }}, count = 2 }}]
[links]
default = "emulated-1ms"
[schedule]
name = "flowspec"
tree_size = 20
[acceptance]
source = "bernoulli"
beta = 0.7
[workload]
requests = 2
new_tokens = 12
"""
USUAL_METRICS = {
    name
    for name, metric in METRICS.items()
    if (metric.percentile is None or not metric.percentile.of_requests)
    and name not in ("joules_per_token", "usd_per_million_tokens", "fairness", "slo_attainment")
    and name not in ("goodput_requests_s", "preemptions_per_request")
    and name != "recomputed_tokens_per_request"
}
"""What a run of it has: not what needs several pipelines, many requests, prices, or requests that
can be preempted or are promised something."""


def on_one_host(text: str) -> str:
    """Give the scenario's text with all of its roles on the host ``box``."""
    text = text.replace("[[drafts]]\n", '[[drafts]]\nhost = "box"\n')
    return text.replace("stages = [{ ", 'stages = [{ host = "box", ')


ROOT = Path(__file__).parents[2]
WORK = {
    "simulate": "treepipe.sim.predict.predict",
    "run": "treepipe.executor.run.controller.execute",
    "validate": "treepipe.validation.comparison.compared",
    "plan": "treepipe.planner.plan.rank",
    "sweep": "treepipe.sweeps.sweep.carry_out",
    "study": "treepipe.studies.study.run_study",
    "demo": "treepipe.validation.demo.run_demo",
    "profiles": "treepipe.cli.show_profiles.show_profile",
    "calibrate": "treepipe.executor.measure.calibrate.open_subject",
}
"""What each command spends its time on."""
ARGUMENTS = {
    "plan": [ROOT / "studies" / "clusters" / "five-jetsons.toml"],
    "sweep": [ROOT / "studies" / "sweeps" / "flowspec-links.toml", "--out", "swept"],
    "study": ["which-system"],
    "demo": [],
    "profiles": ["h100"],
    "calibrate": [],
}
"""Of those that take no scenario."""


commands = cache(typer.main.get_command)
"""The same for every call: putting them together takes longer than many a command."""


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run ``treepipe`` with these arguments; returns its exit code."""
    monkeypatch.setattr(typer.main, "get_command", commands)
    monkeypatch.setattr("sys.argv", ["treepipe", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def assert_sentence(error: str, part: str) -> None:
    assert part in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


@dataclass(frozen=True)
class Terminal:
    """A user who gives commands in a folder, which is empty at first."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def succeeds(self, *arguments: object) -> str:
        """Run ``treepipe`` with these arguments; returns what it says."""
        assert call(self.monkeypatch, *arguments) == 0
        return self.capsys.readouterr().out

    def fails(self, part: str, *arguments: object, code: int = 2) -> str:
        """The command ends with this code, and with one sentence that holds this part, behind a
        formula's answer at most; returns what it says besides."""
        assert call(self.monkeypatch, *arguments) == code
        shown = self.capsys.readouterr()
        lines = shown.err.splitlines(keepends=True)
        assert_sentence("".join(lines[lines[0].startswith("first answer") :]), part)
        return shown.out

    def refuses(self, part: str, *arguments: object) -> None:
        """The same, and no file is made, changed or removed."""
        before = self._files()
        self.fails(part, *arguments)
        assert self._files() == before

    def _files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


def assert_refused(scenario: Path, setting: str, sentence: str, *others: str) -> None:
    """The prediction of a scenario with this setting is refused in one sentence."""
    with pytest.raises(UserError) as refused:
        predict(Scenario.load(scenario, [*others, setting]))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def run_with(folder: Path, target: str, draft: str) -> Path:
    text = SCENARIO.replace("[target]\n", f'[target]\ncheckpoint = "{target}"\n')
    text = text.replace("[[drafts]]\n", f'[[drafts]]\nmodel.checkpoint = "{draft}"\n')
    path = folder / "run.toml"
    path.write_text(text)
    return path
