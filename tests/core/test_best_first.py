"""Trees of a block draft: the heap against exhaustive search, and what the growing draft says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.examples import examples
from treepipe.core.decoding.best_first import BlockTreeDraft, Level, best_first
from treepipe.core.decoding.drafting import Growth
from treepipe.core.protocol import Drafted


@st.composite
def levels(draw: st.DrawFn) -> list[Level]:
    """Up to 3 levels of up to 4 candidates; shares differ enough for products to differ, too."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        shares = sorted(draw(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=4)), reverse=True)
        tokens = draw(st.permutations(range(9)))[: len(shares)]
        found.append((tuple(tokens), tuple(math.log(share) for share in shares)))
    return found


def all_paths(levels: Sequence[Level]) -> dict[tuple[int, ...], float]:
    """Every path of candidates, with the logarithm of the product of their shares."""
    found = {}
    for depth in range(1, len(levels) + 1):
        for ranks in itertools.product(*(range(len(tokens)) for tokens, _ in levels[:depth])):
            path = tuple(levels[place][0][rank] for place, rank in enumerate(ranks))
            found[path] = sum(levels[place][1][rank] for place, rank in enumerate(ranks))
    return found


def paths_of(tokens: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tokens, parents, strict=True):
        assert parent < len(found), "a node comes after its parent"
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


@examples(200)
@given(levels(), st.integers(1, 30))
def test_the_heap_takes_the_most_probable_paths_of_all(levels: list[Level], budget: int) -> None:
    """They are closed under the parent by themselves: no path is more probable than its beginning
    (so the best nodes of any tree are those of all paths, whichever the order of equal ones)."""
    tokens, parents, scores = best_first(levels, budget)
    paths, every = paths_of(tokens, parents), all_paths(levels)
    assert len(set(paths)) == len(paths) == min(budget, len(every))
    assert scores == sorted(scores, reverse=True)
    for path, score in zip(paths, scores, strict=True):
        assert math.isclose(score, every[path], abs_tol=1e-9)
    best = sorted(every.values(), reverse=True)[: len(paths)]
    assert all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(scores, best, strict=True))


def drafted(draft: BlockTreeDraft, levels: Sequence[Level], width: int) -> list[int]:
    """Answer all passes of a draft; return the number of rows of each."""
    rows = []
    for ticket, (tokens, shares) in enumerate(levels):
        if draft.complete:
            break
        rows.append(draft.next_pass(ticket).rows)
        lacking = width - len(tokens)
        answer = [*tokens, *[0] * lacking], [*shares, *[-math.inf] * lacking]
        draft.absorb(Drafted(ticket, *([row] for row in answer)))
    return rows


@examples(100)
@given(levels(), st.integers(1, 12), st.booleans(), st.data())
def test_a_draft_asks_one_node_per_level_and_gives_the_heap_s_tree(
    levels: list[Level], size: int, score_order: bool, data: st.DataObject
) -> None:
    """Below any path, in either order of its nodes; a path off the candidates is not reached."""
    draft = BlockTreeDraft(77, (5, 77), Growth.dynamic(4, len(levels) - 1))
    assert drafted(draft, levels, 4) == [2] + [1] * (len(levels) - 1)
    path = data.draw(st.sampled_from([(), *all_paths(levels)]))
    assert draft.reaches(path)
    assert not draft.reaches((*path, 99))
    assert draft.misses((*path, 99)) == (len(path) < len(levels))
    tokens, parents, scores = draft.best_tree(size, score_order, path)
    assert tokens[0] == (path[-1] if path else 77)
    assert parents[0] == -1
    expected = best_first(levels[len(path) :], size)
    below = paths_of(tokens[1:], [parent - 1 for parent in parents[1:]])
    assert sorted(below) == sorted(paths_of(*expected[:2]))
    order = [len(each) for each in below]
    assert score_order or order == sorted(order)
    assert not score_order or scores[1:] == expected[2]


def test_a_level_of_one_candidate_is_a_chain() -> None:
    chain: list[Level] = [((token,), (-0.5,)) for token in range(5)]
    assert best_first(chain, 3)[:2] == ([0, 1, 2], [-1, 0, 1])
