"""The regret of a search: none where it keeps everything, and by hand where it drops the best."""

from __future__ import annotations

import pytest

from tests.worlds.searches import CLUSTER, METRIC
from tests.worlds.written_studies import say
from treepipe.planner import halving
from treepipe.planner.candidates import find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.results.estimates import observe
from treepipe.sim.predict import predict
from treepipe.studies.workshop.regret import regret

GAMMAS = {"search.schedules": ["pearl"], "search.grid": {"schedule.gamma": [1, 2, 3, 4, 6, 8]}}


@pytest.mark.parametrize("goal", [METRIC, "throughput_tokens_s"])
def test_a_search_of_one_rung_regrets_nothing(goal: str) -> None:
    told = regret(Cluster.of(CLUSTER).with_(**GAMMAS, **{"search.goal": goal, "runs": 2}), say)
    assert (told.share, told.simulated) == (0.0, 1.0)


def test_the_regret_of_a_search_that_keeps_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.of(CLUSTER).with_(**GAMMAS)
    means = []
    for each in find_candidates(cluster)[0]:
        metrics, _ = observe(predict(each.scenario.with_(runs=3))).intervals
        means.append(metrics[METRIC].mean)
    last = find_candidates(cluster)[0][-1].settings
    monkeypatch.setattr(
        halving,
        "_survivors",
        lambda plans, *_: ([p.candidate for p in plans if p.candidate.settings == last], []),
    )
    told = regret(cluster, say)
    assert told.share == pytest.approx(means[-1] / min(means) - 1)
    assert told.share > 0.01
    assert told.simulated == pytest.approx((6 * 2 + 1 * 3) / (6 * 3))
