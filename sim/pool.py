"""Pools of recorded draft positions: what the draft proposed and where the target's token was.

A draft that reads the target's states (an EAGLE head) answers differently the further back the
last verified token is; its pools hold an answer for every depth. Which positions are drawn is
decided in ``blocks.py``; pools that nobody recorded are made in ``made_pools.py``.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treepipe.core.errors import UserError

SCHEMA = "treepipe.acceptance/1"
Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]
FURTHER = 16
"""Depths beyond the recorded ones that a loss is continued to."""


class Table(NamedTuple):
    """Answers for successive positions of a text.

    Attributes:
        vectors: [positions, candidates] log probabilities, descending.
        ranks: of the target's token; ``candidates`` if it is not among them.
    """

    vectors: Floats
    ranks: Sequence[int]


class Prompt(NamedTuple):
    """A recorded text: answers when all before a position is verified, and when the last 1, 2, ...
    tokens are not (none if that makes no difference to the draft)."""

    known: Table
    guessed: Sequence[Table] = ()


class Pool:
    """Positions in recorded order at every depth, and off-path vectors by steps off the path.

    A token's id is its rank where everything before it is verified, so that a path means the same
    at every depth.

    Attributes:
        lengths: positions per prompt.
        ranks: the target's token per position, as an id; ``candidates`` if it is not among them.
        depths: how many depths beyond 0 are answered differently.
    """

    def __init__(self, prompts: Sequence[Prompt], off_path: Mapping[int, Floats]) -> None:
        """Args: ``off_path``: [n, candidates] per step off the path, the last for all beyond.
        Prompts have equally many depths."""
        self.lengths = [len(prompt.known.ranks) for prompt in prompts]
        self.ranks: list[int] = [int(rank) for prompt in prompts for rank in prompt.known.ranks]
        self.depths = len(prompts[0].guessed)
        steps = sorted(off_path)
        tables = [prompt.known.vectors for prompt in prompts]
        tables += [prompt.guessed[d].vectors for d in range(self.depths) for prompt in prompts]
        tables += [off_path[step] for step in steps]
        self.vectors = np.ascontiguousarray(np.concatenate(tables))
        self.candidates = int(self.vectors.shape[1])
        self._leading: dict[int, Floats] = {}
        self._ids: Tokens | None = self._swapped(prompts) if self.depths else None
        first = len(self.ranks) * (1 + self.depths)
        self._off: list[tuple[int, int]] = []
        for step in steps:
            self._off.append((first, len(off_path[step])))
            first += len(off_path[step])
        # The same few shapes are answered again and again.
        self._tiled: dict[tuple[int, int], Tokens] = {}

    def __len__(self) -> int:
        return len(self.ranks)

    def sharpened(self, power: float) -> Pool:
        """This pool with all probabilities to this power, normalized over the candidates.

        A draft may guess right more often than it is sure; a power makes it as sure as it is right,
        without changing what it proposes (temperature scaling: Guo et al. 2017, "On calibration of
        modern neural networks").
        """
        if power == 1.0:
            return self
        pool = copy.copy(self)
        scaled = self.vectors * power
        pool.vectors = scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)
        pool._leading = {}
        return pool

    def row(self, position: int, depth: int) -> int:
        """The row that answers for a position when the last ``depth`` tokens are not verified."""
        return position + len(self.ranks) * min(depth, self.depths)

    def off_path_row(self, steps: int, key: int) -> int:
        """The row that answers ``steps`` (>= 1) off the path for a path with this hash."""
        first, count = self._off[min(steps, len(self._off)) - 1]
        return first + key % count

    def leading(self, rows: Sequence[int], count: int) -> Floats:
        """[rows, count] log probabilities of the first ``count`` candidates."""
        table = self._leading.get(count)
        if table is None:
            table = self._leading[count] = np.ascontiguousarray(self.vectors[:, :count])
        return table.take(rows, axis=0) if len(rows) > 1 else table[rows[0] : rows[0] + 1]

    def tokens(self, rows: Sequence[int], count: int) -> Tokens:
        """[rows, count] ids of the first ``count`` candidates; not to be written to."""
        if self._ids is not None:
            return self._ids[np.asarray(rows), :count]
        tiled = self._tiled.get((len(rows), count))
        if tiled is None:
            tiled = np.tile(np.arange(count), (len(rows), 1))
            tiled.flags.writeable = False
            self._tiled[len(rows), count] = tiled
        return tiled

    def hit_ratio(self, top_k: int) -> float:
        """Share of positions whose target token is among the first ``top_k`` candidates."""
        return sum(rank < top_k for rank in self.ranks) / len(self.ranks)

    def _swapped(self, prompts: Sequence[Prompt]) -> Tokens:
        """Ids per row: ranks, but the target's token keeps the id it has at depth 0."""
        width = self.candidates
        ids = np.tile(np.arange(width), (len(self.vectors), 1))
        row = len(self.ranks)
        for depth in range(self.depths):
            place = 0
            for prompt in prompts:
                for rank in prompt.guessed[depth].ranks:
                    token = self.ranks[place]
                    if token < width:
                        # Whatever stood there is another token; where it stood before, if at all.
                        ids[row, token] = rank if rank < width else width + 1
                    if rank < width:
                        ids[row, rank] = token
                    row, place = row + 1, place + 1
        return ids

    @classmethod
    def load(cls, path: Path, depth_loss: float = 0.0) -> Pool:
        """Raises ``UserError`` if the file is missing or no pool.

        Args: ``depth_loss``: as ``from_content`` takes it.
        """
        try:
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            content = json.loads(raw.decode("utf-8"))
            if content.get("schema") != SCHEMA:
                raise ValueError(f"key schema = {content.get('schema')!r}, not {SCHEMA!r}")
            return cls.from_content(content, depth_loss)
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such acceptance pool") from None
        except KeyError as missing:
            raise UserError(
                f"{path}: is not an acceptance pool: key {missing} is missing"
            ) from None
        except (OSError, ValueError, TypeError, AttributeError, EOFError) as error:
            raise UserError(f"{path}: is not an acceptance pool: {error}") from None

    @classmethod
    def from_content(cls, content: Mapping[str, Any], depth_loss: float = 0.0) -> Pool:
        """Reads the content of a pool file (see ``docs/files.md``).

        Args:
            depth_loss: share of the positions that each unverified token beyond the recorded
                depths costs the draft.

        Raises ``ValueError`` or ``KeyError`` naming the key that is wrong.
        """
        width = int(content["candidates"])
        prompts = [
            _prompt(entry, f"prompts.{index}", width)
            for index, entry in enumerate(content["prompts"])
        ]
        if not prompts:
            raise ValueError("key prompts is empty")
        if len({len(prompt.guessed) for prompt in prompts}) > 1:
            raise ValueError("key prompts: all need equally many guessed depths")
        if depth_loss:
            if not prompts[0].guessed:
                raise ValueError("key prompts has no guessed depths, so depth_loss means nothing")
            prompts = _beyond(prompts, depth_loss)
        off_path = {
            int(steps): _vectors(rows, f"off_path.{steps}", width)
            for steps, rows in content["off_path"].items()
            if rows
        }
        if sorted(off_path) != list(range(1, len(off_path) + 1)) or not off_path:
            raise ValueError("key off_path needs vectors for 1, 2, ... steps without a gap")
        return cls(prompts, off_path)


def _prompt(entry: Mapping[str, Any], key: str, width: int) -> Prompt:
    known = _table(entry, key, width)
    guessed = [
        _table(each, f"{key}.guessed.{depth}", width)
        for depth, each in enumerate(entry.get("guessed", ()))
    ]
    if any(len(each.ranks) != len(known.ranks) for each in guessed):
        raise ValueError(f"key {key}.guessed: every depth needs as many positions as the prompt")
    return Prompt(known, guessed)


def _beyond(prompts: Sequence[Prompt], loss: float) -> list[Prompt]:
    """Prompts with ``FURTHER`` depths more than were recorded.

    At each, a share ``loss`` of the positions that are left is lost, and stays so deeper down: the
    target's token gets the rank that it has at some position where the first candidate fails (if
    that is worse). The draft notices nothing, its log probabilities stay.
    """
    rng = np.random.default_rng(0)
    failing = [rank for prompt in prompts for rank in prompt.guessed[-1].ranks if rank]
    found = []
    for prompt in prompts:
        vectors, ranks = prompt.guessed[-1]
        lost_at = rng.geometric(loss, len(ranks))
        worse = np.maximum(ranks, rng.choice(failing or [0], len(ranks)))
        deeper = [
            Table(vectors, np.where(lost_at <= depth, worse, ranks).tolist())
            for depth in range(1, FURTHER + 1)
        ]
        found.append(Prompt(prompt.known, (*prompt.guessed, *deeper)))
    return found


def _table(entry: Mapping[str, Any], key: str, width: int) -> Table:
    vectors = _vectors(entry["log_probs"], f"{key}.log_probs", width)
    ranks = entry["ranks"]
    if len(ranks) != len(vectors):
        raise ValueError(f"key {key} needs as many ranks as log_probs")
    if not all(isinstance(rank, int) and 0 <= rank <= width for rank in ranks):
        raise ValueError(f"key {key}.ranks: a rank is a whole number from 0 to {width}")
    return Table(vectors, ranks)


def _vectors(rows: Any, key: str, width: int) -> Floats:
    """[n, width] log probabilities, checked."""
    try:
        vectors = np.array(rows, dtype=np.float64)
    except (ValueError, TypeError):
        vectors = np.zeros(0)
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise ValueError(f"key {key} needs rows of {width} numbers (key candidates)")
    if not np.isfinite(vectors).all() or (vectors > 0).any() or (np.diff(vectors) > 0).any():
        raise ValueError(f"key {key}: log probabilities are finite, at most 0, and descend")
    return vectors
