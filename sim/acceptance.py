"""Acceptance sources: a simulated draft's candidates and a simulated target's tokens.

Invariant: the same token path always gets the same answer, whatever the earlier questions (as from
a language model; "Same path, same candidates"); only a pool of a draft that reads the target's
states also answers by the verified part of the path. A draft off the true path answers from a pool
of its own ("Off the path, less sure").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import reduce
from math import exp
from typing import Protocol

import numpy as np

from treepipe.core.messages import NO_TOKEN, Segment
from treepipe.core.protocol import Drafted, DraftPass, Schedule
from treepipe.core.requests import numbered
from treepipe.core.scratch import Scratch, ScratchNode
from treepipe.results.trace import Trace
from treepipe.sim.blocks import Blocks, blocks_of
from treepipe.sim.pool import Pool

DRAWN_AT_ONCE = 64
"""Blocks of a text drawn at once; one by one they take several times as long."""


class Oracle(Protocol):
    """Answers for one request along its text, the target's greedy continuation.

    Attributes:
        whole: drafted chains are judged at once, by ``kept``.
    """

    whole: bool

    def truth(self, index: int) -> int:
        """Return the text's token at ``index`` (0: the first new token)."""

    def rewrite(self, index: int, token: int) -> None:
        """Replace the text's token at ``index`` with the token that a lossy rule took."""

    def kept(self, first: int, index: int) -> bool:
        """Whether a chain drafted from the text's token at ``first`` is kept beyond ``index``."""

    def draft(self, order: DraftPass) -> Drafted:
        pass


def next_tokens(
    oracle: Oracle, schedule: Schedule, segment: Segment, prompt_tokens: int, never_misses: bool
) -> tuple[int, ...]:
    """Return the target's token at each row: the text's next one on the true path.

    Args:
        never_misses: the rule takes a child wherever there is one (relaxed_best).
    """
    truth = oracle.truth
    if segment.committed:
        if not segment.asked:
            return ()
        index = segment.positions[-1] - prompt_tokens + 1
        return (truth(index) if index >= 0 else NO_TOKEN,)
    answers, text = [], tuple[int, ...]()
    for offer in schedule.offers(segment, children=never_misses or oracle.whole):
        answer = NO_TOKEN
        if offer is not None:
            path = offer.path
            index = offer.position - prompt_tokens + 1
            while len(text) < len(path):  # the tokens below the root, as far as they matter
                text += (truth(index - len(path) + len(text)),)
            if path == text[: len(path)]:
                answer = truth(index)
                if oracle.whole:
                    if offer.children and not oracle.kept(index - len(path), index):
                        answer = int(answer == 0)  # any other name than the drafted token's
                        oracle.rewrite(index, answer)
                elif offer.children and answer not in offer.children:
                    answer = offer.children[0]
                    oracle.rewrite(index, answer)
                    text = ()
        answers.append(answer)
    return tuple(answers)


class AcceptanceSource(Protocol):
    """The maker of a simulation's oracles."""

    def open(self, session: int, prompt_tokens: int, levels: int = 0) -> Oracle:
        """Begin a request, or begin it again with the same text, under another session's number.

        Args:
            levels: levels of a block draft's block; 0: it is none.
        """


class PoolSource:
    """Texts, or blocks of them, drawn from a recorded (or made) pool."""

    def __init__(
        self,
        pool: Pool,
        block: int | None,
        seed: int,
        hit_ratio: Mapping[int, float] | None = None,
        *,
        stated: Mapping[int, float] | None = None,
        whole: bool = False,
    ) -> None:
        """Draw blocks from a pool; ``block`` and the hit ratios are as for ``blocks_of``.

        Args:
            whole: chains are judged at once; the pool has the ratios that this takes.
        """
        self._pool, self._seed, self._whole = pool, seed, whole
        self._blocks = blocks_of(pool, block, hit_ratio, stated)

    def reseeded(self, seed: int, *, resampled: bool = False) -> PoolSource:
        """Return the same pool and blocks with another seed; ``resampled`` draws from the seed's
        own resample of the pool's recorded prompts."""
        other = copy(self)
        other._seed = seed
        if resampled and self._pool.made is not None:
            other._blocks = self._blocks.resampled(np.random.default_rng([seed, 0]))
        return other

    @property
    def constant(self) -> bool:
        """Whether every seed gives the same answers."""
        return self._pool.constant and not self._whole

    def open(self, session: int, prompt_tokens: int, levels: int = 0) -> Oracle:
        rng = np.random.default_rng([self._seed, numbered(session)[1]])  # sessions begin at 1
        made = _oracle_of(levels)(self._pool, self._blocks, rng, prompt_tokens, levels)
        made.whole = self._whole
        return made

    def redrawn(self, trace: Trace) -> float:
        """Return the ratio of a run's texts to the recorded ones (``Trace.redrawn``)."""
        if self._pool.made is None or self._blocks.is_tilted:
            return 0.0
        recorded = len(self._pool.lengths)
        length = len(self._pool) / recorded
        return sum(max(1.0, len(each.tokens) / length) for each in trace.requests) / recorded


def _oracle_of(levels: int) -> type[PoolOracle]:
    return BlockOracle if levels else PoolOracle


class PoolOracle:
    """An oracle whose tokens are ranks of the draft's candidates; it names no rank beyond them.

    Where chains are judged at once, the draft always proposes the text's token, and the judgement
    renames it where it is not kept. Given a text of the target's distribution, block verification
    keeps i tokens or more of a chain with probability min(1, q / p of the first token, of the first
    two, ..., of the first i), whatever follows: so one number per chain decides
    (``tests/sim/test_judged_at_once.py``).
    """

    whole = False

    def __init__(
        self,
        pool: Pool,
        blocks: Blocks,
        rng: np.random.Generator,
        prompt_tokens: int,
        levels: int = 0,
    ) -> None:
        self._levels = levels
        self._pool, self._blocks, self._prompt, self._rng = pool, blocks, prompt_tokens, rng
        self._salt = int(self._rng.integers(2**63))
        self._records: list[int] = []
        self._truth: list[int] = []
        # Per scratch node: index of its token in the text, steps off the true path, path key.
        self._scratch = Scratch[tuple[int, int, int]]()

    def truth(self, index: int) -> int:
        while index >= len(self._truth):
            for first, stop in self._blocks.draw(self._rng, DRAWN_AT_ONCE):
                self._records += range(first, stop)
                self._truth += self._pool.ranks[first:stop]
        return self._truth[index]

    def rewrite(self, index: int, token: int) -> None:
        self._truth[index] = token

    def draft(self, order: DraftPass) -> Drafted:
        added = self._scratch.follow(order).added
        if not order.top_k:
            return Drafted(order.ticket, (), ())
        rows = self._rows(added) if added else [self._row(self._scratch.read - self._prompt)]
        count = min(order.top_k, self._pool.candidates)
        pool = self._pool
        tokens = pool.tokens(rows, count)
        if self.whole:
            tokens = tokens.copy()
            nodes = [node.payload for node in added] or [(self._newest - 1, 0, 0)]
            for row, (index, off, _) in enumerate(nodes):
                if not off:
                    tokens[row, 0] = self.truth(index + 1)
        return Drafted(order.ticket, tokens, pool.leading(rows, count))

    def kept(self, first: int, index: int) -> bool:
        ratios, total, least = self._pool.log_ratios, 0.0, 0.0
        assert ratios is not None  # else chains are not judged at once
        for depth, at in enumerate(range(first, index + 1)):
            total += ratios[self._pool.row(self._records[at], depth)]
            least = min(least, total)
        return _mix(self._salt, ~first) / 2**64 < exp(least)

    @property
    def _newest(self) -> int:
        """Place in the text behind the newest committed token."""
        return self._scratch.read - self._prompt

    def _row(self, index: int) -> int:
        """Return the row for the text's token at ``index``, by the unverified tokens before it."""
        self.truth(index)
        return self._pool.row(self._records[index], index + self._prompt - self._scratch.verified)

    def _rows(self, added: list[ScratchNode[tuple[int, int, int]]]) -> list[int]:
        off_path, rows = self._pool.off_path_rows, list[int]()
        beyond = len(off_path) - 1
        root = self._scratch.read - self._prompt - 1, 0, self._salt
        for node in added:
            token, parent = node.token, node.parent
            index, off, key = root if parent is None else parent.payload
            index += 1
            if not off:
                if token == self.truth(index):
                    node.payload = index, 0, key
                    rows.append(self._row(index + 1))
                    continue
                key = _mix(key, index)
            first, count = off_path[off if off < beyond else beyond]
            key = _mix(key, token)
            node.payload = index, off + 1, key
            rows.append(first + key % count)
        return rows


class BlockOracle(PoolOracle):
    """An oracle of a block draft, whose candidates are the same on every path.

    They depend on the number of tokens behind the newest committed one, and there are none below
    the block.
    """

    def draft(self, order: DraftPass) -> Drafted:
        drafted, asked = super().draft(order), self._scratch.nodes[-len(order.tokens) :]
        depths = [node.payload[0] + 1 - self._newest for node in asked] if order.tokens else [0]
        if max(depths) < self._levels or not order.top_k:
            return drafted
        log_probs = np.asarray(drafted.log_probs).copy()
        log_probs[np.asarray(depths) >= self._levels] = -np.inf
        return Drafted(order.ticket, drafted.tokens, log_probs)

    def _row(self, index: int) -> int:
        self.truth(index)
        return self._pool.row(self._records[index], index - self._newest)

    def _rows(self, added: list[ScratchNode[tuple[int, int, int]]]) -> list[int]:
        rows = list[int]()
        for node in added:
            above = self._newest - 1 if node.parent is None else node.parent.payload[0]
            node.payload = above + 1, 0, 0
            rows.append(self._row(above + 2))
        return rows


class AgreeingOracle:
    """A draft's draft: its one candidate is that of the draft above with a given probability, drawn
    for each token path by itself, else a token that no draft above names."""

    def __init__(
        self,
        above: Oracle | AgreeingOracle,
        agreement: float,
        prompt_tokens: int,
        seeds: Sequence[int],
    ) -> None:
        """Draw by ``seeds``: those of the run, the request and the level."""
        self._above, self._agreement, self._prompt = above, agreement, prompt_tokens
        self._salt = reduce(_mix, seeds, 0)
        self._scratch = Scratch[None]()

    def truth(self, index: int) -> int:
        return self._above.truth(index)

    def draft(self, order: DraftPass) -> Drafted:
        drafted, paths = self._above.draft(order), self._scratch.follow(order).asked
        firsts = [int(row[0]) for row in drafted.tokens]
        tokens = [[self._token(*each)] for each in zip(paths, firsts, strict=True)]
        return Drafted(order.ticket, tokens, [row[:1] for row in drafted.log_probs])

    def _token(self, path: tuple[int, ...], above: int) -> int:
        first = self._scratch.read - self._prompt
        along = 0
        while along < len(path) and path[along] == self.truth(first + along):
            along += 1
        key = reduce(_mix, path[along:], _mix(self._salt, self._scratch.read + along))
        return above if key / 2**64 < self._agreement else min(above, NO_TOKEN) - 1


def _mix(key: int, value: int) -> int:
    """Compute a 64-bit hash of a path from the hash of its prefix (the finalizer of SplitMix64)."""
    mixed = (key ^ (value + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return mixed ^ (mixed >> 31)
