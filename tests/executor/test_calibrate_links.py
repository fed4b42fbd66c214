"""``treepipe calibrate links``: ping-pong with a peer, and the link that explains it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.command_line import SCENARIO, assert_sentence, call
from treepipe.core.errors import RunError
from treepipe.executor.measure import link
from treepipe.executor.measure.calibrate import LinkRequest, calibrate_link
from treepipe.executor.measure.link import BURST, fit_bandwidth, fit_jitter, link_profile
from treepipe.executor.measure.timing import Samples
from treepipe.profiles.check import check_file
from treepipe.profiles.library import find_link
from treepipe.profiles.schema import LinkProfile

pytestmark = pytest.mark.processes


def load(path: Path) -> LinkProfile:
    assert check_file(path)[0] == "links"
    return find_link(str(path), "test")


@pytest.mark.processes
def test_a_process_of_this_host_is_measured_and_simulates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "link.toml"
    assert call(monkeypatch, "calibrate", "links", "--seconds", 1, "--out", out, "--quiet") == 0
    found = load(out)
    assert 0 < found.latency_ms + found.message_ms + found.jitter_ms < 1e3
    assert found.bandwidth_mbit_s is not None
    assert found.measured_to_bytes in link.SIZES
    assert "pyzmq" in found.origin.versions
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO.replace('"emulated-1ms"', '"link.toml"'))
    assert call(monkeypatch, "simulate", path, "--quiet") == 0


@pytest.mark.processes
def test_a_peer_that_listens_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "treepipe", "calibrate", "peer", "--listen"]
    peer = subprocess.Popen(
        [*command, f"127.0.0.1:{port}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert peer.stdout is not None
        assert peer.stdout.readline().decode() == f"listening at tcp://127.0.0.1:{port}\n"
        address = f"localhost:{port}"
        arguments = ("--peer", address, "--seconds", 1, "--quiet")
        assert (
            call(monkeypatch, "calibrate", "links", *arguments, "--out", tmp_path / "1.toml") == 0
        )
        assert address in load(tmp_path / "1.toml").origin.hardware
        # It goes on for whoever comes next, but two cannot listen at one address.
        assert (
            call(monkeypatch, "calibrate", "links", *arguments, "--out", tmp_path / "2.toml") == 0
        )
        assert call(monkeypatch, "calibrate", "peer", "--listen", f"127.0.0.1:{port}") == 2
        assert_sentence(capsys.readouterr().err, f"--listen 127.0.0.1:{port}: port {port}")
        peer.send_signal(signal.SIGINT)
        _, error = peer.communicate(timeout=60)
        assert (peer.returncode, b"Traceback" in error) == (130, False)
    finally:
        peer.kill()
        peer.wait()


@pytest.mark.processes
def test_an_interruption_keeps_what_is_measured(tmp_path: Path) -> None:
    told = 0

    def say(what: str, steps: int) -> None:
        nonlocal told
        told += 1
        if told == 12:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        calibrate_link(LinkRequest(seconds=30), tmp_path / "link.toml", say)
    load(tmp_path / "link.toml")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("links", "--peer", "somewhere"), "--peer somewhere: must be HOST:PORT"),
        (("links", "--peer", "somewhere:0"), "--peer somewhere:0: must be HOST:PORT"),
        (("links", "--peer", "no.such.host.invalid:5555"), "there is no host of that name"),
        (("links", "--peer", "127.0.0.1:1"), "--peer 127.0.0.1:1: no answer within 0.2 s"),
        (("links", "--out", "none/link.toml"), "there is no folder none"),
        (("--out", "link.toml", "links"), "--out: stands before 'links' and would not count"),
        (("peer", "--listen", "5555"), "--listen 5555: must be HOST:PORT"),
        (("peer", "--listen", "192.0.2.1:5555"), "192.0.2.1 is no address that calibration could"),
    ],
)
def test_bad_arguments_end_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(link, "FIRST_MS", 200.0)
    assert call(monkeypatch, "calibrate", *arguments) == 2
    assert_sentence(capsys.readouterr().err, part)
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_a_peer_that_falls_silent_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(link, "ANSWER_MS", 0.0)
    with pytest.raises(RunError, match="stopped answering"):
        calibrate_link(LinkRequest(seconds=1), tmp_path / "link.toml", lambda *_: None)


# --- what the round trips say ------------------------------------------------------------------


@pytest.mark.parametrize("family", ["half_normal", "exponential"])
def test_jitter_is_told_from_round_trips(family: str) -> None:
    rng = np.random.default_rng(5)
    if family == "half_normal":
        jitter = np.abs(rng.normal(0.0, 0.4, (20_000, 2)))
    else:
        jitter = rng.exponential(0.4, (20_000, 2))
    base, scale, found = fit_jitter((2 * 1.5 + jitter.sum(1)).tolist())
    assert found == family
    assert base == pytest.approx(1.5, rel=0.02)
    assert scale == pytest.approx(0.4, rel=0.05)


def test_a_steady_link_has_no_jitter() -> None:
    assert fit_jitter([3.0] * 20)[:2] == (1.5, 0.0)


def test_bandwidth_is_the_slope_over_sizes() -> None:
    """100 Mbit/s: 1 MiB takes 83.9 ms beyond the start of 2 ms."""
    times = {size: 2.0 + size * 8 / 100e3 for size in (0, 2**10, 2**16, 2**20)}
    bandwidth, miss = fit_bandwidth(times)
    assert bandwidth == pytest.approx(100.0)
    assert miss == pytest.approx(0.0, abs=1e-9)
    assert fit_bandwidth({0: 2.0, 2**20: 2.0 - 1e-6})[0] is None


def test_a_profile_gives_the_round_trips_back() -> None:
    """One way: 0.05 ms per message, 1 ms latency, 1,000 Mbit/s."""
    samples: Samples[link.Key] = {
        ("trip", 0): [2 * 1.05] * 9,
        ("burst", BURST): [2 * 1.05 + (BURST - 1) * 0.05] * 9,
        ("trip", 2**20): [2 * (1.05 + 2**20 * 8 / 1e6)] * 9,
        ("trip", 2**22): [2 * (1.05 + 2**22 * 8 / 1e6)] * 9,
    }
    found = link_profile(samples, "here to there", 1.0, "software")
    assert found is not None
    assert found.latency_ms == pytest.approx(1.0)
    assert found.message_ms == pytest.approx(0.05)
    assert found.bandwidth_mbit_s == pytest.approx(1000.0)
    assert found.jitter_ms == 0.0
    assert link_profile({("trip", 0): [2.0] * 9}, "here to there", 1.0, "software") is None
