"""The rule by which layers are dealt over the stages of a pipeline.

Invariant: every stage gets at least one layer and no more than it has room for, and all layers are
dealt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

PartitionRule: TypeAlias = Literal["even", "balanced", "fastest_first"]


@dataclass(frozen=True, slots=True)
class StageCost:
    """The cost of a stage, at the tokens and the context that its schedule gives it.

    Attributes:
        call_ms, layer_ms: time of a pass, and of each layer in it.
        most: maximum number of layers on its device; None: unknown.
        layers: number of layers that the file sets; None: open.
    """

    call_ms: float
    layer_ms: float
    most: int | None = None
    layers: int | None = None

    def has_room(self, count: int) -> bool:
        return self.layers is None and (self.most is None or count < self.most)


def deal(rule: PartitionRule, stages: Sequence[StageCost], total: int) -> list[int] | None:
    """Return layers per stage, at least one each; None if they do not fit.

    "balanced" makes the slowest stage as fast as possible (always giving the next layer to the
    stage that is done first with it is optimal, as a stage's time only grows); "fastest_first"
    makes the sum of all stages' times as small as possible.

    >>> slow, fast = StageCost(0.0, 3.0), StageCost(0.0, 1.0, most=6)
    >>> deal("balanced", [slow, fast], 8), deal("fastest_first", [slow, fast], 8)
    ([2, 6], [2, 6])
    >>> deal("balanced", [slow, slow, fast], 9), deal("fastest_first", [slow, slow, fast], 9)
    ([2, 2, 5], [2, 1, 6])
    """
    counts = [1 if stage.layers is None else stage.layers for stage in stages]
    for _ in range(total - sum(counts)):
        free = [i for i, stage in enumerate(stages) if stage.has_room(counts[i])]
        if not free:
            return None

        def cost(i: int) -> float:
            layers = counts[i] + 1 if rule == "balanced" else 1
            return stages[i].layer_ms * layers + stages[i].call_ms * (rule == "balanced")

        counts[min(free, key=cost)] += 1
    return counts if sum(counts) == total else None
