"""Reading, validating and writing TOML files; every fault is reported in one sentence.

``scenario.py`` and ``profiles/schema.py`` define the files' content.
"""

from __future__ import annotations

import copy
import datetime
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from treepipe.core.errors import UnknownKeyError, UserError
from treepipe.files.reading import (
    CONTROL,
    read_text,
    reading,
    suggestion,
    visible,
)
from treepipe.files.section import tables_in

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Model = TypeVar("Model", bound=BaseModel)

UNITS = ("ms", "mib", "kib", "mbit_s", "gb_s", "w", "usd_per_hour", "tokens")
"""Units at the end of key names, for a better sentence where a unit is missing."""


MOST_TOML_BYTES = 2**22
"""Most bytes of a TOML file; parsing takes seconds per MiB."""
MOST_PARTS = 100
"""Most parts of a dotted key, in a file and in a setting."""
LONG_KEY = re.compile(rf"""(?<![\w."'-])(?:[\w"'-]+(?:[ \t]*\.|[ \t]+\.[ \t]+)){{{MOST_PARTS}}}""")

WORDS = {
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type", "dataclass_type"), "must be a table"
    ),
    "too_short": "must not be empty",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}
"""Replacements for faults that pydantic words in Python's terms."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a file's content. Raises ``UserError`` if it cannot be read."""
    with reading(path, "cannot be read"):
        try:
            return _parsed(read_text(path, "utf-8-sig", MOST_TOML_BYTES))  # drops a byte order mark
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path}: is not valid TOML: {error}") from None


def _parsed(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ``ValueError``, also for a key of very many parts (parsing takes time and
    memory quadratic in their number) and for control characters (names are shown on terminals and
    in pictures, which interpret them)."""
    if LONG_KEY.search(text):
        raise ValueError(f"a key has more than {MOST_PARTS} parts")
    found: dict[str, Any] = tomllib.loads(text)
    for each in texts_in(found) if "\\" in text else ():  # TOML allows only escaped ones
        if CONTROL.search(each):
            raise ValueError(f"'{visible(each)}' holds a control character")
    return found


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else value
        for inner in pairs:
            yield from texts_in(inner)


def validated(model: type[Model], data: Mapping[str, Any], path: Path | str) -> Model:
    """Validate ``data`` as a ``model``. Raises ``UserError`` with the first fault in one sentence,
    and ``UnknownKeyError`` if a key is unknown.

    Args: ``path``: path of the file, or another beginning of the sentence.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        unknown = any(each["type"] == "extra_forbidden" for each in error.errors())
        kind = UnknownKeyError if unknown else UserError
        raise kind(f"{path}: {_sentence(model, data, error)}") from None


def copied(content: Any) -> Any:
    """Copy the content of a file, quicker than ``copy.deepcopy``."""
    if isinstance(content, dict):
        return {key: copied(value) for key, value in content.items()}
    if isinstance(content, list):
        return [copied(value) for value in content]
    return content if isinstance(content, (str, int, float)) else copy.deepcopy(content)


def flattened(
    table: Mapping[str, Any],
    is_value: Callable[[Any], bool] = lambda value: not isinstance(value, Mapping),
    prefix: str = "",
) -> list[tuple[str, Any]]:
    """Return the keys of nested tables, dotted, with their values.

    >>> flattened({"schedule": {"width": [8, 16]}, "drafts.0.device": ["l40"]})
    [('schedule.width', [8, 16]), ('drafts.0.device', ['l40'])]
    """
    found: list[tuple[str, Any]] = []
    for key, value in table.items():
        if is_value(value):
            found.append((f"{prefix}{key}", value))
        else:
            found += flattened(value, is_value, f"{prefix}{key}.")
    return found


DottedGrid: TypeAlias = Annotated[
    dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]],
    BeforeValidator(lambda grid: dict(flattened(grid)) if isinstance(grid, Mapping) else grid),
]
"""Values to try by dotted key; unquoted dotted keys produce nested tables, which are flattened."""


def toml_value(text: str) -> Any:
    """Parse a TOML value; other text is taken as a string, so quotes can be left out. Raises
    ``UserError`` for a control character."""
    try:
        return _parsed(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        if CONTROL.search(text):
            raise UserError(f"value '{visible(text)}' holds a control character") from None
        return text


def toml_text(data: Mapping[str, Any], heading: Sequence[str] = (), digits: int = 17) -> str:
    """Write a file's text: plain keys first, then a table or an array of tables for each other one.

    Args:
        heading: lines of a comment at the top.
        digits: significant digits of a float; 17 are all.

    Keys whose value is None are left out, as TOML has no such value.

    >>> data = {"stages": [{"ms": {0: {1: 0.25, 2: 1 / 3}}}], "name": "a", "links": {"all": "wan"}}
    >>> print(toml_text(data, ["An example."], digits=3), end="")
    # An example.
    name = "a"
    <BLANKLINE>
    [[stages]]
    ms.0 = { 1 = 0.25, 2 = 0.333 }
    <BLANKLINE>
    [links]
    all = "wan"
    """
    lines = [f"# {line}" for line in heading]
    plain = {key: value for key, value in data.items() if not _tables_of(value)}
    lines += [toml_line(key, value, digits) for key, value in plain.items() if value is not None]
    for key, value in data.items():
        heads = f"[{_key(key)}]" if isinstance(value, Mapping) else f"[[{_key(key)}]]"
        for table in _tables_of(value):
            lines += ["", heads, *_table_lines(table, digits)]
    return "\n".join(lines) + "\n"


def toml_line(key: object, value: Any, digits: int = 17) -> str:
    """Write one key with its value, tables inline; otherwise like ``toml_text``.

    >>> toml_line("transfer_ms", {1024: 0.5})
    'transfer_ms = { 1024 = 0.5 }'
    """
    return f"{_key(key)} = {toml_inline(value, digits)}"


def _tables_of(value: Any) -> Sequence[Mapping[Any, Any]]:
    """Return the tables to write under headings of their own; empty for a plain value."""
    if isinstance(value, Mapping):
        return [value]
    several = isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value)
    return value if several else []


def _table_lines(table: Mapping[Any, Any], digits: int) -> Iterator[str]:
    """Yield a line per key; a table of tables has a line per inner table."""
    for key, value in table.items():
        if isinstance(value, Mapping) and any(isinstance(v, Mapping) for v in value.values()):
            for inner, content in value.items():
                yield f"{_key(key)}.{toml_line(inner, content, digits)}"
        elif value is not None:
            yield toml_line(key, value, digits)


def toml_inline(value: Any, digits: int = 17) -> str:
    """Write a value on one line; JSON's form of text and whole numbers is also TOML."""
    if isinstance(value, Mapping):
        there = {key: each for key, each in value.items() if each is not None}
        inner = ", ".join(toml_line(key, each, digits) for key, each in there.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_inline(each, digits) for each in value) + "]"
    if isinstance(value, float):
        return repr(value) if digits >= 17 else f"{value:.{digits}g}"
    if isinstance(value, datetime.date):
        return value.isoformat()
    if value is None:
        raise TypeError("TOML has no value for None")
    # JSON leaves DEL as it is, which TOML forbids.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: object) -> str:
    """Write a key, quoted where it must be; numbers as keys are as short as possible."""
    text = f"{name:g}" if isinstance(name, float) else str(name)
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else toml_inline(text, 0)


def _sentence(model: type[BaseModel], data: Mapping[str, Any], error: ValidationError) -> str:
    """Describe the first fault; an unknown key comes before others, as it may be their cause."""
    errors = error.errors(include_url=False)
    fault = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    location = _keys_of(fault["loc"], data)
    key = ".".join(str(part) for part in location)
    if fault["type"] == "extra_forbidden":
        return _unknown_key(model, location, key)
    if fault["type"] == "missing":
        return f"key {'.'.join(map(str, [*location, fault['loc'][-1]]))} is missing"
    if fault["type"] == "union_tag_not_found":
        return f"key {key}.{fault['ctx']['discriminator'].strip(chr(39))} is missing"
    if fault["type"] == "union_tag_invalid":
        return _unknown_tag(fault, key)
    message = WORDS.get(fault["type"]) or fault["msg"].removeprefix("Value error, ")
    if not location or message.startswith(f"key {key}."):
        return message
    # The table's content would hide the sentence.
    value = fault["input"]
    shown = "" if isinstance(value, Mapping) else f" = {json.dumps(value, default=str)}"
    return f"key {key}{shown}: {message[0].lower()}{message[1:]}"


def _unknown_tag(fault: Any, key: str) -> str:
    """Describe the fault of a table whose kind does not exist."""
    context = fault["ctx"]
    tag, named = context["discriminator"].strip("'"), str(context["tag"])
    known = [each.strip(" '") for each in context["expected_tags"].split(",")]
    if key == "acceptance":
        known.append("profile")
    return f"key {key}.{tag} = {named!r} is unknown; {suggestion(named, known)}"


def _keys_of(location: Sequence[Any], data: Any) -> list[Any]:
    """Return the keys that are there; pydantic also names the union members that it tried."""
    found = []
    for part in location:
        for steps in ([part], str(part).split(".")):  # nested tables of a grid are dotted keys
            with suppress(LookupError, TypeError):
                data = reduce(getitem, steps, data)
                found.append(part)
                break
    return found


def _unknown_key(model: type[BaseModel], location: Sequence[Any], key: str) -> str:
    names = sorted(_names_at(model, location[:-1]))
    last = str(location[-1])
    if last in names:
        return f"key {key} is of another kind of this table, e.g. another source"
    unit = next((f"{last}_{unit}" for unit in UNITS if f"{last}_{unit}" in names), None)
    if unit is not None:
        return f"key {key} has no unit; it must be {unit!r}"
    return f"key {key} is unknown; {suggestion(last, names, 'valid keys:')}"


def _names_at(annotation: Any, location: Sequence[Any]) -> set[str]:
    """Return the field names of the models that a location in the file may hold."""
    models = tables_in(annotation)
    if not location:
        return {name for model in models for name in model.model_fields}
    step, *rest = location
    inner = [m.model_fields[step].annotation for m in models if step in m.model_fields]
    names = set[str]().union(*(_names_at(each, rest) for each in inner))
    return names or _names_at(annotation, rest)  # an index, or a name that the author chose
