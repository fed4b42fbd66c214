"""Resolution of a scenario to a deployment: names become numbers, schedules are made.

``placement.py`` assigns roles to devices and finds their times. What all runs of a scenario share
is resolved once; ``Deployment.asked`` adds the requests of a run, and ``memory.py`` then checks the
devices' memory. Every fault of a scenario beyond its shape raises a ``UserError`` here that names
the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from treepipe.core.errors import UserError
from treepipe.core.front_desk import ServiceLevels
from treepipe.core.requests import Objectives
from treepipe.core.verification import DRAWN
from treepipe.physics.timing import LinkTimes
from treepipe.profiles.library import find_link, profile_name, resolve_link
from treepipe.profiles.schema import AnyLink, HostProfile
from treepipe.scenario.deployment import Deployment, Machine, Placed, Roles, Service, Wiring
from treepipe.scenario.faults import ASSUMED_READ_MIB_S, START_MS, Faults
from treepipe.scenario.memory import fitted, weights_mib
from treepipe.scenario.placement import Placement, place
from treepipe.scenario.scale import Estimated, check_scale, named_links, scaled_link
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import (
    ends_warnings,
    least_probabilities,
    prefill_warnings,
    unused_warnings,
)
from treepipe.scenario.schema import Replay
from treepipe.scenario.unread import lacking_warnings, unread_warnings
from treepipe.scenario.workload import draw_requests

LOGIT_BYTES = 2
"""Bytes of a logit between devices that share the output projection."""


def resolve(scenario: Scenario, placement: Placement | None = None) -> Deployment:
    """Resolve what all runs of a scenario share; the deployment has no requests yet.

    Args:
        placement: of the scenario; None: it is made.

    Raises ``UserError``: something the scenario names is wrong.
    """
    placement = place(scenario) if placement is None else placement
    roles = placement.roles
    names = {*roles.devices}
    check_scale(scenario, names)
    estimates = {
        **placement.estimates,
        **_link_estimates(scenario),
        **_acceptance_estimate(scenario),
    }
    deployment = Deployment(
        name=scenario.name,
        roles=roles,
        wiring=_wiring(scenario, roles),
        service=_service(scenario, [len(each) for each in roles.pipelines], roles.reads_states),
        faults=_faults(scenario, names),
        seed=scenario.seed,
        warnings=(
            *placement.warnings,
            *running_warnings(roles.machines),
            *prefill_warnings(scenario),
        ),
        estimates=estimates,
        path=scenario.path,
    )
    deployment = _with_all_reduces(deployment)
    _check_width(deployment)
    if not scenario.faults.inject:
        return deployment
    return _with_restart(deployment, scenario, placement.hosts)


def _wiring(scenario: Scenario, roles: Roles) -> Wiring:
    links = scenario.links
    return Wiring(
        default=_named_link(scenario, links.default, "links.default"),
        pairs=_pair_links(scenario, roles),
        local=_named_link(scenario, links.local, "links.local"),
        central_transfers=scenario.schedule.parameters.central_transfers,
        key=scenario.key_file,
    )


def _named_link(scenario: Scenario, link: AnyLink, key: str) -> LinkTimes:
    """Resolve a link, from its own table or from a named profile and the keys beside it, and apply
    the scenario's scale."""
    times = resolve_link(link, f"{scenario.path}: key {key}", scenario.path.parent).times
    return scaled_link(scenario.scale, link, times)


def _link_estimates(scenario: Scenario) -> dict[Estimated, float]:
    """Return the relative uncertainty of the scenario's link profiles, where they state one."""
    path, found = scenario.path, dict[Estimated, float]()
    for key, link in named_links(scenario.links).items():
        name = profile_name(link)
        if name is not None:
            at = key if isinstance(link, str) else f"{key}.profile"
            origin = find_link(name, f"{path}: key {at}", path.parent).origin
            if origin.uncertainty is not None:
                found[Estimated("link", name)] = origin.uncertainty
    return found


def _pair_links(scenario: Scenario, roles: Roles) -> dict[tuple[str, str], LinkTimes]:
    """Resolve the links of the pairs that the scenario lists, by (sender, receiver)."""
    names = {*roles.devices, *scenario.faults.spare_workers}
    links, path = dict[tuple[str, str], LinkTimes](), scenario.path
    for index, pair in enumerate(scenario.links.pairs):
        key = f"links.pairs.{index}"
        for end in pair.ends:
            if end not in names:
                raise UserError(
                    f"{path}: key {key}.ends names {end!r}; there are {', '.join(sorted(names))}"
                )
        if pair.ends[0] == pair.ends[1] not in roles.shared_footprints:
            raise UserError(
                f"{path}: key {key}.ends: both are {pair.ends[0]!r}, which has no link to itself "
                f"(the devices of a stage with tensor > 1 have one)"
            )
        times = _named_link(scenario, pair.link, key)
        links |= dict.fromkeys(pair.directions, times)
    return links


def _with_all_reduces(deployment: Deployment) -> Deployment:
    """Add what devices that share a stage's layers exchange to the times of its passes, and the
    way of the others' logits to one of them where the stage takes tokens."""
    roles, pipelines = deployment.roles, [[*each] for each in deployment.roles.pipelines]
    for number, stages in enumerate(pipelines):
        for at, stage in enumerate(stages):
            if (part := roles.shared_footprints.get(stage.name)) is not None:
                logits = LOGIT_BYTES * (stage.tensor - 1) * part.vocabulary
                judges = roles.verifies(number, at + 1)
                stages[at] = _with_exchanges(deployment, stage, logits if judges else 0)
    whole = replace(roles, pipelines=tuple(map(tuple, pipelines)))
    return replace(deployment, roles=whole) if roles.shared_footprints else deployment


def _with_exchanges(deployment: Deployment, stage: Placed, logits: int) -> Placed:
    """Args: ``logits``: bytes of the other devices' for a row; 0: the stage takes no tokens."""
    layers, evaluate = len(stage.layers), stage.times.evaluate
    link = deployment.inside(stage.name)
    passes = stage.times.stage.plus(lambda rows: layers * deployment.all_reduces_ms(stage, rows))
    if logits:
        evaluate = evaluate.plus(lambda rows: link.mean_ms(rows * logits))
    return replace(stage, times=replace(stage.times, stage=passes, evaluate=evaluate))


def _check_width(deployment: Deployment) -> None:
    """Refuse hidden states of unknown size on a link whose time depends on a message's size."""
    if deployment.roles.row_bytes:
        return
    for sender, receiver in _state_pairs(deployment):
        if deployment.link(sender, receiver).by_size:
            raise UserError(
                f"{deployment.path}: key target.hidden_size is missing (target.profile or "
                f"target.checkpoint would say it, too): the hidden states that {sender} sends to "
                f"{receiver} take a time by their size"
            )


def _state_pairs(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield (sender, receiver) of all messages with hidden states."""
    drafts = [draft.name for draft in deployment.roles.drafts]
    outside = deployment.roles.ends == "draft"
    for pipeline in deployment.roles.pipelines:
        stages = [stage.name for stage in pipeline]
        yield from pairwise(stages)
        if outside:
            yield from ((draft, stages[0]) for draft in drafts)
        if outside or deployment.roles.reads_states:
            yield from ((stages[-1], draft) for draft in drafts)


def deploy(scenario: Scenario, seed: int | None = None) -> Deployment:
    """Make the deployment for a run of this seed; the devices' memory must hold its needs.

    Args:
        seed: seed of the run; None: the scenario's own.

    Raises ``UserError``: something the scenario names is wrong.
    """
    seed = scenario.seed if seed is None else seed
    return fitted([resolve(scenario).asked(draw_requests(scenario, seed), seed)])[0]


def input_warnings(scenario: Scenario, deployment: Deployment, *, run: bool = False) -> list[str]:
    """Return the warnings about a result's inputs, one sentence each, for all commands.

    Args:
        deployment: deployment of the scenario; its own warnings are included.
        run: whether the result is a run's rather than a prediction.
    """
    by_n_max = f"serving.admission = {scenario.serving.admitted} by N_max (StarSD, section 4.2)"
    return [
        *estimate_warnings(deployment),
        *deployment.warnings,
        *unused_warnings(scenario),
        *ends_warnings(scenario),
        *[by_n_max] * scenario.serving.by_n_max,
        *unread_warnings(scenario, deployment, run=run),
        *([] if run else lacking_warnings(scenario)),
    ]


def running_warnings(machines: Sequence[Machine]) -> list[str]:
    """Return warnings where energy or price is known for some machines only (no sum exists)."""
    found = []
    for metric, key, known in (
        ("joules_per_token", "power", [m.power_w is not None for m in machines]),
        ("usd_per_million_tokens", "price_usd_per_hour", [bool(m.usd_per_hour) for m in machines]),
    ):
        lacking = [m.name for m, each in zip(machines, known, strict=True) if not each]
        if any(known) and lacking:
            found.append(f"{metric} is left out: no key {key} for {', '.join(lacking)}")
    return found


def _acceptance_estimate(scenario: Scenario) -> dict[Estimated, float]:
    """Return the relative uncertainty of the share of misses, where the acceptance states one."""
    section = scenario.acceptance
    if section is None or isinstance(section, Replay) or section.uncertainty is None:
        return {}
    return {Estimated("acceptance"): section.uncertainty}


def estimate_warnings(deployment: Deployment) -> list[str]:
    """Return a warning of the inputs that are estimates, if there are any."""
    if not deployment.estimates:
        return []
    shares = deployment.estimates.items()
    each = ", ".join(f"{name} ±{share * 100:.3g} %" for name, share in shares)
    return [f"inputs are estimates: {each}; the intervals of runs do not include this"]


def _with_restart(
    deployment: Deployment, scenario: Scenario, hosts: Mapping[str, HostProfile]
) -> Deployment:
    """Set the time of a restart: given, else measured, else derived with a warning."""
    section, found, weights = scenario.faults, list[str](), weights_mib(deployment)
    machines, measured_ms = {machine.name: machine for machine in weights}, list[float]()
    for name, host in hosts.items():
        if host.restart_ms is not None:
            machine = machines.get(name)
            more_mib = 0.0
            if host.restart_mib is not None and machine is not None:
                more_mib = weights[machine] - host.restart_mib
            more_ms = 1e3 * more_mib / _read_mib_s(machine)
            measured_ms.append(max(0.0, host.restart_ms + more_ms))
    restart_ms = (
        max(measured_ms, default=None) if section.restart_ms is None else section.restart_ms
    )
    if restart_ms is None:
        reading_ms = {each: 1e3 * mib / _read_mib_s(each) for each, mib in weights.items()}
        slowest = max(weights, key=reading_ms.__getitem__, default=None)
        restart_ms = START_MS
        of = "no weights, since nothing tells the target's size (target.profile)"
        if slowest is not None:
            restart_ms += reading_ms[slowest]
            rate = _read_mib_s(slowest)
            of = f"{weights[slowest]:,.0f} MiB of weights at read_mib_s = {rate:g}"
        found = [
            f"nobody measured a restart (faults.restart_ms): it is taken for {restart_ms:.0f} "
            f"ms, {START_MS:g} to start workers and the rest to read {of}"
        ]
    faults = replace(deployment.faults, restart_ms=restart_ms)
    return replace(deployment, faults=faults).warned(*found)


def _read_mib_s(machine: Machine | None) -> float:
    """Return the rate at which a host reads weights: each device's, for the roles that can work at
    once, else an assumed one."""
    if machine is None or machine.read_mib_s is None:
        return ASSUMED_READ_MIB_S
    processors = machine.capacity if machine.costs is None else machine.costs.processors
    return machine.read_mib_s * min(len(machine.roles), processors)


def _faults(scenario: Scenario, names: set[str]) -> Faults:
    """Resolve faults. Args: ``names``: all roles."""
    if scenario.sampling.rule == "adaptive" and scenario.faults.spares:
        raise UserError(
            f"{scenario.path}: key faults.spares does not go with sampling.rule = 'adaptive', "
            f"whose running share of matches a request that is taken up again would lose"
        )
    return scenario.faults.resolved(sorted(names), scenario.path)


def _service(scenario: Scenario, stages: Sequence[int], reads_states: bool) -> Service:
    """Resolve the service rules. Args: ``stages``: number of stages of each pipeline."""
    given, section = scenario.serving, scenario.schedule
    _check_serving(scenario, len(stages))
    system, rule = section.system, scenario.sampling.rule
    places = [n for n in (system.places(section.parameters), given.places) if n is not None]
    return Service(
        section.choose(
            drawn=rule in DRAWN,
            reads_states=reads_states,
            independent_levels=all(draft.drafter.drafts_blocks for draft in scenario.drafts),
            below=any(draft.agreement is not None for draft in scenario.drafts),
        ),
        groups=section.parameters.groups,
        overlapped_pruning=section.parameters.overlapped_pruning,
        cancels=section.parameters.cancels,
        flights=tuple(system.flights(section.parameters, each) for each in stages),
        cut=max(section.parameters.lengths().values()) if section.parameters.cut else 0,
        feedback=section.parameters.feedback,
        reported_states=tuple(map(section.parameters.reported_states, stages)),
        bounds=system.bounds(section.parameters, max(stages)),
        target_emits=system.target_emits,
        never_misses=rule == "relaxed_best",
        least_probabilities=least_probabilities(scenario),
        clients=scenario.workload.concurrency,
        limit=min(places, default=None),
        admission=_admitted(scenario),
        policy=given.queue,
        levels=ServiceLevels(given.weights, given.deadlines_ms),
        batch=1 if system.in_lock_step else given.batch,
        prompts=system.prompts,
        warm_up_ms=given.warm_up_ms if system.drafts else None,
        cache=given.cache,
        cache_tokens=given.cache_tokens,
        slo=None if given.slo is None else Objectives(**given.slo.model_dump()),
    )


def _admitted(scenario: Scenario) -> int | None:
    admitted = scenario.serving.admitted
    if admitted == "auto":
        raise UserError(
            f"{scenario.path}: key serving.admission = 'auto' is for simulate, run, validate, plan "
            f"and sweep"
        )
    return admitted


def _check_serving(scenario: Scenario, pipelines: int) -> None:
    given = scenario.serving
    for key, values in (("weights", given.weights), ("deadlines_ms", given.deadlines_ms)):
        if len(values) > pipelines:
            raise UserError(
                f"{scenario.path}: key serving.{key} has {len(values)} values for {pipelines} "
                f"pipelines"
            )
    if given.cache == "paged" and scenario.sampling.rule == "adaptive":
        raise UserError(
            f"{scenario.path}: key serving.cache = 'paged' does not go with sampling.rule = "
            f"'adaptive', whose running share of matches a preempted request would lose"
        )
