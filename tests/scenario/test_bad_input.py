"""Bad input on the command line: one sentence that names the key, exit code 2, no traceback."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import pytest

from tests.worlds.command_line import SCENARIO, assert_refused, assert_sentence, call, run_with
from tests.worlds.tiny_models import save_tokenizer
from treepipe.core.errors import UserError
from treepipe.executor.models.shards import open_shard
from treepipe.executor.run.launch import prepare
from treepipe.files.reading import read_json, unpacked
from treepipe.profiles.pool_file import PoolFile
from treepipe.profiles.workloads import read_workload
from treepipe.results.recording import Recording
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.testing.random_model import save_random_checkpoint

OUTSIDE = """
seed=two seed=nan seed=99999999999999999999999999 runs=1.5 name=3 emulate=yes emulate=3
emulate=2 schedule.tree_size=0 schedule.width=0 schedule.gamma=0 schedule.batch=0
schedule.branching=[2,0] schedule.branching=[] schedule.score_aware=1 acceptance.beta=1.5
workload.concurrency=0 sampling.temperature=-1 sampling.temperature=inf sampling.top_p=0
sampling.top_p=1.1 sampling.top_k=-2 sampling.tau_max=2 sampling.weights=[1,-1,1]
serving.weights=[0] serving.weights=[inf] serving.admission=0 serving.batch=0 serving.batch=all
serving.warm_up_ms=0 serving.cache=swapped serving.cache_tokens=0
serving.queue=lifo target.hidden_size=0 drafts.0.device.stage_ms.0=3
drafts.0.device.draft_ms={1=1e308} links.default.latency_ms=1e300
drafts.0.host='' pipelines.0.stages.0.host=nx:22
pipelines=3 pipelines=[] pipelines={} drafts=[] hosts=3 schedule=flowspec acceptance=0.5
workload.arrivals=3 workload.arrivals.process=foo acceptance.source=foo
acceptance.sharpness=inf acceptance.block=9999999
workload.prompt_tokens.mean=1e300 workload.new_tokens.cv=1e200 workload.new_tokens.max=9999999
workload.arrivals.cv=1e-200 workload.arrivals.cv=1e200
"""
"""Values that their keys cannot have, each said with the key."""
TABLES = {
    "acceptance.sharpness": ("acceptance={source='pool',file='x.json'}",),
    "acceptance.block": ("acceptance={source='pool',file='x.json'}",),
    "workload.prompt_tokens.mean": ("workload.prompt_tokens={distribution='lognormal',mean=9}",),
    "workload.new_tokens.cv": ("workload.new_tokens={distribution='lognormal',mean=9}",),
    "workload.new_tokens.max": ("workload.new_tokens={distribution='uniform',max=9}",),
    "workload.arrivals.cv": ("workload.arrivals={process='gamma',rate_per_s=1}",),
}
"""In which tables keys stand that the small scenario does not have."""


NUMBERS = """
schedule.tree_size schedule.branching.0 scale.roles.draft0 scale.drafts sampling.top_k runs
workload.new_tokens acceptance.beta
"""
"""Keys of numbers, which ``true`` is not."""

GONE = """
target.layer_mib target.kv_kib target.embedding_mib target.tied check_causality serving.prefill
schedule.slots workload.arrivals.file drafts.0.device.call_overhead_ms drafts.0.device.request_ms
drafts.0.device.head drafts.0.device.embedding drafts.0.device.sampling
drafts.0.device.power.sensor
"""
"""Keys that there were once, or that only profiles have."""
STANDS = {
    "workload.arrivals.file": "workload.arrivals={process='poisson',rate_per_s=1}",
    "drafts": "drafts.0.device={power={idle_w=1,busy_w=2}}",
}
"""Tables that the small scenario does not have."""

VAST = """
runs workload.requests workload.concurrency workload.new_tokens workload.prompt_tokens
drafts.0.count pipelines.0.count pipelines.0.stages.0.count schedule.tree_size
schedule.prefill_chunk schedule.top_k schedule.tree_depth schedule.gamma schedule.batch
schedule.layers_per_step
"""
"""Keys of numbers that have no end but a bound, before anything is built."""

STAGE, PIPES = "pipelines.0.stages.0", "pipelines=[{stages=[%s]}]"
TIMED, LINKED = "emulated-20ms", "links.default={latency_ms=1,%s}"
HOSTS = PIPES % "{device={},count=3,host='box'},{device={}}"
MEMORIES = PIPES % "{device={memory_mib=4},host='box'},{device={memory_mib=5},host='box'}"
SMALL = PIPES % "{device={stage_ms={1=3.0},memory_mib=10}}"
THREE = "workload.concurrency=3"
THOUSANDS = "pipelines=[{count=1000,stages=[{device={},count=1000}]}]"
PAIR = "links.pairs=[{ends=['draft0','pipeline0.stage1'],%s}]"
TWICE = "links.pairs=[{ends=['draft0','pipeline0.stage1']},{ends=[%s]}]"
THERE, BACK = "'draft0','pipeline0.stage1'", "'pipeline0.stage1','draft0'"
FAULT = "faults=[{worker='draft0',%s}]"
HITS = "acceptance={source='hit_ratio',table={%s}}"
LEVELS = "drafts=[{device='emulated-20ms'},{device='emulated-20ms',agreement=0.5}]"
PIPESPEC = "schedule={name='pipespec'}"
SIGNALS = "sampling.weights=[0,0,0]"
ADAPTIVE = ("schedule={name='chain'}", "sampling.rule=adaptive")
LENGTHS = "workload.new_tokens={distribution=%s}"
ARRIVE = "workload.arrivals={%s}"
REFUSED: list[tuple[str, ...]] = [
    # Names and their places.
    ("schedule.tree_sise=4", "key schedule.tree_sise is unknown; did you mean 'tree_size'?"),
    ("schedul.name=pp", "key schedul is unknown; did you mean 'schedule'?"),
    ("schedule.name=flowspek", 'name = "flowspek": there is no such system; did you mean'),
    ("nothing", "must look like key=value"),
    ("target.layers.a=3", "target.layers is not a table"),
    ("pipelines.5.count=2", "pipelines.5 is not a table"),
    ("pipelines.-1.count=2", "pipelines.-1 is not a table"),
    ("acceptance.source=profil", "is unknown; did you mean 'profile'?"),
    ("acceptance.off_path_sharpness=1", "is of another kind of this table, e.g. another source"),
    ("scale.speed=2", "scale.speed"),
    # Devices and hosts.
    (f"{STAGE}.device=jetsen", f"key {STAGE}.device = 'jetsen'"),
    ("drafts.0.device=emulated-20m", "did you mean 'emulated-20ms'?"),
    ("drafts.0.device={profile='emulated-20'}", "device.profile = 'emulated-20': there is no such"),
    ("drafts.0.device.pric_usd_per_hour=1", "is unknown; did you mean 'price_usd_per_hour'?"),
    ("drafts.0.device.power.busy_w=9", "key drafts.0.device.power.idle_w is missing"),
    ("drafts.0.device.roofline={tflops={float16=1},memory_gb_s=1}", "roofline cannot stand beside"),
    ("drafts.0.device={layer=[]}", "key drafts.0.device.layer is unknown; valid keys: "),
    ("drafts.0.device={profile='a40',stage_ms={1=2.0}}", "stage_ms cannot stand beside profile"),
    ("hosts={a={capacty=2}}", "key hosts.a.capacty is unknown; did you mean 'capacity'?"),
    ("hosts={a={foo=2}}", "key hosts.a.foo is unknown; valid keys: capacity"),
    ("hosts.a={}", "key hosts.a: no draft or stage has host = 'a'"),
    (HOSTS, "hosts.bax.capacity=2", "no draft or stage has host = 'bax'"),
    (HOSTS, "hosts.box.capacity=0", "hosts.box.capacity"),
    (HOSTS, "hosts.box={capacity=2,profile='./x.toml'}", "keys capacity and profile: a host's"),
    (HOSTS, "hosts.box.profile=bax", "emulate=false", "box.profile = 'bax': there is no such"),
    (HOSTS, "drafts.0.host=pipeline0.stage4", "a role is called so"),
    (MEMORIES, "stages.0 and key pipelines.0.stages.1 are on host 'box', but"),
    # Links.
    ("links.default=ethernet", "no such profile in links; did you mean 'ethernet-"),
    ("links.default.profile=wan-", "key links.default.profile = 'wan-': there is no such profile"),
    ("links.default.jitter_cv=2", "key links.default: key jitter_cv is for jitter = 'lognormal'"),
    ("links.default.latncy_ms=2", "key links.default.latncy_ms is unknown; did you mean"),
    (LINKED % "bandwidth_mbit_s=1,transfer_ms={1=1.0}", "give bandwidth_mbit_s or transfer_ms,"),
    (LINKED % "bandwidth_mbit_s=1e-300", "bandwidth_mbit_s = 1e-300: must be between 1e-09 and"),
    (LINKED % "jitter_ms=1,jitter='lognormal',jitter_cv=1e200", "jitter_cv = 1e+200: must be"),
    (LINKED % "jitter='gauss'", "jitter"),
    (LINKED % "duplex='both'", "duplex"),
    (LINKED % "medium=''", "medium"),
    (LINKED % "burst_kib=-1", "burst_kib"),
    (LINKED % "bandwidth_mbit_s=9,burst_kib=1,peak_mbit_s=8", "peak_mbit_s is less"),
    ("links.pairs=[{ends=['draft0','nobody']}]", "key links.pairs.0.ends names 'nobody'"),
    ("links.pairs=[{ends=['draft0','draft0']}]", "pairs.0.ends: both are 'draft0'"),
    (PAIR % "bandwidth_mbit_s=9,transfer_ms={1=1.0}", "give bandwidth_mbit_s or transfer_ms,"),
    (PAIR % "profile='wify'", "links.pairs.0.profile = 'wify': there is no such profile"),
    (PAIR % "loss=1.0", "loss"),
    (PAIR % "jitter_cv=2.0", "jitter_cv is for jitter = 'lognormal', not 'half_normal'"),
    (TWICE % THERE, "pairs.1: draft0 -> pipeline0.stage1 is described by links.pairs.0"),
    (TWICE % BACK, "pairs.1: pipeline0.stage1 -> draft0 is described by links.pairs.0"),
    # The model and the schedule.
    (f"{STAGE}.layers=3", "the stages' layers add up to 6, the target has 8"),
    ("target={layers=1}", "1 layers are left for 2 stages without a number"),
    (THOUSANDS, "keys drafts and pipelines make 1,000,001 roles by their count; there may be"),
    (SMALL, "schedule.name=specpipe_db", THREE, "needs 8.0 MiB for 8 layers and 0.0 MiB"),
    ("schedule={name='specpipe',groups=3}", "groups = 3 is more than the 2 stages of pipelines.0"),
    ("schedule={name='pipedec',groups=[2,1]}", "[2, 1] are groups of 3 stages in all,"),
    ("schedule={name='starsd',depth_range=[5,2]}", "depth_range = [5, 2]: low exceeds high"),
    ("schedule={name='starsd',depth_range=[1,1000000000000]}", "schedule.depth_range.1 = 100000"),
    ("schedule={name='specinfer',branching=[1000,1000,1000,1000]}", "1,001,001,001,001 nodes"),
    ("schedule.name=specpipe", "drafts.0.count=2", "'specpipe' uses one draft server, there are 2"),
    # Sampling, acceptance and serving.
    ("schedule={name='pipespec',lookup=2}", "lookup looks for (acceptance.source = 'replay')"),
    # Drafts of drafts.
    (LEVELS, "drafts.1.agreement: 'flowspec' has no drafts of drafts, but pipespec has"),
    (LEVELS, "schedule={name='pipespec',draft_ahead=false}", "contradicts schedule.draft_ahead ="),
    (LEVELS, "schedule={name='pipespec',lookup=2}", "contradicts schedule.lookup, a second"),
    (LEVELS, PIPESPEC, "sampling.rule=rejection", "contradicts sampling.rule = 'rejection'"),
    (LEVELS, PIPESPEC, "drafts.1.least_probability=0.5", "contradicts drafts.least_probability"),
    (LEVELS, PIPESPEC, "drafts.1.source=eagle", "drafts.agreement is for drafts that read tokens"),
    (LEVELS, PIPESPEC, "drafts.0.count=2", "there are 2 of the target before it, and 1 behind"),
    ("drafts=[{agreement=0.5}]", PIPESPEC, "there are 0 of the target before it, and 1 behind"),
    ("drafts=[{},{agreement=1.5}]", "drafts.1.agreement"),
    (SIGNALS, "are all 0; one of the signals must count"),
    ("sampling.rule=rejection", "'rejection' needs drawn trees, but 'flowspec' takes the most"),
    (
        "sampling.rule=block",
        "schedule.name=specinfer",
        "is for chains (chain, engine_pp, dsd,",
    ),
    (
        "sampling.rule=adaptive",
        "chains (chain, engine_pp, spd, dsd, pipespec, pearl, ssd), not 'flowspec'",
    ),
    ("sampling.rule=rejection", "schedule.name=starsd", "needs drawn trees, but a"),
    ("sampling.rule=relaxed_best", "schedule.name=pp", "plain decoding has no drafted token"),
    (HITS % "", "key acceptance.table: must not be empty"),
    (HITS % "0=0.5", "input should be greater than or equal to 1"),
    (HITS % "1000000000=0.9", "less than or equal to 100000"),
    (HITS % "1=0.9,4=0.5", "the share falls from 0.9 at 1 to 0.5"),
    (HITS % "1=[0.7,0.6],4=[0.9,0.5]", "the share falls from 0.6 at 1 to 0.5 at 4 (depth 2)"),
    ("acceptance={source='profile'}", "key acceptance.name is missing: the name of a profile"),
    (
        "acceptance={source='profile',name='reference',file='pool.json'}",
        "key acceptance.file has no place beside acceptance.name",
    ),
    ("acceptance={source='profile',name='reference',tables={1=0.5}}", "acceptance.tables"),
    ("acceptance={source='pool',file='x.json'}", "x.json: there is no such acceptance pool"),
    ("acceptance={source='replay',file='x.json'}", "x.json: there is no such recording"),
    ("scale.misses=4", "leaves no room for so many misses"),
    ("serving.weights=[1,2]", "key serving.weights has 2 values for 1 pipelines"),
    ("serving.cache=paged", "key serving.cache = 'paged' needs a room to share: "),
    ("serving={cache='paged',cache_tokens=9}", "'paged': the longest request comes to hold"),
    # The workload.
    ("workload={requests=1000000,new_tokens=1000000}", "there may be 50,000,000"),
    ("workload.new_tokens=0", "key workload.new_tokens = 0: input should be greater"),
    ("workload.new_tokens=many", 'key workload.new_tokens = "many": input should be a valid'),
    ("workload.new_tokens={mean=3}", "must be a number of tokens, or a table whose distribution"),
    (LENGTHS % "'zipf'", "'uniform', 'lognormal' or 'geometric'"),
    (LENGTHS % "'uniform',min=5", "key workload.new_tokens.max is missing"),
    (LENGTHS % "'uniform',min=5,max=4", "max = 4 is less than min = 5"),
    (LENGTHS % "'geometric',mean=0.5", "key workload.new_tokens.mean = 0.5"),
    (LENGTHS % "'lognormal',mean=9,sd=2", "new_tokens.sd is unknown; valid keys"),
    ("workload.arrivals=poisson", 'key workload.arrivals = "poisson"'),
    (ARRIVE % "rate_per_s=2", "key workload.arrivals.process is missing"),
    (ARRIVE % "process='poison',rate_per_s=2", "is unknown; did you mean 'poisson'?"),
    (ARRIVE % "process='poisson'", "key workload.arrivals.rate_per_s is missing"),
    (ARRIVE % "process='poisson',rate_per_s=0", "key workload.arrivals.rate_per_s = 0: input"),
    (ARRIVE % "process='poisson',rate_per_s=1e-320", "requests never arrive"),
    (ARRIVE % "process='gamma',rate_per_s=1,cv=0", "key workload.arrivals.cv = 0: input"),
    (ARRIVE % "process='gamma',rate_per=1,cv=3", "did you mean 'rate_per_s'?"),
    # Factors.
    ("scale.devices={l40=2}", "key scale.devices.l40: the scenario names no such profile"),
    ("scale.links={wan=2}", "key scale.links.wan: the scenario names no such profile; it names"),
    ("scale.roles={draft7=2}", "key scale.roles.draft7: there is no such role; there are draft0"),
    ("scale.stages=0", "scale.stages"),
    ("scale.stages=1e308", "key scale.stages"),
    # Faults.
    ("faults=[{worker='stage9',kind='kill',at_ms=5}]", "faults.0.worker = 'stage9'"),
    (FAULT % "kind='kill'", "faults.inject.0.at_ms is missing"),
    (FAULT % "kind='kill',rate_per_hour=1", "key faults.inject.0.rate_per_hour is unknown"),
    (FAULT % "kind='fire',at_ms=5", "kind"),
    (FAULT % "kind='kill',at_ms=5,for_ms=9", "for_ms: a worker that was"),
    ("faults.timeout_ms=5", "timeout_ms"),
    ("faults.spares=['orin']", "'orin' is no HOST:PORT"),
    ("faults.spares=-1", "faults.spares"),
    (*ADAPTIVE, "faults.spares=1", "spares does not go with"),
]


ADDRESSES = ["10.0.0.1", "::1", "fe80::1", "orin:5555", "nx.lan", "me@nx.lan", "tcp://nx", "a.b."]
GIVEN = [each.partition("=") for each in OUTSIDE.split()]
REFUSED += [
    *((*TABLES.get(key, ()), f"{key}={value}", f"key {key}") for key, _, value in GIVEN),
    *((f"{key}=true", "= true: must be a number, not true or false") for key in NUMBERS.split()),
    *(
        (f"{key}={10**12}", f"key {key} = {10**12}: input should be less than")
        for key in VAST.split()
    ),
    *(
        (
            *(given for at, given in STANDS.items() if key.startswith(at)),
            f"{key}=1",
            f"key {key} is unknown",
        )
        for key in GONE.split()
    ),
    *((f"drafts.0.host='{name}'", "is a label for roles that share") for name in ADDRESSES),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[-2])
def test_a_bad_scenario_is_one_sentence(scenario: Path, case: tuple[str, ...]) -> None:
    *others, setting, sentence = case
    assert_refused(scenario, setting, sentence, *others)


@pytest.mark.parametrize("name", ["orin", "box-1", "rack 2, left", "localhost", "a_b"])
def test_labels_are_hosts_names(scenario: Path, name: str) -> None:
    assert Scenario.load(scenario, [f'drafts.0.host="{name}"']).drafts[0].host == name


POOL = {"schema": "treepipe.acceptance/1", "candidates": 1, "prompts": [], "off_path": {}}
BAD_FILES = [
    ("pool", "[" * 100_000, "its lists or tables are nested too deeply"),
    ("pool", "{", "is not an acceptance pool"),
    ("replay", "[" * 100_000, "its lists or tables are nested too deeply"),
    ("pool", b"\xff\xfe", "it is no text in UTF-8 (byte 0)"),
    ("replay", b"\xff\xfe", "it is no text in UTF-8 (byte 0)"),
    ("pool", json.dumps({**POOL, "candidates": 0}), "key candidates = 0: a pool needs at least"),
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


CACHE = "serving={cache='paged',cache_tokens=9999}"
PAST = "links.pairs=[{ends=['pipeline0.stage1','pipeline0.stage3']}]"
NO_MESSAGE = "ends has no effect: it is read only where messages go between the two"
BLOCK = "drafts=[{source='block',capture='output',device={draft_ms={1=3.0}}}]"
UNREAD = [
    ("sampling.relaxed_top_p=0.5", "only where sampling.rule is 'relaxed_top_p'"),
    ("sampling.top_k=5", "only where sampling.temperature is given"),
    ("sampling.temperature=1", "which must be of sampling.temperature = 1.0"),
    ("drafts.0.source=ngram", "must be of drafts.0.source = 'ngram', drafts.0.ngram = 3"),
    ("drafts.0.model.checkpoint=no", "key drafts.0.model.checkpoint = 'no': there is no such"),
    ("workload.prompts=none.json", "key workload.prompts = 'none.json': there is no such file"),
    ("serving.weights=[1]", "only where serving.queue is 'weighted_fair'"),
    ("serving.batch=4", "key serving.batch has no effect: it is read only where several"),
    ("serving.cache_tokens=999", "only where serving.cache is given"),
    (CACHE, "key serving.cache has no effect: it is read only where several requests are open at"),
    ("drafts.0.head=reference", "only where drafts.0.source is 'eagle' or 'eagle3' or 'block'"),
    (BLOCK, "drafts.0.capture has no effect: it is read only where drafts.0.source is 'eagle3'"),
    ("links.local.latency_ms=5", "key links.local has no effect: it is read only where two roles"),
    (PAST, f"key links.pairs.0.{NO_MESSAGE}"),
]
BRIEF = ("pipelines.0.stages.0.count=3", "runs=1", "workload.new_tokens=3")


def told(scenario: Path, *settings: str) -> tuple[str, ...]:
    return predict(Scenario.load(scenario, [*BRIEF, *settings]))[0].warnings


@pytest.mark.parametrize(("setting", "sentence"), UNREAD)
def test_a_key_without_effect_is_told(scenario: Path, setting: str, sentence: str) -> None:
    found = told(scenario, setting)
    assert any(sentence in warning for warning in found), found


def test_usual_keys_are_not_told_of(scenario: Path) -> None:
    assert not [each for each in told(scenario) if "no effect" in each]


@pytest.mark.parametrize("batch", ["4", "auto"])
def test_a_pipeline_in_lock_step_has_passes_of_its_own(scenario: Path, batch: str) -> None:
    """Its requests share steps, whatever the batch of a pass."""
    crowd = "workload={requests=4,concurrency=4,new_tokens=4,prompt_tokens=20}"
    settings = ["schedule={name='specpipe_db',batch=2}", crowd, "runs=1"]
    usual = predict(Scenario.load(scenario, settings))[0]
    told = predict(Scenario.load(scenario, [*settings, f"serving.batch={batch}"]))[0]
    sentence = "key serving.batch has no effect: it is read only where several requests are open on"
    assert any(warning.startswith(sentence) for warning in told.warnings)
    assert told.spans == usual.spans


def test_keys_that_are_read_are_not_told_of(scenario: Path) -> None:
    found = told(
        scenario,
        "serving={queue='weighted_fair',weights=[1],batch=2}",
        "links.local.latency_ms=5",
        "workload={requests=4,concurrency=4}",
        *("drafts.0.host=a", "pipelines.0.stages.0.host=a", "pipelines.0.stages.0.count=2"),
        "links.pairs=[{ends=['pipeline0.stage2','draft0'],latency_ms=2}]",
        *("drafts.0.source=hybrid", "drafts.0.ngram=2", "drafts.0.weight=0.2"),
        *("pipelines.0.count=2", "pipelines.0.stages.0.device.memory_mib=2000"),
    )
    (default,) = [warning for warning in found if "no effect" in warning]  # all share a host
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
    def refused(
        sentence: str, *settings: str, target: str = "target", draft: str = "draft"
    ) -> None:
        options = [option for setting in settings for option in ("--set", setting)]
        assert call(monkeypatch, "run", run_with(checkpoints, target, draft), *options) == 2
        assert_sentence(capsys.readouterr().err, sentence)

    refused("nowhere: there is no such checkpoint directory", target="nowhere")
    refused("key vocab_size = 40 differs from the target's 61", draft="other")
    shard = next((checkpoints / "sharded").glob("model-00002*"))
    shard.unlink()
    refused(f"names {shard.name}, which is missing", target="sharded")
    (checkpoints / "empty").mkdir()
    refused("config.json: there is no such file", target="empty")
    refused("it exceeds the models' 256 positions", "workload.new_tokens=250")
    refused("holds 60 prompts", "workload.requests=61")
    refused("the reference sets are", "workload.prompts=reference:x")
    refused("no-such.json: there is", "workload.prompts=no-such.json")
    refused("the checkpoint has 8 layers", "target.layers=6")
    central = ("schedule.name=pipedec", "schedule.central_transfers=true", "emulate=false")
    refused("schedule.central_transfers needs emulate = true", *central)


PIPEDEC = Path(__file__).parents[2] / "studies" / "scenarios" / "pipedec.toml"


def test_a_run_without_emulation_leaves_out_a_default_scheduler() -> None:
    pipedec = Scenario.load(PIPEDEC, ["emulate=false"])
    launch = prepare(pipedec)
    assert not launch.deployment.wiring.central_transfers
    assert any("central_transfers is off in a run" in each for each in launch.deployment.warnings)
    emulated = prepare(pipedec.with_(emulate=True)).deployment
    assert emulated.wiring.central_transfers
    assert not any("central_transfers" in each for each in emulated.warnings)


@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_only_regular_files_are_read(scenario: Path, kind: str) -> None:
    """Neither as a scenario nor as what it names: one might never end, or never begin."""
    place = Path(os.devnull) if kind == "device" else scenario.with_name("pipe")
    if kind == "pipe":
        os.mkfifo(place)
    sentence = f"{place}: .*it is no regular file"
    for read in (Scenario.load, read_json, Recording.load, PoolFile.load, read_workload):
        with pytest.raises(UserError, match=sentence):
            read(place)
    if kind == "pipe":
        with pytest.raises(UserError, match="pipe: is no regular file"), open_shard(place):
            pass


def test_an_input_has_a_bounded_size(tmp_path: Path) -> None:
    """Nothing of what is beyond it is read or unpacked."""
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(2**33)
    packed, mib = gzip.compress(bytes(2**26)), 2**20
    tracemalloc.start()
    try:
        with pytest.raises(
            UserError, match=r"large\.toml: cannot be read: it is larger than 4 MiB"
        ):
            Scenario.load(large)
        with pytest.raises(ValueError, match="it unpacks to more than 1 MiB"):
            unpacked(packed, mib)
        assert tracemalloc.get_traced_memory()[1] < 20 * mib
    finally:
        tracemalloc.stop()
    assert unpacked(gzip.compress(b"whole")) == b"whole"


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="needs a file without an end")
def test_a_file_of_the_kernel_is_not_waited_for() -> None:
    with pytest.raises(UserError, match="/proc/kmsg: "):
        Scenario.load(Path("/proc/kmsg"))


@pytest.mark.parametrize(
    "key", ["schedule" + ".a" * 50_000, "." * 50_000, "a." * 101], ids=["named", "dots", "101"]
)
def test_a_setting_of_very_many_parts_is_one_sentence(key: str, scenario: Path) -> None:
    with pytest.raises(UserError, match="its key has more than 100 parts") as refused:
        Scenario.load(scenario, [f"{key}=1"])
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("depth", [50, 200, 400, 900, 5000])
@pytest.mark.parametrize("around", [("[", "1", "]"), ("{ a = ", "1", " }")], ids=["list", "table"])
def test_a_deep_value_is_one_sentence(
    depth: int, around: tuple[str, str, str], scenario: Path
) -> None:
    value = depth * around[0] + around[1] + depth * around[2]
    for key in ("target", "target.layers", "workload.arrivals", "other"):
        with pytest.raises(UserError):
            Scenario.load(scenario, [f"{key}={value}"])
    scenario.write_text(f"other = {value}\n{scenario.read_text()}")
    with pytest.raises(UserError):
        Scenario.load(scenario)


def test_a_value_that_is_equal_to_a_valid_one_is_refused_all_the_same() -> None:
    """Values of scenarios are validated once: 1 is not true, and true is not 1."""
    shipped = Path(__file__).parents[2] / "studies" / "scenarios" / "pp.toml"
    given = Scenario.load(shipped).with_(runs=1, emulate=True)
    for key, like in (("runs", True), ("emulate", 1), ("runs", "1x")):
        with pytest.raises(UserError, match=key):
            given.with_(**{key: like})
