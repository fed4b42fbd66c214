"""Tokens to draft by streams: against sums by hand and against simulations of every depth; and what
engines get of them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.searches import found
from treepipe.core.errors import UserError
from treepipe.files.toml_file import toml_text
from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import ENOUGH_CASES, SHOWN, DepthRange, Depths
from treepipe.planner.engine import engine, served_best, served_question
from treepipe.planner.questions.worth import resting

BOX: dict[str, Any] = {
    "name": "box",
    "target": {"layers": 4},
    "drafts": [{"device": {"draft_ms": {1: 2.0, 64: 8.3}}, "host": "box"}],
    "pipelines": [
        {"stages": [{"device": {"stage_ms": {1: 20.0, 16: 20.0, 64: 60.0}}, "host": "box"}]}
    ],
    "acceptance": {"source": "hit_ratio", "table": {1: [0.8, 0.7, 0.5]}},
}
TWO = {"pipelines.0.count": 2, "workload.requests": 2, "workload.concurrency": 2}
ENGINES = ("vllm", "sglang", "llama.cpp")


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
        kept = found.gains[streams - 1, found.depth_at(streams)]
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
    """A layer measured in bfloat16 bends at other rows than one of 4 bits."""
    found = Depths.of(Cluster.of(CARDS))
    of_all = [streams / found.periods_ms[streams - 1, 0] for streams in SHOWN]
    assert of_all == sorted(of_all)
    gains = [found.gain(n, max(1, found.best(n))).mean for n in SHOWN]
    assert all(more < less * 1.01 for less, more in pairwise(gains))
    (terminal.folder / "c.toml").write_text(toml_text(CARDS), "utf-8")
    terminal.monkeypatch.setenv("COLUMNS", "80")
    said = terminal.succeeds("plan", "c.toml", "--question", "worth")
    assert len([line for line in said.splitlines() if line.startswith("│")]) == len(SHOWN)
    exact, answer, table = (
        said.index(words) for words in ("beta = 0.7) as exact", "For one stream", "┏")
    )
    assert exact < answer < table
    assert "tell no interval" in " ".join(said.split())


def test_uncertain_devices_reach_the_interval_and_few_cases_tell_none() -> None:
    """The draft's device is known to 40 % and the stage's exactly, so the gain has an interval."""
    apart = {"drafts": [{"device": "jetson-agx-orin", "model": {"profile": "llama-3.2-1b"}}]}
    known = {
        "target": {"profile": "llama-3.2-1b"},
        "acceptance": {"source": "bernoulli", "beta": 0.7},
    }
    found = Depths.of(box(**apart, **known))
    gain = found.gain(1, 3)
    assert gain.low is not None
    assert gain.high is not None
    assert len(found.cases) == ENOUGH_CASES
    assert gain.high > 1.1 * gain.mean > 1.2 * gain.low
    assert Depths.of(box(**apart, **known, search={"cases": 19})).gain(1, 3).low is None
    stated = {"source": "bernoulli", "beta": 0.7, "uncertainty": 0.3}
    assert resting(found)
    assert not resting(Depths.of(box(**apart, **{**known, "acceptance": stated})))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("pays", [True, False])
def test_engines_get_documented_options_alone(name: str, pays: bool) -> None:
    made = served_question(box() if pays else box(acceptance={"source": "bernoulli", "beta": 0.01}))
    text = engine(name).config(made)
    assert ("DRAFT-CHECKPOINT" in text) == pays
    with pytest.raises(ValueError, match="not documented"):
        engine(name).check("speculative-dreams", 3)


def test_vllm_s_table_begins_at_one_and_has_no_gap() -> None:
    text = engine("vllm").config(served_question(box()))
    line = next(each for each in text.splitlines() if each.startswith("speculative-config"))
    told = json.loads(line.partition(": ")[2].strip("'"))
    table = [DepthRange(*each) for each in told["num_speculative_tokens_per_batch_size"]]
    assert table == Depths.of(box()).ranges
    assert told["num_speculative_tokens"] == max(each.depth for each in table)


def test_a_name_stays_in_its_comment() -> None:
    """YAML ends a comment at a line separator (U+2028), too."""
    text = engine("vllm").config(served_question(box(name="a\u2028max-model-len: 1\nb: 2")))
    *comments, told = filter(None, text.splitlines())
    assert {line[0] for line in comments} == {"#"}
    assert told.startswith("speculative-config: ")


def test_what_an_engine_cannot_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"--engine vllm: the best plan's system 'flowspec'"):
        engine("vllm").check_system("flowspec")
    with pytest.raises(UserError, match=r"--engine vlm: is unknown; did you mean 'vllm'"):
        engine("vlm")


def test_a_plan_s_table_is_of_the_devices_that_it_buys() -> None:
    """The file's own device stands for those that are bought, and takes no time here."""
    fast = {"stage_ms": {1: 10.0, 4: 10.0, 64: 70.0}, "draft_ms": {1: 1.0}}
    bought = found(**{
        "acceptance.beta": 0.9,
        "pipelines": [{"stages": [{"device": {"stage_ms": {1: 1e-6}}}]}],
        "search.schedules": ["chain"],
        "search.grid": {"schedule.gamma": [2]},
        "search.drafts": ["stage"],
        "search.devices": {
            "kinds": [{"name": "fast", "device": fast, "price_usd": 1.0}], "counts": [1]
        },
    })  # fmt: skip
    served = served_best(bought, engine("vllm"))
    assert served.depths is not None
    assert served.depths.periods_ms[0, 0] == pytest.approx(10.0)
    assert '"num_speculative_tokens": ' in engine("vllm").config(served)
    served = served_best(found(**{**TWO, "search.schedules": ["chain"]}), engine("sglang"))
    assert "start as many servers" in " ".join(served.reasons)
    assert engine("sglang").settings(engine("sglang"), served)[0]["pipeline-parallel-size"] == 2
    draft = {"model": {"checkpoint": "reference"}, "device": fast, "host": "box"}
    assert "DRAFT-CHECKPOINT" in engine("vllm").config(served_question(box(drafts=[draft])))


def test_options_that_contradict_each_other(terminal: Terminal) -> None:
    (terminal.folder / "c.toml").write_text("name = 'c'\n", "utf-8")
    terminal.fails("give both", "plan", "c.toml", "--engine", "vllm")
    terminal.fails("has no effect", "plan", "c.toml", "--question", "depth", "--plot", "x.png")
    terminal.fails("--runs has no effect", "plan", "c.toml", "--question", "depth", "--runs", 3)
