"""The profile of a device from its measurements."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeAlias

from treepipe.executor.measure.device import Measurements
from treepipe.executor.measure.machine import hardware, memory_mib, versions
from treepipe.executor.measure.subject import NamedModel, RandomCheckpoint, Subject
from treepipe.executor.measure.timing import Summary, measured
from treepipe.executor.measure.work import Bench, WorkKind
from treepipe.profiles.schema import (
    DeviceProfile,
    LayerTime,
    MeasuredOrigin,
    MeasuredTime,
    Roofline,
)
from treepipe.profiles.shapes import DType

Summaries: TypeAlias = Mapping[int, Mapping[int, Summary]]
"""Context -> tokens -> times."""

BUSY = 0.05
"""Share of the time of other processes above which the note warns of them."""


def device_profile(
    subject: Subject, bench: Bench, threads: int, withheld: float, found: Measurements
) -> DeviceProfile:
    """Make the profile of the measurements so far, without the other parts.

    A layer's time is the block's, less the overhead of a call, divided by the block's layers; in a
    block of one layer it includes the overhead. Other processes had the processor for the share
    ``withheld`` of the time.
    """
    target, draft = subject.target, subject.draft
    overhead = call_overhead_ms(found, subject.layers)
    prunes = [s.median for row in found.table("prune").values() for s in row.values()]
    block = found.table("block")
    layer = _entry(target, bench, block, overhead, subject.layers)
    return DeviceProfile(
        memory_mib=round(memory_mib(bench.device)),
        runtime_mib=round(found.runtime_mib),
        call_overhead_ms=overhead,
        prune_ms=prunes[0] if prunes else 0.0,
        idle_factor=idle_factors(found),
        roofline=_roofline(found, bench.dtype_name),
        origin=_origin(subject, bench, threads, withheld, found),
        layer=(LayerTime.model_validate(layer),) if block else (),
        head=_measured(found, "head", target, bench),
        embedding=_measured(found, "embedding", target, bench),
        draft=() if draft is None else _measured(found, "draft", draft, bench),
    )


def call_overhead_ms(found: Measurements, layers: int) -> float:
    """Fixed cost of a call: T(1) - (T(n) - T(1)) / (n - 1) for T(n) of n layers."""
    blocks, singles = found.table("block"), found.table("single")
    overheads = [
        (layers * single.median - blocks[context][tokens].median) / (layers - 1)
        for context, row in singles.items()
        for tokens, single in row.items()
        if tokens in blocks.get(context, {})
    ]
    return max(0.0, median(overheads)) if overheads else 0.0


def idle_factors(found: Measurements) -> dict[float, float] | None:
    """Ratios of a pass's time after an idle gap to its time without; None if not measured."""
    times = {gap: summary.median for gap, summary in sorted(measured(found.idle).items())}
    if 0.0 not in times or len(times) < 2:
        return None
    return {gap: time / times[0.0] for gap, time in times.items()}


def _measured(
    found: Measurements, kind: WorkKind, model: NamedModel, bench: Bench
) -> tuple[MeasuredTime, ...]:
    table = found.table(kind)
    return (MeasuredTime.model_validate(_entry(model, bench, table)),) if table else ()


def _entry(
    model: NamedModel, bench: Bench, table: Summaries, overhead: float = 0.0, layers: int = 1
) -> dict[str, object]:
    """Table of one of ``layers`` equal parts of the timed work, less the overhead of a call."""
    return {
        "model": model.name,
        "dtype": bench.dtype_name,
        "ms": _times(table, lambda summary: max(0.0, summary.median - overhead) / layers),
        "iqr_ms": _times(table, lambda summary: (summary.high - summary.low) / layers),
        "shape": model.shape,
    }


def _times(table: Summaries, value: Callable[[Summary], float]) -> dict[int, dict[int, float]]:
    return {
        context: {tokens: value(summary) for tokens, summary in row.items()}
        for context, row in table.items()
    }


def _roofline(found: Measurements, dtype: DType) -> Roofline | None:
    """Reached roofline, with efficiencies of 1; None if it was not measured."""
    rates = {"matmul": 0.0, "stream": 0.0}
    for (name, amount), summary in measured(found.peaks).items():
        rates[name] = max(rates[name], amount / summary.median)
    if not all(rates.values()):
        return None
    return Roofline(
        tflops={dtype: rates["matmul"] / 1e9},
        memory_gb_s=rates["stream"] / 1e6,
        compute_efficiency=1.0,
        memory_efficiency=1.0,
    )


def _origin(
    subject: Subject, bench: Bench, threads: int, withheld: float, found: Measurements
) -> MeasuredOrigin:
    passes = [len(taken) for taken in found.passes.values()] or [0]
    random = isinstance(subject.target.checkpoint, RandomCheckpoint)
    weights = "random weights" if random else "its weights"
    notes = [
        f"a block of {subject.layers} layers of {subject.target.name} with {weights}; medians of "
        f"{min(passes)} to {max(passes)} passes, {found.seconds:.0f} s in all; prune_ms: "
        f"a tree of 64 nodes in the block's caches",
        f"most memory held while measuring: {found.peak_memory_mib:.0f} MiB",
    ]
    if withheld:
        notes.append(
            f"other processes had the processor for {withheld:.0%} of that time, not counted"
            + ("; measure again when the machine is idle" if withheld > BUSY else "")
        )
    if found.thinned:
        notes.append(found.thinned)
    if found.missing:
        notes.append(f"interrupted, not finished: {', '.join(found.missing)}")
    return MeasuredOrigin(
        source="treepipe calibrate",
        date=datetime.date.today(),
        hardware=hardware(bench.device, threads),
        versions=versions(bench.device, bench.dtype_name, threads),
        note="; ".join(notes),
    )
