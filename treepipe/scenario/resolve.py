"""Scenario -> deployment: names become numbers, schedules are made.

Who works where, and how long that takes, is in ``placement.py``; links are in ``links.py``. What
all runs of a scenario have in common is resolved once; what one of them is asked comes with the run
(``Deployment.asked``), and with it what its devices' memory must hold (``memory.py``).

Everything that can be wrong with a scenario beyond its shape is found here and ends in a
``UserError`` that names the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from treepipe.core.errors import UserError
from treepipe.core.front_desk import ServiceLevels
from treepipe.core.requests import Objectives
from treepipe.core.schedules import Chosen
from treepipe.core.schedules.pp import PLAIN
from treepipe.scenario.computing import FULL, Computed
from treepipe.scenario.deployment import Deployment, Serving
from treepipe.scenario.faults import START_MS, FaultPlan
from treepipe.scenario.fitting import fitting
from treepipe.scenario.footprint import Footprint
from treepipe.scenario.links import link_estimates, named_link, pair_links
from treepipe.scenario.machines import running_warnings
from treepipe.scenario.memory import most_weights_mib
from treepipe.scenario.placement import place
from treepipe.scenario.redeal import redeal_of
from treepipe.scenario.scale import Estimated, check_scale
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import (
    bounds_of,
    check_schedule,
    ends_of,
    ends_warnings,
    least_probabilities,
    prefill_warnings,
    unused_warnings,
)
from treepipe.scenario.schema import Replay
from treepipe.scenario.unread import lacking_warnings, unread_warnings
from treepipe.scenario.workload import draw_requests


@dataclass(frozen=True, slots=True)
class OpenedTarget:
    """What an opened checkpoint says of the target, instead of what the scenario does."""

    layers: int
    row_bytes: int
    footprint: Footprint
    dtype: Computed


def resolve(scenario: Scenario, opened: OpenedTarget | None = None) -> Deployment:
    """What all runs of a scenario have in common; nothing is asked of it yet.

    Raises:
        UserError: something the scenario names is wrong.
    """
    check_schedule(scenario)
    placement = place(scenario, ends_of(scenario), None if opened is None else opened.layers)
    names = {placed.name for placed in (*placement.drafts, *sum(placement.pipelines, ()))}
    check_scale(scenario, names)
    section, path = scenario.schedule, scenario.path
    estimates = {
        **placement.estimates,
        **link_estimates(scenario),
        **_acceptance_estimate(scenario),
    }
    layers = None if opened is None else opened.layers
    reads_states = any(draft.drafter.reads_states for draft in scenario.drafts)
    deployment = Deployment(
        name=scenario.name,
        drafts=placement.drafts,
        pipelines=placement.pipelines,
        new_schedule=section.choose(
            drawn=scenario.sampling.rule == "rejection", reads_states=reads_states
        ),
        requests=(),
        default_link=named_link(scenario, scenario.links.default, "links.default"),
        links=pair_links(scenario, {*names, *scenario.faults.spare_workers}),
        local_link=named_link(scenario, scenario.links.local, "links.local"),
        row_bytes=placement.row_bytes if opened is None else opened.row_bytes,
        dtype=FULL if opened is None else opened.dtype,
        serving=_serving(scenario, len(placement.pipelines)),
        groups=section.parameters.groups,
        overlapped_pruning=section.parameters.overlapped_pruning,
        central_transfers=section.parameters.central_transfers,
        ends=ends_of(scenario),
        reads_states=reads_states,
        never_misses=scenario.sampling.rule == "relaxed_best",
        least_probabilities=least_probabilities(scenario),
        seed=scenario.seed,
        warnings=(
            *_uncertain(estimates),
            *placement.warnings,
            *running_warnings(placement.machines),
            *prefill_warnings(scenario),
        ),
        machines=placement.machines,
        bounds=bounds_of(scenario, max(map(len, placement.pipelines))),
        footprint=placement.footprint if opened is None else opened.footprint,
        draft_footprints=placement.draft_footprints,
        path=path,
        estimates=estimates,
        faults=_faults(scenario, names),
        redeal=redeal_of(scenario, layers),
        stand_in=_stand_in(scenario),
        key=None if scenario.run.key is None else path.parent / scenario.run.key,
    )
    _check_width(deployment)
    return _with_restart(deployment, scenario, placement.restart_ms)


def _check_width(deployment: Deployment) -> None:
    """Refuse hidden states of unknown size on a link whose time depends on a message's size."""
    if deployment.row_bytes:
        return
    for sender, receiver in _state_pairs(deployment):
        if deployment.link(sender, receiver).by_size:
            raise UserError(
                f"{deployment.path}: key target.hidden_size is missing (target.profile or "
                f"target.checkpoint would say it, too): the hidden states that {sender} sends to "
                f"{receiver} take a time by their size"
            )


def _state_pairs(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """(Sender, receiver) of all hidden states."""
    drafts, outside = [draft.name for draft in deployment.drafts], deployment.ends == "draft"
    for pipeline in deployment.pipelines:
        stages = [stage.name for stage in pipeline]
        yield from pairwise(stages)
        if outside:
            yield from ((draft, stages[0]) for draft in drafts)
        if outside or deployment.reads_states:
            yield from ((stages[-1], draft) for draft in drafts)


def deploy(scenario: Scenario, seed: int | None = None) -> Deployment:
    """The deployment as a run of this seed asks it, on devices whose memory it fits.

    Args:
        seed: of the run; None is the scenario's own.

    Raises:
        UserError: something the scenario names is wrong.
    """
    seed = scenario.seed if seed is None else seed
    return fitting(resolve(scenario).asked(draw_requests(scenario, seed), seed))


def input_warnings(scenario: Scenario, deployment: Deployment, *, run: bool = False) -> list[str]:
    """Say of a result's inputs what its reader must know, a sentence each; for all commands.

    Args:
        deployment: of the scenario; its own warnings are among them.
        run: the result is a run's, not a prediction.
    """
    by_n_max = f"serving.admission = {scenario.serving.admission} by N_max (StarSD, section 4.2)"
    return [
        *deployment.warnings,
        *unused_warnings(scenario),
        *ends_warnings(scenario),
        *[by_n_max] * scenario.serving.by_n_max,
        *unread_warnings(scenario, deployment, run=run),
        *([] if run else lacking_warnings(scenario)),
    ]


def _acceptance_estimate(scenario: Scenario) -> dict[Estimated, float]:
    """Relative uncertainty of the share of misses, where the acceptance states one."""
    section = scenario.acceptance
    if section is None or isinstance(section, Replay) or section.uncertainty is None:
        return {}
    return {Estimated("acceptance"): section.uncertainty}


def _uncertain(estimates: Mapping[Estimated, float]) -> list[str]:
    """Args: ``estimates``: relative uncertainty by what it is of."""
    if not estimates:
        return []
    each = ", ".join(f"{name} ±{share * 100:.3g} %" for name, share in estimates.items())
    return [f"inputs are estimates: {each}; the intervals of runs do not include this"]


def _with_restart(
    deployment: Deployment, scenario: Scenario, measured_ms: float | None
) -> Deployment:
    """The deployment with the time that a restart takes: as given, as measured, else derived, with
    a warning where a worker fails.

    Args: ``measured_ms``: by the hosts' profiles; None: by none of them.
    """
    section, faults = scenario.faults, deployment.faults
    restart_ms = measured_ms if section.restart_ms is None else section.restart_ms
    if restart_ms is not None:
        unread = (
            "key faults.read_mib_s has no effect: faults.restart_ms or a host's profile says what "
            "a restart takes"
        )
        found = [unread] if section.inject and "read_mib_s" in section.model_fields_set else []
        return replace(
            deployment,
            faults=replace(faults, restart_ms=restart_ms),
            warnings=(*deployment.warnings, *found),
        )
    weights_mib = most_weights_mib(deployment)
    restart_ms = START_MS + 1e3 * (weights_mib or 0.0) / section.read_mib_s
    of = "no weights, since nothing tells the target's size (target.profile)"
    if weights_mib is not None:
        of = f"{weights_mib:,.0f} MiB of weights at faults.read_mib_s = {section.read_mib_s:g}"
    warning = (
        f"nobody measured a restart (faults.restart_ms): it is taken for {restart_ms:.0f} ms, "
        f"{START_MS:g} to start workers and the rest to read {of}"
    )
    return replace(
        deployment,
        faults=replace(faults, restart_ms=restart_ms),
        warnings=(*deployment.warnings, *([warning] if section.inject else [])),
    )


def _faults(scenario: Scenario, names: set[str]) -> FaultPlan:
    """Args: ``names``: of all roles."""
    if scenario.sampling.rule == "adaptive":
        given = scenario.faults.model_fields_set
        for key in ("spares", "redeal_layers", "plain_without_draft"):
            if key in given and getattr(scenario.faults, key):
                raise UserError(
                    f"{scenario.path}: key faults.{key} does not go with sampling.rule = "
                    f"'adaptive', whose running share of matches a request that is taken up again "
                    f"would lose"
                )
    return scenario.faults.resolved(sorted(names), scenario.path)


def _stand_in(scenario: Scenario) -> Chosen | None:
    """Plain decoding, on the same pipelines, for requests whose draft server is lost; None where
    nothing is drafted, or nobody may stand in."""
    section = scenario.schedule
    if not (section.system.drafts and scenario.faults.plain_without_draft):
        return None
    if scenario.sampling.rule == "adaptive":  # its share of matches would be lost
        return None
    asked = section.parameters
    return Chosen(PLAIN.name, PLAIN.parameters(asked.prefill_chunk, asked.ends))


def _serving(scenario: Scenario, pipelines: int) -> Serving:
    given, section = scenario.serving, scenario.schedule
    for key, values in (("weights", given.weights), ("deadlines_ms", given.deadlines_ms)):
        if len(values) > pipelines:
            raise UserError(
                f"{scenario.path}: key serving.{key} has {len(values)} values for {pipelines} "
                f"pipelines"
            )
    if given.admission == "auto":
        raise UserError(
            f"{scenario.path}: key serving.admission = 'auto' is for simulate, run and validate"
        )
    if given.cache == "paged" and scenario.sampling.rule == "adaptive":
        raise UserError(
            f"{scenario.path}: key serving.cache = 'paged' does not go with sampling.rule = "
            f"'adaptive', whose running share of matches a preempted request would lose"
        )
    own = section.system.places(section.parameters)
    places = [n for n in (own, given.places) if n is not None]
    return Serving(
        scenario.workload.concurrency,
        min(places, default=None),
        given.admission,
        given.queue,
        ServiceLevels(given.weights, given.deadlines_ms),
        1 if section.system.in_lock_step else given.batch,
        given.prefill or section.system.prompts,
        given.warm_up_ms if section.system.drafts else None,
        given.cache,
        given.cache_tokens,
        None if given.slo is None else Objectives(**given.slo.model_dump()),
    )
