"""Processor and type that a worker of a run computes with; the simulator has times instead.

Nothing here needs torch; ``executor/computing.py`` queries the devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from treepipe.profiles.shapes import DType

Computed: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""Types that a run can compute in."""
COMPUTED: tuple[Computed, ...] = get_args(Computed)
FULL: Computed = "float32"
"""Type in which every schedule's greedy text equals plain decoding's, except for very rare ties."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute settings of a role.

    Attributes:
        kind, index: the processor; a CPU has no index.
        threads: number of CPU threads.
        dtype: type of weights, states, keys and values.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    index: int = 0
    threads: int = 1
    dtype: Computed = FULL

    @property
    def device(self) -> str:
        """The device's name in torch."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


ONE_CORE = Compute()
"""Settings of a role whose device states nothing else."""


def computed_in(dtype: DType | None) -> Computed:
    """Return the type that a run computes in where a scenario states ``dtype`` of a model."""
    return next((each for each in COMPUTED if each == dtype), FULL)
