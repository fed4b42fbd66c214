"""Drafts of drafts, on real models: the text stays the target's, and what agrees spares passes."""

from __future__ import annotations

import shutil

import pytest

from tests.worlds.command_line import ROOT
from tests.worlds.local_workers import LocalRun
from treepipe.core.messages import Text
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_source import Passes
from treepipe.executor.run import launch
from treepipe.executor.run.draft_worker import DraftWorker
from treepipe.scenario.scenario import Scenario
from treepipe.testing.random_model import save_random_checkpoint

SCENARIO = ROOT / "studies" / "scenarios" / "pipespec.toml"


def hierarchy(*checkpoints: str) -> list[dict[str, object]]:
    """The target's draft, and below it drafts with these checkpoints, each agreeing half the
    time in a prediction."""
    device = {"draft_ms": {1: 2.0, 100: 2.0}}
    return [
        {"device": device, "model": {"checkpoint": name}, **({"agreement": 0.5} if n else {})}
        for n, name in enumerate(("reference", *checkpoints))
    ]


def decoded(*checkpoints: str, pipelined: bool = False) -> tuple[LocalRun, list[DraftPass]]:
    """A run that is held against ``generate()``, and the passes of the target's draft."""
    few = ("workload.requests=2", "workload.new_tokens=24", "runs=1", "schedule.ahead=9")
    scenario = Scenario.load(SCENARIO, few).with_(drafts=hierarchy(*checkpoints))
    made, passes = launch.prepare(scenario), list[DraftPass]()

    def noted(draft: DraftWorker) -> None:
        run = draft._source.draft_batch

        def batch(orders: Passes) -> list[Drafted]:
            passes.extend(order for _, order in orders)
            return run(orders)

        draft._source.draft_batch = batch  # type: ignore[method-assign]

    run = LocalRun(made.roles, noted, pipelined=pipelined)
    run.assert_greedy(made.target.directory)
    return run, passes


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that knows nothing, with the bundled pair's tokens."""
    bundled = ROOT / "executor" / "reference" / "draft"
    vocabulary = Checkpoint.open(bundled).vocabulary
    made = save_random_checkpoint(tmp_path_factory.mktemp("strange"), vocabulary=vocabulary)
    shutil.copy(bundled / "tokenizer.json", made)
    return str(made)


@pytest.mark.parametrize("pipelined", [False, True])
def test_a_level_that_is_the_draft_itself_spares_the_draft_passes(pipelined: bool) -> None:
    _, alone = decoded(pipelined=pipelined)
    run, led = decoded("reference", pipelined=pipelined)
    assert len(led) < 0.7 * len(alone)
    assert max(len(order.tokens) for order in led) > 3
    told = [message for message, _ in run.stations["draft1"].sent if isinstance(message, Text)]
    assert told
    assert not any(message.final for message in told)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_levels_that_are_always_wrong_leave_the_text_the_targets(strange: str, levels: int) -> None:
    run, passes = decoded(*[strange] * levels)
    assert all(run.stations[f"draft{n}"].sent for n in range(1, levels + 1))
    # It verifies what the level below says, and finds it wrong.
    assert max(len(order.tokens) for order in passes) > 1


def test_a_good_level_below_a_bad_one_is_of_no_use_and_no_harm(strange: str) -> None:
    decoded(strange, "reference", pipelined=True)
    decoded("reference", strange)
