"""Points of a study: simulated side by side, remembered, and simulated anew when inputs change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import pytest

from treepipe.core.errors import UserError
from treepipe.profiles.library import LIBRARY
from treepipe.profiles.pool_file import SCHEMA
from treepipe.results.estimates import observe
from treepipe.results.trace import steady
from treepipe.scenario.scenario import Scenario
from treepipe.sim import points
from treepipe.sim.engine import abandon, engine, run_jobs, start
from treepipe.sim.points import Point, simulate_points
from treepipe.sim.predict import predict
from treepipe.validation.demo import SCENARIO

PLAIN = ("schedule.name=pp", "workload={requests=1,new_tokens=5}", "target.layers=8", "runs=2")
SETTINGS = (*PLAIN, 'acceptance={source="bernoulli",beta=0.5}')


def point(label: str, path: Path, settings: tuple[str, ...], *, steady: bool = False) -> Point:
    return Point(label, Scenario.load(path, settings), steady)


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return []


def _written(tmp_path: Path) -> int:
    return len(list(tmp_path.rglob("output.pkl")))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("alone_s", "starting_s"), [(0.0, 1.0), (points.ALONE_S, 1.0), (points.ALONE_S, 0.0)]
)
def test_outcomes_are_those_of_a_prediction(
    tmp_path: Path,
    steps: list[int],
    alone_s: float,
    starting_s: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On other cores, here, or here until the others are ready."""
    monkeypatch.setattr(points, "ALONE_S", alone_s)
    monkeypatch.setattr(points, "STARTING_S", starting_s)
    monkeypatch.setattr(points, "_alone", points._Alone())
    named = [point("a", SCENARIO, SETTINGS), point("b", SCENARIO, (*SETTINGS, "seed=3"))]
    with joblib.parallel_config(backend="loky"):
        found = simulate_points(named, lambda text, count: steps.append(count))
    metrics, utilization = observe(predict(Scenario.load(SCENARIO, SETTINGS))).intervals
    assert list(found) == ["a", "b"]
    assert found["a"].metrics == metrics
    assert found["a"].utilization == utilization
    assert steps == [2, 1, 1]


@pytest.mark.processes
@pytest.mark.parametrize("begun", [False, True], ids=["starting", "at work"])
def test_jobs_that_nobody_waits_for_end_without_a_warning(
    begun: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """As after Ctrl-C, while processes start or work."""
    with engine("joblib", 2):
        if begun:
            results = run_jobs(joblib.delayed(abs)(-number) for number in range(100))
            assert next(results) == 0
            results.close()  # type: ignore[attr-defined]
        else:
            abandon(start(joblib.delayed(abs)(1)))
    assert [str(each.message) for each in recwarn] == []


def test_a_process_that_has_worked_enough_itself_gives_every_batch_to_the_others(
    steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else of each batch the first point is simulated here while the others wait."""
    given = list[int]()

    def noted(jobs: Iterator[Any]) -> Iterator[points.Outcome]:
        waiting = list(jobs)
        given.append(len(waiting))
        return (work(*args, **rest) for work, args, rest in waiting)

    alone = points._Alone()
    monkeypatch.setattr(points, "_alone", alone)
    monkeypatch.setattr(points, "run_jobs", noted)

    def simulate(*seeds: int) -> None:
        settings = [(*SETTINGS, f"seed={seed}") for seed in seeds]
        simulate_points([point(each[-1], SCENARIO, each) for each in settings], lambda *_: None)

    monkeypatch.setattr(points, "ALONE_S", 1e6)
    simulate(1, 2)
    assert given == []
    monkeypatch.setattr(points, "ALONE_S", alone.spent_s + 1e-9)
    simulate(3, 4, 5)
    simulate(6, 7)
    assert given == [2, 2]


def test_a_steady_point_counts_only_while_all_pipelines_work(steps: list[int]) -> None:
    settings = (*SETTINGS, "workload.requests=2", "pipelines.0.count=2")
    settings += ("schedule.name=starsd", "workload.concurrency=2", "workload.new_tokens=40")
    named = [point("all", SCENARIO, settings), point("cut", SCENARIO, settings, steady=True)]
    found = simulate_points(named, lambda *_: None)
    traces = predict(Scenario.load(SCENARIO, settings))
    metrics, _ = observe([steady(trace) for trace in traces]).intervals
    assert found["cut"].metrics == metrics
    assert found["all"].metrics != metrics


def test_what_a_scenario_leaves_out_stays_left_out(steps: list[int]) -> None:
    """A default that only goes with another key would not be accepted if it were written out."""
    lossy = ("links.default={ latency_ms = 1.0, loss = 0.1, retransmit_ms = 5.0 }",)
    found = simulate_points([point("a", SCENARIO, (*SETTINGS, *lossy))], lambda *_: None)
    assert found["a"].metrics["time_between_tokens_ms"].mean > 0


def test_a_point_is_simulated_once_and_again_when_a_setting_differs(
    tmp_path: Path, steps: list[int]
) -> None:
    first = simulate_points([point("a", SCENARIO, SETTINGS)], lambda *_: None)
    again = simulate_points([point("z", SCENARIO, SETTINGS)], lambda *_: None)
    assert _written(tmp_path) == 1
    assert again["z"] == first["a"]
    simulate_points([point("a", SCENARIO, (*SETTINGS, "seed=9"))], lambda *_: None)
    assert _written(tmp_path) == 2


@pytest.mark.parametrize("key", ["pipelines.0.stages.0.device", "links.default"])
def test_a_profile_that_changes_is_noticed(tmp_path: Path, steps: list[int], key: str) -> None:
    scenario, profile = tmp_path / "scenario.toml", tmp_path / "mine.toml"
    scenario.write_text(SCENARIO.read_text())
    shipped = "devices/emulated-20ms" if "device" in key else "links/emulated-1ms"
    origin = (LIBRARY / f"{shipped}.toml").read_text().partition("[origin]")[2].partition("\n\n")[0]
    written = "stage_ms = {{ 1 = {}.0 }}" if "device" in key else "latency_ms = {}.0"

    def found(ms: int) -> float:
        profile.write_text(f"{written.format(ms)}\n[origin]\n{origin}\n")
        changed = point("a", scenario, (*SETTINGS, f"{key}=./mine.toml"))
        outcomes = simulate_points([changed], lambda *_: None)
        return outcomes["a"].metrics["time_between_tokens_ms"].mean

    assert found(50) > found(2)


def test_a_pool_that_changes_is_noticed(tmp_path: Path, steps: list[int]) -> None:
    pool = tmp_path / "pool.json"
    chain = ("schedule={name='chain',gamma=2}", f"acceptance={{source='pool',file='{pool}'}}")
    rounds = []
    for rank in (0, 1):
        prompt = {"log_probs": [[-0.1]], "ranks": [rank]}
        content = {"schema": SCHEMA, "candidates": 1, "prompts": [prompt]}
        pool.write_text(json.dumps({**content, "off_path": {"1": [[-0.5]]}}))
        found = simulate_points([point("a", SCENARIO, (*PLAIN, *chain))], lambda *_: None)
        rounds.append(found["a"].metrics["tokens_per_round"].mean)
    assert rounds[0] > rounds[1] == 1


def test_sources_count_but_those_of_what_changes_no_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep's rows are made in its own room, which changes no point of a study."""
    for room in (*points.ROOMS, "sweeps", "planner"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "rules.py").write_text(room)
    monkeypatch.setattr(points, "PACKAGE", tmp_path)
    scenario = Scenario.load(SCENARIO, SETTINGS)
    content = scenario.model_dump(exclude_unset=True)

    def found(*rooms: str) -> str:
        points._sources.cache_clear()
        return points.fingerprint(content, scenario.path.parent) + points._sources(
            (*points.ROOMS, *rooms)
        )

    def change(room: str) -> None:
        (tmp_path / room / "rules.py").write_text("other rules")

    own, rows = found(), found("sweeps")
    change("planner")
    change("sweeps")
    assert found() == own
    assert found("sweeps") != rows
    before = points.fingerprint(content, scenario.path.parent)
    change("core")
    assert found() != own
    assert points.fingerprint(content, scenario.path.parent) != before
    points._sources.cache_clear()


def test_a_wrong_setting_is_one_sentence(steps: list[int]) -> None:
    with pytest.raises(UserError, match=r"key schedule\.widht is unknown"):
        simulate_points([point("a", SCENARIO, ("schedule.widht=3",))], lambda *_: None)
