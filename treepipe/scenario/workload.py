"""The requests of a workload: lengths and arrival times, drawn or read from a CSV trace.

Invariant: the same seed gives the same requests for every schedule and in both worlds. Arrival
times, prompt lengths and output lengths each have their own stream of random numbers, so changing
one leaves the others unchanged, and a longer workload begins with the same requests.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from treepipe.core.errors import UserError
from treepipe.files.reading import read_text, reading
from treepipe.files.section import Section, Several
from treepipe.files.toml_file import validated
from treepipe.scenario.deployment import RequestSpec
from treepipe.scenario.distributions import ArrivalTrace, draw_lengths
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Replay, Workload

KEY = "key workload.arrivals.file"
MANY_TOKENS = 5_000_000
"""Simulated tokens beyond which a command warns that it will take long."""
MOST_TOKENS = 50_000_000
"""Most tokens of a run's prompts and texts together; a larger trace would fill the memory."""
TOKENS_PER_S = 10_000
"""Order of magnitude of a simulation's tokens per second on one core (``docs/figures.md``)."""


class TraceRow(Section):
    """A line of an arrival trace; the file's header names these columns, in any order."""

    arrival_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    prompt_tokens: Several
    new_tokens: Several


def run_seeds(seed: int, runs: int) -> list[int]:
    """Return one seed per run; the seeds are independent of each other."""
    children = np.random.SeedSequence(seed).spawn(runs)
    return [int(child.generate_state(1, np.uint64)[0]) for child in children]


def draw_requests(scenario: Scenario, seed: int) -> tuple[RequestSpec, ...]:
    """Draw the requests of a run of this seed; each prompt consists of token 0 only.

    Raises ``UserError``: the trace is wrong, or the requests are too large for memory.
    """
    workload, arrivals = scenario.workload, scenario.workload.arrivals
    if isinstance(arrivals, ArrivalTrace):
        return tuple(
            RequestSpec((0,) * row.prompt_tokens, row.new_tokens, arrival_ms=1e3 * row.arrival_s)
            for row in _trace_rows(workload, arrivals, scenario.path)
        )
    lengths, wanted = _lengths(workload, scenario.path, seed)
    asked: list[float | None] = [None] * workload.requests
    if arrivals is not None:
        at_ms = arrivals.times_ms(_streams(seed)[0], workload.requests)
        if not np.isfinite(at_ms).all():
            raise UserError(
                f"{scenario.path}: key workload.arrivals.rate_per_s = {arrivals.rate_per_s:g} is "
                f"so small that requests never arrive"
            )
        asked = at_ms.tolist()
    return tuple(
        RequestSpec((0,) * length, new_tokens, arrival_ms=at)
        for length, new_tokens, at in zip(lengths, wanted, asked, strict=True)
    )


def _streams(seed: int) -> list[np.random.Generator]:
    """Return the random streams of arrival times, prompt lengths and output lengths."""
    streams = np.random.SeedSequence([seed, *b"workload"]).spawn(3)
    return [np.random.default_rng(stream) for stream in streams]


def _lengths(workload: Workload, path: Path, seed: int) -> tuple[list[int], list[int]]:
    """Return the tokens of each prompt and each text; ``UserError`` if they exceed any memory."""
    _, prompts, texts = _streams(seed)
    lengths = draw_lengths(workload.prompt_tokens, prompts, workload.requests)
    wanted = draw_lengths(workload.new_tokens, texts, workload.requests)
    _check_tokens(sum(lengths) + sum(wanted), path)
    return lengths, wanted


def _check_tokens(tokens: int, path: Path) -> None:
    if tokens > MOST_TOKENS:
        raise UserError(
            f"{path}: key workload: the requests of a run have {tokens:,} tokens (requests, "
            f"prompt_tokens, new_tokens); there may be {MOST_TOKENS:,}"
        )


def _trace_rows(workload: Workload, arrivals: ArrivalTrace, path: Path) -> list[TraceRow]:
    """Return the rows of the trace that the workload asks for."""
    rows = read_trace(path.parent / arrivals.file)
    if "requests" in workload.model_fields_set:
        if workload.requests > len(rows):
            raise UserError(
                f"{path}: key workload.requests = {workload.requests}, but {arrivals.file} holds "
                f"{len(rows)} requests"
            )
        rows = rows[: workload.requests]
    _check_tokens(sum(row.prompt_tokens + row.new_tokens for row in rows), path)
    return rows


def read_trace(file: Path) -> list[TraceRow]:
    """Read the requests of a CSV file, by arrival; ``UserError`` names the file and the line."""
    with reading(file, f"cannot be read as CSV ({KEY})", f"file ({KEY})", (csv.Error,)):
        reader = csv.reader(io.StringIO(read_text(file, "utf-8-sig")))  # drops a byte order mark
        lines = [(reader.line_num, line) for line in reader if line]
    columns = list(TraceRow.model_fields)
    header = [name.strip() for name in lines[0][1]] if lines else []
    if sorted(header) != sorted(columns):
        found = f"{', '.join(header)!r}" if header else "nothing"
        raise UserError(
            f"{file}: its first line must name the columns {', '.join(columns)}, "
            f"not {found} ({KEY})"
        )
    rows: list[TraceRow] = []
    for number, line in lines[1:]:
        if len(line) != len(header):
            raise UserError(f"{file}:{number}: has {len(line)} values for {len(header)} columns")
        rows.append(validated(TraceRow, dict(zip(header, line, strict=True)), f"{file}:{number}"))
        if len(rows) > 1 and rows[-1].arrival_s < rows[-2].arrival_s:
            raise UserError(
                f"{file}:{number}: key arrival_s = {rows[-1].arrival_s:g} is before the line above "
                f"it, {rows[-2].arrival_s:g}; arrivals must be in order"
            )
    if not rows:
        raise UserError(f"{file}: holds no request, only the line with the columns ({KEY})")
    return rows


def effort_warnings(scenario: Scenario) -> list[str]:
    """Return a warning if a simulation will take long; empty otherwise.

    Raises ``UserError`` as ``draw_requests`` does.
    """
    if isinstance(scenario.acceptance, Replay):
        return []  # it takes as long as the recorded run
    workload = scenario.workload
    if isinstance(workload.arrivals, ArrivalTrace):
        wanted = [row.new_tokens for row in _trace_rows(workload, workload.arrivals, scenario.path)]
    else:
        _, wanted = _lengths(workload, scenario.path, run_seeds(scenario.seed, 1)[0])
    tokens = scenario.runs * sum(wanted)
    if tokens <= MANY_TOKENS:
        return []
    return [
        f"{tokens / 1e6:.3g} million tokens are to be simulated (workload.requests, "
        f"workload.new_tokens, runs): at {TOKENS_PER_S:,} tokens/s, which trees halve or worse, "
        f"that takes {tokens / TOKENS_PER_S / 60:.0f} minutes"
    ]
