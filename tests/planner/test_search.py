"""What a search shows on the way, keeps at Ctrl-C and gives up."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.worlds.command_line import Terminal, call
from tests.worlds.searches import CLUSTER, METRIC, found
from tests.worlds.written_studies import say
from treepipe.files.toml_file import toml_text
from treepipe.planner.candidates import Candidate
from treepipe.planner.cluster import Cluster
from treepipe.planner.gaps import Simulated
from treepipe.planner.halving import FAR_RUNS, SearchInterrupted, _survivors, rank
from treepipe.planner.plan import search
from treepipe.planner.report import plan_content, ranking_table, verdict
from treepipe.results.show import ProgressBars
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points

CHAINS = {"search.schedules": ["pp", "chain"], "search.grid": {"schedule.gamma": [1, 2, 4]}}
PLANS = 4


class Press:
    """Progress that presses Ctrl-C at a step, and keeps what was told until then."""

    def __init__(self, step: int) -> None:
        self.left, self.told = step, list[str]()

    def __call__(self, what: str, steps: int) -> None:
        if what and not steps:
            self.told.append(what)
        self.left -= not what
        if not what and self.left == 0:
            raise KeyboardInterrupt


def test_the_best_so_far_is_told_and_gets_better() -> None:
    cluster, press = Cluster.of(CLUSTER).with_(**CHAINS), Press(0)
    result = rank(cluster, press)
    formula, *best = press.told
    assert formula.startswith("first answer, by closed forms that 2 of 2 systems have: chain gamma")
    told = [float(each.split(", ")[1].removesuffix(" ms")) for each in best]
    first = told[: told.index(min(told)) + 1]
    assert best[0].startswith("best so far: chain, ")
    assert first == sorted(first, reverse=True)
    assert told[-1] == pytest.approx(result.winner.outcome.metrics[METRIC].mean, rel=1e-3)


def test_the_first_rung_has_the_beginnings_of_texts_where_their_length_is_no_matter() -> None:
    long = {**CHAINS, "workload.new_tokens": 48}
    first, *others = found(**long).rungs
    assert (first.runs, first.new_tokens) == (2, 16)
    assert {each.new_tokens for each in others} == {None}
    assert [each.runs for each in others] == [3]  # on 2 of them none of the two could be put off
    for more in ({"search.limits.request_latency_ms": 9e9}, {"search.goal": "request_latency_ms"}):
        assert {each.new_tokens for each in found(**long, **more).rungs} == {None}


def test_a_formula_answers_at_once_but_not_where_nothing_is_to_be_shown(
    terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    searched = {"schedules": ["pp", "pearl"], "grid": {"schedule.gamma": [1]}}
    Path("c.toml").write_text(toml_text({**CLUSTER, "search": searched}, []), "utf-8")
    line = "first answer, by closed forms that 1 of 2 systems"
    for options, first in (([], line), (["--quiet"], "")):
        assert call(terminal.monkeypatch, "plan", "c.toml", *options) == 0
        shown = capsys.readouterr().err
        assert shown.startswith(first)
        assert bool(shown) is bool(first)
        assert Path("c-best.toml").exists()


@pytest.mark.parametrize(
    ("step", "rungs"), [(3, [(2, 2)]), (PLANS + 2, [(PLANS, 2)])], ids=["first rung", "second rung"]
)
def test_an_interrupted_search_has_the_best_until_then(
    step: int, rungs: list[tuple[int, int]]
) -> None:
    """That of the last rung that was simulated whole, or else of the plans simulated."""
    cluster = Cluster.of(CLUSTER).with_(**CHAINS)
    with pytest.raises(SearchInterrupted) as cut:
        search(cluster, Press(step))
    result = cut.value.found
    assert [(each.candidates, each.runs) for each in result.rungs] == rungs
    points = [Point(each.label, each.candidate.scenario.with_(runs=2)) for each in result.ranking]
    means = {k: o.metrics[METRIC].mean for k, o in simulate_points(points, say).items()}
    assert result.winner.label == min(means, key=lambda label: means[label])
    assert verdict(result)[0].startswith("Interrupted: the best so far")
    assert plan_content(result)["interrupted"] is True
    with pytest.raises(KeyboardInterrupt) as nothing:
        search(cluster, Press(1))
    assert not isinstance(nothing.value, SearchInterrupted)


def test_ctrl_c_shows_and_writes_the_best_so_far(
    tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []

    def count(bars: ProgressBars, what: str, number: int) -> None:
        steps.extend([""] * (not what))
        if not what and len(steps) == PLANS + 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProgressBars, "__call__", count)
    path = tmp_path / "cluster.toml"
    searched = {"schedules": ["pp", "chain"], "grid": {"schedule.gamma": [1, 2, 4]}}
    path.write_text(toml_text({**CLUSTER, "search": searched}, []))
    sentence = "treepipe: interrupted; cluster-best.toml holds what was done until then"
    monkeypatch.chdir(tmp_path)
    shown = terminal.fails(sentence, "plan", "cluster.toml", "--sensitivity", code=130)
    assert "Interrupted: the best so far" in shown
    assert Scenario.load(Path("cluster-best.toml")).schedule.name in ("pp", "chain")


def _made(candidate: Candidate, *values: float) -> Simulated:
    mean = Interval(sum(values) / len(values), None, None)
    return Simulated(candidate, Outcome({METRIC: mean}, {}, (), {METRIC: values}))


def test_plans_far_behind_are_given_up_unless_they_are_their_schedules_best() -> None:
    """Beyond 10 % where paired gaps have no spread; none where they have a large one."""
    cluster = Cluster.of(CLUSTER).with_(**CHAINS, **{"search.keep": 2})
    first = rank(cluster, say).winner.candidate
    made = [replace(first, schedule="chain", settings={"gamma": n}) for n in range(8)]
    slow = replace(made[0], schedule="pp")
    steady = [(10, 10), (10.9, 10.9), (15, 15), (16, 16), *[(20.0 + n,) * 2 for n in range(4)]]
    plans = [_made(slow, 99, 99), *(_made(c, *v) for c, v in zip(made, steady, strict=True))]
    kept, far = _survivors(plans, cluster)
    assert [(each.schedule, each.settings["gamma"]) for each in kept] == [
        ("chain", 0), ("chain", 1), ("pp", 0)
    ]  # fmt: skip
    assert not far  # pp drafts nothing: it is what others are compared with
    noisy = [(10, 10), (8, 14), (15, 9), (9, 16), *[(30.0 - n, 10.0 + n) for n in range(4)]]
    plans = [_made(slow, 99, 99), *(_made(c, *v) for c, v in zip(made, noisy, strict=True))]
    assert [len(each) for each in _survivors(plans, cluster)] == [1 + 4, 0]


def test_a_far_plan_is_compared_on_the_first_texts_alone() -> None:
    """Of a draft that is nearly always wrong; by hand from the plans' runs."""
    hopeless = {"source": "bernoulli", "beta": 0.05}
    schedules = {"search.schedules": ["pp", "chain"], "search.grid": {"schedule.gamma": [6]}}
    result = found(**schedules, runs=FAR_RUNS + 3, acceptance=hopeless)
    best, far = result.ranking
    assert (best.candidate.schedule, far.candidate.schedule) == ("pp", "chain")
    assert (result.rungs[-1].far, str(result.rungs[-1])) == (1, "1 on 9 runs, 1 far behind on 6")
    runs, own = best.outcome.observations[METRIC], far.outcome.observations[METRIC]
    assert (len(runs), len(own)) == (FAR_RUNS + 3, FAR_RUNS)
    assert far.gap is not None
    assert far.gap.mean == pytest.approx(sum(own) / sum(runs[:FAR_RUNS]) - 1)
    assert found(**schedules, runs=FAR_RUNS, acceptance=hopeless).rungs[-1].far == 0


def test_a_key_that_changes_no_figure_is_named() -> None:
    result = found(**CHAINS)
    chain = next(each for each in result.ranking if each.candidate.schedule == "chain")
    settings = {**chain.candidate.settings, "schedule.gamma": 99}
    same = replace(chain.candidate, settings=settings)
    one = replace(chain, candidate=replace(chain.candidate, same=(same,)))
    ((_, named, *_),) = ranking_table(replace(result, ranking=[one])).texts
    assert named.endswith("; the same on all texts: gamma=99")
