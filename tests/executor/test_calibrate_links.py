"""``treepipe calibrate links``: ping-pong with a peer, and the link that explains it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.command_line import SCENARIO, Terminal
from tests.worlds.hosts import serving
from treepipe.core.errors import RunError
from treepipe.executor.hosts.remote import status
from treepipe.executor.measure import link
from treepipe.executor.measure.calibrate import calibrate_links
from treepipe.executor.measure.link import (
    BURST,
    LinkSession,
    fit_bandwidth,
    fit_jitter,
    link_profile,
)
from treepipe.executor.measure.requests import LinksRequest
from treepipe.executor.measure.timing import Effort, Samples
from treepipe.executor.wire.envelope import Ping
from treepipe.physics.timing import LinkTimes
from treepipe.physics.transfers import Wire
from treepipe.profiles.library import check_file, find_link
from treepipe.profiles.schema import LinkProfile
from treepipe.progress import silent

pytestmark = pytest.mark.processes


def load(path: Path) -> LinkProfile:
    assert check_file(path)[0] == "links"
    return find_link(str(path), "test")


def test_a_process_of_this_host_is_measured_and_simulates(terminal: Terminal) -> None:
    terminal.succeeds("calibrate", "links", "--seconds", 1, "--out", "link.toml", "--quiet")
    found = load(terminal.folder / "link.toml")
    assert 0 < found.latency_ms + found.message_ms + found.jitter_ms < 1e3
    assert found.bandwidth_mbit_s is not None
    assert found.measured_to_bytes in link.SIZES
    assert "pyzmq" in found.origin.versions
    path = terminal.folder / "scenario.toml"
    path.write_text(SCENARIO.replace('"emulated-1ms"', '"link.toml"'))
    terminal.succeeds("simulate", path, "--quiet")


def test_a_worker_of_another_host_is_a_peer(terminal: Terminal) -> None:
    """It goes on for whoever comes next."""
    with serving() as worker:
        arguments = ("--peer", worker.address, "--seconds", 1, "--quiet")
        for name in ("1.toml", "2.toml"):
            terminal.succeeds("calibrate", "links", *arguments, "--out", name)
            assert worker.address in load(terminal.folder / name).origin.hardware
        assert status(worker.address, None).sessions == 2


def test_an_interruption_keeps_what_is_measured(tmp_path: Path) -> None:
    told = 0

    def say(what: str, steps: int) -> None:
        nonlocal told
        told += 1
        if told == 12:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        calibrate_links(LinksRequest(seconds=30, out=tmp_path / "link.toml"), say)
    load(tmp_path / "link.toml")


def test_a_peer_that_falls_silent_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(link, "ANSWER_MS", 0.0)
    with pytest.raises(RunError, match="stopped answering"):
        calibrate_links(LinksRequest(seconds=1, out=tmp_path / "link.toml"), lambda *_: None)


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


@given(
    st.floats(0.001, 100.0),
    st.floats(0.0, 10.0),
    st.floats(1.0, 100_000.0),
)
def test_a_profile_gives_the_round_trips_back(
    latency_ms: float, message_ms: float, mbit_s: float
) -> None:
    """Of a steady link: its one way, what a message costs, and no jitter."""
    way_ms = latency_ms + message_ms
    samples: Samples[link.Key] = {
        ("trip", size): [2 * (way_ms + size * 8 / (1e3 * mbit_s))] * 9 for size in (0, 2**20, 2**22)
    }
    samples["burst", BURST] = [2 * way_ms + (BURST - 1) * message_ms] * 9
    found = link_profile(samples, "here to there", 1.0, "software")
    assert found is not None
    assert found.latency_ms == pytest.approx(latency_ms, rel=1e-3)
    assert found.message_ms == pytest.approx(message_ms, rel=1e-3, abs=1e-3)
    assert found.bandwidth_mbit_s == pytest.approx(mbit_s, rel=1e-3)
    assert found.jitter_ms == 0.0


class SimulatedEnd:
    """An end whose messages take the time of two links without jitter, by a clock that they move;
    it is also the session's timer."""

    withheld = 0.0

    def __init__(self, times: LinkTimes) -> None:
        self.now, self._answer_ms = 1e6, 0.0
        self._there, self._back = (Wire(times, np.random.default_rng(0)) for _ in range(2))
        self.inbox = self

    def send(self, message: Ping, hidden: torch.Tensor | None) -> None:
        size = 0 if hidden is None else hidden.nbytes
        _, _, due = self._there.transfer(self.now, size)
        if message == Ping("answer"):
            self._answer_ms = self._back.transfer(due, size)[2]

    def get(self, until_ms: float) -> bool:
        self.now = self._answer_ms
        return True

    def time_ms(self, work: Callable[[], object]) -> float:
        start = self.now
        work()
        return self.now - start

    def pause(self, seconds: float) -> None:
        self.now += seconds * 1e3


def measured_link(times: LinkTimes) -> LinkProfile:
    end = SimulatedEnd(times)
    session = LinkSession(end, "", end, {}, lambda: end.now, end.pause)  # type: ignore[arg-type]
    session.run(Effort(60.0, turns=3), silent)
    found = link_profile(session.samples, "here to there", 1.0, "software")
    assert found is not None
    return found


@pytest.mark.parametrize("peak", [None, 2000.0])
@pytest.mark.parametrize(("mbit_s", "burst_kib"), [(100, 128), (100, 32), (400, 256), (10, 512)])
def test_a_bucket_is_found_as_deep_as_it_is(
    mbit_s: float, burst_kib: float, peak: float | None
) -> None:
    """Whatever earlier messages have drawn from it: each trip and train begins when it is full."""
    times = LinkTimes(0.2, mbit_s, message_ms=0.02, burst_bytes=burst_kib * 1024, peak_mbit_s=peak)
    found = measured_link(times)
    assert found.bandwidth_mbit_s == pytest.approx(mbit_s, rel=0.01)
    assert found.burst_kib == pytest.approx(burst_kib, rel=0.05)
    assert found.latency_ms == pytest.approx(0.2, rel=0.01)
    for size in (2**14, 2**17, 2**21):
        assert found.times.load(size) == pytest.approx(times.load(size), rel=0.05, abs=0.1)


@pytest.mark.parametrize("mbit_s", [10, 1000, 20_000])
def test_no_bucket_is_found_where_none_is(mbit_s: float) -> None:
    found = measured_link(LinkTimes(0.2, mbit_s, message_ms=0.02))
    assert (found.burst_kib, found.peak_mbit_s) == (0.0, None)
    assert found.bandwidth_mbit_s == pytest.approx(mbit_s, rel=1e-3)


def test_what_sizes_do_not_tell_is_no_bandwidth_and_no_profile() -> None:
    assert fit_bandwidth({0: 2.0, 2**20: 2.0 - 1e-6})[0] is None
    assert link_profile({("trip", 0): [2.0] * 9}, "here to there", 1.0, "software") is None
