"""Keys that were given and have no effect, outside ``[schedule]`` and ``[workload]``.

Law of this file: no key is ever ignored in silence. Whether a key counts is asked of the key that
it depends on; both worlds say the same of a scenario.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treepipe.profiles.schema import AnyDevice
from treepipe.scenario.computing import FULL, ONE_CORE
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Replay

_MODELS = ("model", "eagle", "hybrid")
SOURCES = {
    "head": ("eagle",),
    "ngram": ("ngram", "hybrid"),
    "weight": ("hybrid",),
    "model.dtype": _MODELS,
    "model.widen": _MODELS,
}
"""Keys of a draft, by the sources that read them."""
WEIGHTS = ("contrast_weight", "matches_weight", "agreement_weight")
RULES = dict.fromkeys(("tau_max", *WEIGHTS), "adaptive") | {"relaxed_top_p": "relaxed_top_p"}
"""Keys of the sampling, by the rule that reads them."""
QUEUES = {"weights": "weighted_fair", "deadlines_ms": "earliest_deadline"}
"""Keys of the serving, by the queue that reads them."""
DISTRIBUTION = ("temperature", "top_p", "top_k")
"""Keys that shape the target's distribution; at temperature 0 only the first counts."""


def unread_warnings(scenario: Scenario, deployment: Deployment) -> list[str]:
    """Args: ``deployment``: of the scenario, for who sends messages to whom."""
    verification = _verification(scenario, deployment)
    choices = [*_choices(scenario, deployment), *_caches(scenario, deployment)]
    choices += [*_batches(scenario, deployment), *_hosts(scenario), *_scale(scenario)]
    return [*_drafts(scenario), *verification, *choices, *_links(scenario, deployment)]


def sampling_warnings(scenario: Scenario) -> list[str]:
    """Warnings of a simulation, where acceptance is as given, whatever the distribution."""
    sampling, acceptance = scenario.sampling, scenario.acceptance
    if not sampling.temperature or acceptance is None or isinstance(acceptance, Replay):
        return []
    return [
        f"key sampling.temperature = {sampling.temperature:g} has no effect on a simulation, which "
        f"takes acceptance as key acceptance gives it: it must be from this temperature"
    ]


def computing_warnings(deployment: Deployment) -> list[str]:
    """Warnings of a simulation, where a device is as fast as its tables say."""
    placed = deployment.placed
    roles = [each.name for each in placed if replace(each.compute, dtype=FULL) != ONE_CORE]
    if not roles:
        return []
    return [
        f"keys kind, index and threads of the devices of {', '.join(roles)} have no effect on a "
        f"simulation, which takes their times as given"
    ]


def fault_warnings(scenario: Scenario) -> list[str]:
    """Warnings of a simulation, where a worker fails if the scenario says so, and only then."""
    given = sorted(scenario.faults.model_fields_set - {"inject"})
    if scenario.faults.inject or not given:
        return []
    return [
        f"key faults.{key} has no effect on a simulation in which no worker fails ([[faults]])"
        for key in given
    ]


def _drafts(scenario: Scenario) -> Iterator[str]:
    for index, draft in enumerate(scenario.drafts):
        given = draft.model_fields_set | {f"model.{key}" for key in draft.model.model_fields_set}
        for key, sources in SOURCES.items():
            if key in given and draft.source not in sources:
                yield (
                    f"key drafts.{index}.{key} has no effect with drafts.{index}.source = "
                    f"{draft.source!r}"
                )
        for key in ("least_probability", "one_pass"):
            if getattr(draft, key) and not scenario.schedule.system.drafts:
                name = scenario.schedule.name
                yield f"key drafts.{index}.{key} has no effect on {name}, where nothing is drafted"


def _verification(scenario: Scenario, deployment: Deployment) -> Iterator[str]:
    """Times of verification that a device says where nothing is verified."""
    for index, draft in enumerate(scenario.drafts):
        if deployment.ends == "pipeline":
            yield from _unverified(f"drafts.{index}.device", draft.device, deployment)
    for number, pipeline in enumerate(scenario.pipelines):
        *before, last = [f"pipelines.{number}.stages.{i}" for i in range(len(pipeline.stages))]
        idle = before if deployment.ends == "pipeline" else [*before, last]
        for key, stage in zip(idle, pipeline.stages, strict=False):
            yield from _unverified(f"{key}.device", stage.device, deployment)


def _unverified(key: str, device: AnyDevice, deployment: Deployment) -> Iterator[str]:
    given = set() if isinstance(device, str) else device.model_fields_set
    for name in ("evaluate_ms", "decide_ms"):
        if name in given:
            yield (
                f"key {key}.{name} has no effect with schedule.ends = {deployment.ends!r}: "
                f"verification is elsewhere"
            )


def _choices(scenario: Scenario, deployment: Deployment) -> Iterator[str]:
    sampling, serving = scenario.sampling, scenario.serving
    if serving.warm_up_ms is not None and not scenario.schedule.system.drafts:
        name = scenario.schedule.name
        yield f"key serving.warm_up_ms has no effect on {name}, where nothing is drafted"
    given = scenario.faults.model_fields_set
    if "plain_without_draft" in given and not scenario.schedule.system.drafts:
        name = scenario.schedule.name
        yield f"key faults.plain_without_draft has no effect on {name}, where nothing is drafted"
    if serving.by_n_max:
        yield f"serving.admission = {serving.admission} by N_max (StarSD, section 4.2)"
    if scenario.run.key is not None and not _workers(deployment):
        yield "key run.key has no effect: no draft, no stage and no spare names a worker"
    for key, rule in RULES.items():
        if key in sampling.model_fields_set and sampling.rule != rule:
            yield f"key sampling.{key} has no effect with sampling.rule = {sampling.rule!r}"
    for key in DISTRIBUTION[1:]:
        if key in sampling.model_fields_set and not sampling.temperature:
            yield f"key sampling.{key} has no effect with sampling.temperature = 0"
    for key, queue in QUEUES.items():
        if key in serving.model_fields_set and serving.queue != queue:
            yield f"key serving.{key} has no effect with serving.queue = {serving.queue!r}"


def _workers(deployment: Deployment) -> list[str]:
    """Addresses of all that are named."""
    named = [each.worker for each in deployment.placed if each.worker is not None]
    return [*named, *deployment.faults.spare_workers]


def _scale(scenario: Scenario) -> Iterator[str]:
    name, drafts = scenario.schedule.name, scenario.schedule.system.drafts
    if scenario.scale.misses != 1 and not drafts:
        yield f"key scale.misses has no effect on {name}, where nothing is drafted"


def _hosts(scenario: Scenario) -> Iterator[str]:
    for name, host in scenario.hosts.items():
        if host.profile is not None and scenario.emulate:
            yield (
                f"key hosts.{name}.profile has no effect with emulate = true: it says what runs "
                f"without emulation take"
            )


def _caches(scenario: Scenario, deployment: Deployment) -> Iterator[str]:
    serving = scenario.serving
    if serving.cache_tokens is not None and serving.cache is None:
        yield "key serving.cache_tokens has no effect without serving.cache"
    if serving.cache is not None and not _several(deployment):
        yield "key serving.cache has no effect: one request is open at a time"


def _several(deployment: Deployment) -> bool:
    """Whether more than one request can be open at once, on whatever pipelines."""
    return sum(deployment.most_open(n) for n in range(len(deployment.pipelines))) > 1


def _batches(scenario: Scenario, deployment: Deployment) -> Iterator[str]:
    serving, name = scenario.serving, scenario.schedule.name
    if serving.batch != 1 and scenario.schedule.system.in_lock_step:
        yield f"key serving.batch has no effect with schedule.name = {name!r}: its steps are shared"
    elif serving.batch not in (1, "auto") and not _shares(deployment):
        yield f"key serving.batch = {serving.batch} has no effect: one request is open at a time"
    if "prefill" in serving.model_fields_set and deployment.batch == 1:
        yield "key serving.prefill has no effect where a pass is for one request (serving.batch)"


def _shares(deployment: Deployment) -> bool:
    """Whether a pipeline can have more than one request open at once."""
    return any(deployment.most_open(n) > 1 for n in range(len(deployment.pipelines)))


def _links(scenario: Scenario, deployment: Deployment) -> Iterator[str]:
    used, spares = set(deployment.connections), set(scenario.faults.spare_workers)
    for index, pair in enumerate(scenario.links.pairs):
        if not (used & set(pair.directions) or spares & set(pair.ends)):
            between = " to ".join(pair.ends) if pair.one_way else " and ".join(pair.ends)
            preposition = "from" if pair.one_way else "between"
            yield f"key links.pairs.{index} has no effect: no message goes {preposition} {between}"
    if "local" in scenario.links.model_fields_set and not _shared(deployment):
        yield "key links.local has no effect: no two roles share a host"


def _shared(deployment: Deployment) -> bool:
    return any(len(machine.roles) > 1 for machine in deployment.machines)
