"""What the README claims, made again, and all published figures that were left out.

``evidence.toml`` says what is made, what is claimed with it and where that is quoted: this file
knows no single study. Figures of long runs are read from their files, with their dates.
"""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.executor.wire.processor import Processor, software
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
UNKNOWN = {"value": None, "date": "", "machine": ""}
"""Of a claim that this job cannot make."""


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
            own = _made(part, settings, say)
        except UserError as error:
            missing[part["name"]] = str(error)
            continue
        result.left_out |= own.left_out
        result.faults += own.faults
        made[part["name"]] = own.content()
    made[NAME] = result.content()
    claims = {each["name"]: _claimed(each, made, missing) for each in FILE["claim"]}
    result.rows += [Entry(f"claims/{name}", "1", each["value"]) for name, each in claims.items()]
    scores = {of: found for of, own in result.left_out.items() if (found := score(own))}
    for of, found in scores.items():
        figures = asdict(found).items()
        result.rows += [Entry(f"{of}/loo/{key}", "1", value) for key, value in figures]
    heads = "claim", "figure", "date", "machine"
    sheet = Sheet("Claims", words(*heads), name=f"{NAME}-claims")
    sheet.rows += [tuple(each[head] for head in heads) for each in claims.values()]
    result.tables = [sheet, score_sheet(NAME, result.left_out, {})]
    result.further["claims"] = claims
    result.findings.append(
        f"{len(claims)} claims rest on {len(made) - 1} parts that were made again"
    )
    if missing:
        result.sections["Not run"] = [f"{name}: {why}" for name, why in missing.items()]
    inside = {of: Entry(of, "1", found.covered, published=0.95) for of, found in scores.items()}
    title = "Published figures, each left out: share inside their 95 % intervals"
    result.figures[NAME] = published_figure(title, "share", {"": {"left out": inside}}, columns=3)
    return result


def _made(part: Mapping[str, Any], settings: Settings, say: Progress) -> StudyResult:
    """Run a part. Raises ``UserError`` if that needs what is not installed, or more time."""
    name, changes = part["name"], part.get("quick") if settings.quick else {}
    if changes is None:
        raise UserError("it takes too long for --quick")
    if name not in STUDIES or STUDIES[name].needs_executor:
        need_executor(name)
    if name in STUDIES:
        module = importlib.import_module(STUDIES[name].module)
        result: StudyResult = module.study(_changed(module.SHORT, changes), say)
        return result
    base = Scenario.load(FOLDER / part["scenario"]).with_(**changes)
    cases = (base.with_(**{"name": each, "schedule.name": each}) for each in part["schedules"])
    found = Validation(tuple(row for each in cases for row in validate(each, say=say).rows))
    faults = [] if found.lossless else [f"{name}: a text is not plain greedy decoding's"]
    return StudyResult(name, faults=faults, further=found.to_json())


def _changed(settings: Any, changes: Mapping[str, Any]) -> Any:
    """Return settings with some changed, also within settings of theirs."""
    own = {
        key: _changed(getattr(settings, key), value) if isinstance(value, Mapping) else value
        for key, value in changes.items()
    }
    return replace(settings, **own)


def _claimed(
    claim: Mapping[str, Any], made: Mapping[str, Mapping[str, Any]], missing: Mapping[str, str]
) -> dict[str, Any]:
    """Return a claim with its figure, as a number and as shown, and when and where it was made."""
    said, of = {"claim": claim["claim"]}, claim["of"]
    if of in missing:
        return {**said, **UNKNOWN, "figure": f"not run: {missing[of]}"}
    if of not in made and not (FOLDER.parent / of).exists():
        return {**said, **UNKNOWN, "figure": f"{of} is not here"}
    content = made[of] if of in made else {**read_json(FOLDER.parent / of), **claim}
    tree = {**content, "rows": {row["key"]: row for row in content.get("rows", ())}}
    value = reduce(lambda found, key: found[key], claim["at"], tree)
    figure = format(value, claim["shown"]).replace("%", " %")
    here, today = Processor.here(), datetime.date.today()
    now = {"date": f"{today}", "machine": f"{here.described(here.cores)}, {software()}"}
    then = now if of in made else {key: content[key] for key in now}
    return {**said, "value": value, "figure": figure, **then}
