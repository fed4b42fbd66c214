"""Where a token's time goes: by hand, and what shortening each place does to the time between
tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from treepipe import Scenario, simulate
from treepipe.results.critical_path import CriticalPath
from treepipe.sim.causes import ListeningClock
from treepipe.sim.predict import predict

EPSILON = 1e-6
"""So much shorter; nothing overtakes anything for it."""
TREE = {"tree_size": 12, "tree_depth": 2, "top_k": 3, "segment_tokens": 16}
SCHEDULES: dict[str, dict[str, Any]] = {
    "pp": {},
    "naive_pp": {**TREE, "segment_tokens": 5},
    "flowspec": {**TREE, "segment_tokens": 4},
    "flowspec_free": {**TREE, "segment_tokens": 4},
    "pipedec": {"width": 4, "children": 3},
    "specpipe": {"width": 4, "children": 3},
    "dsd": {"gamma": 4},
    "chain": {"gamma": 3},
}
LINK = {"latency_ms": 1.0}
PLACES = ("draft0", "pipeline0.stage1", "pipeline0.stage2", "pipeline0.stage3", "->")
UNLIKE = (19.0, 7.3, 13.1)


def scenario(
    name: str,
    stages: tuple[float, ...] = (19.0, 19.0, 19.0),
    draft_ms: float = 3.0,
    link: dict[str, float] = LINK,
    **changes: Any,
) -> Scenario:
    """A request over stages whose passes each take a fixed time."""
    return Scenario.of(
        {
            "name": name,
            "target": {"layers": 12, "hidden_size": 1000},
            "drafts": [{"device": {"draft_ms": {1: draft_ms}}}],
            "pipelines": [{"stages": [{"device": {"stage_ms": {1: ms}}} for ms in stages]}],
            "links": {"default": link},
            "schedule": {"name": name, **SCHEDULES[name]},
            "acceptance": {"source": "bernoulli", "beta": 0.8},
            "workload": {"requests": 1, "prompt_tokens": 1, "new_tokens": 30},
            **changes,
        }
    )


def token_ms(given: Scenario) -> float:
    return simulate(given, runs=1).metrics["time_between_tokens_ms"].mean


def path(given: Scenario) -> CriticalPath:
    found = simulate(given, runs=1).critical_path
    assert sum(found.places.values()) == pytest.approx(1)
    assert sum(found.reasons.values()) == pytest.approx(1)
    return found


def links(found: CriticalPath) -> dict[str, float]:
    return {name: share for name, share in found.places.items() if "->" in name}


def test_a_tree_in_segments_is_drafted_and_its_last_segment_waits() -> None:
    """A round is a pass to catch up and 2 for the tree, of 3 ms each, then 3 x 19 + 4 x 1 ms. The
    tree travels in one segment more than there are stages, so the last one waits for three others,
    3 x 19 ms, at the first stage; all stages are equal, so it waits nowhere else."""
    found = path(scenario("naive_pp"))
    assert found.places["draft0"] == pytest.approx(9 / 127)
    assert sum(links(found).values()) == pytest.approx(4 / 127)
    assert found.reasons == pytest.approx({"work": 70 / 127, "queueing": 57 / 127})


@pytest.mark.parametrize("link", [LINK, {"latency_ms": 0.7, "bandwidth_mbit_s": 40.0}])
@pytest.mark.parametrize("name", [*SCHEDULES])
def test_a_place_a_little_faster_is_worth_its_share(name: str, link: dict[str, float]) -> None:
    """By brute force: the time between tokens falls by share x EPSILON of it."""
    stated = scenario(name, UNLIKE, 3.7, link)
    found, before = path(stated), token_ms(stated)
    for place in PLACES:
        less = [1 - EPSILON * (place == each) for each in PLACES]
        stages = [ms * factor for ms, factor in zip(UNLIKE, less[1:4], strict=True)]
        faster = {key: value * less[4] for key, value in link.items() if key == "latency_ms"}
        if "bandwidth_mbit_s" in link:
            faster["bandwidth_mbit_s"] = link["bandwidth_mbit_s"] / less[4]
        after = token_ms(scenario(name, (*stages,), 3.7 * less[0], faster))
        share = sum(links(found).values()) if place == "->" else found.places.get(place, 0.0)
        assert (before - after) / (EPSILON * before) == pytest.approx(share, abs=1e-3), place


@pytest.mark.parametrize("name", [*SCHEDULES])
def test_a_request_of_one_token_has_no_time_between_tokens(name: str) -> None:
    """One path is empty, nothing binds, and time passes all the same."""
    found = simulate(scenario(name, workload={"new_tokens": 1}), runs=2)
    assert found.critical_path is None
    assert found.metrics["time_to_first_token_ms"].mean > 0
    assert not any("no time passes" in warning for warning in found.warnings)


def test_what_waits_for_a_word_waits_for_the_barrier() -> None:
    """FlowSpec's draft is slow, so its segments are at the stages before the words are."""
    slow = path(scenario("flowspec", draft_ms=40.0))
    assert slow.reasons["barrier"] > path(scenario("flowspec_free", draft_ms=40.0)).reasons.get(
        "barrier", 0.0
    )


def test_who_waits_for_others_requests_queues() -> None:
    """Plain decoding of one request is delayed by those that arrive: what was under way when it
    asked for the shared machine was waited for, and what was not is none of its path."""
    changes: dict[str, Any] = {
        "workload.arrivals": {"process": "poisson", "rate_per_s": 8.0},
        "workload.requests": 12,
        "pipelines.0.stages.1.host": "box",
        "pipelines.0.stages.2.host": "box",
    }
    loaded = scenario("pp", UNLIKE).with_(**changes)
    alone = loaded.with_(**{"workload.arrivals.rate_per_s": 1e-3})
    assert path(alone).reasons == pytest.approx({"work": 1.0})
    assert path(loaded).reasons["queueing"] > 0.1


def test_the_table_says_it_and_other_figures_do_not_change(
    terminal: Terminal, scenario: Path
) -> None:
    told = terminal.succeeds("simulate", scenario, "--json", "r.json")
    assert "Critical path of a token: " in terminal.succeeds("simulate", scenario, "--verbose")
    content = json.loads(Path("r.json").read_text())
    share = content["critical_path"][content["binds"]]
    assert f"Binds: {content['binds']}, {share:.0%} of a token's time" in told
    assert content["binds"] == next(iter(content["critical_path"]))
    stated = Scenario.load(scenario)
    plain = predict(stated)
    told = predict(stated, paths=True)
    for trace in told:
        assert trace.paths
        trace.paths.clear()
    assert told == plain


@pytest.mark.parametrize("name", SCHEDULES)
def test_causes_of_requests_that_are_over_are_forgotten(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept does not grow with the run; the paths are those of a clock that keeps all."""
    many = {"requests": 18, "concurrency": 3, "prompt_tokens": 1, "new_tokens": 8}
    given = scenario(
        name, UNLIKE, workload=many, links={"default": {**LINK, "bandwidth_mbit_s": 9}}
    )
    kept, forget = list[int](), ListeningClock.forget

    def counted(self: ListeningClock, before_ms: float) -> None:
        forget(self, before_ms)
        at, count = self.cause, 0
        while at is not None:
            at, count = at.parent, count + 1
        kept.append(count)

    monkeypatch.setattr(ListeningClock, "forget", counted)
    found = path(given)
    assert len(kept) == 18
    assert max(kept[10:]) < 2 * max(kept[4:10])
    monkeypatch.setattr(ListeningClock, "forget", lambda self, before_ms: None)
    assert path(given) == found
