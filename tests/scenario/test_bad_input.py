"""Bad input on the command line: one sentence that names the key, exit code 2, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import SCENARIO, assert_sentence, call, run_with
from tests.worlds.tiny_models import save_random_checkpoint, save_tokenizer


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


BAD_SETTINGS = [
    ("schedule.tree_sise=4", "key schedule.tree_sise is unknown; did you mean 'tree_size'?"),
    ("schedul.name=pp", "key schedul is unknown; did you mean 'schedule'?"),
    ("seed=two", 'key seed = "two": input should be a valid integer'),
    ("schedule.tree_size=0", "key schedule.tree_size = 0: input should be greater than or equal"),
    (
        "schedule.name=flowspek",
        'key schedule.name = "flowspek": there is no such system; did you mean',
    ),
    ("pipelines.0.stages.0.device=jetsen", "key pipelines.0.stages.0.device = 'jetsen'"),
    ("drafts.0.device=emulated-20m", "did you mean 'emulated-20ms'?"),
    ("links.default=ethernet", "no such profile in links; did you mean 'ethernet-1g'?"),
    ("pipelines.0.stages.0.layers=3", "the stages' layers add up to 6, the target has 8"),
    ("target.layers=1", "1 layers are left for 2 stages without a number"),
    ("acceptance.beta=1.5", "key acceptance.beta = 1.5"),
    ("workload.concurrency=0", "key workload.concurrency = 0"),
    ("schedule.width=0", "key schedule.width = 0: input should be greater than or equal to 1"),
    ("schedule.gamma=0", "key schedule.gamma = 0: input should be greater than or equal to 1"),
    ("schedule.batch=0", "key schedule.batch = 0"),
    ("schedule.branching=[2,0]", "key schedule.branching.1 = 0"),
    ("schedule.depth_range=[5,2]", "key schedule.depth_range = [5, 2]: low exceeds high"),
    ("sampling.temperature=-1", "key sampling.temperature = -1"),
    ("sampling.top_p=0", "key sampling.top_p = 0"),
    ("sampling.top_p=1.1", "key sampling.top_p = 1.1"),
    ("sampling.top_k=-2", "key sampling.top_k = -2"),
    ("sampling.tau_max=2", "key sampling.tau_max = 2"),
    ("sampling.rule=rejection", "'rejection' needs drawn trees, but 'flowspec' takes the most"),
    ("sampling.rule=adaptive", "'adaptive' is for chains (chain, dsd), not 'flowspec'"),
    ("serving.weights=[1,2]", "key serving.weights has 2 values for 1 pipelines"),
    ("serving.weights=[0]", "key serving.weights.0 = 0"),
    ("serving.admission=0", "key serving.admission = 0"),
    ("serving.queue=lifo", 'key serving.queue = "lifo"'),
    ("drafts.0.device.stage_ms.0=3", 'key drafts.0.device.stage_ms.0 = "0": input should be'),
    ("target.layers.a=3", "target.layers is not a table"),
    ("schedule.name.a=3", "schedule.name is not a table"),
    ("drafts.0.device.pric_usd_per_hour=1", "is unknown; did you mean 'price_usd_per_hour'?"),
    ("drafts.0.device.power.busy_w=9", "key drafts.0.device.power.idle_w is missing"),
    (
        "drafts.0.device.layer=[]",
        "layer cannot stand beside profile = 'emulated-20ms', which says a whole role's times",
    ),
    ("drafts.0.device={profile='emulated-20'}", "device.profile = 'emulated-20': there is no such"),
    (
        "drafts.0.device={profile='a40',stage_ms={1=2.0}}",
        "stage_ms cannot stand beside profile = 'a40', which says what a layer costs",
    ),
    ("links.default.jitter_cv=2", "key links.default: key jitter_cv is for jitter = 'lognormal'"),
    ("links.default.latncy_ms=2", "key links.default.latncy_ms is unknown; did you mean"),
    ("links.default.profile=wan-", "key links.default.profile = 'wan-': there is no such profile"),
    (
        "links.default={profile='wan',bandwidth_mbit_s=1,transfer_ms={1=1.0}}",
        "key links.default: give bandwidth_mbit_s or transfer_ms, not both",
    ),
    ("hosts={a={capacty=2}}", "key hosts.a.capacty is unknown; did you mean 'capacity'?"),
    ("hosts={a={foo=2}}", "key hosts.a.foo is unknown; valid keys: capacity"),
    ("drafts.0.host=192.168.1.20", 'key drafts.0.host = "192.168.1.20": a host\'s name is a label'),
    ("pipelines.0.stages.0.host=nx:22", 'key pipelines.0.stages.0.host = "nx:22": a host\'s'),
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
    assert_sentence(capsys.readouterr().err, sentence)


BAD_SCHEDULES = [
    (
        "specpipe_db",
        "pipelines=[{stages=[{device={stage_ms={1=3.0},memory_mib=10}}]}]",
        "pipeline0.stage1 needs 8.0 MiB for 8 layers and 6.8 MiB for the caches of 2 requests of",
    ),
    ("specpipe", "schedule.group_size=3", "group_size = 3 does not divide the 2 stages"),
    ("specpipe", "drafts.0.count=2", "'specpipe' uses one draft server, there are 2"),
    ("pp", "sampling.rule=relaxed_best", "plain decoding has no drafted token to judge"),
]


@pytest.mark.parametrize(("name", "setting", "sentence"), BAD_SCHEDULES)
def test_parameters_that_contradict_the_schedule_are_refused(
    scenario: Path,
    name: str,
    setting: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--set", f"schedule.name={name}", "--set", setting]
    options += ["--set", "workload.concurrency=3"]
    assert call(monkeypatch, "simulate", scenario, *options) == 2
    assert_sentence(capsys.readouterr().err, sentence)


def test_missing_and_broken_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.toml"
    assert call(monkeypatch, "simulate", missing) == 2
    assert_sentence(capsys.readouterr().err, f"{missing}: there is no such file")
    missing.write_text("name = [")
    assert call(monkeypatch, "simulate", missing) == 2
    assert_sentence(capsys.readouterr().err, "is not valid TOML")
    missing.write_text('name = "x"')
    assert call(monkeypatch, "simulate", missing) == 2
    assert_sentence(capsys.readouterr().err, "key target is missing")


def test_missing_acceptance(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario.write_text(SCENARIO.replace("[acceptance]\nsource", "#").replace("beta", "#"))
    assert call(monkeypatch, "simulate", scenario) == 2
    assert_sentence(capsys.readouterr().err, "key acceptance is missing")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    save_random_checkpoint(folder / "target", layers=8, seed=1)
    save_random_checkpoint(folder / "draft", layers=1, seed=2)
    save_random_checkpoint(folder / "other", layers=1, seed=2, vocabulary=40)
    save_random_checkpoint(folder / "sharded", layers=8, seed=1, shard_size="20KB")
    for name in ("target", "sharded"):
        save_tokenizer(folder / name)
    return folder


def test_bad_checkpoints(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(target: str, draft: str, sentence: str, *options: str) -> None:
        assert call(monkeypatch, "run", run_with(checkpoints, target, draft), *options) == 2
        assert_sentence(capsys.readouterr().err, sentence)

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
    for key, wrong in (("intermediate_size", 99), ("num_key_value_heads", 1)):
        changed = json.loads(text)
        assert changed[key] != wrong
        config.write_text(json.dumps({**changed, key: wrong}))
        refused("target", "draft", key)
    target = checkpoints / "target" / "config.json"
    whole = target.read_text()
    target.write_text(whole.replace('"num_hidden_layers": 8', '"num_hidden_layers": 6'))
    refused("target", "draft", "key num_hidden_layers = 6, but the weights hold further layers")
    target.write_text(whole)
    config.write_text(text)
    (checkpoints / "empty").mkdir()
    refused("empty", "draft", "config.json: there is no such file")
    long = ["--set", "workload.new_tokens=250"]
    refused("target", "draft", "it exceeds the models' 256 positions", *long)
    refused("target", "draft", "holds 60 prompts", "--set", "workload.requests=61")
    refused("target", "draft", "the reference sets are", "--set", "workload.prompts=reference:x")
    refused("target", "draft", "no-such.json: there is", "--set", "workload.prompts=no-such.json")
    refused("target", "draft", "the checkpoint has 8 layers", "--set", "target.layers=6")
    central = ["schedule.name=pipedec", "schedule.central_transfers=true", "emulate=false"]
    options = [option for setting in central for option in ("--set", setting)]
    refused("target", "draft", "schedule.central_transfers needs emulate = true", *options)


def test_run_without_a_checkpoint(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "run", scenario) == 2
    assert_sentence(capsys.readouterr().err, "key target.checkpoint is missing")
