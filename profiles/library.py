"""Finding profile files by name. A profile is ``<kind>/<name>.toml``, one table with a source."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from treepipe.errors import UserError
from treepipe.toml_file import read_toml, validated

Section = TypeVar("Section", bound=BaseModel)

LIBRARY = Path(__file__).parent


def profile_names(kind: str) -> list[str]:
    """Names of all profiles of a kind ("devices", "links")."""
    return sorted(path.stem for path in (LIBRARY / kind).glob("*.toml"))


def find_profile(kind: str, name: str, model: type[Section], asked_by: str) -> Section:
    """The profile ``name``, validated.

    Args:
        asked_by: start of the error's sentence, naming file and key.

    Raises:
        UserError: there is none, or it is not valid.
    """
    names = profile_names(kind)
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names) or 'none'}"
        raise UserError(f"{asked_by} = {name!r}: there is no such profile in {kind}; {hint}")
    path = LIBRARY / kind / f"{name}.toml"
    data = read_toml(path)
    data.pop("origin", None)
    return validated(model, data, path)
