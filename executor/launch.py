"""Scenario -> roles: opens checkpoints, reads prompts, checks that everything fits, for a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.core.verification import RULES
from treepipe.executor.checkpoint import Checkpoint, CheckpointSource, check_same_vocabulary
from treepipe.executor.computing import fault_of
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.executor.sources import SourceSettings
from treepipe.executor.station import RoleSettings, WorkerKind
from treepipe.profiles.library import checkpoint_directory
from treepipe.profiles.shapes import BYTES, DType
from treepipe.scenario.computing import COMPUTED, FULL, Computed, computed_in
from treepipe.scenario.deployment import Deployment, Placed, RequestSpec
from treepipe.scenario.fitting import batched, fitting, roomy
from treepipe.scenario.footprint import Footprint
from treepipe.scenario.memory import cache_entries
from treepipe.scenario.resolve import OpenedTarget, resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import draw_requests, run_seeds


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a ``Controller`` is started with, and what it then runs.

    Attributes:
        runs: one deployment per run; they differ in what is asked, if that is drawn.
        draft: None where no model drafts.
    """

    runs: tuple[Deployment, ...]
    roles: tuple[RoleSettings, ...]
    target: Checkpoint
    draft: Checkpoint | None

    @property
    def deployment(self) -> Deployment:
        """Give the deployment of the first run."""
        return self.runs[0]


def prepare(scenario: Scenario) -> Launch:
    """Open and check what the scenario names; raises ``UserError``."""
    _check_types(scenario)
    target = _open_target(scenario)
    sources = [
        _source_settings(scenario, index)
        for index, draft in enumerate(scenario.drafts)
        for _ in range(draft.count)
    ]
    models = [each.model.open() for each in sources if each.whole and each.model is not None]
    for model in models:
        check_same_vocabulary(target, model)
    asked = _requests(scenario, target, models)
    deployment = resolve(scenario, _opened(target, computed_in(scenario.target.dtype)))
    _check_computing(deployment)
    own = (*target.warnings, *_type_warnings(scenario), *_thread_warnings(deployment))
    deployment = replace(deployment, warnings=(*deployment.warnings, *own))
    if deployment.central_transfers and not scenario.emulate:
        deployment = _without_scheduler(scenario, deployment)
    deployment = roomy(batched(deployment, asked), asked)
    runs = tuple(fitting(deployment.asked(requests)) for requests in asked)
    _check_vocabulary(scenario, target)
    if scenario.emulate:
        _check_machines(deployment)
    elif any(draft.one_pass for draft in scenario.drafts):
        raise UserError(
            f"{scenario.path}: key drafts.one_pass needs emulate = true in a run: a real draft "
            f"takes the time that it takes"
        )
    roles = _roles(scenario, runs, target, sources)
    return Launch(runs, roles, target, models[0] if models else None)


def _opened(target: Checkpoint, dtype: Computed) -> OpenedTarget:
    """What a run needs to know of its target, computed in ``dtype``."""
    size, embedding = BYTES[dtype], target.embedding_parameters
    return OpenedTarget(
        target.layers,
        round(size * target.hidden_size),
        Footprint(
            size * target.layer_parameters,
            size * target.kv_parameters,
            ends_bytes=size * embedding * (1 if target.tied else 2),
            embedding_bytes=size * embedding,
            tied=target.tied,
        ),
        dtype,
    )


def _types(scenario: Scenario) -> Iterator[tuple[str, DType]]:
    """Key and value of the types that are given."""
    models = {f"drafts.{i}.model": draft.model for i, draft in enumerate(scenario.drafts)}
    for key, model in {"target": scenario.target, **models}.items():
        if model.dtype is not None:
            yield f"{key}.dtype", model.dtype


def _check_types(scenario: Scenario) -> None:
    """A run computes in no quantized type; one that emulates devices has but their times."""
    for key, dtype in _types(scenario):
        if dtype not in COMPUTED and not scenario.emulate:
            raise UserError(
                f"{scenario.path}: key {key} = {dtype!r} cannot be run; a run computes in "
                f"{', '.join(COMPUTED)} (with emulate = true it has a device's times for others)"
            )


def _type_warnings(scenario: Scenario) -> Iterator[str]:
    for key, dtype in _types(scenario):
        if dtype not in COMPUTED:
            yield f"key {key} = {dtype!r}: the run computes in {FULL}; only its times are {dtype}'s"
    dtype = computed_in(scenario.target.dtype)
    if dtype != FULL:
        yield (
            f"key target.dtype = {dtype!r}: sums of 16 bits depend on how many rows a pass has, so "
            f"a text may leave plain decoding's where two tokens are almost as likely"
        )


def _check_computing(deployment: Deployment) -> None:
    """Every role's processor and threads are there, as far as it is on this host (a worker on
    another one asks there); asked before any worker starts."""
    for placed in _own(deployment):
        if (fault := fault_of(placed.compute)) is not None:
            raise UserError(f"{deployment.path}: the device of {placed.name} has {fault}")


def _own(deployment: Deployment) -> list[Placed]:
    """Roles of this host."""
    return [each for each in deployment.placed if each.worker is None]


def _thread_warnings(deployment: Deployment) -> Iterator[str]:
    """Where roles have more threads than they can all have cores, each waits for its others."""
    placed, cores = _own(deployment), os.cpu_count() or 1
    threads = sum(each.compute.threads for each in placed)
    if threads > max(cores, len(placed)):
        yield (
            f"the workers compute with {threads} threads in all on this machine's {cores} cores; "
            f"threads of a worker that wait for each other make passes many times as long"
        )


def _without_scheduler(scenario: Scenario, deployment: Deployment) -> Deployment:
    """The deployment without central transfers, unless the scenario itself asks for them."""
    key = "schedule.central_transfers"
    if "central_transfers" in scenario.schedule.model_fields_set:
        raise UserError(
            f"{scenario.path}: key {key} needs emulate = true in a run; the links of this machine "
            f"have no transfer times to schedule"
        )
    warning = (
        f"{key} is off in a run without emulation, where links have no transfer times to schedule; "
        f"predictions of {scenario.schedule.name} have it on"
    )
    warnings = (*deployment.warnings, warning)
    return replace(deployment, central_transfers=False, warnings=warnings)


def _check_machines(deployment: Deployment) -> None:
    """Workers that stand for devices do not wait for each other."""
    for machine in deployment.machines:
        if machine.contended:
            raise UserError(
                f"{deployment.path}: {', '.join(machine.roles)} share host {machine.name!r} of "
                f"capacity {machine.capacity}, which a run with emulate = true cannot do; predict "
                f"it with treepipe simulate, or raise hosts.{machine.name}.capacity to "
                f"{len(machine.roles)}"
            )


def _open_target(scenario: Scenario) -> Checkpoint:
    name = scenario.target.checkpoint
    directory = _directory(name, "target", "target.checkpoint", scenario.path)
    return Checkpoint.open(directory)


def _directory(name: str | None, role: str, key: str, path: Path) -> Path:
    if name is None:
        raise UserError(f'{path}: key {key} is missing; a run needs a directory or "reference"')
    return checkpoint_directory(name, role, path.parent)


def _source_settings(scenario: Scenario, index: int) -> SourceSettings:
    draft, sampling, model = scenario.drafts[index], scenario.sampling, None
    if (weights := draft.drafter.weights) is not None:
        key = f"drafts.{index}.{weights.key}"
        directory = _directory(draft.checkpoint, weights.reference, key, scenario.path)
        model = CheckpointSource(directory)
    remembers = RULES[sampling.rule].needs_draft
    return SourceSettings(draft.what, model, sampling, remembers, scenario.seed)


def _check_vocabulary(scenario: Scenario, target: Checkpoint) -> None:
    """More candidates than tokens cannot be asked for."""
    size = target.vocabulary
    for key, count in scenario.schedule.parameters.candidates().items():
        if count > size:
            raise UserError(
                f"{scenario.path}: key schedule.{key} = {count} exceeds the vocabulary of {size} "
                f"tokens"
            )


def _requests(
    scenario: Scenario, target: Checkpoint, models: list[Checkpoint]
) -> list[tuple[RequestSpec, ...]]:
    """What each run is asked, with the workload's prompts as token ids instead of drawn ones."""
    workload, parameters = scenario.workload, scenario.schedule.parameters
    path = scenario.path
    drawn = [draw_requests(scenario, seed) for seed in run_seeds(scenario.seed, scenario.runs)]
    texts, count = load_texts(workload.prompts, path.parent), len(drawn[0])
    if count > len(texts):
        raise UserError(
            f"{path}: key workload.requests = {count}, but {workload.prompts} holds "
            f"{len(texts)} prompts"
        )
    prompts = tokenize(
        target, texts[:count], f"{path}: key workload.prompts = {workload.prompts!r}"
    )
    ends = target.end_tokens if workload.stop_at_end_of_text else frozenset()
    limit = min(model.max_positions for model in (target, *models))
    for key, length in parameters.lengths().items():
        if length > limit:
            raise UserError(
                f"{path}: key schedule.{key} = {length} exceeds the models' {limit} positions"
            )
    asked = [
        tuple(
            replace(request, prompt=prompt, end_tokens=ends)
            for request, prompt in zip(run, prompts, strict=True)
        )
        for run in drawn
    ]
    for run in asked:
        _check_positions(run, limit, path)
    return asked


def _check_positions(requests: tuple[RequestSpec, ...], limit: int, path: Path) -> None:
    """Prompts and texts must fit the models."""
    for index, request in enumerate(requests):
        if len(request.prompt) + request.max_new_tokens > limit:
            raise UserError(
                f"{path}: key workload.prompts: prompt {index} has {len(request.prompt)} tokens, "
                f"with {request.max_new_tokens} new tokens it exceeds the models' {limit} positions"
            )


def _roles(
    scenario: Scenario,
    runs: tuple[Deployment, ...],
    target: Checkpoint,
    sources: list[SourceSettings],
) -> tuple[RoleSettings, ...]:
    base, deployment = scenario.base_port, runs[0]
    tree = max(cache_entries(each, deployment.bounds.tree_tokens) for each in runs)
    scratch = max(cache_entries(each, deployment.bounds.scratch_tokens) for each in runs)

    def settings(
        placed: Placed, kind: WorkerKind, number: int, pipeline: int | None = None
    ) -> RoleSettings:
        return RoleSettings(
            placed,
            kind,
            number,
            pipeline,
            deployment,
            target.source,
            sources[number if kind == "draft" else 0],
            scratch if kind == "draft" else tree,
            0,
            scenario.emulate,
            scenario.check_causality,
            scenario.faults.timeout_ms,
            target.vocabulary,
        )

    roles = [settings(placed, "draft", number) for number, placed in enumerate(deployment.drafts)]
    roles += [
        settings(placed, "stage", number, pipeline)
        for pipeline, stages in enumerate(deployment.pipelines)
        for number, placed in enumerate(stages, start=1)
    ]
    if base:
        roles = [replace(role, port=base + place) for place, role in enumerate(roles)]
    return tuple(roles)
