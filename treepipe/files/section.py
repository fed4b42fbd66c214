"""The base of every table of a scenario or profile file: strict, frozen types with units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

if TYPE_CHECKING:
    from typing_extensions import Self

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

    @model_validator(mode="wrap")
    @classmethod
    def _truth_is_no_number(cls, given: Any, make: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse conversions that pydantic allows: true to 1, and 1 or "yes" to true."""
        made = make(given)
        for name, value in given.items() if isinstance(given, Mapping) else ():
            for place, each in _converted(value, getattr(made, name), (name,)):
                kind = _TRUE_NUMBER if isinstance(each, bool) else "bool_type"
                fault: InitErrorDetails = {"type": kind, "loc": place, "input": each}
                raise ValidationError.from_exception_data(cls.__name__, [fault])
        return made


_TRUE_NUMBER = PydanticCustomError("truth", "must be a number, not true or false")


def _converted(
    given: Any, made: Any, place: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield what became true or false, or was so and became a number, with its place."""
    if isinstance(given, Mapping) and isinstance(made, Mapping):
        for (name, value), own in zip(given.items(), made.values(), strict=False):
            yield from _converted(value, own, (*place, name))
    elif isinstance(given, list | tuple) and isinstance(made, tuple):
        for index, (value, own) in enumerate(zip(given, made, strict=False)):
            yield from _converted(value, own, (*place, index))
    elif isinstance(given, bool) != isinstance(made, bool):
        yield place, given


def tables_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the kinds of tables that an annotation allows, itself or as values of a table."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [each for part in get_args(annotation) for each in tables_in(part)]
