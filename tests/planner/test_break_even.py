"""Where another schedule becomes the best: by hand, and by simulating beside the value."""

from __future__ import annotations

import numpy as np
import pytest

from tests.worlds.searches import METRIC, found
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.planner.break_even import BreakEven, BreakEvens, axis_of, break_even, regions
from treepipe.planner.gaps import Runs
from treepipe.planner.halving import SearchResult
from treepipe.sim.points import Point, simulate_points

TWO = {"search.schedules": ["pp", "chain"], "search.grid": {"schedule.gamma": [3]}}
ALWAYS = {
    **TWO,
    "acceptance.beta": 1.0,
    "links.default": {"latency_ms": 3.0},
    "workload.new_tokens": 13,
    "pipelines.0.stages.0.device.stage_ms": {1: 20.0},
}


def along(key: str, each: SearchResult) -> BreakEven:
    return break_even(each, axis_of(key, each.cluster), say)


def test_a_draft_that_is_never_wrong_is_worth_its_time_up_to_a_value_by_hand() -> None:
    """A round of plain decoding is 2 x 20 + 3 x 3 = 49 ms and gives a token; a round of a chain
    is as long and 3 draft passes of 5 ms, and gives 4. These are equal at passes 147 / 15 times
    as long, in each run, and on a map of that factor and of the clients."""
    each = found(**ALWAYS)
    x, y = (axis_of(key, each.cluster) for key in ("scale.drafts=1:32", "workload.concurrency=1:2"))
    even = break_even(each, x, say)
    assert (even.before, even.after) == ("chain", "pp")
    assert even.value == pytest.approx(147 / 15, rel=1e-3)
    assert even.low == pytest.approx(even.value)
    assert even.high == pytest.approx(even.value)
    both = regions(each, x, y, say)
    row = both.best[y.values.index(1)]
    assert [name == "chain" for name in row] == [value < 147 / 15 for value in x.values]
    (picture,) = BreakEvens(even, both).pictures(each)
    drawn = picture.figure.axes[0]
    assert {text.get_text() for text in drawn.texts} == {"chain", "pp"}


def test_a_key_that_changes_nothing_is_said_to() -> None:
    each = found(**TWO)
    assert not along("drafts.0.ngram=1:3", each).matters
    same = along("scale.latency=1:1.00001", each)
    assert (same.value, same.matters) == (None, True)
    assert "from 1 to 1.00001 (stated: 1)" in same.sentence, "however narrow it is"
    alone = along("scale.stages", found())
    assert (alone.value, alone.before, alone.after) == (None, "pp", "pp")


def test_an_input_of_zero_is_looked_at_where_a_range_is_given() -> None:
    """A round of either schedule waits for as many messages, and a chain's gives more tokens."""
    even = along("links.default.jitter_ms=0.5:4", found(**ALWAYS))
    assert (even.axis.stated, even.before, even.value) == (None, "chain", None)


def test_the_best_schedule_changes_at_the_value_and_surely_beyond_the_interval() -> None:
    each = found(**TWO, runs=6)
    even = along("scale.drafts", each)
    assert even.low < even.value < even.high
    plans = {name: ranked.candidate.scenario for name, ranked in each.best_of_each.items()}
    for value, best in ((0.98 * even.value, even.before), (1.02 * even.value, even.after)):
        points = [Point(n, s.with_(runs=6, **{"scale.drafts": value})) for n, s in plans.items()]
        outcomes = simulate_points(points, say)
        assert best == min(plans, key=lambda name: outcomes[name].metrics[METRIC].mean)


def test_of_a_third_schedule_in_between_the_end_next_to_the_stated_value_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By hand: pp (v) is the least up to 2/3, chain (0.5 + 0.25 v) up to 0.7, eagle (0.64 + 0.05 v)
    from there on, at the stated 1, too; the values tried first see only pp and eagle."""

    def costs(
        _: SearchResult, asked: list[tuple[str, dict[str, float]]], *more: object
    ) -> list[Runs]:
        lines = {"pp": (0.0, 1.0), "chain": (0.5, 0.25), "eagle": (0.64, 0.05)}
        values = [(*lines[name], changes["scale.latency"]) for name, changes in asked]
        return [Runs(np.full(4, at_0 + slope * value)) for at_0, slope, value in values]

    monkeypatch.setattr("treepipe.planner.break_even._simulated", costs)
    three = {**TWO, "search.schedules": ["pp", "chain", "eagle"]}
    even = along("scale.latency=0.5:3", found(**three))
    assert (even.before, even.after) == ("chain", "eagle")
    assert even.value == pytest.approx(0.7, rel=1e-3)


def test_clients_are_whole_numbers() -> None:
    """The more clients there are, the less a draft that is asked in vain is worth."""
    goal = {"search.goal": "throughput_tokens_s", "workload.requests": 6}
    each = found(**TWO, **goal, **{"scale.drafts": 2.5, "search.cases": 0})
    axis = axis_of("workload.concurrency=1:3", each.cluster)
    assert axis.values == [1, 2, 3]
    even = break_even(each, axis, say)
    assert (even.before, even.after, even.value) == ("chain", "pp", 2)


def test_a_value_that_a_plan_refuses_names_the_option() -> None:
    """The cluster takes it, but a tree of so many drafted tokens does not fit into the device."""
    each = found(**TWO)
    with pytest.raises(UserError, match=r"\(--break-even tries such values; KEY=LOW:HIGH bounds"):
        along("pipelines.0.stages.0.count=1:40", each)
