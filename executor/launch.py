"""Scenario -> roles: opens checkpoints, reads prompts, checks that everything fits, for a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treepipe.errors import UserError
from treepipe.executor.checkpoint import Checkpoint, check_same_vocabulary
from treepipe.executor.prompts import checkpoint_directory, load_texts, tokenize
from treepipe.executor.role import RoleSettings
from treepipe.plan import Plan, RequestSpec
from treepipe.planning import make_plan
from treepipe.scenario import Scenario, ScheduleSection


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything a ``Cluster`` is started with."""

    plan: Plan
    roles: tuple[RoleSettings, ...]
    target: Checkpoint
    draft: Checkpoint


def prepare(scenario: Scenario, path: Path) -> Launch:
    """Open and check what the scenario names; raises ``UserError``."""
    target, draft = _open(scenario, path)
    check_same_vocabulary(target, draft)
    texts = load_texts(scenario.workload.prompts, path.parent)
    count = scenario.workload.requests
    if count > len(texts):
        raise UserError(
            f"{path}: key workload.requests = {count}, but {scenario.workload.prompts} "
            f"holds {len(texts)} prompts"
        )
    prompts = tokenize(target.directory, texts[:count])
    end = end_of_text(target) if scenario.workload.stop_at_end_of_text else None
    wanted = scenario.workload.new_tokens
    requests = tuple(RequestSpec(prompt, wanted, end) for prompt in prompts)
    _check_positions(requests, target, draft, path)
    row_bytes = 4 * target.hidden_size  # hidden states travel in float32
    plan = make_plan(scenario, path, layers=target.layers, row_bytes=row_bytes, requests=requests)
    return Launch(plan, _roles(scenario, plan, target, draft), target, draft)


def cache_entries(requests: tuple[RequestSpec, ...], section: ScheduleSection, stages: int) -> int:
    """Cache entries per session: prompt, text, and the largest tree that can be in flight."""
    longest = max(len(request.prompt) + request.max_new_tokens for request in requests)
    expansion = max(section.expand_size, section.score_aware_size)
    return longest + section.tree_size + 1 + (stages + 3) * expansion


def _open(scenario: Scenario, path: Path) -> tuple[Checkpoint, Checkpoint]:
    found = []
    for role, model, key in (
        ("target", scenario.target, "target.checkpoint"),
        ("draft", scenario.drafts[0].model, "drafts.0.model.checkpoint"),
    ):
        if model.checkpoint is None:
            raise UserError(f'{path}: key {key} is missing; a run needs a directory or "reference"')
        found.append(Checkpoint.open(checkpoint_directory(model.checkpoint, role, path.parent)))
    return found[0], found[1]


def end_of_text(target: Checkpoint) -> int | None:
    """The token that ends a text, if the checkpoint names a single one."""
    token = target.config.eos_token_id
    return int(token) if isinstance(token, int) else None


def _check_positions(
    requests: tuple[RequestSpec, ...], target: Checkpoint, draft: Checkpoint, path: Path
) -> None:
    limit = min(target.max_positions, draft.max_positions)
    for index, request in enumerate(requests):
        length = len(request.prompt)
        if length + request.max_new_tokens > limit:
            raise UserError(
                f"{path}: key workload.prompts: prompt {index} has {length} tokens, with "
                f"workload.new_tokens = {request.max_new_tokens} it exceeds the models' "
                f"{limit} positions"
            )


def _roles(
    scenario: Scenario, plan: Plan, target: Checkpoint, draft: Checkpoint
) -> tuple[RoleSettings, ...]:
    capacity = cache_entries(plan.requests, scenario.schedule, len(plan.stages))
    base = scenario.base_port
    return tuple(
        RoleSettings(
            placed,
            number,
            len(plan.stages),
            target.directory,
            draft.directory,
            capacity,
            base + number if base else 0,
            scenario.emulate,
            plan.row_bytes,
            scenario.seed,
            scenario.check_causality,
        )
        for number, placed in enumerate((plan.draft, *plan.stages))
    )
