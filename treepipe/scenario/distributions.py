"""Distributions of lengths and arrival times as a scenario writes them, and how each is drawn.

Invariant: values are drawn one after another from the given generator, so a longer draw begins with
a shorter one.
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
"""Mean number of tokens."""
Variation: TypeAlias = Annotated[float, Field(gt=0, le=1000)]
"""Coefficient of variation: standard deviation over mean."""

Floats: TypeAlias = npt.NDArray[np.float64]


class LengthDistribution(Section):
    """A number of tokens per request: drawn, rounded, and clipped to ``min``..``max``."""

    min: Several = Field(1, description="lower bound")
    max: Several | None = Field(None, description="upper bound")

    @model_validator(mode="after")
    def _bounds(self) -> LengthDistribution:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max = {self.max} is less than min = {self.min}")
        return self

    @abstractmethod
    def values(self, rng: np.random.Generator, count: int) -> Floats:
        """Return the drawn values before they are rounded and clipped."""

    def draw(self, rng: np.random.Generator, count: int) -> list[int]:
        """Draw ``count`` lengths, in tokens."""
        lengths = np.clip(np.rint(self.values(rng, count)), self.min, self.max)
        return [int(length) for length in lengths]


class Uniform(LengthDistribution):
    """A uniform distribution from ``min`` to ``max``."""

    distribution: Literal["uniform"]
    max: Several = Field(description="upper bound")

    def values(self, rng: np.random.Generator, count: int) -> Floats:
        return rng.integers(self.min, self.max + 1, count).astype(float)


class LogNormal(LengthDistribution):
    """A log-normal distribution: many short and few long lengths, as in texts."""

    distribution: Literal["lognormal"]
    mean: Mean = Field(description="mean of all lengths")
    cv: Variation = Field(1.0, description="standard deviation over mean")

    def values(self, rng: np.random.Generator, count: int) -> Floats:
        variance = np.log1p(self.cv**2)
        return rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), count)


class Geometric(LengthDistribution):
    """A geometric distribution: each token is the last one with probability 1 / ``mean``."""

    distribution: Literal["geometric"]
    mean: Mean = Field(description="mean of all lengths")

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
"""A constant number of tokens, or a distribution to draw each request's from."""


def draw_lengths(lengths: Lengths, rng: np.random.Generator, count: int) -> list[int]:
    """Draw the tokens of each request."""
    return [lengths] * count if isinstance(lengths, int) else lengths.draw(rng, count)


class Poisson(Section):
    """A Poisson process: requests arrive independently of each other."""

    process: Literal["poisson"]
    rate_per_s: Rate = Field(description="requests per second")

    def times_ms(self, rng: np.random.Generator, count: int) -> Floats:
        return np.cumsum(rng.exponential(1e3 / self.rate_per_s, count))


class Gamma(Section):
    """Independent gamma-distributed gaps: ``cv`` 1 is Poisson, 0 even, above 1 bursty."""

    process: Literal["gamma"]
    rate_per_s: Rate = Field(description="requests per second")
    cv: Annotated[Variation, Field(ge=1e-3)] = Field(
        description="standard deviation of the gaps over their mean; 1: Poisson"
    )

    def times_ms(self, rng: np.random.Generator, count: int) -> Floats:
        shape = self.cv**-2
        return np.cumsum(rng.gamma(shape, 1e3 / self.rate_per_s / shape, count))


Arrivals: TypeAlias = Annotated[Poisson | Gamma, Field(discriminator="process")]
