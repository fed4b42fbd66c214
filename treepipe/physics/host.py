"""What a real host adds to a device's own times: messages, wake-ups, decisions, and company.

A device profile is measured with one process alone and passes back to back. In a run that is not
emulated, a role's process also packs and unpacks messages, is woken, decides, and shares memory
bandwidth and processors with the other roles of its host. ``treepipe calibrate run`` measures that
in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log1p, sqrt

import numpy as np

from treepipe.physics.timing import TimeTable


class Factor:
    """A factor against a count (rows, roles at work): piecewise linear, its ends hold beyond.

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
        """A device's table with the factor on it, at the knots of both."""
        return table.times(self, self.points) if self.points != {1: 1.0} else table


@dataclass(frozen=True, slots=True)
class HostTimes:
    """The costs of a role's process on its host, in milliseconds.

    Attributes:
        send, receive: of a message, against its bytes as links count them; they keep the role busy.
        wake: from a message's arrival until a role that slept goes on.
        desk: the draft server's decisions, against the rows that came back or were drafted.
        together: a factor on all work while so many of the host's roles are at it.
        variation: the standard deviation of a piece of work's time over its mean.
        cold: a further factor on a draft server's 1st, 2nd, ... pass behind a wait.
        gauge: of the workers' fixed piece of work, when all of this was measured.
        processors: roles that can be at work at once; more of them share.
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
        """The factor on all work while so many roles are at it: what was measured, which is rare
        with many of them, but no less than their processors allow.

        >>> nothing = TimeTable({1: 0.0})
        >>> costs = HostTimes(nothing, nothing, 0.0, nothing, Factor({1: 1.0, 2: 1.2}), 0.0,
        ...                   Factor({}), processors=2)
        >>> costs.slowed(1), costs.slowed(2), costs.slowed(3)
        (1.0, 1.2, 1.5)
        """
        return max(self.together(working), working / self.processors)

    def draw(self, rng: np.random.Generator) -> float:
        """A factor of mean 1 on a piece of work's time (lognormal)."""
        if not self.variation:
            return 1.0
        variance = log1p(self.variation**2)
        return rng.lognormal(-variance / 2, sqrt(variance))
