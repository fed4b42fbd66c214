"""Rows in a table: the time between tokens predicted and measured, and what errors are due to."""

from __future__ import annotations

from collections.abc import Mapping

from treepipe.results.sheet import Column, Sheet
from treepipe.validation.judgement import Row

TIMES = (
    Column("predicted", "ms"),
    Column("±", "ms"),
    Column("measured", "ms"),
    Column("error", shown="+.1%"),
    Column("of it durations", shown="+.1%"),
)


def times(row: Row) -> tuple[float | None, ...]:
    """Cells of the columns ``TIMES``."""
    value = row.predicted
    half = None if value.high is None else value.high - value.mean
    return value.mean, half, row.measured, row.error, row.duration_error


def row_sheet(name: str, title: str, rows: Mapping[str, Row]) -> Sheet:
    """A line per row: times, tokens per round as run, the draft's utilization, and the text."""
    further = [
        Column("tokens per round", shown=".2f"),
        Column("draft utilization predicted", shown=".2f"),
        Column("measured", shown=".2f"),
        Column("text = plain greedy"),
    ]
    sheet = Sheet(name, title, [Column("schedule"), *TIMES, *further])
    for label, row in rows.items():
        shares = row.predicted_utilization["draft0"], row.utilization["draft0"]
        sheet.add(label, *times(row), row.tokens_per_round, *shares, row.lossless)
    return sheet
