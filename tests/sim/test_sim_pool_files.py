"""Acceptance pools as files: what is wrong with one is said in one sentence that names the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treepipe.core.errors import UserError
from treepipe.profiles.pool_file import SCHEMA, PoolFile
from treepipe.sim.pool import FURTHER, Pool

GOOD: dict[str, Any] = {
    "schema": SCHEMA,
    "draft": "small",
    "target": "large",
    "sampling": {"temperature": 1.0, "top_p": 0.9, "top_k": 80, "rule": "exact"},
    "draft_keys": {"source": "ngram", "ngram": 3},
    "recorded_on": "texts.json",
    "candidates": 2,
    "prompts": [{"log_probs": [[-0.1, -2.5], [-0.7, -0.9]], "ranks": [0, 2]}],
    "off_path": {"1": [[-0.5, -1.0]], "2": [[-0.6, -0.9]], "3": []},
}


def save(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "pool.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_good_file_is_read(tmp_path: Path) -> None:
    pool = Pool.load(save(tmp_path, GOOD))
    assert pool.ranks == [0, 2]
    assert pool.vectors.tolist() == [[-0.1, -2.5], [-0.7, -0.9], [-0.5, -1.0], [-0.6, -0.9]]
    assert pool.candidates == 2
    assert pool.hit_ratio(1) == 0.5


def prompt(log_probs: object, ranks: object) -> dict[str, object]:
    return {"prompts": [{"log_probs": log_probs, "ranks": ranks}]}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"schema": "other/2"}, "key schema = 'other/2'"),
        ({"candidates": 5}, "prompts.0.log_probs needs rows of 5 numbers"),
        ({"prompts": []}, "key prompts is empty"),
        ({"prompts": [{"ranks": []}]}, "key 'log_probs' is missing"),
        (prompt([], []), "prompts.0.log_probs needs rows of 2 numbers"),
        (prompt([-0.1], [0]), "prompts.0.log_probs needs rows of 2 numbers"),
        (prompt([[-0.1, -2.0], [-0.1]], [0, 0]), "prompts.0.log_probs needs rows of 2 numbers"),
        (prompt([["a", "b"]], [0]), "prompts.0.log_probs needs rows of 2 numbers"),
        (prompt([[0.5, -2.0]], [0]), "at most 0, and descend"),
        (prompt([[-2.0, -0.1]], [0]), "at most 0, and descend"),
        (prompt([[float("nan"), -0.1]], [0]), "finite"),
        (prompt([[-0.1, float("-inf")]], [0]), "finite"),
        (prompt([[-0.1, -2.0]], [0, 1]), "key prompts.0 needs as many ranks as log_probs"),
        (prompt([[-0.1, -2.0]], [3]), "prompts.0.ranks: a rank is a whole number from 0 to 2"),
        (prompt([[-0.1, -2.0]], [-1]), "prompts.0.ranks"),
        (prompt([[-0.1, -2.0]], [0.5]), "prompts.0.ranks"),
        ({"off_path": {}}, "key off_path needs vectors"),
        ({"off_path": {"1": [[-0.5, -1.0]], "3": [[-0.5, -1.0]]}}, "without a gap"),
        ({"off_path": {"1": [[-0.5]]}}, "off_path.1 needs rows of 2 numbers"),
        ({"sampling": {"temperature": None}}, "temperature = None is no setting"),
        ({"draft_keys": 3}, "is not an acceptance pool"),
        ({"off_path": [1]}, "is not an acceptance pool"),
        ({"prompts": 3}, "is not an acceptance pool"),
    ],
)
def test_a_wrong_file_ends_in_one_sentence(
    tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    path = save(tmp_path, GOOD | change)
    with pytest.raises(UserError) as caught:
        Pool.load(path)
    assert str(caught.value).startswith(f"{path}: is not an acceptance pool")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def recorded_by_depth(positions: int) -> dict[str, object]:
    known = {"log_probs": [[-0.1, -2.5]] * positions, "ranks": [0] * positions}
    ranks = [0, 2] * (positions // 2)
    return {"prompts": [known | {"guessed": [known | {"ranks": ranks}]}]}


def test_a_file_reads_as_it_was_written(tmp_path: Path) -> None:
    plain = GOOD | {"off_path": {"1": [[-0.5, -1.0]]}}
    for content in (plain, plain | recorded_by_depth(4)):
        PoolFile.load(save(tmp_path, content)).save(tmp_path / "again.json", "--out")
        assert json.loads((tmp_path / "again.json").read_text()) == content


def test_beginnings_are_cut_at_every_depth(tmp_path: Path) -> None:
    whole = PoolFile.load(save(tmp_path, GOOD | recorded_by_depth(4)))
    first = whole.beginnings(3)
    assert first.ranks == whole.ranks[:3]
    assert [list(table.ranks) for table in first.prompts[0].guessed] == [[0, 2, 0]]
    assert first.off_path == whole.off_path


def test_a_loss_goes_on_beyond_the_recorded_depths(tmp_path: Path) -> None:
    positions = 400
    path = save(tmp_path, GOOD | recorded_by_depth(positions))
    pool, deeper = Pool.load(path), Pool.load(path, depth_loss=0.1)
    assert (pool.depths, deeper.depths) == (1, 1 + FURTHER)
    assert deeper.ranks == pool.ranks

    def right(depth: int) -> float:
        rows = [deeper.row(position, depth) for position in range(positions)]
        return float(np.mean(deeper.tokens(rows, 1)[:, 0] == 0))

    shares = [right(depth) for depth in range(1, 2 + FURTHER)]
    assert shares[0] == 0.5, "as recorded"
    assert shares == sorted(shares, reverse=True), "what is lost stays lost"
    assert shares[5] == pytest.approx(0.5 * 0.9**5, abs=0.05)
    assert (deeper.vectors[deeper.row(0, 9)] == pool.vectors[pool.row(0, 1)]).all()


def test_a_loss_needs_recorded_depths(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no guessed depths, so depth_loss means nothing"):
        Pool.load(save(tmp_path, GOOD), depth_loss=0.1)
