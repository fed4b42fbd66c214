"""``treepipe calibrate run`` on several hosts: two daemons of this host's loopback."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.worlds.command_line import Terminal
from tests.worlds.hosts import free_port, serving
from treepipe.executor.processor import Processor
from treepipe.executor.remote import status
from treepipe.profiles.library import find_host
from treepipe.scenario.scenario import Scenario

pytestmark = pytest.mark.processes
TEXT = """
name = "two hosts"
emulate = false
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
[acceptance]
source = "bernoulli"
beta = 0.7
[workload]
requests = 1
new_tokens = 8
"""


def test_every_host_has_a_profile(terminal: Terminal) -> None:
    """One is a worker's, the other this host; what is written simulates with both."""
    path, out, made = (terminal.folder / name for name in ("two.toml", "hosts", "measured.toml"))
    with ExitStack() as stack:
        worker = stack.enter_context(serving(None, "127.0.0.1", free_port(), None))
        path.write_text(TEXT.replace("WORKER", worker))
        command = ("calibrate", "run", path, "--seconds", 1, "--out", out, "--quiet")
        terminal.succeeds(*command, "--scenario-out", made)
        assert status(worker, None).processor == Processor.here()
    front, back = (find_host(str(out / f"{name}.toml"), "a test") for name in ("front", "back"))
    assert front.draft_factor
    assert not back.draft_factor, "no draft is there"
    assert front.stage_factor
    assert back.stage_factor
    assert front.wake_ms > 0
    assert "pyzmq" in back.origin.versions
    assert "protocol" in front.origin.versions, "as the worker tells them"
    assert Scenario.load(made).hosts["front"].profile == "hosts/front.toml"
    terminal.succeeds("simulate", made, "--quiet")
    terminal.refuses("there is such a file already", *command)
