"""The keys of a scenario as the schema states them: meaning, type, default and read condition."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from pydantic import BaseModel

from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.files.section import MOST, Beside, ReadIf, tables_in
from treepipe.files.toml_file import toml_inline
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ProfileAcceptance, ScheduleSection
from treepipe.scenario.unread import condition_words

Tables: TypeAlias = tuple[type[BaseModel], ...]
TYPES = {bool: "true or false", int: "whole number", float: "number", str: "text", Any: "anything"}
TAG = "what the table describes"
"""Meaning of the key that distinguishes kinds of tables."""
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """A key of the file.

    Attributes:
        path: dotted path without list indices; NAME stands for a name that the author chooses.
        stated: the class of the schema that states the key, and its name there.
        values: its type and range.
        default: its default as a file would state it; empty if it has none.
        read: the condition under which it is read; empty: always.
        tables: the kinds of tables that the key may hold.
        named: whether the author chooses these tables' names.
    """

    path: str
    stated: tuple[type, str]
    meaning: str
    values: str
    default: str
    read: str
    tables: Tables = ()
    named: bool = False

    @property
    def inside(self) -> str:
        """The path of the tables that the key holds."""
        return f"{self.path}.NAME" if self.named else self.path


def key_facts(path: str = "") -> list[KeyFacts]:
    """Return the key at a path and all keys below it, in the schema's order. The keys of a kind of
    table are listed at the first place where such a table can stand.

    Args:
        path: dotted path, with or without list indices; empty: all keys.

    Raises ``UserError``: the key does not exist.
    """
    tables: Tables = (Scenario,)
    inside, found = "", list[KeyFacts]()
    steps = [step for step in path.split(".") if not step.isdigit()]
    while path and steps:
        known = {each.path.rpartition(".")[2]: each for each in _own(tables, inside)}
        step = steps.pop(0)
        if step not in known:
            raise UserError(f"key {path}: there is no key {step!r} here; {_hint(step, known)}")
        found = [known[step]]
        tables, inside = found[0].tables, found[0].inside
        if found[0].named:
            steps = steps[1:]
    return [*found, *_below(tables, inside, {})]


def _hint(step: str, known: dict[str, KeyFacts]) -> str:
    """Suggest the key that may be meant: a similar one here, or one of that name elsewhere."""
    near = difflib.get_close_matches(step, known, 1)
    every = {each.path.rpartition(".")[2]: each.path for each in key_facts()}
    meant = near or [every[name] for name in difflib.get_close_matches(step, every, 1)]
    return f"did you mean {meant[0]!r}?" if meant else f"there are {', '.join(known) or 'none'}"


def _below(tables: Tables, inside: str, seen: dict[tuple[type, str], str]) -> Iterator[KeyFacts]:
    """Yield the keys below a path. Args: ``seen``: places of listed keys, by defining table."""
    for each in _own(tables, inside):
        if seen.setdefault(each.stated, inside) != inside:
            continue
        below = list(_below(each.tables, each.inside, seen))
        if each.tables and not below:
            first = next(iter(each.tables[0].model_fields))
            place = seen[_stated(each.tables[0], first)]
            each = replace(each, values=each.values.replace("table", f"table as {place}"))
        yield each
        yield from below


def _stated(table: type[BaseModel], key: str) -> tuple[type, str]:
    """Return the class that states a key of a table (other tables may inherit it), and the key."""
    classes = (c for c in reversed(table.__mro__) if key in getattr(c, "model_fields", ()))
    return next(classes), key


def _own(tables: Tables, inside: str) -> Iterator[KeyFacts]:
    """Yield the keys of the kinds of tables that may stand at a place."""
    if inside == "acceptance":  # replaced by what the profile holds before the file is validated
        tables = (*tables, ProfileAcceptance)
    tag = _tag(tables)
    for name in dict.fromkeys(name for table in tables for name in table.model_fields):
        fields = {t: t.model_fields[name] for t in tables if name in t.model_fields}
        every = list(fields.values())
        values = dict.fromkeys(_values(each.annotation, each.metadata) for each in every)
        read = [condition_words(c) for c in every[0].metadata if isinstance(c, Beside | ReadIf)]
        if tag is not None and len(fields) < len(tables):
            kinds = " or ".join(_values(each.model_fields[tag].annotation) for each in fields)
            read.insert(0, f"where {tag} is {kinds}")
        default = "" if every[0].is_required() else _shown(every[0].default)
        if tables == (ScheduleSection,) and name != "name":
            read, default = _systems(name)
        yield KeyFacts(
            f"{inside}.{name}" if inside else name,
            _stated(next(iter(fields)), name),
            "; ".join(dict.fromkeys(each.description or TAG for each in every)),
            (", " if name == tag else " or ").join(values),
            default,
            "; ".join(read),
            tuple(dict.fromkeys(t for each in every for t in tables_in(each.annotation))),
            any(get_origin(each.annotation) is dict for each in every),
        )


def _tag(tables: Tables) -> str | None:
    """Return the key that distinguishes several kinds of tables."""
    fields = tables[0].model_fields if len(tables) > 1 else {}
    kinds = {name: get_args(each.annotation) for name, each in fields.items()}
    return next(
        (n for n, kind in kinds.items() if len(kind) == 1 and isinstance(kind[0], str)), None
    )


def _values(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Describe a type and its range in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        further = (part for each in inner[1:] for part in getattr(each, "metadata", [each]))
        return _values(inner[0], (*metadata, *further))
    if origin is Literal:
        return ", ".join(map(toml_inline, inner))
    if origin is tuple:
        several = _values(inner[0])
        return f"list of {several}" if inner[-1] is ... else f"list of {len(inner)}: {several}"
    if origin is dict:
        return f"table: {_values(inner[0])} → {_values(inner[1])}"
    if inner:
        kinds = (_values(each, metadata) for each in inner if each is not NoneType)
        return " or ".join(dict.fromkeys(kinds))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return f"{TYPES[annotation]}{_range(metadata) if annotation in (int, float) else ''}"


def _range(metadata: Sequence[Any]) -> str:
    bounds = [
        f"{sign} {bound:g}"
        for each in metadata
        for name, sign in SIGNS.items()
        if (bound := getattr(each, name, None)) is not None and abs(bound) < MOST
    ]
    return f" {', '.join(dict.fromkeys(bounds))}" if bounds else ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, BaseModel) or value in ((), {}):
        return ""
    tables = isinstance(value, tuple) and any(isinstance(each, BaseModel) for each in value)
    return "" if tables else toml_inline(value, digits=6)


def _systems(name: str) -> tuple[list[str], str]:
    """Return the systems that read a key of the schedule, and its default(s) in words."""
    reading = [each for each in systems().values() if name in each.keys]
    defaults: dict[str, list[str]] = {}
    for each in reading:
        (own,) = [f.default for f in dataclasses.fields(each.parameters) if f.name == name]
        defaults.setdefault(_shown(own) or "none", []).append(each.name)
    usual, *others = sorted(defaults, key=lambda value: -len(defaults[value]))
    told = [f"{value} for {', '.join(defaults[value])}" for value in others]
    everyone = len(reading) == len(systems())
    read = [] if everyone else [", ".join(each.name for each in reading)]
    return read, "; ".join([*([] if usual == "none" and not told else [usual]), *told])
