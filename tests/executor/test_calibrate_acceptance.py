"""``treepipe calibrate acceptance``: a recorded pool, its profile, and a scenario that uses it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.command_line import SCENARIO, assert_sentence, call
from treepipe.executor.measure.acceptance import open_pair
from treepipe.executor.measure.calibrate import AcceptanceRequest, calibrate_acceptance
from treepipe.executor.measure.calibration import Texts, record_acceptance
from treepipe.profiles.check import check_file
from treepipe.profiles.library import REFERENCE, find_acceptance
from treepipe.profiles.pool_file import PoolFile

pytestmark = pytest.mark.processes

TEXTS = ["def spam(eggs):", "import os", "The quick brown fox"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(TEXTS))
    return path


def test_the_reference_pair_is_recorded_and_simulates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompts: Path
) -> None:
    out = tmp_path / "pair.toml"
    arguments = ("--prompts", prompts, "--new-tokens", 10, "--task", "code", "--quiet")
    assert call(monkeypatch, "calibrate", "acceptance", *arguments, "--out", out) == 0
    kind, warnings = check_file(out)
    assert (kind, warnings) == ("acceptance", [])
    profile, _ = find_acceptance(str(out), "test")
    assert (profile.target, profile.draft, profile.task) == ("reference", "reference", "code")
    assert profile.pool == "pair.json"
    pair = open_pair("reference", None, None, str(prompts), 10)
    texts = Texts(pair.target.checkpoint, pair.prompts, 10, frozenset({0}))
    recorded = record_acceptance(texts, pair.recorder(texts))
    for ours, theirs in zip(
        PoolFile.load(tmp_path / "pair.json").prompts, recorded.prompts, strict=True
    ):
        assert ours.known.ranks == theirs.known.ranks
        np.testing.assert_allclose(ours.known.vectors, theirs.known.vectors, atol=1e-3)
    assert f"of {len(recorded.ranks)} tokens of 3 texts" in profile.origin.note
    path = tmp_path / "scenario.toml"
    bernoulli = 'source = "bernoulli"\nbeta = 0.7'
    path.write_text(SCENARIO.replace(bernoulli, 'source = "profile"\nname = "./pair.toml"'))
    assert call(monkeypatch, "simulate", path, "--quiet") == 0


def test_a_head_is_recorded_with_its_guesses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prompts: Path
) -> None:
    out = tmp_path / "head.toml"
    arguments = ("--head", "reference", "--prompts", prompts, "--new-tokens", 6, "--quiet")
    assert call(monkeypatch, "calibrate", "acceptance", *arguments, "--out", out) == 0
    assert all(each.guessed for each in PoolFile.load(tmp_path / "head.json").prompts)


def test_an_interruption_keeps_the_prompts_that_are_done(tmp_path: Path, prompts: Path) -> None:
    out, done = tmp_path / "pair.toml", 0

    def say(what: str, steps: int) -> None:
        nonlocal done
        done += not what
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    asked = AcceptanceRequest(prompts=str(prompts), new_tokens=6, task="code")
    with pytest.raises(KeyboardInterrupt):
        calibrate_acceptance(asked, out, say)
    profile, _ = find_acceptance(str(out), "test")
    assert "of 2 texts" in profile.origin.note
    assert "interrupted, 3 texts were asked for" in profile.origin.note
    assert len(json.loads((tmp_path / "pair.json").read_text())["prompts"]) == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--draft", "reference", "--head", "reference"), "give one of them, not both"),
        (("--source", "ngram", "--draft", "reference"), "--source ngram drafts without it"),
        (("--rule", "relaxed_best"), "record with --rule exact"),
        (("--source", "tea"), 'key source = "tea": input should be'),
        (("--temperature", "-1"), "key temperature = -1"),
        (("--model", REFERENCE / "target" / "config.json"), "needs a checkpoint with its weights"),
        (("--prompts", "none.json"), "none.json: there is no such file (--prompts)"),
        (("--prompts", "reference:none"), "--prompts = 'reference:none': the reference sets are"),
        (("--new-tokens", 1020), "tokens; with 1020 new tokens (--new-tokens) it must have 1 to 4"),
        (("--head", "none"), "none"),
        (("--head", "reference", "--prompts", "short.json"), "1 tokens; with 128 new tokens"),
        (("--out", "pair.json"), "--out pair.json: must end in .toml"),
        (("--out", "none/pair.toml"), "there is no folder none"),
    ],
)
def test_bad_arguments_end_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[object, ...],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.json").write_text('["import"]')
    assert call(monkeypatch, "calibrate", "acceptance", *arguments) == 2
    assert_sentence(capsys.readouterr().err, part)
    assert [path.name for path in tmp_path.iterdir()] == ["short.json"]


def test_neither_of_the_two_files_is_overwritten(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    prompts: Path,
) -> None:
    (tmp_path / "pair.json").write_text("mine")
    arguments = ("--prompts", prompts, "--new-tokens", 4, "--out", tmp_path / "pair.toml")
    assert call(monkeypatch, "calibrate", "acceptance", *arguments) == 2
    assert_sentence(capsys.readouterr().err, "pair.json: there is such a file already")
    assert (tmp_path / "pair.json").read_text() == "mine"
