"""Placement of roles on devices: layers are assigned to stages and times are resolved.

A device states either a role's whole times or the cost of a layer; the latter requires a known
model (``profiles/service.py``). ``Placement`` records which assumptions the times rest on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeVar

from treepipe.core.drafter import EAGLE3_HEAD, BlockKeys, Weights
from treepipe.core.errors import UserError
from treepipe.core.system import Ends
from treepipe.core.tree import split
from treepipe.core.verification import RULES
from treepipe.files.reading import read_json, suggestion
from treepipe.physics.timing import DeviceTimes, Factor, HostTimes, TimeTable
from treepipe.profiles.library import (
    checkpoint_directory,
    find_host,
    find_model,
    load_model,
    profile_name,
    resolve_device,
    shape_of,
)
from treepipe.profiles.schema import (
    AnyDevice,
    Device,
    DeviceProfile,
    EmulatedProfile,
    Hardware,
    HostProfile,
    Origin,
)
from treepipe.profiles.service import Remark, ServedModel, ServiceTimes, told
from treepipe.profiles.shapes import BYTES, compute_dtype
from treepipe.scenario.deployment import (
    FULL,
    Compute,
    Computed,
    Footprint,
    Machine,
    Placed,
    Roles,
    computed_in,
)
from treepipe.scenario.scale import Estimated, device_factor, device_name, written_devices
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import check_schedule, ends_of
from treepipe.scenario.schema import DraftSection, HostSection, Model, Pipeline, Stage

Counted = TypeVar("Counted", DraftSection, Pipeline, Stage)

NO_WORK = TimeTable({1: 0.0})
"""Times of work that a role never does."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The roles of a scenario on their devices.

    Attributes:
        target: the target's sizes, from a profile or a checkpoint's ``config.json``; None where
            nothing needs them.
        warnings: sentences about models and assumptions behind the times, each naming all devices.
        estimates: relative uncertainty of each named profile that states one.
        hosts: profiles of the hosts that have one.
    """

    roles: Roles
    target: ServedModel | None
    warnings: tuple[str, ...]
    estimates: Mapping[Estimated, float]
    hosts: Mapping[str, HostProfile]


def _copies(sections: Sequence[Counted]) -> Iterator[tuple[int, Counted]]:
    """Yield each section ``count`` times, with its index in the file."""
    return ((index, each) for index, each in enumerate(sections) for _ in range(each.count))


READ: Mapping[str, Any] = {
    **dict.fromkeys(("target", "drafts", "pipelines", "hosts", "sampling", "schedule"), True),
    "scale": {"stages", "drafts", "devices", "roles", "rows"},
    "emulate": True,
}
"""All keys of a scenario that ``place`` reads (``Scenario.said``)."""


@dataclass(frozen=True, slots=True)
class OpenedTarget:
    """The target's sizes in an opened checkpoint, which override those of the scenario."""

    layers: int
    row_bytes: int
    footprint: Footprint
    dtype: Computed


def place(scenario: Scenario, opened: OpenedTarget | None = None) -> Placement:
    """Place a scenario's roles on their devices.

    Raises ``UserError``: a device, a host or a model is wrong or missing, or the schedule's
    parameters contradict each other or the cluster.
    """
    check_schedule(scenario)
    ends = ends_of(scenario)
    placing = _Placing(scenario, ends, None if opened is None else opened.layers)
    drafts = [
        placing.draft(draft, f"draft{number}", f"drafts.{index}")
        for number, (index, draft) in enumerate(_copies(scenario.drafts))
    ]
    pipelines = [
        placing.stages(pipeline, f"pipeline{number}", f"pipelines.{index}")
        for number, (index, pipeline) in enumerate(_copies(scenario.pipelines))
    ]
    roles = Roles(
        tuple(role.placed for role in drafts),
        tuple(tuple(role.placed for role in stages) for stages in pipelines),
        _machines(
            scenario,
            [*drafts, *chain.from_iterable(pipelines)],
            {name: host_times(profile) for name, profile in placing.hosts.items()},
        ),
        ends,
        _captured(scenario, max([stages[-1].placed.layers.stop for stages in pipelines])),
        placing.row_bytes if opened is None else opened.row_bytes,
        FULL if opened is None else opened.dtype,
        placing.footprint() if opened is None else opened.footprint,
        draft_footprints={r.placed.name: r.footprint for r in drafts if r.footprint is not None},
        shared_footprints={
            role.placed.name: part
            for role in chain.from_iterable(pipelines)
            if role.placed.tensor > 1 and (part := placing.footprint(role.placed.tensor))
        },
    )
    warnings = tuple(placing.warnings)
    return Placement(roles, placing.target, warnings, placing.estimates, placing.hosts)


def _captured(scenario: Scenario, layers: int) -> tuple[int, ...]:
    """Return the boundaries of the target that the drafts read. Raises ``UserError``: two of them
    read different ones, or one asks for a boundary that there is not."""
    found = dict[tuple[int, ...], int]()
    for index, draft in enumerate(scenario.drafts):
        try:
            captured = draft.drafter.captured(
                draft.parameters, partial(_config, scenario, index), layers
            )
        except ValueError as fault:
            raise UserError(f"{scenario.path}: key drafts.{index}.{fault}") from None
        if captured:
            found.setdefault(captured, index)
    if len(found) > 1:
        (one, first), (other, second) = [*found.items()][:2]
        raise UserError(
            f"{scenario.path}: keys drafts.{first} and drafts.{second} read different states "
            f"of the target: {one} and {other}"
        )
    return next(iter(found), ())


def _config(scenario: Scenario, index: int) -> Mapping[str, Any]:
    """Read the ``config.json`` of a draft's checkpoint; empty if the scenario names none."""
    draft, base = scenario.drafts[index], scenario.path.parent
    if draft.checkpoint is None or draft.drafter.weights is None:
        return {}
    found = checkpoint_directory(draft.checkpoint, draft.drafter.weights.reference, base)
    return read_json(found / "config.json")


@dataclass(frozen=True, slots=True)
class _Role:
    """A role with its times, its device, the host and the key of its section, and (for a draft
    server) its model's size."""

    placed: Placed
    device: Device | Hardware
    host: str | None
    key: str
    footprint: tuple[Footprint, int] | None = None


class _Placing:
    """State of one placement: each profile is read once, and each warning is given once."""

    def __init__(self, scenario: Scenario, ends: Ends, layers: int | None) -> None:
        self._scenario, self._path, self._ends = scenario, scenario.path, ends
        self.estimates: dict[Estimated, float] = {}
        self._stated = set[Estimated]()
        self.hosts = host_profiles(scenario)
        self._remarks: list[Remark] = []
        self._caveats: dict[str, None] = {}
        self._services: dict[str, ServiceTimes] = {}
        self._stages_known: dict[tuple[str, int, int], TimeTable] = {}
        self.target: ServedModel | None = None
        if scenario.target.profile is not None or self._names_hardware():
            self.target = self._model(scenario.target, "target", "target")
        self._layers = self._all_layers(layers)

    @property
    def warnings(self) -> list[str]:
        """Sentences about models' sizes, and about assumptions behind the times, each naming all
        its devices."""
        return [
            *self._caveats,
            *(
                f"device{'s' * (len(names) > 1)} {', '.join(names)}: {sentence}"
                for names, sentence in told(self._remarks)
            ),
        ]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of hidden states; 0 if the target's width is unknown."""
        if self.target is not None:
            return self.target.shape.row_bytes(self.target.dtype)
        section = self._scenario.target
        width = section.hidden_size
        if (
            width is None
            and (model := self._model(section, "target", "target", tell=False)) is not None
        ):
            width = model.shape.hidden_size
        return round(BYTES[compute_dtype(section.dtype or FULL)] * (width or 0))

    def footprint(self, devices: int = 1) -> Footprint | None:
        """Return the target's footprint on one of so many devices that share its layers; None if
        its size is unknown."""
        if self.target is None:
            return None
        return Footprint.of_shape(self.target.shared(devices).shape, self.target.dtype)

    def draft(self, draft: DraftSection, role: str, key: str) -> _Role:
        """Place a draft server. Args: ``role``: its name; ``key``: key of its section."""
        device = self._device(draft.device, f"{key}.device")
        if isinstance(device, Device):
            times = _device_times(device)
        else:
            times = self._draft_times(device, draft, key)
        keys = draft.parameters
        placed = Placed(
            role,
            self._in_place(times, "drafts", role, draft),
            compute=_compute(device, draft.model),
            worker=draft.worker,
            block=keys.block if isinstance(keys, BlockKeys) else 0,
            agreement=draft.agreement,
        )
        footprint = self._draft_footprint(draft, device, key)
        return _Role(placed, device, draft.host, key, footprint)

    def stages(self, pipeline: Pipeline, name: str, key: str) -> list[_Role]:
        """Place a pipeline's stages. Args: ``name``: this copy's name; ``key``: of its section."""
        sections = list(_copies(pipeline.stages))
        given = [stage.layers for _, stage in sections]
        counts = _deal_layers(given, self._layers, f"{self._path}: key {key}")
        roles, first = list[_Role](), 0
        for number, ((index, stage), count) in enumerate(zip(sections, counts, strict=True), 1):
            at, role = f"{key}.stages.{index}.device", f"{name}.stage{number}"
            device, target = self._device(stage.device, at), self._scenario.target
            if isinstance(device, Device):
                if stage.tensor > 1:
                    raise UserError(
                        f"{self._path}: key {key}.stages.{index}.tensor = {stage.tensor} needs a "
                        f"device that says what a layer costs, not stage_ms of a whole stage"
                    )
                times = _device_times(device)
            else:
                verifies = number == len(sections) and self._ends == "pipeline"
                times = self._stage_times(device, stage, at, count, verifies)
            times = self._in_place(times, "stages", role, stage)
            layers = range(first, first + count)
            compute = _compute(device, target)
            placed = Placed(role, times, layers, compute, stage.worker, tensor=stage.tensor)
            roles.append(_Role(placed, device, stage.host, f"{key}.stages.{index}"))
            first += count
        return roles

    def _in_place(
        self,
        times: DeviceTimes,
        kind: Literal["stages", "drafts"],
        role: str,
        section: DraftSection | Stage,
    ) -> DeviceTimes:
        """Return a role's times as they are in its process on its host, with ``[scale]``."""
        scale, profile = self._scenario.scale, self.hosts.get(section.host or "")
        if profile is not None:
            times = replace(
                times,
                stage=Factor(profile.stage_factor).over(times.stage),
                draft=Factor(profile.draft_factor).over(times.draft),
                evaluate=Factor(profile.evaluate_factor).over(times.evaluate),
                # Measured on passes with committed tokens too, this factor includes their savings.
                project=None if profile.draft_factor else times.project,
            )
        return times.grown(scale.rows).scaled(device_factor(scale, kind, role, section.device))

    def _stage_times(
        self, hardware: Hardware, section: Stage, key: str, layers: int, verifies: bool
    ) -> DeviceTimes:
        """Return a stage's times, of one that several devices share without what they exchange.
        Args: ``verifies``: it also verifies tokens."""
        named, tensor = section.device, section.tensor
        service = self._service(hardware, named, key)
        known = (named if isinstance(named, str) else key, layers, tensor)
        target = self._known_target(key).shared(tensor)
        if known not in self._stages_known:
            self._stages_known[known] = service.stage(target, layers)
        stage, evaluation = self._stages_known[known], NO_WORK
        if verifies:
            evaluation = service.evaluation(target)
        self._note_unmeasured(named, service)
        times = DeviceTimes(stage, NO_WORK, evaluation, hardware.decide_ms, hardware.prune_ms)
        return self._sampled(times, service, key) if verifies else times

    def _sampled(self, times: DeviceTimes, service: ServiceTimes, key: str) -> DeviceTimes:
        """Add what the scenario's rule takes at a role that chooses tokens or draws candidates."""
        section = self._scenario.sampling
        if section.greedy:
            return times
        truncated = section.top_k > 0 or section.top_p < 1
        found = service.sampling(self._known_target(key), section.rule, truncated)
        if found is None:
            return times
        drawn = None if found.draw_ms is None else TimeTable(found.draw_ms)
        return replace(times, judge=found.judge_ms, draw=drawn)

    def _draft_times(self, hardware: Hardware, draft: DraftSection, key: str) -> DeviceTimes:
        service = self._service(hardware, draft.device, f"{key}.device")
        target = self._known_target(f"{key}.device")
        passes, project = NO_WORK, None
        if draft.drafter.weights is not None:
            model = self._draft_model(draft, draft.drafter.weights, key)
            borrowed = target.shape if model.shape.eagle else None
            passes = service.draft(model, borrowed)
            project = service.projection(model, borrowed)
        evaluation = service.evaluation(target, embeds=True) if self._ends == "draft" else NO_WORK
        self._note_unmeasured(draft.device, service)
        decide, prune = hardware.decide_ms, hardware.prune_ms
        times = DeviceTimes(NO_WORK, passes, evaluation, decide, prune, project)
        drafts = self._scenario.schedule.system.drafts
        draws = drafts and RULES[self._scenario.sampling.rule].needs_draft
        if draws or self._ends == "draft":
            times = self._sampled(times, service, f"{key}.device")
        return times

    def _draft_footprint(
        self, draft: DraftSection, device: Device | Hardware, key: str
    ) -> tuple[Footprint, int] | None:
        if draft.drafter.weights is None:
            return Footprint(0.0, 0.0), 0
        if draft.model.profile is None and not isinstance(device, Hardware):
            return None
        model = self._draft_model(draft, draft.drafter.weights, key)
        return Footprint.of_shape(model.shape, model.dtype), model.shape.layers

    def _service(self, hardware: Hardware, named: AnyDevice, key: str) -> ServiceTimes:
        """Return a device's service times, cached so that it warns once."""
        device = named if isinstance(named, str) else key
        if device not in self._services:
            name = device_name(named) or device
            self._services[device] = ServiceTimes(name, hardware, shape_of, self._remarks)
        return self._services[device]

    def _device(self, device: AnyDevice, key: str) -> Device | Hardware:
        found = resolve_device(device, f"{self._path}: key {key}", self._path.parent)
        name = profile_name(device)
        if name is not None and isinstance(found, DeviceProfile | EmulatedProfile):
            self._note_estimate(Estimated("device", name), found.origin)
        return found

    def _note_estimate(self, of: Estimated, origin: Origin) -> None:
        if origin.uncertainty is not None:
            self.estimates[of] = origin.uncertainty
            self._stated.add(of)

    def _note_unmeasured(self, named: AnyDevice, service: ServiceTimes) -> None:
        """Note the default uncertainty of times that nothing supports and no profile states."""
        name = device_name(named)
        if service.uncertainty is None or name is None:
            return
        of = Estimated("device", name)
        if of not in self._stated:
            self.estimates[of] = max(service.uncertainty, self.estimates.get(of, 0.0))

    def _names_hardware(self) -> bool:
        """Return whether any device states the cost of a layer, so that models must be known."""
        written = written_devices(self._scenario)
        return any(isinstance(self._device(device, key), Hardware) for key, device in written)

    def _known_target(self, key: str) -> ServedModel:
        if self.target is None:
            raise self._unknown("target.profile", key)
        return self.target

    def _draft_model(self, draft: DraftSection, weights: Weights, key: str) -> ServedModel:
        section = draft.model.model_copy(update={"checkpoint": draft.checkpoint})
        if draft.drafter.in_turn and draft.model.profile is None and self.target is not None:
            return self.target.mtp_head
        model = self._model(section, f"{key}.model", weights.reference)
        if model is None:
            raise self._unknown(f"{key}.model.profile", f"{key}.device")
        # A head's config.json looks like a language model's.
        shape = model.shape
        if weights == EAGLE3_HEAD:
            shape = shape.model_copy(update={"inputs": shape.inputs or 3})
        elif draft.drafter.borrows:
            shape = shape.model_copy(update={"eagle": True})
        return ServedModel(model.name, shape, model.dtype)

    def _unknown(self, key: str, device: str) -> UserError:
        return UserError(
            f"{self._path}: key {key} is missing; {device} says what a layer costs, so the "
            f"model must be known"
        )

    def _model(self, section: Model, key: str, role: str, tell: bool = True) -> ServedModel | None:
        """Return a model from its profile, else its checkpoint's ``config.json``, else None.

        Args: ``tell``: warn of what is counted otherwise than it is.
        """
        base, name = self._path.parent, section.profile
        if name is not None:
            profile = find_model(name, f"{self._path}: key {key}.profile", base)
            self._note_estimate(Estimated("model", name), profile.origin)
            dtype = section.dtype or profile.dtype
            if dtype != profile.dtype:
                profile = profile.model_copy(update={"bits": None})
        elif section.checkpoint is not None:
            name, dtype = section.checkpoint, section.dtype or FULL  # as a run computes
            profile = load_model(checkpoint_directory(name, role, base) / "config.json")
        else:
            return None
        known = section.profile is None or section.dtype is not None
        for said, caveat in profile.caveats.items() if tell else ():
            if not (known and said == "dtype"):
                self._caveats[f"model {name}: key {caveat}"] = None
        return ServedModel(name, profile, dtype)

    def _all_layers(self, opened: int | None) -> int | None:
        """Return the target's number of layers; ``UserError`` if two sources disagree."""
        given = self._scenario.target.layers
        if opened is not None and given is not None and given != opened:
            raise UserError(
                f"{self._path}: key target.layers = {given}, but the checkpoint has {opened} layers"
            )
        known = opened if opened is not None else given
        if self.target is None:
            return known
        layers = self.target.shape.layers
        if known is not None and known != layers:
            where = "the checkpoint" if opened is not None else "key target.layers"
            raise UserError(
                f"{self._path}: key target.profile = {self.target.name!r} has {layers} layers, "
                f"but {where} says {known}"
            )
        return layers


def host_profiles(scenario: Scenario) -> dict[str, HostProfile]:
    """Read the profiles of the scenario's hosts, which emulation does without; raises ``UserError``
    if one is missing."""
    return {
        name: find_host(
            host.profile, f"{scenario.path}: key hosts.{name}.profile", scenario.path.parent
        )
        for name, host in scenario.hosts.items()
        if host.profile is not None and not scenario.emulate
    }


def _machines(
    scenario: Scenario, roles: Sequence[_Role], costs: Mapping[str, HostTimes]
) -> tuple[Machine, ...]:
    """Make one machine per host, and one per role without a host, in the order of the roles.

    Args:
        costs: additions to times by host, where they are known and apply.

    Raises ``UserError``: a host has no role or has a role's name, or its roles' devices differ.
    """
    path, hosts, names = scenario.path, scenario.hosts, [each.placed.name for each in roles]
    groups: dict[str, list[_Role]] = {}
    for each in roles:
        if each.host in names:
            raise UserError(f"{path}: a host cannot be called {each.host!r}, a role is called so")
        groups.setdefault(each.host or each.placed.name, []).append(each)
    for name in hosts:
        if name not in groups:
            named = sorted({each.host for each in roles if each.host is not None})
            hint = suggestion(name, named, "hosts named are")
            raise UserError(
                f"{path}: key hosts.{name}: no draft or stage has host = {name!r}; {hint}"
            )
    return tuple(
        _machine(name, group, hosts.get(name, HostSection()), costs.get(name), path)
        for name, group in groups.items()
    )


def _machine(
    name: str, roles: Sequence[_Role], host: HostSection, costs: HostTimes | None, path: Path
) -> Machine:
    def agreed(what: str, of: Callable[[Device | Hardware], Any]) -> Any:
        """Return the one value on which the roles' devices agree."""
        given = [(of(each.device), each.key) for each in roles if of(each.device) is not None]
        for value, key in given[1:]:
            if value != given[0][0]:
                raise UserError(
                    f"{path}: key {given[0][1]} and key {key} are on host {name!r}, but their "
                    f"devices give a different {what}"
                )
        return given[0][0] if given else None

    power = agreed("power", lambda device: device.power)
    devices = max(each.placed.tensor for each in roles)
    price = agreed("price_usd_per_hour", lambda device: device.price_usd_per_hour)
    idle = agreed("idle_factor", lambda device: device.idle_factor)
    return Machine(
        name,
        tuple(each.placed.name for each in roles),
        host.capacity if costs is None else len(roles),
        agreed("memory_mib", lambda device: device.memory_mib),
        tuple(sorted(idle.items())) if idle else (),
        None if power is None else (devices * power.idle_w, devices * power.busy_w),
        None if price is None else devices * price,
        agreed("runtime_mib", lambda device: device.runtime_mib) or 0.0,
        costs,
        agreed("read_mib_s", lambda device: device.read_mib_s),
    )


def _device_times(device: Device) -> DeviceTimes:
    """Return the times of a device that states those of a whole role, whatever its model."""
    return DeviceTimes(
        TimeTable(device.stage_ms),
        TimeTable(device.draft_ms),
        TimeTable(device.evaluate_ms),
        device.decide_ms,
        device.prune_ms,
    )


def host_times(profile: HostProfile) -> HostTimes:
    """Return the part of a host's profile that concerns the host rather than a device."""
    return HostTimes(
        TimeTable(profile.send_ms),
        TimeTable(profile.receive_ms),
        profile.wake_ms,
        TimeTable(profile.desk_ms),
        Factor(profile.together),
        profile.variation,
        Factor(profile.draft_cold),
        profile.look_ms,
        profile.gauge_ms,
        profile.processors or inf,
        profile.turn_ms or inf,
        profile.company,
        profile.fit.company if profile.fit else 0.0,
    )


def _deal_layers(given: list[int | None], total: int | None, pipeline: str) -> list[int]:
    """Return the layers per stage: as given, the rest split evenly, larger shares last."""
    key = f"{pipeline}.stages"
    fixed = sum(count for count in given if count is not None)
    open_stages = given.count(None)
    if total is None:
        total = fixed + open_stages
    if fixed > total or (not open_stages and fixed != total):
        raise UserError(f"{key}: the stages' layers add up to {fixed}, the target has {total}")
    if open_stages > total - fixed:
        raise UserError(
            f"{key}: {total - fixed} layers are left for {open_stages} stages without a number; "
            f"every stage needs at least one"
        )
    shares = iter(split(total - fixed, open_stages, total) if open_stages else [])
    return [next(shares) if count is None else count for count in given]


def _compute(device: Device | Hardware, model: Model) -> Compute:
    """Return the processor and types that a role on a device computes a model with."""
    dtype, graphs = computed_in(model.dtype), device.graphs == "auto"
    return Compute(device.kind, device.index, device.threads, dtype, graphs)
