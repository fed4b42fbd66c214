"""The verification rules one node at a time: distributions, draws, and what each rule promises.

Whole texts are in ``test_laws.py``, the law of rejection is in ``test_rejection.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.draws import SEEDS, distributions, generator, scripted
from treepipe.core.verification import (
    Adaptive,
    Distribution,
    Exact,
    MultiCandidate,
    RelaxedBest,
    RelaxedTopP,
    Rule,
    Sampling,
    draw,
    target_distribution,
)

NEW_RULES: dict[str, Callable[[np.random.Generator], Rule]] = {
    "greedy": lambda rng: Exact(rng, greedy=True),
    "sampled": lambda rng: Exact(rng, greedy=False),
    "multi_candidate": MultiCandidate,
    "relaxed_best": lambda rng: RelaxedBest(Exact(rng, greedy=False)),
    "relaxed_top_p": lambda rng: RelaxedTopP(Exact(rng, greedy=False), 0.9),
    "strict_adaptive": lambda rng: Adaptive(Exact(rng, greedy=False), 0.0),
    "adaptive": lambda rng: Adaptive(Exact(rng, greedy=False), 0.5),
}
LOSSY = {"relaxed_best", "relaxed_top_p", "adaptive"}
PLAIN = {"greedy", "sampled", "relaxed_best", "relaxed_top_p"}
"""Rules that need no distribution of the draft."""
by_name = pytest.mark.parametrize("name", NEW_RULES)


# --- distributions and draws ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [(-0.1, 1.0, 0), (float("nan"), 1.0, 0), (1.0, 0.0, 0), (1.0, 1.1, 0), (1.0, 1.0, -1)],
    ids=str,
)
def test_sampling_out_of_range_is_refused(values: tuple[float, float, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Sampling(*values)


def test_temperature_0_is_the_first_of_the_best() -> None:
    p = target_distribution(np.array([1.0, 3.0, 3.0, 2.0]), Sampling(0.0, 0.5, 2))
    assert p.tolist() == [0.0, 1.0, 0.0, 0.0]


def test_temperature_comes_before_top_k_and_top_k_before_top_p() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    # Alone the best two hold 0.7 < 0.75 and a third would be kept; of the best three, 0.7 / 0.9.
    found = target_distribution(logits, Sampling(1.0, 0.75, 3))
    assert found == pytest.approx([4 / 7, 3 / 7, 0, 0])
    # Squared: 16, 9, 4, 1 of 30; the best two hold 25/30 only once the temperature has acted.
    found = target_distribution(logits, Sampling(0.5, 0.8))
    assert found == pytest.approx([16 / 25, 9 / 25, 0, 0])
    # A share that is met exactly needs no further token.
    assert target_distribution(np.zeros(4), Sampling(1.0, 0.5)).tolist() == [0.5, 0.5, 0, 0]


@given(
    st.lists(st.floats(-6, 6), min_size=1, max_size=9),
    st.floats(0.3, 2.0),
    st.floats(0.05, 1.0),
    st.integers(0, 9),
)
def test_top_k_and_top_p_keep_the_smallest_sufficient_set(
    logits: list[float], temperature: float, top_p: float, top_k: int
) -> None:
    row = np.array(logits)
    whole = target_distribution(row, Sampling(temperature))
    first = target_distribution(row, Sampling(temperature, 1.0, top_k))
    p = target_distribution(row, Sampling(temperature, top_p, top_k))
    assert p.sum() == pytest.approx(1.0)
    kept = p > 0
    assert 0 < kept.sum() <= (top_k or len(row))
    assert whole[kept].min() >= whole[~kept].max(initial=0.0)
    assert first[kept].sum() >= top_p - 1e-9
    assert first[kept].sum() - first[kept].min() < top_p + 1e-9
    assert p[kept] * whole[kept].sum() == pytest.approx(whole[kept])


@given(
    SEEDS,
    st.sampled_from([3, 300, 3000]),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.floats(0.01, 1.0),
    st.sampled_from([0, 1, 20, 299]),
)
def test_large_vocabularies_are_cut_as_if_they_were_sorted_whole(
    seed: int, size: int, spread: float, top_p: float, top_k: int
) -> None:
    """Rounded logits, so that many tie: the first by token id are kept."""
    logits = np.round(generator(seed).normal(scale=spread, size=size), 1)
    whole = target_distribution(logits, Sampling(0.7))
    order = np.argsort(-whole, kind="stable")[: top_k or None]
    count = 1 + int(np.searchsorted(np.cumsum(whole[order]) / whole[order].sum(), top_p - 1e-12))
    found = np.flatnonzero(target_distribution(logits, Sampling(0.7, top_p - 1e-12, top_k)))
    assert set(order[: count - 1]) <= set(found) <= set(order[: count + 1]), "up to a rounding"
    assert abs(len(found) - count) <= 1


@pytest.mark.parametrize("settings", [(0.6, 0.9, 80), (1.0, 0.9, 0), (0.7, 1.0, 5)], ids=str)
def test_distributions_are_those_of_transformers(settings: tuple[float, float, int]) -> None:
    torch = pytest.importorskip("torch")
    library: Any = pytest.importorskip("transformers.generation.logits_process")
    temperature, top_p, top_k = settings
    warpers = [library.TemperatureLogitsWarper(temperature)]
    warpers += [library.TopKLogitsWarper(top_k)] if top_k else []
    warpers += [library.TopPLogitsWarper(top_p)] if top_p < 1 else []
    logits = generator(4).normal(size=(20, 200)) * 3
    scores = torch.tensor(logits)
    for warper in warpers:
        scores = warper(None, scores)
    for row, expected in zip(logits, scores.softmax(-1).numpy(), strict=True):
        found = target_distribution(row, Sampling(*settings))
        assert found == pytest.approx(expected, abs=1e-12)


@given(distributions(), st.floats(0, 1, exclude_max=True))
def test_a_draw_inverts_the_cumulative_distribution(p: Distribution, u: float) -> None:
    token = draw(p, scripted(u))
    assert p[token] > 0
    assert p[:token].sum() <= u + 1e-12
    assert u < p[: token + 1].sum() + 1e-12


# --- every rule ----------------------------------------------------------------------------------


@by_name
def test_rules_say_whether_they_are_lossless_and_want_the_draft(name: str) -> None:
    rule = NEW_RULES[name](generator())
    assert rule.lossless == (name not in LOSSY)
    assert rule.needs_draft == (name not in PLAIN)


@by_name
@given(distributions(), distributions(), st.permutations(range(5)), st.integers(0, 5), SEEDS)
def test_rules_leave_their_arguments_alone_and_repeat_themselves(
    name: str, p: Distribution, q: Distribution, order: list[int], count: int, seed: int
) -> None:
    p.flags.writeable = q.flags.writeable = False
    children = order[:count]
    if name == "multi_candidate":  # its children are draws from q
        children = [child for child in children if q[child]]
    found = [NEW_RULES[name](generator(seed)).next_token(p, children, q) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0] in children or p[found[0]] > 0
    if name != "relaxed_best":  # it takes a child whatever the target says
        assert p[found[0]] > 0


@by_name
@given(distributions(), SEEDS)
def test_without_children_every_rule_takes_the_targets_token(
    name: str, p: Distribution, seed: int
) -> None:
    token = NEW_RULES[name](generator(seed)).next_token(p, (), p)
    exact = Exact(generator(seed), greedy=name == "greedy")
    assert token == exact.next_token(p, (), None)


@pytest.mark.parametrize("name", sorted(set(NEW_RULES) - PLAIN))
@given(distributions(), st.integers(0, 4), SEEDS)
def test_an_unknown_draft_leaves_the_targets_token(
    name: str, p: Distribution, child: int, seed: int
) -> None:
    token = NEW_RULES[name](generator(seed)).next_token(p, (child,), None)
    assert token == draw(p, generator(seed))


# --- the rules one by one ------------------------------------------------------------------------


def test_greedy_is_the_first_of_the_best_and_draws_nothing() -> None:
    rule = Exact(scripted(), greedy=True)
    assert rule.next_token(np.array([0.2, 0.4, 0.4]), (0, 2), None) == 1


@given(distributions(), st.permutations(range(5)), st.integers(0, 5), SEEDS)
def test_a_sampled_token_does_not_depend_on_the_children(
    p: Distribution, order: list[int], count: int, seed: int
) -> None:
    rule = Exact(generator(seed), greedy=False)
    assert rule.next_token(p, order[:count], None) == draw(p, generator(seed))


P = np.array([0.5, 0.25, 0.15, 0.1, 0.0])
GREEDY = Exact(generator(), greedy=True)


def test_relaxed_best_never_misses() -> None:
    rule = RelaxedBest(GREEDY)
    assert rule.next_token(P, (3, 0, 1), None) == 0
    assert rule.next_token(P, (3, 2), None) == 2
    assert rule.next_token(P, (4,), None) == 4
    assert rule.next_token(P, (), None) == 0


def test_relaxed_top_p_takes_the_drafts_favourite_inside_the_set() -> None:
    rule = RelaxedTopP(GREEDY, 0.7)  # the set is 0 and 1
    assert rule.next_token(P, (2, 1, 0), None) == 1, "children come as the draft likes them"
    assert rule.next_token(P, (2, 0), None) == 0
    assert rule.next_token(P, (2, 3), None) == 0  # strict: a miss
    tenths = np.array([0.1] * 10 + [0.0])  # add up to less than 1
    assert RelaxedTopP(GREEDY, 1.0).next_token(tenths, (10,), None) == 0


# --- adaptive ------------------------------------------------------------------------------------


@pytest.mark.parametrize("greedy", [True, False])
@given(
    st.lists(st.tuples(distributions(), distributions(), st.permutations(range(5)))),
    st.integers(0, 5),
    SEEDS,
)
def test_adaptive_at_tau_0_is_the_exact_rule_number_by_number(
    greedy: bool, nodes: list[tuple[Distribution, Distribution, list[int]]], count: int, seed: int
) -> None:
    strict = Adaptive(Exact(generator(seed), greedy=greedy), 0.0)
    exact = Exact(generator(seed), greedy=greedy)
    for p, q, order in nodes:
        children = order[:count]
        assert strict.next_token(p, children, q) == exact.next_token(p, children, q)


@pytest.mark.parametrize(("second", "accepted"), [(0.30, True), (0.29, False)])
def test_adaptive_by_hand(second: float, accepted: bool) -> None:
    """Equal distributions: tau = 0.5 cbrt(1 (0.5 + 0.1 (1 - 0.5)) 1) = 0.4097.

    So 1 - tau = 0.5903 of the best token's 0.5 is needed: 0.2952.
    """
    p = np.array([0.5, second, 0.5 - second])
    assert Adaptive(GREEDY, 0.5).next_token(p, (1,), p) == (1 if accepted else 0)


def test_adaptive_contrast_and_agreement_by_hand() -> None:
    """Contrast: sum q log(q / p) = 0.3 log(0.6) + 0.38 log(0.38 / 0.18) = 0.1307; agreement: 0.8.

    tau = cbrt(exp(-0.1307) 0.45 0.8) = 0.6811, since the best tokens differ: a child needs 0.1595.
    """
    p, q = np.array([0.5, 0.18, 0.162, 0.158]), np.array([0.3, 0.38, 0.162, 0.158])
    assert Adaptive(GREEDY, 1.0).next_token(p, (2,), q) == 2
    assert Adaptive(GREEDY, 1.0).next_token(p, (3,), q) == 0


@pytest.mark.parametrize(
    ("weights", "tau"),
    [
        ((1.0, 0.0, 0.0), np.exp(-0.1307)),
        ((0.0, 2.0, 0.0), 0.45),
        ((0.0, 0.0, 1.0), 0.8),
        ((1.0, 2.0, 1.0), (np.exp(-0.1307) * 0.45**2 * 0.8) ** 0.25),
    ],
)
def test_each_signal_counts_by_its_weight(weights: tuple[float, float, float], tau: float) -> None:
    """The signals of the test above, alone and together."""
    p, q = np.array([0.5, 0.18, 0.162, 0.158]), np.array([0.3, 0.38, 0.162, 0.158])
    assert Adaptive(GREEDY, 1.0, weights)._tau(p, q) == pytest.approx(tau, abs=1e-4)
    assert Adaptive(GREEDY, 0.5, weights)._tau(p, q) == pytest.approx(tau / 2, abs=1e-4)


def test_adaptive_is_strict_where_the_models_disagree() -> None:
    p, q = np.array([0.55, 0.44, 0.01, 0.0]), np.array([0.0, 0.0, 0.01, 0.99])
    assert Adaptive(GREEDY, 0.5).next_token(p, (1,), p) == 1
    assert Adaptive(GREEDY, 0.5).next_token(p, (1,), q) == 0


def test_adaptive_relaxes_with_a_history_of_matches() -> None:
    p = np.array([0.5, 0.26, 0.24])
    rule = Adaptive(GREEDY, 0.5)
    found = [rule.next_token(p, (1,), p) for _ in range(20)]
    first = found.index(1)
    assert first > 0
    assert set(found[first:]) == {1}
    misled = np.array([0.26, 0.5, 0.24])
    for _ in range(20):
        rule.next_token(p, (2,), misled)
    assert rule.next_token(p, (1,), p) == 0


@given(distributions(), distributions(), st.integers(0, 4))
def test_adaptive_accepts_more_with_a_higher_ceiling(
    p: Distribution, q: Distribution, child: int
) -> None:
    found = [Adaptive(GREEDY, tau).next_token(p, (child,), q) for tau in (0.0, 0.3, 0.6, 1.0)]
    hits = [token == child for token in found]
    assert hits == sorted(hits)
    assert all(p[token] > 0 for token in found)
