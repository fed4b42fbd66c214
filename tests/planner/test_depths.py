"""Tokens to draft by streams, against sums by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import Depths

BOX: dict[str, Any] = {
    "name": "box",
    "target": {"layers": 4},
    "drafts": [{"device": {"draft_ms": {1: 2.0, 64: 8.3}}, "host": "box"}],
    "pipelines": [
        {"stages": [{"device": {"stage_ms": {1: 20.0, 16: 20.0, 64: 60.0}}, "host": "box"}]}
    ],
    "acceptance": {"source": "hit_ratio", "table": {1: [0.8, 0.7, 0.5]}},
}


def box(**changes: Any) -> Cluster:
    return Cluster.of({**BOX, **changes})


def test_one_stream_and_many_are_the_sums_by_hand() -> None:
    found = Depths.of(box())
    assert found.tokens[:4] == pytest.approx([1, 1.8, 2.36, 2.64])
    # The draft reads a token, and one more after all were right: 1.8 and 1.28 rows, rounded.
    assert found.periods_ms[0, [0, 1, 3]] == pytest.approx([20, 22.1, 26])
    assert found.gain(1, 3).mean == pytest.approx(2.64 * 20 / 26)
    # 16 streams: plain 20 ms; a token drafted is 32 rows and a draft pass of 29 (28.8).
    verify = 20 + (32 - 16) * 40 / 48
    assert found.periods_ms[15, [0, 1]] == pytest.approx([20, verify + 2 + 28 * 0.1])
    assert found.best(1) >= 2
    for streams in range(1, 257):
        depth = next(each.depth for each in found.ranges if streams <= each.last)
        kept = found.gains[streams - 1, depth]
        assert kept >= 0.99 * found.gains[streams - 1].max()
    assert [each.first for each in found.ranges[1:]] == [
        each.last + 1 for each in found.ranges[:-1]
    ]


def test_options_that_contradict_each_other(terminal: Terminal) -> None:
    (terminal.folder / "c.toml").write_text("name = 'c'\n", "utf-8")
    terminal.fails("has no effect", "plan", "c.toml", "--question", "depth", "--plot", "x.png")
    terminal.fails("--runs has no effect", "plan", "c.toml", "--question", "depth", "--runs", 3)
