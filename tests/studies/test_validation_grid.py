"""The standard grid: its fraction is balanced, its prompts are held out, and a tiny one runs."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.written_studies import say
from treepipe.profiles.library import REFERENCE
from treepipe.studies.workshop import grid as validation_grid
from treepipe.studies.workshop.cells import SYSTEMS, Cell, Size
from treepipe.studies.workshop.grid import (
    KINDS,
    LATENCIES_MS,
    SIZE,
    STAGE_MS,
    STAGES,
    grid_cells,
    run_grid,
)
from treepipe.studies.workshop.grid_report import FACTORS, aims, write_report
from treepipe.validation.demo import SCENARIO

LEVELS = {
    "schedule": SYSTEMS,
    "stages": STAGES,
    "link (ms)": LATENCIES_MS,
    "stage (ms)": STAGE_MS,
    "prompts": KINDS,
}


def test_every_pair_of_levels_occurs_and_none_much_more_often() -> None:
    grid = grid_cells()
    assert len(grid) >= 60
    assert len({cell.label for cell in grid}) == len(grid)
    for first, second in itertools.combinations(FACTORS, 2):
        pairs = Counter((FACTORS[first](cell), FACTORS[second](cell)) for cell in grid)
        assert set(pairs) == set(itertools.product(LEVELS[first], LEVELS[second]))
        assert max(pairs.values()) - min(pairs.values()) <= 3


def test_no_prompt_is_decoded_and_calibrated_on() -> None:
    prompts = json.loads((REFERENCE / "validation_prompts.json").read_text(encoding="utf-8"))
    usual = json.loads((REFERENCE / "prompts.json").read_text(encoding="utf-8"))
    for kind in KINDS:
        assert not set(prompts[kind]["calibration"]) & set(prompts[kind]["heldout"])
        for use in ("calibration", "heldout"):
            count = len(usual[kind][use])
            assert prompts[kind][use][:count] == usual[kind][use], "the same first ones"


def test_held_out_prompts_are_taken_in_turn(tmp_path: Path) -> None:
    grid = grid_cells(40)
    cases = validation_grid._held_out(grid, SIZE, tmp_path)
    for kind in KINDS:
        numbers = [n for n, cell in enumerate(grid) if cell.kind == kind]
        taken = [json.loads((tmp_path / f"{number}.json").read_text()) for number in numbers]
        uses = Counter(text for texts in taken for text in texts)
        assert max(uses.values()) - min(uses.values()) <= 1
    assert all(case.scenario.path == SCENARIO for case in cases)


TINY = Size(requests=2, chain_requests=1, plain_requests=1, new_tokens=5, runs=2)
Found = list[tuple[Cell, dict[str, Any]]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A tiny grid, calibrated on a few prompts of each kind, predicted and run."""
    folder = tmp_path_factory.mktemp("prompts")
    prompts = json.loads((REFERENCE / "validation_prompts.json").read_text(encoding="utf-8"))
    few = {kind: {**uses, "calibration": uses["calibration"][:4]} for kind, uses in prompts.items()}
    (folder / "validation_prompts.json").write_text(json.dumps(few))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(validation_grid, "REFERENCE", folder)
        return list(run_grid(grid_cells(3), TINY, say, tmp_path_factory.mktemp("timelines")))


@pytest.mark.processes
def test_a_tiny_grid_end_to_end(found: Found, tmp_path: Path) -> None:
    assert {cell.schedule for cell, _ in found} == {"pp", "specinfer", "eagle"}
    content = write_report(found, tmp_path, TINY, 60.0)
    assert json.loads((tmp_path / "validation.json").read_text()) == content
    assert [each["schedule"] for each in content["scenarios"]] == ["pp", "specinfer", "eagle"]
    assert all(each["lossless"] for each in content["scenarios"])
    text = (tmp_path / "validation.md").read_text()
    assert "3 cells in 1.0 minutes" in text
    assert "differ from plain greedy decoding: none" in text
    assert text.count("\n| schedule | eagle |") == text.count("\n| eagle |") == 1
    assert (tmp_path / "validation.png").read_bytes().startswith(b"\x89PNG")


def test_a_missed_aim_is_said() -> None:
    part = {"median": 0.03, "worst": 0.05, "bias": -0.02}
    sentences = aims({"duration_error": part, "error": part, "utilization": part})
    assert [("missed" in each) for each in sentences] == [True, False, False, False, False]
    beside = [each.endswith("; signed mean -2.0%") for each in sentences]
    assert beside == ["median" in each for each in sentences], "no median stands alone"


@pytest.mark.processes
def test_the_grid_s_command_says_what_changed(
    found: Found,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the tiny grid found stands for two runs of the command's first cell."""

    def run_one(cells: list[Cell], size: Size, say: object, timelines: Path | None) -> Found:
        assert (cells, size) == (grid_cells(1), SIZE)
        return found[:1]

    monkeypatch.setattr(validation_grid, "run_grid", run_one)
    monkeypatch.setattr("sys.argv", ["grid", str(tmp_path), "--cells", "1"])
    validation_grid.main()
    assert "as far off as earlier" not in capsys.readouterr().out
    validation_grid.main()
    assert "\n1 of 1 scenarios as far off as earlier; median error" in capsys.readouterr().out
