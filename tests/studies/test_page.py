"""Pages of studies: templates filled with entries and published figures, nothing typed twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from treepipe.studies.page import fill
from treepipe.studies.reproduction import predicted, published

ROOT = Path(__file__).parents[2] / "studies"
STORED = {
    "dsd": "dsd-region",
    "flowspec": "flowspec-table",
    "pipedec": "pipedec-stages",
    "specpipe": "specpipe-width",
    "starsd": "starsd-threshold",
    "which_system": "which-system",
}


def test_a_template_takes_entries_and_published_figures(tmp_path: Path) -> None:
    template = tmp_path / "page.md"
    template.write_text(
        "- {now[n=1/gain]:.1f} against\n  {paper[dsd][speedup_non_adaptive]}\n"
        "- {now[n=2/gain]:.1f}\n- {nothing}\n\n## More\n\n- {word}\n"
    )
    entries = [predicted("n=1/gain", "1", 2.04)]
    fields = {"paper": published(), "nothing": None}
    found = fill(template, entries, {**fields, "word": "so"})
    assert found.findings == ["2.0 against 2.15"], "the others have no figure at this size"
    assert found.sections == {"More": ["so"]}
    with pytest.raises(KeyError, match="word"):
        fill(template, entries, fields)


@pytest.mark.parametrize("folder", STORED)
def test_entries_that_a_page_names_are_the_study_s(folder: str) -> None:
    name = STORED[folder]
    stored = json.loads((ROOT.parent / "docs/studies" / name / f"{name}.json").read_text())
    keys = {row["key"] for row in stored["rows"]}
    named = re.findall(r"\{(?:now|low|high)\[([^\]]+)\]", (ROOT / folder / "page.md").read_text())
    assert set(named) <= keys
