"""Calibrate, predict, run for real, and compare: what the demonstration and the studies share.

Law of this file: every case is predicted before the first process starts, from acceptance on the
calibration prompts, which are none of those that are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from treepipe.errors import UserError
from treepipe.estimates import summarize
from treepipe.executor.calibration import WholeModel, record_acceptance
from treepipe.executor.cluster import Cluster
from treepipe.executor.launch import Launch, prepare
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.executor.station import RoleSettings
from treepipe.plan import Plan
from treepipe.scenario import Scenario
from treepipe.scenario_file import load_scenario
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.pool import Pool
from treepipe.sim.world import simulate
from treepipe.studies.judgement import Cut, Prediction, Row, Texts, judge
from treepipe.studies.study import Say
from treepipe.workload import run_seeds

BLOCK = 16
"""Positions of the calibration that are drawn together, so that correlation survives."""
WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to predict and to run: changes to the base scenario, as ``--set`` takes them."""

    label: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Prepared:
    case: Case
    scenario: Scenario
    launch: Launch


def compare(
    path: Path, cases: Sequence[Case], say: Say, cut: Cut = lambda trace: trace
) -> Iterator[Row]:
    """Predict all cases of a greedy scenario, then run them; yields a row after each run.

    Cases that differ in nothing the workers are started with share one cluster, so rows come
    cluster by cluster.

    Args:
        path: the base scenario.
        cut: what is measured of a run; all of it if not given.
    """
    torch.set_num_threads(1)  # small models; more threads only wait for each other
    prepared = [_prepare(path, case) for case in cases]
    # Acceptance changes along a text, so it is recorded as far as it is needed.
    longest = max(r.max_new_tokens for each in prepared for r in each.launch.plan.requests)
    pool = calibrate(prepared[0].launch, path, longest, say)
    say("predicting", sum(each.scenario.runs for each in prepared))
    predictions = {
        each.case.label: predict_case(each.launch.plan, each.scenario, pool, say, cut)
        for each in prepared
    }
    texts = _plain_texts([each.launch for each in prepared], say)
    for group in _by_cluster(prepared):
        yield from _run_group(group, predictions, texts, say, cut)


def calibrate(launch: Launch, path: Path, new_tokens: int, say: Say) -> Pool:
    """Acceptance of the launch's pair on the reference calibration prompts."""
    if launch.draft is None:
        raise UserError(f"{path}: key drafts.0: calibration needs a model that drafts")
    texts = load_texts("reference:calibration", path.parent)
    prompts = tokenize(launch.target.directory, texts)
    say("calibrating acceptance", len(prompts))
    content = record_acceptance(
        launch.target,
        launch.draft,
        prompts,
        new_tokens,
        None,
        seed=launch.plan.seed,
        progress=lambda: say("", 1),
    )
    return Pool.from_content(content)


def predict_case(plan: Plan, scenario: Scenario, pool: Pool, say: Say, cut: Cut) -> Prediction:
    """Simulate the scenario's number of runs, each with its own seed."""
    # A simulated token is a rank, so no token ends a simulated text.
    requests = tuple(replace(request, end_of_text=None) for request in plan.requests)
    traces = []
    for seed in run_seeds(scenario.seed, scenario.runs):
        trial = replace(plan, requests=requests, seed=seed)
        traces.append(simulate(trial, PoolSource(pool, BLOCK, seed)))
        say("", 1)
    return Prediction(*summarize([cut(trace) for trace in traces]), traces[0])


def _prepare(path: Path, case: Case) -> _Prepared:
    scenario = load_scenario(path, case.overrides)
    return _Prepared(case, scenario, prepare(scenario, path))


def _plain_texts(launches: Sequence[Launch], say: Say) -> Texts:
    """Plain greedy decoding of the unpartitioned target: what every schedule must give."""
    longest: dict[tuple[tuple[int, ...], int | None], int] = {}
    for launch in launches:
        for spec in launch.plan.requests:
            key = spec.prompt, spec.end_of_text
            longest[key] = max(longest.get(key, 0), spec.max_new_tokens)
    capacity = max(len(prompt) + length for (prompt, _), length in longest.items())
    whole = WholeModel(launches[0].target, capacity)
    say("plain greedy decoding", len(longest))
    texts = {}
    for (prompt, end), length in longest.items():
        texts[prompt, end] = tuple(whole.greedy(prompt, length, end))
        say("", 1)
    return texts


def _by_cluster(prepared: Iterable[_Prepared]) -> list[list[_Prepared]]:
    """Cases whose workers would be started alike, in the order of their first ones."""
    groups: dict[str, list[_Prepared]] = {}
    for each in prepared:
        groups.setdefault(_cluster_key(each.scenario), []).append(each)
    return list(groups.values())


def _cluster_key(scenario: Scenario) -> str:
    """All that worker processes are started with but their caches' size.

    Schedule, concurrency, places and admission come with a run; the queue's policy, the groups
    of stages and central transfers are the workers' own.
    """
    content = scenario.model_dump(
        mode="json", exclude={"name", "runs", "schedule", "acceptance", "workload", "serving"}
    )
    serving = scenario.serving.model_dump(mode="json", exclude={"admission", "places"})
    own = scenario.schedule.model_dump(include={"group_size", "central_transfers"})
    return json.dumps([content, serving, own], sort_keys=True)


def _run_group(
    group: Sequence[_Prepared],
    predictions: Mapping[str, Prediction],
    texts: Texts,
    say: Say,
    cut: Cut,
) -> Iterator[Row]:
    roles = _roles_for(group)
    say(f"starting {len(roles)} processes", 1)
    with Cluster(roles, group[0].launch.plan) as cluster:
        say("", 1)
        for each in group:
            plan, label = each.launch.plan, each.case.label
            say(f"running {label}", len(plan.requests))
            _warm_up(cluster, plan)
            run = cluster.run(plan, lambda: say("", 1))
            name = each.scenario.schedule.name
            yield judge(label, name, plan, predictions[label], run, texts, cut)


def _warm_up(cluster: Cluster, plan: Plan) -> None:
    """Decode a few tokens on every pipeline: a process's first passes take longer."""
    count = max(plan.serving.clients, len(plan.pipelines))
    requests = tuple(
        replace(
            request,
            max_new_tokens=min(request.max_new_tokens, WARM_UP_TOKENS),
            arrival_ms=None,
        )
        for request in plan.requests[:count]
    )
    cluster.run(replace(plan, requests=requests))


def _roles_for(group: Sequence[_Prepared]) -> list[RoleSettings]:
    """The first case's roles, with caches that hold every case's trees."""
    columns = zip(*(each.launch.roles for each in group), strict=True)
    return [replace(same[0], capacity=max(role.capacity for role in same)) for same in columns]
