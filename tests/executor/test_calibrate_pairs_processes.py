"""``treepipe calibrate links`` of a scenario, over three daemons of this host's loopback."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.worlds.command_line import call
from tests.worlds.hosts import PORT, free_port, namespaces, serving, skip_without_namespaces
from treepipe.executor.keys import KeyPair
from treepipe.executor.remote import status
from treepipe.profiles.check import check_file
from treepipe.profiles.library import find_link
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario

pytestmark = pytest.mark.processes
TEXT = """
name = "three hosts"
[target]
layers = 4
hidden_size = 64
[[drafts]]
device = "emulated-20ms"
worker = "{}"
[[pipelines]]
stages = [
  {{ device = "emulated-20ms", worker = "{}" }},
  {{ device = "emulated-20ms", worker = "{}" }},
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
FILES = ("draft0-pipeline0.stage1", "draft0-pipeline0.stage2", "pipeline0.stage1-pipeline0.stage2")


def test_daemons_measure_the_links_between_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One after another and all together; what is written simulates with these links."""
    path, out, made = (tmp_path / name for name in ("hosts.toml", "links", "measured.toml"))
    with ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        hosts = [stack.enter_context(serving(None, "127.0.0.1", port, None)) for port in ports]
        path.write_text(TEXT.format(*hosts))
        command = ("calibrate", "links", path, "--seconds", 1, "--out", out)
        assert call(monkeypatch, *command, "--scenario-out", made) == 0
        assert (out / "links.toml").read_text() in capsys.readouterr().out
        alone = [_checked(out / f"{name}.toml") for name in FILES]
        assert call(monkeypatch, *command, "--together", "--force", "--quiet") == 0
        together = [_checked(out / f"{name}.toml") for name in FILES]
        found = [status(host, None) for host in hosts]
        assert [(each.sessions, each.roles) for each in found] == [(2, ())] * 3
    assert not any("measured together" in note for note in alone)
    assert all("3 links were measured together" in note for note in together)
    assert call(monkeypatch, "simulate", made, "--quiet") == 0
    written, measured = resolve(Scenario.load(made)), resolve(Scenario.load(path))
    assert {pair.profile for pair in Scenario.load(made).links.pairs} == {
        f"links/{name}.toml" for name in FILES
    }
    for ends in written.connections:
        assert written.link(*ends) != measured.link(*ends)


def test_a_network_is_found_to_be_as_fast_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two hosts that send 200 Mbit/s each, with a key, and this host, whose way to them is free."""
    skip_without_namespaces()
    path, out, key = tmp_path / "hosts.toml", tmp_path / "links", KeyPair.new()
    key.save(tmp_path / "cluster.key")
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(2, 200, burst_kb=8))
        ours = [stack.enter_context(serving(name, host, PORT, key)) for name, host in hosts]
        text = TEXT.format(*ours, "none").replace(', worker = "none"', "")
        path.write_text(f'{text}[run]\nkey = "cluster.key"\n')
        command = ("calibrate", "links", path, "--seconds", 1, "--out", out, "--quiet")
        assert call(monkeypatch, *command) == 0
    both, *one = (find_link(str(out / f"{name}.toml"), "test").bandwidth_mbit_s for name in FILES)
    assert both == pytest.approx(200, rel=0.25)
    assert one == pytest.approx([400, 400], rel=0.35), "half the time of a way there and back"


def _checked(path: Path) -> str:
    """The note of a link profile whose values a loopback can have."""
    assert check_file(path)[0] == "links"
    found = find_link(str(path), "test")
    assert 0 < found.latency_ms + found.message_ms < 5
    assert found.jitter_ms >= 0
    assert found.bandwidth_mbit_s is not None
    assert found.bandwidth_mbit_s > 0
    return str(found.origin.note)
