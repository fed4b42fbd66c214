"""The tool finds every fault of the gallery, by its law, and tells it in a small story."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis.internal.conjecture.providers import HypothesisProvider

from tests.worlds.examples import THOROUGH
from tests.worlds.gallery import MUTANTS, SEEDED, Mutant
from treepipe.core.schedules import systems
from treepipe.studies.workshop.laws_page import with_laws
from treepipe.testing import checking
from treepipe.testing.case import Measure, Size, Values, shrunk
from treepipe.testing.checking import run_trial

MOST_EVENTS = 17
SHRINK_S = 8.0
PAGE = Path(__file__).parents[2] / "docs/laws.md"


def shrunk_enough(system: Any, values: Values, measure: Measure, go_on: Any) -> Values:
    """Shrink a case until its story is as small as the page says, and no further."""
    sizes = list[Size]()

    def noted(case: Values) -> Size | None:
        size = measure(case)
        sizes.extend([] if size is None else [size])
        return size

    return shrunk(
        system, values, noted, lambda: go_on() and not (sizes and min(sizes)[0] <= MOST_EVENTS)
    )


@pytest.fixture(autouse=True)
def _less_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same cases of a seed in every run: hypothesis draws numbers that it reads in the text
    of whatever modules of ours are imported, too."""
    monkeypatch.setattr(checking, "SHRINK_S", SHRINK_S)
    monkeypatch.setattr(checking, "shrunk", shrunk_enough)
    monkeypatch.setattr(HypothesisProvider, "_maybe_draw_constant", lambda *_, **__: None)


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_found_by_its_law(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutant.trial.name == "sampling":  # its story has no events
        monkeypatch.setattr(checking, "SHRINK_S", 0.0)
    with mutant.planted() as system:
        start = 0 if THOROUGH else mutant.start
        found = run_trial(system, mutant.trial, mutant.examples, start).broken
    assert found is not None, f"{mutant.name} survives"
    assert found.law in mutant.laws, found.text()
    assert found.story.events <= MOST_EVENTS, found.text()
    for line in PAGE.read_text("utf-8").splitlines():
        if f"| `{mutant.name}` " in line:
            assert f"| {found.law} |" in line, f"the page tells another law than {found.law}"


def test_the_page_has_all_laws_and_every_real_fault() -> None:
    text = PAGE.read_text("utf-8")
    assert with_laws(text) == text, "make docs"
    rows = [row for row in text.splitlines() if row.startswith("| `")]
    real = [each for each in MUTANTS if each.origin != SEEDED]
    for mutant in real:
        told = f"| `{mutant.name}` | {mutant.wrong} | {mutant.origin} | {mutant.system} |"
        assert any(row.startswith(told) for row in rows), told
    assert len(rows) == len(real)
    assert f"\n{len(MUTANTS)} faults, each planted" in text


def test_a_fault_is_planted_and_taken_out_again() -> None:
    right = systems()["specpipe_db"].segment_tokens
    mutant = next(each for each in MUTANTS if each.name == "bound_without_root")
    with mutant.planted() as system:
        assert system.segment_tokens is not right
    assert systems()["specpipe_db"].segment_tokens is right
