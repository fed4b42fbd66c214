"""Rotary embeddings from a table, and masks in steps of a tree's depth: equal to the plain ways."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.messages import NO_PARENT
from treepipe.executor.cache import with_rows
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.families import fixed_rotary
from treepipe.executor.stage_model import Rotations


@pytest.mark.parametrize("places", [[0], [3, 4, 4, 90], list(range(81))])
def test_a_table_of_rotations_holds_what_the_model_computes(
    target: Checkpoint, places: list[int]
) -> None:
    rotary = fixed_rotary(target.architecture, target.config)
    place, like = torch.tensor([places]), torch.zeros(1, len(places), 8)
    rotations = Rotations(rotary, torch.float32, "cpu")
    for _ in range(2):  # computed, and looked up
        for table, computed in zip(
            rotations.at(place, max(places) + 1), rotary(like, place), strict=True
        ):
            assert torch.equal(table, computed)


@given(st.data(), st.integers(0, 12), st.integers(1, 20))
def test_rows_attend_to_their_ancestors(data: st.DataObject, nodes: int, rows: int) -> None:
    parents = [data.draw(st.integers(NO_PARENT, row - 1)) for row in range(nodes + rows)]
    plain = np.eye(nodes + rows, dtype=bool)
    for row, parent in enumerate(parents):
        if parent != NO_PARENT:
            plain[row] |= plain[parent]
    known = plain[:nodes, :nodes].copy()
    assert np.array_equal(with_rows(known, parents[nodes:]), plain)
    assert np.array_equal(known, plain[:nodes, :nodes]), "what was known stays as it is"
