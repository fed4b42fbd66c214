"""Pools of recorded draft positions: the draft's proposals and the rank of the target's token.

A draft that reads the target's states (an EAGLE head) answers differently the further back the
last verified token is; its pools hold an answer for every depth.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from treepipe.core.errors import UserError
from treepipe.profiles.pool_file import Made, PoolFile, Prompt, Table, ranks_of

Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]
FURTHER = 16
"""Number of depths beyond the recorded ones to which a loss is continued."""


class Pool:
    """Positions in recorded order at every depth, and off-path vectors by steps off the path.

    A token's id is its rank at depth 0, where everything before it is verified, so that a path
    means the same at every depth.

    Attributes:
        lengths: positions per prompt.
        ranks: the target's token per position, as an id; ``candidates`` if it is not among them.
        depths: number of depths beyond 0 with answers of their own.
        made: origin of the recording; None: not recorded.
        off_path_rows: (first, count) of the rows off the path: one step off, two, ..., the last for
            all beyond.
        ranks_by_depth: [1 + depths, positions] ranks of the target's token, by the number of
            unverified tokens before it.
        log_ratios: log(q / p) of the target's token per row; None: not recorded.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        off_path: Mapping[int, Floats],
        made: Made | None = None,
    ) -> None:
        """Make a pool of prompts with equally many depths.

        Args:
            off_path: [n, candidates] per step off the path, the last for all beyond.
        """
        self.made = made
        self.lengths = [len(prompt.known.ranks) for prompt in prompts]
        self.ranks: list[int] = [int(rank) for prompt in prompts for rank in prompt.known.ranks]
        self.depths = len(prompts[0].guessed)
        self.ranks_by_depth = ranks_of(prompts)
        steps = sorted(off_path)
        tables = [prompt.known.vectors for prompt in prompts]
        tables += [prompt.guessed[d].vectors for d in range(self.depths) for prompt in prompts]
        tables += [off_path[step] for step in steps]
        self.vectors = np.ascontiguousarray(np.concatenate(tables))
        self.candidates = int(self.vectors.shape[1])
        ratios = [prompt.known.log_ratios for prompt in prompts]
        ratios += [prompt.guessed[d].log_ratios for d in range(self.depths) for prompt in prompts]
        whole = all(map(len, ratios))
        self.log_ratios = np.concatenate(ratios) if whole else None
        self._leading: dict[int, Floats] = {}
        self._ids: Tokens | None = self._swapped() if self.depths else None
        first = len(self.ranks) * (1 + self.depths)
        self.off_path_rows: list[tuple[int, int]] = []
        for step in steps:
            self.off_path_rows.append((first, len(off_path[step])))
            first += len(off_path[step])
        # The same few shapes are answered again and again.
        self._tiled: dict[tuple[int, int], Tokens] = {}

    def __len__(self) -> int:
        return len(self.ranks)

    def sharpened(self, power: float, off_path: float | None = None) -> Pool:
        """Return this pool with all probabilities to this power, normalized over the candidates.

        A power makes a draft as sure as it is right, without changing its proposals (temperature
        scaling: Guo et al. 2017, "On calibration of modern neural networks").

        Args:
            off_path: the power of vectors off the path; None: the same.
        """
        off_path = power if off_path is None else off_path
        if power == off_path == 1.0:
            return self
        pool = copy.copy(self)
        powers = np.full((len(self.vectors), 1), power)
        powers[self.off_path_rows[0][0] :] = off_path
        scaled = self.vectors * powers
        pool.vectors = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
        pool._leading = {}
        return pool

    def row(self, position: int, depth: int) -> int:
        """Return the row of a position when the last ``depth`` tokens are not verified."""
        return position + len(self.ranks) * min(depth, self.depths)

    def leading(self, rows: Sequence[int], count: int) -> Floats:
        """Return [rows, count] log probabilities of the first ``count`` candidates."""
        table = self._leading.get(count)
        if table is None:
            table = self._leading[count] = np.ascontiguousarray(self.vectors[:, :count])
        return table.take(rows, axis=0) if len(rows) > 1 else table[rows[0] : rows[0] + 1]

    def tokens(self, rows: Sequence[int], count: int) -> Tokens:
        """Return [rows, count] ids of the first ``count`` candidates; read-only."""
        if self._ids is not None:
            return self._ids[np.asarray(rows), :count]
        tiled = self._tiled.get((len(rows), count))
        if tiled is None:
            tiled = np.tile(np.arange(count), (len(rows), 1))
            tiled.flags.writeable = False
            self._tiled[len(rows), count] = tiled
        return tiled

    @property
    def constant(self) -> bool:
        """Whether all positions answer alike, so that it does not matter which ones are drawn."""
        count = len(self.ranks)
        groups = [(count * depth, count) for depth in range(1 + self.depths)] + self.off_path_rows
        rows = (self.vectors[first : first + size] for first, size in groups)
        alike = all((each == each[0]).all() for each in rows)
        return alike and not np.ptp(self.ranks_by_depth, axis=1).any()

    def hit_ratio(self, top_k: int) -> float:
        """Return the share of positions whose target token is among the first ``top_k``."""
        return sum(rank < top_k for rank in self.ranks) / len(self.ranks)

    def _swapped(self) -> Tokens:
        """Return the ids per row: ranks, but the target's token keeps the id it has at depth 0."""
        width = self.candidates
        ids = np.tile(np.arange(width), (len(self.vectors), 1))
        row = len(self.ranks)
        for ranks in self.ranks_by_depth[1:].tolist():
            for token, rank in zip(self.ranks, ranks, strict=True):
                if token < width:
                    # The target's old slot gets the id of the slot that it takes, if any.
                    ids[row, token] = rank if rank < width else width + 1
                if rank < width:
                    ids[row, rank] = token
                row += 1
        return ids

    @classmethod
    def load(cls, path: Path, depth_loss: float = 0.0) -> Pool:
        """Read a pool.

        Args:
            depth_loss: share of the positions that each unverified token beyond the recorded depths
                costs the draft.

        Raises:
            UserError: the file is missing, is no pool, or has no depths to lose at.
        """
        file = PoolFile.load(path)
        if depth_loss and not file.prompts[0].guessed:
            raise UserError(
                f"{path}: key prompts has no guessed depths, so depth_loss means nothing"
            )
        return cls.of(file, depth_loss)

    @classmethod
    def of(cls, file: PoolFile, depth_loss: float = 0.0) -> Pool:
        """Make the pool of a file that is read already; else as ``load``."""
        prompts = _beyond(file.prompts, depth_loss) if depth_loss else file.prompts
        return cls(prompts, file.off_path, file.made)


def _beyond(prompts: Sequence[Prompt], loss: float) -> list[Prompt]:
    """Return prompts with ``FURTHER`` depths more than were recorded.

    At each, a share ``loss`` of the remaining positions is lost, and stays so deeper down: the
    target's token gets the rank that it has at some position where the first candidate fails (if
    that is worse). The draft's log probabilities stay.
    """
    rng = np.random.default_rng(0)
    failing = [rank for prompt in prompts for rank in prompt.guessed[-1].ranks if rank]
    found = []
    for prompt in prompts:
        vectors, ranks, _ = prompt.guessed[-1]
        lost_at = rng.geometric(loss, len(ranks))
        worse = np.maximum(ranks, rng.choice(failing or [0], len(ranks)))
        deeper = [
            Table(vectors, np.where(lost_at <= depth, worse, ranks).tolist())
            for depth in range(1, FURTHER + 1)
        ]
        found.append(Prompt(prompt.known, (*prompt.guessed, *deeper)))
    return found
