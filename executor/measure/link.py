"""Measuring a link: exchanges of messages of many sizes and in bursts give a link profile.

The model is the one both worlds use: a message of n bytes keeps the sender busy for
``message_ms`` + n / bandwidth, and arrives ``latency_ms`` + jitter later. A round trip is two such
messages; in a burst with one answer, every message but the last adds ``message_ms``.
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from treepipe.core.errors import RunError, UserError
from treepipe.executor.clock import now_ms
from treepipe.executor.control import Measure, RoundTrips
from treepipe.executor.mailbox import Ping
from treepipe.executor.measure.peer import SIZES, WIDTH, End
from treepipe.executor.measure.timing import Effort, HostClock, Probe, Sampler, Samples, measured
from treepipe.executor.processor import software
from treepipe.profiles.schema import LinkProfile, MeasuredOrigin
from treepipe.progress import Progress, silent

Key: TypeAlias = tuple[Literal["trip", "burst"], int]
"""A round trip with a number of bytes, or a burst of a number of empty messages."""
Jitter: TypeAlias = Literal["half_normal", "exponential"]

BURST = 32
TURNS = 20
"""Fewest turns over all sizes."""
LONGEST_MS = 500.0
"""Length of a round trip after which no larger size is tried."""
FIRST_MS, ANSWER_MS = 5e3, 60e3
"""Longest wait for the first answer, and for any later one."""
QUANTILES = np.array((0.25, 0.5, 0.75, 0.95))


@dataclass(slots=True)
class LinkSession:
    """Round trips with a peer, by name or address; ``samples`` grows while ``run`` works."""

    end: End
    peer: str
    link: str
    hint: str
    samples: Samples[Key] = field(default_factory=dict)

    def run(self, effort: Effort, say: Progress) -> None:
        """Measure. Raises ``UserError`` without an answer, ``RunError`` if a later one is lost."""
        try:
            self._greet()
            probes = list(self._probes())
            say("round trips", 100)
            Sampler(HostClock(), self.samples).measure(probes, effort, say)
        finally:
            self.end.send(self.peer, Ping("leave"), None)

    def _greet(self) -> None:
        if not self._trip(1, None, FIRST_MS):
            raise UserError(f"{self.link}: no answer within {FIRST_MS / 1e3:g} s; {self.hint}")

    def _probes(self) -> Iterator[Probe[Key]]:
        yield Probe(("trip", 0), partial(self._exchange, 1, None))
        yield Probe(("burst", BURST), partial(self._exchange, BURST, None))
        for size in SIZES:
            hidden = torch.zeros(size // (4 * WIDTH), WIDTH)
            start = time.perf_counter()
            self._exchange(1, hidden)
            yield Probe(("trip", size), partial(self._exchange, 1, hidden))
            if (time.perf_counter() - start) * 1e3 > LONGEST_MS:
                return

    def _exchange(self, messages: int, hidden: torch.Tensor | None) -> None:
        if not self._trip(messages, hidden, ANSWER_MS):
            raise RunError(f"{self.link}: the other end stopped answering")

    def _trip(self, messages: int, hidden: torch.Tensor | None, wait_ms: float) -> bool:
        """Send messages of which the other end answers the last one; return whether it did."""
        for _ in range(messages - 1):
            self.end.send(self.peer, Ping("nothing"), hidden)
        self.end.send(self.peer, Ping("answer"), hidden)
        return self.end.inbox.get(now_ms() + wait_ms) is not None


def round_trips(end: End, peer: str, asked: Measure) -> RoundTrips:
    """Time the link to an end that the coordinator has started. Raises as ``LinkSession.run``."""
    hint = "can the two hosts reach each other's ports, as in a run?"
    session, start = LinkSession(end, peer, asked.link, hint), time.perf_counter()
    session.run(Effort(asked.seconds, asked.precision, turns=TURNS), silent)
    samples = tuple((kind, size, taken) for (kind, size), taken in session.samples.items())
    seconds = time.perf_counter() - start
    return RoundTrips(samples, seconds, platform.node(), link_versions())


def link_versions() -> str:
    """Versions of the software that messages go through."""
    return software("pyzmq", "torch")


def link_profile(
    samples: Samples[Key], ends: str, seconds: float, versions: str, remark: str = ""
) -> LinkProfile | None:
    """Fit a profile to round trips; None without at least two sizes."""
    found = {key: summary.median for key, summary in measured(samples).items()}
    sizes = sorted(size for kind, size in found if kind == "trip")
    if ("trip", 0) not in found or len(sizes) < 2:
        return None
    base, scale, family = fit_jitter(samples["trip", 0])
    message = 0.0
    if ("burst", BURST) in found:
        message = max(0.0, (found["burst", BURST] - found["trip", 0]) / (BURST - 1))
    bandwidth, miss = fit_bandwidth({size: found["trip", size] / 2 for size in sizes})
    trips = measured(samples)["trip", 0]
    return LinkProfile(
        latency_ms=max(0.0, base - message),
        message_ms=message,
        bandwidth_mbit_s=bandwidth,
        jitter_ms=scale,
        jitter=family,
        measured_to_bytes=sizes[-1],
        origin=MeasuredOrigin(
            source="treepipe calibrate links",
            date=datetime.date.today(),
            hardware=ends,
            versions=versions,
            note=(
                f"halves of round trips over TCP, {seconds:.0f} s in all; an empty one took "
                f"{trips.median:.4g} ms (interquartile range {trips.high - trips.low:.2g} ms, "
                f"{trips.passes} trips); the line over sizes to {sizes[-1]} bytes misses the "
                f"medians by at most {miss:.0%}; duplex was not measured{remark}"
            ),
        ),
    )


def fit_bandwidth(times: dict[int, float]) -> tuple[float | None, float]:
    """Fit Mbit/s to one-way milliseconds by bytes (None if size does not matter); return it with
    the largest relative error of the fitted line."""
    sizes, ms = np.array(list(times), dtype=float), np.array(list(times.values()))
    slope, start = np.polyfit(sizes, ms, 1, w=1 / ms)  # relative errors count
    miss = float(np.abs((start + slope * sizes) / ms - 1).max())
    return (float(8 / (slope * 1e3)) if slope > 0 else None), miss


@cache
def unit_quantiles() -> dict[Jitter, npt.NDArray[np.float64]]:
    """``QUANTILES`` of the sum of two jitters of scale 1, by family."""
    from scipy.special import erfinv  # the ends of a link, which only time it, need not load it
    from scipy.stats import gamma

    return {
        # |z| + |z'| <= x is a square in the plane, on its corner: erf(x / 2) squared.
        "half_normal": 2 * erfinv(np.sqrt(QUANTILES)),
        "exponential": gamma.ppf(QUANTILES, 2),
    }


def fit_jitter(round_trips_ms: Sequence[float]) -> tuple[float, float, Jitter]:
    """Fit the one-way time without jitter, the scale of the jitter, and its family.

    A round trip has the sum of two independent jitters. Scale and start follow from the median and
    the interquartile range; the better family is closer to the 95 % quantile.
    """
    low, middle, high, far = np.quantile(round_trips_ms, QUANTILES)
    fits = []
    for family, unit in unit_quantiles().items():
        scale = (high - low) / (unit[2] - unit[0])
        error = abs(far - middle - scale * (unit[3] - unit[1]))
        fits.append((error, max(0.0, middle - scale * unit[1]) / 2, scale, family))
    _, base, scale, family = min(fits)
    return float(base), float(scale), family
