"""What every table of a scenario or profile file is made of: strict, frozen, unit-bearing types."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Milliseconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
TokenTable: TypeAlias = Annotated[dict[Count, Milliseconds], Field(min_length=1)]
"""Milliseconds against tokens."""


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)
