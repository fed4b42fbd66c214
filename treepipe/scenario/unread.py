"""Warnings of keys that were given but have no effect, and the conditions under which keys are
read.

Invariant: no key is ignored silently. A key of the schema names its condition (``ReadIf``,
``Beside`` in ``files/section.py``); ``CONDITIONS`` defines each for both worlds.
``schedule_check.py`` covers the keys of ``[schedule]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, starmap
from math import inf
from typing import Any

from treepipe.files.section import Beside, ReadIf, Section
from treepipe.profiles.library import REFERENCE_SET, resolve_device, resolve_link
from treepipe.profiles.schema import Hardware, Link, LinkKeys
from treepipe.scenario.deployment import Deployment, Machine, Placed
from treepipe.scenario.placement import host_profiles
from treepipe.scenario.scale import written_devices
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Pair, Replay, ScheduleSection


@dataclass(frozen=True, slots=True)
class Key:
    """A key that was given, in the scenario and the world that may read it.

    Attributes:
        path: path to the key in the file.
        table: table that holds the key.
        run: whether the world is a run rather than a simulation.
    """

    scenario: Scenario
    deployment: Deployment
    run: bool
    path: tuple[str | int, ...] = ()
    table: Any = None

    @property
    def value(self) -> Any:
        return getattr(self.table, str(self.path[-1]))

    @property
    def of_drafts(self) -> bool:
        return self.path[0] == "drafts"

    @property
    def role(self) -> Placed:
        """The last of the roles that the key's draft server or stage describes."""
        if self.of_drafts:
            return self.deployment.roles.drafts[_last(self.scenario.drafts, self.path[1])]
        number = _last(self.scenario.pipelines, self.path[1])
        stages = self.scenario.pipelines[int(self.path[1])].stages
        return self.deployment.roles.pipelines[number][_last(stages, self.path[3])]

    @property
    def machine(self) -> Machine:
        return self.deployment.roles.machine(self.role.name)

    @property
    def drafted(self) -> bool:
        return self.scenario.schedule.system.drafts

    @property
    def verifying(self) -> bool:
        """Whether the key's role verifies the target's tokens."""
        if self.of_drafts:
            return self.deployment.roles.ends == "draft" and self.role.agreement is None
        last = self.deployment.roles.pipelines[_last(self.scenario.pipelines, self.path[1])][-1]
        return self.deployment.roles.ends == "pipeline" and self.role == last

    @property
    def timed_by_layers(self) -> bool:
        """Whether the times of the key's roles follow from a model's sizes."""
        own, base = f"drafts.{self.path[1]}." if self.of_drafts else "", self.scenario.path.parent
        return any(
            isinstance(resolve_device(device, "", base), Hardware)
            for key, device in written_devices(self.scenario)
            if key.startswith(own)
        )

    @property
    def needs_profile(self) -> bool:
        """Whether only the profile of the key's model gives a size that is needed."""
        return self.timed_by_layers or (self.limited and self.table.profile is not None)

    @property
    def link(self) -> Link:
        """The link that the key describes, with the keys of its profile."""
        link = self.table.link if isinstance(self.table, Pair) else self.table
        return resolve_link(link, "", self.scenario.path.parent)

    @property
    def limited(self) -> bool:
        """Whether any device states its memory."""
        return any(each.memory_mib is not None for each in self.deployment.roles.machines)

    @property
    def rated(self) -> bool:
        """Whether the time of a message depends on its size."""
        rates = (link.bandwidth_mbit_s or link.transfer_ms for link in self.deployment.wiring.links)
        return any(rates) or any(each.costs for each in self.deployment.roles.machines)

    @property
    def asked(self) -> int:
        """Number of requests that clients can ask for at once."""
        requests, clients = len(self.deployment.requests), self.deployment.service.clients
        return requests if self.deployment.arrivals_ms else min(requests, clients)

    @property
    def connected(self) -> bool:
        """Whether the ends of a pair exchange messages."""
        used, spares = set(self.deployment.roles.connections), self.scenario.faults.spare_workers
        used |= {(stage, stage) for stage in self.deployment.roles.shared_footprints}
        return bool(used & set(self.table.directions) or {*spares} & {*self.table.ends})

    @property
    def apart(self) -> bool:
        """Whether any messages take the default link."""
        default, used = self.deployment.wiring.default, self.deployment.roles.connections
        shared = map(self.deployment.inside, self.deployment.roles.shared_footprints)
        return any(link is default for link in chain(shared, starmap(self.deployment.link, used)))

    @property
    def most_open(self) -> list[int]:
        """The most requests that each pipeline can have open at once."""
        pipelines = range(len(self.deployment.roles.pipelines))
        return [self.deployment.most_open(number) for number in pipelines]

    @property
    def most_served(self) -> float:
        """The most requests that a pipeline can have open at once, whatever the file's limit."""
        schedule, pipelines = self.scenario.schedule, len(self.deployment.roles.pipelines)
        own = schedule.system.places(schedule.parameters) or inf
        return min(-(-self.asked // pipelines), own)


def _last(sections: Any, index: int | str) -> int:
    """Return the number of the last copy of a section of a list."""
    return sum([int(each.count) for each in sections[: int(index) + 1]]) - 1


CONDITIONS: Mapping[str, tuple[str, Callable[[Key], bool]]] = {
    "run": ("in a run", lambda key: key.run),
    "simulation": ("in a simulation", lambda key: not key.run),
    "imposed": (
        "in a run, and where a host has a profile",
        lambda key: key.run or any(host.profile for host in key.scenario.hosts.values()),
    ),
    "in place": (
        "in a simulation with emulate = false",
        lambda key: not (key.run or key.scenario.emulate),
    ),
    "drawn": (
        "where texts are not replayed (acceptance.source)",
        lambda key: key.run or not isinstance(key.scenario.acceptance, Replay),
    ),
    "failing": (
        "in a run, and in a simulation in which a worker fails ([[faults]])",
        lambda key: key.run or bool(key.scenario.faults.inject),
    ),
    "restart unknown": (
        "without faults.restart_ms, and where a host's profile has no restart_ms without "
        "restart_mib",
        lambda key: (
            key.scenario.faults.restart_ms is None
            and not any(
                each.restart_ms is not None and each.restart_mib is None
                for each in host_profiles(key.scenario).values()
            )
        ),
    ),
    # --- roles and what they do ---
    "drafted": ("where something is drafted (schedule.name)", lambda key: key.drafted),
    "asked": (
        "in a run, and where something is drafted (schedule.name)",
        lambda key: key.run or key.drafted,
    ),
    "sampled": (
        "in a run, where something is drafted (schedule.name), and where a device has [[sampling]]",
        lambda key: (
            key.run
            or key.drafted
            or any(placed.times.judge for placed in key.deployment.roles.placed)
        ),
    ),
    "stage": ("on the device of a stage", lambda key: not key.of_drafts),
    "drafting": (
        "on the device of a draft server, where something is drafted",
        lambda key: key.of_drafts and key.drafted,
    ),
    "pruning": (
        "on the device of a stage, where something is drafted",
        lambda key: not key.of_drafts and key.drafted,
    ),
    "working": (
        "where draft servers draft or verify (schedule.name, schedule.ends)",
        lambda key: (
            key.path[0] == "pipelines" or key.drafted or key.deployment.roles.ends == "draft"
        ),
    ),
    "verifying": (
        "on the device that takes the target's tokens (schedule.ends)",
        lambda key: key.verifying,
    ),
    "host": (
        "where another role or a table of [hosts] names the same host",
        lambda key: len(key.machine.roles) > 1 or key.value in key.scenario.hosts,
    ),
    "crowded": (
        "where several roles name the host",
        lambda key: any(
            each.name == key.path[1] and len(each.roles) > 1
            for each in key.deployment.roles.machines
        ),
    ),
    "workers": (
        "where a draft, a stage or a spare names a worker",
        lambda key: bool(
            key.scenario.faults.spare_workers
            or any(each.worker for each in key.deployment.roles.placed)
        ),
    ),
    # --- models and memory ---
    "described": (
        "of the target, and of a draft where times by layers or memory_mib need its model",
        lambda key: not key.of_drafts or key.needs_profile,
    ),
    "dealt": ("of the target", lambda key: not key.of_drafts),
    "sized": (
        "in a run, and where times by layers, memory_mib or a link's rate need the model",
        lambda key: (
            key.run
            or key.needs_profile
            or (key.rated and not key.of_drafts and key.deployment.roles.row_bytes > 0)
        ),
    ),
    "width": (
        "of a target without a profile, in a simulation in which a link has a rate",
        lambda key: (
            not (key.run or key.of_drafts or key.table.profile or key.timed_by_layers) and key.rated
        ),
    ),
    "limited": (
        "on a machine of known memory_mib",
        lambda key: key.machine.memory_mib is not None,
    ),
    # --- links ---
    "connected": ("where messages go between the two ends", lambda key: key.connected),
    "apart": ("where messages go between hosts that no pair names", lambda key: key.apart),
    "local": (
        "where two roles share a host",
        lambda key: any(len(each.roles) > 1 for each in key.deployment.roles.machines),
    ),
    "occupied": (
        "beside bandwidth_mbit_s, transfer_ms or message_ms",
        lambda key: bool(key.link.bandwidth_mbit_s or key.link.transfer_ms or key.link.message_ms),
    ),
    "rated": ("where a link has bandwidth_mbit_s or transfer_ms", lambda key: key.rated),
    # --- requests ---
    "untraced": (
        "where requests are of no trace (workload.trace)",
        lambda key: key.scenario.workload.trace is None,
    ),
    "traced": (
        "where requests are of a trace (workload.trace)",
        lambda key: key.scenario.workload.trace is not None,
    ),
    "closed loop": (
        "without workload.arrivals and workload.trace",
        lambda key: not key.scenario.workload.arriving,
    ),
    "admission": (
        "where more requests than that can be asked for at once",
        lambda key: key.scenario.serving.by_n_max or key.asked > key.value,
    ),
    "places": (
        "where more requests than that can be open at once on a pipeline",
        lambda key: key.most_served > key.value,
    ),
    "several": ("where several requests are open at once", lambda key: sum(key.most_open) > 1),
    "batch": (
        "where several requests are open on a pipeline that is not in lock-step",
        lambda key: (
            not key.scenario.schedule.system.in_lock_step
            and (key.value == "auto" or max(key.most_open) > 1)
        ),
    ),
    "rivals": (
        "where a draft server serves several pipelines",
        lambda key: len(key.deployment.roles.pipelines) > 1,
    ),
    "deadlines": (
        "beside serving.deadlines_ms",
        lambda key: key.value != "earliest_deadline" or bool(key.table.deadlines_ms),
    ),
}
"""Conditions by name: the words after "it is read only", and a test of a key."""


def unread_warnings(scenario: Scenario, deployment: Deployment, *, run: bool) -> list[str]:
    """Return a warning for each condition that fails, with the keys that were given under it.

    A key that has its default value never causes a warning.

    Args:
        deployment: deployment of the scenario, with its requests.
        run: whether the world is a run rather than a simulation.
    """
    found: dict[str, list[str]] = {}
    for key, words in _unread(Key(scenario, deployment, run), scenario, ()):
        found.setdefault(words, []).append(key)
    return [
        f"key {keys[0]} has no effect: it is read only {words}"
        if len(keys) == 1
        else f"keys {', '.join(keys)} have no effect: they are read only {words}"
        for words, keys in found.items()
    ]


def lacking_warnings(scenario: Scenario) -> list[str]:
    """Return a warning for each missing file or folder that a run of the scenario needs."""
    named = {"target.checkpoint": scenario.target.checkpoint}
    for index, draft in enumerate(scenario.drafts):
        named[f"drafts.{index}.model.checkpoint"] = draft.model.checkpoint
        named[f"drafts.{index}.head"] = draft.head
    prompts = scenario.workload.prompts
    named["workload.prompts"] = None if prompts.startswith(REFERENCE_SET) else prompts
    return [
        f"key {key} = {name!r}: there is no such file or folder, which a run needs"
        for key, name in named.items()
        if name not in (None, "reference") and not (scenario.path.parent / name).exists()
    ]


def _unread(around: Key, table: Section, path: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
    """Yield the unread keys of a table and of its subtables, each with the condition to read it."""
    given = table.model_fields_set
    for name, (default, own) in _conditions(type(table)).items():
        if name not in given or (value := getattr(table, name)) == default:
            continue
        key = Key(around.scenario, around.deployment, around.run, (*path, name), table)
        for each in own:
            if (words := _lacking(key, each)) is not None:
                yield _dotted(key.path), words
                break
        else:
            for inner, place in _tables(value, key.path):
                yield from _unread(around, inner, place)


@cache
def _conditions(model: type[Section]) -> dict[str, tuple[Any, tuple[Beside | ReadIf, ...]]]:
    """Return each key's default, and the conditions under which it is read."""
    return {
        name: (
            field.get_default(),
            tuple(each for each in field.metadata if isinstance(each, Beside | ReadIf)),
        )
        for name, field in model.model_fields.items()
    }


def _lacking(key: Key, condition: Beside | ReadIf) -> str | None:
    """Return the words of the condition that the key fails; None if the key is read."""
    if isinstance(condition, ReadIf):
        words, holds = CONDITIONS[condition.condition]
        return None if holds(key) else words
    if condition.holds(key.link if isinstance(key.table, LinkKeys) else key.table):
        return None
    return condition_words(condition, _dotted((*key.path[:-1], "")))


def condition_words(condition: Beside | ReadIf, table: str = "") -> str:
    """Return the words after "it is read only". Args: ``table``: the table's path with a dot."""
    if isinstance(condition, ReadIf):
        return CONDITIONS[condition.condition][0]
    known = " or ".join(map(repr, condition.values))
    return f"where {table}{condition.key} is {known or 'given'}"


def _tables(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[Section, Any]]:
    """Yield the tables that a key holds, except a schedule's."""
    if isinstance(value, Section) and not isinstance(value, ScheduleSection):
        yield value, path
    elif isinstance(value, tuple | dict):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for name, each in inner:
            if isinstance(each, Section):
                yield each, (*path, name)


def _dotted(path: tuple[str | int, ...]) -> str:
    return ".".join(map(str, path))
