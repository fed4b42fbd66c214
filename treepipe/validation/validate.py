"""The command ``treepipe validate``: predict, run, replay, explain, and compare with an earlier
file.

Figures come from ``validation.py``, runs from ``comparison.py``, sentences from
``validation_report.py``; ``measured.py`` takes a benchmark's result in place of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.results.show import ProgressBars
from treepipe.scenario.scenario import Scenario
from treepipe.validation.comparison import Case, compared
from treepipe.validation.outcome import Request, check, conclude
from treepipe.validation.validation import entry


def perform(request: Request) -> dict[str, Any]:
    """Validate and show; returns the file's content.

    Raises:
        UserError: an argument or input file is wrong.
        RunError: a run failed, a text is not plain greedy decoding's, or a file could not be
            written.
    """
    earlier = check(request)
    cases = [
        Case(label, Scenario.load(path, request.overrides), request.calibrate_on)
        for label, path in _labels(request.paths).items()
    ]
    with ProgressBars(request.quiet) as say:
        rows = compared(cases, say)
    scenarios = [case.scenario for case in cases]
    return conclude(request, [entry(row) for row in rows.values()], rows, scenarios, earlier)


def _labels(paths: Sequence[Path]) -> dict[str, Path]:
    """Label scenario paths by their stems, or by the whole path if two stems are equal."""
    stems = [path.stem for path in paths]
    found = {
        stem if stems.count(stem) == 1 else str(p): p for stem, p in zip(stems, paths, strict=True)
    }
    if len(found) < len(paths):
        twice = next(path for path in paths if list(paths).count(path) > 1)
        raise UserError(f"{twice}: is given twice")
    return found
