"""The columns of a sweep's files: every key of its scenarios by its dotted name, with one type.

Invariant: all files of a sweep have the same columns, which its file alone determines; so they read
as one table, whatever was refused and wherever a sweep was interrupted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from treepipe.sweeps.grid import Sweep

Kind: TypeAlias = Literal["bool", "int64", "double", "string"]
LARGEST = 2**63


@dataclasses.dataclass(frozen=True)
class KeyColumns:
    """The columns of keys.

    Attributes:
        kinds: types by key.
        defaults: values of keys that no scenario of the sweep gives, the same for all.
    """

    kinds: Mapping[str, Kind]
    defaults: Mapping[str, Any]

    @classmethod
    def of(cls, sweep: Sweep) -> KeyColumns:
        """Collect the keys that a scenario of the sweep gives, and all other defaults."""
        seen: dict[str, list[Any]] = {}
        for content in sweep.variants():
            for key, value in leaves(content):
                seen.setdefault(key, []).append(value)
        for key, values in sweep.section.grid.items():
            seen[key] = [*seen.get(key, []), *(v for v in values if isinstance(v, (int, float)))]
        for key, samples in sweep.hypercube.items():
            seen[key] = samples
        given = {key: values for key, values in seen.items() if values}
        defaults = _defaults(sweep, given)
        kinds = {key: _kind(values) for key, values in given.items()}
        kinds |= {key: _kind([value]) for key, value in defaults.items()}
        return cls(kinds, defaults)

    def row(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of one scenario, without the keys that it lacks."""
        found = {**self.defaults, **dict(leaves(content))}
        return {key: _cell(value, self.kinds[key]) for key, value in found.items()}


def leaves(content: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the keys of tables, and of lists of tables, dotted, with values that contain no tables.

    >>> list(leaves({"drafts": [{"device": "l40"}], "schedule": {"name": "pp"}, "faults": []}))
    [('drafts.0.device', 'l40'), ('schedule.name', 'pp'), ('faults', [])]
    """
    if isinstance(content, Mapping) and content:
        inside: Iterable[tuple[Any, Any]] = content.items()
    elif isinstance(content, (list, tuple)) and any(isinstance(v, Mapping) for v in content):
        inside = enumerate(content)
    else:
        yield prefix, content
        return
    for key, value in inside:
        yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))


def _defaults(sweep: Sweep, given: Iterable[str]) -> dict[str, Any]:
    """Return the defaults of keys that no scenario gives, except keys that depend on a varied one
    and keys of devices, whose meaning depends on the role."""
    scenario = sweep.first
    dump = scenario.model_dump(mode="json", exclude_none=True)
    varied, stated = [*sweep.section.keys], {*given}
    if not {"schedule", "schedule.name"} & {*varied}:
        dump["schedule"] |= dataclasses.asdict(scenario.schedule.parameters)
    own = {key for key, _ in leaves(scenario.model_dump(mode="json", exclude_unset=True))}
    found = {}
    for key, value in leaves(dump):
        inside_of_varied = any(_holds(each, key) for each in varied)
        of_no_use = value is None or value in ([], {}) or ".device." in key
        if key in own or inside_of_varied or of_no_use:
            continue
        if not any(_holds(each, key) or _holds(key, each) for each in stated):
            found[key] = value
    return found


def _holds(table: str, key: str) -> bool:
    return f"{key}.".startswith(f"{table}.")


def _kind(values: Sequence[Any]) -> Kind:
    """Return the one type that holds all values.

    >>> _kind([1, 2]), _kind([1, 0.5]), _kind([True, False]), _kind([1, "auto"])
    ('int64', 'double', 'bool', 'string')
    """
    types = {type(value) for value in values}
    if types == {bool}:
        return "bool"
    if types == {int} and all(-LARGEST <= value < LARGEST for value in values):
        return "int64"
    return "double" if types <= {int, float} else "string"


def _cell(value: Any, kind: Kind) -> Any:
    """Convert a value to its column's type; in a text column, other values are written as JSON."""
    if kind == "double":
        return float(value)
    if kind == "string" and not isinstance(value, str):
        return json.dumps(value, default=str)
    return value
