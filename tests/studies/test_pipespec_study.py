"""The study of PipeSpec's timings: terms by hand, and the cells that follow from them."""

from __future__ import annotations

import csv
from math import inf
from pathlib import Path

import pytest

from tests.worlds.written_studies import say, written
from treepipe.results.recording import Recording
from treepipe.studies import pipespec
from treepipe.studies.pipespec import CELLS, GIVEN, TURNS, Settings, Terms, start_ms, write_texts


def test_there_is_a_key_for_every_published_cell() -> None:
    """20 in turns and 21 ahead of each other of 1B and 8B; K = 8 and 0 of three others."""
    keys = [f"{cell.label}/ms_per_token" for cell in CELLS]
    assert len(keys) == len(set(keys)) == 20 + 21 + 3 + 3
    assert {"chain/1b-8b-70b/k=8/ms_per_token", "async-chain/1b-70b/k=0/ms_per_token"} <= {*keys}
    assert {cell.label for cell in CELLS} >= GIVEN.keys()


def test_a_sample_takes_what_its_passes_do_not() -> None:
    """Chain, K = 5: 19.282 ms of 3616 tokens are 69,724 ms, of which 3997 + 10 steps of 11.33 ms
    and 846 passes of 26.24 ms are 67,598: 213 ms for each of ten samples."""
    assert start_ms(TURNS) == pytest.approx(212.5, abs=0.3)
    terms = Terms.of_given()
    assert terms.draft_ms == pytest.approx((11.33 + 11.05 + 11.15) / 3)
    assert terms.verify_ms + 5 * terms.row_ms == pytest.approx(26.24)
    assert terms.verify_ms + 20 * terms.row_ms == pytest.approx(26.75)


def test_texts_have_the_counts_of_the_long_chain(tmp_path: Path) -> None:
    """Its 328 rounds accept 3,652 tokens and miss 226 times; the draft is right at all others."""
    assert write_texts(10, tmp_path / "texts.json") == pytest.approx(1 - 226 / 3652)
    recorded = Recording.load(tmp_path / "texts.json").requests
    wrong = sum(each.tokens != (1,) for of in recorded.values() for each in of.answers)
    assert len(recorded) == 10
    assert {len(of.text) for of in recorded.values()} == {362}
    assert 220 <= wrong <= 226, "ten samples are a few rounds shorter"


def test_the_study_in_its_smallest_size(tmp_path: Path) -> None:
    result = pipespec.study(Settings(samples=1), say)
    rows = written(result, tmp_path / "out")
    for cell in CELLS:
        row = rows[f"{cell.label}/ms_per_token"]
        assert 0 < row["low"] < row["predicted"] < row["high"] < inf
        assert (row["role"] == "calibrated") is (cell.label in GIVEN)
        if row["published"] is not None:
            assert row["predicted"] == pytest.approx(row["published"], rel=0.1)
    short, long = (rows[f"async-chain/1b-8b/k={k}/ms_per_token"]["predicted"] for k in (2, 20))
    assert short < long, "waiting for a long chain costs, where a miss throws it away"
    with (tmp_path / "out" / "pipespec-cells.csv").open() as file:
        assert len([*csv.reader(file)]) == 1 + len(CELLS)
