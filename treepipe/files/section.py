"""The base of every table of a scenario or profile file: strict, frozen types with units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

MOST = 1_000_000
"""Upper bound on any count that the simulator keeps as objects."""
SMALLEST, LARGEST = 1e-9, 1e15
"""Bounds of positive quantities, in any unit; beyond them times overflow or vanish."""


def _of_this_world(value: float) -> float:
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"must be between {SMALLEST:g} and {LARGEST:g}")
    return value


Milliseconds: TypeAlias = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed that every random number generator takes, including PyTorch's."""
Positive: TypeAlias = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    AfterValidator(_of_this_world),
]
Factor: TypeAlias = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A factor on a time or a share, with bounds that keep results finite."""
Count: TypeAlias = Annotated[int, Field(ge=1)]
Several: TypeAlias = Annotated[int, Field(ge=1, le=MOST)]
"""A count of objects in memory: requests, their tokens, roles, runs."""
TokenTable: TypeAlias = Annotated[dict[Count, Milliseconds], Field(min_length=1)]
"""Milliseconds by number of tokens."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Metadata of a key that is read only where the key beside it has one of ``values`` (without
    values: any value that is not empty)."""

    key: str
    values: tuple[Any, ...] = ()

    def holds(self, table: Any) -> bool:
        beside = getattr(table, self.key)
        return beside in self.values if self.values else bool(beside)


@dataclass(frozen=True, slots=True)
class ReadIf:
    """Metadata of a key that is read only under a condition of ``scenario/unread.py``."""

    condition: str


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, given: Any) -> Any:
        """Refuse conversions that pydantic allows: true to 1, and 1 or "yes" to true."""
        kinds = _kinds_of(cls)
        for name, value in given.items() if isinstance(given, Mapping) else ():
            for place, each in _values(value, (name,)):
                fault: InitErrorDetails
                if kinds.get(name) == "truth" and not isinstance(each, bool | None):
                    fault = {"type": "bool_type", "loc": place, "input": each}
                elif kinds.get(name) == "number" and isinstance(each, bool):
                    fault = {"type": _TRUE_NUMBER, "loc": place, "input": each}
                else:
                    continue
                raise ValidationError.from_exception_data(cls.__name__, [fault])
        return given


_TRUE_NUMBER = PydanticCustomError("truth", "must be a number, not true or false")


@cache
def _kinds_of(table: type[Section]) -> dict[str, str]:
    """Return the keys that are only booleans, and those that are numbers or consist of numbers."""
    types = {name: {*_types(each.annotation)} for name, each in table.model_fields.items()}
    truths = {name: "truth" for name, own in types.items() if bool in own <= {bool, NoneType}}
    numbers = {name for name, own in types.items() if own & {int, float} and bool not in own}
    return truths | dict.fromkeys(numbers, "number")


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types in an annotation, except those of a table's own keys."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return
    if not inner:
        yield annotation
    for each in inner[1:] if get_origin(annotation) is dict else inner:
        yield from _types(each)


def _values(
    value: Any, place: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the values in lists and tables with their places, except those of inner sections."""
    if isinstance(value, Mapping):
        inner: Any = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        yield place, value
        return
    for name, each in inner:
        yield from _values(each, (*place, name))


def tables_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the kinds of tables that an annotation allows, itself or as values of a table."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [each for part in get_args(annotation) for each in tables_in(part)]
