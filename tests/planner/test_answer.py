"""The answer's first sentence, of rankings made by hand."""

from __future__ import annotations

import pytest

from tests.worlds.searches import CLUSTER, METRIC
from treepipe.planner.candidates import Candidate
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import Ranked, Rung, SearchResult
from treepipe.planner.report import headline, plan_warnings, verdict
from treepipe.results.metrics import METRICS, in_words
from treepipe.results.statistics import Interval
from treepipe.sim.points import Outcome

PLAIN = ("pp", Interval(1.6, 1.25, 2.0), False)
CHAIN = ("chain", Interval(0.01, -0.1, 0.2), True)


def ranked(schedule: str, value: Interval, goal: str, gap: Interval | None, tied: bool) -> Ranked:
    scenario = Cluster.of({**CLUSTER, "search": {}, "schedule": {"name": schedule}})
    settings = {} if schedule == "pp" else {"schedule.prefill_chunk": 8}
    candidate = Candidate(schedule, settings, "even", ((2, 2),), scenario)
    return Ranked(candidate, Outcome({goal: value}, {}), gap, tied)


def made(
    *others: tuple[str, Interval, bool], goal: str = METRIC, best: str = "flowspec"
) -> SearchResult:
    """The best plan has the figure 100, from 80 to 125. Args: ``others``: by their gaps."""
    first = ranked(best, Interval(100.0, 80.0, 125.0), goal, None, True)
    rest = [ranked(name, Interval(1, 1, 1), goal, gap, tied) for name, gap, tied in others]
    cluster = Cluster.of({
        **CLUSTER,
        "search": {"schedules": ["pp"], "goal": goal},
        "serving": {"slo": {"time_to_first_token_ms": 1.0}},
    })  # fmt: skip
    return SearchResult(cluster, [first, *rest], [], [Rung(3, 18)])


def test_the_first_sentence_has_a_rate_a_comparison_and_a_simpler_schedule() -> None:
    """100 ms between tokens are 10 tokens/s; 160 % more time is 2.6 times as slow."""
    found = made(CHAIN, PLAIN)
    expected = (
        "flowspec: 10 tokens/s (95%: 8 to 12.5), a token every 100 ms, 2.6 times as fast as plain "
        "decoding (95%: 2.25 to 3); chain is as good as far as 18 runs can tell, and simpler"
    )
    assert headline(found) == expected
    assert verdict(found)[0] == "Its plan: flowspec prefill_chunk=8."


def test_what_is_better_large_or_no_time_is_compared_in_its_own_words() -> None:
    """A throughput of 0.4 of the best one is 2.5 times as low."""
    found = made(("pp", Interval(-0.6, -0.75, -0.5), False), goal="throughput_tokens_s")
    assert headline(found) == (
        "flowspec: throughput 100 tokens/s (95%: 80 to 125), 2.5 times that of plain decoding "
        "(95%: 2 to 4)"
    )
    assert headline(made(PLAIN, goal="joules_per_token")).endswith(
        "energy per token 100 J/token (95%: 80 to 125); plain decoding takes 2.6 times as much "
        "(95%: 2.25 to 3)"
    )


def test_plain_decoding_that_wins_and_a_search_without_it_say_no_more() -> None:
    won = made(("flowspec", Interval(0.5, 0.2, 0.9), False), best="pp")
    assert headline(won).endswith("a token every 100 ms, and no schedule that drafts is better")
    assert headline(made(best="specpipe")) == (
        "specpipe (tree layers step by step): 10 tokens/s (95%: 8 to 12.5), a token every 100 ms"
    )


@pytest.mark.parametrize("name", METRICS)
def test_every_figure_has_words_of_its_own(name: str) -> None:
    assert "_" not in in_words(name)
    assert not in_words(name).endswith((" ms", " s"))


def test_one_share_of_acceptance_is_told_where_trees_were_compared() -> None:
    """Also where a chain won, since that is when the share has decided."""
    assert not any("one share" in each for each in plan_warnings(made(CHAIN, best="pp")))
    (told,) = plan_warnings(made(("flowspec", Interval(0.5, 0.2, 0.9), False), best="chain"))
    assert told.startswith("all plans: key acceptance states one share")
