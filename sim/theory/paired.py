"""Transfers that have both of their devices to themselves (PipeDec, section 3.2).

Law of this file: a transfer begins as soon as its devices are free; of several that could begin at
the same moment the one that was asked for first does, whatever waits for another device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TypeAlias

Moment: TypeAlias = tuple[float, float]
"""When something is over, and since when it went on (ms): of things that are over at the same time
the one that began first is."""
DIGITS = 6
"""Of a millisecond: two ways to the same time agree in them, in whatever order they are summed."""


@dataclass(slots=True)
class Worker:
    """A device that does one thing after the other; transfers are no work of it.

    >>> worker = Worker()
    >>> worker.wake(3.0)
    >>> worker.work(20.0)
    >>> worker.wake(5.0)
    >>> worker.over
    (23.0, 3.0)
    """

    over: Moment = (0.0, 0.0)

    def wake(self, arrived_ms: float) -> None:
        """What it does next was not there before."""
        if arrived_ms > self.over[0]:
            self.over = arrived_ms, arrived_ms

    def work(self, lasts_ms: float) -> None:
        """Do something; what takes no time is part of what was done before."""
        if lasts_ms:
            self.over = self.over[0] + lasts_ms, self.over[0]


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A transfer; ``turn`` is ``asked`` as it is compared."""

    asked: Moment
    turn: tuple[float, ...]
    devices: tuple[int, int]
    lasts_ms: float
    arrive: Callable[[float], None]


class PairedTransfers:
    """Transfers among devices, in the order in which they begin.

    Begin = max(asked, end of the transfer before at the one device, and at the other). What is
    asked for when a transfer is over cannot begin before it did, so the first of all that are known
    is the next one.

    >>> transfers, ends = PairedTransfers(), []
    >>> for devices in ((0, 1), (0, 2), (1, 2), (3, 4)):
    ...     transfers.ask((0.0, 0.0), devices, 1.0, ends.append)
    >>> while transfers.begin_next():
    ...     pass
    >>> ends
    [1.0, 1.0, 2.0, 3.0]
    """

    def __init__(self) -> None:
        self._wanted: list[_Wanted] = []
        self._free_ms: defaultdict[int, float] = defaultdict(float)
        self._turns: defaultdict[int, tuple[float, ...]] = defaultdict(tuple[float, ...])
        self._begun = 0

    def ask(
        self,
        asked: Moment,
        devices: tuple[int, int],
        lasts_ms: float,
        arrive: Callable[[float], None],
    ) -> None:
        """A transfer is wanted. Args: ``arrive``: told when it is over (ms), may ask for others."""
        self._wanted.append(_Wanted(asked, _turn(*asked, inf), devices, lasts_ms, arrive))

    def begin_next(self) -> bool:
        """Begin the next one; returns whether there was one."""
        if not self._wanted:
            return False
        first = min(self._wanted, key=self._begins)
        self._wanted.remove(first)
        begin = max(first.asked[0], *[self._free_ms[device] for device in first.devices])
        end = begin + first.lasts_ms
        self._begun += 1
        for device in first.devices:
            self._free_ms[device], self._turns[device] = end, _turn(end, begin, self._begun)
        first.arrive(end)
        return True

    def _begins(self, wanted: _Wanted) -> tuple[tuple[float, ...], tuple[float, ...]]:
        one, other = wanted.devices
        return max(wanted.turn, self._turns[one], self._turns[other]), wanted.turn


def _turn(over_ms: float, since_ms: float, begun: float) -> tuple[float, ...]:
    return round(over_ms, DIGITS), round(since_ms, DIGITS), begun


def paired_timeline_ms(
    stage_ms: Sequence[Sequence[float]], transfer_ms: Sequence[Sequence[float]]
) -> list[float]:
    """When each segment is back at the draft server, all being ready to leave at 0.

    Args:
        stage_ms: [segments][stages], a segment's time at each of them.
        transfer_ms: [segments][stages + 1], to the first stage, between them, and back.

    >>> paired_timeline_ms([[20.0, 30.0], [20.0, 30.0]], [[1.0] * 3] * 2)
    [53.0, 83.0]
    >>> paired_timeline_ms([[2.0, 2.0]] * 2, [[4.0] * 3] * 2)
    [20.0, 24.0]
    """
    stages, back = len(stage_ms[0]), list[float]()
    transfers, workers = PairedTransfers(), [Worker() for _ in range(stages + 1)]

    def send(segment: int, sender: int) -> None:
        devices = sender, (sender + 1) % (stages + 1)
        arrived = partial(arrive, segment, sender + 1)
        transfers.ask(workers[sender].over, devices, transfer_ms[segment][sender], arrived)

    def arrive(segment: int, receiver: int, now_ms: float) -> None:
        if receiver > stages:
            back.append(now_ms)
            return
        workers[receiver].wake(now_ms)
        workers[receiver].work(stage_ms[segment][receiver - 1])
        send(segment, receiver)

    for segment in range(len(stage_ms)):
        send(segment, 0)
    while transfers.begin_next():
        pass
    return back
