"""Measuring a device: peak figures, passes and the idle effect, and the profile of their times."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeAlias

import torch

from treepipe.core.errors import UserError
from treepipe.executor.measure.sensors import find_sensor, measure_power
from treepipe.executor.measure.timing import (
    LEAST,
    VISIT_MS,
    Effort,
    Probe,
    Sampler,
    Samples,
    Summary,
    WorkTimer,
    clock_of,
    measured,
)
from treepipe.executor.measure.work import (
    ENDS,
    SAMPLED_ROWS,
    SHARING,
    SINGLE_TOKENS,
    Bench,
    LayerBlock,
    NamedModel,
    Peak,
    RandomCheckpoint,
    SamplingPoint,
    Subject,
    WorkKind,
    WorkPoint,
    draft_probes,
    end_probes,
    peak_probes,
    sampling_probes,
)
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import memory_mib, peak_memory, runtime_mib
from treepipe.executor.models.families import FAMILIES
from treepipe.executor.models.stage_model import load_layer
from treepipe.executor.models.static_pass import graphs_bytes
from treepipe.executor.wire.processor import Processor, software
from treepipe.profiles.schema import (
    DeviceProfile,
    HeadTime,
    LayerTime,
    MeasuredOrigin,
    MeasuredPower,
    MeasuredTime,
    Roofline,
    SamplingTime,
)
from treepipe.profiles.shapes import DType
from treepipe.progress import Progress

Summaries: TypeAlias = Mapping[int, Mapping[int, Summary]]
"""Context -> tokens -> times."""

BUSY = 0.05
"""Share of the time of other processes above which the note warns of them."""
GAPS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
FEW_GAPS_MS = (0.0, 10.0, 100.0)
"""Idle gaps for measurements with little time."""
IDLE_TOKENS = 16
IDLE_CONTEXT = 256
PEAKS, SAMPLING, IDLE, POWER = 0.05, 0.05, 0.10, 0.08
"""Shares of the time for peak figures, rules, the idle effect and power; passes have the rest."""
LEAST_READ_MIB = 16
"""Weights of a layer below which opening its file takes a share of its reading."""

LITTLE = 5.0
"""Seconds below which a grid is not thinned, even if less time was given."""
SHORT = 16
"""Rows of the longest pass that is timed for a guess."""
FEWEST = 3
"""Fewest token counts of a grid that spans all of them."""

Guess: TypeAlias = Callable[[WorkPoint], float]
"""Milliseconds of a pass."""


@dataclass(slots=True)
class Measurements:
    """Times measured so far.

    Attributes:
        read_mib_s: rate of reading the block's weights; None if they are few or random.
        missing: unfinished steps.
        thinned: a sentence on points left out for lack of time, or empty.
        powerless: a sentence on why there is no power, or empty.
        graphs: a sentence on the graphs of the block's passes, or empty.
    """

    peaks: Samples[Peak] = field(default_factory=dict)
    sampling: Samples[SamplingPoint] = field(default_factory=dict)
    passes: Samples[WorkPoint] = field(default_factory=dict)
    idle: Samples[float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    thinned: str = ""
    power: MeasuredPower | None = None
    powerless: str = ""
    graphs: str = ""
    read_mib_s: float | None = None
    peak_memory_mib: float = 0.0
    runtime_mib: float = 0.0
    seconds: float = 0.0

    def table(self, kind: str) -> dict[int, dict[int, Summary]]:
        """Return the times of one kind of pass: context -> tokens -> milliseconds."""
        by_context: dict[int, dict[int, Summary]] = {}
        for (name, tokens, context), summary in sorted(measured(self.passes).items()):
            if name == kind:
                by_context.setdefault(context, {})[tokens] = summary
        return by_context

    @property
    def any(self) -> bool:
        """Whether a profile can be written."""
        peaks = {name for name, _ in measured(self.peaks)}
        return peaks == {"matmul", "stream"} or bool(self.table("block") or self.table("draft"))


class DeviceSession:
    """A measurement of one pair of models on one device; ``results`` grow while ``run`` works."""

    def __init__(self, subject: Subject, bench: Bench, seconds: float) -> None:
        self.results = Measurements(runtime_mib=runtime_mib(bench.device))
        self.subject, self.bench, self._seconds = subject, bench, seconds
        self._clock = clock_of(bench.device)
        self._start = time.perf_counter()
        self._block: LayerBlock | None = None
        self._sensor = find_sensor(bench.device)
        self._power_seconds = 0.0 if isinstance(self._sensor, str) else POWER * seconds

    @property
    def withheld(self) -> float:
        """Share of the timed interval in which other processes had the processor; not counted."""
        return self._clock.withheld

    def run(self, say: Progress) -> None:
        """Measure. Raises ``UserError`` if the models do not fit into memory."""
        self._start = time.perf_counter()
        steps = {
            "peak figures": self._peaks,
            "sampling": self._sampling,
            "passes": self._passes,
            "idle effect": self._idle,
            "power": self._power,
        }
        self.results.missing = list(steps)
        try:
            for name, step in steps.items():
                say(name, 100)
                step(say)
                self.results.missing.remove(name)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            raise UserError(
                f"--model {self.subject.target.name}: {self.subject.layers} layers, caches and "
                f"ends do not fit into the memory of {self.bench.device}; try --set layers=1, "
                f"or shorter contexts"
            ) from None
        finally:
            self.results.seconds = time.perf_counter() - self._start
            self.results.peak_memory_mib = peak_memory(self.bench.device) / 2**20

    @property
    def _left(self) -> float:
        return self._seconds - (time.perf_counter() - self._start)

    def _peaks(self, say: Progress) -> None:
        probes = peak_probes(self.bench.device, self.bench.dtype)
        effort = Effort(PEAKS * self._seconds)
        Sampler(self._clock, self.results.peaks).measure(probes, effort, say)

    def _sampling(self, say: Progress) -> None:
        probes = [*sampling_probes(self.subject.target.shape.vocabulary, self.bench)]
        effort = Effort(SAMPLING * self._seconds)
        Sampler(self._clock, self.results.sampling).measure(probes, effort, say)

    def _passes(self, say: Progress) -> None:
        probes, bench = list(self._probes()), self.bench
        guess = guess_times(probes, self._clock)
        idle = idle_seconds(FEW_GAPS_MS, guess(("block", IDLE_TOKENS, self._idle_context)))
        left = self._left - max(IDLE * self._seconds, idle) - self._power_seconds
        choice = choose(probes, bench.tokens, bench.contexts, left, guess)
        if choice.thinned:
            self.results.thinned = choice.sentence(bench.tokens, bench.contexts)
            say(f"{len(choice.probes)} of {len(probes)}, {choice.seconds:.0f} s", 100)
        effort = Effort(max(left, choice.seconds))
        Sampler(self._clock, self.results.passes).measure(choice.probes, effort, say)
        self.results.graphs = self._graphs()

    def _graphs(self) -> str:
        """Describe graphs, and the eager times of the block beside its."""
        if not self.bench.graphs or self._block is None:
            return ""
        why = FAMILIES[self.subject.target.checkpoint.architecture].uncaptured(self.bench.device)
        graphs = f"passes in buckets, {graphs_bytes() / 2**20:.0f} MiB of graphs and buffers"
        eager, block = self.results.table("eager"), self.results.table("block")
        both = [
            f"{rows} after {context} {each.median:.3g} ms (not {block[context][rows].median:.3g})"
            for context, row in eager.items()
            for rows, each in row.items()
        ]
        beside = f"; eagerly the block's rows take: {', '.join(both)}" if both else ""
        return (graphs if why is None else f"passes are eager: {why}") + beside

    def _probes(self) -> Iterator[Probe[WorkPoint]]:
        subject, bench = self.subject, self.bench
        target = subject.target.checkpoint
        self._block = block = LayerBlock(target, subject.layers, bench, graphs=bench.graphs)
        self.results.read_mib_s = _read_mib_s(target, bench)
        yield from (block.probe(("block", *point)) for point in bench.grid)
        yield block.prune()
        if max(bench.tokens) >= SHARING:
            yield block.shared()
        if subject.layers > 1:
            # After the shortest context only: a single layer's longer caches would stay in the
            # processor's cache, unlike a block's.
            tokens = tuple(n for n in bench.tokens if n <= SINGLE_TOKENS)
            shortest = bench.points.model_copy(update={"contexts": bench.contexts[:1]})
            points = replace(bench, points=shortest)
            single = LayerBlock(target, 1, points, graphs=bench.graphs)
            yield from (single.probe(("single", n, min(bench.contexts))) for n in tokens)
        if bench.eager:
            eager = LayerBlock(target, subject.layers, bench, graphs=False)
            yield from (eager.probe(("eager", *point)) for point in bench.grid)
        yield from end_probes(target, bench)
        if subject.draft is not None:
            yield from draft_probes(subject.draft.checkpoint, bench)

    @property
    def _idle_context(self) -> int:
        return min(self.bench.contexts, key=lambda context: abs(context - IDLE_CONTEXT))

    def _power(self, say: Progress) -> None:
        """Measure power where the machine tells it, with the largest pass as work."""
        sensor, bench, block = self._sensor, self.bench, self._block
        if isinstance(sensor, str):
            self.results.powerless = sensor
            return
        assert block is not None, "passes come first"
        largest = block.probe(("block", max(bench.tokens), self._idle_context))

        def work() -> None:
            largest.before()
            largest.work()
            if bench.device == "cuda":
                torch.cuda.synchronize()

        self.results.power = measure_power(sensor, work, self._power_seconds / 2)
        say("", 100)

    def _idle(self, say: Progress) -> None:
        assert self._block is not None, "passes come first"
        bench = self.bench
        base = self._block.probe(("block", IDLE_TOKENS, self._idle_context))

        def rest(gap_ms: float) -> Callable[[], None]:
            def before() -> None:
                base.before()
                base.work()
                if bench.device == "cuda":
                    torch.cuda.synchronize()
                base.before()
                time.sleep(gap_ms / 1e3)

            return before

        left = self._left - self._power_seconds
        pass_ms = guess_times([base], self._clock)(base.key)
        fits = idle_seconds(GAPS_MS, pass_ms) <= max(min(left, IDLE * self._seconds), LITTLE)
        gaps = GAPS_MS if fits else FEW_GAPS_MS
        probes = [Probe(gap, base.work, rest(gap), warm=False) for gap in gaps]
        effort = Effort(max(min(left, IDLE * self._seconds), 1e-3))
        Sampler(self._clock, self.results.idle).measure(probes, effort, say)


def _read_mib_s(target: Checkpoint, bench: Bench) -> float | None:
    """Time the reading and packing of a layer, after others; None without weights, or with few."""
    read_mib = target.layer_parameters * bench.dtype.itemsize / 2**20
    if read_mib < LEAST_READ_MIB or isinstance(target, RandomCheckpoint):
        return None
    start = time.perf_counter()
    load_layer(target, target.layers - 1, bench.dtype, bench.device)
    return float(read_mib / (time.perf_counter() - start))


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory is short; Torch has an error class for a GPU's memory only."""
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "can't allocate memory" in str(error)


# --- the points to measure in the given time ------------------------------------------------------
#
# All of them, or a thinner grid. The points stay a grid (the same token counts after every context,
# both ends of each as long as they fit), since a table with gaps would mislead between its points.
# A few short passes predict the time of the others before the measurement.


@dataclass(frozen=True, slots=True)
class Choice:
    """A grid of points, its least time in seconds, and the time of all points."""

    probes: Sequence[Probe[WorkPoint]]
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: float
    all_seconds: float

    @property
    def thinned(self) -> bool:
        return self.seconds < self.all_seconds

    def sentence(self, tokens: Sequence[int], contexts: Sequence[int]) -> str:
        """Describe the share of the given tokens and contexts that is left."""
        return (
            f"thinned for lack of time to {len(self.tokens)} of {len(tokens)} token counts and "
            f"{len(self.contexts)} of {len(contexts)} contexts: all passes would have taken about "
            f"{self.all_seconds:.0f} s"
        )


def choose(
    probes: Sequence[Probe[WorkPoint]],
    tokens: tuple[int, ...],
    contexts: tuple[int, ...],
    seconds: float,
    guess: Guess,
) -> Choice:
    """Choose the largest grid whose points can all be timed ``LEAST`` times in these seconds."""
    costs = {probe.key: _least_seconds(guess(probe.key)) for probe in probes}
    everything = sum(costs.values())
    for some, behind in _grids(tokens, contexts):
        chosen = [probe for probe in probes if _is_in(probe.key, some, behind)]
        cost = sum(costs[probe.key] for probe in chosen)
        if cost <= max(seconds, LITTLE):
            break
    return Choice(chosen, some, behind, cost, everything)


def idle_seconds(gaps_ms: Sequence[float], pass_ms: float) -> float:
    """Least time for the idle effect: ``LEAST`` turns and a first one, two passes a gap."""
    return (LEAST + 1) * sum(gap + 2 * pass_ms for gap in gaps_ms) / 1e3


def guess_times(
    probes: Sequence[Probe[WorkPoint]],
    clock: WorkTimer,
    now: Callable[[], float] = time.perf_counter,
) -> Guess:
    """Time the shortest passes of each kind; longer ones lie on the plane through them.

    The timed passes have the fewest and (at most) ``SHORT`` rows, after the shortest and the
    longest context. ``now`` returns seconds.
    """
    corners: dict[WorkKind, tuple[list[int], list[int], list[list[float]]]] = {}
    for kind in dict.fromkeys(probe.key[0] for probe in probes):
        own = {probe.key[1:]: probe for probe in probes if probe.key[0] == kind}
        counts, behind = ({key[place] for key in own} for place in (0, 1))
        short = max((n for n in counts if n <= SHORT), default=min(counts))
        rows, contexts = sorted({min(counts), short}), sorted({min(behind), max(behind)})
        times = [[_timed(own[n, context], clock, now) for context in contexts] for n in rows]
        corners[kind] = rows, contexts, times

    def guess(key: WorkPoint) -> float:
        kind, tokens, context = key
        rows, contexts, times = corners[kind]
        low, high = (_on_line(contexts, each, context) for each in (times[0], times[-1]))
        return _on_line(rows, [low, max(low, high)][: len(rows)], tokens)

    return guess


def _on_line(places: Sequence[int], values: Sequence[float], at: int) -> float:
    """Value at ``at`` of the line through one or two points."""
    slope = (values[-1] - values[0]) / (places[-1] - places[0]) if len(places) > 1 else 0.0
    return values[0] + slope * (at - places[0])


def thin(values: Sequence[int], count: int) -> tuple[int, ...]:
    """Choose ``count`` evenly spaced values, including both ends; a single one is the first.

    >>> thin((1, 2, 4, 8, 16, 24, 32), 3), thin((0, 256, 1024), 1), thin((7,), 1)
    ((1, 8, 32), (0,), (7,))
    """
    steps = max(1, count - 1)
    return tuple(values[i * (len(values) - 1) // steps] for i in range(count))


def _grids(
    tokens: tuple[int, ...], contexts: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield grids, from all points to a single context without the largest passes."""
    fewest = min(FEWEST, len(tokens))
    sizes = [
        (rows, behind)
        for rows in range(fewest, len(tokens) + 1)
        for behind in range(1, len(contexts) + 1)
    ]
    several = min(2, len(contexts))
    for rows, behind in sorted(sizes, key=lambda n: (n[1] < several, -n[0] * n[1], -n[0])):
        yield thin(tokens, rows), thin(contexts, behind)
    least = min(len(tokens), max(2, sum(n <= SHORT for n in tokens)))
    for end in range(len(tokens) - 1, least - 1, -1):
        yield thin(tokens[:end], min(fewest, end)), contexts[:1]


def _is_in(key: WorkPoint, tokens: Sequence[int], contexts: Sequence[int]) -> bool:
    kind, rows, context = key
    if kind == "prune":
        return True
    return rows in tokens and (context in contexts or kind in ENDS)


def _least_seconds(pass_ms: float) -> float:
    """Time of ``LEAST`` visits: an untimed pass, and timed ones for ``VISIT_MS``."""
    return LEAST * (2 * pass_ms + VISIT_MS * (pass_ms < VISIT_MS)) / 1e3


def _timed(probe: Probe[WorkPoint], clock: WorkTimer, now: Callable[[], float]) -> float:
    """Time the second pass in milliseconds, since the first one may do more."""
    for _ in range(2):
        start = now()
        probe.before()
        clock.time_ms(probe.work)
    return (now() - start) * 1e3


# --- the profile --------------------------------------------------------------------------------


def device_profile(session: DeviceSession) -> DeviceProfile:
    """Make the profile of the measurements so far, without the other parts.

    A layer's time is the block's, less the overhead of a call, divided by the block's layers; in a
    block of one layer it includes the overhead.
    """
    results, bench, subject = session.results, session.bench, session.subject
    target, draft = subject.target, subject.draft
    overhead = call_overhead_ms(results, subject.layers)
    prunes = [s.median for row in results.table("prune").values() for s in row.values()]
    block = results.table("block")
    layer = _entry(target, bench, block, overhead, subject.layers)
    return DeviceProfile(
        memory_mib=round(memory_mib(bench.device)),
        runtime_mib=round(results.runtime_mib),
        call_overhead_ms=overhead,
        request_ms=request_ms(results, subject.layers),
        prune_ms=prunes[0] if prunes else 0.0,
        idle_factor=idle_factors(results),
        power=results.power,
        roofline=_roofline(results, bench.dtype_name),
        origin=_origin(session),
        layer=(LayerTime.model_validate(layer),) if block else (),
        head=_heads(results, target, bench),
        embedding=_measured(results, "embedding", target, bench),
        draft=() if draft is None else _measured(results, "draft", draft, bench),
        sampling=tuple(_sampling_times(results, target.shape.vocabulary)),
        read_mib_s=results.read_mib_s and round(results.read_mib_s),
        graphs=bench.points.graphs,
    )


def _sampling_times(results: Measurements, vocabulary: int) -> Iterator[SamplingTime]:
    medians = measured(results.sampling).items()
    times = {point: each.median / SAMPLED_ROWS for point, each in medians}
    for rule, truncated, candidates in times:
        if not candidates:
            drawn = {
                point[2]: ms
                for point, ms in times.items()
                if point[2] and point[:2] == (rule, truncated)
            }
            yield SamplingTime(
                vocabulary=vocabulary,
                rule=rule,
                truncated=truncated,
                judge_ms=times[rule, truncated, 0],
                draw_ms=drawn or None,
            )


def call_overhead_ms(results: Measurements, layers: int) -> float:
    """Fixed cost of a call: T(1) - (T(n) - T(1)) / (n - 1) for T(n) of n layers."""
    blocks, singles = results.table("block"), results.table("single")
    overheads = [
        (layers * single.median - blocks[context][tokens].median) / (layers - 1)
        for context, row in singles.items()
        for tokens, single in row.items()
        if tokens in blocks.get(context, {})
    ]
    return max(0.0, median(overheads)) if overheads else 0.0


def request_ms(results: Measurements, layers: int) -> float:
    """Time of each request beyond the first in one pass, per layer; 0 if it was not measured."""
    added = [
        (together.median - alone.median) / (SHARING - 1) / layers
        for context, row in results.table("shared").items()
        for tokens, together in row.items()
        if (alone := results.table("block").get(context, {}).get(tokens)) is not None
    ]
    return max(0.0, median(added)) if added else 0.0


def idle_factors(results: Measurements) -> dict[float, float] | None:
    """Ratios of a pass's time after an idle gap to its time without; None if not measured."""
    times = {gap: summary.median for gap, summary in sorted(measured(results.idle).items())}
    if 0.0 not in times or len(times) < 2:
        return None
    return {gap: time / times[0.0] for gap, time in times.items()}


def _measured(
    results: Measurements, kind: WorkKind, model: NamedModel, bench: Bench
) -> tuple[MeasuredTime, ...]:
    table = results.table(kind)
    return (MeasuredTime.model_validate(_entry(model, bench, table)),) if table else ()


def _heads(results: Measurements, model: NamedModel, bench: Bench) -> tuple[HeadTime, ...]:
    return tuple(
        HeadTime(**entry.model_dump(), shared=kind == "shared head")
        for kind in ENDS[:2]
        for entry in _measured(results, kind, model, bench)
    )


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


def _roofline(results: Measurements, dtype: DType) -> Roofline | None:
    """Reached roofline, with efficiencies of 1; None if it was not measured."""
    rates = {"matmul": 0.0, "stream": 0.0}
    for (name, amount), summary in measured(results.peaks).items():
        rates[name] = max(rates[name], amount / summary.median)
    if not all(rates.values()):
        return None
    return Roofline(
        tflops={dtype: rates["matmul"] / 1e9},
        memory_gb_s=rates["stream"] / 1e6,
        compute_efficiency=1.0,
        memory_efficiency=1.0,
    )


def _origin(session: DeviceSession) -> MeasuredOrigin:
    subject, bench, results, withheld = (
        session.subject,
        session.bench,
        session.results,
        session.withheld,
    )
    passes = [len(taken) for taken in results.passes.values()] or [0]
    random = isinstance(subject.target.checkpoint, RandomCheckpoint)
    weights = "random weights" if random else "its weights"
    notes = [
        f"a block of {subject.layers} layers of {subject.target.name} with {weights}; medians of "
        f"{min(passes)} to {max(passes)} passes, {results.seconds:.0f} s in all; prune_ms: "
        f"a tree of 64 nodes in the block's caches",
        f"most memory held while measuring: {results.peak_memory_mib:.0f} MiB",
    ]
    if withheld:
        notes.append(
            f"other processes had the processor for {withheld:.0%} of that time, not counted"
            + ("; measure again when the machine is idle" if withheld > BUSY else "")
        )
    notes += filter(None, (results.graphs, results.thinned, results.powerless))
    if results.missing:
        notes.append(f"interrupted, not finished: {', '.join(results.missing)}")
    hardware, versions = Processor.here().described(bench.points.threads), ""
    if bench.device == "cuda":
        hardware, versions = torch.cuda.get_device_name(), f"CUDA {torch.version.cuda}, "
    versions += software("torch", "transformers")
    return MeasuredOrigin(
        source="treepipe calibrate",
        date=datetime.date.today(),
        hardware=hardware,
        versions=f"{versions}; {bench.dtype_name}, {bench.points.threads} CPU threads",
        note="; ".join(notes),
    )
