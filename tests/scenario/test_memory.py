"""Memory of a deployment: weights, caches, buffers, of stages and drafts, and what is refused."""

from __future__ import annotations

import pytest

from tests.worlds.changed import changed
from tests.worlds.demo import deployed
from treepipe.core.captures import NORMED
from treepipe.core.errors import UserError
from treepipe.profiles.library import find_model
from treepipe.scenario.deployment import MIB, Deployment, Footprint
from treepipe.scenario.desks import cache_room
from treepipe.scenario.memory import memory_needs, most_layers
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario

LLAMA = (
    'target={profile="llama-3.1-8b"}',
    'pipelines=[{stages=[{device="rtx-4090",count=2}]}]',
    'drafts=[{device="rtx-4090",model.profile="llama-3.2-1b"}]',
    "workload={requests=4,prompt_tokens=100,new_tokens=28,concurrency=2}",
    'schedule={name="pp"}',
)


def deployment_of(*overrides: str) -> Deployment:
    return deployed(*LLAMA, *overrides)


def sized(deployment: Deployment, *, tied: bool = False, drafted: bool = True) -> Deployment:
    """A deployment whose models have sizes in round figures; 1,000 and 500 are the vocabularies."""
    ends = (2 * MIB, 2 * MIB, True) if tied else (5 * MIB, 2 * MIB, False)
    target = Footprint(3 * MIB, MIB / 64, 100.0, *ends, 1000)
    draft = {"draft0": (Footprint(MIB, MIB / 32, 50.0, 7 * MIB, vocabulary=500), 4)}
    return changed(deployment, footprint=target, draft_footprints=draft if drafted else {})


def hardware(memory_mib: float) -> str:
    return f"{{roofline={{tflops={{float16=100}},memory_gb_s=1000}},memory_mib={memory_mib}}}"


def cards(memory_mib: float, more: str = "") -> str:
    """The setting of a pipeline of two stages."""
    return f"pipelines=[{{stages=[{{device={hardware(memory_mib)},count=2{more}}}]}}]"


def draft(memory_mib: float) -> str:
    return f'drafts=[{{device={hardware(memory_mib)},model.profile="llama-3.2-1b"}}]'


HOST = ",host='box'"
MANY = ("workload.concurrency=500", "workload.requests=500")
CROWD = (*MANY, "serving.cache=paged")
ADAPTIVE = ("schedule={name='dsd'}", "sampling.rule=adaptive", "serving.cache_tokens=999")
FITTING = [
    (draft(2600),),  # 2.3 GiB of its own
    (cards(8192),),  # two halves of 7.5 GiB
    (cards(16384, HOST),),
    (cards(8000), *CROWD, "serving.cache_tokens=500"),
    (*CROWD, "serving.cache_tokens=128"),  # prompt and text, to which plain decoding adds none
    (*CROWD, *ADAPTIVE, "serving.cache=reserved"),
]
REFUSED = [
    ((draft(2000),), r"draft0 needs .* 16 layers .* has 2000 MiB"),
    ((draft(2600), "schedule.ends=draft"), r"draft0 needs .* has 2600 MiB"),  # 2 GiB of ends
    ((cards(8192, HOST),), r"stage1 needs .*; pipeline0.stage2 needs .* host 'box' has"),
    ((cards(600), *MANY), r"has 600 MiB$"),  # no matter of requests
    ((cards(8000), *CROWD, "serving.cache_tokens=50000"), r"1 requests of 50000 entries .* MiB$"),
    ((*CROWD, "serving.cache_tokens=127"), r"to hold 128 tokens at pipeline0, .* room for 127$"),
    (
        (*CROWD, "serving.cache_tokens=255", "drafts.0.count=2"),
        r"127 for each of 2 draft servers",
    ),
    ((*CROWD, *ADAPTIVE), r"does not go with sampling\.rule = 'adaptive'"),
]


@pytest.mark.parametrize("settings", FITTING)
def test_what_fits_is_taken(settings: tuple[str, ...]) -> None:
    deployment_of(*settings)


@pytest.mark.parametrize(("settings", "sentence"), REFUSED)
def test_what_does_not_fit_is_refused(settings: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        deployment_of(*settings)


def test_needs_by_hand() -> None:
    """16 layers of Llama 3.1 8B per stage; 128 entries for each of two requests; no tree."""
    deployment = deployment_of()
    needs = memory_needs(sized(deployment, drafted=False))
    assert [need.role for need in needs] == ["pipeline0.stage1", "pipeline0.stage2"]
    first = needs[0]
    assert (first.weights, first.layers) == (16 * 3, 16)
    assert (first.caches, first.requests, first.entries) == (2 * 128 * 16 / 64, 2, 128)
    # A chunk of 64 rows: states in and out, and a mask entry per cache entry.
    assert first.buffers * MIB == pytest.approx(64 * (2 * 100 + 4 * 128))
    assert [need.ends for need in needs] == [2, 2], "the embedding first, the projection last"
    assert needs[1].buffers * MIB == pytest.approx(64 * (2 * 100 + 4 * 128 + 4 * 1000))
    need = memory_needs(sized(deployment))[-1]
    assert (need.weights, need.ends) == (4, 7), "its own"
    assert need.caches == 2 * 128 * 4 / 32
    assert need.buffers * MIB == pytest.approx(64 * (4 * 500 + 2 * 50))


def test_who_has_the_targets_ends_needs_memory_for_them() -> None:
    """At the draft all of them; an EAGLE head borrows them wherever they are; a tied matrix is
    there once on a pipeline of one stage, and twice on a longer one."""
    deployment = sized(deployment_of(), tied=True)
    at_draft = memory_needs(changed(deployment, ends="draft"))
    assert [need.ends for need in at_draft] == [0, 0, 7 + 2]
    assert at_draft[-1].buffers * MIB == pytest.approx(64 * (4 * 1000 + 2 * 100))
    assert memory_needs(changed(deployment, captured=(NORMED,)))[-1].ends == 7 + 2
    assert [need.ends for need in memory_needs(deployment)] == [2, 2, 7]
    (alone,) = [(deployment.roles.pipelines[0][0],)]
    assert memory_needs(changed(deployment, pipelines=(alone,)))[0].ends == 2


@pytest.mark.parametrize(
    ("model", "gib"), [("llama-3.1-8b", 14.96), ("llama-3.2-1b", 2.30), ("vicuna-7b", 12.55)]
)
def test_all_weights_of_a_model_are_counted(model: str, gib: float) -> None:
    """Parameters as published (8.03, 1.24 and 6.74 thousand million), two bytes each."""
    shape = find_model(model, "test")
    footprint = Footprint.of_shape(shape, "float16")
    total = shape.layers * footprint.layer_bytes + footprint.ends_bytes
    assert total == 2 * shape.parameters
    assert total / 2**30 == pytest.approx(gib, rel=0.005)


def test_specpipes_table_of_memory() -> None:
    """Its section 4.5: 70B in bfloat16, ten layers a card, a runtime of 256 MiB; 131,072 tokens of
    context are assumed, the model's limit."""
    card = "{roofline={tflops={bfloat16=71},memory_gb_s=936},memory_mib=24576,runtime_mib=256}"
    deployment = deployment_of(
        'target={profile="llama-3.1-70b"}',
        f"pipelines=[{{stages=[{{device={card},count=8}}]}}]",
        'schedule={name="specpipe",width=64,children=16}',
        "workload={requests=1,prompt_tokens=130560,new_tokens=512}",
    )
    cards = [need.total / 1024 for need in memory_needs(deployment) if need.role != "draft0"]
    assert cards == pytest.approx([23.5, *[21.5] * 6, 23.5], rel=0.05)


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        ('arrivals={process="poisson",rate_per_s=1}', "requests arrive by themselves"),
        ("concurrency=500", "each of workload.concurrency clients"),
    ],
)
def test_open_requests_that_do_not_fit_name_what_bounds_them(workload: str, why: str) -> None:
    settings = (cards(8000), "workload.requests=500", f"workload.{workload}")
    with pytest.raises(UserError, match=rf"500 requests .* 8000 MiB; {why}") as refused:
        deployment_of(*settings)
    fit = int(str(refused.value).split(" would fit")[0].split()[-1])
    assert 1 <= fit < 500
    assert "serving.places (per pipeline) or serving.admission" in str(refused.value)
    deployment_of(*settings, f"serving.places={fit}")
    with pytest.raises(UserError, match=f"{fit} would fit"):
        deployment_of(*settings, f"serving.places={fit + 1}")


def test_what_cannot_be_checked_is_said() -> None:
    drafts = "drafts=[{device={draft_ms={1=3.0},memory_mib=100}}]"
    assert (
        "memory of draft0 was not checked: nothing tells the model's size"
        in deployment_of(drafts).warnings
    )
    assert not any("memory of" in sentence for sentence in deployment_of().warnings)


def test_the_buffers_of_a_pass_grow_with_its_requests() -> None:
    """Two requests of 64 rows: twice the states, and a mask from all rows to all entries."""
    first, last, drafts = memory_needs(sized(deployment_of("serving.batch=2")))
    assert first.buffers * MIB == pytest.approx(2 * 64 * (2 * 100 + 4 * 2 * 128))
    assert last.buffers * MIB == pytest.approx(2 * 64 * (2 * 100 + 4 * 2 * 128 + 4 * 1000))
    assert drafts.buffers * MIB == pytest.approx(2 * 64 * (4 * 500 + 2 * 50))
    more = memory_needs(sized(deployment_of("serving.batch=9")))
    assert more == [first, last, drafts], "two requests are open at once"


def test_requests_share_what_room_the_devices_leave() -> None:
    """Where 500 requests would be refused; all that is not needed for anything else is room."""
    deployment = deployment_of(cards(8000), *CROWD)
    (tokens,) = deployment.service.room.pipelines
    last = memory_needs(deployment)[1]  # which has logits, too
    assert last.requests == 1
    each = last.caches / last.entries
    left = 8000 - (last.total - last.caches)
    assert tokens * each <= left < (tokens + 1) * each
    assert deployment.service.room.drafts[0] > tokens, "on a larger device"
    given = deployment_of(cards(8000), *CROWD, "serving.cache_tokens=500").service.room
    assert (given.pipelines, given.drafts) == ((500,), (500,))
    told = f"key serving.cache = 'paged' shares room for tokens: {tokens:.0f} at pipeline0, "
    assert any(warning.startswith(told) for warning in deployment.warnings)
    shared = deployment_of(cards(8000), *CROWD, "drafts.0.count=2")
    assert [cache_room(shared, n).pipelines for n in (0, 1)] == [(tokens // 2,)] * 2


def test_roles_of_a_host_have_room_for_equally_many() -> None:
    deployment = deployment_of(cards(16384, HOST), *CROWD)
    stages = memory_needs(deployment)[:2]
    left = 16384 - sum(need.total - need.caches for need in stages)
    each = sum(need.caches / need.entries for need in stages)
    assert deployment.service.room.pipelines == (left // each,)


def test_prompt_lookup_beside_a_stage_takes_none_of_its_layers_room() -> None:
    """It has no layers, by which the room of a device was divided."""
    lookup = {"source": "ngram", "host": "pc", "device": {"draft_ms": {1: 0.2}}}
    stage = {"device": {"profile": "rtx-3060"}, "host": "pc"}
    content = {"name": "lookup", "target": {"profile": "llama-3.1-8b", "dtype": "int4"}}
    content |= {"drafts": [lookup], "pipelines": [{"stages": [stage]}], "schedule": {"name": "pp"}}
    deployment = deploy(Scenario.of(content, "lookup.toml"))
    rooms = most_layers(deployment, memory_needs(deployment), 1.0)
    assert [*rooms] == ["pipeline0.stage1"]
    assert 32 < rooms["pipeline0.stage1"] < 12288 / 100  # a layer has 117 MiB of weights
    with pytest.raises(UserError, match="but its device has 12288 MiB"):
        deploy(Scenario.of({**content, "target": {"profile": "llama-3.1-405b"}}, "lookup.toml"))
