"""What every table of a scenario or profile file is made of: strict, frozen, unit-bearing types."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

MOST = 1_000_000
"""Of anything that a simulation holds one by one; more would exhaust the memory, not inform."""
SMALLEST, LARGEST = 1e-9, 1e15
"""Of what must be positive, in whichever unit: with less or more, times are no numbers any more."""


def _no_truth(value: Any) -> Any:
    """Pydantic takes ``true`` for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def _of_this_world(value: float) -> float:
    if not SMALLEST <= value <= LARGEST:
        raise ValueError(f"must be between {SMALLEST:g} and {LARGEST:g}")
    return value


Milliseconds: TypeAlias = Annotated[
    float, BeforeValidator(_no_truth), Field(ge=0, le=1e12, allow_inf_nan=False)
]
Seed: TypeAlias = Annotated[int, BeforeValidator(_no_truth), Field(ge=0, lt=2**63)]
"""What every generator of random numbers takes, PyTorch's as well."""
Positive: TypeAlias = Annotated[
    float,
    BeforeValidator(_no_truth),
    Field(gt=0, allow_inf_nan=False),
    AfterValidator(_of_this_world),
]
Factor: TypeAlias = Annotated[float, BeforeValidator(_no_truth), Field(ge=1e-6, le=1e6)]
"""On a time or a share: what lies beyond is no question about this world, and no number's room."""
Count: TypeAlias = Annotated[int, BeforeValidator(_no_truth), Field(ge=1)]
Several: TypeAlias = Annotated[int, BeforeValidator(_no_truth), Field(ge=1, le=MOST)]
"""A count of what is held one by one: requests, their tokens, roles, runs."""
GridValues: TypeAlias = Annotated[tuple[Any, ...], Field(min_length=1)]
"""What is tried of one key."""
TokenTable: TypeAlias = Annotated[dict[Count, Milliseconds], Field(min_length=1)]
"""Milliseconds against tokens."""


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
