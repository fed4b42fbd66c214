"""Bad input on the command line: one sentence that names the key, exit code 2, no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worlds.command_line import SCENARIO, assert_sentence, call, run_with
from tests.worlds.tiny_models import save_random_checkpoint, save_tokenizer
from treepipe.core.errors import UserError
from treepipe.executor.launch import prepare
from treepipe.files.json_file import read_json
from treepipe.profiles.pool_file import PoolFile
from treepipe.results.recording import Recording
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import read_trace
from treepipe.sim.predict import predict


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


BAD_SETTINGS = [
    ("schedule.tree_sise=4", "key schedule.tree_sise is unknown; did you mean 'tree_size'?"),
    ("schedul.name=pp", "key schedul is unknown; did you mean 'schedule'?"),
    ("seed=two", 'key seed = "two": input should be a valid integer'),
    ("schedule.tree_size=true", "key schedule.tree_size = true: must be a number, not true or"),
    ("schedule.branching=[2,true]", "key schedule.branching.1 = true: must be a number, not true"),
    ("scale.roles={draft0=true}", "key scale.roles.draft0 = true: must be a number, not true"),
    ("sampling.top_k=false", "key sampling.top_k = false: must be a number, not true or false"),
    ("workload.new_tokens=true", "key workload.new_tokens = true: must be a number, not true"),
    ("acceptance.beta=true", "key acceptance.beta = true: must be a number, not true or false"),
    ("schedule.context_aware=1", "key schedule.context_aware = 1: must be true or false"),
    ("emulate=yes", 'key emulate = "yes": must be true or false'),
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
    ("acceptance.off_path_sharpness=1", "is of another kind of this table, e.g. another source"),
    ("workload.concurrency=0", "key workload.concurrency = 0"),
    ("schedule.width=0", "key schedule.width = 0: input should be greater than or equal to 1"),
    ("schedule.gamma=0", "key schedule.gamma = 0: input should be greater than or equal to 1"),
    ("schedule.batch=0", "key schedule.batch = 0"),
    ("schedule.branching=[2,0]", "key schedule.branching.1 = 0"),
    ("sampling.temperature=-1", "key sampling.temperature = -1"),
    ("sampling.top_p=0", "key sampling.top_p = 0"),
    ("sampling.top_p=1.1", "key sampling.top_p = 1.1"),
    ("sampling.top_k=-2", "key sampling.top_k = -2"),
    ("sampling.tau_max=2", "key sampling.tau_max = 2"),
    ("sampling.contrast_weight=-1", "key sampling.contrast_weight = -1"),
    (
        "sampling={contrast_weight=0,matches_weight=0,agreement_weight=0}",
        "are all 0; one of the signals must count",
    ),
    ("sampling.rule=rejection", "'rejection' needs drawn trees, but 'flowspec' takes the most"),
    ("sampling.rule=adaptive", "'adaptive' is for chains (chain, dsd), not 'flowspec'"),
    ("serving.weights=[1,2]", "key serving.weights has 2 values for 1 pipelines"),
    ("serving.weights=[0]", "key serving.weights.0 = 0"),
    ("serving.admission=0", "key serving.admission = 0"),
    ("serving.batch=0", "key serving.batch"),
    ("serving.batch=all", "key serving.batch"),
    ("serving.prefill=never", 'key serving.prefill = "never"'),
    ("serving.warm_up_ms=0", "key serving.warm_up_ms = 0"),
    ("serving.cache=swapped", 'key serving.cache = "swapped"'),
    ("serving.cache_tokens=0", "key serving.cache_tokens = 0"),
    ("serving.cache=paged", "key serving.cache = 'paged' needs a room to share: serving.cache_tok"),
    (
        "serving={cache='paged',cache_tokens=9}",
        "key serving.cache = 'paged': the longest request comes to hold",
    ),
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
    ("specpipe", "schedule.groups=3", "groups = 3 is more than the 2 stages of pipelines.0"),
    ("pipedec", "schedule.groups=[2,1]", "[2, 1] are groups of 3 stages in all, pipelines.0 has 2"),
    (
        "flowspec",
        "schedule={name='flowspec',context_aware=false,score_aware=true}",
        "key schedule.score_aware = true needs context_aware = true: a tree is extended only",
    ),
    ("starsd", "schedule.depth_range=[5,2]", "key schedule.depth_range = [5, 2]: low exceeds high"),
    ("specpipe", "drafts.0.count=2", "'specpipe' uses one draft server, there are 2"),
    (
        "starsd",
        "sampling.rule=rejection",
        "key sampling.rule = 'rejection' needs drawn trees, but a dynamic one (schedule.tree_size)",
    ),
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


WITHOUT_END = [
    *((key, "1000000000000") for key in ("runs", "workload.requests", "workload.concurrency")),
    *((key, "1000000000000") for key in ("workload.new_tokens", "workload.prompt_tokens")),
    *((f"{place}.0.count", "1000000000") for place in ("drafts", "pipelines")),
    ("schedule.tree_size", "1000000000000"),
    ("schedule.prefill_chunk", "1000000000000"),
]


@pytest.mark.parametrize(("key", "value"), WITHOUT_END)
def test_what_has_no_end_is_refused_by_a_bound(scenario: Path, key: str, value: str) -> None:
    sentence = f"key {key} = {value}: input should be less than or equal to 1000000"
    assert_refused(scenario, f"{key}={value}", sentence)


ODD_VALUES = [
    ("seed=99999999999999999999999999", "key seed = 99999999999999999999999999: input should be"),
    ("seed=nan", "key seed = NaN: input should be a finite number"),
    ("runs=true", "key runs = true: must be a number, not true or false"),
    ("scale.drafts=true", "key scale.drafts = true: must be a number, not true or false"),
    ("runs=1.5", "key runs = 1.5: input should be a valid integer"),
    ("name=3", "key name = 3: input should be a valid string"),
    ("pipelines=3", "key pipelines = 3: must be a list"),
    ("pipelines=[]", "key pipelines = []: must not be empty"),
    ("pipelines={}", "key pipelines: must be a list"),
    ("drafts=[]", "key drafts = []: must not be empty"),
    ("hosts=3", "key hosts = 3: must be a table"),
    ("schedule=flowspec", 'key schedule = "flowspec": must be a table'),
    ("acceptance=0.5", "key acceptance = 0.5: must be a table"),
    ("workload.arrivals=3", "key workload.arrivals = 3: must be a table"),
    ("emulate=3", "key emulate = 3: must be true or false"),
    ("check_causality=2", "key check_causality = 2: must be true or false"),
    ("acceptance.source=foo", "key acceptance.source = 'foo' is unknown; there are bernoulli"),
    ("acceptance.source=profil", "is unknown; did you mean 'profile'?"),
    ("workload.arrivals.process=foo", "key workload.arrivals.process = 'foo' is unknown; there"),
    ("target.layer_mib=inf", "key target.layer_mib = Infinity: input should be a finite number"),
    ("target.kv_kib=inf", "key target.kv_kib = Infinity: input should be a finite number"),
    ("serving.weights=[inf]", "key serving.weights.0 = Infinity: input should be a finite"),
    ("sampling.temperature=inf", "key sampling.temperature = Infinity: input should be a finite"),
    ("drafts.0.host=''", 'key drafts.0.host = "": a host\'s name is a label'),
    ("hosts.a={}", "key hosts.a: no draft or stage has host = 'a'"),
    ("drafts.0.device={draft_ms={1=1e308}}", "key drafts.0.device.draft_ms.1 = 1e+308: input"),
    ("links.default={latency_ms=1e300}", "key links.default.latency_ms = 1e+300: input should be"),
    (
        "links.default={latency_ms=1,bandwidth_mbit_s=1e-300}",
        "bandwidth_mbit_s = 1e-300: must be between 1e-09 and 1e+15",
    ),
    (
        "links.default={latency_ms=1,jitter_ms=1,jitter='lognormal',jitter_cv=1e200}",
        "jitter_cv = 1e+200: must be between 1e-09 and 1e+15",
    ),
    ("links.pairs=[{ends=['draft0','nobody']}]", "key links.pairs.0.ends names 'nobody'"),
    ("pipelines.0.stages.0.count=9000000", "key pipelines.0.stages.0.count = 9000000: input"),
    (
        "pipelines=[{count=1000,stages=[{device='emulated-20ms',count=1000}]}]",
        "keys drafts and pipelines make 1,000,001 roles by their count; there may be 10,000",
    ),
    ("workload={requests=1000000,new_tokens=1000000}", "there may be 50,000,000"),
    ("workload.prompt_tokens={distribution='lognormal',mean=1e300}", "mean = 1e+300: input"),
    ("workload.new_tokens={distribution='geometric',mean=1e30}", "mean = 1e+30: input should"),
    ("workload.new_tokens={distribution='lognormal',mean=10,cv=1e200}", "cv = 1e+200: input"),
    ("workload.new_tokens={distribution='uniform',max=9999999}", "max = 9999999: input should"),
    ("workload.arrivals={process='gamma',rate_per_s=1,cv=1e-200}", "cv = 1e-200: input should"),
    ("workload.arrivals={process='gamma',rate_per_s=1,cv=1e200}", "cv = 1e+200: input should"),
    ("workload.arrivals={process='poisson',rate_per_s=1e-320}", "requests never arrive"),
    ("acceptance={source='hit_ratio',table={}}", "key acceptance.table: must not be empty"),
    ("acceptance={source='hit_ratio',table={0=0.5}}", "input should be greater than or equal to 1"),
    ("acceptance={source='hit_ratio',table={1000000000=0.9}}", "less than or equal to 100000"),
    ("acceptance={source='hit_ratio',table={1=0.9,4=0.5}}", "the share falls from 0.9 at 1 to 0.5"),
    ("acceptance={source='profile'}", "a profile is chosen by its name, and nothing else"),
    ("acceptance={source='pool',file='x.json',block=9999999}", "key acceptance.block = 9999999"),
    ("acceptance={source='pool',file='x.json',sharpness=inf}", "key acceptance.sharpness = Inf"),
    ("acceptance={source='pool',file='x.json'}", "x.json: there is no such acceptance pool"),
    ("acceptance={source='replay',file='x.json'}", "x.json: there is no such recording"),
    ("pipelines.5.count=2", "pipelines.5 is not a table"),
    ("pipelines.-1.count=2", "pipelines.-1 is not a table"),
]


@pytest.mark.parametrize(("setting", "sentence"), ODD_VALUES)
def test_an_odd_value_is_refused_in_a_sentence(scenario: Path, setting: str, sentence: str) -> None:
    assert_refused(scenario, setting, sentence)


VAST_TREES = [
    ("chain", "gamma=1000000000000", "key schedule.gamma = 1000000000000: input should be less"),
    ("eagle", "top_k=1000000000000", "key schedule.top_k = 1000000000000: input should be less"),
    ("eagle", "tree_depth=1000000000000", "key schedule.tree_depth = 1000000000000: input"),
    ("specinfer", "branching=[1000,1000,1000,1000]", "trees of up to 1,001,001,001,001 nodes"),
    ("specinfer", "branching=[]", "key schedule.branching = []: must not be empty"),
    ("starsd", "depth_range=[1,1000000000000]", "key schedule.depth_range.1 = 1000000000000"),
    ("pipedec", "layers_per_step=1000000000000", "key schedule.layers_per_step = 1000000000000"),
    ("specpipe_db", "batch=1000000000000", "key schedule.batch = 1000000000000: input should be"),
]


@pytest.mark.parametrize(("system", "setting", "sentence"), VAST_TREES)
def test_a_tree_without_end_is_refused_before_it_is_built(
    scenario: Path, system: str, setting: str, sentence: str
) -> None:
    scenario.write_text(scenario.read_text().replace("tree_size = 20", ""))
    assert_refused(scenario, f"schedule.{setting}", sentence, f"schedule.name={system}")


def assert_refused(scenario: Path, setting: str, sentence: str, *others: str) -> None:
    with pytest.raises(UserError) as refused:
        predict(Scenario.load(scenario, [*others, setting]))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


POOL = {"schema": "treepipe.acceptance/1", "candidates": 1, "prompts": [], "off_path": {}}
BAD_FILES = [
    ("pool", "[" * 100_000, "its lists or tables are nested too deeply"),
    ("replay", "[" * 100_000, "its lists or tables are nested too deeply"),
    ("pool", b"\xff\xfe", "it is no text in UTF-8 (byte 0)"),
    ("replay", b"\xff\xfe", "it is no text in UTF-8 (byte 0)"),
    ("pool", json.dumps({**POOL, "candidates": 0}), "key candidates = 0: a pool needs at least"),
    ("pool", json.dumps(POOL), "key prompts is empty"),
    ("pool", "3", "is not an acceptance pool"),
    ("replay", '{"schema": "treepipe.recording/1", "requests": 3}', "is not a recording"),
    ("replay", "{}", "is not a recording: key 'schema' is missing"),
]


@pytest.mark.parametrize(("source", "content", "sentence"), BAD_FILES)
def test_a_file_that_is_no_acceptance_is_refused(
    scenario: Path, source: str, content: str | bytes, sentence: str
) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    (scenario.parent / "odd.json").write_bytes(raw)
    assert_refused(scenario, f"acceptance={{source='{source}',file='odd.json'}}", sentence)


def test_folders_and_binary_files_are_no_scenarios(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it is a folder, not a file"):
        Scenario.load(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match="it is no text in UTF-8"):
        Scenario.load(binary)


def test_a_mark_at_the_beginning_of_a_file_is_no_fault(tmp_path: Path) -> None:
    marked = tmp_path / "marked.toml"
    marked.write_text(SCENARIO, encoding="utf-8-sig")
    assert Scenario.load(marked).name == "small"


UNREAD = [
    ("sampling.matches_weight=2", "key sampling.matches_weight has no effect: it is read only w"),
    ("sampling.tau_max=0.3", "only where sampling.rule is 'adaptive'"),
    ("sampling.relaxed_top_p=0.5", "only where sampling.rule is 'relaxed_top_p'"),
    ("sampling.top_k=5", "only where sampling.temperature is given"),
    ("sampling.temperature=1", "which must be of sampling.temperature = 1.0"),
    ("drafts.0.source=ngram", "must be of drafts.0.source = 'ngram', drafts.0.ngram = 3"),
    ("drafts.0.model.checkpoint=no", "key drafts.0.model.checkpoint = 'no': there is no such"),
    ("workload.prompts=none.json", "key workload.prompts = 'none.json': there is no such file"),
    ("serving.weights=[1]", "only where serving.queue is 'weighted_fair'"),
    ("serving.deadlines_ms=[5]", "only where serving.queue is 'earliest_deadline'"),
    ("serving.batch=4", "key serving.batch has no effect: it is read only where several"),
    ("serving.prefill=first", "only where several requests share passes (serving.batch)"),
    ("serving.cache_tokens=999", "only where serving.cache is given"),
    (
        "serving={cache='paged',cache_tokens=9999}",
        "key serving.cache has no effect: it is read only where several requests are open at once",
    ),
    ("drafts.0.ngram=2", "only where drafts.0.source is 'ngram' or 'hybrid'"),
    ("drafts.0.weight=0.2", "only where drafts.0.source is 'hybrid'"),
    ("drafts.0.head=reference", "only where drafts.0.source is 'eagle'"),
    ("links.local.latency_ms=5", "key links.local has no effect: it is read only where two roles"),
    (
        "links.pairs=[{ends=['pipeline0.stage2','pipeline0.stage1'],one_way=true}]",
        "key links.pairs.0.ends has no effect: it is read only where messages go between the two",
    ),
    (
        "links.pairs=[{ends=['pipeline0.stage1','pipeline0.stage3']}]",
        "key links.pairs.0.ends has no effect: it is read only where messages go between the two",
    ),
]


@pytest.mark.parametrize(("setting", "sentence"), UNREAD)
def test_a_key_without_effect_is_told(scenario: Path, setting: str, sentence: str) -> None:
    three = "pipelines.0.stages.0.count=3"
    told = predict(Scenario.load(scenario, [three, setting]))[0].warnings
    assert any(sentence in warning for warning in told), told
    plain = predict(Scenario.load(scenario, [three]))[0].warnings
    sizes = "keys target.layer_mib, target.kv_kib have no effect: they are read only where a device"
    assert [w[: len(sizes)] for w in plain if "no effect" in w] == [sizes]


@pytest.mark.parametrize("batch", ["4", "auto"])
def test_a_pipeline_in_lock_step_has_passes_of_its_own(scenario: Path, batch: str) -> None:
    """Its requests share steps, whatever the batch of a pass."""
    settings = ["schedule={name='specpipe_db',batch=2}", "workload={requests=4,concurrency=4}"]
    usual = predict(Scenario.load(scenario, settings))[0]
    told = predict(Scenario.load(scenario, [*settings, f"serving.batch={batch}"]))[0]
    sentence = "key serving.batch has no effect: it is read only where several requests are open on"
    assert any(warning.startswith(sentence) for warning in told.warnings)
    assert told.spans == usual.spans


def test_prompts_have_a_place_in_lock_step_where_requests_share_it(scenario: Path) -> None:
    settings = ["workload={requests=4,concurrency=4,prompt_tokens=200}", "serving.prefill=last"]
    told = {
        name: predict(Scenario.load(scenario, [*settings, f"schedule.name={name}"]))[0]
        for name in ("specpipe_db", "specpipe")
    }
    sentence = "key serving.prefill has no effect: it is read only where several requests share"
    assert any(warning.startswith(sentence) for warning in told["specpipe"].warnings)
    assert not any("serving.prefill" in each for each in told["specpipe_db"].warnings)


def test_keys_that_are_read_are_not_told_of(scenario: Path) -> None:
    settings = ["serving={queue='weighted_fair',weights=[1]}", "links.local.latency_ms=5"]
    settings += ["serving.batch=2", "serving.prefill=first"]
    settings += ["workload={requests=4,concurrency=4}"]
    settings += ["drafts.0.host=a", "pipelines.0.stages.0.host=a", "pipelines.0.stages.0.count=2"]
    settings += ["links.pairs=[{ends=['pipeline0.stage2','draft0'],latency_ms=2}]"]
    settings += ["drafts.0.source=hybrid", "drafts.0.ngram=2", "drafts.0.weight=0.2"]
    settings += ["pipelines.0.count=2", "pipelines.0.stages.0.device.memory_mib=2000"]
    told = predict(Scenario.load(scenario, settings))[0].warnings
    (default,) = [warning for warning in told if "no effect" in warning]  # all share a host
    assert default.startswith("key links.default has no effect")


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


PIPEDEC = Path(__file__).parents[2] / "studies" / "scenarios" / "pipedec.toml"


def test_a_run_without_emulation_leaves_out_a_default_scheduler() -> None:
    pipedec = Scenario.load(PIPEDEC, ["emulate=false"])
    launch = prepare(pipedec)
    assert not launch.deployment.central_transfers
    assert any("central_transfers is off in a run" in each for each in launch.deployment.warnings)
    emulated = prepare(pipedec.with_(emulate=True)).deployment
    assert emulated.central_transfers
    assert not any("central_transfers" in each for each in emulated.warnings)


def test_run_without_a_checkpoint(
    scenario: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "run", scenario) == 2
    assert_sentence(capsys.readouterr().err, "key target.checkpoint is missing")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file that does not end")
def test_what_does_not_end_is_no_input(scenario: Path) -> None:
    """Neither as a scenario nor as what it names."""
    endless, sentence = Path("/dev/zero"), r"/dev/zero: .*it is no file, and does not end within"
    reading: list[Callable[[], object]] = [
        lambda: Scenario.load(endless),
        lambda: read_json(endless),
        lambda: Recording.load(endless),
        lambda: PoolFile.load(endless),
        lambda: read_trace(endless),
    ]
    for read in reading:
        with pytest.raises(UserError, match=sentence):
            read()
