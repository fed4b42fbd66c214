"""The standard grid of the validation: what is predicted and run, a balanced fraction of all cells.

    python -m treepipe.validation.grid docs

Factors: every schedule, 2, 4 and 8 stages, links of 0.2, 5 and 20 ms, stages of 10 and 20 ms, code
and prose. Every pair of levels of two factors occurs. Law of this file: all cells are predicted
before the first process starts, from prompts of texts that none of the decoded ones come from.
The report is in ``grid_report.py``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from treepipe.core.schedules import systems
from treepipe.profiles.library import REFERENCE
from treepipe.results.show import Progress, Say
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.validation.comparison import Case, compare
from treepipe.validation.demo import SCENARIO
from treepipe.validation.grid_report import aims, write_report
from treepipe.validation.validate import changes, write_timelines
from treepipe.validation.validation import against, entry, load_validation

SCHEDULES: tuple[str, ...] = tuple(systems())
STAGES = (2, 4, 8)
LATENCIES_MS = (0.2, 5.0, 20.0)
STAGE_MS = (10.0, 20.0)
"""Of a pass of up to 16 tokens. Eight stages, a draft and their messages need about 10 ms of this
machine's two cores for each step; faster devices than that could not be emulated on them."""
KINDS = ("code", "prose")
STEP = 5
"""Coprime to the 36 cells without the schedule, which are gone through in steps of so many."""
EXTRA: dict[str, dict[str, Any]] = {
    "pipedec": {"schedule.group_size": 2},  # without groups it is specpipe
    "specpipe_db": {"workload.concurrency": 4},
    "starsd": {"pipelines.0.count": 2, "workload.concurrency": 2},  # with one target it is chain
}
"""What a schedule needs besides its name to be none of the others."""
PREDICTED_TOKENS = 2500
"""In all runs of a prediction together: enough to know its mean to about 2 %."""
LARGE = 0.06
"""Timelines are drawn of cells whose duration error is at least this."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One prediction and run of the grid, the ``order``-th."""

    order: int
    schedule: ScheduleName
    stages: int
    latency_ms: float
    stage_ms: float
    kind: str

    @property
    def label(self) -> str:
        return (
            f"{self.schedule}, {self.stages} x {self.stage_ms:g} ms, {self.latency_ms:g} ms, "
            f"{self.kind}"
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: the first ``cells`` of the grid, so many prompts of so many new tokens.

    Attributes:
        chain_requests: of schedules with one narrow tree per round, whose speed differs twice as
            much from text to text. Plain decoding takes the same time for every token.
    """

    cells: int = 5 * len(SCHEDULES)
    requests: int = 10
    chain_requests: int = 20
    plain_requests: int = 2
    new_tokens: int = 16

    def requests_of(self, schedule: str) -> int:
        """Prompts of a cell."""
        system = systems()[schedule]
        if not system.drafts:
            return self.plain_requests
        return self.chain_requests if system.drawn else self.requests


def cells(count: int) -> list[Cell]:
    """The first ``count`` of the grid: five per schedule make every pair of levels occur."""
    found = []
    for number in range(count):
        place = number * STEP % (len(STAGES) * len(LATENCIES_MS) * len(STAGE_MS) * len(KINDS))
        place, stages = divmod(place, len(STAGES))
        place, latency = divmod(place, len(LATENCIES_MS))
        kind, speed = divmod(place, len(STAGE_MS))
        schedule = SCHEDULES[number % len(SCHEDULES)]
        levels = STAGES[stages], LATENCIES_MS[latency], STAGE_MS[speed], KINDS[kind]
        found.append(Cell(number, schedule, *levels))
    return found


def run_grid(settings: Settings, say: Say, timelines: Path | None = None) -> Iterator[Any]:
    """Predict all cells, then run them; yields each one's cell and entry (see ``validation.py``).

    Args:
        timelines: folder for those of cells that are far off by their durations.
    """
    wanted = cells(settings.cells)
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(wanted, settings, Path(folder))
        by_label = {cell.label: cell for cell in wanted}
        for row in compare(cases, say):
            if timelines is not None and abs(row.duration_error) >= LARGE:
                write_timelines(row, timelines / row.label)
            found = {**entry(row), "load": os.getloadavg()[0]}
            yield by_label[row.label], found


def _cases(wanted: Sequence[Cell], settings: Settings, folder: Path) -> list[Case]:
    """Cells as cases; those of a kind take its held-out prompts in turn."""
    prompts = json.loads((REFERENCE / "validation_prompts.json").read_text(encoding="utf-8"))
    turn = {kind: itertools.cycle(prompts[kind]["heldout"]) for kind in KINDS}
    for kind in KINDS:
        _write(folder / f"{kind}-calibration.json", prompts[kind]["calibration"])
    cases, base = [], Scenario.load(SCENARIO)
    for number, cell in enumerate(wanted):
        count = settings.requests_of(cell.schedule)
        file = folder / f"{number}.json"
        _write(file, list(itertools.islice(turn[cell.kind], count)))
        changes = {
            **_changes(cell),
            "workload.prompts": str(file),
            "workload.requests": count,
            "workload.new_tokens": settings.new_tokens,
            "runs": ceil(PREDICTED_TOKENS / count / settings.new_tokens),
        }
        calibration = str(folder / f"{cell.kind}-calibration.json")
        cases.append(Case(cell.label, base.with_(**changes), calibration))
    return cases


def _changes(cell: Cell) -> dict[str, Any]:
    """What a cell's scenario has instead of the demonstration's."""
    stage = cell.stage_ms
    table = {1: stage, 64: 1.04 * stage, 128: 1.7 * stage}
    return {
        "name": cell.label,
        "schedule.name": cell.schedule,
        "pipelines.0.stages.0.count": cell.stages,
        "pipelines.0.stages.0.device": {"stage_ms": table, "prune_ms": 0.5},
        "links.default": {"latency_ms": cell.latency_ms, "bandwidth_mbit_s": 1000.0},
        **EXTRA.get(cell.schedule, {}),
    }


def _write(file: Path, texts: Sequence[str]) -> None:
    file.write_text(json.dumps(texts), encoding="utf-8")


def main() -> None:
    """Run the grid and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the report")
    parser.add_argument("--cells", type=int, default=Settings().cells, help="only so many")
    parser.add_argument("--timelines", type=Path, help="of cells that are far off, into here")
    arguments = parser.parse_args()
    if arguments.timelines is not None:
        arguments.timelines.mkdir(parents=True, exist_ok=True)
    before = arguments.out / "validation.json"
    earlier = load_validation(before, "out") if before.exists() else None
    started, found = time.monotonic(), []
    with Progress(quiet=False) as say:
        settings = Settings(cells=arguments.cells)
        for cell, result in run_grid(settings, say, arguments.timelines):
            found.append((cell, result))
            error = result["metrics"]["time_between_tokens_ms"]
            print(
                f"{len(found):3} {cell.label}: {error['error']:+.1%}, of it durations "
                f"{error['duration_error']:+.1%}, load {result['load']:.1f}",
                flush=True,
            )
    content = write_report(found, arguments.out, settings, time.monotonic() - started)
    print("\n".join(aims(content["summary"])))
    if earlier is not None:
        print("\n".join(changes(against(earlier, content))))
    wrong = [cell.label for cell, result in found if not result["lossless"]]
    if wrong:
        sys.exit(f"texts differ from plain greedy decoding: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
