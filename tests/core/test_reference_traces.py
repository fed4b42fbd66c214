"""Our schedules do what the authors' own control flow did, turn by turn, on the toy model.

``data/flowspec_traces.json`` holds counts and token ids recorded by running the public code of
FlowSpec (Leosang-lx/FlowSpec at f0c055a) on ``toy_lm.py``; ``method`` "naive" is naive_pp,
"pruned" pruned_pp, "continuous" flowspec. The "pipedec" records are in ``test_pipedec_traces.py``.

Their ``rounds`` count turns as i + N for a round with turns 0..i: one less than our steps + N in
lock-step, steps + N in naive_pp. Two differences are kept on purpose, each with a test here:

* our first draft pass reads one token more: a language model reads the prompt's first token,
  too, where an EAGLE head pairs every token with the hidden state before it;
* the recorded code lets its last turn overshoot the wanted length (48), ours cuts the output.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worlds import toy_lm
from tests.worlds.one_request import OneRequest
from treepipe.core.decoding.drafting import Growth
from treepipe.core.decoding.tree_schedule import StaticTree, TreeParameters
from treepipe.core.protocol import Schedule
from treepipe.core.schedules.flowspec import Continuous, Expansion
from treepipe.testing.timeless_world import first

RECORDS = json.loads((Path(__file__).parents[1] / "data" / "flowspec_traces.json").read_text())
OURS = [record for record in RECORDS if record["method"] != "pipedec"]
WANTED = 48


def _label(record: dict[str, Any]) -> str:
    flags = [name for name in ("score_aware", "score_order") if record[name]]
    return "-".join([record["method"], str(record["prompt"][0]), *flags])


def _schedule(record: dict[str, Any]) -> Schedule:
    growth = Growth.dynamic(record["top_k"], record["depth"])
    parameters = TreeParameters(record["tree"], record["segment"], record["score_order"], growth)
    parts = record["stages"] + 1
    if record["method"] == "naive":
        return StaticTree(0, 64, parameters, parts)
    size, depth = record["expand"]
    expanded = Growth.dynamic(record["top_k"], depth)
    expansion = Expansion(expanded, size, score_aware=record["score_aware"])
    return Continuous(
        0, 64, parameters, parts, expansion if record["method"] == "continuous" else None
    )


def _run(
    record: dict[str, Any],
    wanted: int | None = None,
    choose: Callable[[int], int] = first,
) -> OneRequest:
    """As many tokens as were committed, or ``wanted``; ``choose`` orders the messages."""
    world = OneRequest(
        _schedule(record),
        record["stages"],
        toy_lm.target_logits,
        lambda path: toy_lm.draft_logits(path, record["noise"]),
        choose,
    )
    # The first token comes from prefill and belongs to no round.
    committed = sum(tokens for tokens, _ in record["rounds"])
    world.decode(record["prompt"], wanted or committed + 1)
    return world


def _rounds(record: dict[str, Any], world: OneRequest) -> list[list[int]]:
    """Our rounds in the record's count: tokens committed, turns."""
    extra = record["stages"] - (record["method"] != "naive")
    return [[r.tokens, r.steps + extra] for r in world.schedule.rounds]


def _assert_as_recorded(record: dict[str, Any], world: OneRequest) -> None:
    assert _rounds(record, world) == record["rounds"]
    assert world.request.text[: len(record["tokens"])] == record["tokens"]
    world.drain()
    prefill = [sizes[0] for sizes in world.pipeline.forward_sizes]
    assert prefill == [len(record["prompt"])] * record["stages"]
    assert [sizes[1:] for sizes in world.pipeline.forward_sizes] == record["forward_sizes"]
    assert world.empty_returns == record["empty_turns"]


def test_all_records_are_there() -> None:
    assert len(OURS) == 10
    assert {record["method"] for record in OURS} == {"naive", "pruned", "continuous"}
    assert {record["score_order"] for record in OURS} == {True, False}
    assert {record["score_aware"] for record in OURS} == {True, False}


@pytest.mark.parametrize("record", OURS, ids=_label)
def test_schedule_does_what_the_authors_code_did(record: dict[str, Any]) -> None:
    _assert_as_recorded(record, _run(record))


@pytest.mark.parametrize("record", OURS, ids=_label)
def test_order_of_messages_does_not_matter(record: dict[str, Any]) -> None:
    """Words, segments and draft answers move in another order: the same turns all the same."""
    rng = np.random.default_rng(7)
    _assert_as_recorded(record, _run(record, choose=lambda count: int(rng.integers(count))))


@pytest.mark.parametrize("record", OURS, ids=_label)
def test_draft_calls_but_the_first_are_the_authors(record: dict[str, Any]) -> None:
    """Named difference: the first catch-up reads 6 tokens (prompt and root), theirs reads 5."""
    calls = [size for round_calls in record["draft_calls"] for size in round_calls]
    world = _run(record)
    assert (world.draft_calls[0], calls[0]) == (6, 5)
    assert world.draft_calls[1:] == calls[1:]


@pytest.mark.parametrize("record", OURS, ids=_label)
def test_output_is_cut_at_the_wanted_length(record: dict[str, Any]) -> None:
    """Named difference: 48 tokens were wanted of the recorded code, and it returned more."""
    world = _run(record, WANTED)
    assert len(record["tokens"]) > WANTED
    assert world.request.text == record["tokens"][:WANTED]
    ours = _rounds(record, world)
    assert ours[:-1] == record["rounds"][: len(ours) - 1], "only the last round is cut"
    assert sum(tokens for tokens, _ in ours) == WANTED - 1
