"""Closed forms: which apply, what they leave out, and the line that a simulation tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.theory_scenarios import (
    CONSTANT,
    SECTIONS,
    Written,
    draft_of,
    stages_of,
    targets_of,
)
from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.results.metrics import METRIC, run_metrics
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sim.theory.closed_form import FORMS, closed_form

POISSON = 'workload.arrivals={process="poisson",rate_per_s=0.1}'
STUDIES = Path(__file__).parents[2] / "studies" / "scenarios"


def test_a_simulation_tells_the_closed_form_in_a_line_and_no_more(
    scenario: Path, terminal: Terminal
) -> None:
    """Beside its tables, not in its file."""
    scenario.write_text(CONSTANT)
    chain = ("simulate", scenario, "--runs", 1, "--set", "schedule={name='chain',gamma=4}")
    value = Written("chain").expected().metrics["time_between_tokens_ms"]
    told = f"closed form (Leviathan et al. 2023, eq. 1, over a pipeline): {value:.4g} ms"
    (line,) = [each for each in terminal.succeeds(*chain).splitlines() if "closed form" in each]
    assert line.startswith(told)
    assert "; it " not in line
    bent = terminal.succeeds(*chain, "--set", "faults.spares=1")
    assert "; it assumes that no worker fails" in " ".join(bent.split())
    tree = terminal.succeeds("simulate", scenario, "--runs", 1, "--set", "schedule.name=flowspec")
    assert "closed form" not in tree
    assert "closed form" not in terminal.succeeds(*chain, "--json", "-")


@pytest.mark.parametrize("name", [n for n in SECTIONS if systems()[n].closed_form])
def test_shipped_scenarios_have_a_closed_form(name: str) -> None:
    assert closed_form(Scenario.load(STUDIES / f"{name}.toml")).metrics


def test_records_and_closed_forms_agree() -> None:
    """Every form that a record names exists, none is left over, and drafts are drafted."""
    named = {system.closed_form: system for system in systems().values() if system.closed_form}
    assert set(named) == set(FORMS)
    plain = {name for name, form in FORMS.items() if form.evaluate is FORMS["plain"].evaluate}
    for name, system in named.items():
        assert system.drafts == (name not in plain or FORMS[name].rounds is not None)


@pytest.mark.parametrize("form", [None, "nonsense"])
def test_a_record_that_names_no_known_form_is_refused(
    form: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Written("chain").scenario
    other = replace(systems()["chain"], closed_form=form)
    table = {**systems(), "chain": other}
    monkeypatch.setattr("treepipe.scenario.schema.systems", lambda: table)
    with pytest.raises(UserError, match=r"key schedule\.name: no closed form applies: "):
        closed_form(scenario)


def going_on(
    stages: tuple[int, float], draft_ms: float, gamma: int, beta: float, restart: str = "miss"
) -> Scenario:
    """PipeInfer without link times, and long enough for a steady state."""
    return Scenario.of(
        {
            "name": "going on",
            "target": {"layers": 8},
            "drafts": [{"device": {"draft_ms": {1: draft_ms}}}],
            "pipelines": [
                {"stages": [{"count": stages[0], "device": {"stage_ms": {1: stages[1]}}}]}
            ],
            "links": {"default": {"latency_ms": 0.0}},
            "schedule": {"name": "pipeinfer", "gamma": gamma, "restart": restart},
            "acceptance": {"source": "bernoulli", "beta": beta},
            "workload": {"prompt_tokens": 1, "new_tokens": 1500},
        }
    )


LOOKS = [
    ((2, 5.0), 4.0, 2, 4.0, 12.0),
    ((2, 5.0), 3.0, 2, 3.0, 15.0),
    ((4, 10.0), 6.0, 2, 6.0, 42.0),
    ((4, 10.0), 3.0, 4, 3.0, 51.0),
    ((4, 10.0), 3.0, 2, 5.0, 45.0),  # the stages bound it
]


@pytest.mark.parametrize(("stages", "draft_ms", "gamma", "whole", "nothing"), LOOKS)
def test_pipeinfer_by_hand_if_all_or_nothing_is_right(
    stages: tuple[int, float], draft_ms: float, gamma: int, whole: float, nothing: float
) -> None:
    for beta, ms in {1: whole, 0: nothing}.items():
        found = closed_form(going_on(stages, draft_ms, gamma, beta)).metrics[METRIC]
        assert found == pytest.approx(ms)


@pytest.mark.parametrize(("stages", "draft_ms", "gamma"), [each[:3] for each in LOOKS[:2]])
@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_pipeinfer_as_simulated(
    stages: tuple[int, float], draft_ms: float, gamma: int, beta: float
) -> None:
    """And a draft that begins anew behind every verdict is within the bounds that are told."""
    least, every = (
        run_metrics(predict(going_on(stages, draft_ms, gamma, beta, restart))[0])[METRIC]
        for restart in ("miss", "every")
    )
    form = closed_form(going_on(stages, draft_ms, gamma, beta, "every"))
    assert form.metrics[METRIC] == pytest.approx(least, rel=0.03)
    least, most = (
        closed_form(going_on(stages, draft_ms, gamma, share)).metrics[METRIC] for share in (1, 0)
    )
    assert least < every < most
    assert any(f"it takes {least:.4g} to {most:.4g} ms" in each for each in form.warnings)


def stars(*settings: str) -> tuple[str, ...]:
    return targets_of(3, 30.0, "schedule.name=starsd", *settings)


UNEQUAL = "pipelines=[{stages=[{device={}}]},{stages=[{device={stage_ms={1=9}}}]}]"
FALLING = "acceptance={source='hit_ratio',table={1=[0.8,0.5,0.25]}}"
TIMELESS = (stages_of(0.0), draft_of(0.0), "links.default.latency_ms=0", "schedule.name=chain")
REFUSED = [
    (("schedule.name=flowspec",), "schedule.name", "'flowspec' has"),
    (("drafts.0.count=2",), "drafts", "it is for one draft"),
    (("workload.concurrency=2",), "workload.concurrency", "it is for one request at a time"),
    (
        ("workload.concurrency=8", "serving.batch=4"),
        "workload.concurrency",
        "one request at a time",
    ),
    (("pipelines.0.count=2",), "pipelines", "it is for one pipeline, not 2"),
    (("workload.new_tokens={distribution='uniform',min=2,max=9}",), "workload", "must be numbers"),
    (("serving.admission=3",), "serving.admission", ""),
    (("serving.admission=auto",), "serving.admission", ""),
    (("serving={cache='reserved',cache_tokens=9999}",), "serving.cache", ""),
    (("schedule.name=chain", "sampling.rule=relaxed_best"), "sampling.rule", "'relaxed_best' has"),
    (
        ("acceptance={source='replay',file='x.json'}", "schedule.name=dsd"),
        "acceptance.source",
        "has one text",
    ),
    ((POISSON,), "workload.arrivals", "requests of a closed loop"),
    (stars("schedule.depth_range=[1,8]"), "schedule", "it is for chains of constant depth"),
    (stars("schedule.branching=[2,1]"), "schedule", "it is for chains of constant depth"),
    (stars("workload.concurrency=2"), "workload.concurrency", "it is for one request per target"),
    (stars("serving.queue=weighted_fair"), "serving.queue", "it is for 'fifo'"),
    (stars("serving.warm_up_ms=10"), "serving.warm_up_ms", "draft that runs no pass in vain"),
    (stars(UNEQUAL, "workload.concurrency=2"), "pipelines", "it is for equal targets"),
    (("schedule.name=dsd", FALLING), "acceptance", ""),
    (("schedule.name=specpipe", FALLING), "acceptance", ""),
    (stars(FALLING), "acceptance", ""),
    (TIMELESS, "", "a round of one token takes no"),
]


@pytest.mark.parametrize(("settings", "key", "part"), REFUSED)
def test_one_sentence_where_no_closed_form_applies(
    settings: tuple[str, ...], key: str, part: str
) -> None:
    with pytest.raises(UserError) as refused:
        Written("pp", *settings).expected()
    sentence = str(refused.value)
    assert f"key {key}" in sentence
    assert part in sentence.partition("no closed form applies")[2]
    assert sentence.startswith("scenario.toml: ")
    assert "\n" not in sentence


CENTRAL = "schedule.central_transfers=true"
GROWING = "drafts.0.device.draft_ms={ 1 = 3.0, 5 = 4.0 }"
LOST = "faults.inject=[{ worker = 'pipeline0.stage1', kind = 'kill', at_ms = 5.0 }]"
BENT = [
    ("pp", ("links.default.jitter_ms=0.5",), "links' jitter and losses"),
    ("pp", ("links.default.loss=0.1",), "jitter and losses"),
    ("dsd", ("drafts.0.device.draft_ms={ 1 = 30.0 }",), "drafting hides behind"),
    ("dsd", (GROWING, "drafts.0.source=eagle"), "takes as long for 5 tokens as for one"),
    ("starsd", (GROWING,), "a draft pass takes as long for 2 tokens as for one"),
    ("starsd", (), "is the steady state"),
    ("pipedec", ("links.default.duplex=half",), "no transfer waits for another"),
    ("pipedec", ("links.default.medium=air",), "no transfer waits for another"),
    ("pipedec", ("links.default.message_ms=0.4",), "ports that every message keeps busy"),
    ("pipedec", ("workload.requests=2",), "finds an empty pipeline"),
    ("pipedec", ("schedule.draft_reuse=false",), "a draft that is reused"),
    ("pipedec", (CENTRAL, "schedule.groups=2"), "inside a group"),
    ("pipedec", (CENTRAL,), "the prompt's chunks may wait"),
    ("pipedec", (CENTRAL, "links.default.latency_ms=9"), "markers before a text's first layer"),
    ("specpipe", ("acceptance={source='hit_ratio',table={1=0.6,8=0.9}}",), "an upper bound"),
    ("specpipe", ("pipelines.0.stages.0.device.stage_ms.8=22.0",), "as long as one of 8 rows"),
    ("pp", ("faults.spares=1",), "no worker fails"),
    ("pp", (LOST,), "no worker fails"),
    ("chain", ("acceptance={source='profile',name='reference-eagle'}",), "none of the 7 depths"),
]


@pytest.mark.parametrize(("schedule", "settings", "part"), BENT)
def test_a_bent_assumption_is_named(schedule: str, settings: tuple[str, ...], part: str) -> None:
    kept = Written(schedule).expected().warnings
    warnings = Written(schedule, *settings).expected().warnings
    assert any(part in warning for warning in warnings)
    assert schedule == "starsd" or not any(part in warning for warning in kept)
