"""Acceptance in the words of reports: figures of chains, counted by hand and by enumeration, give
the shares back; and simulated chains give the figures back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod, sqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.errors import UserError
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance_pool import acceptance_warnings
from treepipe.sim.predict import predict

CHAIN: dict[str, Any] = {
    "name": "chain",
    "target": {"layers": 1},
    "drafts": [{"device": {"draft_ms": {1: 1.0}}}],
    "pipelines": [{"stages": [{"device": {"stage_ms": {1: 10.0}}}]}],
    "schedule": {"name": "chain", "gamma": 5},
}
SHARES = st.lists(st.floats(0.05, 1), min_size=1, max_size=6)


def with_stated(schedule: str = "chain", gamma: int = 5, **keys: Any) -> Scenario:
    acceptance = {"source": "stated", **keys}
    return Scenario.of(
        {**CHAIN, "schedule": {"name": schedule, "gamma": gamma}, "acceptance": acceptance}
    )


def table(**keys: Any) -> float | tuple[float, ...]:
    found = with_stated(**keys).acceptance.table
    assert set(found) == {1}  # nothing else than first candidates is stated
    shares: float | tuple[float, ...] = found[1]
    return shares


def outcomes(shares: Sequence[float]) -> Iterator[tuple[float, int]]:
    """Probability and accepted tokens of each way in which a chain's tokens hold or fail, each on
    its own; those behind a failure do not count."""
    for hits in itertools.product((True, False), repeat=len(shares)):
        chance = prod(c if hit else 1 - c for c, hit in zip(shares, hits, strict=True))
        yield chance, len([*itertools.takewhile(bool, hits)])


def reached(shares: Sequence[float], place: int) -> float:
    return sum(chance for chance, accepted in outcomes(shares) if accepted >= place)


def mean(shares: Sequence[float]) -> float:
    """Accepted tokens of a round."""
    return sum(chance * accepted for chance, accepted in outcomes(shares))


def judged(shares: Sequence[float]) -> float:
    """Tokens of a round up to the first rejected one."""
    return sum(p * min(accepted + 1, len(shares)) for p, accepted in outcomes(shares))


def test_a_reported_count_is_the_chain_that_it_was_counted_in() -> None:
    """526 of 730 tokens in chains of 5 are 146 rounds with 672 tokens. As one share of judged
    tokens, which it is not, 0.72 gives 3.07."""
    share = table(accepted=526, drafted=730, draft_tokens=5)
    assert isinstance(share, float)
    assert 1 + mean([share] * 5) == pytest.approx(672 / 146)
    assert 1 + mean([526 / 730] * 5) == pytest.approx(3.07, abs=0.01)
    scenario = with_stated(accepted=526, drafted=730, draft_tokens=5)
    (trace,) = predict(scenario.with_(**{"workload.new_tokens": 6000}))
    rounds = [count for _, count in trace.requests[0].emitted[1:-1]]
    assert sum(rounds) / len(rounds) == pytest.approx(672 / 146, rel=0.03)
    assert not acceptance_warnings(scenario)


@given(SHARES)
def test_shares_by_position_come_out_as_they_went_in(shares: list[float]) -> None:
    given_above = table(per_position=shares, conditional=True)
    assert given_above == tuple(shares)
    of_all = [reached(shares, place) for place in range(1, len(shares) + 1)]
    assert table(per_position=of_all) == pytest.approx(shares, rel=1e-9)


@given(st.floats(0.05, 1), st.integers(1, 6))
def test_every_engine_s_figure_of_the_same_chains_gives_the_same_share(
    share: float, drafted: int
) -> None:
    """Of a thousand rounds, as vLLM, SGLang, llama.cpp and papers count them."""
    shares = [share] * drafted
    accepted = 1000 * mean(shares)
    for figures in (
        {"mean_accepted_length": 1 + mean(shares), "draft_tokens": drafted},
        {"mean_accepted_length": mean(shares), "draft_tokens": drafted, "bonus_counted": False},
        {"accepted": accepted, "drafted": 1000 * drafted, "draft_tokens": drafted},
        {"accepted": mean(shares) / drafted, "drafted": 1, "draft_tokens": drafted},
        {"accepted": 1000 + accepted, "drafted": 1000 * (drafted + 1), "draft_tokens": drafted,
         "bonus_counted": True},
        {"accepted": accepted, "drafted": 1000 * judged(shares), "draft_tokens": drafted,
         "behind_rejection": False},
    ):  # fmt: skip
        assert table(**figures) == pytest.approx(share, rel=1e-6), figures


@given(SHARES)
def test_one_number_keeps_its_mean_whatever_it_was_the_mean_of(shares: list[float]) -> None:
    drafted, tokens = len(shares), 1 + mean(shares)
    even = table(mean_accepted_length=tokens, draft_tokens=drafted)
    assert isinstance(even, float)
    assert 1 + mean([even] * drafted) == pytest.approx(tokens)


@pytest.mark.parametrize("shares", [(0.9, 0.6, 0.3), (0.5,), (0.8, 0.9, 1.0, 0.7)])
def test_simulated_rounds_have_the_stated_positions(shares: tuple[float, ...]) -> None:
    of_all = [reached(shares, place) for place in range(1, len(shares) + 1)]
    scenario = with_stated(gamma=len(shares), per_position=of_all)
    (trace,) = predict(scenario.with_(**{"workload.new_tokens": 4000}))
    accepted = [count - 1 for _, count in trace.requests[0].emitted[1:-1]]
    for place, share in enumerate(of_all, start=1):
        counted = sum(each >= place for each in accepted) / len(accepted)
        assert abs(counted - share) < 4 * sqrt(0.25 / len(accepted)) + 0.001


@pytest.mark.parametrize(
    ("schedule", "gamma", "keys", "part"),
    [
        ("chain", 8, {"per_position": [0.9, 0.5]}, "chain drafts 8 (gamma): further down the last"),
        ("pearl", 2, {"per_position": [0.9, 0.5]}, "of chains of 2 tokens, pearl may draft deeper"),
        ("flowspec", 2, {"per_position": [0.9, 0.5]}, "flowspec may draft deeper"),
        ("flowspec", 2, {"per_position": [0.9, 0.5]}, "of a tree's siblings only the first"),
        ("chain", 2, {"mean_accepted_length": 3, "draft_tokens": 4}, "understates shorter chains"),
    ],
)
def test_what_the_counts_do_not_say_is_told(
    schedule: str, gamma: int, keys: dict[str, Any], part: str
) -> None:
    assert part in " ".join(acceptance_warnings(with_stated(schedule, gamma, **keys)))
    assert not acceptance_warnings(with_stated(gamma=2, per_position=[0.9, 0.5]))


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({}, "says how often; given: none"),
        ({"mean_accepted_length": 2, "per_position": [0.5]}, "given: mean_accepted_length, per"),
        ({"accepted": 3, "draft_tokens": 2}, "key acceptance.drafted is missing beside accepted"),
        ({"mean_accepted_length": 2}, "key acceptance.draft_tokens is missing"),
        ({"per_position": [0.5], "drafted": 2}, "key acceptance.drafted has no effect beside per"),
        ({"per_position": [0.5], "draft_tokens": 2}, "draft_tokens = 2, but per_position has 1"),
        ({"per_position": [0.5, 0.6]}, "deeper ones cannot be more"),
        ({"accepted": 9, "drafted": 8, "draft_tokens": 2}, "accepted = 9 exceeds drafted = 8"),
        ({"mean_accepted_length": 4, "draft_tokens": 2}, "a mean length of 4 tokens does not go"),
        ({"accepted": 1, "drafted": 8, "draft_tokens": 2, "bonus_counted": True}, "of 0.375"),
        ({"accepted": 3, "drafted": 8, "draft_tokens": 2, "bonus_counted": True,
          "behind_rejection": False}, "leave one of them out"),
    ],
)  # fmt: skip
def test_what_no_chain_can_have_is_one_sentence(keys: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError) as refused:
        with_stated(**keys)
    assert part in str(refused.value)
    assert "\n" not in str(refused.value)
