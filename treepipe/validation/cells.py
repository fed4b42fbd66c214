"""Systems on emulated clusters, predicted and run: one mechanism, in three sizes.

The demonstration is a few cells, the study ``all-schedules`` every system's, the standard grid
(``studies/workshop/grid.py``) a balanced fraction of systems x settings. Law of this file: a cell
is a system at one level of each factor; a size says how many prompts and tokens it gets, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from treepipe.core.schedules import systems
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.validation.calibration import CALIBRATION
from treepipe.validation.comparison import Case

SCENARIO = Path(__file__).parents[1] / "studies" / "scenarios" / "demo.toml"
SYSTEMS: tuple[str, ...] = tuple(systems())
EXTRA: Mapping[str, Mapping[str, Any]] = {
    "pipedec": {"schedule.groups": 2},  # as its paper does with 14 stages
    "specpipe_db": {"workload.concurrency": 4},
    "starsd": {"pipelines.0.count": 2, "workload.concurrency": 2},  # with one target it is chain
}
"""What a system needs besides its name to be none of the others."""
STAGES = (2, 4, 8)
LATENCIES_MS = (0.2, 5.0, 20.0)
STAGE_MS = (10.0, 20.0)
"""Of a pass of up to 16 tokens. Eight stages, a draft and their messages need about 10 ms of this
machine's two cores for each step; faster devices than that could not be emulated on them."""
PREDICTED_TOKENS = 2500
"""In all runs of a prediction together: enough to know its mean to about 2 %."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A system on so many stages, with links of ``latency_ms`` one way.

    Attributes:
        stage_ms: of a pass of up to 16 tokens.
        kind: of the prompts; None: code, prose and arithmetic in turn.
    """

    schedule: ScheduleName
    stages: int = 4
    latency_ms: float = 1.0
    stage_ms: float = 20.0
    kind: str | None = None

    @property
    def label(self) -> str:
        """The system alone on the demonstration's cluster."""
        if self == Cell(self.schedule):
            return self.schedule
        kind = f", {self.kind}" if self.kind else ""
        return (
            f"{self.schedule}, {self.stages} x {self.stage_ms:g} ms, {self.latency_ms:g} ms{kind}"
        )

    def changes(self) -> dict[str, Any]:
        """What its scenario has instead of the demonstration's."""
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
    """How much is done of a cell: prompts of so many new tokens.

    Attributes:
        chain_requests: of systems with one narrow tree per round, whose speed differs twice as
            much from text to text; None: as many as all others have.
        plain_requests: of plain decoding, which takes the same time for every token.
        runs: of the prediction; None: as many as make ``PREDICTED_TOKENS``.
        calibrated_on: prompts, as in ``Prepared``.
    """

    requests: int = 15
    chain_requests: int | None = None
    plain_requests: int = 3
    new_tokens: int = 40
    runs: int | None = 8
    calibrated_on: str = CALIBRATION

    def requests_of(self, schedule: str) -> int:
        """Prompts of a cell."""
        system = systems()[schedule]
        if not system.drafts:
            return self.plain_requests
        return (system.drawn and self.chain_requests) or self.requests

    def changes(self, schedule: str) -> dict[str, Any]:
        """What a scenario of a cell has instead of the demonstration's."""
        count = self.requests_of(schedule)
        return {
            "workload.requests": count,
            "workload.new_tokens": self.new_tokens,
            "runs": self.runs or ceil(PREDICTED_TOKENS / count / self.new_tokens),
        }


def cases_of(cells: Iterable[Cell], size: Size) -> list[Case]:
    """Cells to predict and run, in the same order, labelled as they are."""
    base = Scenario.load(SCENARIO)
    found = []
    for cell in cells:
        scenario = base.with_(**cell.changes(), **size.changes(cell.schedule))
        found.append(Case(cell.label, scenario, size.calibrated_on))
    return found
