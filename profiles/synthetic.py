"""Times of verification and of drafting, fitted to vLLM's benchmark with synthetic acceptance.

The server runs with ``rejection_sample_method`` and ``synthetic_acceptance_rates`` in its
configuration. ``vllm bench serve`` tells the times between the chunks of streamed requests. Where n
streams draft K tokens each, a chunk is a step, of time V(n (K + 1)) + D(n, K): a pass of the target
over the rows to verify, and the draft's passes. Steps without drafting give V of few rows alone, so
that several n and K, of which products n (K + 1) coincide, give every time (``docs/synthetic.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import BaseModel, Field

from treepipe.core.errors import UserError
from treepipe.files.section import MOST, Count, Positive
from treepipe.files.toml_file import validated

CHUNKS_ALIKE = 0.1
"""Relative difference of tokens per chunk and per step up to which a chunk counts as a step."""

Tokens: TypeAlias = Annotated[int, Field(ge=0, le=MOST)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]


class BenchServe(BaseModel):
    """A result of ``vllm bench serve --save-result --save-detailed`` (vllm/benchmarks/serve.py)."""

    model_id: str = ""
    max_concurrency: Count
    output_lens: tuple[Tokens, ...]
    input_lens: tuple[Tokens, ...]
    itls: tuple[tuple[Seconds, ...], ...]
    spec_decode_num_drafts: Annotated[int, Field(ge=0)] = 0
    spec_decode_draft_tokens: Annotated[int, Field(ge=0)] = 0
    spec_decode_acceptance_length: Positive = 1.0

    @property
    def depth(self) -> int:
        """Drafted tokens of a step."""
        drafts = self.spec_decode_num_drafts
        return round(self.spec_decode_draft_tokens / drafts) if drafts else 0


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Steps of one setting: so many streams, drafted tokens and accepted ones, and the median time.

    Attributes:
        context: tokens of a request, on average over its steps.
    """

    place: str
    streams: int
    depth: int
    tokens: float
    ms: float
    context: int

    @property
    def rows(self) -> int:
        return self.streams * (self.depth + 1)


@dataclass(frozen=True, slots=True)
class Fit:
    """Times in milliseconds.

    Attributes:
        verify: of the target's pass, by rows.
        draft: of a draft's pass, by streams.
        one_pass: whether drafting takes one pass, whatever its depth.
        worst: largest relative difference of a step from its fitted time.
        accepting: mean relative difference of steps that accept all from those that accept nothing;
            None without such pairs.
    """

    verify: dict[int, float]
    draft: dict[int, float]
    one_pass: bool
    worst: float
    accepting: float | None


def read_step(place: str, entry: dict[str, Any]) -> TimedStep:
    """Read one result. Raises ``UserError`` with its place, and the key."""
    found = validated(BenchServe, entry, place)
    gaps = [gap for request in found.itls for gap in request]
    if len(found.itls) < found.max_concurrency or not gaps:
        raise UserError(
            f"{place}: key itls tells of {len(found.itls)} requests with {len(gaps)} times; "
            f"max_concurrency = {found.max_concurrency} needs as many requests "
            f"(--num-prompts), and --save-detailed"
        )
    streamed = sum(found.output_lens) - len(found.output_lens)
    chunk, step = streamed / len(gaps), found.spec_decode_acceptance_length
    if abs(chunk / step - 1) > CHUNKS_ALIKE:
        raise UserError(
            f"{place}: key itls: a chunk has {chunk:.3g} tokens, a step "
            f"(spec_decode_acceptance_length) {step:.3g}, so their times are not those of steps"
        )
    if not len(found.output_lens) == len(found.input_lens) == len(found.itls):
        raise UserError(f"{place}: keys output_lens, input_lens, itls: must be equally long")
    if not median(gaps):
        raise UserError(f"{place}: key itls: the median time between chunks is 0")
    held = sum(found.input_lens) / len(found.input_lens)
    context = round(held + sum(found.output_lens) / len(found.output_lens) / 2)
    return TimedStep(place, found.max_concurrency, found.depth, step, 1e3 * median(gaps), context)


def fit(steps: Sequence[TimedStep]) -> Fit:
    """Fit both times by least squares of relative errors.

    Drafting is taken as a pass per token or as one pass, whichever fits better. Raises
    ``UserError`` if the settings do not tell the times apart.
    """
    serial, at_once = _solved(steps, one_pass=False), _solved(steps, one_pass=True)
    found = at_once if at_once.worst < serial.worst - 1e-6 else serial
    least = min([*found.verify.values(), *found.draft.values()])
    if least <= 0:
        raise UserError(
            f"{steps[0].place}: a fitted time is {least:.3g} ms; the results contradict each other"
        )
    return found


def _solved(steps: Sequence[TimedStep], *, one_pass: bool) -> Fit:
    rows = sorted({step.rows for step in steps})
    streams = sorted({step.streams for step in steps if step.depth})
    unknown = [("rows", n) for n in rows] + [("streams", n) for n in streams]
    table = np.zeros((len(steps), len(unknown)))
    for line, step in zip(table, steps, strict=True):
        line[unknown.index(("rows", step.rows))] = 1 / step.ms
        if step.depth:
            line[unknown.index(("streams", step.streams))] = (
                1 if one_pass else step.depth
            ) / step.ms
    free = np.flatnonzero(np.abs(_null_space(table)).max(axis=1, initial=0) > 1e-6)
    if len(free):
        named = ", ".join(f"{unknown[n][1]} {unknown[n][0]}" for n in free)
        raise UserError(
            f"{steps[0].place}: the results do not tell verification from drafting at {named}; add "
            f"runs without drafting at as many streams as there are rows, or other depths"
        )
    times, *_ = np.linalg.lstsq(table, np.ones(len(steps)), rcond=None)
    verify, draft = times[: len(rows)], times[len(rows) :]
    return Fit(
        dict(zip(rows, verify.tolist(), strict=True)),
        dict(zip(streams, draft.tolist(), strict=True)),
        one_pass,
        float(np.abs(table @ times - 1).max()),
        _accepting(steps),
    )


def _null_space(table: Any) -> Any:
    """Return the directions [unknowns, directions] that change no step's time."""
    _, sizes, directions = np.linalg.svd(table, full_matrices=True)
    rank = int((sizes > sizes[0] * 1e-9).sum())
    return directions[rank:].T


def _accepting(steps: Sequence[TimedStep]) -> float | None:
    none = {(step.streams, step.depth): step.ms for step in steps if step.tokens < 1.05}
    found = [
        step.ms / none[step.streams, step.depth] - 1
        for step in steps
        if step.depth and step.tokens > step.depth + 0.9 and (step.streams, step.depth) in none
    ]
    return sum(found) / len(found) if found else None
