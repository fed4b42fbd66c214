"""``treepipe theory``: the result file, and one sentence where no closed form applies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.command_line import assert_sentence, call
from tests.worlds.theory_scenarios import CONSTANT, SECTIONS, Written, targets_of
from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.results.metrics import METRICS
from treepipe.sim.theory.closed_form import FORMS, closed_form

POISSON = 'workload.arrivals={process="poisson",rate_per_s=0.1}'
STUDIES = Path(__file__).parents[2] / "studies" / "scenarios"


def theory(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *settings: str, out: str = "out.json"
) -> int:
    path = folder / "scenario.toml"
    path.write_text(CONSTANT)
    given = [part for setting in settings for part in ("--set", setting)]
    target = "-" if out == "-" else folder / out
    return call(monkeypatch, "theory", path, "--json", target, *given)


@pytest.mark.parametrize("name", list(SECTIONS))
def test_the_result_has_the_common_format(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert theory(monkeypatch, tmp_path, *SECTIONS[name]) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["schema"] == "treepipe.result/1"
    assert result["source"] == "theory"
    assert result["scenario"] == "constant times"
    assert result["runs"] == 0
    expected = Written(tmp_path, name).expected()
    assert "time_between_tokens_ms" in result["metrics"]
    for metric, value in result["metrics"].items():
        assert value == {
            "mean": expected.metrics[metric],
            "low": None,
            "high": None,
            "unit": METRICS[metric].unit,
        }
    assert result["closed_form"]["source"] == expected.form
    assert "constant times (theory, expected values)" in capsys.readouterr().out


def test_json_on_standard_output_is_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert theory(monkeypatch, tmp_path, out="-") == 0
    assert json.loads(capsys.readouterr().out)["source"] == "theory"


@pytest.mark.parametrize("name", list(SECTIONS))
def test_shipped_scenarios_have_a_closed_form(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "theory", STUDIES / f"{name}.toml") == 0
    assert f"{name} (theory" in capsys.readouterr().out


def test_records_and_closed_forms_agree() -> None:
    """Every form that a record names exists, none is left over, and drafts are drafted."""
    named = {system.closed_form: system for system in systems().values() if system.closed_form}
    assert set(named) == set(FORMS)
    plain = {name for name, form in FORMS.items() if form.evaluate is FORMS["plain"].evaluate}
    for name, system in named.items():
        assert system.drafts == (name not in plain or FORMS[name].rounds is not None)


@pytest.mark.parametrize("form", [None, "nonsense"])
def test_a_record_that_names_no_known_form_is_refused(
    form: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scenario = Written(tmp_path, "chain").scenario
    other = replace(systems()["chain"], closed_form=form)
    table = {**systems(), "chain": other}
    monkeypatch.setattr("treepipe.scenario.schema.systems", lambda: table)
    with pytest.raises(UserError, match=r"key schedule\.name: no closed form applies: "):
        closed_form(scenario)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (("schedule.name=flowspec",), "key schedule.name: no closed form applies: 'flowspec' has"),
        (("drafts=[{ count = 2 }]",), "key drafts: no closed form applies: it is for one draft"),
        (("workload.concurrency=2",), "key workload.concurrency: no closed form applies"),
        (
            ("workload.concurrency=8", "serving.batch=4"),
            "key workload.concurrency: no closed form applies: it is for one request at a time",
        ),
        (
            ("pipelines=[{ count = 2, stages = [{ device = {} }] }]",),
            "key pipelines: no closed form applies: it is for one pipeline, not 2",
        ),
        (
            ("workload.new_tokens={distribution='uniform',min=2,max=9}",),
            "prompt_tokens and new_tokens must be numbers",
        ),
        (("serving.admission=3",), "key serving.admission: no closed form applies"),
        (("serving={cache='reserved',cache_tokens=9999}",), "key serving.cache: no closed form"),
        (
            ("schedule.name=chain", "sampling.rule=relaxed_best"),
            "key sampling.rule: no closed form applies: 'relaxed_best' has none",
        ),
        (
            ("acceptance={source='replay',file='x.json'}", "schedule.name=dsd"),
            "key acceptance.source: no closed form applies: a replay has one text",
        ),
        ((POISSON,), "key serving.places: no closed form applies"),
        (
            ('workload.arrivals={process="gamma",rate_per_s=1,cv=2}', "serving.places=1"),
            "key workload.arrivals.process: no closed form applies: it is for 'poisson'",
        ),
        (
            ("schedule.name=pipedec", POISSON),
            "key workload.arrivals: no closed form applies: it is for pp, chain, dsd",
        ),
        (
            ('workload.arrivals={process="poisson",rate_per_s=100}', "serving.places=1"),
            "key workload.arrivals.rate_per_s = 100: no closed form applies: load",
        ),
        (
            targets_of(3, 30.0, "schedule.name=starsd", "schedule.adaptive_depth=true"),
            "key schedule: no closed form applies: it is for chains of constant depth",
        ),
        (
            targets_of(3, 30.0, "schedule.name=starsd", "schedule.branching=[2,1]"),
            "key schedule: no closed form applies: it is for chains of constant depth",
        ),
        (
            targets_of(3, 30.0, "schedule.name=starsd", "workload.concurrency=2"),
            "key workload.concurrency: no closed form applies: it is for one request per target",
        ),
        (
            targets_of(3, 30.0, "schedule.name=starsd", "serving.queue=weighted_fair"),
            "key serving.queue: no closed form applies: it is for 'fifo'",
        ),
        (
            (
                "schedule.name=starsd",
                "pipelines=[{ stages = [{ device = {} }] }, "
                "{ stages = [{ device = { stage_ms = { 1 = 9.0 } } }] }]",
                "workload.concurrency=2",
            ),
            "key pipelines: no closed form applies: it is for equal targets",
        ),
    ],
)
def test_one_sentence_where_no_closed_form_applies(
    settings: tuple[str, ...],
    part: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert theory(monkeypatch, tmp_path, *settings) == 2
    error = capsys.readouterr().err
    assert_sentence(error, part)
    assert "scenario.toml" in error
    assert not (tmp_path / "out.json").exists()


def test_acceptance_is_needed_but_for_plain_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(CONSTANT.replace('[acceptance]\nsource = "bernoulli"\nbeta = 0.7\n', ""))
    assert call(monkeypatch, "theory", path, "--quiet") == 0
    assert call(monkeypatch, "theory", path, "--set", "schedule.name=chain") == 2
    assert_sentence(capsys.readouterr().err, "key acceptance is missing")


@pytest.mark.parametrize(
    ("schedule", "settings", "part"),
    [
        ("pp", ("links.default.jitter_ms=0.5",), "links' jitter and losses"),
        ("pp", ("links.default.loss=0.1",), "jitter and losses"),
        ("dsd", ("drafts=[{ device = { draft_ms = { 1 = 30.0 } } }]",), "drafting hides behind"),
        (
            "dsd",
            ("drafts=[{ source = 'eagle', device = { draft_ms = { 1 = 3.0, 5 = 4.0 } } }]",),
            "a draft pass takes as long for 5 tokens as for one",
        ),
        (
            "starsd",
            ("drafts=[{ device = { draft_ms = { 1 = 3.0, 5 = 4.0 } } }]",),
            "a draft pass takes as long for 2 tokens as for one",
        ),
        ("starsd", (), "is the steady state"),
        ("pipedec", ("links.default.duplex=half",), "no transfer waits for another"),
        ("pipedec", ("links.default.medium=air",), "no transfer waits for another"),
        ("pipedec", ("links.default.message_ms=0.4",), "ports that every message keeps busy"),
        ("pipedec", ("workload.requests=2",), "finds an empty pipeline"),
        ("pipedec", ("schedule.draft_reuse=false",), "a draft that is reused"),
        ("pipedec", ("schedule.central_transfers=true", "schedule.groups=2"), "inside a group"),
        ("pipedec", ("schedule.central_transfers=true",), "the prompt's chunks may wait"),
        ("specpipe", ("acceptance={source='hit_ratio',table={1=0.6,8=0.9}}",), "an upper bound"),
        (
            "pipedec",
            ("schedule.central_transfers=true", "links.default.latency_ms=9.0"),
            "markers before a text's first layer",
        ),
        (
            "specpipe",
            ("pipelines=[{ stages = [{ device = { stage_ms = { 1 = 9.0, 8 = 12.0 } } }] }]",),
            "as long as one of 8 rows",
        ),
        ("pp", ("schedule.width=4",), "key schedule.width has no effect on pp"),
        ("pp", ("faults.spares=1",), "no worker fails"),
        (
            "pp",
            ("faults.inject=[{ worker = 'pipeline0.stage1', kind = 'kill', at_ms = 5.0 }]",),
            "no worker fails",
        ),
    ],
)
def test_a_bent_assumption_is_named(
    tmp_path: Path, schedule: str, settings: tuple[str, ...], part: str
) -> None:
    kept = Written(tmp_path, schedule).expected().warnings
    warnings = Written(tmp_path, schedule, *settings).expected().warnings
    assert any(part in warning for warning in warnings)
    assert schedule == "starsd" or not any(part in warning for warning in kept)
