"""PipeDec as FlowSpec's public code runs it does what that code was recorded doing.

There a round's draft rows are pruned by one slip of an index (``tests/worlds/slipped.py``).
With it every record is replayed whole: tokens, turns, what each stage computes and the draft does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import toy_lm
from tests.worlds.examples import examples
from tests.worlds.one_request import OneRequest
from tests.worlds.slipped import SlippedKeys
from treepipe.core.decoding.layered import Layered
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.schedules import systems
from treepipe.core.schedules.pipedec import PipeDecKeys
from treepipe.testing.hashed_lm import DRAFTS, VOCABULARY, any_order, target

RECORDS = [
    record
    for record in json.loads(
        (Path(__file__).parents[1] / "data" / "flowspec_traces.json").read_text()
    )
    if record["method"] == "pipedec"
]


class SlippedWorld(OneRequest):
    """With the slip nodes were drafted for other paths than their own.

    Attributes:
        scratch: by how much the largest draft pass exceeds the committed text.
    """

    scratch = 0

    def _check_offered(self, session: int) -> None:
        pass

    def drafted(self, session: int, order: DraftPass) -> Drafted:
        if not order.catch_up:
            self.scratch = max(self.scratch, order.rows - len(self.text(session)))
        return super().drafted(session, order)


def play(
    record: dict[str, Any], kind: type[PipeDecKeys] = SlippedKeys, seed: int | None = None
) -> OneRequest:
    """As many tokens as were committed; ``seed``: messages move in a random order."""
    keys = kind(width=record["pipedec_width"], children=16, draft_reuse=False)
    rng = np.random.default_rng(seed)
    world = SlippedWorld(
        Layered(0, 64, keys),
        record["stages"],
        toy_lm.target_logits,
        lambda path: toy_lm.draft_logits(path, record["noise"]),
        lambda count: 0 if seed is None else int(rng.integers(count)),
    )
    world.decode(record["prompt"], 1 + sum(tokens for tokens, _ in record["rounds"]))
    world.drain()
    return world


def turns(world: OneRequest) -> list[list[int]]:
    """Per round the tokens committed and the turns."""
    return [[r.tokens, r.steps] for r in world.schedule.rounds]


def calls(record: dict[str, Any]) -> list[int]:
    return [rows for round_calls in record["draft_calls"] for rows in round_calls]


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record["prompt"][0]))
def test_the_whole_record_is_replayed(record: dict[str, Any], seed: int | None) -> None:
    world = play(record, seed=seed)
    assert world.text(0)[: len(record["tokens"])] == record["tokens"]
    assert turns(world) == record["rounds"]
    for ours, theirs in zip(world.pipeline.forward_sizes, record["forward_sizes"], strict=True):
        assert ours[1 : len(theirs) + 1] == theirs
        assert len(ours) - 1 - len(theirs) < record["stages"], "what was under way at the end"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record["prompt"][0]))
def test_the_draft_runs_the_recorded_passes(record: dict[str, Any]) -> None:
    """Our rows are those of the paths that are read: a pass of ours is larger by those that lie
    on pruned nodes, which their code holds in the rows' states. Their first pass pairs the prompt's
    tokens with states, and so reads one token less."""
    ours, theirs = play(record).draft_calls, calls(record)
    assert len(ours) == len(theirs)
    assert (ours[0], theirs[0]) == (6, 5)
    more = np.subtract(ours, theirs)[1:]
    assert more.min() == 0
    assert np.count_nonzero(more) <= 0.3 * len(more)
    assert more.sum() <= 0.06 * sum(theirs)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: str(record["prompt"][0]))
def test_without_the_slip_rounds_are_longer(record: dict[str, Any]) -> None:
    """Both are lossless; up to a round's second commit they are one."""
    slipped, mended = play(record), play(record, PipeDecKeys)
    assert mended.text(0) == slipped.text(0)
    assert len(mended.draft_calls) < len(slipped.draft_calls)
    same = _in_common(mended.draft_calls, slipped.draft_calls)
    assert record["stages"] + 2 <= same < len(slipped.draft_calls)


def _in_common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


@examples(40)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, VOCABULARY), st.integers(1, 3)),
    st.sampled_from(sorted(DRAFTS)),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_the_slip_is_lossless_and_keeps_twice_the_bound(
    sizes: tuple[int, int, int], draft: str, stages: int, seed: int
) -> None:
    width, children, layers = sizes
    keys = SlippedKeys(width=width, children=children, layers_per_step=layers)
    world = SlippedWorld(Layered(0, 64, keys), stages, target, DRAFTS[draft], any_order(seed))
    prompt = [i % VOCABULARY for i in range(9)]
    text = world.decode(prompt, 20)
    assert text == [int(target([*prompt, *text[:i]]).argmax()) for i in range(20)]
    # The slip reads nodes behind other paths, too.
    assert world.scratch <= 2 * systems()["pipedec"].bounds(keys, stages).scratch_tokens
