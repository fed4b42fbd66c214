"""What-if factors on inputs (the table ``[scale]``), and which inputs are estimates.

Invariant: every factor names something that the scenario has, and 1 changes nothing.
``planner/drawn.py`` and ``planner/sensitivity.py`` multiply such factors to vary inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import inf
from typing import Any, Literal, NamedTuple, TypeAlias

from treepipe.core.errors import UserError
from treepipe.physics.timing import LinkTimes
from treepipe.profiles.hit_ratio import at_depth, depths_of
from treepipe.profiles.library import profile_name
from treepipe.profiles.schema import AnyDevice, AnyLink, Peaks
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import HIT_RATIOS, Bernoulli, Links, Replay, ScaleSection

Kind: TypeAlias = Literal["device", "link", "model", "acceptance", "rows"]


class Estimated(NamedTuple):
    """An input that is an estimate: a profile or a roofline by its name, the scenario's acceptance,
    or the times of passes over rows that nobody measured."""

    kind: Kind
    name: str = ""

    def __str__(self) -> str:
        kind = "unmeasured rows" if self.kind == "rows" else self.kind
        return f"{kind} {self.name}".rstrip()


def check_scale(scenario: Scenario, roles: Collection[str]) -> None:
    """Raise ``UserError`` if a factor names something that the scenario does not have."""
    for role in scenario.scale.roles:
        if role not in roles:
            raise UserError(
                f"{scenario.path}: key scale.roles.{role}: there is no such role; there are "
                f"{', '.join(sorted(roles))}"
            )
    links = {profile_name(link) for link in named_links(scenario.links).values()}
    known_links = sorted(name for name in links if name is not None)
    for key, known in (("devices", named_devices(scenario)), ("links", known_links)):
        for name in getattr(scenario.scale, key):
            if name not in known:
                raise UserError(
                    f"{scenario.path}: key scale.{key}.{name}: the scenario names no such profile; "
                    f"it names {', '.join(known) or 'none'}"
                )
    if scenario.scale.misses != 1 and isinstance(scenario.acceptance, Replay):
        raise UserError(
            f"{scenario.path}: key scale.misses does not apply to acceptance.source = 'replay', "
            f"whose texts are as they were"
        )


def multiplied(scale: ScaleSection, factors: Mapping[str, float]) -> dict[str, Any]:
    """Return the table multiplied by more factors, by key in it.

    >>> own = ScaleSection(stages=2.0, devices={"l40": 3.0})
    >>> multiplied(own, {"stages": 1.1, "devices.l40": 2.0, "devices.a100": 1.1})
    {'stages': 2.2, 'devices': {'l40': 6.0, 'a100': 1.1}}
    """
    table: dict[str, Any] = scale.model_dump(exclude_unset=True)
    for key, factor in factors.items():
        name, _, of = key.partition(".")
        if of:
            mine = table.setdefault(name, {})
            mine[of] = mine.get(of, 1.0) * factor
        else:
            table[name] = getattr(scale, name) * factor
    return table


def device_name(device: AnyDevice) -> str | None:
    """Return a device's profile, or words for a roofline that a scenario writes itself; None if it
    writes times."""
    if isinstance(device, Peaks):
        return f"roofline {device.roofline.memory_gb_s:.0f} GB/s"
    return profile_name(device)


def named_devices(scenario: Scenario) -> list[str]:
    """Return every device that the scenario names, or writes as a roofline, sorted."""
    names = {device_name(device) for _, device in written_devices(scenario)}
    return sorted(name for name in names if name is not None)


def device_factor(
    scale: ScaleSection, kind: Literal["stages", "drafts"], role: str, of: AnyDevice
) -> float:
    """Return the factor on a role's times."""
    every = scale.stages if kind == "stages" else scale.drafts
    return every * scale.devices.get(device_name(of) or "", 1.0) * scale.roles.get(role, 1.0)


def scaled_link(scale: ScaleSection, link: AnyLink, times: LinkTimes) -> LinkTimes:
    """Return a link's scaled times; a factor on a link profile slows all of it down."""
    slower = scale.links.get(profile_name(link) or "", 1.0)
    return times.scaled(scale.latency * slower, scale.bandwidth / slower)


def scaled_hits(
    scenario: Scenario, table: Mapping[int, float | Sequence[float]]
) -> dict[int, tuple[float, ...]]:
    """Return hit ratios by depth, by number of candidates, with ``scale.misses`` times the share of
    misses, at most all; ``UserError`` where that leaves no hit anywhere."""
    factor, depths = scenario.scale.misses, range(depths_of(table))
    hits = {k: tuple(at_depth(shares, n) for n in depths) for k, shares in table.items()}
    if factor == 1:
        return hits
    found = {k: tuple(max(0.0, 1 - factor * (1 - p)) for p in own) for k, own in hits.items()}
    if not any(map(any, found.values())):
        k, hit = max(((k, max(own)) for k, own in hits.items()), key=lambda item: item[1])
        raise UserError(
            f"{scenario.path}: key scale.misses = {factor:g}: a hit ratio of {hit:.3g} (k = {k}) "
            f"leaves no room for so many misses"
        )
    return found


def most_misses(scenario: Scenario) -> float:
    """Return the bound below which a further factor on the misses leaves hits at a round's first
    token; infinite where a pool's passages bound it."""
    acceptance, most = scenario.acceptance, 1.0
    if isinstance(acceptance, Bernoulli):
        most = acceptance.beta
    elif isinstance(acceptance, HIT_RATIOS):
        most = max(at_depth(shares, 0) for shares in acceptance.table.values())
    return 1 / (scenario.scale.misses * (1 - most)) if most < 1 else inf


def named_links(links: Links) -> dict[str, AnyLink]:
    """Return every link that a scenario writes, by its key."""
    named: dict[str, AnyLink] = {"links.default": links.default, "links.local": links.local}
    return named | {f"links.pairs.{index}": pair.link for index, pair in enumerate(links.pairs)}


def written_devices(scenario: Scenario) -> Iterator[tuple[str, AnyDevice]]:
    """Yield every device that a scenario writes, with its key."""
    for index, draft in enumerate(scenario.drafts):
        yield f"drafts.{index}.device", draft.device
    for index, pipeline in enumerate(scenario.pipelines):
        for place, stage in enumerate(pipeline.stages):
            yield f"pipelines.{index}.stages.{place}.device", stage.device
