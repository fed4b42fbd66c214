"""Measuring a link: exchanges of messages of many sizes, in bursts and in trains give a profile.

The model is the one both worlds use: a message of n bytes keeps the sender busy for
``message_ms`` + n / bandwidth, and arrives ``latency_ms`` + jitter later. A round trip is two such
messages; in a burst with one answer, every message but the last adds ``message_ms``. A train of
many long messages empties a token bucket, which then lets them through at its rate.
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from treepipe.core.errors import RunError, UserError
from treepipe.executor.measure.timing import (
    Effort,
    HostClock,
    Probe,
    Sampler,
    Samples,
    WorkTimer,
    measured,
)
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.envelope import Gate, Ping
from treepipe.executor.wire.mailbox import Inbox, Outbox
from treepipe.executor.wire.processor import software
from treepipe.executor.wire.records import LinkEnd, Measure, RoundTrips
from treepipe.executor.wire.transport import Transport
from treepipe.profiles.schema import LinkProfile, MeasuredOrigin
from treepipe.progress import Progress, silent

Key: TypeAlias = tuple[Literal["trip", "burst", "train"], int]
"""A round trip with a number of bytes, a burst of a number of empty messages, or a train of a
number of bytes, of which only an empty message at its end is answered."""
Jitter: TypeAlias = Literal["half_normal", "exponential"]

ANY_TIME = 0.0
WIDTH = 256
"""Width of hidden states: a row is 1 KiB."""
SIZES = tuple(1024 * 4**power for power in range(7))
"""Message sizes in bytes: 1 KiB to 4 MiB."""
BURST = 32
CAR = 64 * 1024
"""Bytes of each message of a train."""
TRAINS = tuple(CAR * cars for cars in (8, 32, 64))
"""Bytes of trains."""
LEAST_PEAK = 2.0
LEAST_BURST_MS = 0.1
"""What shows a bucket: what it lets through at once goes so many times as fast as its rate, and
would take so long at that rate. Sizes bend the times of messages without one, too (caches)."""
TURNS = 20
"""Fewest turns over all sizes."""
LONGEST_MS = 500.0
"""Length of a round trip after which no larger size is tried."""
FIRST_MS, ANSWER_MS = 5e3, 60e3
"""Longest wait for the first answer, and for any later one."""
QUANTILES = np.array((0.25, 0.5, 0.75, 0.95))


class End:
    """One end of a measured link, with the executor's inbox and outbox as a worker has them, since
    encoding and decoding a message belongs to a link's time.

    Messages are due at once (``ANY_TIME``), since two hosts' clocks differ.
    """

    def __init__(self, transport: Transport, host: str, named: LinkEnd) -> None:
        """Listen for messages of the other end. Raises ``UserError`` if it cannot listen there."""
        self._transport, self._named = transport, named
        self._outbox: Outbox | None = None
        self.inbox = Inbox(
            transport, named.port, "calibration", host, "key base_port", gate_of(named)
        )

    def connect(self, way: str) -> None:
        """Connect to the address of the other end's inbox."""
        named = self._named
        ends = named.name, named.peer
        self._outbox = Outbox(self._transport, way, ends, None, named.token)

    def send(self, message: Ping, hidden: torch.Tensor | None) -> None:
        assert self._outbox is not None, "connected first"
        self._outbox.send(message, ANY_TIME, 0, hidden)


def gate_of(named: LinkEnd) -> Gate:
    """Make a gate for pings of the other end alone, up to the largest timed size."""
    most_rows = SIZES[-1] // (4 * WIDTH)
    ends = frozenset({named.peer}), frozenset({named.name})
    return Gate(named.token, *ends, (Ping,), WIDTH, most_rows, waits=False)


def serve(end: End) -> None:
    """Answer pings that request it, until a watched descriptor becomes readable."""
    while (received := end.inbox.get()) is not None:
        if received.envelope.body == Ping("answer"):
            end.send(Ping("answer"), received.hidden)


@dataclass(slots=True)
class LinkSession:
    """Round trips with the other end; ``samples`` grows while ``run`` works, and ``link`` names it
    in errors."""

    end: End
    link: str
    clock: WorkTimer = field(default_factory=HostClock)
    samples: Samples[Key] = field(default_factory=dict)
    now_ms: Callable[[], float] = now_ms
    pause: Callable[[float], object] = time.sleep
    _rate: float | None = None  # bytes per ms, roughly
    _full_ms: float = 0.0  # when a bucket that these messages have emptied is full again

    def run(self, effort: Effort, say: Progress) -> None:
        """Measure. Raises ``UserError`` without an answer, ``RunError`` if a later one is lost."""
        if not self._trip(1, None, FIRST_MS):
            raise UserError(
                f"{self.link}: no answer within {FIRST_MS / 1e3:g} s; can the two hosts reach each "
                f"other's ports, as in a run?"
            )
        probes = list(self._probes())
        say("round trips", 100)
        sampler = Sampler(self.clock, self.samples, lambda: self.now_ms() / 1e3)
        sampler.measure(probes, effort, say)

    def _probes(self) -> Iterator[Probe[Key]]:
        yield Probe(("trip", 0), partial(self._exchange, 1, None))
        yield Probe(("burst", BURST), partial(self._exchange, BURST, None))
        for size in SIZES:
            hidden = torch.zeros(size // (4 * WIDTH), WIDTH)
            trip = partial(self._exchange, 1, hidden)
            taken_ms = self._taken_ms(trip)
            yield Probe(("trip", size), partial(self._spend, trip, size, 2), self._refill)
            if taken_ms > LONGEST_MS:
                break
        for size in TRAINS:
            train = partial(self._train, size // CAR)
            taken_ms = self._taken_ms(train)
            spend = partial(self._spend, train, size, 1)
            yield Probe(("train", size), spend, self._refill, warm=False)
            self._rate = size / taken_ms  # what came before has emptied a bucket
            if taken_ms > LONGEST_MS:
                return

    def _taken_ms(self, work: Callable[[], object]) -> float:
        start = self.now_ms()
        work()
        return self.now_ms() - start

    def _spend(self, work: Callable[[], object], size: int, ways: int) -> None:
        """Send so many bytes one way after the other, and note the tokens that are still owed."""
        way_ms = self._taken_ms(work) / ways
        if self._rate is not None:
            self._full_ms = self.now_ms() + min(LONGEST_MS, 1.2 * (size / self._rate - way_ms))

    def _refill(self) -> None:
        if (left_ms := self._full_ms - self.now_ms()) > 0:
            self.pause(left_ms / 1e3)

    def _train(self, cars: int) -> None:
        hidden = torch.zeros(CAR // (4 * WIDTH), WIDTH)
        for _ in range(cars):
            self.end.send(Ping("nothing"), hidden)
        self._exchange(1, None)

    def _exchange(self, messages: int, hidden: torch.Tensor | None) -> None:
        if not self._trip(messages, hidden, ANSWER_MS):
            raise RunError(f"{self.link}: the other end stopped answering")

    def _trip(self, messages: int, hidden: torch.Tensor | None, wait_ms: float) -> bool:
        """Send messages of which the other end answers the last one; return whether it did."""
        for _ in range(messages - 1):
            self.end.send(Ping("nothing"), hidden)
        self.end.send(Ping("answer"), hidden)
        return self.end.inbox.get(self.now_ms() + wait_ms) is not None


def round_trips(end: End, asked: Measure) -> RoundTrips:
    """Time the link to an end that the coordinator has started. Raises as ``LinkSession.run``."""
    session, start = LinkSession(end, asked.link), time.perf_counter()
    session.run(Effort(asked.seconds, turns=TURNS), silent)
    samples = tuple((kind, size, taken) for (kind, size), taken in session.samples.items())
    seconds = time.perf_counter() - start
    return RoundTrips(samples, seconds, platform.node(), link_versions())


def link_versions() -> str:
    """Versions of the software that messages go through."""
    return software("pyzmq", "torch")


def link_profile(
    samples: Samples[Key], ends: str, seconds: float, versions: str
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
    ways = {size: found["trip", size] / 2 for size in sizes}
    bandwidth, miss = fit_bandwidth(ways)
    trains = {n: ms - found["trip", 0] / 2 for (kind, n), ms in found.items() if kind == "train"}
    bucket = fit_bucket({n: ms for n, ms in ways.items() if n <= CAR} | trains)
    if bucket is not None:
        bandwidth, miss = bucket.mbit_s, bucket.miss
        sizes = [*sizes, *trains]
    over = "over sizes" if bucket is None else "at the peak, then at the rate over trains"
    trips = measured(samples)["trip", 0]
    return LinkProfile(
        latency_ms=max(0.0, base - message),
        message_ms=message,
        bandwidth_mbit_s=bandwidth,
        burst_kib=bucket.burst_kib if bucket else 0.0,
        peak_mbit_s=bucket.peak_mbit_s if bucket else None,
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
                f"{trips.passes} trips); the line {over} to {sizes[-1]} bytes misses the "
                f"medians by at most {miss:.0%}; duplex was not measured"
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


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket that explains one-way times; ``miss`` is their largest relative error."""

    mbit_s: float
    burst_kib: float
    peak_mbit_s: float | None
    miss: float


def fit_bucket(times: Mapping[int, float]) -> Bucket | None:
    """Fit start + max(n / peak, (n - burst) / rate) to one-way milliseconds by bytes n (0 among
    them); None unless a bucket shows.

    The rate is a line through the last points, the peak one from the start through the others; the
    split with the least relative error counts.
    """
    sizes, ms = np.array(sorted(times), dtype=float), np.array([times[n] for n in sorted(times)])
    start, fits = ms[0], list[tuple[float, Bucket]]()
    for first in range(2, len(sizes) - 1):
        slope, offset = np.polyfit(sizes[first:], ms[first:], 1, w=1 / ms[first:])
        n, over, weight = sizes[1:first], ms[1:first] - start, ms[1:first] ** -2
        pace = max(0.0, float((weight * n * over).sum() / (weight * n * n).sum()))
        burst_ms = start - offset
        if slope < LEAST_PEAK * pace or slope <= 0 or burst_ms < LEAST_BURST_MS:
            continue
        error = (start + np.maximum(pace * sizes, slope * sizes - burst_ms)) / ms - 1
        burst_kib, peak = float(burst_ms / slope / 1024), 8e-3 / pace if pace else None
        bucket = Bucket(float(8e-3 / slope), burst_kib, peak, float(np.abs(error).max()))
        fits.append((float(error @ error), bucket))
    return min(fits, key=lambda fit: fit[0])[1] if fits else None


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
