"""``treepipe calibrate links`` and ``run`` of a scenario, over daemons of this host's loopback."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.hosts import PORT, namespaces, serving, skip_without_namespaces
from tests.worlds.placed import scenario_at
from treepipe.executor.hosts.remote import status
from treepipe.executor.run.crew import Crew
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.processor import Processor
from treepipe.profiles.library import check_file, find_host, find_link
from treepipe.scenario.scenario import Scenario

pytestmark = pytest.mark.processes
FILES = ("draft0-pipeline0.stage1", "draft0-pipeline0.stage2", "pipeline0.stage1-pipeline0.stage2")
TWO_HOSTS = """
name = "two hosts"
emulate = false
acceptance = { source = "bernoulli", beta = 0.7 }
[target]
checkpoint = "reference"
[[drafts]]
host = "front"
device = { draft_ms = { 1 = 1.0 } }
model = { checkpoint = "reference" }
worker = "WORKER"
[[pipelines]]
stages = [
  { host = "front", device = { stage_ms = { 1 = 2.0 } }, worker = "WORKER" },
  { host = "back", device = { stage_ms = { 1 = 2.0 } } },
]
[schedule]
name = "flowspec"
tree_size = 8
[workload]
requests = 1
new_tokens = 8
"""


def _checked(path: Path) -> None:
    """A link profile has values that a loopback can have."""
    assert check_file(path)[0] == "links"
    found = find_link(str(path), "test")
    assert 0 < found.latency_ms + found.message_ms < 1e3, "on however busy a machine"
    assert found.jitter_ms >= 0
    assert found.bandwidth_mbit_s is not None
    assert found.bandwidth_mbit_s > 0


def test_daemons_measure_the_links_between_each_other(terminal: Terminal) -> None:
    """What is written simulates with these links."""
    out = terminal.folder / "links"
    with ExitStack() as stack:
        hosts = [stack.enter_context(serving()).address for _ in range(3)]
        path = scenario_at(terminal.folder, *hosts, hosts[-1])
        command = ("calibrate", "links", path, "--seconds", 1, "--out", out)
        said = terminal.succeeds(*command, "--scenario-out", "made.toml")
        assert (out / "links.toml").read_text() in said
        for name in FILES:
            _checked(out / f"{name}.toml")
        found = [status(host, None) for host in hosts]
        assert [(each.sessions, each.roles) for each in found] == [(1, ())] * 3
    terminal.succeeds("simulate", "made.toml", "--quiet")
    written = Scenario.load(terminal.folder / "made.toml").links.pairs
    assert {pair.profile for pair in written} >= {f"links/{name}.toml" for name in FILES}


def test_a_network_is_found_to_be_as_fast_as_it_is(terminal: Terminal) -> None:
    """Two hosts that send and receive 200 Mbit/s each, with a key, and this host. The rate is that
    of Ethernet's frames, 1,448 of whose 1,514 bytes are ours, and so is the burst."""
    skip_without_namespaces()
    out, key = terminal.folder / "links", KeyPair.new()
    key.save(terminal.folder / "cluster.key")
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(2, 200))
        ours = [
            stack.enter_context(serving(namespace=name, host=host, port=PORT, key=key))
            for name, host in hosts
        ]
        path = scenario_at(terminal.folder, *[each.address for each in ours], None, None)
        path.write_text(f'{path.read_text()}[run]\nkey = "cluster.key"\n')
        terminal.succeeds("calibrate", "links", path, "--seconds", 2, "--out", out, "--quiet")
    found = [find_link(str(out / f"{name}.toml"), "test") for name in FILES]
    # Without its limit the network has several Gbit/s. Other work on this machine makes messages
    # late, so that rate and bucket are found smaller, or a few times as large; tests in memory hold
    # how exactly they are fitted.
    rates = [link.bandwidth_mbit_s for link in found]
    assert all((rate or 0) < 3 * 191 for rate in rates), rates
    assert all((link.burst_kib or 0) < 3 * 60 for link in found)


def test_every_host_has_a_profile(terminal: Terminal) -> None:
    """One is a worker's, the other this host; what is written simulates with both."""
    path, out, made = (terminal.folder / name for name in ("two.toml", "hosts", "measured.toml"))
    restart, taken = Crew.start_anew, list[float]()

    def timed(self: Crew, *loss: Any) -> None:
        begun = now_ms()
        restart(self, *loss)
        taken.append(now_ms() - begun)

    terminal.monkeypatch.setattr(Crew, "start_anew", timed)
    with serving() as worker:
        path.write_text(TWO_HOSTS.replace("WORKER", worker.address))
        command = ("calibrate", "run", path, "--seconds", 1, "--out", out, "--quiet")
        terminal.succeeds(*command, "--scenario-out", made)
        assert status(worker.address, None).processor == Processor.here()
    front, back = (find_host(str(out / f"{name}.toml"), "a test") for name in ("front", "back"))
    assert front.draft_factor
    assert not back.draft_factor, "no draft is there"
    assert front.stage_factor
    assert back.stage_factor
    assert front.wake_ms > 0
    assert (front.gauge_ms or 0) > 0
    assert back.restart_ms == front.restart_ms > median(taken) - 0.1, "and what is told beside it"
    assert "pyzmq" in back.origin.versions
    assert "protocol" in front.origin.versions, "as the worker tells them"
    assert Scenario.load(made).hosts["front"].profile == "hosts/front.toml"
    terminal.succeeds("simulate", made, "--quiet")
    terminal.refuses("there is such a file already", *command)
