"""What was measured of a device -> its profile. No measuring and no writing here."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeAlias

from treepipe.executor.measure.device import Measurements
from treepipe.executor.measure.machine import hardware, memory_mib, versions
from treepipe.executor.measure.random_weights import RandomCheckpoint
from treepipe.executor.measure.subject import NamedModel, Subject
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
"""Context -> tokens -> what was timed."""

BUSY = 0.05
"""Share of the time beyond which other processes are worth a warning."""


def device_profile(
    subject: Subject, bench: Bench, threads: int, withheld: float, found: Measurements
) -> DeviceProfile:
    """The profile of what is measured so far; parts that are not are left out.

    A layer's time is that of the block, less the overhead of a call, by the block's layers; the
    overhead is what a block of one layer takes more than that.

    Args:
        withheld: share of the time that other processes had the processor.
    """
    target, draft = subject.target, subject.draft
    overhead = call_overhead_ms(found, subject.layers)
    prunes = [s.median for row in found.table("prune").values() for s in row.values()]
    return DeviceProfile(
        memory_mib=round(memory_mib(bench.device)),
        runtime_mib=round(found.runtime_mib),
        call_overhead_ms=overhead,
        prune_ms=prunes[0] if prunes else 0.0,
        idle_factor=idle_factors(found),
        roofline=_roofline(found, bench.dtype_name),
        origin=_origin(subject, bench, threads, withheld, found),
        layer=_layer(found, subject, overhead, bench),
        head=_measured(found, "head", target, bench),
        embedding=_measured(found, "embedding", target, bench),
        draft=() if draft is None else _measured(found, "draft", draft, bench),
    )


def call_overhead_ms(found: Measurements, layers: int) -> float:
    """A call's cost whatever its layers: of T(n) of n layers, T(1) - (T(n) - T(1)) / (n - 1)."""
    blocks, singles = found.table("block"), found.table("single")
    overheads = [
        (layers * single.median - blocks[context][tokens].median) / (layers - 1)
        for context, row in singles.items()
        for tokens, single in row.items()
        if tokens in blocks.get(context, {})
    ]
    return max(0.0, median(overheads)) if overheads else 0.0


def idle_factors(found: Measurements) -> dict[float, float] | None:
    """Time of a pass after an idle gap over its time without, None if that was not measured."""
    times = {gap: summary.median for gap, summary in sorted(measured(found.idle).items())}
    if 0.0 not in times or len(times) < 2:
        return None
    return {gap: time / times[0.0] for gap, time in times.items()}


def _layer(
    found: Measurements, subject: Subject, overhead: float, bench: Bench
) -> tuple[LayerTime, ...]:
    table, layers = found.table("block"), subject.layers
    if not table:
        return ()
    entry = _entry(subject.target, bench, table)
    entry["ms"] = _times(table, lambda s: max(0.0, s.median - overhead) / layers)
    entry["iqr_ms"] = _times(table, lambda s: (s.high - s.low) / layers)
    return (LayerTime.model_validate(entry),)


def _measured(
    found: Measurements, kind: WorkKind, model: NamedModel, bench: Bench
) -> tuple[MeasuredTime, ...]:
    table = found.table(kind)
    return (MeasuredTime.model_validate(_entry(model, bench, table)),) if table else ()


def _entry(model: NamedModel, bench: Bench, table: Summaries) -> dict[str, object]:
    return {
        "model": model.name,
        "dtype": bench.dtype_name,
        "ms": _times(table, lambda summary: summary.median),
        "iqr_ms": _times(table, lambda summary: summary.high - summary.low),
        "shape": model.shape,
    }


def _times(table: Summaries, value: Callable[[Summary], float]) -> dict[int, dict[int, float]]:
    return {
        context: {tokens: value(summary) for tokens, summary in row.items()}
        for context, row in table.items()
    }


def _roofline(found: Measurements, dtype: DType) -> Roofline | None:
    """The roofline that was reached, with efficiencies of 1; None if it was not measured."""
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
    weights = (
        "random weights"
        if isinstance(subject.target.checkpoint, RandomCheckpoint)
        else "its weights"
    )
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
