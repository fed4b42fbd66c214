"""File descriptors that a daemon keeps for its own work, whoever connects to its port.

Each connection of a stranger takes one. So the system's limit is raised at the start, and is held
below that by ``KEPT`` except while the daemon starts a process.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MOST, KEPT = 2**14, 2**9
"""Descriptors of a daemon, and how many of them connections never take: four for each process of a
session, the pairs with which one starts, and connections that come at that moment."""


class Descriptors:
    """The limit on the descriptors of this process."""

    def __init__(self) -> None:
        """Raise the limit as far as the system and ``MOST`` allow."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._hard = hard
        self._most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
        self._limit(self._most - min(KEPT, self._most // 2))

    @contextmanager
    def all_of_them(self) -> Iterator[None]:
        """Descriptors that are kept can be opened in here."""
        self._limit(self._most)
        try:
            yield
        finally:
            self._limit(self._most - min(KEPT, self._most // 2))

    def _limit(self, count: int) -> None:
        with suppress(OSError, ValueError):  # some systems allow less than they tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, self._hard))
