"""Drafts that propose nothing they are not sure of: rounds as counted by hand in recorded texts."""

from __future__ import annotations

import itertools
from math import log
from typing import Any

import pytest

from tests.worlds.demo import demo
from treepipe.core.errors import UserError
from treepipe.results.trace import Trace
from treepipe.scenario.resolve import deploy, input_warnings
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.sim.pool import Pool
from treepipe.sim.theory.closed_form import closed_form
from treepipe.sim.world import simulate
from treepipe.studies.workshop.texts import TextSource

GAMMA, NEW = 4, 40


def scenario(name: str, least: float, **more: Any) -> Scenario:
    changes: dict[str, Any] = {
        "schedule": {"name": name, "gamma": GAMMA},
        "acceptance": {"source": "profile", "name": "reference"},
        "workload.new_tokens": NEW,
        "workload.requests": 3,
        "drafts.0.least_probability": least,
    }
    return demo().with_(**{**changes, **more})


def simulated(given: Scenario) -> tuple[Pool, Trace]:
    pool, _, _ = acceptance_pool(given)
    return pool, simulate(deploy(given), TextSource(pool, 0))


def rounds_by_hand(pool: Pool, text: int, least: float) -> tuple[list[int], list[int]]:
    """Tokens that each round commits behind the first one, and that it drafts before a miss."""
    first = sum(pool.lengths[:text])
    sure = [pool.vectors[first + i][0] >= log(least) for i in range(NEW)]
    right = [pool.ranks[first + i] == 0 for i in range(NEW)]
    committed, drafted, at = [], [], 1  # the prefill gave the first token
    while at < NEW:
        told = accepted = 0
        while told < GAMMA and at + told < NEW and sure[at + told]:
            told += 1
            if not right[at + told - 1]:
                break
            accepted += 1
        committed.append(min(accepted + 1, NEW - at))
        drafted.append(told)
        at += accepted + 1
    return committed, drafted


@pytest.mark.parametrize("least", [0.2, 0.5, 0.8])
def test_rounds_end_where_the_draft_is_not_sure(least: float) -> None:
    pool, trace = simulated(scenario("chain", least))
    for number, request in enumerate(trace.requests):
        committed, drafted = rounds_by_hand(pool, number, least)
        assert [count for _, count in request.emitted][1:] == committed
        for each, told in zip(request.rounds[:-1], drafted, strict=False):
            assert told <= each.fed - 1 <= GAMMA, "behind a miss it may go on"
    lengths = {each.fed for request in trace.requests for each in request.rounds}
    assert len(lengths) > 2, "lengths vary by round"


@pytest.mark.parametrize("name", ["chain", "flowspec", "pipedec", "starsd"])
def test_a_draft_that_is_never_sure_is_plain_decoding(name: str) -> None:
    _, trace = simulated(scenario(name, 1.0))
    _, plain = simulated(scenario("pp", 0.0))
    for request, other in zip(trace.requests, plain.requests, strict=True):
        assert len(request.tokens) == len(other.tokens) == NEW
        assert [count for _, count in request.emitted] == [1] * NEW


def test_least_zero_changes_nothing() -> None:
    _, trace = simulated(scenario("flowspec", 0.0))
    _, tiny = simulated(scenario("flowspec", 1e-300))
    assert trace == tiny


def test_what_has_no_probabilities_is_refused() -> None:
    with pytest.raises(UserError, match=r"least_probability asks for .* 'bernoulli' does not have"):
        deploy(scenario("chain", 0.3, acceptance={"source": "bernoulli", "beta": 0.7}))
    sampling = {"rule": "rejection", "temperature": 1.0}
    with pytest.raises(UserError, match=r"least_probability contradicts sampling\.rule"):
        deploy(scenario("specinfer", 0.3, sampling=sampling))
    with pytest.raises(UserError, match=r"least_probability: no closed form applies"):
        closed_form(scenario("chain", 0.3))


def test_plain_decoding_says_that_it_has_no_effect() -> None:
    given = scenario("pp", 0.3)
    told = input_warnings(given, deploy(given))
    assert any("drafts.0.least_probability, " in each and "is drafted" in each for each in told)


@pytest.mark.parametrize("gamma", [3, 5])
def test_requests_whose_drafts_differ_in_length_share_every_pass(gamma: int) -> None:
    """All but the first come back from their prompts in one flight. Their k-th rounds end at once,
    so as long as nobody is done, everybody's rate is one round per lap."""
    many = {"workload.requests": 8, "workload.concurrency": 8, "serving.batch": 8}
    _, trace = simulated(scenario("chain", 0.5, schedule={"name": "chain", "gamma": gamma}, **many))
    together = trace.requests[1:]
    rounds = min(len(request.rounds) for request in together)
    ends = [[at for at, _ in request.emitted[: rounds + 1]] for request in together]
    assert all(each == pytest.approx(ends[0]) for each in ends)
    assert len({each.fed for request in together for each in request.rounds[:rounds]}) > 2
    decisions = 2 * len(together)
    lap = 4 * 20 + 5 * 1 + 1 + decisions  # stages, links, evaluation; 1 or 2 more for its rows
    expected = [
        lap + 1.5 + 3 * max(min(gamma, request.rounds[k].fed) for request in together)
        for k in range(1, rounds)  # the first one meets the first request
    ]
    took = [after - before for before, after in itertools.pairwise(ends[0][1:])]
    assert took == pytest.approx(expected, abs=1.0)
