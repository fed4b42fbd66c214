"""The command line as a user meets it: results, and one sentence with exit code 2 for bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.tiny_models import save_random_checkpoint
from treepipe import cli
from treepipe.executor.prompts import REFERENCE

SCENARIO = """
name = "small"
seed = 3
runs = 2
[target]
layers = 8
[[drafts]]
device = "emulated-20ms"
[[pipelines]]
stages = [{ device = { stage_ms = { 1 = 10.0, 64 = 12.0 } }, count = 2 }]
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


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run ``treepipe`` with these arguments; returns its exit code."""
    monkeypatch.setattr("sys.argv", ["treepipe", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_simulate_writes_a_result_a_trace_and_a_picture(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, trace, plot = (tmp_path / name for name in ("r.json", "t.json", "p.png"))
    options = ["--json", result, "--trace", trace, "--plot", plot, "--quiet"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    content = json.loads(result.read_text())
    assert content["schema"] == "treepipe.result/1"
    assert (content["source"], content["runs"], content["seed"]) == ("simulation", 2, 3)
    metric = content["metrics"]["time_between_tokens_ms"]
    assert metric["low"] <= metric["mean"] <= metric["high"]
    assert set(content["utilization"]) == {"draft0", "pipeline0.stage1", "pipeline0.stage2"}
    assert {event["ph"] for event in json.loads(trace.read_text())["traceEvents"]} == {"X", "M"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_one_run_has_no_interval(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--runs", 1, "--json", "-", "--set", "schedule.name=naive_pp"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["metrics"]["tokens_per_round"]["low"] is None


def test_extrapolation_is_warned_about(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--json", "-", "--set", "workload.prompt_tokens=90"]
    options += ["--set", "schedule.prefill_chunk=100"]
    assert call(monkeypatch, "simulate", scenario, *options) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    assert any("stage1: compute times were extrapolated to 90 tokens" in w for w in warnings)


BAD_SETTINGS = [
    ("schedule.tree_sise=4", "key schedule.tree_sise is unknown; did you mean 'tree_size'?"),
    ("schedul.name=pp", "key schedul is unknown; did you mean 'schedule'?"),
    ("seed=two", 'key seed = "two": input should be a valid integer'),
    ("schedule.tree_size=0", "key schedule.tree_size = 0: input should be greater than or equal"),
    ("schedule.name=flowspek", 'key schedule.name = "flowspek": input should be'),
    ("pipelines.0.stages.0.device=jetsen", "key pipelines.0.stages.0.device = 'jetsen'"),
    ("drafts.0.device=emulated-20m", "did you mean 'emulated-20ms'?"),
    ("links.default=ethernet", "no such profile in links; did you mean 'ethernet-1g'?"),
    ("pipelines.0.stages.0.layers=3", "the stages' layers add up to 6, the target has 8"),
    ("target.layers=1", "1 layers are left for 2 stages without a number"),
    ("acceptance.beta=1.5", "key acceptance.beta = 1.5"),
    ("workload.concurrency=4", "key workload.concurrency = 4"),
    ("drafts.0.device.stage_ms.0=3", "is not a table"),
    ("nothing", "must look like key=value"),
]


@pytest.mark.parametrize(("setting", "sentence"), BAD_SETTINGS)
def test_bad_scenario_is_one_sentence_with_the_key(
    scenario: Path,
    setting: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, "simulate", scenario, "--set", setting) == 2
    _assert_sentence(capsys.readouterr().err, sentence)


def _assert_sentence(error: str, part: str) -> None:
    assert part in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_missing_and_broken_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.toml"
    assert call(monkeypatch, "simulate", missing) == 2
    _assert_sentence(capsys.readouterr().err, f"{missing}: there is no such file")
    missing.write_text("name = [")
    assert call(monkeypatch, "simulate", missing) == 2
    _assert_sentence(capsys.readouterr().err, "is not valid TOML")
    missing.write_text('name = "x"')
    assert call(monkeypatch, "simulate", missing) == 2
    _assert_sentence(capsys.readouterr().err, "key target is missing")


def test_missing_acceptance(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(SCENARIO.replace("[acceptance]\nsource", "#").replace("beta", "#"))
    assert call(monkeypatch, "simulate", scenario) == 2
    _assert_sentence(capsys.readouterr().err, "key acceptance is missing")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    save_random_checkpoint(folder / "target", layers=8, seed=1)
    save_random_checkpoint(folder / "draft", layers=1, seed=2)
    save_random_checkpoint(folder / "other", layers=1, seed=2, vocabulary=40)
    save_random_checkpoint(folder / "sharded", layers=8, seed=1, shard_size="20KB")
    for name in ("target", "sharded"):
        shutil.copy(REFERENCE / "target" / "tokenizer.json", folder / name)
    return folder


def _run_with(folder: Path, target: str, draft: str) -> Path:
    text = SCENARIO.replace("[target]\n", f'[target]\ncheckpoint = "{target}"\n')
    text = text.replace("[[drafts]]\n", f'[[drafts]]\nmodel.checkpoint = "{draft}"\n')
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_bad_checkpoints(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(target: str, draft: str, sentence: str, *options: str) -> None:
        assert call(monkeypatch, "run", _run_with(checkpoints, target, draft), *options) == 2
        _assert_sentence(capsys.readouterr().err, sentence)

    refused("nowhere", "draft", "nowhere: there is no such checkpoint directory")
    refused("target", "other", "key vocab_size = 40 differs from the target's 61")
    shard = next((checkpoints / "sharded").glob("model-00002*"))
    shard.unlink()
    refused("sharded", "draft", f"names {shard.name}, which is missing")
    config = checkpoints / "draft" / "config.json"
    text = config.read_text()
    config.write_text(text.replace("LlamaForCausalLM", "GPT2LMHeadModel"))
    refused("target", "draft", "key architectures = 'GPT2LMHeadModel' is not supported")
    config.write_text(text.replace('"hidden_size": 32', '"hidden_size": 48'))
    refused("target", "draft", "keys vocab_size and hidden_size say (61, 48)")
    config.write_text(text)
    (checkpoints / "empty").mkdir()
    refused("empty", "draft", "config.json: there is no such file")
    long = ["--set", "workload.new_tokens=250"]
    refused("target", "draft", "it exceeds the models' 256 positions", *long)
    refused("target", "draft", "holds 60 prompts", "--set", "workload.requests=61")
    refused("target", "draft", "the reference sets are", "--set", "workload.prompts=reference:x")
    refused("target", "draft", "no-such.json: there is", "--set", "workload.prompts=no-such.json")
    refused("target", "draft", "the checkpoint has 8 layers", "--set", "target.layers=6")


def test_run_without_a_checkpoint(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "run", scenario) == 2
    _assert_sentence(capsys.readouterr().err, "key target.checkpoint is missing")


def test_run_without_the_extra_says_which(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    assert call(monkeypatch, "run", scenario) == 2
    _assert_sentence(capsys.readouterr().err, "pip install 'treepipe[executor]'")


def test_recorded_run_is_replayed_by_simulate(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _run_with(tmp_path, "reference", "reference")
    measured, predicted = tmp_path / "m.json", tmp_path / "p.json"
    options = ["--runs", 1, "--json", measured, "--recording", tmp_path / "rec.json", "--quiet"]
    assert call(monkeypatch, "run", path, *options) == 0
    path.write_text(
        path.read_text().replace('"bernoulli"\nbeta = 0.7', '"replay"\nfile = "rec.json"')
    )
    assert call(monkeypatch, "simulate", path, "--json", predicted, "--quiet") == 0
    one, two = (json.loads(file.read_text()) for file in (measured, predicted))
    assert one["metrics"]["tokens_per_round"] == two["metrics"]["tokens_per_round"]
    assert one["metrics"]["tokens_per_step"] == two["metrics"]["tokens_per_step"]
    assert set(one["memory"]) == set(one["utilization"])


def test_demo_does_not_touch_a_foreign_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert call(monkeypatch, "demo", "--out", tmp_path) == 2
    _assert_sentence(capsys.readouterr().err, "holds something else than an earlier demonstration")


def test_profiles_are_listed_and_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "profiles") == 0
    assert "emulated-20ms" in capsys.readouterr().out
    assert call(monkeypatch, "profiles", "emulated-20ms") == 0
    assert "stage_ms" in capsys.readouterr().out
    assert call(monkeypatch, "profiles", "nothing") == 2
    _assert_sentence(capsys.readouterr().err, "there is none of that name")


SCENARIOS = sorted((Path(cli.__file__).parents[1] / "studies" / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_predict(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--set", "workload.requests=1", "--runs", "1", "--quiet"]
    if path.stem == "demo":  # it calibrates its own acceptance
        options += ["--set", "acceptance.source=bernoulli", "--set", "acceptance.beta=0.8"]
    assert call(monkeypatch, "simulate", path, *options) == 0


SMALL = ["--set", "workload.requests=1", "--set", "workload.new_tokens=6", "--runs", "1"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tmp_path / "result.json"
    assert call(monkeypatch, "run", path, *SMALL, "--json", result, "--quiet") == 0
    assert json.loads(result.read_text())["sessions"][0]["new_tokens"] == 6
