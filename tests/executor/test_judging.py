"""Ranks by the rule: a pool keeps of a position what the rule does with so many children."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from treepipe.core.verification import MultiCandidate, draw, draw_without_replacement
from treepipe.executor.measure.acceptance import CANDIDATES, Judge, candidates_of, rejection_rank
from treepipe.scenario.schema import SamplingSection

torch = pytest.importorskip("torch")
P = np.array([0.4, 0.3, 0.15, 0.1, 0.05, 0.0])
Q = np.array([0.1, 0.5, 0.05, 0.05, 0.1, 0.2])


def test_ranks_of_rejection_are_those_of_drawn_children() -> None:
    """The rule shown the children before the token is known, against the ranks drawn after it."""
    rng, times = np.random.default_rng(1), 4000
    ranks: Counter[tuple[int, int]] = Counter()
    drawn: Counter[tuple[int, int]] = Counter()
    for _ in range(times):
        token = draw(P, rng)
        ranks[token, min(rejection_rank(P, Q, token, rng), 3)] += 1
        children = draw_without_replacement(Q, 3, rng)
        taken = MultiCandidate(rng).next_token(P, children, Q)
        drawn[taken, children.index(taken) if taken in children else 3] += 1
    # A token that no child gave can still be one that was drawn and rejected: none of the first 3.
    cells = sorted({*ranks, *drawn})
    table = np.array([[ranks[cell], drawn[cell]] for cell in cells])
    table = table[table.sum(1) > 10]
    assert stats.chi2_contingency(table).pvalue > 0.001
    hits = [sum(n for (_, rank), n in c.items() if not rank) / times for c in (ranks, drawn)]
    assert hits == [pytest.approx(np.minimum(P, Q).sum(), abs=0.03)] * 2


def test_a_greedy_draft_has_one_child_to_reject() -> None:
    rng, one, other = np.random.default_rng(0), np.eye(4)[1], np.eye(4)[2]
    assert rejection_rank(one, one, 1, rng) == 0
    assert rejection_rank(one, other, 1, rng) == CANDIDATES


def _logits(p: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.log(np.maximum(p, 1e-9))


@pytest.mark.parametrize("rule", ["relaxed_top_p", "adaptive"])
def test_lossy_rules_take_a_draft_that_is_nearly_right(rule: str) -> None:
    p = np.full(40, 0.1 / 38)
    p[:2] = 0.46, 0.44
    q = np.r_[p[1], p[0], p[2:]]  # the draft likes token 1 best, the target token 0
    section = SamplingSection(rule=rule, tau_max=0.9)
    judge = Judge(section, np.random.default_rng(0))
    log_probs = np.log(q)
    candidates = candidates_of(torch.tensor(log_probs)[None])[0][0]
    assert (judge.in_the_loop, candidates[0]) == (True, 1)
    taken = judge.token(_logits(p), log_probs)
    assert taken == 1
    assert judge.rank(_logits(p), log_probs, candidates, taken) == 0
    deeper = Judge(section, np.random.default_rng(0), depth=1)
    assert deeper.rank(_logits(p), log_probs, candidates, 0) == 0, "it would be taken there, too"
    exact = Judge(SamplingSection(), np.random.default_rng(0))
    assert exact.rank(_logits(p), log_probs, candidates, 0) == 1
