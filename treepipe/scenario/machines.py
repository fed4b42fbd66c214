"""The physical device under one role or under several: what they share, and what it costs to run.

Roles that name the same ``host`` share one machine; every other role has one of its own. What a
machine has (memory, power, price, idle effect) is said by the devices of its roles, which must
agree: how long a role's work takes there is the role's own matter (``placement.py``).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.physics.host import HostTimes
from treepipe.profiles.schema import Device, Hardware
from treepipe.scenario.schema import HostSection


@dataclass(frozen=True, slots=True)
class Machine:
    """A physical device; values are None where nothing says them.

    Attributes:
        roles: names of those that work on it.
        capacity: pieces of work that it does at once; more wait, first come first served.
        idle_factor: (gap in ms, factor on the time of work behind it), ascending; empty: no effect.
        runtime_mib: of its memory, what each role's process takes without any model.
        costs: what it adds to its devices' times in a run that is not emulated, if that is known.
        power_w: when nothing works, and when all of its capacity does.
    """

    name: str
    roles: tuple[str, ...]
    capacity: int = 1
    memory_mib: float | None = None
    idle_factor: tuple[tuple[float, float], ...] = ()
    power_w: tuple[float, float] | None = None
    usd_per_hour: float | None = None
    runtime_mib: float = 0.0
    costs: HostTimes | None = None

    @property
    def contended(self) -> bool:
        """Whether its roles may have to wait for each other."""
        return self.costs is None and len(self.roles) > self.capacity


def running_warnings(machines: Sequence[Machine]) -> list[str]:
    """Warnings where energy or price is known of some machines only, so that it has no sum."""
    found = []
    for metric, key, known in (
        ("joules_per_token", "power", [m.power_w is not None for m in machines]),
        ("usd_per_million_tokens", "price_usd_per_hour", [bool(m.usd_per_hour) for m in machines]),
    ):
        lacking = [m.name for m, each in zip(machines, known, strict=True) if not each]
        if any(known) and lacking:
            found.append(f"{metric} is left out: no key {key} for {', '.join(lacking)}")
    return found


@dataclass(frozen=True, slots=True)
class Home:
    """Where a role works: its device, the host it names, and the device's key in the file."""

    role: str
    device: Device | Hardware
    host: str | None
    key: str


def make_machines(
    homes: Sequence[Home],
    hosts: Mapping[str, HostSection],
    costs: Mapping[str, HostTimes],
    path: Path,
) -> tuple[Machine, ...]:
    """One per host, and one per role that names none, in the order of the roles.

    Args:
        costs: by host, where they are known and count.

    Raises:
        UserError: a host has no role, or a role's name, or its roles' devices differ.
    """
    roles = [home.role for home in homes]
    groups: dict[str, list[Home]] = {}
    for home in homes:
        if home.host in roles:
            raise UserError(f"{path}: a host cannot be called {home.host!r}, a role is called so")
        groups.setdefault(home.host or home.role, []).append(home)
    for name in hosts:
        if name not in groups:
            raise UserError(f"{path}: key hosts.{name}: {_nobody(name, homes)}")
    return tuple(
        _machine(name, group, hosts.get(name, HostSection()), costs.get(name), path)
        for name, group in groups.items()
    )


def _nobody(name: str, homes: Sequence[Home]) -> str:
    named = sorted({home.host for home in homes if home.host is not None})
    near = difflib.get_close_matches(name, named, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"hosts named are {', '.join(named) or 'none'}"
    return f"no draft or stage has host = {name!r}; {hint}"


def _machine(
    name: str, homes: Sequence[Home], host: HostSection, costs: HostTimes | None, path: Path
) -> Machine:
    def agreed(what: str, of: Callable[[Device | Hardware], Any]) -> Any:
        """The one value that the roles' devices give."""
        given = [(of(home.device), home) for home in homes if of(home.device) is not None]
        for value, home in given[1:]:
            if value != given[0][0]:
                raise UserError(
                    f"{path}: {given[0][1].key} and {home.key} are on host {name!r}, but their "
                    f"devices give a different {what}"
                )
        return given[0][0] if given else None

    power = agreed("power", lambda device: device.power)
    idle = agreed("idle_factor", lambda device: device.idle_factor)
    return Machine(
        name,
        tuple(home.role for home in homes),
        host.capacity if costs is None else len(homes),
        agreed("memory_mib", lambda device: device.memory_mib),
        tuple(sorted(idle.items())) if idle else (),
        None if power is None else (power.idle_w, power.busy_w),
        agreed("price_usd_per_hour", lambda device: device.price_usd_per_hour),
        agreed("runtime_mib", lambda device: device.runtime_mib) or 0.0,
        costs,
    )
