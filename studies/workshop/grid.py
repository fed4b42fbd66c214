"""The standard grid of the validation: a balanced fraction of all cells, predicted and run.

    python -m treepipe.studies.workshop.grid docs

Factors: every schedule, 2, 4 and 8 stages, links of 0.2, 5 and 20 ms, stages of 10 and 20 ms, code
and prose. Every pair of levels of two factors occurs. Acceptance is calibrated on prompts from
other texts than the decoded ones. The report is in ``grid_report.py``.
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
from dataclasses import replace
from pathlib import Path
from typing import Any

from treepipe.files.reading import read_json
from treepipe.profiles.library import REFERENCE
from treepipe.progress import Progress
from treepipe.results.show import ProgressBars
from treepipe.studies.workshop.cells import (
    LATENCIES_MS,
    STAGE_MS,
    STAGES,
    SYSTEMS,
    Cell,
    Size,
    cases_of,
)
from treepipe.studies.workshop.grid_report import against, aims, changes, write_report
from treepipe.validation.comparison import Case, compare
from treepipe.validation.validation import entry, write_timelines

KINDS = ("code", "prose")
STEP = 5
"""Stride through the 36 cells without the schedule, to which it is coprime."""
CELLS = 5 * len(SYSTEMS)
SIZE = Size(requests=10, chain_requests=20, plain_requests=2, new_tokens=16, runs=None)
LARGE = 0.06
"""Duration error from which a cell's timelines are drawn."""


def grid_cells(count: int = CELLS) -> list[Cell]:
    """Return the first ``count`` cells; five per schedule contain every pair of levels."""
    found = []
    for number in range(count):
        place = number * STEP % (len(STAGES) * len(LATENCIES_MS) * len(STAGE_MS) * len(KINDS))
        place, stages = divmod(place, len(STAGES))
        place, latency = divmod(place, len(LATENCIES_MS))
        kind, speed = divmod(place, len(STAGE_MS))
        schedule = SYSTEMS[number % len(SYSTEMS)]
        levels = STAGES[stages], LATENCIES_MS[latency], STAGE_MS[speed], KINDS[kind]
        found.append(Cell(schedule, *levels))
    return found


def run_grid(
    cells: Sequence[Cell], size: Size, say: Progress, timelines: Path | None = None
) -> Iterator[Any]:
    """Predict all cells, then run them; yields each one's cell and entry (see ``validation.py``).

    Args:
        timelines: folder for the timelines of cells with large duration errors.
    """
    by_label = {cell.label: cell for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        for row in compare(_held_out(cells, size, Path(folder)), say):
            if timelines is not None and abs(row.duration_error) >= LARGE:
                write_timelines(row, timelines / row.label)
            yield by_label[row.label], {**entry(row), "load": os.getloadavg()[0]}


def _held_out(cells: Sequence[Cell], size: Size, folder: Path) -> list[Case]:
    """Make cases with the held-out prompts of each kind in turn, calibrated on its other prompts;
    ``folder``: for the files of prompts, a kind's and a cell's."""
    prompts = json.loads((REFERENCE / "validation_prompts.json").read_text(encoding="utf-8"))
    turn = {kind: itertools.cycle(prompts[kind]["heldout"]) for kind in KINDS}
    calibration = {kind: folder / f"{kind}-calibration.json" for kind in KINDS}
    for kind, file in calibration.items():
        _write(file, prompts[kind]["calibration"])
    found = []
    for number, (cell, case) in enumerate(zip(cells, cases_of(cells, size), strict=True)):
        assert cell.kind is not None
        file = folder / f"{number}.json"
        _write(file, list(itertools.islice(turn[cell.kind], size.requests_of(cell.schedule))))
        scenario = case.scenario.with_(**{"workload.prompts": str(file)})
        found.append(replace(case, scenario=scenario, calibrate_on=str(calibration[cell.kind])))
    return found


def _write(file: Path, texts: Sequence[str]) -> None:
    file.write_text(json.dumps(texts), encoding="utf-8")


def main() -> None:
    """Run the grid and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the report")
    parser.add_argument("--cells", type=int, default=CELLS, help="only so many")
    parser.add_argument("--timelines", type=Path, help="of cells that are far off, into here")
    arguments = parser.parse_args()
    if arguments.timelines is not None:
        arguments.timelines.mkdir(parents=True, exist_ok=True)
    before = arguments.out / "validation.json"
    earlier = read_json(before) if before.exists() else None
    started, found = time.monotonic(), []
    with ProgressBars(quiet=False) as say:
        cells = grid_cells(arguments.cells)
        for cell, result in run_grid(cells, SIZE, say, arguments.timelines):
            found.append((cell, result))
            error = result["metrics"]["time_between_tokens_ms"]
            print(
                f"{len(found):3} {cell.label}: {error['error']:+.1%}, of it durations "
                f"{error['duration_error']:+.1%}, load {result['load']:.1f}",
                flush=True,
            )
    found.sort(key=lambda each: cells.index(each[0]))  # from the order of clusters
    content = write_report(found, arguments.out, SIZE, time.monotonic() - started)
    print("\n".join(aims(content["summary"])))
    if earlier is not None:
        print("\n".join(changes(against(earlier, content))))
    wrong = [cell.label for cell, result in found if not result["lossless"]]
    if wrong:
        sys.exit(f"texts differ from plain greedy decoding: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
