"""Scenario -> roles of a run: opens checkpoints, reads prompts, and checks that they fit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.core.verification import RULES
from treepipe.executor.models.checkpoint import Checkpoint, check_same_vocabulary
from treepipe.executor.models.computing import fault_of
from treepipe.executor.models.families import FAMILIES
from treepipe.executor.models.offsets import check_offsets
from treepipe.executor.models.prompts import load_texts, tokenize
from treepipe.executor.models.source_settings import SourceSettings
from treepipe.executor.models.sources import check_runs
from treepipe.executor.wire.role import RoleSettings, WorkerKind
from treepipe.profiles.library import checkpoint_directory
from treepipe.profiles.shapes import BYTES
from treepipe.scenario.deployment import (
    COMPUTED,
    FULL,
    Computed,
    Deployment,
    Footprint,
    Placed,
    RequestSpec,
    computed_in,
)
from treepipe.scenario.memory import cache_entries, fitted
from treepipe.scenario.placement import OpenedTarget, place
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import draw_requests, run_seeds


@dataclass(frozen=True, slots=True)
class Launch:
    """The roles of a ``Controller``, one deployment per run, and the models; ``draft`` is None
    without a draft model."""

    runs: tuple[Deployment, ...]
    roles: tuple[RoleSettings, ...]
    target: Checkpoint
    draft: Checkpoint | None

    @property
    def deployment(self) -> Deployment:
        return self.runs[0]


def shared_roles(launches: Sequence[Launch]) -> list[RoleSettings]:
    """Return the roles of workers that serve all launches, which start theirs alike: the first
    one's, with caches large enough for every one's trees."""
    columns = zip(*(each.roles for each in launches), strict=True)
    return [replace(same[0], capacity=max(role.capacity for role in same)) for same in columns]


def prepare(scenario: Scenario) -> Launch:
    """Open and check everything that the scenario names. Raises ``UserError``."""
    for draft in scenario.drafts:
        check_runs(draft.drafter)
    if any(stage.tensor > 1 for pipeline in scenario.pipelines for stage in pipeline.stages):
        raise UserError(
            f"{scenario.path}: key pipelines.stages.tensor cannot be run: a worker computes whole "
            f"layers; treepipe simulate predicts it"
        )
    type_warnings = [*_type_warnings(scenario)]
    where = _directory(scenario.target.checkpoint, "target", "target.checkpoint", scenario.path)
    target = Checkpoint.open(where)
    sources = [
        _source_settings(scenario, index)
        for index, draft in enumerate(scenario.drafts)
        for _ in range(draft.count)
    ]
    models = [Checkpoint.open(each.model) for each in sources if each.whole and each.model]
    for model in models:
        check_same_vocabulary(target, model)
    for source in sources:
        check_offsets(source, target)
    asked = _requests(scenario, target, models)
    placement = place(scenario, _opened(target, computed_in(scenario.target.dtype)))
    deployment = resolve(scenario, placement)
    _check_computing(deployment)
    own = (*target.warnings, *type_warnings, *_thread_warnings(deployment))
    own += tuple(_graph_warnings(deployment, target, sources))
    deployment = deployment.warned(*own)
    if deployment.wiring.central_transfers and scenario.emulate is not True:
        deployment = _without_scheduler(scenario, deployment)
    runs = tuple(fitted([deployment.asked(requests) for requests in asked]))
    _check_vocabulary(scenario, target)
    if scenario.emulate:
        _check_machines(deployment)
    roles = _roles(scenario, runs, target, sources)
    return Launch(runs, roles, target, models[0] if models else None)


def _opened(target: Checkpoint, dtype: Computed) -> OpenedTarget:
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


def _type_warnings(scenario: Scenario) -> Iterator[str]:
    """Yield warnings about number types. Raises ``UserError`` for quantized ones, whose times a run
    can emulate but in which it cannot compute."""
    models = {f"drafts.{i}.model": draft.model for i, draft in enumerate(scenario.drafts)}
    for key, model in {"target": scenario.target, **models}.items():
        if model.dtype is None or model.dtype in COMPUTED:
            continue
        named = f"key {key}.dtype = {model.dtype!r}"
        if not scenario.emulate:
            raise UserError(
                f"{scenario.path}: {named} cannot be run; a run computes in "
                f"{', '.join(COMPUTED)} (with emulate = true it has a device's times for others)"
            )
        yield f"{named}: the run computes in {FULL}; only its times are {model.dtype}'s"
    dtype = computed_in(scenario.target.dtype)
    if dtype != FULL:
        yield (
            f"key target.dtype = {dtype!r}: sums of 16 bits depend on how many rows a pass has, so "
            f"a text may leave plain decoding's where two tokens are almost as likely"
        )


def _check_computing(deployment: Deployment) -> None:
    """Check this host's processors and threads; a worker checks another host's."""
    for placed in _own(deployment):
        if (fault := fault_of(placed.compute)) is not None:
            raise UserError(f"{deployment.path}: the device of {placed.name} has {fault}")


def _own(deployment: Deployment) -> list[Placed]:
    return [each for each in deployment.roles.placed if each.worker is None]


def _thread_warnings(deployment: Deployment) -> Iterator[str]:
    placed, cores = _own(deployment), os.cpu_count() or 1
    threads = sum(each.compute.threads for each in placed)
    if threads > max(cores, len(placed)):
        yield (
            f"the workers compute with {threads} threads in all on this machine's {cores} cores; "
            f"threads of a worker that wait for each other make passes many times as long"
        )


def _graph_warnings(
    deployment: Deployment, target: Checkpoint, sources: Sequence[SourceSettings]
) -> Iterator[str]:
    """Yield why roles whose devices have ``graphs`` compute eagerly."""
    drafts = [each.model if each.whole else None for each in sources]
    stages = [(each, target.directory) for line in deployment.roles.pipelines for each in line]
    for placed, model in [*zip(deployment.roles.drafts, drafts, strict=True), *stages]:
        if placed.compute.graphs and model is not None:
            family = FAMILIES[Checkpoint.open(model).architecture]
            why = family.uncaptured(placed.compute.device)
            if placed.layers and deployment.service.cancels:
                why = "schedule.cancels ends a pass behind any layer"
            if why is not None:
                yield f"graphs of the device of {placed.name}: its passes are eager, since {why}"


def _without_scheduler(scenario: Scenario, deployment: Deployment) -> Deployment:
    """Turn off central transfers, unless the scenario itself requests them."""
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
    wiring = replace(deployment.wiring, central_transfers=False)
    return replace(deployment, wiring=wiring).warned(warning)


def _check_machines(deployment: Deployment) -> None:
    """Refuse emulated devices that share a host of limited capacity."""
    for machine in deployment.roles.machines:
        if machine.contended:
            raise UserError(
                f"{deployment.path}: {', '.join(machine.roles)} share host {machine.name!r} of "
                f"capacity {machine.capacity}, which a run with emulate = true cannot do; predict "
                f"it with treepipe simulate, or raise hosts.{machine.name}.capacity to "
                f"{len(machine.roles)}"
            )


def _directory(name: str | None, role: str, key: str, path: Path) -> Path:
    if name is None:
        raise UserError(f'{path}: key {key} is missing; a run needs a directory or "reference"')
    return checkpoint_directory(name, role, path.parent)


def _source_settings(scenario: Scenario, index: int) -> SourceSettings:
    draft, sampling, model = scenario.drafts[index], scenario.sampling, None
    if (weights := draft.drafter.weights) is not None:
        key = f"drafts.{index}.{weights.key}"
        model = _directory(draft.checkpoint, weights.reference, key, scenario.path)
    remembers = RULES[sampling.rule].needs_draft
    return SourceSettings(draft.what, model, sampling, remembers, scenario.seed)


def _check_vocabulary(scenario: Scenario, target: Checkpoint) -> None:
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
    """Each run's requests, with the workload's prompts as token ids."""
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
    for index, (prompt, *requests) in enumerate(zip(prompts, *drawn, strict=True)):
        new_tokens = max(request.max_new_tokens for request in requests)
        if len(prompt) + new_tokens > limit:
            raise UserError(
                f"{path}: key workload.prompts: prompt {index} has {len(prompt)} tokens, with "
                f"{new_tokens} new tokens it exceeds the models' {limit} positions"
            )
    return [
        tuple(
            replace(request, prompt=prompt, end_tokens=ends, known=0)
            for request, prompt in zip(run, prompts, strict=True)
        )
        for run in drawn
    ]


def _roles(
    scenario: Scenario,
    runs: tuple[Deployment, ...],
    target: Checkpoint,
    sources: list[SourceSettings],
) -> tuple[RoleSettings, ...]:
    base, deployment = scenario.base_port, runs[0]
    tree = max(cache_entries(each, deployment.service.bounds.tree_tokens) for each in runs)
    scratch = max(cache_entries(each, deployment.service.bounds.scratch_tokens) for each in runs)
    places: list[tuple[Placed, WorkerKind, int, int | None]] = [
        (placed, "draft" if placed.agreement is None else "level", number, None)
        for number, placed in enumerate(deployment.roles.drafts)
    ]
    for pipeline, stages in enumerate(deployment.roles.pipelines):
        places += [(placed, "stage", n, pipeline) for n, placed in enumerate(stages, start=1)]
    return tuple(
        RoleSettings(
            *place,
            deployment,
            target.directory,
            sources[0 if place[1] == "stage" else place[2]],
            capacity=tree if place[1] == "stage" else scratch,
            port=base + at if base else 0,
            emulate=scenario.emulate,
            timeout_ms=scenario.faults.timeout_ms,
            vocabulary=target.vocabulary,
        )
        for at, place in enumerate(places)
    )
