"""Redistribution of a lost stage's layers over the remaining stages of its pipeline.

Invariant: the new deployment equals that of the scenario without the lost stage: each device has
the times of its new number of layers, which fit its memory. Roles keep their names, and with them
their links and machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from treepipe.core.errors import UserError
from treepipe.core.layers import StageCost, deal
from treepipe.profiles.library import resolve_device
from treepipe.profiles.schema import Hardware
from treepipe.scenario.deployment import Deployment, Placed
from treepipe.scenario.fitting import fit_to_memory
from treepipe.scenario.memory import memory_needs, most_layers
from treepipe.scenario.placement import place
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Pipeline, Stage


@dataclass(frozen=True, slots=True)
class Redeal:
    """A rule that redistributes a scenario's layers.

    Attributes:
        opened: number of layers of the target's checkpoint, if it was opened.
    """

    scenario: Scenario
    opened: int | None

    def __call__(self, deployment: Deployment, lost: str) -> Deployment:
        """Return the deployment without a stage; ``UserError`` if its layers fit nowhere."""
        pipeline = deployment.pipeline_of(lost)
        if pipeline is None:
            raise UserError(f"{lost} holds no layers that others could take")
        before = deployment.roles.pipelines[pipeline]
        left = tuple(stage for stage in before if stage.name != lost)
        if not left:
            raise UserError(f"no stage of pipeline{pipeline} is left to take the layers of {lost}")
        shorter = _with(deployment, pipeline, left)
        longest = max(map(len, shorter.roles.pipelines))
        section = self.scenario.schedule
        bounds = section.system.bounds(section.parameters, longest)
        shorter = replace(shorter, service=replace(shorter.service, bounds=bounds))
        total = sum(len(stage.layers) for stage in before)
        counts = deal("balanced", _costs(shorter, left), total)
        if counts is None:
            raise UserError(
                f"the {total} layers of pipeline{pipeline} do not fit the stages that are left"
            )
        dealt = self._placed(deployment, pipeline, left, counts)
        return fit_to_memory(_with(shorter, pipeline, dealt))

    def _placed(
        self, deployment: Deployment, pipeline: int, left: tuple[Placed, ...], counts: list[int]
    ) -> tuple[Placed, ...]:
        """Return the remaining stages with these numbers of layers and the times that they take."""
        sections = [self._section(pipeline, stage.name) for stage in left]
        stages = tuple(
            section.model_copy(update={"count": 1, "layers": count})
            for section, count in zip(sections, counts, strict=True)
        )
        alone = self.scenario.model_copy(update={"pipelines": (Pipeline(stages=stages),)})
        (made,) = place(alone, deployment.roles.ends, self.opened).roles.pipelines
        ends, path, dealt = [*accumulate(counts)], self.scenario.path, list[Placed]()
        for old, new, section, end in zip(left, made, sections, ends, strict=True):
            times, count = new.times, len(new.layers)
            device = resolve_device(section.device, f"{path}: a stage's device", path.parent)
            if not isinstance(device, Hardware):  # layers have equal shares of a whole role's times
                shares = old.times.stage.scaled(count / len(old.layers))
                times = replace(times, stage=shares)
            dealt.append(replace(old, times=times, layers=range(end - count, end)))
        return tuple(dealt)

    def _section(self, pipeline: int, name: str) -> Stage:
        """Return the scenario's section of a stage."""
        written = [each for each in self.scenario.pipelines for _ in range(each.count)][pipeline]
        stages = [each for each in written.stages for _ in range(each.count)]
        return stages[int(name.rpartition("stage")[2]) - 1]


def redeal_of(scenario: Scenario, layers: int | None) -> Redeal | None:
    """Return the rule that redistributes layers, if the scenario asks for it. Raises ``UserError``
    if it is not possible.

    Args: ``layers``: number of layers of the target's checkpoint, if it was opened.
    """
    if not scenario.faults.redeal_layers:
        return None
    key, groups = f"{scenario.path}: key faults.redeal_layers", scenario.schedule.parameters.groups
    if isinstance(groups, tuple):
        raise UserError(
            f"{key} does not go with schedule.groups = {list(groups)}, which name every stage"
        )
    if all(each.length == 1 for each in scenario.pipelines):
        raise UserError(f"{key}: every pipeline has one stage, so none could take its layers")
    return Redeal(scenario, layers)


def shares_of(deployment: Deployment, lost: str) -> str:
    """Describe which layers every stage of a pipeline has after the redistribution."""
    pipeline = int(lost.partition(".")[0].removeprefix("pipeline"))
    shares = (f"{each.name} {len(each.layers)}" for each in deployment.roles.pipelines[pipeline])
    return f"its layers were dealt anew ({', '.join(shares)})"


def _with(deployment: Deployment, pipeline: int, stages: tuple[Placed, ...]) -> Deployment:
    pipelines = [*deployment.roles.pipelines]
    pipelines[pipeline] = stages
    return replace(deployment, roles=replace(deployment.roles, pipelines=tuple(pipelines)))


def _costs(deployment: Deployment, stages: tuple[Placed, ...]) -> list[StageCost]:
    """Return the time of a layer at each stage, and how many layers fit it."""
    tokens = max(1, deployment.service.bounds.segment_tokens)
    most = most_layers(deployment, memory_needs(deployment), 1.0)
    verify = stages[-1].times.verify(tokens, 1) if deployment.roles.ends == "pipeline" else 0.0
    return [
        StageCost(
            verify if stage is stages[-1] else 0.0,
            stage.times.stage(tokens) / len(stage.layers),
            most.get(stage.name),
        )
        for stage in stages
    ]
