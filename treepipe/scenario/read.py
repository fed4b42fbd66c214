"""Reading scenario files: TOML, overrides from the command line, and errors in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.toml_file import read_toml, toml_value, validated
from treepipe.profiles.library import find_acceptance
from treepipe.scenario.schema import Scenario


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read and validate a scenario; ``overrides`` are ``dotted.key=value`` with TOML values.

    Raises:
        UserError: names the file and the key.
    """
    data = read_toml(path)
    if "search" in data:
        raise UserError(
            f"{path}: is a cluster file (it has a table [search]), not a scenario; treepipe plan "
            f"takes it, and writes its best plan as a scenario"
        )
    for override in overrides:
        override_key(data, override)
    take_acceptance(data, path)
    return validated(Scenario, data, path)


def take_acceptance(data: dict[str, Any], path: Path) -> None:
    """``source = "profile"`` becomes what that profile holds: a hit-ratio table or a pool."""
    section = data.get("acceptance")
    if not isinstance(section, dict) or section.get("source") != "profile":
        return
    name = section.get("name")
    if not isinstance(name, str) or set(section) != {"source", "name"}:
        raise UserError(
            f"{path}: key acceptance: a profile is chosen by its name, and nothing else"
        )
    profile, file = find_acceptance(name, f"{path}: key acceptance.name", path.parent)
    if profile.pool is not None:
        pool = str((file.parent / profile.pool).resolve())
        data["acceptance"] = {
            "source": "pool",
            "file": pool,
            "block": profile.block,
            "hit_ratio": profile.hit_ratio,
        }
    else:
        data["acceptance"] = {"source": "hit_ratio", "table": profile.hit_ratio}


def override_key(data: dict[str, Any], text: str) -> None:
    """Change one key, given as the command line's ``--set`` takes it; ``UserError`` if wrong."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"setting {text!r}: must look like key=value, e.g. schedule.tree_size=40")
    assign_key(data, key.strip(), toml_value(value), text)


def assign_key(data: dict[str, Any], key: str, value: Any, text: str) -> None:
    """Change a dotted key of a file's content.

    A key inside a device or link that is a profile's name stands beside the profile from then on.

    Args:
        text: who asks, for the error.
    """
    *parents, last = key.split(".")
    place: Any = data
    for index, name in enumerate(parents):
        above = place
        step: Any = int(name) if isinstance(place, list) and name.isdigit() else name
        try:
            place = above[step] if isinstance(above, list) else above.setdefault(step, {})
        except (TypeError, IndexError):
            place = None
        if isinstance(place, str) and _may_name_a_profile(parents[: index + 1]):
            place = above[step] = {"profile": place}
        if not isinstance(place, (dict, list)):
            raise UserError(f"setting {text!r}: {'.'.join(parents[: index + 1])} is not a table")
    try:
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    except (ValueError, IndexError):
        raise UserError(f"setting {text!r}: {last!r} is no index of the list") from None


def _may_name_a_profile(place: Sequence[str]) -> bool:
    """Whether a key's value may be a profile's name, to which a table could add other keys."""
    return place[-1] == "device" or tuple(place) in (("links", "default"), ("links", "local"))
