"""``treepipe calibrate``: a device is measured, its profile is valid, and a scenario runs on it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import torch

from tests.worlds.command_line import SCENARIO, Terminal, call
from treepipe.core.verification import RULES
from treepipe.executor.measure.calibrate import calibrate_device, half_of
from treepipe.executor.measure.requests import DeviceRequest
from treepipe.executor.measure.work import RandomCheckpoint
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.families import FAMILIES
from treepipe.executor.models.stage_model import load_layer
from treepipe.profiles.library import check_file, find_model, load_device, profile_names
from treepipe.profiles.schema import DeviceProfile
from treepipe.results.show import ProgressBars
from treepipe.testing.random_model import save_random_checkpoint

pytestmark = pytest.mark.processes

FEW = ("--seconds", "1", "--set", "tokens=[4,1,4]", "--set", "contexts=[0,16]", "--quiet")


@pytest.fixture(scope="module")
def measured_file(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target, draft = pair
    out = tmp_path_factory.mktemp("measured") / "device.toml"
    with pytest.MonkeyPatch.context() as patch:
        arguments = ("--model", target, "--draft", draft, "--out", out, *FEW)
        assert call(patch, "calibrate", *arguments) == 0
    return out


def _loaded(path: Path) -> DeviceProfile:
    profile = load_device(path)
    assert isinstance(profile, DeviceProfile)
    return profile


def test_profile_holds_every_table(measured_file: Path) -> None:
    kind, _ = check_file(measured_file)
    assert kind == "devices"
    profile = _loaded(measured_file)
    for entries, contexts in (
        (profile.layer, {0, 16}),
        (profile.draft, {0, 16}),
        (profile.head, {0}),
        (profile.embedding, {0}),
    ):
        (entry,) = entries
        for table in (entry.ms, entry.iqr_ms or {}):
            assert {c: set(row) for c, row in table.items()} == {key: {1, 4} for key in contexts}
        assert all(time > 0 for row in entry.ms.values() for time in row.values())
        assert entry.shape is not None
        assert entry.shape.layers == (1 if entries is profile.draft else 4)
    rules = {(each.rule, each.truncated): each for each in profile.sampling}
    assert {rule for rule, _ in rules} == set(RULES)
    for (rule, _), each in rules.items():
        assert each.judge_ms > 0
        assert set(each.draw_ms or ()) == ({1, 4} if RULES[rule].needs_draft else set())
    factors = profile.idle_factor or {}
    assert (factors[0.0], max(factors)) == (1.0, 100.0)
    assert profile.prune_ms > 0
    assert (profile.memory_mib or 0) > 100
    assert profile.roofline is not None
    assert profile.origin.source == "treepipe calibrate"
    # The installed package does not always have the local tag ("+cu130") that the module has.
    assert f"torch {torch.__version__.split('+')[0]}" in profile.origin.versions
    assert "4 layers of target with its weights" in profile.origin.note
    assert (profile.power is None) == ("power was not measured" in profile.origin.note)


def test_passes_in_buckets_are_measured_and_eager_ones_told_beside_them(
    terminal: Terminal, pair: tuple[Path, Path]
) -> None:
    command = ("calibrate", "--model", pair[0], "--draft", pair[1], "--out", "device.toml")
    terminal.succeeds(*command, "--eager", *FEW, "--set", "graphs=auto")
    profile = _loaded(terminal.folder / "device.toml")
    assert profile.graphs == "auto", "as workers of this device will compute"
    assert "passes in buckets, " in profile.origin.note
    assert re.search(r"eagerly the block's rows take: 1 after 0 [\d.]+ ms", profile.origin.note)
    assert "1 after 16" in profile.origin.note


@pytest.mark.parametrize("named", [{}, {"dtype": "bfloat16"}, {"torch_dtype": "float32"}])
def test_a_gpu_computes_in_the_models_own_type_of_16_bits(
    tmp_path: Path, named: dict[str, str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(named))
    expected = "bfloat16" if "dtype" in named else "float16"
    assert half_of(str(tmp_path)) == half_of(str(tmp_path / "config.json")) == expected
    assert half_of("llama-3.1-8b") == "float16"


def test_a_scenario_of_the_measured_device_simulates(
    terminal: Terminal, pair: tuple[Path, Path], measured_file: Path
) -> None:
    target, draft = pair
    text = re.sub("layers = 8\nprofile = .*\n", f'checkpoint = "{target}"\n', SCENARIO)
    text = text.replace(
        'device = "emulated-20ms"',
        f'device = "{measured_file.name}"\nmodel.checkpoint = "{draft}"',
    )
    text = text.replace("{ stage_ms = { 1 = 10.0, 64 = 12.0 } }", f'"{measured_file.name}"')
    path, out = measured_file.parent / "scenario.toml", measured_file.parent / "result.json"
    path.write_text(text)
    terminal.succeeds("simulate", path, "--json", out, "--quiet")
    result = json.loads(out.read_text())
    assert result["metrics"]["time_between_tokens_ms"]["mean"] > 0
    # Everything the simulation needs was measured: nothing is scaled or estimated.
    assert not [w for w in result["warnings"] if "roofline" in w or "scaled" in w]


def test_a_config_alone_is_measured_with_random_weights(
    terminal: Terminal, pair: tuple[Path, Path]
) -> None:
    """And an existing file is kept unless forced."""
    (terminal.folder / "config.json").write_text((pair[0] / "config.json").read_text())
    Path("device.toml").write_text("mine")
    few = ("--set", "layers=1", "--out", "device.toml", *FEW)
    terminal.refuses("--force overwrites it", "calibrate", "--model", "config.json", *few)
    mixture = ("--model", "qwen-3-30b-a3b", "--out", "other.toml")
    terminal.refuses("is a mixture of experts; give", "calibrate", *mixture)
    hybrid = ("--model", "qwen-3.5-4b", "--out", "other.toml")
    terminal.refuses("has several kinds of layers; give", "calibrate", *hybrid)
    terminal.succeeds("calibrate", "--model", "config.json", *few, "--force")
    assert {path.name for path in terminal.folder.iterdir()} == {"config.json", "device.toml"}
    profile = _loaded(Path("device.toml"))
    assert not profile.draft
    assert profile.call_overhead_ms == 0.0  # one layer alone does not tell it
    assert "random weights" in profile.origin.note


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "mixtral", "gpt_oss"])
def test_random_weights_have_the_shapes_of_real_ones(architecture: str, tmp_path: Path) -> None:
    folder = save_random_checkpoint(tmp_path / architecture, architecture=architecture)
    real, made = Checkpoint.open(folder), RandomCheckpoint.from_config(folder / "config.json")
    names = {name.rsplit(".", 1)[0] + "." for name in real.shards}
    for prefix in names:
        shapes = {name: tensor.shape for name, tensor in real.tensors(prefix).items()}
        assert {name: tensor.shape for name, tensor in made.tensors(prefix).items()} == shapes
    load_layer(made, 1, torch.float32, "cpu")


ALIKE = [
    name
    for name in profile_names("models")
    if "eagle" not in name
    and find_model(name, "test").experts is None
    and not find_model(name, "test").kinds
]
"""Models whose layers are alike and dense; any other has to come with its config.json."""


@pytest.mark.parametrize("name", ALIKE)
def test_a_model_profile_is_enough_to_build_its_layers(name: str) -> None:
    model = find_model(name, "test")
    made = RandomCheckpoint.from_shape(name, model)
    with torch.device("meta"):
        layer = FAMILIES[made.architecture].layer(made.config, 0)
    assert sum(weight.numel() for weight in layer.parameters()) == model.layer_parameters
    assert (made.vocabulary, made.hidden_size) == (model.vocabulary, model.hidden_size)
    assert (made.layers, made.tied) == (model.layers, model.tied)


@pytest.mark.parametrize(
    ("stop_at", "has_layers", "missing"),
    [
        ("peak figures", False, None),
        ("passes", False, "not finished: passes, idle effect"),
        ("idle effect", True, "not finished: idle effect"),
    ],
)
def test_an_interruption_keeps_what_is_measured_and_says_so(
    terminal: Terminal,
    pair: tuple[Path, Path],
    stop_at: str,
    has_layers: bool,
    missing: str | None,
) -> None:
    """Before anything is, nothing is written."""

    def say(bars: ProgressBars, what: str, steps: int) -> None:
        if what == stop_at:
            signal.raise_signal(signal.SIGINT)

    terminal.monkeypatch.setattr(ProgressBars, "__call__", say)
    command = ("calibrate", "--model", pair[0], "--out", "device.toml", *FEW)
    if missing is None:
        terminal.fails("interrupted; nothing was written", *command, code=130)
        assert not list(terminal.folder.iterdir())
        return
    terminal.fails("device.toml holds what was done until then", *command, code=130)
    profile = _loaded(terminal.folder / "device.toml")
    assert bool(profile.layer) == has_layers
    assert profile.roofline is not None
    assert missing in profile.origin.note


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_is_measured(pair: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "device.toml"
    target, draft = map(str, pair)
    asked = DeviceRequest(
        model=target, draft=draft, device="cuda", settings=["tokens=[1,16]"], seconds=2, out=out
    )
    calibrate_device(asked, lambda *_: None)
    profile = _loaded(out)
    assert profile.layer[0].dtype == "float16"
    assert torch.cuda.get_device_name() in profile.origin.hardware
