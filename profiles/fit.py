"""Measured tables (CSV) -> the tables of a profile, thinned to the knots that hold them.

Not needed at run time: ``python -m treepipe.profiles.fit layer_times.csv a100`` prints the
``[[layer]]`` and ``[[head]]`` tables of a device profile, ``... send_recv_times.csv a100_dgx:1`` a
link profile's ``transfer_ms``. The header (origin, memory, peak figures) is written by hand.

A knot is a measured point, never a smoothed one: between knots a profile interpolates, so a step
of the device (64 to 65 tokens) stays a step. The fewest knots are taken that keep every measured
point within ``TOLERANCE`` of the interpolation (``FAR_TOLERANCE`` beyond ``NEAR`` tokens).

Columns: ``device, model, dtype, tokens, part, milliseconds, source`` for layers, with ``part``
``decoder_layer_linear`` (no attention) or ``lm_head``; ``fabric, devices_per_node, bytes,
milliseconds, source`` for transfers.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from treepipe.core.errors import UserError
from treepipe.files.toml_file import toml_line, toml_text
from treepipe.physics.timing import TimeTable

TOLERANCE, FAR_TOLERANCE = 0.02, 0.05
"""Largest relative error of the interpolation at a measured point."""
NEAR = 256
"""Tokens up to which trees and segments are cut; beyond are prefills."""
NEAR_BYTES = 2**22
"""Bytes up to which a message of hidden states usually is."""
DIGITS = 6
"""Of a figure."""
PARTS = {"decoder_layer_linear": "layer", "lm_head": "head"}

Points = Mapping[int, float]


def choose_knots(points: Points, near: int = NEAR) -> dict[int, float]:
    """The fewest of the points between which all others are within tolerance.

    Args:
        points: size -> milliseconds > 0.
        near: sizes up to this have the smaller tolerance.

    A shortest path over points: an edge leads from one knot to the next if the line between them
    holds what lies between; of equally short paths the one with the least squared error wins.
    """
    sizes = np.array(sorted(points), dtype=float)
    times = np.array([points[int(size)] for size in sizes])
    tolerance = np.where(sizes <= near, TOLERANCE, FAR_TOLERANCE)
    best: list[tuple[int, float, int]] = [(0, 0.0, -1)]
    for end in range(1, len(sizes)):
        ways = []
        for start in range(end):
            error = _line_error(sizes, times, start, end)
            if (np.abs(error) <= tolerance[start + 1 : end]).all():
                knots, squares, _ = best[start]
                ways.append((knots + 1, squares + float(error @ error), start))
        best.append(min(ways))
    chosen, place = [], len(sizes) - 1
    while place >= 0:
        chosen.append(place)
        place = best[place][2]
    return {int(sizes[i]): float(times[i]) for i in reversed(chosen)}


def _line_error(
    sizes: npt.NDArray[np.float64], times: npt.NDArray[np.float64], start: int, end: int
) -> npt.NDArray[np.float64]:
    """Relative errors, at the points between two, of the line through these two."""
    inside = slice(start + 1, end)
    slope = (times[end] - times[start]) / (sizes[end] - sizes[start])
    line: npt.NDArray[np.float64] = times[start] + slope * (sizes[inside] - sizes[start])
    return line / times[inside] - 1.0


def errors(knots: Points, points: Points) -> list[float]:
    """Relative error at every measured point, without sign."""
    table = TimeTable(knots)
    return [abs(table(size) / time - 1.0) for size, time in points.items()]


def layer_tables(rows: list[dict[str, str]], device: str) -> str:
    """The TOML tables of one device. Raises ``UserError`` if there are no rows of it."""
    groups: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for row in rows:
        if row["device"] == device:
            key = (row["part"], row["model"], row["dtype"], row["source"])
            groups.setdefault(key, {})[int(row["tokens"])] = float(row["milliseconds"])
    if not groups:
        raise UserError(f"{device}: no such device; there are {_names(rows, 'device')}")
    return "\n".join(_layer_table(*key, points) for key, points in groups.items())


def _layer_table(part: str, model: str, dtype: str, source: str, points: Points) -> str:
    knots = choose_knots(points)
    found = errors(knots, points)
    fit = {
        "median": round(median(found), 4),
        "max": round(max(found), 4),
        "points": len(points),
    }
    table = {
        "model": model,
        "dtype": dtype,
        "attention": False if part == "decoder_layer_linear" else None,
        "source": source,
        "fit_error": fit,
        "ms": {0: knots},
    }
    return toml_text({PARTS[part]: [table]}, digits=DIGITS).lstrip("\n")


def transfer_table(rows: list[dict[str, str]], fabric: str, per_node: str) -> str:
    """The line ``transfer_ms`` of a link. Raises ``UserError`` if there are no rows of it."""
    points = {
        int(row["bytes"]): float(row["milliseconds"])
        for row in rows
        if (row["fabric"], row["devices_per_node"]) == (fabric, per_node)
    }
    if not points:
        raise UserError(f"{fabric}:{per_node}: no such fabric; there are {_names(rows, 'fabric')}")
    knots = choose_knots(points, near=NEAR_BYTES)
    found = errors(knots, points)
    note = f"# {len(points)} points: median error {median(found):.4f}, largest {max(found):.4f}"
    return f"{note}\n{toml_line('transfer_ms', knots, DIGITS)}"


def _names(rows: list[dict[str, str]], column: str) -> str:
    return ", ".join(sorted({row[column] for row in rows}))


def main(
    table: Annotated[Path, typer.Argument(help="CSV file with the columns named above.")],
    what: Annotated[str, typer.Argument(help="A device, or FABRIC:DEVICES_PER_NODE.")],
) -> None:
    """Print the tables of one device or link."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    fabric, colon, per_node = what.partition(":")
    print(transfer_table(rows, fabric, per_node) if colon else layer_tables(rows, what))


if __name__ == "__main__":
    typer.run(main)
