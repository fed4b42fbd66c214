"""Pools of recorded draft positions: what the draft proposed and where the target's token was.

A pool comes from a recording (``Pool.load``), or is made from one number (Bernoulli) or a few
(hit-ratio table). All three are the same thing afterwards.
"""

from __future__ import annotations

import itertools
import json
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
        lengths = [len(ranks) for _, ranks in prompts]
        self.ranks: list[int] = [int(rank) for _, ranks in prompts for rank in ranks]
        self._ends = np.cumsum(lengths)
        tables = [vectors for vectors, _ in prompts] + [off_path[k] for k in sorted(off_path)]
        self.vectors = np.ascontiguousarray(np.concatenate(tables))
        self.candidates = int(self.vectors.shape[1])
        first = len(self.ranks)
        self._off: list[tuple[int, int]] = []
        for steps in sorted(off_path):
            self._off.append((first, len(off_path[steps])))
            first += len(off_path[steps])

    def __len__(self) -> int:
        return len(self.ranks)

    def block(self, rng: np.random.Generator, length: int) -> tuple[int, int]:
        """A random run of at most ``length`` positions of one prompt, as (first, stop)."""
        first = int(rng.integers(len(self.ranks)))
        end = int(self._ends[np.searchsorted(self._ends, first, side="right")])
        return first, min(first + length, end)

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
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: is not an acceptance pool: {error}") from None

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Pool:
        """From the content of a pool file (see ``docs/profiles.md``)."""
        prompts = [(np.array(p["log_probs"]), p["ranks"]) for p in content["prompts"]]
        if not prompts or any(len(vectors) != len(ranks) for vectors, ranks in prompts):
            raise ValueError("key prompts needs as many log_probs as ranks, and at least one")
        off_path = {int(k): np.array(v) for k, v in content["off_path"].items() if v}
        if not off_path:
            raise ValueError("key off_path holds no vectors")
        return cls(prompts, off_path)


def bernoulli_pool(beta: float) -> Pool:
    """The target's token is the first candidate with probability ``beta``, else not among them.

    The draft's confidence is ``beta`` for the first candidate; the rest is shared evenly.
    """
    shares = np.full(CANDIDATES, (1 - beta) / (CANDIDATES - 1))
    shares[0] = beta
    hits = round(beta * RESOLUTION)
    ranks = [0] * hits + [CANDIDATES] * (RESOLUTION - hits)
    return _made_pool(shares, ranks)


def hit_ratio_pool(table: Mapping[int, float]) -> Pool:
    """From shares of positions whose target token is among the first k candidates.

    Between the given k the share grows linearly in log k; the draft's confidence in a rank is
    that rank's share. Raises ``UserError`` if shares fall with k or k < 1.
    """
    points = sorted(table.items())
    ks, values = [k for k, _ in points], [v for _, v in points]
    if ks[0] < 1 or any(b < a for a, b in itertools.pairwise(values)):
        raise UserError("key acceptance.table: k starts at 1 and shares must not fall with k")
    count = max(CANDIDATES, ks[-1])
    cumulative = np.interp(np.log(np.arange(1, count + 1)), np.log(ks), values)
    shares = np.diff(cumulative, prepend=0.0)
    edges = np.round(cumulative * RESOLUTION).astype(int)
    ranks = np.searchsorted(edges, np.arange(RESOLUTION), side="right")
    return _made_pool(shares, [int(rank) for rank in ranks])


def _made_pool(shares: npt.NDArray[np.float64], ranks: list[int]) -> Pool:
    ordered = np.sort(np.maximum(shares, 1e-6))[::-1]
    on_path = np.log(ordered / max(1.0, ordered.sum()))
    flat = on_path / OFF_PATH_FLATTENING
    flat -= np.log(np.exp(flat).sum())
    vectors = np.tile(on_path, (len(ranks), 1))
    return Pool([(vectors, ranks)], {1: flat[None, :]})
