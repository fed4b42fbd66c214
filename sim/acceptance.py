"""Where a simulated draft's candidates and a simulated target's tokens come from.

Law of this file: the same token path always gets the same answer, whatever was asked before (as
from a language model; "Same path, same candidates"), and a draft off the true path answers from
a pool of its own ("Off the path, less sure").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from treepipe.messages import NO_PARENT
from treepipe.protocol import Drafted, DraftPass
from treepipe.recording import Recorder, Recording
from treepipe.sim.pool import Pool
from treepipe.trace import Trace

NEVER = -1
"""A token that no draft proposes: the target's answer off the true path, where none is needed."""


DRAWN_AT_ONCE = 64
"""Blocks of a text; one by one they take several times as long."""


class Oracle(Protocol):
    """Answers for one request. ``truth`` is the text: the target's greedy continuation."""

    def truth(self, index: int) -> int:
        """The text's token at ``index`` (0: the first new token)."""

    def rewrite(self, index: int, token: int) -> None:
        """A lossy rule took another token there."""

    def draft(self, order: DraftPass) -> Drafted:
        """The draft's answer to one pass."""


class AcceptanceSource(Protocol):
    """Makes the oracles of a simulation."""

    def open(self, session: int, prompt_tokens: int) -> Oracle: ...


class PoolSource:
    """Positions resampled in blocks from a recorded (or made) pool."""

    def __init__(self, pool: Pool, block: int, seed: int) -> None:
        """Args: ``block``: consecutive positions drawn together, so that correlation survives."""
        self._pool, self._block, self._seed = pool, block, seed

    def open(self, session: int, prompt_tokens: int) -> Oracle:
        return PoolOracle(self._pool, self._block, self._seed, session, prompt_tokens)


class PoolOracle:
    """Tokens are ranks of the draft's candidates; a rank beyond them is a token it never names."""

    def __init__(self, pool: Pool, block: int, seed: int, session: int, prompt_tokens: int) -> None:
        self._pool, self._block, self._prompt = pool, block, prompt_tokens
        self._rng = np.random.default_rng([seed, session])
        self._salt = int(self._rng.integers(2**63))
        self._records: list[int] = []
        self._truth: list[int] = []
        self._read = 0
        # Per scratch node: index of its token in the text, steps off the true path, path key.
        self._scratch: list[tuple[int, int, int]] = []
        # All ranks per row, by shape: the same few shapes are answered again and again.
        self._ranks: dict[tuple[int, int], npt.NDArray[np.intp]] = {}

    def truth(self, index: int) -> int:
        while index >= len(self._truth):
            self._draw_blocks()
        return self._truth[index]

    def rewrite(self, index: int, token: int) -> None:
        self._truth[index] = token

    def draft(self, order: DraftPass) -> Drafted:
        if order.reset:
            self._scratch.clear()
        elif order.keep is not None:
            self._scratch = [self._scratch[slot] for slot in order.keep[order.accepted :]]
            self._read += order.accepted
        if order.catch_up:
            self._read += len(order.catch_up)
            rows = [self._record(self._read - self._prompt)]
        else:
            rows = self._rows(order.tokens, order.parents)
        count = min(order.top_k, self._pool.candidates)
        tokens = self._ranks.get((len(rows), count))
        if tokens is None:
            tokens = np.tile(np.arange(count), (len(rows), 1))
            tokens.flags.writeable = False
            self._ranks[len(rows), count] = tokens
        return Drafted(order.ticket, tokens, self._pool.leading(rows, count))

    def _record(self, index: int) -> int:
        self.truth(index)
        return self._records[index]

    def _rows(self, tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
        """Rows of the pool that answer for new scratch nodes."""
        scratch, pool = self._scratch, self._pool
        root, rows = (self._read - self._prompt - 1, 0, self._salt), list[int]()
        for token, parent in zip(tokens, parents, strict=True):
            index, off, key = root if parent == NO_PARENT else scratch[parent]
            index += 1
            if not off:
                if token == self.truth(index):
                    scratch.append((index, 0, key))
                    rows.append(self._record(index + 1))
                    continue
                key = _mix(key, index)
            off, key = off + 1, _mix(key, token)
            scratch.append((index, off, key))
            rows.append(pool.off_path_row(off, key))
        return rows

    def _draw_blocks(self) -> None:
        for first, stop in self._pool.blocks(self._rng, self._block, DRAWN_AT_ONCE):
            self._records += range(first, stop)
            self._truth += self._pool.ranks[first:stop]


def _mix(key: int, value: int) -> int:
    """A 64-bit hash of a path from the hash of its prefix (the finalizer of SplitMix64)."""
    mixed = (key ^ (value + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return mixed ^ (mixed >> 31)


class RecordingSource:
    """Listens to another source, so that a simulated run can be replayed."""

    def __init__(self, inner: AcceptanceSource) -> None:
        self._inner, self._recorder = inner, Recorder()

    def open(self, session: int, prompt_tokens: int) -> Oracle:
        return RecordingOracle(self._inner.open(session, prompt_tokens), self._recorder, session)

    def recording(self, trace: Trace) -> Recording:
        """What was heard in the run of this trace."""
        for request in trace.requests:
            self._recorder.finished(request.session, request.prompt_tokens, request.tokens)
        return self._recorder.recording


class RecordingOracle:
    """Another oracle's answers, noted on the way."""

    def __init__(self, inner: Oracle, recorder: Recorder, session: int) -> None:
        self._inner, self._recorder, self._session = inner, recorder, session
        self.truth, self.rewrite = inner.truth, inner.rewrite

    def draft(self, order: DraftPass) -> Drafted:
        drafted = self._inner.draft(order)
        self._recorder.drafted(self._session, order, drafted)
        return drafted
