"""Every key of the schema with values to try, and what it means that a world ignores one.

Keys and values follow from the schema's types and bounds. By their names are told only texts that
no type makes (``NAMES``), tables that need one of several keys (``ALONE``), and scenarios in which
a key is meant to be read where the usual one is none (``SITUATIONS``).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from tests.worlds.profile_files import model_file
from treepipe.profiles.library import LIBRARY
from treepipe.profiles.schema import AnyHardware
from treepipe.scenario.scenario import Scenario, assign_key
from treepipe.scenario.schema import Model

Place: TypeAlias = tuple[str | int, ...]
Tables: TypeAlias = tuple[tuple[Place, type[BaseModel], dict[str, Any]], ...]

NUMBERS = (1, 0.3, 2, 7, 0, 1000, 2500, 0.9)
TABLES: tuple[dict[Any, Any], ...] = (
    *({"1": 2.0}, {"1": 9.0, "4": 30.0}, {"1": 0.4}, {"1": 0.6}),
    *({"float32": 0.01, "float16": 0.01}, {"float32": 9.0, "float16": 9.0}),
)
LISTS: tuple[list[Any], ...] = (
    *([1], [2, 2], [1, 1], [300.0], ["127.0.0.1:5600"], ["draft0", "pipeline0.stage2"]),
    ["pipeline0.stage1", "pipeline0.stage2"],
)
TEXTS = ("a", "b", "127.0.0.1:5600", "127.0.0.1:5601", "draft0", "pipeline0.stage1")
MODELS, DEVICES, LINKS = (
    ("qwen-2.5-0.5b", "llama-3.2-1b"),
    ("emulated-20ms", "a40"),
    ("wifi", "wan"),
)
NAMES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("target.profile", "model.profile"), MODELS),
    **dict.fromkeys(("device.profile", "device"), ("emulated-20ms", "a40")),
    **dict.fromkeys(("links.default", "links.local", "default.profile", "0.profile"), LINKS),
    **dict.fromkeys(("checkpoint", "head"), ("reference", "nowhere")),
    "schedule.name": ("chain", "pp"),
    "capture": ("0,1,2", "0"),
    "prompts": ("reference:heldout", "nowhere.json"),
    "faults.inject.0.worker": ("draft0", "pipeline0.stage2"),
}
"""Texts by the end of the keys that take them."""
ALONE: tuple[dict[str, Any], ...] = (
    {},
    {"roofline": {"tflops": {"float32": 1.0, "float16": 1.0}, "memory_gb_s": 10.0}},
    {"request_latency_ms": 900.0},
    {"mean_accepted_length": 1.5, "draft_tokens": 2},
)
"""What tables need of which no single key is required."""


POWER = {"price_usd_per_hour": 1.0, "power": {"idle_w": 5.0, "busy_w": 9.0}, "memory_mib": 2000.0}
WORK = {"evaluate_ms": {1: 0.5}, "decide_ms": 0.25, "prune_ms": 0.125}
STAGE = {"device": {"stage_ms": {1: 5.0, 8: 9.0}, **WORK, **POWER}}
PLAIN: dict[str, Any] = {
    "name": "plain",
    "target": {"layers": 8},
    "drafts": [{"device": {"draft_ms": {1: 3.0}}}],
    "pipelines": [
        {
            "stages": [
                {"device": {"stage_ms": {1: 5.0, 8: 9.0}}},
                {"device": {"stage_ms": {1: 5.0}, "evaluate_ms": {1: 0.5}}},
            ]
        }
    ],
    "links": {"default": {"latency_ms": 1.0}},
    "schedule": {"name": "pp"},
    "acceptance": {"source": "bernoulli", "beta": 0.6},
    "workload": {"requests": 2, "prompt_tokens": 4, "new_tokens": 3},
}
CHAIN: dict[str, Any] = {**PLAIN, "schedule": {"name": "chain", "gamma": 3}}
USUAL: dict[str, Any] = {
    **PLAIN,
    "target": {"profile": model_file(8, 9.0, 8.0)},
    "drafts": [
        {
            "device": {"draft_ms": {1: 3.0}, **WORK, **POWER},
            "model": {"profile": model_file(2, 9.0, 8.0)},
        }
    ],
    "pipelines": [{"stages": [copy.deepcopy(STAGE), copy.deepcopy(STAGE)]}],
    "links": {"default": {"latency_ms": 1.0, "bandwidth_mbit_s": 9.0}},
    "schedule": {"name": "flowspec", "tree_size": 9},
    "acceptance": {"source": "hit_ratio", "table": {1: 0.6, 4: 0.9}},
    "workload": {"requests": 2, "prompt_tokens": 4, "new_tokens": 5, "concurrency": 2},
}
"""Devices that say all that a device can say, and three requests at once."""
MODEL = {"profile": "qwen-2.5-0.5b"}
POOL = {"source": "pool", "file": str(LIBRARY / "acceptance" / "reference-model.json.gz")}
SITUATIONS: dict[str, dict[str, Any]] = {
    r"device\.roof": {"target": MODEL, "drafts.0.model": MODEL},
    r"device\.read_mib_s": {
        "faults": {"spares": 1, "inject": [{"worker": "draft0", "kind": "kill", "at_ms": 9.0}]}
    },
    r"^hosts\.a\.profile": {"emulate": False},
    r"^hosts\.": {"drafts.0.host": "a", "pipelines.0.stages.0.host": "a"},
    r"^acceptance\.(block|hit|sharp|off|depth)": {"acceptance": POOL},
    r"^drafts.0.model.(profile|dtype)": {
        "drafts.0.model": MODEL,
        "drafts.0.device.memory_mib": 1500,
    },
    r"^links.default.medium": {"links.default.bandwidth_mbit_s": 1.0},  # transfers meet there
    r"score_aware": {"schedule.tree_size": 20, "workload.new_tokens": 24},
}


@dataclass(frozen=True)
class Key:
    """A key of the file.

    Attributes:
        place: of the key.
        tables: that have to stand at places above it, outermost first, each with the least that
            it has.
        values: to be tried; its type refuses none of them.
        field: of the schema.
    """

    place: Place
    tables: Tables
    values: tuple[Any, ...]
    field: FieldInfo

    def __str__(self) -> str:
        return ".".join(map(str, self.place))

    def within(self, content: Mapping[str, Any], *value: Any) -> dict[str, Any]:
        """The scenario with the tables around the key and, if none is given, without it; without
        its table where it is required there."""
        made = copy.deepcopy(dict(content))
        for place, model, least in self.tables:
            above, last = _above(made, place)
            listed = isinstance(above, list)
            there = above[last : last + 1] if listed else [above[last]] if last in above else [{}]
            table = copy.deepcopy(least)
            if there and isinstance(there[0], dict) and _fits(model, {**table, **there[0]}):
                table |= there[0]
            if listed and not there:
                above.append(table)
            else:
                above[last] = table
        above, last = _above(made, self.place)
        if value:
            above[last] = value[0]
        elif not self.field.is_required():
            above.pop(last, None)
        elif self.tables:
            above, last = _above(made, self.tables[-1][0])
            del above[last]
        return made


def every_key(content: Mapping[str, Any]) -> list[Key]:
    """Every key at the first place that it can stand at; keys of devices and models at every role.

    Args: ``content``: of a scenario, whose lists say how many roles there are.
    """
    return [*_keys(Scenario, (), (), content, set())]


def _keys(
    model: type[BaseModel],
    place: Place,
    tables: Tables,
    content: Any,
    seen: set[Any],
) -> Iterator[Key]:
    role = place if issubclass(model, AnyHardware | Model) else None
    for name, field in model.model_fields.items():
        below = (*place, name)
        owner = next(each for each in reversed(model.__mro__) if name in _names(each))
        values = tuple(_values(field, below))
        if len(values) > 1 and (owner, name, role) not in seen:
            seen.add((owner, name, role))
            yield Key(below, tables, values, field)
        there = content.get(name) if isinstance(content, dict) else None
        for inner, steps in _tables(field.annotation):
            listed = steps == (0,) and isinstance(there, list)
            for index in range(len(there)) if listed else steps or (None,):
                at = below if index is None else (*below, index)
                own = there[index] if listed else there if index is None else None
                yield from _keys(inner, at, (*tables, (at, inner, _least(inner, at))), own, seen)


def _fits(model: type[BaseModel], table: Any) -> bool:
    try:
        model.model_validate(table)
    except ValidationError:
        return False
    return True


def _names(model: type) -> set[str]:
    return {*getattr(model, "model_fields", ())}


def _above(content: Any, place: Place) -> tuple[Any, Any]:
    """What holds the key, made where it is not there, and its name or number in it."""
    for name, after in pairwise(place):
        if isinstance(content, list):
            content = content[int(name)]
        else:
            content = content.setdefault(name, [] if isinstance(after, int) else {})
    return content, place[-1]


def _tables(
    annotation: Any, steps: tuple[str | int, ...] = ()
) -> Iterator[tuple[type[BaseModel], tuple[str | int, ...]]]:
    """The tables that a key can hold, each with what leads from the key to it."""
    origin = get_origin(annotation)
    if isinstance(annotation, type) and origin is None:
        if issubclass(annotation, BaseModel):
            yield annotation, steps
    elif origin is not Literal:
        further: dict[Any, tuple[str | int, ...]] = {tuple: (0,), dict: ("a",)}
        for each in get_args(annotation):
            yield from _tables(each, further.get(origin, steps))


def _least(model: type[BaseModel], place: Place) -> dict[str, Any]:
    """The keys that a table must have, each with the first value that will do."""
    required = {name: each for name, each in model.model_fields.items() if each.is_required()}
    made = {name: next(_values(each, (*place, name))) for name, each in required.items()}
    for more in ALONE:
        if _fits(model, {**made, **more}):
            return {**made, **more}
    raise AssertionError(f"no table {model.__name__} can be made")


def _values(field: FieldInfo, place: Place) -> Iterator[Any]:
    """What the type of a key takes, of all that is tried."""
    annotation: Any = field.annotation
    for each in field.metadata:
        annotation = Annotated[annotation, each]
    adapter, found = TypeAdapter[Any](annotation), list[Any]()
    for each in _candidates(annotation, place):
        try:
            adapter.validate_python(each)
        except ValidationError:
            continue
        if each not in found:
            found.append(each)
            yield each


def _candidates(annotation: Any, place: Place) -> Iterator[Any]:
    key, kinds = ".".join(map(str, place)), [*_kinds(annotation)]
    for kind in kinds:
        if isinstance(kind, tuple):
            yield from kind
    if bool in kinds:
        yield from (True, False)
    elif int in kinds or float in kinds:
        yield from NUMBERS
    if str in kinds:
        yield from next((texts for end, texts in NAMES.items() if key.endswith(end)), TEXTS)
    yield from TABLES if dict in kinds else ()
    yield from LISTS if tuple in kinds else ()
    for inner, steps in _tables(annotation):
        if steps:
            yield from ([], [_least(inner, (*place, *steps))])
        else:
            yield _least(inner, place)


def _kinds(annotation: Any) -> Iterator[Any]:
    """Types, and of a ``Literal`` its values."""
    origin = get_origin(annotation)
    if origin is Literal:
        yield get_args(annotation)
    elif origin in (tuple, dict) or not get_args(annotation):
        yield origin or annotation
    else:
        for each in get_args(annotation):
            yield from _kinds(each)


Outcome = tuple[str, str]
"""Figures, or nothing where the scenario is refused; and warnings, or the refusal."""


def situated(key: Key) -> dict[str, Any]:
    """The scenario in which the key is meant to be read."""
    content = copy.deepcopy(USUAL)
    for pattern, changes in SITUATIONS.items():
        if re.search(pattern, str(key)):
            for name, value in changes.items():
                assign_key(content, name, copy.deepcopy(value), name)
    return content


def check_heard(
    world: Callable[[str], Outcome], key: Key, content: dict[str, Any], *, refused: bool = False
) -> None:
    """Of the key's values, none included, not all come to the same, or the key is told of."""
    found = set[Outcome]()
    for value in [*((value,) for value in key.values), ()]:
        figures, words = world(json.dumps(key.within(content, *value)))
        if not words.endswith("is missing"):
            found.add((figures, words))
        if len(found) > 1 or told(key, words) or (refused and not figures):
            return
    raise AssertionError(f"{key} is silent: {found}")


def told(key: Key, words: str) -> bool:
    """Whether it is said that the key, or the table that it is in, has no effect."""
    keys = {".".join(map(str, key.place[:end])) for end in range(1, len(key.place) + 1)}
    return any(
        not keys.isdisjoint(re.findall(r"[\w.]+", sentence))
        for sentence in re.findall(r"keys? [^:]* ha(?:s|ve) no effect", words)
    )
