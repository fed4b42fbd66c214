"""Prompt lookup against counting by hand, and the mixture of two drafts against its formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.models.draft_source import DraftSource, Passes
from treepipe.executor.models.hybrid import HybridDraft
from treepipe.executor.models.ngram import BACKOFF, PromptLookupDraft

WORDS = 6

texts = st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=25)
paths = st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=4)


def opened(longest: int = 3) -> PromptLookupDraft:
    draft = PromptLookupDraft(WORDS, longest)
    draft.open(0)
    return draft


def read(tokens: Sequence[int]) -> DraftPass:
    return DraftPass(1, tuple(tokens), (), (), True, 3)


def chain(tokens: Sequence[int], top_k: int = 3) -> DraftPass:
    """The tokens as a path of scratch nodes, in one pass."""
    return DraftPass(1, (), tuple(tokens), tuple(range(NO_PARENT, len(tokens) - 1)), False, top_k)


def by_hand(text: list[int], path: list[int], longest: int) -> npt.NDArray[np.float64]:
    """Followers of every suffix counted by going through the whole text."""
    p = np.full(WORDS, 1 / WORDS)
    context = [*text, *path]
    for count in range(min(longest, len(context)) + 1):
        suffix = context[len(context) - count :]
        ends = [i for i in range(count, len(text)) if text[i - count : i] == suffix]
        if not ends:
            break
        p *= BACKOFF
        for end in ends:
            p[text[end]] += 1
        p /= p.sum()
    return p


@given(texts, paths, st.integers(0, 4))
def test_lookup_counts_what_followed_the_suffix(
    text: list[int], path: list[int], longest: int
) -> None:
    draft = opened(longest)
    rows = torch.cat((draft.log_probs(0, read(text)), draft.log_probs(0, chain(path))))
    for depth, row in enumerate(rows):
        expected = by_hand(text, path[:depth], longest)
        np.testing.assert_allclose(row.exp().numpy(), expected, rtol=1e-12)


@given(texts, paths, st.integers(0, 4))
def test_same_text_and_path_same_answer(text: list[int], path: list[int], accepted: int) -> None:
    """However it came about: a path drafted beside others, or accepted and then drafted on."""
    accepted = min(accepted, len(path) - 1)
    one, other = opened(), opened()
    one.log_probs(0, read([*text, *path[:accepted]]))
    other.log_probs(0, read(text))
    siblings = DraftPass(1, (), (1, 2), (NO_PARENT, NO_PARENT), False, 3)
    one.log_probs(0, siblings)
    other.log_probs(0, chain(path))
    again = DraftPass(1, (), (5,), (NO_PARENT,), False, 3, tuple(range(accepted)), accepted)
    drop = DraftPass(1, (), (5,), (NO_PARENT,), False, 3, (), 0)
    assert torch.equal(one.log_probs(0, drop), other.log_probs(0, again))


@given(texts, st.integers(1, WORDS))
def test_candidates_are_rectangular_and_descend(text: list[int], top_k: int) -> None:
    draft = opened()
    draft.draft(0, read(text))
    drafted = draft.draft(0, chain([0, 1, 2], top_k))
    log_probs, tokens = np.asarray(drafted.log_probs), np.asarray(drafted.tokens)
    assert tokens.shape == log_probs.shape == (3, top_k)
    assert np.isfinite(log_probs).all()
    for row, values in zip(tokens, log_probs, strict=True):
        assert len(set(row)) == top_k
        order = [(-value, token) for value, token in zip(values, row, strict=True)]
        assert order == sorted(order), "descending, ties by token id"


def test_a_closed_session_is_forgotten() -> None:
    draft = opened()
    draft.draft(0, read([1, 1, 1, 1]))
    draft.close(0)
    draft.open(0)
    assert np.allclose(draft.log_probs(0, read([2])).exp()[0, 0], BACKOFF / WORDS / (1 + BACKOFF))


class Fixed(DraftSource):
    """A source of one distribution that notes what it is told."""

    def __init__(self, p: Sequence[float]) -> None:
        self.p, self.told = torch.tensor([p], dtype=torch.float64), list[object]()

    def open(self, session: int) -> None:
        self.told.append(("open", session))

    def close(self, session: int) -> None:
        self.told.append(("close", session))

    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        self.told += passes
        return [self.p.log() for _ in passes]


def test_hybrid_tells_both_sources_everything() -> None:
    one, other = Fixed([0.5, 0.5]), Fixed([0.5, 0.5])
    hybrid = HybridDraft(one, other, 0.5)
    order = DraftPass(3, (), (1,), (NO_PARENT,), False, 2, (0, 2), 1)
    hybrid.open(7)
    hybrid.draft(7, order)
    hybrid.close(7)
    assert one.told == other.told == [("open", 7), (7, order), ("close", 7)]


@pytest.mark.parametrize(
    ("weight", "tokens", "shares"),
    [
        (0.5, [3, 0, 1], [0.4, 0.35, 0.125]),
        (1.0, [0, 1, 2], [0.7, 0.2, 0.1]),
        (0.25, [3, 0, 2], [0.6, 0.175, 0.1375]),
    ],
)
def test_hybrid_mixes_by_weight(weight: float, tokens: list[int], shares: list[float]) -> None:
    hybrid = HybridDraft(Fixed([0.7, 0.2, 0.1, 0.0]), Fixed([0.0, 0.05, 0.15, 0.8]), weight)
    drafted = hybrid.draft(0, DraftPass(1, (5,), (), (), True, 3))
    assert list(drafted.tokens[0]) == tokens
    np.testing.assert_allclose(np.exp(drafted.log_probs[0]), shares)
