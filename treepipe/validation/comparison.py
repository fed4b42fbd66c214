"""Calibration, prediction, run and comparison of cases.

Invariant: every case is predicted before the first process starts, from acceptance on the
calibration prompts, none of which is decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from treepipe.core.errors import UserError
from treepipe.executor.measure.calibration import WholeModel
from treepipe.executor.models.computing import use
from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import prepare, shared_roles
from treepipe.executor.wire.processor import is_this_machine
from treepipe.profiles.library import find_device
from treepipe.profiles.schema import DeviceProfile
from treepipe.progress import Progress
from treepipe.results.estimates import observe
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import FULL, ONE_CORE, Compute, Deployment
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import ends_of
from treepipe.scenario.workload import run_seeds
from treepipe.sim.theory.closed_form import resolve_admission
from treepipe.sim.world import simulate
from treepipe.validation.calibration import CalibratedAcceptance, Prepared, calibrate
from treepipe.validation.judgement import Cut, Prediction, Row, Timed, judge
from treepipe.validation.plain import LEAST_UNIT, PlainText, PlainTexts, RunnerUp

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A case to predict and to run; ``calibrate_on`` as in ``Prepared``."""

    label: str
    scenario: Scenario
    calibrate_on: str | None = None


def compared(
    cases: Sequence[Case], say: Progress, cut: Cut = lambda trace: trace
) -> dict[str, Row]:
    """Return the rows of ``compare`` by label, in the order of the cases."""
    rows = {row.label: row for row in compare(cases, say, cut)}
    return {case.label: rows[case.label] for case in cases}


def compare(cases: Sequence[Case], say: Progress, cut: Cut = lambda trace: trace) -> Iterator[Row]:
    """Predict all cases (of different labels), then run them; yields a row after each run.

    Cases with equal settings of the workers share one controller, so rows are ordered by
    controller. ``cut`` selects the measured part of a run.
    """
    use(ONE_CORE)  # more threads do not help small models
    prepared = [_prepare(case) for case in cases]
    acceptance = calibrate(prepared, say)
    say("predicting", sum(each.scenario.runs for each in prepared))
    predictions = {}
    for each in prepared:
        settings = each.scenario, acceptance[each.label]
        predictions[each.label] = predict_case(each.launch.deployment, *settings, say, cut)
    texts = _plain_texts([each for each in prepared if _is_greedy(each)], say)
    for group in _by_cluster(prepared):
        roles = shared_roles([each.launch for each in group])
        say(f"starting {len(roles)} processes", 1)
        with Controller(roles, group[0].launch.deployment) as controller:
            say("", 1)
            for each in group:
                scenario, deployment = each.scenario, each.launch.deployment
                plain = texts[_Plain.of(each)] if _is_greedy(each) else None
                say(f"running {each.label}", len(deployment.requests))
                _warm_up(controller, deployment)
                run = controller.run(deployment, lambda: say("", 1))
                case = each.label, scenario.schedule.name, deployment, predictions[each.label]
                yield judge(*case, run, plain, cut, _timed(scenario))


def predict_case(
    deployment: Deployment,
    scenario: Scenario,
    acceptance: CalibratedAcceptance,
    say: Progress,
    cut: Cut,
) -> Prediction:
    """Simulate the scenario's number of runs, each with its own seed."""
    # A simulated token is a rank, so no token ends a simulated text.
    requests = tuple(replace(request, end_tokens=frozenset()) for request in deployment.requests)
    source, traces = acceptance.source(scenario), list[Trace]()
    for seed in run_seeds(scenario.seed, scenario.runs):
        own = source.reseeded(seed, resampled=scenario.runs > 1)
        traces.append(simulate(deployment.asked(requests, seed), own))
        traces[-1].redrawn = own.redrawn(traces[-1])
        say("", 1)
    traces[0].warnings += acceptance.warnings
    estimates = observe([cut(trace) for trace in traces], 0)  # of whole runs, as the measured
    return Prediction(*estimates.intervals, estimates.of_a_run, traces[0])


def _prepare(case: Case) -> Prepared:
    scenario = resolve_admission(case.scenario)
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
    """Settings that determine plain decoding's texts; ``chunk`` of prompts, if it matters."""

    target: Path
    compute: Compute
    chunk: int | None

    @classmethod
    def of(cls, case: Prepared) -> _Plain:
        compute = case.launch.deployment.roles.pipelines[0][0].compute
        chunk = case.scenario.schedule.parameters.prefill_chunk
        return cls(case.launch.target.directory, compute, None if compute.dtype == FULL else chunk)


def _plain_texts(cases: Sequence[Prepared], say: Progress) -> Mapping[_Plain, PlainTexts]:
    """Decode greedily with each unpartitioned target: the reference for every schedule."""
    targets = {_Plain.of(case): case.launch.target for case in cases}
    longest: dict[_Plain, dict[tuple[tuple[int, ...], frozenset[int]], int]] = {}
    for case in cases:
        wanted = longest.setdefault(_Plain.of(case), {})
        for spec in case.launch.deployment.requests:
            key = spec.prompt, spec.end_tokens
            wanted[key] = max(wanted.get(key, 0), spec.max_new_tokens)
    say("plain greedy decoding", sum(map(len, longest.values())))
    texts: dict[_Plain, dict[tuple[tuple[int, ...], frozenset[int]], PlainText]] = {}
    for plain, wanted in longest.items():
        most = max(len(prompt) + length for (prompt, _), length in wanted.items())
        use(plain.compute)  # the workers' settings, for equal sums
        whole, texts[plain] = WholeModel(targets[plain], most, plain.compute), {}
        for (prompt, ends), length in wanted.items():
            texts[plain][prompt, ends] = _plain_text(
                whole.decode(prompt, length, ends, plain.chunk)
            )
            say("", 1)
    use(ONE_CORE)
    return texts


def _plain_text(logits: Iterable[torch.Tensor]) -> PlainText:
    """Convert logits [vocabulary] at each place to a text."""
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
    """Group cases whose workers are started alike, in the order of their first ones."""
    groups: dict[str, list[Prepared]] = {}
    for each in prepared:
        groups.setdefault(_cluster_key(each), []).append(each)
    return list(groups.values())


def _cluster_key(prepared: Prepared) -> str:
    """Return all settings that worker processes are started with except their caches' size;
    schedule, concurrency, places and admission come with a run."""
    scenario = prepared.scenario
    content = scenario.model_dump(
        mode="json", exclude={"name", "runs", "schedule", "acceptance", "workload", "serving"}
    )
    serving = scenario.serving.model_dump(mode="json", exclude={"admission", "places"})
    parameters = scenario.schedule.parameters
    own = [
        parameters.groups,
        parameters.overlapped_pruning,
        parameters.cancels,
        parameters.feedback,
        parameters.central_transfers,
        ends_of(scenario),
        prepared.launch.deployment.service.pass_requests,
        asdict(prepared.launch.deployment.service.room),
    ]
    return json.dumps([content, serving, own], sort_keys=True)


def _timed(scenario: Scenario) -> Timed:
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
    """Decode a few tokens on every pipeline, as a process's first passes take longer."""
    count = max(deployment.service.clients, len(deployment.roles.pipelines))
    requests = (
        replace(each, max_new_tokens=min(each.max_new_tokens, WARM_UP_TOKENS), arrival_ms=None)
        for each in deployment.requests[:count]
    )
    controller.run(deployment.asked(tuple(requests)))
