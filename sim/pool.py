"""Pools of recorded draft positions: what the draft proposed and where the target's token was.

A pool comes from a recording (``Pool.load``), or is made from one number (Bernoulli) or a few
(hit-ratio table). All three are the same thing afterwards.
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from treepipe.errors import UserError

SCHEMA = "treepipe.acceptance/1"
CANDIDATES = 16
"""Candidates per position of a made pool."""
RESOLUTION = 2000
"""Positions of a made pool: shares are exact to half a thousandth."""
OFF_PATH_FLATTENING = 2.0
"""Made pools: off the path, log probabilities are divided by this and normalized again."""


class Pool:
    """Positions in recorded order, and off-path vectors by steps off the path.

    Attributes:
        vectors: [rows, candidates] log probabilities, descending; the positions' rows first,
            then the off-path rows.
        ranks: the target's token per position as a rank; ``candidates`` if it is not among them.
    """

    def __init__(
        self,
        prompts: Sequence[tuple[npt.NDArray[np.float64], Sequence[int]]],
        off_path: Mapping[int, npt.NDArray[np.float64]],
    ) -> None:
        """Args: ``prompts``: per prompt [positions, candidates] log probabilities and ranks;
        ``off_path``: [n, candidates] per step off the path, the last one for all beyond."""
        self._lengths = [len(ranks) for _, ranks in prompts]
        self.ranks: list[int] = [int(rank) for _, ranks in prompts for rank in ranks]
        self._ends = list(itertools.accumulate(self._lengths))
        self._choices: dict[int, list[int]] = {}
        tables = [vectors for vectors, _ in prompts] + [off_path[k] for k in sorted(off_path)]
        self.vectors = np.ascontiguousarray(np.concatenate(tables))
        self.candidates = int(self.vectors.shape[1])
        self._leading: dict[int, npt.NDArray[np.float64]] = {}
        first = len(self.ranks)
        self._off: list[tuple[int, int]] = []
        for steps in sorted(off_path):
            self._off.append((first, len(off_path[steps])))
            first += len(off_path[steps])

    def __len__(self) -> int:
        return len(self.ranks)

    def blocks(self, rng: np.random.Generator, length: int, count: int) -> list[tuple[int, int]]:
        """Random runs of at most ``length`` positions of one prompt, as (first, stop).

        Every position is equally likely: a run may begin up to ``length - 1`` before its prompt
        does, and only the part inside is taken. Starting inside alone would neglect beginnings.
        """
        ends = self._choices.get(length)
        if ends is None:
            starts = (inside + length - 1 for inside in self._lengths)
            ends = self._choices[length] = list(itertools.accumulate(starts))
        found = []
        for chosen in rng.integers(ends[-1], size=count).tolist():
            prompt = bisect_right(ends, chosen)
            end = self._ends[prompt]
            stop = end - ends[prompt] + chosen + length
            found.append((max(stop - length, end - self._lengths[prompt]), min(stop, end)))
        return found

    def leading(self, rows: Sequence[int], count: int) -> npt.NDArray[np.float64]:
        """[rows, count] log probabilities of the first ``count`` candidates."""
        table = self._leading.get(count)
        if table is None:
            table = self._leading[count] = np.ascontiguousarray(self.vectors[:, :count])
        return table.take(rows, axis=0) if len(rows) > 1 else table[rows[0] : rows[0] + 1]

    def off_path_row(self, steps: int, key: int) -> int:
        """The row that answers ``steps`` (>= 1) off the path for a path with this hash."""
        first, count = self._off[min(steps, len(self._off)) - 1]
        return first + key % count

    def hit_ratio(self, top_k: int) -> float:
        """Share of positions whose target token is among the first ``top_k`` candidates."""
        return sum(rank < top_k for rank in self.ranks) / len(self.ranks)

    @classmethod
    def load(cls, path: Path) -> Pool:
        """Raises ``UserError`` if the file is missing or no pool."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content.get("schema") != SCHEMA:
                raise ValueError(f"key schema = {content.get('schema')!r}, not {SCHEMA!r}")
            return cls.from_content(content)
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such acceptance pool") from None
        except KeyError as missing:
            raise UserError(
                f"{path}: is not an acceptance pool: key {missing} is missing"
            ) from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: is not an acceptance pool: {error}") from None

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Pool:
        """From the content of a pool file (see ``docs/profiles.md``).

        Raises ``ValueError`` or ``KeyError`` naming the key that is wrong.
        """
        width = int(content["candidates"])
        prompts = []
        for index, prompt in enumerate(content["prompts"]):
            key = f"prompts.{index}"
            vectors = _vectors(prompt["log_probs"], f"{key}.log_probs", width)
            ranks = prompt["ranks"]
            if len(ranks) != len(vectors):
                raise ValueError(f"key {key} needs as many ranks as log_probs")
            if not all(isinstance(rank, int) and 0 <= rank <= width for rank in ranks):
                raise ValueError(f"key {key}.ranks: a rank is a whole number from 0 to {width}")
            prompts.append((vectors, ranks))
        if not prompts:
            raise ValueError("key prompts is empty")
        off_path = {
            int(steps): _vectors(rows, f"off_path.{steps}", width)
            for steps, rows in content["off_path"].items()
            if rows
        }
        if sorted(off_path) != list(range(1, len(off_path) + 1)) or not off_path:
            raise ValueError("key off_path needs vectors for 1, 2, ... steps without a gap")
        return cls(prompts, off_path)


def _vectors(rows: Any, key: str, width: int) -> npt.NDArray[np.float64]:
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


def bernoulli_pool(
    beta: float, candidates: int = CANDIDATES, flattening: float = OFF_PATH_FLATTENING
) -> Pool:
    """The target's token is the first candidate with probability ``beta``, else not among them.

    The draft's confidence is ``beta`` for the first candidate; the rest is shared evenly.
    """
    shares = np.full(candidates, (1 - beta) / max(1, candidates - 1))
    shares[0] = beta
    hits = round(beta * RESOLUTION)
    ranks = [0] * hits + [candidates] * (RESOLUTION - hits)
    return _made_pool(shares, ranks, flattening)


def hit_ratio_pool(
    table: Mapping[int, float],
    candidates: int = CANDIDATES,
    flattening: float = OFF_PATH_FLATTENING,
) -> Pool:
    """From shares of positions whose target token is among the first k candidates.

    Between the given k the share grows linearly in log k, outside them it is constant (so that
    all of the first share falls on the first candidate); the draft's confidence in a rank is that
    rank's share. There are ``candidates`` of them, or as many as the largest k if that is more.
    Raises ``UserError`` if shares fall with k or k < 1.
    """
    points = sorted(table.items())
    ks, values = [k for k, _ in points], [v for _, v in points]
    if ks[0] < 1 or any(b < a for a, b in itertools.pairwise(values)):
        raise UserError("key acceptance.table: k starts at 1 and shares must not fall with k")
    count = max(candidates, ks[-1])
    cumulative = np.interp(np.log(np.arange(1, count + 1)), np.log(ks), values)
    shares = np.diff(cumulative, prepend=0.0)
    edges = np.round(cumulative * RESOLUTION).astype(int)
    ranks = np.searchsorted(edges, np.arange(RESOLUTION), side="right")
    return _made_pool(shares, [int(rank) for rank in ranks], flattening)


def _made_pool(shares: npt.NDArray[np.float64], ranks: list[int], flattening: float) -> Pool:
    """Every position is a prompt of its own, so that blocks of any length stay independent."""
    ordered = np.sort(np.maximum(shares, 1e-6))[::-1]
    on_path = np.log(ordered / max(1.0, ordered.sum()))
    flat = on_path / flattening
    flat -= np.log(np.exp(flat).sum())
    return Pool([(on_path[None, :], [rank]) for rank in ranks], {1: flat[None, :]})
