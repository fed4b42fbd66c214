"""Runs whose devices are emulated and whose network is real: hosts in namespaces that share a
port with a token bucket."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.worlds.changed import changed
from tests.worlds.hosts import PORT, at, namespaces, serving, skip_without_namespaces
from tests.worlds.uplink import PIPELINES, off, over_the_network, uplink_deployment, wide_pair
from treepipe.executor.transport import KeyPair
from treepipe.physics.timing import LinkTimes

pytestmark = pytest.mark.processes

UPLINK = LinkTimes(0.1, 95.6, burst_bytes=0.956 * 2**17, peak_mbit_s=2000.0)
"""What ``tbf rate 100mbit burst 128kb`` leaves of Ethernet's frames, 1,448 of 1,514 bytes."""


def test_four_pipelines_share_a_port_of_the_network(tmp_path: Path) -> None:
    """The draft's port is busy nearly all the time. Other work on this machine makes a run slower
    than its replay without bound, never faster, which a network without a bucket would be by
    10 %."""
    skip_without_namespaces()
    (models := tmp_path / "models").mkdir()
    pair, key, key_file = wide_pair(models), KeyPair.new(), tmp_path / "key"
    key.save(key_file)
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(1 + PIPELINES, 100))
        addresses = [
            stack.enter_context(
                serving(models, namespace=name, host=host, port=PORT, key=key)
            ).address
            for name, host in hosts
        ]
        plain = uplink_deployment("naive_pp", 96, 8)
        places = dict(zip(plain.roles.devices, addresses, strict=True))
        deployment = changed(at(plain, places), key=key_file)
        trace, recording = over_the_network(pair, deployment)
    assert off(trace, recording, deployment, UPLINK) < 0.05
