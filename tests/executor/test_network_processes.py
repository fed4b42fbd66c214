"""A run whose devices are emulated and whose network is real: a draft and four pipelines of a stage
each, on hosts in namespaces, whose messages share the draft's port with a token bucket."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import PROMPT, small_deployment, worker_roles
from tests.worlds.hosts import PORT, at, namespaces, serving, skip_without_namespaces
from tests.worlds.real_runs import assert_no_faster
from treepipe.executor.run.controller import Controller
from treepipe.executor.wire.keys import KeyPair
from treepipe.physics.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.scenario.deployment import Placed, RequestSpec
from treepipe.sim.replay import ReplaySource
from treepipe.sim.world import simulate
from treepipe.testing.random_model import save_random_checkpoint

pytestmark = pytest.mark.processes

PIPELINES, WIDTH, TREE = 4, 512, 96
TIMES = DeviceTimes(TimeTable({1: 20.0}), TimeTable({1: 2.0}), TimeTable({1: 2.0}), 1.0, 0.3)
"""Long enough for this host's two cores to keep up with five devices."""
UPLINK = LinkTimes(0.1, 95.6, burst_bytes=0.956 * 2**17, peak_mbit_s=2000.0)
"""What ``tbf rate 100mbit burst 128kb`` leaves of Ethernet's frames, 1,448 of 1,514 bytes."""


def test_four_pipelines_share_a_port_of_the_network(tmp_path: Path) -> None:
    """The draft's port is busy nearly all the time: rows are 2 KiB, and a request per pipeline
    begins at once. A network without a bucket would make the run 10 % faster than its replay."""
    skip_without_namespaces()
    (models := tmp_path / "models").mkdir()
    key, key_file = KeyPair.new(), tmp_path / "key"
    key.save(key_file)
    pair = (
        save_random_checkpoint(models / "target", layers=1, width=WIDTH, seed=1, positions=512),
        save_random_checkpoint(models / "draft", layers=1, seed=2, positions=512),
    )
    deployment = changed(
        small_deployment(
            "naive_pp", clients=PIPELINES, tree_size=TREE, top_k=8, segment_tokens=TREE + 1
        ),
        drafts=(Placed("draft0", TIMES),),
        pipelines=tuple(
            (Placed(f"pipeline{p}.stage1", TIMES, range(1)),) for p in range(PIPELINES)
        ),
        requests=tuple(RequestSpec(PROMPT[p : p + 30], 8) for p in range(PIPELINES)),
        row_bytes=4 * WIDTH,
        key=key_file,
    )
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(1 + PIPELINES, 100))
        addresses = [
            stack.enter_context(
                serving(models, namespace=name, host=host, port=PORT, key=key)
            ).address
            for name, host in hosts
        ]
        deployment = at(deployment, dict(zip(deployment.roles.devices, addresses, strict=True)))
        roles = worker_roles(pair, deployment, emulate="devices", capacity=600)
        running = stack.enter_context(Controller(roles, deployment))
        running.run(deployment)  # a process's first passes take longer
        trace, recording = running.run(deployment)
    assert_no_faster(trace, simulate(changed(deployment, default=UPLINK), ReplaySource(recording)))
