"""All that the README claims, made again in one table, and all published figures that were left out.

What is made, what is claimed with it and where it is quoted is in ``evidence.toml``: this file knows
no single study. Figures of long runs come from the files that these wrote, with their dates.
"""

from __future__ import annotations

import datetime
import importlib
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.executor.wire.processor import Processor, real_time_class
from treepipe.extras import need_executor, version_of
from treepipe.files.reading import read_json
from treepipe.files.toml_file import read_toml
from treepipe.progress import Progress
from treepipe.results.sheet import Sheet, columns, words
from treepipe.scenario.scenario import Scenario
from treepipe.studies.plots import published_figure
from treepipe.studies.reproduction import score_sheet
from treepipe.studies.study import STUDIES, Entry, StudyResult, score

NAME = "evidence"
FOLDER = Path(__file__).resolve().parent
FILE: Mapping[str, Any] = read_toml(FOLDER / f"{NAME}.toml")


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job."""

    quick: bool = False


SHORT, FULL = Settings(quick=True), Settings()


def machine() -> str:
    """Describe processor, cores and versions, and whether processes run at real-time priority."""
    processor, torch = Processor.here(), version_of("torch")
    torch = "" if torch is None else f", torch {torch}"
    priority = "" if real_time_class() is None else ", workers at real-time priority"
    cores = f"{processor.cores} cores ({processor.name})"
    return f"{cores}, Python {platform.python_version()}{torch}{priority}"


def study(settings: Settings, say: Progress) -> StudyResult:
    """Make every part again, and read the claims' figures from what was made."""
    result, made, reasons = StudyResult(NAME), dict[str, Mapping[str, Any]](), dict[str, str]()
    for part in FILE["part"]:
        name, quick = part["name"], part.get("quick")
        try:
            if settings.quick and quick is None:
                raise UserError("not run with --quick")
            if name not in STUDIES or STUDIES[name].needs_executor:
                need_executor(name)
            changes = quick if settings.quick else {}
            own = _compared(part, changes, say) if "scenario" in part else _studied(name, changes, say)
        except UserError as error:
            reasons[name] = str(error)
            continue
        made[name] = own if isinstance(own, Mapping) else own.content()
        if isinstance(own, StudyResult):
            result.left_out |= own.left_out
            result.faults += own.faults
    made[NAME] = result.content()
    today, here = datetime.date.today().isoformat(), machine()
    claims = {
        each["name"]: {"date": today, "machine": here, **_claim(each, made, reasons)}
        for each in FILE["claim"]
    }
    ...
