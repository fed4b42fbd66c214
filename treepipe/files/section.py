"""What every table of a scenario or profile file is made of: strict, frozen, unit-bearing types."""

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
"""Of anything that a simulation holds one by one; more would exhaust the memory, not inform."""
SMALLEST, LARGEST = 1e-9, 1e15
"""Of what must be positive, in whichever unit: with less or more, times are no numbers any more."""


def _of_this_world(value: float) -> float:
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"must be between {SMALLEST:g} and {LARGEST:g}")
    return value


Milliseconds: TypeAlias = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""What every generator of random numbers takes, PyTorch's as well."""
Positive: TypeAlias = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    AfterValidator(_of_this_world),
]
Factor: TypeAlias = Annotated[float, Field(ge=1e-6, le=1e6)]
"""On a time or a share: what lies beyond is no question about this world, and no number's room."""
Count: TypeAlias = Annotated[int, Field(ge=1)]
Several: TypeAlias = Annotated[int, Field(ge=1, le=MOST)]
"""A count of what is held one by one: requests, their tokens, roles, runs."""
GridValues: TypeAlias = Annotated[tuple[Any, ...], Field(min_length=1)]
"""What is tried of one key."""
TokenTable: TypeAlias = Annotated[dict[Count, Milliseconds], Field(min_length=1)]
"""Milliseconds against tokens."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Metadata of a key that is read only where the key beside it has one of ``values`` (with no
    values: any that is not empty)."""

    key: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadIf:
    """Metadata of a key that is read only where a condition holds, which ``scenario/unread.py``
    states by this name."""

    condition: str


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, given: Any) -> Any:
        """Refuse what pydantic would take: true for 1, and 1 or "yes" for true."""
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
    """The keys that are true or false and nothing else, and those that are numbers or made of
    them."""
    types = {name: {*_types(each.annotation)} for name, each in table.model_fields.items()}
    truths = {name: "truth" for name, own in types.items() if bool in own <= {bool, NoneType}}
    numbers = {name for name, own in types.items() if own & {int, float} and bool not in own}
    return truths | dict.fromkeys(numbers, "number")


def _types(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of, but for those of a table's own keys."""
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
    """The values in lists and tables, each with its place; those of tables with keys of a section
    look for themselves."""
    if isinstance(value, Mapping):
        inner: Any = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        yield place, value
        return
    for name, each in inner:
        yield from _values(each, (*place, name))
