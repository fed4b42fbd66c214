"""The physical devices under the roles: what roles share, and what a device costs to run.

Roles that name the same ``host`` share one machine; every other role has one of its own. The
devices of a machine's roles state its memory, power, price and idle effect, and must agree on them.
Each role has its own times there (``placement.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.reading import suggestion
from treepipe.physics.host import HostTimes
from treepipe.profiles.schema import Device, Hardware
from treepipe.scenario.schema import HostSection


@dataclass(frozen=True, slots=True)
class Machine:
    """A physical device; a value is None where it is unknown.

    Attributes:
        roles: names of the roles that work on it.
        capacity: pieces of work that it does at once; more wait, first come first served.
        idle_factor: (gap in ms, factor on the time of the next work), ascending; empty: no effect.
        read_mib_s: rate at which its roles read their weights.
        runtime_mib: memory that each role's process takes without any model.
        costs: the host's additions to its devices' times in a run that is not emulated, if known.
        power_w: power when idle, and with all of its capacity at work.
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
    read_mib_s: float | None = None

    @property
    def contended(self) -> bool:
        """Whether its roles may have to wait for each other."""
        return self.costs is None and len(self.roles) > self.capacity


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


@dataclass(frozen=True, slots=True)
class Home:
    """A role's place: its device, the host it names, and the device's key in the file."""

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
    """Make one machine per host, and one per role without a host, in the order of the roles.

    Args:
        costs: additions to times by host, where they are known and apply.

    Raises ``UserError``: a host has no role or has a role's name, or its roles' devices differ.
    """
    roles = [home.role for home in homes]
    groups: dict[str, list[Home]] = {}
    for home in homes:
        if home.host in roles:
            raise UserError(f"{path}: a host cannot be called {home.host!r}, a role is called so")
        groups.setdefault(home.host or home.role, []).append(home)
    for name in hosts:
        if name not in groups:
            named = sorted({home.host for home in homes if home.host is not None})
            hint = suggestion(name, named, "hosts named are")
            raise UserError(
                f"{path}: key hosts.{name}: no draft or stage has host = {name!r}; {hint}"
            )
    return tuple(
        _machine(name, group, hosts.get(name, HostSection()), costs.get(name), path)
        for name, group in groups.items()
    )


def _machine(
    name: str, homes: Sequence[Home], host: HostSection, costs: HostTimes | None, path: Path
) -> Machine:
    def agreed(what: str, of: Callable[[Device | Hardware], Any]) -> Any:
        """Return the one value on which the roles' devices agree."""
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
        agreed("read_mib_s", lambda device: device.read_mib_s),
    )
