"""Cells of the standard grid: systems on emulated clusters to predict and run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from treepipe.core.schedules import systems
from treepipe.profiles.library import CALIBRATION
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.validation.comparison import Case
from treepipe.validation.demo import SCENARIO

SYSTEMS: tuple[str, ...] = tuple(systems())
EXTRA: Mapping[str, Mapping[str, Any]] = {
    "pipedec": {"schedule.groups": 2},  # as in its paper with 14 stages
    "specpipe_db": {"workload.concurrency": 4},
    "starsd": {"pipelines.0.count": 2, "workload.concurrency": 2},  # one target equals "chain"
}
"""Keys besides its name that a system needs to differ from the others."""
STAGES = (2, 4, 8)
LATENCIES_MS = (0.2, 5.0, 20.0)
STAGE_MS = (10.0, 20.0)
"""Times of a pass of up to 16 tokens. Eight stages, a draft and their messages need about 10 ms of
two cores for each step; two cores cannot emulate faster devices."""
PREDICTED_TOKENS = 2500
"""Tokens of all runs of a prediction together, which determine the mean to about 2 %."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A system on a number of stages of ``stage_ms`` per pass, with links of ``latency_ms`` one
    way; ``kind`` of the prompts (None: code, prose and arithmetic in turn)."""

    schedule: ScheduleName
    stages: int = 4
    latency_ms: float = 1.0
    stage_ms: float = 20.0
    kind: str | None = None

    @property
    def label(self) -> str:
        if self == Cell(self.schedule):
            return self.schedule
        kind = f", {self.kind}" if self.kind else ""
        return (
            f"{self.schedule}, {self.stages} x {self.stage_ms:g} ms, {self.latency_ms:g} ms{kind}"
        )

    def changes(self) -> dict[str, Any]:
        """Return the keys that differ from the demonstration's scenario."""
        stage = self.stage_ms
        table = {1: stage, 64: 1.04 * stage, 128: 1.7 * stage}
        return {
            "name": self.label,
            "schedule.name": self.schedule,
            "pipelines.0.stages.0.count": self.stages,
            "pipelines.0.stages.0.device": {"profile": "emulated-20ms", "stage_ms": table},
            "links.default": {"latency_ms": self.latency_ms, "bandwidth_mbit_s": 1000.0},
            **EXTRA.get(self.schedule, {}),
        }


@dataclass(frozen=True, slots=True)
class Size:
    """The number and length of a cell's requests.

    Attributes:
        chain_requests: prompts of systems with one narrow tree per round, whose speed varies twice
            as much from text to text; None: as many as for all others.
        plain_requests: prompts of plain decoding, which takes equal time for every token.
        runs: number of the prediction's runs; None: enough for ``PREDICTED_TOKENS``.
    """

    requests: int = 15
    chain_requests: int | None = None
    plain_requests: int = 3
    new_tokens: int = 40
    runs: int | None = 8
    calibrated_on: str = CALIBRATION

    def requests_of(self, schedule: str) -> int:
        system = systems()[schedule]
        if not system.drafts:
            return self.plain_requests
        return (system.drawn and self.chain_requests) or self.requests

    def changes(self, schedule: str) -> dict[str, Any]:
        """Return the keys of a cell's scenario that differ from the demonstration's."""
        count = self.requests_of(schedule)
        return {
            "workload.requests": count,
            "workload.new_tokens": self.new_tokens,
            "runs": self.runs or ceil(PREDICTED_TOKENS / count / self.new_tokens),
        }


def cases_of(cells: Iterable[Cell], size: Size) -> list[Case]:
    """Make the cases of cells, in the same order and with the cells' labels."""
    base = Scenario.load(SCENARIO)
    found = []
    for cell in cells:
        scenario = base.with_(**cell.changes(), **size.changes(cell.schedule))
        found.append(Case(cell.label, scenario, size.calibrated_on))
    return found
