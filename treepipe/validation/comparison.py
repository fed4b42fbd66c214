"""Calibration, prediction, run and comparison of cases.

Invariant: every case is predicted before the first process starts, from acceptance on the
calibration prompts, none of which is decoded. Acceptance changes along a text, so a case is
predicted from the beginning of each calibration text, as long as the case's own texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from treepipe.core.errors import UserError
from treepipe.executor.measure.acceptance import Texts, WholeModel, record_acceptance
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import use
from treepipe.executor.models.prompts import load_texts, tokenize
from treepipe.executor.models.source_settings import SourceSettings
from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import Launch, prepare, shared_roles
from treepipe.executor.wire.processor import is_this_machine
from treepipe.profiles.library import CALIBRATION, HELD_OUT, find_device
from treepipe.profiles.pool_file import PoolFile
from treepipe.profiles.schema import DeviceProfile
from treepipe.progress import Progress
from treepipe.results.estimates import observe
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import FULL, ONE_CORE, Compute, Deployment
from treepipe.scenario.making import READS
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import ends_of
from treepipe.scenario.schema import Replay
from treepipe.scenario.workload import run_seeds
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.acceptance_pool import acceptance_pool, acceptance_warnings, judges_whole
from treepipe.sim.pool import Pool
from treepipe.sim.theory.closed_form import resolve_admission
from treepipe.sim.world import simulate
from treepipe.validation.judgement import (
    LEAST_UNIT,
    PlainText,
    PlainTexts,
    Prediction,
    Row,
    RunnerUp,
    Timed,
    judge,
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scenario, ready for prediction and run; ``calibrate_on``: calibration prompts, in the
    notation of ``workload.prompts`` (None: see ``calibration_prompts``)."""

    label: str
    scenario: Scenario
    launch: Launch
    calibrate_on: str | None = None

    @property
    def longest(self) -> int:
        """New tokens of the longest request."""
        return max(request.max_new_tokens for request in self.launch.deployment.requests)


@dataclass(frozen=True, slots=True)
class CalibratedAcceptance:
    """A pool, the number of consecutive positions that are drawn together (None: whole texts), the
    target hit ratios, and warnings about its use with the scenario."""

    pool: Pool
    block: int | None = None
    hit_ratio: Mapping[int, float] | None = None
    warnings: Sequence[str] = ()

    def source(self, scenario: Scenario) -> PoolSource:
        whole = judges_whole(scenario, self.pool)
        return PoolSource(self.pool, self.block, 0, self.hit_ratio, whole=whole)


_Pair: TypeAlias = tuple[Path, SourceSettings, str, Path]
"""The target's directory, its draft, the calibration prompts, and their folder."""


def calibrate(cases: Sequence[Prepared], say: Progress) -> dict[str, CalibratedAcceptance]:
    """Find the acceptance of every case by label; equal pairs and prompts are calibrated once.

    Raises ``UserError`` if a case has no acceptance and none can be calibrated.
    """
    groups: dict[_Pair, list[Prepared]] = {}
    found = {}
    for case in cases:
        if _needs_calibration(case):
            groups.setdefault(_pair(case), []).append(case)
        else:
            warnings = acceptance_warnings(case.scenario)
            found[case.label] = CalibratedAcceptance(*acceptance_pool(case.scenario), warnings)
    decoded = {request.prompt for case in cases for request in case.launch.deployment.requests}
    for pair, group in groups.items():
        lengths = {case.longest for case in group}
        recorded = _record(group[0], pair, max(lengths), decoded, say)
        pools = {n: Pool.of(recorded.beginnings(n)) for n in lengths}
        found |= {case.label: CalibratedAcceptance(pools[case.longest]) for case in group}
    return found


def calibration_prompts(prompts: str) -> str:
    """Return the reference calibration prompts of the same kind as ``prompts``.

    >>> calibration_prompts("reference:heldout:code")
    'reference:calibration:code'
    >>> calibration_prompts("my_prompts.json")
    'reference:calibration'
    """
    return prompts.replace(HELD_OUT, CALIBRATION) if prompts.startswith(HELD_OUT) else CALIBRATION


def _needs_calibration(case: Prepared) -> bool:
    if case.calibrate_on is not None:
        return True
    if isinstance(case.scenario.acceptance, Replay):
        raise UserError(
            f"{case.scenario.path}: key acceptance.source = 'replay': a recorded run cannot be "
            f"predicted before it runs; leave the section out, or name a pool or a table"
        )
    return case.scenario.acceptance is None and case.scenario.schedule.system.drafts


def _pair(case: Prepared) -> _Pair:
    """Return the pair to calibrate; raises ``UserError`` if the draft servers' sources differ."""
    scenario, sampling = case.scenario, case.scenario.sampling
    if sampling.rule in READS:  # the simulator derives it from a pool of another rule
        sampling = sampling.model_copy(update={"rule": READS[sampling.rule]})
    found = {
        replace(role.source, sampling=sampling, remembers=False, seed=0)
        for role in case.launch.roles
        if role.kind == "draft"
    }
    if len(found) > 1:
        raise UserError(
            f"{scenario.path}: key acceptance is missing; the draft servers differ, and only equal "
            f"ones are calibrated together"
        )
    prompts = case.calibrate_on or calibration_prompts(scenario.workload.prompts)
    return case.launch.target.directory, found.pop(), prompts, scenario.path.parent


def _record(
    case: Prepared, pair: _Pair, new_tokens: int, decoded: set[tuple[int, ...]], say: Progress
) -> PoolFile:
    directory, settings, name, folder = pair
    target = Checkpoint.open(directory)
    prompts = [p for p in tokenize(target, load_texts(name, folder)) if p not in decoded]
    if not prompts:
        raise UserError(
            f"{case.scenario.path}: all prompts of {name} are decoded, none is left to calibrate"
        )
    limit = target.max_positions
    if settings.whole and settings.model is not None:
        limit = min(limit, Checkpoint.open(settings.model).max_positions)
    too_long = max(map(len, prompts)) + new_tokens
    if too_long > limit:
        raise UserError(
            f"{name}: a calibration prompt with {new_tokens} new tokens takes {too_long} "
            f"positions, the models have {limit}"
        )
    say("calibrating acceptance", len(prompts))
    seed = case.launch.deployment.seed
    texts = Texts(target, prompts, new_tokens, seed=seed, named=name)
    return record_acceptance(settings, texts, partial(say, "", 1))


WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A case to predict and to run; ``calibrate_on`` as in ``Prepared``."""

    label: str
    scenario: Scenario
    calibrate_on: str | None = None


def compared(cases: Sequence[Case], say: Progress) -> dict[str, Row]:
    """Return the rows of ``compare`` by label, in the order of the cases."""
    rows = {row.label: row for row in compare(cases, say)}
    return {case.label: rows[case.label] for case in cases}


def compare(cases: Sequence[Case], say: Progress) -> Iterator[Row]:
    """Predict all cases (of different labels), then run them; yields a row after each run.

    Cases with equal settings of the workers share one controller, so rows are ordered by
    controller.
    """
    use(ONE_CORE)  # more threads do not help small models
    prepared = [_prepare(case) for case in cases]
    acceptance = calibrate(prepared, say)
    say("predicting", sum(each.scenario.runs for each in prepared))
    predictions = {}
    for each in prepared:
        settings = each.scenario, acceptance[each.label]
        predictions[each.label] = predict_case(each.launch.deployment, *settings, say)
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
                yield judge(*case, run, plain, _timed(scenario))


def predict_case(
    deployment: Deployment,
    scenario: Scenario,
    acceptance: CalibratedAcceptance,
    say: Progress,
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
    estimates = observe(traces, 0)  # of whole runs, as the measured
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
