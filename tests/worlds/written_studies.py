"""Studies in a tiny size: what they calibrate on, and their results on disk, checked."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.worlds.greys import alike
from treepipe.executor.models.prompts import load_texts
from treepipe.studies import study
from treepipe.studies.study import StudyResult


def say(what: str, steps: int) -> None:
    assert what or steps


def few_prompts(folder: Path) -> str:
    """A file of some of the prompts that studies calibrate on; all take minutes."""
    file = folder / "prompts.json"
    file.write_text(json.dumps(load_texts("reference:calibration", folder)[:4]))
    return str(file)


def written(result: StudyResult, out: Path) -> dict[str, Mapping[str, Any]]:
    """Write a result, check its files, and return its rows by key."""
    out.mkdir()
    study.write_study(result, out)
    study.show_study(result, out)
    assert result.faults == []
    content = json.loads((out / f"{result.study}.json").read_text())
    assert content["schema"] == "treepipe.study/1"
    for sheet in result.tables:
        with (out / f"{sheet.name}.csv").open() as file:
            assert len(list(csv.reader(file))) == 1 + len(sheet.rows)
        assert f"[{sheet.title}]({sheet.name}.csv)" in (out / f"{result.study}.md").read_text()
    for name, figure in result.figures.items():
        assert alike(figure) == [], name
        assert (out / f"{name}.png").stat().st_size > 5_000
    return {row["key"]: row for row in content["rows"]}
