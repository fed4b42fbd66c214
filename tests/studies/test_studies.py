"""Studies: end to end in a tiny size on real processes, and the command that runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.worlds.command_line import ROOT, Terminal
from tests.worlds.written_studies import few_prompts, say
from treepipe.results.sheet import Column, Sheet
from treepipe.scenario.schema import ScheduleName
from treepipe.studies import study, systems_2026
from treepipe.studies.study import StudyResult
from treepipe.studies.workshop.cells import SYSTEMS, Cell, Size, cases_of
from treepipe.validation import demo
from treepipe.validation.comparison import _prepare

STUDIES_PAGES = ROOT / "docs" / "studies"


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_schedule_has_a_case(name: ScheduleName) -> None:
    (case,) = cases_of([Cell(name)], Size(requests=60, plain_requests=6))
    prepared = _prepare(case)
    deployment = prepared.launch.deployment
    assert prepared.scenario.schedule.name == name
    assert len(deployment.requests) == (6 if name == "pp" else 60)
    assert (len(deployment.roles.pipelines), deployment.service.clients) == {
        "starsd": (2, 2),
        "specpipe_db": (1, 4),
    }.get(name, (1, 1))


@pytest.mark.processes
def test_the_demonstration_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = few_prompts(tmp_path)
    small = {"workload.requests": 2, "workload.new_tokens": 6, "runs": 2}
    rows = demo.run_demo(say, ("pp", "flowspec"), prompts, **small)
    out = tmp_path / "out"
    out.mkdir()
    demo.write_demo(rows, out)
    content = json.loads((out / "demo.json").read_text())
    assert content["schema"] == "treepipe.demo/1"
    assert [row["schedule"] for row in content["rows"]] == ["pp", "flowspec"]
    for row in content["rows"]:
        predicted, measured = (
            row[f"{each}_time_between_tokens_ms"] for each in ("predicted", "measured")
        )
        assert row["error"] == pytest.approx(predicted / measured - 1)
        assert row["lossless"] is True
        assert row["utilization"].keys() == {
            "draft0",
            *(f"pipeline0.stage{n}" for n in range(1, 5)),
        }
        assert all(0 <= share <= 1 for share in row["utilization"].values())
    assert (out / "flowspec.png").exists()
    assert (out / "flowspec-trace.json").exists()
    demo.show_demo(rows, out)
    shown, written = capsys.readouterr().out, (out / "demo.md").read_text()
    ours, theirs = re.findall(r"^pp\b", shown, re.M), re.findall(r"^\| pp ", written, re.M)
    assert len(ours) == len(theirs) == 2, "times, and busy devices"


# --- the command ------------------------------------------------------------------------------


@pytest.fixture
def made_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study ``made`` without a run: one table, no plot."""

    def made(settings: object, say: study.Progress) -> StudyResult:
        full = settings is systems_2026.FULL
        columns = [Column("n", shown="d"), Column("ok")]
        sheet = Sheet("Made", columns, [(int(full), False)], name="made")
        rows = [study.Entry("a", "ms", 1.0, measured=2.0)]
        return StudyResult("made", rows, [sheet], {}, ["so it is"], faults=["no"] if full else [])

    monkeypatch.setattr(systems_2026, "study", made)
    entry = study.Study("made", "a made one", "treepipe.studies.systems_2026")
    monkeypatch.setitem(study.STUDIES, "made", entry)


@pytest.mark.usefixtures("made_study")
def test_a_study_writes_and_prints_and_fails_for_a_fault_after_all_is_written(
    terminal: Terminal,
) -> None:
    out = terminal.folder / "new" / "folder"
    assert "so it is" in terminal.succeeds("study", "made", "--out", out)
    assert sorted(path.name for path in out.iterdir()) == ["made.csv", "made.json", "made.md"]
    again = terminal.succeeds("study", "made", "--out", out, "--quiet", "--json", "-")
    (row,) = json.loads(again)["rows"]
    known = {"key": "a", "unit": "ms", "predicted": 1.0, "measured": 2.0, "role": "predicted"}
    assert row == {**dict.fromkeys(("low", "high", "published")), **known}
    terminal.fails("no", "study", "made", "--out", out, "--full", "--quiet", code=1)
    assert "NO" in (out / "made.md").read_text()


@pytest.mark.usefixtures("made_study")
def test_a_foreign_folder_is_not_touched(terminal: Terminal) -> None:
    (terminal.folder / "other.json").write_text("{}")
    here = ("--out", terminal.folder)
    terminal.refuses("holds something else than an earlier result", "study", "made", *here)


def test_stored_pages_are_short_and_their_cells_beside_them() -> None:
    """Of all studies and of the workshop's; 8,000 words together, 800 each."""
    pages = sorted(STUDIES_PAGES.glob("*/*.md"))
    counts = {page.stem: len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert counts.keys() == {*study.STUDIES, "coverage", "load"}
    assert max(counts.values()) <= 800, counts
    assert sum(counts.values()) <= 8000, counts
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert text.count("![") == 1, page
        assert len(re.findall(r"^\|---", text, re.M)) <= 1, page
        linked = re.findall(r"\]\(([^)]*\.csv)\)", text)
        assert sorted(linked) == sorted(each.name for each in page.parent.glob("*.csv"))
        content = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        told = [
            *content["findings"][1:],
            *(s for each in content["sections"].values() for s in each),
        ]
        assert [each for each in told if f"- {each}\n" not in text] == []


def test_a_sheet_wants_a_cell_per_column() -> None:
    sheet = Sheet("S", [Column("a"), Column("b")], name="s")
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        sheet.add(1.0)
    sheet.add("x", None)
    assert sheet.csv() == "a,b\nx,\n"
    assert sheet.plain(80) == (["a", "x"], 0), "without the empty column"
