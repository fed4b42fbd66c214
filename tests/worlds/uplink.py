"""A draft and four pipelines of a stage each, whose messages share the draft's port; for runs whose
devices are emulated and whose network is not."""

from __future__ import annotations

from pathlib import Path

from tests.worlds.changed import changed
from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
from treepipe.executor.controller import Controller
from treepipe.physics.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.results.metrics import run_metrics
from treepipe.results.recording import Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, Placed, RequestSpec
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate
from treepipe.testing.random_model import save_random_checkpoint

PIPELINES = 4
WIDTH = 512
TIMES = DeviceTimes(TimeTable({1: 20.0}), TimeTable({1: 2.0}), TimeTable({1: 2.0}), 1.0, 0.3)
"""Long enough for this host's two cores to keep up with five devices."""


def wide_pair(folder: Path) -> tuple[Path, Path]:
    """A target of one layer whose rows are 2 KiB, and a draft."""
    target = save_random_checkpoint(folder / "target", layers=1, width=WIDTH, seed=1, positions=512)
    return target, save_random_checkpoint(folder / "draft", layers=1, seed=2, positions=512)


def uplink_deployment(name: str, tree: int, tokens: int, **settings: object) -> Deployment:
    """A request per pipeline, at once, with trees of so many nodes."""
    plain = small_deployment(
        name, clients=PIPELINES, tree_size=tree, top_k=8, segment_tokens=tree + 1, **settings
    )
    stages = tuple((Placed(f"pipeline{p}.stage1", TIMES, range(1)),) for p in range(PIPELINES))
    requests = tuple(RequestSpec(PROMPT[p : p + 30], tokens) for p in range(PIPELINES))
    placed = {"drafts": (Placed("draft0", TIMES),), "pipelines": stages, "requests": requests}
    return changed(plain, **placed, row_bytes=4 * WIDTH)


def over_the_network(pair: tuple[Path, Path], deployment: Deployment) -> tuple[Trace, Recording]:
    """A run with emulated devices."""
    roles = worker_roles(pair, deployment, emulate="devices", capacity=600)
    with Controller(roles, deployment) as running:
        running.run(deployment)  # a process's first passes take longer
        return running.run(deployment)


def off(trace: Trace, recording: Recording, deployment: Deployment, links: LinkTimes) -> float:
    """How far the time between tokens is from the run's in its replay over these links."""
    replay = simulate(changed(deployment, default=links), ReplaySource(recording))
    found = [run_metrics(each)["time_between_tokens_ms"] for each in (replay, trace)]
    return found[0] / found[1] - 1
