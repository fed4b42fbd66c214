"""Block drafts in simulations: what their pools answer, what their passes take, and that a tree
deeper than a block goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worlds.recording_source import RecordingSource
from treepipe.core.draft_work import Draft
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.physics.timing import DeviceTimes, TimeTable
from treepipe.profiles.pool_file import Prompt, Table
from treepipe.scenario.deployment import Placed
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.workload import draw_requests
from treepipe.sim.pool import Pool
from treepipe.sim.predict import predict
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate
from treepipe.studies.workshop.texts import TextSource

PROMPT, LEVELS = 4, 3
DEMO = Scenario.load(Path(__file__).parents[2] / "studies" / "scenarios" / "demo.toml")


def pool() -> Pool:
    """A text of ten tokens, whose first candidate at depth d has the log probability -(1 + d)."""
    tables = [
        Table(np.tile([-1.0 - depth, -5.0, -6.0], (10, 1)), [depth % 3] * 10)
        for depth in range(LEVELS)
    ]
    off_path = {1: np.full((1, 3), -9.0)}
    return Pool([Prompt(tables[0], tables[1:])], off_path)


def test_a_level_s_candidates_are_the_same_on_every_path_and_end_with_the_block() -> None:
    oracle = TextSource(pool(), 0).open(1, PROMPT, LEVELS)
    first = oracle.draft(DraftPass(1, (1, 2, 3, 4, oracle.truth(0)), (), (), True, 3))
    assert first.log_probs[0][0] == -1.0
    right, wrong = oracle.truth(1), 2
    nodes = right, wrong, oracle.truth(2), 1, oracle.truth(3)
    parents = NO_PARENT, NO_PARENT, 0, 1, 2
    drafted = oracle.draft(DraftPass(2, (), nodes, parents, False, 3))
    assert [row[0] for row in drafted.log_probs] == [-2.0, -2.0, -3.0, -3.0, -np.inf]
    assert list(drafted.tokens[0]) == list(drafted.tokens[1])
    moved = DraftPass(3, (), (oracle.truth(4),), (0,), False, 3, (0, 2, 4), 2)
    assert oracle.draft(moved).log_probs[0][0] == -3.0, "two levels below the newest token"


def test_only_a_pass_with_committed_tokens_takes_the_block_s_time() -> None:
    table = TimeTable({1: 1.0, 101: 101.0})
    times = DeviceTimes(TimeTable({1: 0.0}), table, TimeTable({1: 0.0}), 0.0, 0.0)
    placed = Placed("draft0", times, block=8)
    read = DraftPass(1, (5, 6, 7), (), (), True, 4)
    below = DraftPass(2, (), (1, 2, 3), (NO_PARENT,) * 3, False, 4)
    accepted = DraftPass(3, (), (9,), (0,), False, 4, (0, 1, 2), 2)

    def ms(*orders: DraftPass) -> float:
        return placed.draft_ms(Draft(tuple(enumerate(orders))), None)

    assert (ms(read), ms(below), ms(accepted)) == (8 + 3, 0.0, 8 + 2)
    assert ms(read, below, accepted) == 8 + 3 + 8 + 2


def scenario(**changes: Any) -> Scenario:
    keys: dict[str, Any] = {"drafts.0.source": "block", "runs": 1, "workload.requests": 1}
    keys["acceptance"] = {"source": "bernoulli", "beta": 1.0}
    return DEMO.with_(**{**keys, **changes})


@pytest.mark.parametrize("name", ["specpipe", "pipedec"])
@pytest.mark.parametrize(("places", "rounds"), [(2, 20), (3, 1)])
def test_a_tree_goes_on_where_a_block_ends_before_the_pipeline_does(
    name: str, places: int, rounds: int
) -> None:
    """A draft that is always right is never missed, so one round is all of the text. With two
    places the root is alone when it moves, and its child comes a step too late: two tokens each."""
    keys = {"schedule.name": name, "drafts.0.block": places, "pipelines.0.stages.0.count": 6}
    (trace,) = predict(scenario(**keys))
    assert [len(request.rounds) for request in trace.requests] == [rounds]


def test_a_replay_gives_every_answer_of_its_own_block() -> None:
    """A place of the text is answered anew from every block that reaches it."""
    asked = scenario(**{"schedule.name": "flowspec", "drafts.0.block": LEVELS + 1})
    deployment = resolve(asked).asked(draw_requests(asked, 0), 0)
    source = RecordingSource(TextSource(pool(), 0))
    trace = simulate(deployment, source)
    replay = ReplaySource(source.recording(trace))
    again = simulate(deployment, replay)
    assert again.requests == trace.requests
    assert replay.asked > 50
    assert not replay.borrowed


def test_a_refill_is_one_pass_of_the_draft() -> None:
    (trace,) = predict(scenario(**{"schedule.name": "flowspec"}))
    spans = [span for span in trace.spans if span.kind == "draft" and span.end_ms > span.start_ms]
    turns = [turn for turn in trace.turns if turn.draft == 0]
    assert 0 < len(spans) <= len(turns)
    passes = [span for span in trace.spans if span.kind == "draft"]
    assert len(passes) > 4 * len(spans), "levels behind the first are answered by the block"
