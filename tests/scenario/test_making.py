"""A pool that was made otherwise than a scenario samples or drafts is warned of, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import SCENARIO
from tests.worlds.demo import demo
from treepipe.core.errors import UserError
from treepipe.profiles import pool_file
from treepipe.profiles.pool_file import SCHEMA
from treepipe.results.metrics import run_metrics
from treepipe.scenario.making import provenance
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import DraftSection, SamplingSection, SourceSection
from treepipe.sim.acceptance_pool import acceptance_warnings
from treepipe.sim.predict import predict
from treepipe.sim.theory.closed_form import closed_form

VECTOR = [-0.1, -2.5]
SAMPLED = {"sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "rule": "exact"}}
LOOKUP = {"draft_keys": {"source": "ngram", "ngram": 3}}
MODEL = {"draft_keys": {"source": "model"}}


def scenario(folder: Path, made: dict[str, object], *settings: str) -> Scenario:
    """One with a pool that was made so."""
    prompt = {"log_probs": [VECTOR] * 40, "ranks": [0, 1, 2, 0] * 10}
    pool = {"schema": SCHEMA, "candidates": 2, "prompts": [prompt], "off_path": {"1": [VECTOR]}}
    (folder / "pool.json").write_text(json.dumps(pool | made))
    path = folder / "scenario.toml"
    bernoulli = 'source = "bernoulli"\nbeta = 0.7'
    path.write_text(SCENARIO.replace(bernoulli, 'source = "pool"\nfile = "pool.json"'))
    chain = ("schedule={name='chain',gamma=2}", "workload.requests=1", "workload.new_tokens=8")
    return Scenario.load(path, (*chain, *settings))


NGRAM, SIMPLE = "drafts.0.source=ngram", "sampling.temperature=1"
RELAXED = {"sampling": {"temperature": 0.0, "rule": "relaxed_top_p", "relaxed_top_p": 0.8}}
RATIO = "acceptance.hit_ratio={1=0.5}"
Made = dict[str, object]


@pytest.mark.parametrize(
    ("made", "settings"),
    [
        ({}, ()),
        (MODEL, ()),
        ({"temperature": 0}, ("sampling.top_k=4",)),
        (SAMPLED, (SIMPLE,)),
        (LOOKUP, (NGRAM,)),
        (RELAXED, ("sampling={rule='relaxed_top_p',relaxed_top_p=0.8}",)),
    ],
)
def test_a_pool_made_so_is_used(tmp_path: Path, made: Made, settings: tuple[str, ...]) -> None:
    assert acceptance_warnings(scenario(tmp_path, made, *settings)) == []


def test_closed_forms_refuse_it_too_and_plain_decoding_asks_no_pool(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"but the pool was recorded with temperature = 1\.0"):
        closed_form(scenario(tmp_path, SAMPLED))
    predict(scenario(tmp_path, SAMPLED, "schedule.name=pp"))


BLOCK = "sampling={rule='block',temperature=1}"

REFUSED = [
    (
        {},
        SIMPLE,
        "so: treepipe calibrate acceptance --set sampling.temperature=1.0 --out FILE.toml",
    ),
    (
        {},
        "sampling={temperature=0.6,top_p=0.9,top_k=80}",
        "--set sampling.top_p=0.9 --set sampling.top_k=80",
    ),
    (SAMPLED, "runs=1", "but the pool was recorded with temperature = 1.0"),
    (MODEL, NGRAM, "recorded of source = 'model'; record one so: "),
    (
        LOOKUP,
        "drafts.0={source='ngram',ngram=2}",
        "acceptance --set drafts.source=ngram --set drafts.ngram=2",
    ),
    ({}, "sampling.rule=adaptive", "--set sampling.rule=adaptive --out"),
    ({}, "sampling={rule='relaxed_best',temperature=1}", "--set sampling.temperature=1.0 --out"),
    ({}, BLOCK, "--set sampling.temperature=1.0 --set sampling.rule=rejection --out"),
]


@pytest.mark.parametrize(("made", "setting", "part"), REFUSED)
def test_a_pool_made_otherwise_is_refused(
    tmp_path: Path, made: Made, setting: str, part: str
) -> None:
    wrong = scenario(tmp_path, made, setting)
    with pytest.raises(UserError) as caught:
        predict(wrong)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


WARNED = [
    ({}, (NGRAM,), "the pool does not say what drafted"),
    (LOOKUP, (), "key drafts.0.source is not given; the pool's answers are taken"),
    (
        MODEL,
        (NGRAM, RATIO),
        "recorded of source = 'model', not of source = 'ngram', ngram = 3; its",
    ),
    ({}, ("sampling.rule=relaxed_best",), "of a pool of rule 'exact' the first candidate"),
    (
        {},
        (SIMPLE, RATIO),
        "its passages are drawn to reach acceptance.hit_ratio, which is taken to",
    ),
]


@pytest.mark.parametrize(("made", "settings", "part"), WARNED)
def test_a_pool_used_by_a_rule_is_warned_of(
    tmp_path: Path, made: Made, settings: tuple[str, ...], part: str
) -> None:
    (trace, *_) = predict(scenario(tmp_path, made, *settings))
    assert any(part in each for each in trace.warnings)


def test_keys_that_do_not_matter_are_left_out() -> None:
    greedy = SamplingSection(top_p=0.5, relaxed_top_p=0.5, tau_max=0.1)
    model = DraftSection(ngram=7, weight=0.9)
    assert provenance(greedy, model, "") == provenance(SamplingSection(), DraftSection(), "")


@pytest.mark.parametrize(
    ("acceptance", "warned"),
    [
        ({"source": "bernoulli", "beta": 0.7}, True),
        ({"source": "hit_ratio", "table": {1: 0.7}}, True),
        ({"source": "hit_ratio", "table": {1: 0.7, 4: 0.9}}, False),
    ],
)
def test_one_share_says_nothing_of_siblings(acceptance: dict[str, object], warned: bool) -> None:
    """A tree then accepts what its first branch does, which a warning of trees alone tells."""
    schedule = "schedule={name='specinfer',branching=[1,1,1]}"
    chain = demo(schedule, "workload={new_tokens=60}").with_(acceptance=acceptance)
    tree = chain.with_(**{"schedule.branching": [4, 2, 2]})
    (alone, *_), (branched, *_) = predict(chain), predict(tree)
    same = run_metrics(alone)["tokens_per_round"] == run_metrics(branched)["tokens_per_round"]
    assert same == warned
    assert any("states one share" in each for each in branched.warnings) == warned
    assert not any("states one share" in each for each in alone.warnings)


def test_a_list_of_settings_comes_back_from_a_pools_file() -> None:
    sampling = SamplingSection(rule="adaptive", weights=(1.0, 2.0, 0.0))
    made = provenance(sampling, SourceSection(), "")
    written = {"sampling": made.sampling, "draft_keys": made.draft}
    assert pool_file.Made.from_content(json.loads(json.dumps(written))) == made
    with pytest.raises(ValueError, match="is no setting"):
        pool_file.Made.from_content({"sampling": {"weights": [1.0, True, 0.0]}})
