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
        together: factor on all work by the number of the host's working roles.
        variation: coefficient of variation of a piece of work's time.
        cold: further factor on a draft server's 1st, 2nd, ... pass behind a wait.
        gauge: time of the workers' fixed piece of work when these costs were measured.
        processors: number of roles that can work at once; more of them share.
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

    def slowed(self, working: int) -> float:
        """Factor for ``working`` roles: as measured, at least ``working`` over ``processors``.

        >>> nothing = TimeTable({1: 0.0})
        >>> costs = HostTimes(nothing, nothing, 0.0, nothing, Factor({1: 1.0, 2: 1.2}), 0.0,
        ...                   Factor({}), processors=2)
        >>> costs.slowed(1), costs.slowed(2), costs.slowed(3)
        (1.0, 1.2, 1.5)
        """
        return max(self.together(working), working / self.processors)

    def draw(self, rng: np.random.Generator) -> float:
        """Draw a factor of mean 1 on a piece of work's time (lognormal)."""
        if not self.variation:
            return 1.0
        variance = log1p(self.variation**2)
        return rng.lognormal(-variance / 2, sqrt(variance))
