"""All that the study of PipeDec simulated, and what follows from it by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from treepipe.results.metrics import METRIC
from treepipe.results.statistics import Interval
from treepipe.sim.points import Outcome
from treepipe.studies.layered.calibration import Levels
from treepipe.studies.layered.cluster import Cluster

STAGES = ("7-stage", "14-stage", "21-stage")
THROUGHPUT = "throughput_tokens_s"
STOCHASTIC = 1.25
"""Times the misses of greedy decoding, at temperature 0.6, top-p 0.9, top-k 80 (assumed)."""


@dataclass(frozen=True, slots=True)
class Found:
    """All that was simulated.

    Attributes:
        plain_ms: time between tokens of the plain pipeline on the 14 cards.
        times: by number of stages, and of the static tree ("stpp"): per level, in milliseconds.
        cases: with 14 stages and of the static tree: at further levels.
        grid: by width and candidates per node.
        together: by method and number of requests side by side.
    """

    levels: Levels
    plain_ms: float
    times: Mapping[str, Sequence[Interval]]
    cases: Mapping[str, Mapping[str, Outcome]]
    grid: Mapping[tuple[int, int], Outcome]
    together: Mapping[tuple[str, int], Outcome]
    cluster: Cluster

    def over_plain(self, name: str) -> list[Interval]:
        """Speed-up per level."""
        return [time.inverse(self.plain_ms) for time in self.times[name]]

    def over_static(self, name: str) -> list[Interval]:
        """Speed-up per level."""
        pairs = zip(self.times["stpp"], self.times[name], strict=True)
        return [time.inverse(slow.mean) for slow, time in pairs]

    @property
    def best(self) -> tuple[int, int]:
        """Width and candidates per node."""
        return min(self.grid, key=lambda pair: self.grid[pair].metrics[METRIC].mean)

    @property
    def gain(self) -> float:
        """Of 14 stages over 7: by how much more tokens come in the same time."""
        seven, longer = (fmean(t.mean for t in self.times[n]) for n in STAGES[:2])
        return seven / longer - 1
