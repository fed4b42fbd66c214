"""What ``treepipe calibrate`` refuses: one sentence, exit code 2, and no file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.worlds.command_line import SCENARIO, assert_sentence, call, on_one_host
from tests.worlds.tiny_models import save_random_checkpoint
from treepipe.core.errors import UserError
from treepipe.executor.measure.calibrate import numbers
from treepipe.executor.measure.run_request import RunRequest
from treepipe.executor.prompts import load_texts
from treepipe.profiles.library import load_device
from treepipe.profiles.schema import DeviceProfile


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_checkpoint(tmp_path_factory.mktemp("models") / "target", layers=3, seed=1)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--device", "tpu"), "--device tpu: must be one of cpu, cuda"),
        (("--dtype", "int8"), "quantized weights are not measured"),
        (("--dtype", "float"), "--dtype float: must be one of float32, float16, bfloat16"),
        (("--tokens", "0,4"), "--tokens 0,4: must be whole numbers of at least 1"),
        (("--tokens", "1;4"), "--tokens 1;4: must be whole numbers"),
        (("--context", "-1"), "--context -1: must be whole numbers of at least 0"),
        (("--layers", "9"), "--layers 9: reference has 8 layers"),
        (("--model", "no-such-model"), "is neither a checkpoint directory nor a config.json"),
        (("--draft", "no-such-model"), "--draft no-such-model: is neither"),
        (("--draft", "eagle-llama-2-7b"), "--draft eagle-llama-2-7b: is an EAGLE head"),
        (("--model", "none/config.json"), "there is no such file"),
        (("--out", "none/device.toml"), "there is no folder none"),
        (("--out", "."), "is a folder, not a file"),
        (("--out", "/proc/device.toml"), "cannot be written"),
    ],
)
def test_bad_arguments_end_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, str],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "calibrate", *arguments) == 2
    assert_sentence(capsys.readouterr().err, part)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", [(), ("links",), ("run", "small.toml")])
@pytest.mark.parametrize("seconds", ["inf", "nan", "0"])
def test_seconds_are_a_number_of_them(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    what: tuple[str, ...],
    seconds: str,
) -> None:
    assert call(monkeypatch, "calibrate", *what, "--seconds", seconds) == 2
    assert "--seconds" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "device.toml"
    assert call(monkeypatch, "calibrate", "--device", "cuda", "--out", out) == 2
    assert_sentence(capsys.readouterr().err, "--device cuda: torch")
    assert not out.exists()


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("hidden_size", 64, "keys vocab_size and hidden_size say (61, 64), but tensor"),
        ("num_hidden_layers", 2, "num_hidden_layers = 2, but the weights hold further layers"),
        ("num_hidden_layers", 4, "tensor model.layers.3.self_attn.q_proj.weight is missing"),
        ("num_key_value_heads", 4, "num_key_value_heads, head_dim and hidden_size say (32, 32)"),
        ("architectures", ["GPT2LMHeadModel"], "'GPT2LMHeadModel' is not supported"),
    ],
)
def test_a_checkpoint_that_is_not_its_configs_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    tmp_path: Path,
    key: str,
    value: object,
    part: str,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for file in checkpoint.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, key: value}))
    out = tmp_path / "device.toml"
    assert call(monkeypatch, "calibrate", "--model", model, "--out", out) == 2
    assert_sentence(capsys.readouterr().err, part)
    assert not out.exists()


def test_what_does_not_fit_into_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    """A cache of 10^15 entries; the peak figures, which were measured before, are kept."""
    out = tmp_path / "device.toml"
    arguments = ("--model", checkpoint, "--context", 10**15, "--seconds", 1, "--out", out)
    assert call(monkeypatch, "calibrate", *arguments) == 2
    sentence = "3 layers, caches and ends do not fit into the memory of cpu; try --layers 1"
    assert_sentence(capsys.readouterr().err, sentence)
    profile = load_device(out)
    assert isinstance(profile, DeviceProfile)
    assert profile.roofline is not None


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "architectures"])
def test_a_config_that_lacks_a_size_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    tmp_path: Path,
    key: str,
) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    del config[key]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    out = tmp_path / "device.toml"
    assert call(monkeypatch, "calibrate", "--model", path, "--out", out) == 2
    assert_sentence(capsys.readouterr().err, key)


def test_numbers_are_sorted_and_unique() -> None:
    assert numbers("8,1,8", "--tokens", 1) == (1, 8)
    with pytest.raises(UserError, match=r"^--tokens : must be"):
        numbers("", "--tokens", 1)


# --- what `treepipe calibrate run` is asked for --------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["a", "b", "c"], "--prompts few.json: holds 3 texts; calibrate run continues 4"),
        ("a text", "few.json: must hold a JSON list of strings (--prompts)"),
        (None, "few.json: there is no such file (--prompts)"),
    ],
)
def test_prompts_that_are_too_few_are_refused_by_their_option(
    texts: object,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box.toml").write_text(on_one_host(SCENARIO))
    if texts is not None:
        (tmp_path / "few.json").write_text(json.dumps(texts))
    assert call(monkeypatch, "calibrate", "run", "box.toml", "--prompts", "few.json") == 2
    assert_sentence(capsys.readouterr().err, sentence)


DRAFT, STAGES = "[[drafts]]\n", "stages = [{ "
AT = 'worker = "10.0.0.{}:5600"'


@pytest.mark.parametrize(
    ("draft", "stages", "sentence"),
    [
        ("", 'host = "box"', "each draft server and stage must have a key host"),
        ('host = "a"', 'host = "b"', "--out one.toml: must be a folder, of profiles of a, b"),
        (
            'host = "a"',
            'host = "a", ' + AT.format(2),
            "host = 'a' is the name of two machines: this one and 10.0.0.2",
        ),
        (
            'host = "a"\n' + AT.format(1),
            'host = "a", ' + AT.format(2),
            "host = 'a' is the name of two machines: 10.0.0.1 and 10.0.0.2",
        ),
    ],
)
def test_hosts_are_told_by_their_names(
    draft: str,
    stages: str,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SCENARIO.replace(DRAFT, f"{DRAFT}{draft}\n").replace(STAGES, f"{STAGES}{stages}, ")
    (tmp_path / "named.toml").write_text(text)
    assert call(monkeypatch, "calibrate", "run", "named.toml", "--out", "one.toml") == 2
    assert_sentence(capsys.readouterr().err, sentence)
    assert not (tmp_path / "one.toml").exists()


def test_prompts_are_found_from_where_the_command_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (folder / "box.toml").write_text(on_one_host(SCENARIO))
    (tmp_path / "texts.json").write_text(json.dumps(["a", "b", "c", "d"]))
    asked = RunRequest("scenarios/box.toml", "texts.json")
    assert asked.load().name == "small"
    assert len(load_texts(asked.place, folder)) == 4, "by a scenario in a folder of its own"
    assert RunRequest("scenarios/box.toml").place == "reference:calibration"
