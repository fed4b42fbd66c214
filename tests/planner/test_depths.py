"""Tokens to draft by streams, against sums by hand."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.few_streams import few_streams
from treepipe.core.errors import UserError
from treepipe.files.toml_file import toml_text
from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import SHOWN, Depths
from treepipe.planner.drawn import FEWEST_CASES
from treepipe.planner.questions import paying
from treepipe.scenario.making import taken_as_exact

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
    found = Depths.of(box(search={"cases": 0}))
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


CARDS: dict[str, Any] = {
    "name": "two RTX 4090",
    "target": {"profile": "qwen-2.5-32b", "dtype": "int4"},
    "drafts": [{"device": "rtx-4090", "host": "a", "model": {"profile": "qwen-2.5-0.5b"}}],
    "pipelines": [
        {"stages": [{"device": "rtx-4090", "host": "a"}, {"device": "rtx-4090", "host": "b"}]}
    ],
    "links": {"default": "ethernet-10g"},
    "acceptance": {"source": "bernoulli", "beta": 0.7},
    "search": {"cases": 0},
}


def test_more_streams_neither_slow_all_down_nor_gain_more(terminal: Terminal) -> None:
    """A layer measured in bfloat16 bends at other rows than one of 4 bits, whose kernels change
    behind 8 rows: from there on more streams gain less."""
    found = Depths.of(Cluster.of(CARDS))
    of_all = [streams / found.periods_ms[streams - 1, 0] for streams in SHOWN]
    assert of_all == sorted(of_all)
    gains = [found.gain(n, max(1, found.best(n))).mean for n in SHOWN if n > 8]
    assert all(more < less * 1.01 for less, more in pairwise(gains))
    (terminal.folder / "c.toml").write_text(toml_text(CARDS), "utf-8")
    terminal.monkeypatch.setenv("COLUMNS", "80")
    said = terminal.succeeds("plan", "c.toml", "--question", "worth")
    assert len(re.findall(r"^ +\d+ +\d+ +\d", said, re.M)) == len(SHOWN)
    exact, answer, table = (
        said.index(words)
        for words in (
            "Taking acceptance (beta = 0.7) as exact",
            "For one stream",
            "streams  drafted",
        )
    )
    assert exact < answer < table
    assert "tell no interval" in " ".join(said.split())


def test_uncertain_devices_reach_the_interval_and_few_cases_tell_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The draft's device is known to 40 % and the stage's exactly, so the gain has an interval."""
    few_streams(monkeypatch)
    apart = {"drafts": [{"device": "jetson-agx-orin", "model": {"profile": "llama-3.2-1b"}}]}
    known = {
        "target": {"profile": "llama-3.2-1b"},
        "acceptance": {"source": "bernoulli", "beta": 0.7},
    }
    found = Depths.of(box(**apart, **known))
    gain = found.gain(1, 3)
    assert gain.low is not None
    assert gain.high is not None
    assert len(found.cases) == FEWEST_CASES
    assert gain.high > 1.1 * gain.mean > 1.2 * gain.low
    assert Depths.of(box(**apart, **known, search={"cases": 19})).gain(1, 3).low is None
    stated = {"source": "bernoulli", "beta": 0.7, "uncertainty": 0.3}
    assert taken_as_exact(found.scenario)
    known_by = Depths.of(box(**apart, **{**known, "acceptance": stated}))
    assert not taken_as_exact(known_by.scenario)


def test_several_servers_are_not_taken_for_one() -> None:
    with pytest.raises(UserError, match="for one draft server, not 2"):
        Depths.of(box(drafts=[{**BOX["drafts"][0], "count": 2}]))


def test_options_that_contradict_each_other(terminal: Terminal) -> None:
    (terminal.folder / "c.toml").write_text("name = 'c'\n", "utf-8")
    terminal.fails("has no effect", "plan", "c.toml", "--question", "depth", "--plot", "x.png")
    terminal.fails("--runs has no effect", "plan", "c.toml", "--question", "depth", "--runs", 3)
    terminal.fails("--seed has no effect", "plan", "c.toml", "--question", "depth", "--seed", 3)


def test_what_does_not_fit_is_refused_and_the_streams_that_memory_holds_are_told() -> None:
    """Of an RTX 4090's 24,564 MiB half of the 32B model's layers take 8,400 at 9/16 bytes a weight,
    its embedding 1,485, the draft some 1,000; a stream of 8,064 tokens has 1,008 of keys and values
    (of 32 layers, 2 x 8 x 128 numbers of 2 bytes), and the draft's."""
    huge = {"target": {"profile": "llama-3.1-405b", "dtype": "int4"}}
    with pytest.raises(UserError, match=r"needs .* MiB .* but host 'a' has 24564 MiB"):
        Depths.of(Cluster.of({**CARDS, **huge}))
    few = Depths.of(Cluster.of({**CARDS, "workload": {"prompt_tokens": 8000}})).warnings[0]
    assert few.startswith("memory holds 12 streams of 8064 tokens (workload.prompt_tokens")


def test_keys_of_the_schedule_hold_and_what_the_formula_does_not_know_is_refused() -> None:
    """With its ends at the draft the last stage has no projection to compute."""
    first, there = (
        Depths.of(Cluster.of({**CARDS, "schedule": given})) for given in ({}, {"ends": "draft"})
    )
    assert there.periods_ms[255, 0] != first.periods_ms[255, 0]
    gamma = Depths.of(Cluster.of({**CARDS, "schedule": {"gamma": 3, "tree_size": 8}}))
    assert "key schedule.gamma has no effect: all are tried" in gamma.warnings
    assert "key schedule.tree_size has no effect on chain" in gamma.warnings
    relaxed = {"rule": "relaxed_top_p", "temperature": 1.0}
    for key, given in (
        ("schedule.dynamic_length", {"schedule": {"dynamic_length": True}}),
        ("sampling.rule", {"sampling": relaxed, "schedule": {"ends": "draft"}}),
        ("drafts", {"drafts": [{**CARDS["drafts"][0], "host": None, "count": 2}]}),
    ):
        with pytest.raises(UserError, match=f"key {key}: no closed form applies"):
            Depths.of(Cluster.of({**CARDS, **given}))


def test_no_deeper_chains_are_tried_than_were_counted() -> None:
    stated = {"source": "stated", "per_position": [0.9, 0.8, 0.72]}
    assert Depths.of(box(acceptance=stated, search={"cases": 0})).tokens.shape == (4,)


def test_where_drafting_pays_is_no_single_range() -> None:
    """No drafted token is ever right, but a pass over 16 rows takes less than one over 8."""
    steps = {"stage_ms": {1: 20.0, 8: 90.0, 9: 20.0, 64: 200.0}}
    stages = [{"stages": [{"device": steps, "host": "box"}]}]
    never = {"source": "bernoulli", "beta": 0.0}
    found = Depths.of(box(pipelines=stages, acceptance=never, search={"cases": 0}))
    assert found.gain(1, 1).mean < 1 < found.gain(8, 1).mean
    assert "of fewer only where the table has a gain" in paying(found)
    assert "table" not in paying(Depths.of(box(search={"cases": 0})))


def test_an_uncertain_acceptance_never_misses_more_than_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Misses of 0.3 are within a factor of 3 of themselves, and of 0.95 at the third token; 20
    cases lie between a round without a hit and one of hits alone."""
    few_streams(monkeypatch)
    for table in ({1: 0.7}, {1: [0.7, 0.5, 0.05]}, {1: [0.6, 0.0]}):
        unsure = {"source": "hit_ratio", "table": table, "uncertainty": 2.0}
        rounds = [tokens[2] for tokens, _ in Depths.of(box(acceptance=unsure)).cases]
        assert len(rounds) == FEWEST_CASES
        assert all(1 <= tokens <= 3 for tokens in rounds)
        assert min(rounds) < 1.7 < max(rounds)
