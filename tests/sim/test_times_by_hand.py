"""Times of small scenarios that the simulator once got wrong, each written out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from treepipe.results.recording import Answer, RecordedRequest, Recording
from treepipe.results.trace import Trace
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate


def stages(count: int, stage_ms: float) -> list[dict[str, Any]]:
    return [{"count": count, "device": {"stage_ms": {1: stage_ms}}}]


def simulated(
    schedule: dict[str, Any], draft_ms: float, stage_ms: float, **more: dict[str, Any]
) -> Trace:
    """One stage per pipeline, no link times, and a draft that is always wrong."""
    scenario = Scenario.of(
        {
            "name": "by hand",
            "target": {"layers": 8},
            "drafts": [{"device": {"draft_ms": {1: draft_ms}, **more.get("draft", {})}}],
            "pipelines": [{"stages": stages(1, stage_ms), **more.get("pipeline", {})}],
            "links": {"default": {"latency_ms": 0.0}},
            "schedule": schedule,
            "acceptance": {"source": "bernoulli", "beta": 0},
            "workload": {"prompt_tokens": 1, "new_tokens": 9, **more.get("workload", {})},
        }
    )
    (trace,) = predict(scenario)
    return trace


def gaps(trace: Trace) -> list[float]:
    times = [at for at, _ in trace.requests[0].emitted]
    return [after - before for before, after in itertools.pairwise(times)]


@pytest.mark.parametrize(
    "schedule",
    [
        {"name": "dsd", "gamma": 3},
        {"name": "specinfer", "branching": [1, 1, 1], "draft_ahead": True},
    ],
)
def test_a_pass_that_is_given_up_before_it_begins_takes_no_time(schedule: dict[str, Any]) -> None:
    """Three passes of 21 ms, then 40 ms at the stage; meanwhile the draft has begun a second pass
    ahead, which ends 2 ms after the rejection is there. The third one ahead never begins."""
    assert gaps(simulated(schedule, 21.0, 40.0))[1:3] == [pytest.approx(3 * 21 + 2 * 21)] * 2


@pytest.mark.parametrize(
    ("draft_ms", "cancels", "gap"),
    [(10.0, False, 80.0), (1.0, False, 80.0), (10.0, True, 50.0), (1.0, True, 45.0)],
)
def test_a_pass_that_is_cancelled_ends_with_the_layer_that_is_under_way(
    draft_ms: float, cancels: bool, gap: float
) -> None:
    """A root and a wrong node in a segment each, at one stage of 8 layers and 40 ms. When the
    root's answer is there, the node's pass has just begun: it takes 40 ms, or ends with its first
    layer, 5 ms later. The next root comes a draft pass behind the answer, and takes 40 ms."""
    tree = {"tree_size": 1, "tree_depth": 0, "top_k": 1, "segment_tokens": 1, "expand_depth": 0}
    schedule = {"name": "flowspec_free", **tree, "cancels": cancels}
    assert gaps(simulated(schedule, draft_ms, 40.0))[1:] == [pytest.approx(gap, abs=1e-6)] * 7


@pytest.mark.parametrize(
    ("keys", "draft_ms", "beta", "ms_per_token"),
    [
        ({}, 3.0, 1, 3.0),
        ({}, 3.0, 0, 21.0),
        ({}, 7.0, 1, 7.0),
        ({}, 7.0, 0, 21.0),
        ({"gamma": 4}, 3.0, 1, 3.0),
        ({"gamma": 4}, 3.0, 0, 30.0),
        ({"gamma": 8}, 3.0, 1, 3.0),
        ({"gamma": 8}, 3.0, 0, 42.0),
        ({"gamma": 8, "draft_ahead": False}, 3.0, 1, 5.5),
        ({"gamma": 8, "draft_ahead": False}, 3.0, 0, 41.0),
        ({"gamma": 2, "draft_ahead": False}, 3.0, 1, 13.0),
        ({"gamma": 2, "draft_ahead": False}, 3.0, 0, 23.0),
    ],
)
def test_pipespec_keeps_the_hand_made_timelines(
    keys: dict[str, Any], draft_ms: float, beta: int, ms_per_token: float
) -> None:
    """A pass of the target takes 20 ms. A result waits for the end of the draft's pass; if all is
    wrong the draft has then K - 1 passes to make; if all is right it bounds, or in turns makes K
    passes and not K - 1, since it was not told the target's own token."""
    scenario = Scenario.of(
        {
            "name": "by hand",
            "target": {"layers": 8},
            "drafts": [{"device": {"draft_ms": {1: draft_ms}}}],
            "pipelines": [{"stages": stages(1, 20.0)}],
            "links": {"default": {"latency_ms": 0.0}},
            "schedule": {"name": "pipespec", **keys},
            "acceptance": {"source": "bernoulli", "beta": beta},
            "workload": {"prompt_tokens": 1, "new_tokens": 200 if beta else 20},
        }
    )
    (trace,) = predict(scenario)
    times, counts = zip(*trace.requests[0].emitted, strict=True)
    tokens = sum(counts[3:-1])
    assert (times[-2] - times[2]) / tokens == pytest.approx(ms_per_token, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "agrees", "keys", "ms_per_token"),
    [
        ([1, 2, 3] * 200, True, {}, 55 / 44),
        ([1, 2, 3] * 200, False, {}, 55.0),
        (range(600), True, {}, 5.0),
        ([1, 2, 3] * 200, True, {"gamma": 9, "draft_ahead": False}, (15 + 51) / 12),
    ],
)
def test_prompt_lookup_is_a_third_level_of_pipespec(
    text: Sequence[int], agrees: bool, keys: dict[str, Any], ms_per_token: float
) -> None:
    """A pass of the draft takes 5 ms and reads 3 tokens of a look-up, so it makes 4 where all are
    right and 1 where nothing has occurred before; one of the target takes 51 ms, and its result
    waits for the draft's eleventh pass. In turns three passes make 12 tokens: the one that the
    target has said already, and 11, more than the 8 wanted; behind them it says one more."""
    said = [token if agrees else token + 1000 for token in text]
    answers = [Answer(1 + n, (), (token,), (-0.1,)) for n, token in enumerate(said)]
    recording = Recording({1: RecordedRequest(1, tuple(text), answers)})
    scenario = Scenario.of(
        {
            "name": "by hand",
            "target": {"layers": 8},
            "drafts": [{"device": {"draft_ms": {1: 5.0, 4: 5.0}}}],
            "pipelines": [{"stages": stages(1, 51.0)}],
            "links": {"default": {"latency_ms": 0.0}},
            "schedule": {"name": "pipespec", "lookup": 3, **keys},
            "acceptance": {"source": "replay", "file": "by hand.json"},
            "workload": {"prompt_tokens": 1, "new_tokens": 500 if agrees else 20},
        }
    )
    deployment, source = deploy(scenario), ReplaySource(recording)
    times, counts = zip(*simulate(deployment, source).requests[0].emitted, strict=True)
    assert (times[-2] - times[3]) / sum(counts[4:-1]) == pytest.approx(ms_per_token, abs=1e-6)


def three_models(
    times_ms: tuple[float, float, float], agreement: float, **keys: Any
) -> dict[str, Any]:
    """A draft of a draft, a draft and a target, each on a device of its own."""
    lowest, draft, whole = times_ms
    return {
        "name": "by hand",
        "target": {"layers": 8},
        "drafts": [
            {"device": {"draft_ms": {1: draft, 100: draft}}},
            {"device": {"draft_ms": {1: lowest, 100: lowest}}, "agreement": agreement},
        ],
        "pipelines": [{"stages": stages(1, whole)}],
        "links": {"default": {"latency_ms": 0.0}},
        "schedule": {"name": "pipespec"},
        "workload": {"prompt_tokens": 1, "new_tokens": 40},
        **keys,
    }


@pytest.mark.parametrize(
    ("times_ms", "agreement", "beta", "ms_per_token"),
    [
        ((2.0, 5.0, 51.0), 1, 1, 2.0),
        ((3.0, 7.5, 50.5), 1, 1, 3.0),
        ((2.0, 5.0, 51.0), 0, 1, 5.0),
        ((2.0, 5.0, 51.0), 1, 0, 55.0),
        ((2.0, 5.0, 51.0), 0, 0, 55.0),
    ],
)
def test_three_models_of_pipespec_keep_the_hand_made_timelines(
    times_ms: tuple[float, float, float], agreement: float, beta: int, ms_per_token: float
) -> None:
    """If all is right the lowest draft bounds (by PipeSpec's code, too); if it alone is wrong, the
    one above it, a token per pass; if that one is wrong, the target's pass and the wait for the
    draft's eleventh (PipeSpec's code, whose draft also waits for the lowest one, takes 56 ms)."""
    new = {"prompt_tokens": 1, "new_tokens": 1200 if beta else 20}
    bernoulli = {"source": "bernoulli", "beta": beta}
    scenario = three_models(times_ms, agreement, acceptance=bernoulli, workload=new)
    (trace,) = predict(Scenario.of(scenario))
    times, counts = zip(*trace.requests[0].emitted, strict=True)
    eight = slice(8, 16)  # of two or four passes in turn
    assert (times[15] - times[7]) / sum(counts[eight]) == pytest.approx(ms_per_token, abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "pairs", "commits"),
    [
        (None, [], [(0, 1), (15.9, 1), (31.8, 6)]),
        (4, [], [(0, 1), (15.9, 1), (31.8, 3), (47.7, 1), (63.6, 6)]),
        (None, [3.1], [(0, 1), (15.9, 1), (31.8, 3), (47.7, 8)]),
    ],
)
def test_a_wrong_token_is_rolled_back_through_all_levels(
    wrong: int | None, pairs: list[float], commits: list[tuple[float, int]]
) -> None:
    """Passes of 2, 5.3 and 12.1 ms; g1, g2, ... are drafted behind the first token, at 0 ms. A
    result waits for the draft's third pass.

    The lowest draft has a token every 2 ms. The draft's passes end with g1 at 5.3 (g2 is there), g3
    at 10.6 (g4 and g5) and g6 at 15.9, when g1 is committed and g2 to g6 leave; all are right, and
    a token of the target's: six at 31.8. If it refuses g4, three are final at 31.8. The lowest
    draft's pass ends at 32; it begins anew behind the target's token, as the draft does at 31.8.
    At 37.1 the draft has the first token and finds the second, at 42.4 the third, and the fourth
    and fifth, so all goes as in the beginning, 31.8 ms later.

    A message between the two drafts that takes 3.1 ms comes from the lowest one at 8.2 (g1), 10.2,
    12.2, 14.2, ... So the draft has g3 at 15.9, and g4 there; g5 at 21.2, and g6 and g7; g8 at
    26.5, and g9 and g10; g11 at 31.8, when g2 and g3 are committed with the target's g4; and g5 to
    g11, and one more, at 47.7."""
    text = [1] * 60
    said = [1 if n != wrong else 2 for n in range(60)]
    answers = [Answer(1 + n, (), (token,), (-0.1,)) for n, token in enumerate(said)]
    recording = Recording({1: RecordedRequest(1, tuple(text), answers)})
    links = {
        "default": {"latency_ms": 0.0},
        "pairs": [{"ends": ["draft0", "draft1"], "latency_ms": each} for each in pairs],
    }
    replay = {"source": "replay", "file": "by hand.json"}
    scenario = three_models((2.0, 5.3, 12.1), 1.0, acceptance=replay, links=links)
    trace = simulate(deploy(Scenario.of(scenario)), ReplaySource(recording))
    emitted = trace.requests[0].emitted
    expected = [(pytest.approx(12.1 + at, abs=1e-6), count) for at, count in commits]
    assert list(emitted[: len(commits)]) == expected


def pipeinfer(
    stages_ms: tuple[int, float], draft_ms: float, gamma: int, beta: int, more: dict[str, Any]
) -> list[tuple[float, int]]:
    """Commits, from the first token on, as (ms, tokens in all)."""
    late = {"evaluate_ms": {1: 1e-9}} if more.pop("late", False) else {}
    scenario = Scenario.of(
        {
            "name": "by hand",
            "target": {"layers": 8},
            "drafts": [{"device": {"draft_ms": {1: draft_ms}, **late}}],
            "pipelines": [{"stages": stages(*stages_ms)}],
            "links": {"default": {"latency_ms": 0.0}},
            "schedule": {"name": "pipeinfer", "gamma": gamma, **more},
            "acceptance": {"source": "bernoulli", "beta": beta},
            "workload": {"prompt_tokens": 1, "new_tokens": 400 if beta else 20},
        }
    )
    (trace,) = predict(scenario)
    times, counts = zip(*trace.requests[0].emitted, strict=True)
    counted = [*itertools.accumulate(counts)]
    return [(at - times[0], done) for at, done in zip(times, counted, strict=True)]


@pytest.mark.parametrize(
    ("stages_ms", "draft_ms", "gamma", "beta", "more", "ms_per_token"),
    [
        ((2, 5.0), 4.0, 2, 1, {}, 8.0),
        ((2, 5.0), 4.0, 2, 0, {}, 12.0),
        ((2, 5.0), 3.0, 2, 0, {}, 15.0),
        ((2, 5.0), 4.0, 2, 0, {"cancels": False, "ends": "draft", "late": True}, 20.0),
        ((2, 5.0), 3.0, 2, 0, {"cancels": False, "ends": "draft", "late": True}, 15.0),
        ((2, 5.000001), 3.0, 2, 0, {"cancels": False, "ends": "draft", "late": True}, 21.0),
        ((2, 5.0), 4.0, 2, 1, {"restart": "miss"}, 4.0),
        ((2, 5.0), 3.0, 2, 1, {"restart": "miss"}, 3.0),
        ((4, 10.0), 6.0, 2, 1, {"restart": "miss"}, 6.0),
        ((4, 10.0), 3.0, 4, 1, {"restart": "miss"}, 3.0),
        ((4, 10.0), 3.0, 2, 1, {"restart": "miss"}, 5.0),  # the stages bound it; runs queue up
        ((2, 5.0), 4.0, 2, 0, {"restart": "miss"}, 12.0),
        ((2, 5.0), 3.0, 2, 0, {"restart": "miss"}, 15.0),
        ((4, 10.0), 6.0, 2, 0, {"restart": "miss"}, 42.0),
        ((4, 10.0), 3.0, 2, 0, {"restart": "miss"}, 45.0),
        ((4, 10.0), 3.0, 4, 0, {"restart": "miss"}, 51.0),
        (
            (4, 10.0),
            6.0,
            2,
            0,
            {"restart": "miss", "cancels": False, "ends": "draft", "late": True},
            54.0,
        ),
    ],
)
def test_pipeinfer_keeps_the_hand_made_timelines(
    stages_ms: tuple[int, float],
    draft_ms: float,
    gamma: int,
    beta: int,
    more: dict[str, Any],
    ms_per_token: float,
) -> None:
    """Steady rates by hand, of the rule of PipeInfer's code and of a draft that goes on. If all is
    right, a draft that goes on bounds it, or a stage per micro-batch; the code's takes a pass over
    the new root and gamma more per look, and commits 1 and 2 tokens in turns. If nothing is, a
    verdict is seen at the first look behind it, a + k gamma a after the root left. A pass that is
    not cancelled lies before the next root where it had begun, a nanosecond before the word. Two
    stages of 5 ms and a draft of 3 then answer exactly when it looks, 15 ms later, and what is
    there at a look counts; if they take longer, however little, the next look is 6 ms later."""
    commits = pipeinfer(stages_ms, draft_ms, gamma, beta, dict(more))
    middle = len(commits) // 4
    (first_ms, first), (last_ms, last) = (
        commits[middle],
        commits[middle + (len(commits) // 2) // 2 * 2],
    )
    assert (last_ms - first_ms) / (last - first) == pytest.approx(ms_per_token, abs=1e-6)


def test_pipeinfer_commits_when_it_looks() -> None:
    """All is right: the code's rule commits 1 and 2 tokens every 12 ms; a draft that goes on, on
    four stages of 10 ms, has its root's answer at 40 ms and looks at 42, 54, 66, ..."""
    code = pipeinfer((2, 5.0), 4.0, 2, 1, {})
    assert code[:6] == [(0, 1), (12, 2), (24, 4), (36, 5), (48, 7), (60, 8)]
    on = pipeinfer((4, 10.0), 6.0, 2, 1, {"restart": "miss"})
    assert on[:5] == [(0, 1), (42, 2), (66, 4), (78, 6), (90, 8)]


def test_steps_in_which_no_segment_comes_back_take_no_decision() -> None:
    """SPD on two stages of 20 ms: behind a miss the emptied segment takes a step, then the root's
    comes back. Its decision takes 5 ms, the draft's pass less than the stages."""
    free = simulated({"name": "spd"}, 3.0, 20.0, pipeline={"stages": stages(2, 20.0)})
    deciding = {"evaluate_ms": {1: 1.0}, "decide_ms": 5.0}
    charged = simulated(
        {"name": "spd"}, 3.0, 20.0, pipeline={"stages": stages(2, 20.0)}, draft=deciding
    )
    assert gaps(free)[1:] == [pytest.approx(2 * 20)] * 7
    assert gaps(charged)[1:] == [pytest.approx(2 * 20 + 1 + 5)] * 7


@pytest.mark.parametrize(("ends", "heard"), [("pipeline", 0), ("draft", 1)])
def test_a_target_of_starsd_emits_when_it_has_decided(ends: str, heard: int) -> None:
    """Three targets of 23.25 ms have the first token of their prompts at once. The draft serves one
    after another, three passes of 3.5 ms each; with the ends there, a token is out in its turn."""
    trace = simulated(
        {"name": "starsd", "gamma": 3, "ends": ends},
        3.5,
        23.25,
        pipeline={"count": 3},
        workload={"requests": 3, "concurrency": 3},
    )
    emitted = [[at for at, _ in request.emitted] for request in trace.requests]
    turns = [23.25, 33.75, 44.25]
    assert [first for first, *_ in emitted] == (turns if heard else [23.25] * 3)
    assert [second for _, second, *_ in emitted] == [turn + 10.5 + 23.25 for turn in turns]
    for request in trace.requests:
        assert request.finished_ms == request.emitted[-1][0]
