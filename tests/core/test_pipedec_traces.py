"""How far our PipeDec without draft reuse does what the public code of FlowSpec recorded of it.

Every round of the two "pipedec" records is played from its own beginning. Equal are, in all rounds:
the committed tokens, the draft's passes over the first four layers, and those after the first and
the second committed token; likewise what the first stage computes up to the layer that was drafted
after the first one. So the lock-step, the pruning, the choice of a layer's nodes and the whole tree
run again for every layer are theirs.

Not reproduced: what their draft proposes once two tokens of a round are committed. From there on
its guesses are far worse than the toy draft's for the true path, so that their rounds end one or
two tokens after the last layer that was drafted before; no rearrangement of the last six tokens
that the toy draft looks at explains all of their sizes. Ours goes on with the true path, and its
rounds are longer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import toy_lm
from tests.worlds.timeless_world import TimelessWorld
from treepipe.core.decoding.layered import Layered, LayeredKeys
from treepipe.core.protocol import Started

RECORDS = [
    record
    for record in json.loads(
        (Path(__file__).parents[1] / "data" / "flowspec_traces.json").read_text()
    )
    if record["method"] == "pipedec"
]
FIRST_LAYERS = 4
"""Passes before the root has passed all four stages."""


def rounds(record: dict[str, Any]) -> Iterator[tuple[list[int], int, list[int], list[int]]]:
    """Per recorded round: text up to its root, tokens, draft passes, the first stage's passes."""
    text, sizes = [*record["prompt"], record["tokens"][0]], record["forward_sizes"][0]
    # A round's first passes: the root alone, then three whole layers. It has at most as many passes
    # as the draft had in it.
    starts = [i for i in range(len(sizes)) if sizes[i : i + 4] == [1, 16, 16, 16]]
    first, done = 0, 1
    for (tokens, _), passes in zip(record["rounds"], record["draft_calls"], strict=True):
        end = max(i for i in [*starts, len(sizes)] if i <= first + len(passes))
        yield text[:], tokens, passes, sizes[first:end]
        text += record["tokens"][done : done + tokens]
        done, first = done + tokens, end
    assert first == len(sizes), "the rounds are all there is"


CASES = [
    pytest.param(record, *each, id=f"{record['prompt'][0]}-{i}")
    for record in RECORDS
    for i, each in enumerate(rounds(record))
]


@pytest.mark.parametrize(("record", "text", "tokens", "passes", "sizes"), CASES)
def test_round_is_the_recorded_one_up_to_its_second_commit(
    record: dict[str, Any], text: list[int], tokens: int, passes: list[int], sizes: list[int]
) -> None:
    parameters = LayeredKeys(width=record["pipedec_width"], children=16, draft_reuse=False)
    schedule = Layered(1, 64, parameters)
    world = TimelessWorld(
        [record["stages"]],
        toy_lm.target_logits,
        lambda path: toy_lm.draft_logits(path, record["noise"]),
    )
    prompt, root = text[:-1], text[-1]
    world.open(1, schedule, Started(tuple(prompt), tokens + 1))
    world.run()
    assert world.text(1) == [root, *_greedy(text, tokens)]
    assert world.draft_calls[0] == len(text), "the root and all before it"
    assert world.draft_calls[1 : FIRST_LAYERS + 2] == passes[1 : FIRST_LAYERS + 2]
    first_stage = world.pipelines[0].forward_sizes[0]
    assert first_stage[0] == len(prompt)
    assert first_stage[1 : FIRST_LAYERS + 2] == sizes[: FIRST_LAYERS + 1]


def _greedy(text: list[int], tokens: int) -> list[int]:
    path = [*text]
    for _ in range(tokens):
        path.append(int(toy_lm.target_logits(path).argmax()))
    return path[len(text) :]
