"""Studies: end to end in a tiny size on real processes, and the command that runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.written_studies import few_prompts, say, written
from treepipe.results.sheet import Column, Sheet
from treepipe.scenario.schema import ScheduleName
from treepipe.studies import all_schedules, study
from treepipe.studies.study import StudyResult
from treepipe.validation import demo
from treepipe.validation.cells import SYSTEMS, Cell, Size, cases_of
from treepipe.validation.comparison import _prepare


@pytest.mark.processes
def test_all_schedules_end_to_end(tmp_path: Path) -> None:
    small = Size(1, None, 1, 5, 2, few_prompts(tmp_path))
    settings = all_schedules.Settings(("pp", "flowspec"), small, (2,), (4.0,), small)
    rows = written(all_schedules.study(settings, say), tmp_path / "out")
    assert rows["pp/time_between_tokens_ms"]["measured"] > 87, "emulation only makes slower"
    assert rows["flowspec/draft_utilization"]["measured"]
    assert rows["stages=2/latency=4/flowspec_free/time_between_tokens_ms"]["low"]
    predicted = rows["stages=2/latency=4/free_over_flowspec"]["predicted"]
    assert predicted == pytest.approx(1, abs=0.3)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_schedule_has_a_case(name: ScheduleName) -> None:
    (case,) = cases_of([Cell(name)], all_schedules.FULL.size)
    prepared = _prepare(case)
    deployment = prepared.launch.deployment
    assert prepared.scenario.schedule.name == name
    assert len(deployment.requests) == (6 if name == "pp" else 60)
    assert (len(deployment.roles.pipelines), deployment.service.clients) == {
        "starsd": (2, 2),
        "specpipe_db": (1, 4),
    }.get(name, (1, 1))


@pytest.mark.processes
def test_the_demonstration_end_to_end(tmp_path: Path) -> None:
    prompts = few_prompts(tmp_path)
    small = Size(requests=2, plain_requests=1, new_tokens=6, runs=2, calibrated_on=prompts)
    rows = demo.run_demo(say, ("pp", "flowspec"), small)
    out = tmp_path / "out"
    demo.claim_folder(out)
    demo.write_demo(rows, out)
    content = json.loads((out / "demo.json").read_text())
    assert [row["schedule"] for row in content["rows"]] == ["pp", "flowspec"]
    assert all(row["lossless"] for row in content["rows"])
    assert (out / "timeline-flowspec.png").exists()
    assert (out / "execution-trace.json").exists()
    demo.show_demo(rows, out, quiet=True)
    shown = (out / "table.txt").read_text()
    assert "Utilization: predicted / measured" in shown
    assert "│ pp " in shown


# --- the command ------------------------------------------------------------------------------


@pytest.fixture
def made_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study ``made`` without a run: one table, no plot."""

    def made(settings: all_schedules.Settings, say: study.Progress) -> StudyResult:
        full = settings is all_schedules.FULL
        columns = [Column("n", shown="d"), Column("ok")]
        sheet = Sheet("Made", columns, [(int(full), False)], name="made")
        rows = [study.Entry("a", "ms", 1.0, measured=2.0)]
        return StudyResult("made", rows, [sheet], {}, ["so it is"], faults=["no"] if full else [])

    monkeypatch.setattr(all_schedules, "study", made)
    entry = study.Study("made", "a made one", "treepipe.studies.all_schedules")
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


def test_a_sheet_wants_a_cell_per_column() -> None:
    sheet = Sheet("S", [Column("a"), Column("b")], name="s")
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        sheet.add(1.0)
    sheet.add("x", None)
    assert sheet.csv() == "a,b\nx,\n"
    assert sheet.rich().row_count == 1
