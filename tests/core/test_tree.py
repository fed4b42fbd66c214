"""Laws of the token tree, for any tree and any sequence of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.messages import NO_PARENT
from treepipe.core.tree import TokenTree, best, split


@st.composite
def trees(draw: st.DrawFn, max_size: int = 24) -> TokenTree:
    """A random tree with scores that never rise along a path, ties included."""
    tree = TokenTree(draw(st.integers(0, 9)))
    for _ in range(draw(st.integers(0, max_size))):
        parent = draw(st.integers(0, len(tree) - 1))
        token = draw(st.integers(0, 9))
        if tree.child(parent, token) is None:
            drop = draw(st.sampled_from([0.0, 0.0, 0.5, 1.0, 2.5]))
            tree.append(token, parent, tree.scores[parent] - drop)
    return tree


def _assert_order(tree: TokenTree) -> None:
    assert tree.parents[0] == NO_PARENT
    assert all(parent < index for index, parent in enumerate(tree.parents))
    assert all(
        tree.depths[i] == tree.depths[p] + 1 for i, p in enumerate(tree.parents) if p != NO_PARENT
    )


def _assert_same(one: TokenTree, other: TokenTree) -> None:
    """Equal in every respect, the children that can be looked up included."""
    assert (one.tokens, one.parents, one.depths) == (other.tokens, other.parents, other.depths)
    assert one.scores == other.scores
    for node in range(len(one)):
        for token in range(10):
            assert one.child(node, token) == other.child(node, token)


def _relabelled(tree: TokenTree, names: list[int]) -> TokenTree:
    """The same tree with other token ids, built afresh."""
    new = TokenTree(names[tree.tokens[0]])
    new.scores[0] = tree.scores[0]
    new.merge([names[token] for token in tree.tokens], tree.parents, tree.scores)
    return new


def _paths(tree: TokenTree) -> list[tuple[int, ...]]:
    return [tree.path_tokens(node) for node in range(len(tree))]


@given(trees(), trees(), st.data())
def test_order_law_survives_every_operation(
    tree: TokenTree, other: TokenTree, data: st.DataObject
) -> None:
    for _ in range(data.draw(st.integers(1, 6))):
        operation = data.draw(st.sampled_from(["append", "merge", "retain"]))
        if operation == "append":
            parent, token = data.draw(st.integers(0, len(tree) - 1)), data.draw(st.integers(0, 9))
            if tree.child(parent, token) is None:
                assert tree.append(token, parent, -1.0) == len(tree) - 1
        elif operation == "merge":
            tree.merge(other.tokens, other.parents, other.scores)
        else:
            node = data.draw(st.integers(0, len(tree) - 1))
            above = tree.path(node)[:-1]
            tree.retain((*above, *tree.subtree(node)), len(above))
        _assert_order(tree)
        assert len(set(_paths(tree))) == len(tree), "no token path occurs twice"


@given(trees(), trees(), st.permutations(range(10)))
def test_merge_commutes_with_relabelling(
    tree: TokenTree, other: TokenTree, names: list[int]
) -> None:
    later = _relabelled(tree, names)
    appended = later.merge([names[t] for t in other.tokens], other.parents, other.scores)
    assert appended == tree.merge(other.tokens, other.parents, other.scores)
    _assert_same(_relabelled(tree, names), later)


@given(trees(), trees())
def test_merge_appends_what_is_new_and_moves_nothing(tree: TokenTree, other: TokenTree) -> None:
    before, scores = _paths(tree), list(tree.scores)
    offered = [(tree.tokens[0], *path[1:]) for path in _paths(other)]
    appended = tree.merge(other.tokens, other.parents, other.scores)
    assert _paths(tree) == before + [path for path in offered if path not in before]
    assert tree.scores[: len(before)] == scores, "old scores stay, stale or not"
    assert appended == range(len(before), len(tree))


@given(trees(), st.permutations(range(10)), st.data())
def test_prune_commutes_with_relabelling(
    tree: TokenTree, names: list[int], data: st.DataObject
) -> None:
    other = _relabelled(tree, names)
    node = data.draw(st.integers(0, len(tree) - 1))
    above = tree.path(node)[:-1]
    for pruned in (tree, other):
        pruned.retain((*above, *pruned.subtree(node)), len(above))
    _assert_same(_relabelled(tree, names), other)


@given(trees(), st.data())
def test_retain_equals_building_the_subtree_afresh(tree: TokenTree, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(tree) - 1))
    above = tree.path(node)
    paths = _paths(tree)
    below = [i for i, path in enumerate(paths) if path[: len(above)] == paths[node]]
    fresh = TokenTree(tree.tokens[node])
    fresh.scores[0] = tree.scores[node]
    places = {paths[node]: 0}
    for i in below[1:]:
        parent = places[paths[i][:-1]]
        places[paths[i]] = fresh.append(tree.tokens[i], parent, tree.scores[i])
    tree.retain((*above[:-1], *below), len(above) - 1)
    _assert_same(tree, fresh)


@given(trees(), st.integers(1, 30))
def test_best_nodes_come_with_their_ancestors_before_them(tree: TokenTree, size: int) -> None:
    chosen = best(np.array(tree.scores), size).tolist()
    for place, node in enumerate(chosen):
        assert set(tree.path(node)) <= set(chosen[: place + 1])
    assert [tree.scores[i] for i in chosen] == sorted(tree.scores, reverse=True)[:size]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=20), st.integers(1, 30))
def test_certain_nodes_come_in_order_of_insertion(parents: list[int], size: int) -> None:
    """q = 1.0 everywhere: all scores are equal, and only the order of insertion is left."""
    tree = TokenTree(0)
    for token, parent in enumerate(parents, 1):
        tree.append(token, min(parent, token - 1), 0.0)
    assert best(np.array(tree.scores), size).tolist() == list(range(len(tree)))[:size]


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 40))
def test_split_cuts_evenly_up_to_the_limit(count: int, parts: int, limit: int) -> None:
    lengths = split(count, parts, limit)
    assert len(lengths) == parts
    assert max(lengths) - min(lengths) <= 1
    if count // parts > limit:
        assert lengths == [limit] * parts, "the rest waits"
        assert sum(lengths) < count
    else:
        assert sum(lengths) == count
        assert max(lengths) <= limit + 1
    assert lengths == sorted(lengths, reverse=count < parts), "larger ones last; markers last"


def test_wrong_use_is_refused() -> None:
    tree = TokenTree(1)
    tree.append(2, 0, -1.0)
    with pytest.raises(ValueError, match="already has a child with token 2"):
        tree.append(2, 0, -1.0)
    with pytest.raises(ValueError, match="parent 5 is not among the 2 nodes"):
        tree.append(3, 5, -1.0)
    with pytest.raises(ValueError, match="keeps at least its root"):
        tree.retain((0,), 1)
    tree.append(3, 1, -2.0)
    with pytest.raises(ValueError, match="node 1 is dropped, but a child of it"):
        tree.retain((0, 2), 0)
