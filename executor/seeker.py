"""Looking for a host that does not answer, now and then, until it does.

Law of this file: nobody waits for the search; a host that is found too late is told so.
"""

from __future__ import annotations

import threading

from treepipe.core.errors import RunError, UserError
from treepipe.executor.keys import KeyPair
from treepipe.executor.remote import RemoteHost

SEEK_S = 0.5
"""Between two attempts, each of which takes as long as a host may to answer."""


class Seeker:
    """A thread that asks one host for a session, again and again."""

    def __init__(self, address: str, key: KeyPair | None) -> None:
        self._address, self._key = address, key
        self._found: RemoteHost | None = None
        self._guard, self._over = threading.Lock(), threading.Event()
        threading.Thread(target=self._seek, name=f"seeks {address}", daemon=True).start()

    def take(self) -> RemoteHost | None:
        """The session, once there is one; it is the caller's then."""
        with self._guard:
            found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Look no more; returns at once."""
        self._over.set()
        found = self.take()
        if found is not None:
            found.close()

    def _seek(self) -> None:
        while not self._over.wait(SEEK_S):
            try:
                found = RemoteHost(self._address, self._key)
            except (RunError, UserError):
                continue
            with self._guard:
                if not self._over.is_set():
                    self._found = found
                    return
            found.close()
