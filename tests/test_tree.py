"""Laws of the token tree, for any tree and any sequence of operations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.protocol import NO_PARENT
from treepipe.tree import TokenTree, ancestor_mask, best, split


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


def _paths(tree: TokenTree) -> list[tuple[int, ...]]:
    return [tree.path_tokens(node) for node in range(len(tree))]


@given(trees(), trees(), st.data())
def test_order_law_survives_every_operation(
    tree: TokenTree, other: TokenTree, data: st.DataObject
) -> None:
    for _ in range(3):
        operation = data.draw(st.sampled_from(["merge", "reroot", "retain"]))
        if operation == "merge":
            tree.merge(other.tokens, other.parents, other.scores)
        elif operation == "reroot":
            tree.reroot(data.draw(st.integers(0, len(tree) - 1)))
        else:
            node = data.draw(st.integers(0, len(tree) - 1))
            above = tree.path(node)[:-1]
            tree.retain((*above, *tree.subtree(node)), len(above))
        _assert_order(tree)
        assert len(set(_paths(tree))) == len(tree), "no token path occurs twice"


@given(trees())
def test_mask_is_the_ancestor_closure(tree: TokenTree) -> None:
    mask = tree.ancestor_mask()
    for node in range(len(tree)):
        assert set(np.flatnonzero(mask[node])) == set(tree.path(node))


@given(trees(), trees(), st.permutations(range(10)))
def test_merge_commutes_with_relabelling(
    tree: TokenTree, other: TokenTree, names: list[int]
) -> None:
    def relabelled(old: TokenTree) -> TokenTree:
        new = TokenTree(names[old.tokens[0]])
        new.merge([names[t] for t in old.tokens], old.parents, old.scores)
        return new

    later = relabelled(tree)
    later.merge([names[t] for t in other.tokens], other.parents, other.scores)
    tree.merge(other.tokens, other.parents, other.scores)
    now = relabelled(tree)
    assert (now.tokens, now.parents, now.scores) == (later.tokens, later.parents, later.scores)


@given(trees(), st.permutations(range(10)), st.data())
def test_prune_commutes_with_relabelling(
    tree: TokenTree, names: list[int], data: st.DataObject
) -> None:
    other = TokenTree(names[tree.tokens[0]])
    other.merge([names[t] for t in tree.tokens], tree.parents, tree.scores)
    node = data.draw(st.integers(0, len(tree) - 1))
    tree.reroot(node)
    other.reroot(node)
    assert [names[t] for t in tree.tokens] == other.tokens
    assert (tree.parents, tree.depths) == (other.parents, other.depths)


@given(trees(), st.data())
def test_retain_keeps_exactly_the_subtree(tree: TokenTree, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(tree) - 1))
    above = tree.path(node)
    expected = [p[len(above) - 1 :] for p in _paths(tree) if p[: len(above)] == _paths(tree)[node]]
    tree.retain((*above[:-1], *tree.subtree(node)), len(above) - 1)
    assert _paths(tree) == expected


@given(trees(), st.integers(1, 30))
def test_best_nodes_come_with_their_ancestors_before_them(tree: TokenTree, size: int) -> None:
    chosen = best(np.array(tree.scores), size).tolist()
    for place, node in enumerate(chosen):
        assert set(tree.path(node)) <= set(chosen[: place + 1])
    assert [tree.scores[i] for i in chosen] == sorted(tree.scores, reverse=True)[:size]


@given(st.integers(1, 300), st.integers(1, 9), st.integers(1, 40))
def test_split_cuts_evenly_up_to_the_limit(count: int, parts: int, limit: int) -> None:
    lengths = split(count, parts, limit)
    assert len(lengths) == parts
    assert max(lengths) - min(lengths) <= 1
    if count // parts <= limit:
        assert sum(lengths) == count
    else:
        assert lengths == [limit] * parts


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


def test_mask_of_a_parent_list_needs_no_tree() -> None:
    assert ancestor_mask([NO_PARENT, 0, 1]).tolist() == np.tri(3, dtype=bool).tolist()
