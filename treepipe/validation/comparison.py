"""Calibrate, predict, run for real, and compare: what the demonstration and the studies share.

Law of this file: every case is predicted before the first process starts, from acceptance on the
calibration prompts, which are none of those that are decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import torch

from treepipe.core.errors import UserError
from treepipe.executor.checkpoint import CheckpointSource
from treepipe.executor.computing import use
from treepipe.executor.controller import Controller
from treepipe.executor.launch import prepare
from treepipe.executor.measure.calibration import WholeModel
from treepipe.executor.measure.machine import is_this_machine
from treepipe.executor.station import RoleSettings
from treepipe.profiles.library import find_device
from treepipe.profiles.schema import DeviceProfile
from treepipe.results.estimates import observe
from treepipe.results.show import Say
from treepipe.results.trace import Trace
from treepipe.scenario.computing import FULL, ONE_CORE, Compute
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import ends_of
from treepipe.scenario.workload import run_seeds
from treepipe.sim.theory.admission import admitted
from treepipe.sim.world import simulate
from treepipe.validation.calibration import CalibratedAcceptance, Prepared, calibrate
from treepipe.validation.judgement import Cut, Prediction, Row, Timed, judge
from treepipe.validation.plain import LEAST_UNIT, PlainText, PlainTexts, RunnerUp

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to predict and to run.

    Attributes:
        calibrate_on: as in ``Prepared``.
    """

    label: str
    scenario: Scenario
    calibrate_on: str | None = None


def compared(cases: Sequence[Case], say: Say, cut: Cut = lambda trace: trace) -> dict[str, Row]:
    """What ``compare`` yields, by label, in the order of the cases."""
    rows = {row.label: row for row in compare(cases, say, cut)}
    return {case.label: rows[case.label] for case in cases}


def compare(cases: Sequence[Case], say: Say, cut: Cut = lambda trace: trace) -> Iterator[Row]:
    """Predict all cases, then run them; yields a row after each run.

    Cases that differ in nothing the workers are started with share one controller, so rows come
    controller by controller.

    Args:
        cases: of different labels.
        cut: what is measured of a run; all of it if not given.
    """
    use(ONE_CORE)  # small models; more threads only wait for each other
    prepared = [_prepare(case) for case in cases]
    acceptance = calibrate(prepared, say)
    say("predicting", sum(each.scenario.runs for each in prepared))
    predictions = {
        each.label: predict_case(
            each.launch.deployment, each.scenario, acceptance[each.label], say, cut
        )
        for each in prepared
    }
    texts = _plain_texts([each for each in prepared if _is_greedy(each)], say)
    for group in _by_cluster(prepared):
        yield from _run_group(group, predictions, texts, say, cut)


def predict_case(
    deployment: Deployment, scenario: Scenario, acceptance: CalibratedAcceptance, say: Say, cut: Cut
) -> Prediction:
    """Simulate the scenario's number of runs, each with its own seed."""
    # A simulated token is a rank, so no token ends a simulated text.
    requests = tuple(replace(request, end_tokens=frozenset()) for request in deployment.requests)
    source, traces = acceptance.source, list[Trace]()
    for seed in run_seeds(scenario.seed, scenario.runs):
        own = source.reseeded(seed, resampled=scenario.runs > 1)
        traces.append(simulate(deployment.asked(requests, seed), own))
        traces[-1].redrawn = own.redrawn(traces[-1])
        say("", 1)
    traces[0].warnings += acceptance.warnings
    estimates = observe([cut(trace) for trace in traces])
    return Prediction(*estimates.intervals, estimates.of_a_run, traces[0])


def _prepare(case: Case) -> Prepared:
    scenario = admitted(case.scenario)
    found = Prepared(case.label, scenario, prepare(scenario), case.calibrate_on)
    if found.longest < 2:
        raise UserError(
            f"{case.scenario.path}: key workload.new_tokens: no text has a second token, so there "
            f"is no time between tokens to compare"
        )
    return found


def _is_greedy(case: Prepared) -> bool:
    sampling = case.scenario.sampling
    return not sampling.temperature and sampling.lossless


class _Plain(NamedTuple):
    """What plain decoding is of: equal ones give the same texts. ``chunk``: of prompts, where the
    type makes it matter."""

    source: CheckpointSource
    compute: Compute
    chunk: int | None

    @classmethod
    def of(cls, case: Prepared) -> _Plain:
        compute = case.launch.deployment.pipelines[0][0].compute
        chunk = case.scenario.schedule.parameters.prefill_chunk
        return cls(case.launch.target.source, compute, None if compute.dtype == FULL else chunk)


def _plain_texts(cases: Sequence[Prepared], say: Say) -> Mapping[_Plain, PlainTexts]:
    """Plain greedy decoding of each unpartitioned target: what every schedule must give."""
    targets = {_Plain.of(case): case.launch.target for case in cases}
    longest: dict[tuple[_Plain, tuple[int, ...], frozenset[int]], int] = {}
    for case in cases:
        for spec in case.launch.deployment.requests:
            key = _Plain.of(case), spec.prompt, spec.end_tokens
            longest[key] = max(longest.get(key, 0), spec.max_new_tokens)
    say("plain greedy decoding", len(longest))
    texts: dict[_Plain, dict[tuple[tuple[int, ...], frozenset[int]], PlainText]] = {}
    for plain, target in targets.items():
        wanted = {key[1:]: length for key, length in longest.items() if key[0] == plain}
        most = max(len(prompt) + n for (prompt, _), n in wanted.items())
        use(plain.compute)  # as the workers do, so that sums are the same
        whole, texts[plain] = WholeModel(target, most, plain.compute), {}
        for (prompt, ends), length in wanted.items():
            logits = whole.decode(prompt, length, ends, plain.chunk)
            texts[plain][prompt, ends] = _plain_text(logits)
            say("", 1)
    use(ONE_CORE)
    return texts


def _plain_text(logits: Iterable[torch.Tensor]) -> PlainText:
    """Args: ``logits``: [vocabulary] at each place."""
    tokens, runners = list[int](), list[RunnerUp]()
    for row in logits:
        tokens.append(int(row.argmax()))
        unit = float(row.abs().max()) * max(torch.finfo(row.dtype).eps, LEAST_UNIT)
        best = float(row[tokens[-1]])
        row[tokens[-1]] = -torch.inf
        second = int(row.argmax())
        runners.append(RunnerUp(second, best - float(row[second]), unit))
    return PlainText(tuple(tokens), tuple(runners))


def _by_cluster(prepared: Iterable[Prepared]) -> list[list[Prepared]]:
    """Cases whose workers would be started alike, in the order of their first ones."""
    groups: dict[str, list[Prepared]] = {}
    for each in prepared:
        groups.setdefault(_cluster_key(each), []).append(each)
    return list(groups.values())


def _cluster_key(prepared: Prepared) -> str:
    """All that worker processes are started with but their caches' size.

    Schedule, concurrency, places and admission come with a run; the queue's policy, the groups
    of stages, a step's phases, central transfers and how many requests share a pass are the
    workers' own.
    """
    scenario = prepared.scenario
    content = scenario.model_dump(
        mode="json", exclude={"name", "runs", "schedule", "acceptance", "workload", "serving"}
    )
    serving = scenario.serving.model_dump(mode="json", exclude={"admission", "places"})
    parameters = scenario.schedule.parameters
    own = [
        parameters.groups,
        parameters.overlapped_pruning,
        parameters.central_transfers,
        ends_of(scenario),
        prepared.launch.deployment.batch,
        asdict(prepared.launch.deployment.room),
    ]
    return json.dumps([content, serving, own], sort_keys=True)


def _run_group(
    group: Sequence[Prepared],
    predictions: Mapping[str, Prediction],
    texts: Mapping[_Plain, PlainTexts],
    say: Say,
    cut: Cut,
) -> Iterator[Row]:
    roles = _roles_for(group)
    say(f"starting {len(roles)} processes", 1)
    with Controller(roles, group[0].launch.deployment) as controller:
        say("", 1)
        for each in group:
            deployment, label = each.launch.deployment, each.label
            plain = texts[_Plain.of(each)] if _is_greedy(each) else None
            say(f"running {label}", len(deployment.requests))
            _warm_up(controller, deployment)
            run = controller.run(deployment, lambda: say("", 1))
            name = each.scenario.schedule.name
            timed = _timed(each.scenario)
            yield judge(label, name, deployment, predictions[label], run, plain, cut, timed)


def _timed(scenario: Scenario) -> Timed:
    """What the profiles of a scenario's devices are to its run."""
    if scenario.emulate:
        return "emulated"
    path = scenario.path
    devices = [draft.device for draft in scenario.drafts]
    devices += [stage.device for pipeline in scenario.pipelines for stage in pipeline.stages]
    for device in devices:
        if not isinstance(device, str):
            return "elsewhere"
        found = find_device(device, f"{path}: a device", path.parent)
        if not isinstance(found, DeviceProfile) or not is_this_machine(found.origin.hardware):
            return "elsewhere"
    return "here"


def _warm_up(controller: Controller, deployment: Deployment) -> None:
    """Decode a few tokens on every pipeline: a process's first passes take longer."""
    count = max(deployment.serving.clients, len(deployment.pipelines))
    requests = tuple(
        replace(
            request,
            max_new_tokens=min(request.max_new_tokens, WARM_UP_TOKENS),
            arrival_ms=None,
        )
        for request in deployment.requests[:count]
    )
    controller.run(deployment.asked(requests))


def _roles_for(group: Sequence[Prepared]) -> list[RoleSettings]:
    """The first case's roles, with caches that hold every case's trees."""
    columns = zip(*(each.launch.roles for each in group), strict=True)
    return [replace(same[0], capacity=max(role.capacity for role in same)) for same in columns]
