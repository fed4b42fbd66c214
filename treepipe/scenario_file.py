"""Reading scenario files: TOML, overrides from the command line, and errors in one sentence."""

from __future__ import annotations

import difflib
import json
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from treepipe.errors import UserError
from treepipe.scenario import Scenario

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Section = TypeVar("Section", bound=BaseModel)

TAGGED_UNIONS = ("acceptance", "arrivals", "prompt_tokens", "new_tokens")
"""Keys whose table says by one of its keys what it is."""


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read and validate a scenario; ``overrides`` are ``dotted.key=value`` with TOML values.

    Raises:
        UserError: names the file and the key.
    """
    data = read_toml(path)
    for override in overrides:
        _override(data, override)
    return validated(Scenario, data, path)


def read_toml(path: Path) -> dict[str, Any]:
    """The file's content. Raises ``UserError`` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: is not valid TOML: {error}") from None


def validated(model: type[Section], data: Mapping[str, Any], path: Path) -> Section:
    """``data`` as a ``model``; ``UserError`` with the first fault in one sentence."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{path}: {_sentence(model, error)}") from None


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
            place[int(last)] = _toml_value(value)
        else:
            place[last] = _toml_value(value)
    except (ValueError, IndexError):
        raise UserError(f"--set {text!r}: {last!r} is no index of the list") from None


def _toml_value(text: str) -> Any:
    """A TOML value; text that is none is taken as a string, so quotes can be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _sentence(model: type[BaseModel], error: ValidationError) -> str:
    """The fault of the first error; an unknown key before others, as it may be their cause."""
    errors = error.errors(include_url=False)
    fault = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    location = _without_union_tags(fault["loc"])
    key = ".".join(str(part) for part in location)
    if fault["type"] == "extra_forbidden":
        return _unknown_key(model, location, key)
    if fault["type"] == "missing":
        return f"key {key} is missing"
    if fault["type"] == "union_tag_not_found":
        return f"key {key}.{fault['ctx']['discriminator'].strip(chr(39))} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    if not location:
        return message
    return (
        f"key {key} = {json.dumps(fault['input'], default=str)}: {message[0].lower()}{message[1:]}"
    )


def _without_union_tags(location: Sequence[Any]) -> list[Any]:
    """The keys of the file only: pydantic also names which member of a union it tried."""
    return [
        part
        for before, part in zip((None, *location), location, strict=False)
        if not (
            before in TAGGED_UNIONS
            or part in ("Device", "Link", "str", "float")
            or (isinstance(part, str) and part.startswith(("constrained", "function")))
        )
    ]


def _unknown_key(model: type[BaseModel], location: Sequence[Any], key: str) -> str:
    names = sorted(_names_at(model, location[:-1]))
    near = difflib.get_close_matches(str(location[-1]), names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(names)}"
    return f"key {key} is unknown; {hint}"


def _names_at(annotation: Any, location: Sequence[Any]) -> set[str]:
    """Field names of the models that a location in the file may hold."""
    models = list(_models(annotation))
    if not location:
        return {name for model in models for name in model.model_fields}
    step = location[0]
    if isinstance(step, int):
        return _names_at(annotation, location[1:])
    inner = [m.model_fields[step].annotation for m in models if step in m.model_fields]
    return set().union(*(_names_at(each, location[1:]) for each in inner))


def _models(annotation: Any) -> Iterable[type[BaseModel]]:
    """The pydantic models inside a type annotation (unions, tuples, Annotated)."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for argument in typing.get_args(annotation):
        yield from _models(argument)
