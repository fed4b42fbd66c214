"""Which nodes are a layer's: PipeDec and SpecPipe choose them from the tree that a prune left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.examples import examples
from tests.worlds.layers_by_the_paper import Logits, PaperSteps
from tests.worlds.one_request import OneRequest
from treepipe.core.decoding.layered import Layered, LayeredKeys
from treepipe.core.schedules import systems
from treepipe.testing.case import ORDER, TrialCase
from treepipe.testing.hashed_lm import DRAFTS, VOCABULARY, any_order, target
from treepipe.testing.timeless_world import TimelessWorld
from treepipe.testing.trials.decoding import decode

PROMPT = [3, 1, 2]
WITHOUT_TIES = ("noisy", "perfect", "poor", "random")
R, A, B, C, D, E, F, G, H, I, J = range(11)  # noqa: E741
TREE = {
    (): {A: 0.6, B: 0.4},
    (A,): {C: 0.55, D: 0.45},
    (B,): {E: 0.9, F: 0.1},
    (B, E): {G: 0.9, H: 0.1},
    (A, C): {I: 0.52, J: 0.48},
}
"""What the draft proposes below the root R; anywhere else, A before B."""
TEXT = [R, A, C, J]


def tabled(below: dict[tuple[int, ...], dict[int, float]]) -> Logits:
    """A model of the tokens behind the first R; elsewhere A before B."""

    def logits(path: list[int]) -> np.ndarray:
        found = np.full(J + 1, -30.0)
        said = below.get(tuple(path[len(PROMPT) + 1 :]), {A: 0.6, B: 0.4})
        for token, probability in said.items():
            found[token] = np.log(probability)
        return found

    return logits


def by_hand(path: list[int]) -> np.ndarray:
    """The target of ``TEXT``, then A for ever."""
    done = len(path) - len(PROMPT)
    return np.asarray(20.0 * np.eye(J + 1)[TEXT[done] if done < len(TEXT) else A])


@pytest.mark.parametrize(
    ("draft_reuse", "fed", "gained"),
    [
        # The draft's pass over E and C proposes G .324, I .17, J .16, H .036. The third step's
        # token A leaves of these what is below C, so I and J are the next layer.
        (True, [R, A, B, E, C, I, J], [0, 0, 1, 1, 1]),
        # Chosen before the prune they are G and I, of which I stays; then J is a miss.
        (False, [R, A, B, E, C, I], [0, 0, 1, 1, 1]),
    ],
)
def test_a_layer_is_chosen_of_what_the_prune_has_left(
    draft_reuse: bool, fed: list[int], gained: list[int]
) -> None:
    """By hand, three groups, layers of two nodes (PipeDec, section 3.3.4: prune, then update)."""
    keys = LayeredKeys(width=2, children=2, draft_reuse=draft_reuse)
    schedule = Layered(0, 64, keys)
    world = OneRequest(schedule, 3, by_hand, tabled(TREE))
    assert world.decode(PROMPT, 9)[:4] == TEXT
    assert world.pipeline.ledger().tokens[: len(fed)] == fed
    assert list(schedule.rounds[0].committed_per_step[: len(gained)]) == gained
    hit = schedule.rounds[0].tokens > sum(gained)
    assert hit == draft_reuse, "J was in the tree, or ended the round"


@examples(150)
@given(
    st.integers(1, 6),
    st.tuples(st.integers(1, 6), st.integers(1, VOCABULARY)),
    st.sampled_from(WITHOUT_TIES),
    st.integers(0, 2**32),
)
def test_every_step_is_the_paper_s(
    stages: int, sizes: tuple[int, int], draft: str, seed: int
) -> None:
    """An independent program plays the paper's order: the same nodes, rows in every group and
    tokens per step; and the first group always has a layer to take."""
    width, children = sizes
    paper = PaperSteps(target, DRAFTS[draft], stages, width, children)
    paper.play(PROMPT, 30)
    assert paper.empty == 0
    schedule = Layered(0, 64, LayeredKeys(width=width, children=children))
    world = OneRequest(schedule, stages, target, DRAFTS[draft], any_order(seed))
    assert world.decode(PROMPT, 30) == paper.text
    world.drain()
    assert [list(each.committed_per_step) for each in schedule.rounds] == paper.hits
    assert world.pipeline.ledger().tokens == paper.fed
    for ours, theirs in zip(world.pipeline.forward_sizes, paper.computed, strict=True):
        assert ours[1 : 1 + len(theirs)] == theirs, "behind the prompt"


# --- steps that requests share -------------------------------------------------------------------

LAYERED = [system.name for system in systems().values() if system.in_lock_step]


def decoded(name: str, requests: int, draft: str, stages: int, seed: int) -> TimelessWorld:
    """Equal requests of 5 and some 30 tokens at once; messages move in an order of the seed."""
    system = systems()[name]
    order = np.random.default_rng(seed).integers(0, 60, 20_000).tolist()
    case = TrialCase.replaying({"draft": draft, ORDER: order})
    asked = [(5, 30, frozenset[int]())] * requests
    shape = {"width": 4, "children": 3} if "width" in system.keys else {}
    return decode(system, system.parameters(**shape), case, asked, stages)


@pytest.mark.parametrize("name", LAYERED)
def test_lock_step_computes_the_same_whatever_the_order_of_messages(name: str) -> None:
    """But for what is under way when the request ends: its end may come before or after that."""
    worlds = [decoded(name, 1, "noisy", 4, seed) for seed in range(6)]
    assert all(world.draft_calls == worlds[0].draft_calls for world in worlds)
    for stage in range(4):
        sizes = [world.pipelines[0].forward_sizes[stage] for world in worlds]
        least = min(map(len, sizes))
        assert max(map(len, sizes)) <= least + 4
        assert all(each[:least] == sizes[0][:least] for each in sizes)


def test_a_ragged_batch_computes_the_layers_of_all_requests_in_one_pass() -> None:
    """Two requests are in step from the start, so that most flights hold both."""
    alone, both = (decoded("specpipe_db", n, "perfect", 3, 0).pipelines[0] for n in (1, 2))
    passes, single = ([len(sizes) for sizes in each.forward_sizes] for each in (both, alone))
    assert all(two < 1.5 * one for two, one in zip(passes, single, strict=True))
    assert np.mean(both.forward_sizes[0][2:]) > 1.5 * np.mean(alone.forward_sizes[0][1:])
