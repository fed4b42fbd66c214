"""A stage's cache, masks, weights and rotations. (``test_tree_executor.py`` has tree attention.)"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.causal import assert_causal
from tests.worlds.examples import examples
from tests.worlds.tiny_models import parameter_bytes
from treepipe.core.messages import NO_PARENT
from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.models.cache import TreeCache
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.families import Rotations, fixed_rotary
from treepipe.executor.models.stage_model import Part, StageModel
from treepipe.testing.random_model import save_random_checkpoint

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def whole(folder: Path) -> WholeModel:
    directory = save_random_checkpoint(folder / "whole", layers=2, seed=1)
    return WholeModel(Checkpoint.open(directory), 96)


@examples(60)
@given(st.integers(0, 5), st.integers(0, 12), st.data())
def test_compaction_in_place_equals_indexing(
    committed: int, nodes: int, data: st.DataObject
) -> None:
    cache = TreeCache(2, 1, 3, 20, torch.float32)
    for rows, parents in ((committed, None), (nodes, [NO_PARENT] * nodes)):
        if not rows:
            continue
        cache.begin(rows, parents)
        for layer in range(2):
            cache.update(torch.randn(1, 1, rows, 3), torch.randn(1, 1, rows, 3), layer)
        cache.finish(committed=parents is None)
    before = cache.entries().clone()
    keep = sorted(data.draw(st.sets(st.integers(0, nodes - 1)))) if nodes else []
    accepted = data.draw(st.integers(0, len(keep)))
    cache.prune(keep, accepted)
    kept = [*range(committed), *(committed + i for i in keep)]
    assert torch.equal(cache.entries(), before[:, :, :, kept])
    assert (cache.committed, cache.length) == (committed + accepted, len(kept))


def test_full_cache_says_so() -> None:
    with pytest.raises(MemoryError, match="4 entries cannot take 5 more"):
        TreeCache(1, 1, 2, 4, torch.float32).begin(5, None)


def test_causality_check_notices_a_wrong_mask(whole: WholeModel) -> None:
    whole.stage.open(0)
    whole.read([1, 2], [0, 1], None)
    whole.read([3, 4], [2, 2], [NO_PARENT, NO_PARENT])
    cache = whole.stage.cache(0)
    mask = cache.begin(1, [1])
    assert_causal(cache, mask, [1])
    mask[0, 2] = ~mask[0, 2]  # the parent's sibling becomes visible
    with pytest.raises(AssertionError, match="attends to"):
        assert_causal(cache, mask, [1])


def test_a_pass_that_stops_behind_a_layer_leaves_nothing_behind_its_prune(folder: Path) -> None:
    directory = save_random_checkpoint(folder / "stops", layers=3, seed=2)
    model = WholeModel(Checkpoint.open(directory), 32)
    stage, embed = model.stage, model.ends.embed
    rows = [embed([1, 2, 3]), embed([4, 5]), embed([6])]
    answers = []
    for stopped in (False, True):
        stage.open(7)
        stage.forward(7, rows[0], [0, 1, 2], None)
        if stopped:
            given_up = Part(7, rows[1], [3, 4], [NO_PARENT, 0])
            stage.run(stage.begin([given_up]), lambda layers: layers == 2)
            stage.cache(7).prune((), 0)
        answers.append(stage.forward(7, rows[2], [3], [NO_PARENT]))
        stage.close(7)
    assert torch.equal(*answers)


def test_a_stage_holds_its_share_of_the_weights_only(folder: Path) -> None:
    directory = save_random_checkpoint(folder / "share", layers=6, seed=5)
    checkpoint = Checkpoint.open(directory)
    total = parameter_bytes(StageModel(checkpoint, range(6), 8))
    assert parameter_bytes(StageModel(checkpoint, range(2, 4), 8)) * 3 == total


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
