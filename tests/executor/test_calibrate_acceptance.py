"""``treepipe calibrate acceptance``: a recorded pool, its profile, and a scenario that uses it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.command_line import SCENARIO, Terminal
from treepipe.executor.measure.acceptance import open_pair
from treepipe.executor.measure.calibrate import calibrate_acceptance
from treepipe.executor.measure.calibration import record_acceptance
from treepipe.executor.measure.requests import AcceptanceRequest
from treepipe.profiles.check import check_file
from treepipe.profiles.library import find_acceptance
from treepipe.profiles.pool_file import PoolFile

pytestmark = pytest.mark.processes

TEXTS = ["def spam(eggs):", "import os", "The quick brown fox"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(TEXTS))
    return path


def test_the_reference_pair_is_recorded_and_simulates(terminal: Terminal, prompts: Path) -> None:
    out = terminal.folder / "pair.toml"
    arguments = ("--prompts", prompts, "--new-tokens", 10, "--task", "code", "--quiet")
    terminal.succeeds("calibrate", "acceptance", *arguments, "--out", out)
    kind, warnings = check_file(out)
    assert (kind, warnings) == ("acceptance", [])
    profile, _ = find_acceptance(str(out), "test")
    assert (profile.target, profile.draft, profile.task) == ("reference", "reference", "code")
    assert profile.pool == "pair.json"
    pair = open_pair(AcceptanceRequest(prompts=str(prompts), new_tokens=10))
    recorded = record_acceptance(pair.settings, pair.texts)
    for ours, theirs in zip(
        PoolFile.load(out.with_suffix(".json")).prompts, recorded.prompts, strict=True
    ):
        assert ours.known.ranks == theirs.known.ranks
        np.testing.assert_allclose(ours.known.vectors, theirs.known.vectors, atol=1e-3)
    assert f"of {len(recorded.ranks)} tokens of 3 texts" in profile.origin.note
    path = terminal.folder / "scenario.toml"
    bernoulli = 'source = "bernoulli"\nbeta = 0.7'
    path.write_text(SCENARIO.replace(bernoulli, 'source = "profile"\nname = "./pair.toml"'))
    terminal.succeeds("simulate", path, "--quiet")


def test_a_head_is_recorded_with_its_guesses(terminal: Terminal, prompts: Path) -> None:
    arguments = ("--head", "reference", "--prompts", prompts, "--new-tokens", 6, "--quiet")
    terminal.succeeds("calibrate", "acceptance", *arguments, "--out", "head.toml")
    assert all(each.guessed for each in PoolFile.load(Path("head.json")).prompts)


def test_an_interruption_keeps_the_prompts_that_are_done(tmp_path: Path, prompts: Path) -> None:
    out, done = tmp_path / "pair.toml", 0

    def say(what: str, steps: int) -> None:
        nonlocal done
        done += not what
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    asked = AcceptanceRequest(prompts=str(prompts), new_tokens=6, task="code", out=out)
    with pytest.raises(KeyboardInterrupt):
        calibrate_acceptance(asked, say)
    profile, _ = find_acceptance(str(out), "test")
    assert "of 2 texts" in profile.origin.note
    assert "interrupted, 3 texts were asked for" in profile.origin.note
    assert len(json.loads((tmp_path / "pair.json").read_text())["prompts"]) == 2
