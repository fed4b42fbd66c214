"""How a pass over quantized weights grows with its rows: a law for every family of kernels.

A pass over one row reads the weights once, in the time m. Kernels for few rows (mat-vec kernels, up
to ``last`` rows) unpack the weights for every row on the vector units; those behind them unpack
once for many rows. Over n rows a pass takes

    max(m (1 + REUSE (n - 1)), READING m + n o / v)      up to ``last`` rows
    m flat (1 + per_row max(0, n - 16))                  beyond

where o are the operations of a row, and v is a ``share`` of the device's float32 peak. Where no
such peak is stated, o / v is ``ROW_SHARE`` m. Of a mixture m follows the experts that the rows
touch, and a row meets as many others as its expert has.

Here belongs the law; what passes read and compute is in ``service.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Annotated

from pydantic import Field

from treepipe.files.section import Count, Positive, Section
from treepipe.files.toml_file import read_toml, validated
from treepipe.physics.timing import FAR

REUSE, READING = 0.03, 0.9
"""Fitted to all curves together: what a further row costs where reading decides, and the part of
reading that unpacking does not hide."""
ROW_SHARE, UNRATED = 0.12, 0.7
"""The median device's unpacking of a row over its reading, and the uncertainty of taking it."""
FULL_TILE = 16
"""Rows up to which a matrix kernel's time is flat."""
ROWS = (*range(1, 10), 12, 16, 24, 32, 48, 64, 96, 128)
"""Rows at which the law is put into a table, which is linear between them."""


class KernelFamily(Section):
    """A family of kernels (``kernels.toml``)."""

    share: Positive = Field(description="of the float32 peak, at which rows are unpacked")
    last: Count = Field(description="most rows of the mat-vec kernel")
    flat: Positive = Field(description="a pass behind it, over one of one row")
    per_row: Annotated[float, Field(ge=0)] = Field(description="added for rows beyond 16")
    uncertainty: Positive = Field(description="relative")
    state_moves: Count = Field(3, description="of a further request's state, each way, in a pass")

    def times(self, reading_ms: float, row_ms: float | None, rows: int, met: float) -> float:
        """Return the milliseconds of a pass over ``rows`` that reads weights for ``reading_ms``.

        Args:
            row_ms: of a row's operations at the whole float32 peak; None: that is not known.
            met: rows that a weight meets, ``rows`` where it is no expert's.

        >>> cuda = KERNELS["cuda"]
        >>> [round(cuda.times(6.4, 0.45, n, n), 2) for n in (1, 4, 8, 9)]
        [6.4, 9.85, 13.94, 7.94]
        """
        if rows == 1:
            return reading_ms
        if met > self.last:
            return reading_ms * self.flat * (1 + self.per_row * max(0.0, met - FULL_TILE))
        unpacking = ROW_SHARE * reading_ms if row_ms is None else row_ms / self.share
        return max(reading_ms * (1 + REUSE * (met - 1)), READING * reading_ms + rows * unpacking)


def filled(points: dict[int, float], law: Callable[[float, int], float]) -> dict[int, float]:
    """Add rows to measured times behind one row, where the next measured ones are far; the added
    take no more than these.

    Args:
        law: milliseconds by those of one row, and rows.

    >>> list(filled({1: 70.0, 512: 3150.0}, lambda ms, n: ms * (1 + n / 8)))[:4]
    [1, 2, 3, 4]
    """
    first, *others = sorted(points)
    near, most = (others[0], points[others[0]]) if others else (inf, inf)
    if first > 1 or near <= FAR:
        return points
    added = {n: min(most, law(points[1], n)) for n in ROWS if 1 < n < near}
    return dict(sorted({**added, **points}.items()))


def _read() -> dict[str, KernelFamily]:
    path = Path(__file__).with_suffix(".toml")
    return {name: validated(KernelFamily, each, path) for name, each in read_toml(path).items()}


KERNELS = _read()
"""Families by name."""
