"""Bad input on the command line: one sentence that names the key, exit code 2, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import SCENARIO, assert_refused, assert_sentence, call, run_with
from tests.worlds.tiny_models import save_random_checkpoint, save_tokenizer
from treepipe.core.errors import UserError
from treepipe.executor.launch import prepare
from treepipe.files.reading import read_json
from treepipe.profiles.pool_file import PoolFile
from treepipe.results.recording import Recording
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import read_trace
from treepipe.sim.predict import predict

OUTSIDE = """
seed=two seed=nan seed=99999999999999999999999999 runs=1.5 name=3 emulate=yes emulate=3
check_causality=2 schedule.tree_size=0 schedule.width=0 schedule.gamma=0 schedule.batch=0
schedule.branching=[2,0] schedule.branching=[] schedule.context_aware=1 acceptance.beta=1.5
workload.concurrency=0 sampling.temperature=-1 sampling.temperature=inf sampling.top_p=0
sampling.top_p=1.1 sampling.top_k=-2 sampling.tau_max=2 sampling.contrast_weight=-1
serving.weights=[0] serving.weights=[inf] serving.admission=0 serving.batch=0 serving.batch=all
serving.prefill=never serving.warm_up_ms=0 serving.cache=swapped serving.cache_tokens=0
serving.queue=lifo target.layer_mib=inf target.kv_kib=inf drafts.0.device.stage_ms.0=3
drafts.0.device.draft_ms={1=1e308} links.default.latency_ms=1e300
drafts.0.host='' drafts.0.host=192.168.1.20 pipelines.0.stages.0.host=nx:22
pipelines=3 pipelines=[] pipelines={} drafts=[] hosts=3 schedule=flowspec acceptance=0.5
workload.arrivals=3 workload.arrivals.process=foo acceptance.source=foo
acceptance.sharpness=inf acceptance.block=9999999
workload.prompt_tokens.mean=1e300 workload.new_tokens.cv=1e200 workload.new_tokens.max=9999999
workload.arrivals.cv=1e-200 workload.arrivals.cv=1e200
"""
"""Values that their keys cannot have, each said with the key."""
TABLES = {
    "acceptance.sharpness": "acceptance={source='pool',file='x.json'}",
    "acceptance.block": "acceptance={source='pool',file='x.json'}",
    "workload.prompt_tokens.mean": "workload.prompt_tokens={distribution='lognormal',mean=9}",
    "workload.new_tokens.cv": "workload.new_tokens={distribution='lognormal',mean=9}",
    "workload.new_tokens.max": "workload.new_tokens={distribution='uniform',max=9}",
    "workload.arrivals.cv": "workload.arrivals={process='gamma',rate_per_s=1}",
}
"""In which tables keys stand that the small scenario does not have."""


@pytest.mark.parametrize("setting", OUTSIDE.split())
def test_a_value_that_its_key_cannot_have_is_refused_with_the_key(
    scenario: Path, setting: str
) -> None:
    key = setting.partition("=")[0]
    assert_refused(scenario, setting, f"key {key}", *filter(None, [TABLES.get(key)]))


NUMBERS = """
schedule.tree_size schedule.branching scale.roles.draft0 scale.drafts sampling.top_k runs
workload.new_tokens acceptance.beta
"""


@pytest.mark.parametrize("key", NUMBERS.split())
def test_true_is_no_number(scenario: Path, key: str) -> None:
    setting = f"{key}={'[2,true]' if key == 'schedule.branching' else 'true'}"
    assert_refused(scenario, setting, "= true: must be a number, not true or false")


VAST = """
runs workload.requests workload.concurrency workload.new_tokens workload.prompt_tokens
drafts.0.count pipelines.0.count pipelines.0.stages.0.count schedule.tree_size
schedule.prefill_chunk schedule.top_k schedule.tree_depth schedule.gamma schedule.batch
schedule.layers_per_step
"""


@pytest.mark.parametrize("key", VAST.split())
def test_what_has_no_end_is_refused_by_a_bound(scenario: Path, key: str) -> None:
    """Before anything is built."""
    sentence = f"key {key} = 1000000000000: input should be less than or equal to "
    assert_refused(scenario, f"{key}=1000000000000", sentence)


STAGE = "pipelines.0.stages.0"
BAD_SETTINGS = [
    ("schedule.tree_sise=4", "key schedule.tree_sise is unknown; did you mean 'tree_size'?"),
    ("schedul.name=pp", "key schedul is unknown; did you mean 'schedule'?"),
    (
        "schedule.name=flowspek",
        'key schedule.name = "flowspek": there is no such system; did you mean',
    ),
    (f"{STAGE}.device=jetsen", f"key {STAGE}.device = 'jetsen'"),
    ("drafts.0.device=emulated-20m", "did you mean 'emulated-20ms'?"),
    ("drafts.0.device={profile='emulated-20'}", "device.profile = 'emulated-20': there is no such"),
    ("links.default=ethernet", "no such profile in links; did you mean 'ethernet-1g'?"),
    ("links.default.profile=wan-", "key links.default.profile = 'wan-': there is no such profile"),
    (f"{STAGE}.layers=3", "the stages' layers add up to 6, the target has 8"),
    ("target.layers=1", "1 layers are left for 2 stages without a number"),
    ("acceptance.off_path_sharpness=1", "is of another kind of this table, e.g. another source"),
    (
        "sampling={contrast_weight=0,matches_weight=0,agreement_weight=0}",
        "are all 0; one of the signals must count",
    ),
    ("sampling.rule=rejection", "'rejection' needs drawn trees, but 'flowspec' takes the most"),
    ("sampling.rule=adaptive", "'adaptive' is for chains (chain, dsd), not 'flowspec'"),
    ("serving.weights=[1,2]", "key serving.weights has 2 values for 1 pipelines"),
    ("serving.cache=paged", "key serving.cache = 'paged' needs a room to share: serving.cache_tok"),
    (
        "serving={cache='paged',cache_tokens=9}",
        "key serving.cache = 'paged': the longest request comes to hold",
    ),
    ("target.layers.a=3", "target.layers is not a table"),
    ("pipelines.5.count=2", "pipelines.5 is not a table"),
    ("pipelines.-1.count=2", "pipelines.-1 is not a table"),
    ("drafts.0.device.pric_usd_per_hour=1", "is unknown; did you mean 'price_usd_per_hour'?"),
    ("drafts.0.device.power.busy_w=9", "key drafts.0.device.power.idle_w is missing"),
    (
        "drafts.0.device.layer=[]",
        "layer cannot stand beside profile = 'emulated-20ms', which says a whole role's times",
    ),
    (
        "drafts.0.device={profile='a40',stage_ms={1=2.0}}",
        "stage_ms cannot stand beside profile = 'a40', which says what a layer costs",
    ),
    ("links.default.jitter_cv=2", "key links.default: key jitter_cv is for jitter = 'lognormal'"),
    ("links.default.latncy_ms=2", "key links.default.latncy_ms is unknown; did you mean"),
    (
        "links.default={profile='wan',bandwidth_mbit_s=1,transfer_ms={1=1.0}}",
        "key links.default: give bandwidth_mbit_s or transfer_ms, not both",
    ),
    (
        "links.default={latency_ms=1,bandwidth_mbit_s=1e-300}",
        "bandwidth_mbit_s = 1e-300: must be between 1e-09 and 1e+15",
    ),
    (
        "links.default={latency_ms=1,jitter_ms=1,jitter='lognormal',jitter_cv=1e200}",
        "jitter_cv = 1e+200: must be between 1e-09 and 1e+15",
    ),
    ("links.pairs=[{ends=['draft0','nobody']}]", "key links.pairs.0.ends names 'nobody'"),
    ("hosts={a={capacty=2}}", "key hosts.a.capacty is unknown; did you mean 'capacity'?"),
    ("hosts={a={foo=2}}", "key hosts.a.foo is unknown; valid keys: capacity"),
    ("hosts.a={}", "key hosts.a: no draft or stage has host = 'a'"),
    ("nothing", "must look like key=value"),
    ("acceptance.source=profil", "is unknown; did you mean 'profile'?"),
    (
        "pipelines=[{count=1000,stages=[{device='emulated-20ms',count=1000}]}]",
        "keys drafts and pipelines make 1,000,001 roles by their count; there may be 10,000",
    ),
    ("workload={requests=1000000,new_tokens=1000000}", "there may be 50,000,000"),
    ("workload.arrivals={process='poisson',rate_per_s=1e-320}", "requests never arrive"),
    ("acceptance={source='hit_ratio',table={}}", "key acceptance.table: must not be empty"),
    ("acceptance={source='hit_ratio',table={0=0.5}}", "input should be greater than or equal to 1"),
    ("acceptance={source='hit_ratio',table={1000000000=0.9}}", "less than or equal to 100000"),
    ("acceptance={source='hit_ratio',table={1=0.9,4=0.5}}", "the share falls from 0.9 at 1 to 0.5"),
    ("acceptance={source='profile'}", "a profile is chosen by its name, and nothing else"),
    ("acceptance={source='pool',file='x.json'}", "x.json: there is no such acceptance pool"),
    ("acceptance={source='replay',file='x.json'}", "x.json: there is no such recording"),
]


@pytest.mark.parametrize(("setting", "sentence"), BAD_SETTINGS)
def test_a_bad_scenario_is_one_sentence(scenario: Path, setting: str, sentence: str) -> None:
    assert_refused(scenario, setting, sentence)


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
    ("starsd", "schedule.depth_range=[1,1000000000000]", "key schedule.depth_range.1 = 100000"),
    ("specinfer", "schedule.branching=[1000,1000,1000,1000]", "up to 1,001,001,001,001 nodes"),
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
    scenario: Path, name: str, setting: str, sentence: str
) -> None:
    others = [f"schedule.name={name}", "workload.concurrency=3"]
    if name == "specinfer":
        scenario.write_text(SCENARIO.replace("tree_size = 20", ""))
    assert_refused(scenario, setting, sentence, *others)


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


def test_folders_and_binary_files_are_no_scenarios(scenario: Path) -> None:
    with pytest.raises(UserError, match="it is a folder, not a file"):
        Scenario.load(scenario.parent)
    scenario.write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match="it is no text in UTF-8"):
        Scenario.load(scenario)
    scenario.write_text(SCENARIO, encoding="utf-8-sig")
    assert Scenario.load(scenario).name == "small", "a mark at the beginning is no fault"


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


@pytest.mark.parametrize(
    ("command", "text", "sentence"),
    [
        ("simulate", None, "small.toml: there is no such file"),
        ("simulate", "name = [", "is not valid TOML"),
        ("simulate", 'name = "x"', "key target is missing"),
        ("simulate", SCENARIO.partition("[acceptance]")[0], "key acceptance is missing"),
        ("run", SCENARIO, "key target.checkpoint is missing"),
    ],
)
def test_missing_and_broken_files(
    command: str,
    text: str | None,
    sentence: str,
    scenario: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Through the command line, which ends with exit code 2 and one line."""
    scenario.unlink()
    if text is not None:
        scenario.write_text(text)
    assert call(monkeypatch, command, scenario) == 2
    assert_sentence(capsys.readouterr().err, sentence)


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
    refused("target", "draft", "asks for tensor")
    changes = ("intermediate_size", 99, "mlp.down"), ("num_key_value_heads", 1, "self_attn.k")
    for key, wrong, tensor in changes:
        changed = json.loads(text)
        assert changed[key] != wrong
        config.write_text(json.dumps({**changed, key: wrong}))
        refused("target", "draft", f"asks for tensor model.layers.0.{tensor}_proj.weight in shape")
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
    assert not launch.deployment.wiring.central_transfers
    assert any("central_transfers is off in a run" in each for each in launch.deployment.warnings)
    emulated = prepare(pipedec.with_(emulate=True)).deployment
    assert emulated.wiring.central_transfers
    assert not any("central_transfers" in each for each in emulated.warnings)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a file that does not end")
def test_what_does_not_end_is_no_input(scenario: Path) -> None:
    """Neither as a scenario nor as what it names."""
    endless, sentence = Path("/dev/zero"), r"/dev/zero: .*it is no file, and does not end within"
    for read in (Scenario.load, read_json, Recording.load, PoolFile.load, read_trace):
        with pytest.raises(UserError, match=sentence):
            read(endless)
