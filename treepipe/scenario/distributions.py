"""Lengths and arrival processes as a scenario writes them, and how each is drawn.

Law of this file: values are drawn one after another from the generator that is given, so a longer
draw begins with a shorter one.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Discriminator, Field, Tag, model_validator

from treepipe.files.section import MOST, Section, Several

Rate: TypeAlias = Annotated[float, Field(gt=0, le=1e9)]
"""Requests per second."""
Mean: TypeAlias = Annotated[float, Field(ge=1, le=MOST)]
"""Tokens."""
Variation: TypeAlias = Annotated[float, Field(gt=0, le=1000)]
"""Standard deviation over mean."""

Floats: TypeAlias = npt.NDArray[np.float64]


class LengthDistribution(Section):
    """A number of tokens per request: drawn, rounded, and moved into ``min``..``max``."""

    min: Several = 1
    max: Several | None = None

    @model_validator(mode="after")
    def _bounds(self) -> LengthDistribution:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max = {self.max} is less than min = {self.min}")
        return self

    @abstractmethod
    def values(self, rng: np.random.Generator, count: int) -> Floats:
        """The drawn values before they are rounded and bounded."""

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """So many lengths, in tokens."""
        lengths = np.clip(np.rint(self.values(rng, count)), self.min, self.max)
        return [int(length) for length in lengths]


class Uniform(LengthDistribution):
    """Every length from ``min`` to ``max`` is as likely."""

    distribution: Literal["uniform"]
    max: Several

    def values(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.integers(self.min, self.max + 1, count).astype(float)


class LogNormal(LengthDistribution):
    """Many short ones and few long ones, as texts are."""

    distribution: Literal["lognormal"]
    mean: Mean
    cv: Variation = Field(1.0, description="standard deviation over mean")

    def values(self, rng: np.random.Generator, count: int) -> Floats:
        variance = np.log1p(self.cv**2)
        return rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), count)


class Geometric(LengthDistribution):
    """Each token is the last one with the same probability, 1 / ``mean``."""

    distribution: Literal["geometric"]
    mean: Mean

    def values(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.geometric(1 / self.mean, count).astype(float)


def _form(value: Any) -> str | None:
    if isinstance(value, dict):
        name = value.get("distribution")
        return name if isinstance(name, str) else None
    return str(getattr(value, "distribution", "constant"))


Lengths: TypeAlias = Annotated[
    Annotated[Several, Tag("constant")]
    | Annotated[Uniform, Tag("uniform")]
    | Annotated[LogNormal, Tag("lognormal")]
    | Annotated[Geometric, Tag("geometric")],
    Discriminator(
        _form,
        custom_error_type="lengths",
        custom_error_message="Must be a number of tokens, or a table whose distribution is "
        "'uniform', 'lognormal' or 'geometric'",
    ),
]
"""The same number of tokens for every request, or drawn for each."""


def draw_lengths(lengths: Lengths, rng: np.random.Generator, count: int) -> list[int]:
    """Tokens per request."""
    return [lengths] * count if isinstance(lengths, int) else lengths.draw(rng, count)


class Poisson(Section):
    """Requests come independently of each other."""

    process: Literal["poisson"]
    rate_per_s: Rate

    def times_ms(self, rng: np.random.Generator, count: int) -> Floats:
        return np.cumsum(rng.exponential(1e3 / self.rate_per_s, count))


class Gamma(Section):
    """Independent gaps of a gamma distribution: ``cv`` 1 is Poisson, 0 even, above 1 bursty."""

    process: Literal["gamma"]
    rate_per_s: Rate
    cv: Annotated[Variation, Field(ge=1e-3)] = Field(
        description="standard deviation of the gaps over their mean"
    )

    def times_ms(self, rng: np.random.Generator, count: int) -> Floats:
        shape = self.cv**-2
        return np.cumsum(rng.gamma(shape, 1e3 / self.rate_per_s / shape, count))


class ArrivalTrace(Section):
    """Requests of a CSV file with the columns arrival_s, prompt_tokens, new_tokens."""

    process: Literal["trace"]
    file: str


Arrivals: TypeAlias = Annotated[Poisson | Gamma | ArrivalTrace, Field(discriminator="process")]
