"""Reading scenario files: TOML, overrides from the command line, and errors in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treepipe.errors import UserError
from treepipe.scenario import Scenario
from treepipe.toml_file import read_toml, toml_value, validated


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read and validate a scenario; ``overrides`` are ``dotted.key=value`` with TOML values.

    Raises:
        UserError: names the file and the key.
    """
    data = read_toml(path)
    for override in overrides:
        _override(data, override)
    return validated(Scenario, data, path)


def _override(data: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text!r}: must look like key=value, e.g. schedule.tree_size=40")
    *parents, last = key.strip().split(".")
    place: Any = data
    for index, name in enumerate(parents):
        try:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        except (ValueError, IndexError):
            place = None
        if not isinstance(place, (dict, list)):
            raise UserError(f"--set {text!r}: {'.'.join(parents[: index + 1])} is not a table")
    try:
        if isinstance(place, list):
            place[int(last)] = toml_value(value)
        else:
            place[last] = toml_value(value)
    except (ValueError, IndexError):
        raise UserError(f"--set {text!r}: {last!r} is no index of the list") from None
