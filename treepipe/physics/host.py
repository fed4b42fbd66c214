"""The costs of a real host beside a device's own times: messages, wake-ups, decisions, sharing.

A device profile is measured with one process alone and passes back to back. In a run that is not
emulated, a role's process also packs and unpacks messages, is woken, decides, and shares memory
bandwidth and processors with the other roles of its host. ``treepipe calibrate run`` measures that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log1p, sqrt

import numpy as np

from treepipe.physics.timing import TimeTable


class Factor:
    """A factor as a function of a count (rows, working roles): piecewise linear, constant outside.

    >>> factor = Factor({1: 1.0, 3: 2.0})
    >>> factor(1), factor(2), factor(9)
    (1.0, 1.5, 2.0)
    >>> Factor({})(7)
    1.0
    """

    def __init__(self, points: Mapping[int, float]) -> None:
        self.points = dict(sorted(points.items())) or {1: 1.0}

    def __call__(self, count: int) -> float:
        return float(np.interp(count, list(self.points), list(self.points.values())))

    def over(self, table: TimeTable) -> TimeTable:
        """Multiply a device's table by the factor, at the knots of both."""
        return table.times(self, self.points) if self.points != {1: 1.0} else table


@dataclass(frozen=True, slots=True)
class HostTimes:
    """The costs of a role's process on its host, in milliseconds.

    Attributes:
        send, receive: time to pack or unpack a message by its bytes as links count them; keeps the
            role busy.
        wake: time from a message's arrival until a sleeping role goes on.
        desk: time of the draft server's decisions by returned or drafted rows.
        together: factor on all work by the number of the host's processors at work.
        variation: coefficient of variation of a piece of work's time.
        cold: further factor on a draft server's 1st, 2nd, ... pass behind a wait.
        gauge: time of the workers' fixed piece of work when these costs were measured.
        processors: number of roles that can work at once; others wait for their turn.
        turn: longest time for which a role has a processor while another one is ready.
        company: number of other processes that always want a processor.
        heard: processors' worth of other processes' work when these costs were measured.
    """

    send: TimeTable
    receive: TimeTable
    wake: float
    desk: TimeTable
    together: Factor
    variation: float
    cold: Factor
    gauge: float | None = None
    processors: float = inf
    turn: float = inf
    company: int = 0
    heard: float = 0.0

    @property
    def known_company(self) -> float:
        """Processors' worth of other processes' work that these costs consider."""
        return self.company + self.heard

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a factor of mean 1 on a piece of work's time (lognormal)."""
        if not self.variation:
            return 1.0
        variance = log1p(self.variation**2)
        return rng.lognormal(-variance / 2, sqrt(variance))
