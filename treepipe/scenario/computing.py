"""What a worker of a run computes with, and in what type. The simulator has times instead.

Nothing here needs torch; what it has of these devices is asked in ``executor/computing.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from treepipe.profiles.shapes import DType

Computed: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""Types that a run can compute in."""
COMPUTED: tuple[Computed, ...] = get_args(Computed)
FULL: Computed = "float32"
"""The type in which every schedule's greedy text is plain decoding's but for the
rarest ties."""


@dataclass(frozen=True, slots=True)
class Compute:
    """A role's settings.

    Attributes:
        kind, index: of the processor; a CPU has no index.
        threads: that the CPU computes with.
        dtype: of weights, states, keys and values.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    index: int = 0
    threads: int = 1
    dtype: Computed = FULL

    @property
    def device(self) -> str:
        """The name that torch has for it."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


ONE_CORE = Compute()
"""What a role computes with unless its device says something else."""


def computed_in(dtype: DType | None) -> Computed:
    """The type that a run computes in where a scenario says ``dtype`` of a model."""
    return next((each for each in COMPUTED if each == dtype), FULL)
