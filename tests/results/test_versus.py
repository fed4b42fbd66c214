"""``treepipe simulate A.toml --versus B.toml``: common random numbers and paired differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import SCENARIO, USUAL_METRICS, Terminal
from treepipe.core.errors import UserError
from treepipe.core.requests import RequestTrace
from treepipe.results.trace import Trace
from treepipe.results.versus import Side, make_comparison
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

METRIC = "time_between_tokens_ms"


def side(path: Path, *settings: str) -> Side:
    loaded = Scenario.load(path, settings)
    return Side(loaded, predict(loaded))


def test_schedules_get_the_same_text_from_the_same_seed(scenario: Path) -> None:
    names = ("flowspec", "naive_pp", "starsd", "pipedec", "dsd")
    texts = [
        [[request.tokens for request in trace.requests] for trace in side(scenario, name).traces]
        for name in (f"schedule.name={name}" for name in names)
    ]
    assert all(each == texts[0] for each in texts)
    assert texts[0][0] != texts[0][1]


def test_a_scenario_does_not_differ_from_itself(scenario: Path) -> None:
    jitter = "links.default={latency_ms=1, jitter_ms=3}"
    content = make_comparison(side(scenario, jitter), side(scenario, jitter)).to_json()
    assert content["a"] == content["b"]
    assert set(content["differences"]) == USUAL_METRICS
    assert set(content["utilization_differences"]) == set(content["a"]["utilization"])
    for each in (*content["differences"].values(), *content["utilization_differences"].values()):
        assert each["difference"] == {"mean": 0.0, "low": None, "high": None}


def test_difference_of_two_files_over_runs(scenario: Path, terminal: Terminal) -> None:
    Path("other.toml").write_text(SCENARIO.replace("seed = 3", "seed = 8"))
    slower = ["--versus-set", "name=slow", "--versus-set", "drafts.0.device.draft_ms={1=9.0}"]
    device = ["--set", "drafts.0.device={draft_ms={1=3.0}}", "--runs", 6]
    asked = [
        "--versus",
        "other.toml",
        *device,
        *slower,
        "--json",
        "-",
        "--plot",
        "p.png",
        "--quiet",
    ]
    content = json.loads(terminal.succeeds("simulate", scenario, *asked))
    assert (content["a"]["scenario"], content["b"]["scenario"]) == ("small", "slow")
    assert content["a"]["seed"] == content["b"]["seed"] == 3  # A's: common random numbers
    assert content["intervals_over"] == "runs"
    each = content["differences"][METRIC]
    assert each["unit"] == "ms"
    assert each["a"] == content["a"]["metrics"][METRIC]["mean"]
    assert each["difference"]["mean"] == pytest.approx(each["b"] - each["a"])
    assert each["relative"]["mean"] == pytest.approx(each["b"] / each["a"] - 1)
    assert 0 < each["difference"]["low"] < each["difference"]["mean"] < each["difference"]["high"]
    assert each["variance_reduction"] > 0.5
    width = each["difference"]["high"] - each["difference"]["low"]
    plain = content["a"]["metrics"][METRIC]
    assert width < plain["high"] - plain["low"]
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_one_run_each_is_compared_in_batches_of_the_same_requests(scenario: Path) -> None:
    settings = ["runs=1", "workload.requests=40"]
    ours, unread, smaller = (
        side(scenario, *settings, each)
        for each in ("schedule.tree_size=20", "schedule.gamma=2", "schedule.tree_size=8")
    )
    content = make_comparison(ours, unread).to_json()
    assert content["intervals_over"] == "batches"
    assert content["differences"][METRIC]["difference"]["low"] is None
    each = make_comparison(ours, smaller).to_json()["differences"][METRIC]
    assert each["difference"]["low"] > 0
    assert each["variance_reduction"] > 0.8


def test_both_lose_the_longer_warm_up(scenario: Path) -> None:
    ours = side(scenario, "workload.requests=8", "workload.warmup_requests=1")
    theirs = side(scenario, "workload.requests=8", "workload.warmup_requests=3")
    content = make_comparison(ours, theirs).to_json()
    assert content["warmup_requests"] == 3
    assert content["a"]["metrics"] == content["b"]["metrics"]
    assert content["a"]["warmup_requests"] == 3


def test_what_only_one_has_is_named(scenario: Path) -> None:
    ours = side(scenario)
    bare = [Trace(trace.devices, trace.spans, trace.requests) for trace in ours.traces]
    content = make_comparison(ours, Side(ours.scenario, bare)).to_json()
    assert METRIC in content["differences"]
    assert "draft_wait_ms" not in content["differences"]
    assert any(each.startswith("only A has draft_service_ms") for each in content["warnings"])


def test_nothing_in_common_is_refused(scenario: Path) -> None:
    ours = side(scenario)
    refused = RequestTrace(1, 4, 0.0, 1.0, (), (), (), "refused")
    empty = [Trace(("a",), [], [refused]) for _ in ours.traces]
    with pytest.raises(UserError, match="have no metric in common"):
        make_comparison(ours, Side(ours.scenario, empty))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--versus-set", "schedule.tree_size=8"], "small (schedule.tree_size=8)"),
        (["--versus-set", "name=other", "--versus-set", "schedule.name=starsd"], "other"),
        (["--versus", "twin.toml"], "small (twin.toml)"),
        (["--versus", "small.toml"], "small"),
    ],
)
@pytest.mark.usefixtures("scenario")
def test_table_and_trace_show_both_by_names_of_their_own(
    options: list[str], name: str, terminal: Terminal
) -> None:
    Path("twin.toml").write_text(SCENARIO.replace("tree_size = 20", "tree_size = 8"))
    files = ["--json", "v.json", "--trace", "t.json"]
    shown = terminal.succeeds("simulate", "small.toml", *options, *files, "--verbose")
    schedule = "starsd" if name == "other" else "flowspec"
    both = f"A: small, schedule flowspec, B: {name}, schedule {schedule}"
    assert f"{both} (simulation, 2 runs)" in shown
    assert all(metric.removesuffix("_ms") in shown for metric in USUAL_METRICS)
    content = json.loads(Path("v.json").read_text())
    assert (content["a"]["scenario"], content["b"]["scenario"]) == ("small", name)
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    processes = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert processes == ["A: small", f"B: {name}"]


ROOT = Path(__file__).parents[2]
EXAMPLES = [
    line.split()[1:]
    for line in (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("treepipe ")
]


@pytest.mark.long
@pytest.mark.parametrize("arguments", EXAMPLES, ids=" ".join)
def test_documented_comparisons_work(
    arguments: list[str], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert "B - A" in terminal.succeeds(*arguments)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--versus-set", "runs=3"], "runs are compared in pairs, so both need as many"),
        (["--runs", 1, "--versus-set", "workload.requests=5"], "key workload.requests is 2 in"),
        (["--versus-set", "schedule.tree_sise=3"], "did you mean 'tree_size'?"),
        (["--versus-set", "tree_size"], "setting 'tree_size': must look like key=value"),
        (["--versus", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["--set", "workload.warmup_requests=2"], "leaves nothing of workload.requests = 2"),
        (["--set", "workload.warmup_requests=-1"], "key workload.warmup_requests = -1"),
    ],
)
def test_bad_input_is_one_sentence(
    options: list[object], sentence: str, scenario: Path, terminal: Terminal
) -> None:
    terminal.refuses(sentence, "simulate", scenario, *options)
