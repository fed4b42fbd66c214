"""What the README claims, made again, and all published figures that were left out.

``evidence.toml`` says what is made, what is claimed with it and where that is quoted: this file
knows no single study. Figures of long runs are read from their files, with their dates.
"""

from __future__ import annotations

import datetime
import importlib
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.executor.wire.processor import Processor
from treepipe.extras import need_executor
from treepipe.files.reading import read_json
from treepipe.files.toml_file import read_toml
from treepipe.library import validate
from treepipe.progress import Progress
from treepipe.results.sheet import Sheet, words
from treepipe.scenario.scenario import Scenario
from treepipe.studies.plots import published_figure
from treepipe.studies.reproduction import score_sheet
from treepipe.studies.study import STUDIES, Entry, StudyResult, score
from treepipe.validation.validation import Validation

NAME = "evidence"
FOLDER = Path(__file__).resolve().parent
FILE: Mapping[str, Any] = read_toml(FOLDER / f"{NAME}.toml")


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job; ``quick`` changes or leaves out what takes minutes."""

    quick: bool = False


SHORT, FULL = Settings(quick=True), Settings()


def study(settings: Settings, say: Progress) -> StudyResult:
    """Make every part again, and read the claims' figures from what was made."""
    result, made, missing = StudyResult(NAME), dict[str, Mapping[str, Any]](), dict[str, str]()
    for part in FILE["part"]:
        try:
            each = _made(part, settings, say)
        except UserError as error:
            missing[part["name"]] = f"not run: {error}"
            continue
        result.left_out |= each.left_out
        result.faults += each.faults
        made[part["name"]] = each.content()
    made[NAME] = result.content()
    claims = {claim["name"]: _claimed(claim, made, missing) for claim in FILE["claim"]}
    result.rows += [Entry(f"claims/{name}", "1", claim["value"]) for name, claim in claims.items()]
    scores = {of: score(entries) for of, entries in result.left_out.items()}
    inside = {}
    for of, scored in scores.items():
        for key, value in (asdict(scored) if scored else {}).items():
            result.rows.append(Entry(f"{of}/loo/{key}", "1", value))
            if key == "covered":
                inside[of] = Entry(of, "1", value, published=0.95)
    heads = "claim", "figure", "date", "machine"
    sheet = Sheet("Claims", words(*heads), name=f"{NAME}-claims")
    where = ["", *(claim["machine"] for claim in claims.values())]
    for before, claim in zip(where, claims.values(), strict=False):
        again = claim["machine"] == before != ""
        sheet.rows.append((*map(claim.get, heads[:3]), "as above" if again else claim["machine"]))
    result.tables = [sheet, score_sheet(NAME, result.left_out, {})]
    result.further["claims"] = claims
    result.findings.append(f"{len(claims)} claims, for which {len(made) - 1} parts were made again")
    result.findings += [f"{name}: {why}" for name, why in missing.items()]
    title = "Published figures, each left out: share inside their 95 % intervals"
    result.figures[NAME] = published_figure(title, "share", {"": {"left out": inside}})
    return result


def _made(part: Mapping[str, Any], settings: Settings, say: Progress) -> StudyResult:
    """Run a part. Raises ``UserError`` if that needs what is not installed, or more time."""
    name, changes = part["name"], part.get("quick" if settings.quick else "changes", {})
    if settings.quick and "quick" not in part:
        raise UserError("it takes too long for --quick")
    if name not in STUDIES or STUDIES[name].needs_executor:
        need_executor(name)
    if name in STUDIES:
        module = importlib.import_module(STUDIES[name].module)
        result: StudyResult = module.study(_changed(module.SHORT, changes), say)
        return result
    base = Scenario.load(FOLDER / part["scenario"]).with_(**changes)
    cases = (base.with_(**{"name": each, "schedule.name": each}) for each in part["schedules"])
    runs = Validation(tuple(row for each in cases for row in validate(each, say=say).rows))
    faults = [] if runs.lossless else [f"{name}: a text is not plain greedy decoding's"]
    return StudyResult(name, faults=faults, further=runs.to_json())


def _changed(settings: Any, changes: Mapping[str, Any]) -> Any:
    """Return settings with some changed, also within settings of theirs."""
    return replace(
        settings,
        **{
            key: _changed(getattr(settings, key), value) if isinstance(value, Mapping) else value
            for key, value in changes.items()
        },
    )


def _claimed(
    claim: Mapping[str, Any], made: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str]
) -> dict[str, Any]:
    """Return a claim with its figure, as a number and as shown, and when and where it was made."""
    of, file = claim["of"], FOLDER.parent / claim["of"]
    if of in missing or (of not in made and not file.exists()):
        shown: dict[str, Any] = {"value": None, "figure": missing.get(of, f"{of} is not here")}
        return {"claim": claim["claim"], **shown, "date": "", "machine": ""}
    here, today = Processor.here(), datetime.date.today()
    python, load = platform.python_version(), os.getloadavg()[0]
    name = here.name.partition(" (cpu")[0]
    box = f"{here.cores} cores ({name}), Python {python}, load average {load:.1f}"
    where = {"date": f"{today}", "machine": box}
    content = {**made[of], **where} if of in made else {**read_json(file), **claim}
    tree = {**content, "rows": {row["key"]: row for row in content.get("rows", ())}}
    value = reduce(lambda below, key: below[key], claim["at"], tree)
    figure = format(value, claim["shown"]).replace("%", " %")
    shown = {"value": value, "figure": figure}
    return {"claim": claim["claim"], **shown, **{key: content[key] for key in where}}
