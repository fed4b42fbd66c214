"""Scores of predictions against published figures, and pages: templates filled with entries."""

from __future__ import annotations

import json
import re
from math import exp, log1p, sqrt
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from treepipe.files.reading import sentences
from treepipe.results.statistics import Interval
from treepipe.studies.reproduction import (
    Reproduction,
    comparison_sheet,
    fill,
    predicted,
    published,
    score_sheet,
)
from treepipe.studies.study import Entry, StudyResult, relative_error, score

ROOT = Path(__file__).parents[2] / "studies"
STORED = {
    "dsd.md": "dsd-region",
    "flowspec.md": "flowspec-table",
    "pipedec.md": "pipedec-stages",
    "specpipe.md": "specpipe-width",
    "starsd.md": "starsd-threshold",
    "which-system.md": "which-system",
}

OFF = (0.1, -0.05, 0.2)
"""Errors of figures that were left out."""

ENTRIES = [
    predicted("a", "ms", 10.0, 10.0, fitted=True),
    predicted("b", "ms", Interval(11.0, 10.5, 11.5), 10.0),
    predicted("c", "ms", 9.0, 12.0),
    predicted("held out", "ms", 5.0),
]


def test_only_true_predictions_count() -> None:
    found = score(ENTRIES)
    assert found is not None
    assert found.cells == 2
    assert found.median == pytest.approx((0.1 + 0.25) / 2)
    assert found.worst == pytest.approx(0.25)
    assert found.mean == pytest.approx((0.1 - 0.25) / 2)
    assert found.covered == 0, "10.0 is not in 10.5 to 11.5, and the other one has no interval"
    assert score([ENTRIES[0]]) is None


def test_a_trivial_predictor_is_judged_on_the_same_cells() -> None:
    trivial = score(ENTRIES, {"b": 10.0, "a": 99.0, "held out": 1.0})
    assert trivial is not None
    assert (trivial.cells, trivial.median, trivial.covered) == (1, 0, None)
    sheet = score_sheet("made", {"paper/way": ENTRIES, "paper/none": []}, {"b": 10.0})
    (row,) = sheet.rows
    assert (row[0], row[1], row[-1]) == ("paper/way", 2, 0)


def test_a_left_out_figure_counts_the_errors_of_the_others(tmp_path: Path) -> None:
    """By hand: of three with errors of 10, -5 and 20 %, the first one's half-width is Student's t
    of two degrees of freedom times the root mean square of the others' logarithms."""
    (tmp_path / "page.md").write_text("- so\n")
    made = Reproduction("made", tmp_path / "page.md")
    entries = [predicted(f"left-out/{n}", "ms", 100 * (1 + e), 100.0) for n, e in enumerate(OFF)]
    wide = made.leave_out({"paper/way": entries[:2], "paper/other": entries[2:]})
    assert wide == pytest.approx(3.182 * sqrt(sum(log1p(e) ** 2 for e in OFF) / 3), rel=1e-3)
    first, second = made.left_out["paper/way"]
    half = 4.303 * sqrt((log1p(OFF[1]) ** 2 + log1p(OFF[2]) ** 2) / 2)
    assert first.high == pytest.approx(110 * exp(half), rel=1e-3)
    assert second.low == pytest.approx(
        95 * exp(-4.303 * sqrt(sum(log1p(e) ** 2 for e in (OFF[0], OFF[2])) / 2)), rel=1e-3
    )
    result = made.result({}, Figure())
    assert result.content()["left_out"]["paper/way"]["covered"] == 1.0
    (sentence,) = result.judged()
    assert "3 published figures, off by 10.0% in the median and +8.3% in the mean; 100%" in sentence
    assert f"- {sentence}\n" in result.page()
    assert result.tables[0].name == "made-scores"


def test_held_out_figures_have_no_error() -> None:
    assert relative_error(ENTRIES[3]) is None
    assert relative_error(ENTRIES[1]) == pytest.approx(0.1)
    rows = comparison_sheet("s", "S", ENTRIES).rows
    assert rows[1] == ("b", "ms", 11.0, 10.5, 11.5, 10.0, pytest.approx(0.1), "predicted")
    assert rows[3][5] is None
    unpublished = comparison_sheet("s", "S", ENTRIES[3:])
    assert [column.name for column in unpublished.columns][-1] == "high"
    assert unpublished.rows == [("held out", "ms", 5.0, None, None)]
    measured = comparison_sheet("s", "S", [Entry("run", "ms", measured=3.0)])
    assert measured.rows == [("run", "ms", 3.0)]


def test_published_figures_have_their_units_and_source() -> None:
    assert published()["starsd"]["table1"]["n"] == [1, 2, 3, 4]
    assert published()["flowspec"]["setup"]["tree_size"] == 80


def test_a_part_is_a_table_and_what_is_only_shown_is_no_row(tmp_path: Path) -> None:
    template = tmp_path / "page.md"
    template.write_text("- {now[a]:.0f} and {paper[starsd][table1][n][0]} and {word}\n")
    made = Reproduction("made", template)
    made.add(ENTRIES[:1])
    made.add(ENTRIES[1:3], "part", "A part")
    made.show(ENTRIES[3:], "shown", "Shown alone")
    result = made.result({"word": "so"}, Figure())
    assert [row.key for row in result.rows] == ["a", "b", "c"]
    assert [(sheet.name, len(sheet.rows)) for sheet in result.tables] == [
        ("made-part", 2),
        ("made-shown", 1),
    ]
    assert result.findings == ["10 and 1 and so"]


def test_page_holds_all_that_a_study_says() -> None:
    result = StudyResult(
        "made", tables=[comparison_sheet("s", "S", ENTRIES)], findings=["it flies"]
    )
    result.sections["Not predicted, and why"] = ["the moon: nothing published"]
    result.warnings = {"late by 3 ms": ["a", "b"], "late by 4.5 ms": ["b", "c"], "hot": ["a"]}
    page = result.page()
    assert result.warned() == ["late by 3 ms (3 cells)", "hot (1 cell)"]
    assert page.endswith("Cells: [S](s.csv); 2 warnings in made.json.\n")
    assert page.startswith("# made\n\nIt flies.\n\n**S**\n")
    assert "## Not predicted, and why\n\n- the moon: nothing published\n" in page
    assert result.content()["sections"] == result.sections


def test_a_template_takes_entries_and_published_figures(tmp_path: Path) -> None:
    template = tmp_path / "page.md"
    template.write_text(
        "- {now[n=1/gain]:.1f} against\n  {paper[dsd][speedup_non_adaptive]}\n"
        "- {now[n=2/gain]:.1f}\n- {nothing}\n\n## More\n\n- {word}\n"
    )
    entries = [predicted("n=1/gain", "1", 2.04)]
    fields = {"paper": published(), "nothing": None}
    found = fill(template, entries, {**fields, "word": "so"})
    wanted = {"": ["2.0 against 2.15"], "More": ["so"]}
    assert found == wanted, "the others have no figure at this size"
    with pytest.raises(KeyError, match="word"):
        fill(template, entries, fields)


@pytest.mark.parametrize("page", STORED)
def test_a_page_states_what_it_rests_on_and_names_the_study_s_entries(page: str) -> None:
    name = STORED[page]
    stored = json.loads((ROOT.parent / "docs/studies" / name / f"{name}.json").read_text())
    keys = {row["key"] for row in stored["rows"]}
    headings = [*sentences((ROOT / page).read_text())][1:]
    assert headings == [
        *("Calibrated on", "True predictions", "Assumptions", "Not predicted, and why")
    ]
    named = re.findall(r"\{(?:now|low|high)\[([^\]]+)\]", (ROOT / page).read_text())
    assert set(named) <= keys
