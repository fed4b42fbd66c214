"""Results of traces, and their file (``treepipe.result/1``, ``docs/files.md``)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from treepipe.core.errors import UserError
from treepipe.files.outputs import STANDARD_OUTPUT, write_file, write_standard_output
from treepipe.results.critical_path import CriticalPath
from treepipe.results.estimates import Estimates, critical_path, observe, target_intervals
from treepipe.results.metrics import METRIC, METRICS
from treepipe.results.screen import ROWS, Screen, Shown
from treepipe.results.sheet import Sheet, figures, words
from treepipe.results.statistics import Fixed, Interval
from treepipe.results.trace import Trace
from treepipe.results.units import DIGITS, SHARE, Scale, ends, means_first, number, speed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from treepipe.results.recording import Recording

SCHEMA = "treepipe.result/1"
Source: TypeAlias = Literal["simulation", "execution"]


class Tabular(Shown):
    """What has a screen, and rows of figures by name."""

    __slots__ = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The figures: name, mean, low, high, unit."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` of the rows, by name; ``UserError`` without pandas."""
        return data_frame(self.rows)


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A figure with its 95 % confidence interval; ``low``, ``high`` and ``fixed`` are as in
    ``Interval``.

    >>> from treepipe import MetricValue
    >>> MetricValue("time_between_tokens_ms", 25.0, 24.0, 26.5, "ms").to_json()
    {'mean': 25.0, 'low': 24.0, 'high': 26.5, 'unit': 'ms'}
    """

    name: str
    mean: float
    low: float | None
    high: float | None
    unit: str
    fixed: Fixed = field(default="", repr=False)

    @classmethod
    def of(cls, name: str, interval: Interval) -> MetricValue:
        """Make the metric in the unit that ``metrics.py`` defines."""
        ends = interval.low, interval.high
        return cls(name, interval.mean, *ends, METRICS[name].unit, interval.fixed)

    @property
    def interval(self) -> Interval:
        return Interval(self.mean, self.low, self.high, self.fixed)

    def to_json(self) -> dict[str, Any]:
        """Return the metric's entry in the result file, where the name is its key."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "unit": self.unit}


@dataclass(frozen=True, slots=True)
class Session:
    """A request of the first run.

    Attributes:
        time_to_first_token_ms: None if the request got no token.
        finished: the reason why it ended.
        tokens: its text, in a run that failed; None otherwise.
        preemptions, recomputed_tokens: counts where requests can be preempted; None otherwise.
    """

    session: int
    prompt_tokens: int
    new_tokens: int
    time_to_first_token_ms: float | None
    request_latency_ms: float
    rounds: int
    finished: str
    pipeline: int
    tokens: tuple[int, ...] | None = None
    preemptions: int | None = None
    recomputed_tokens: int | None = None

    def to_json(self) -> dict[str, Any]:
        content = asdict(self)
        if self.tokens is not None:
            content["tokens"] = list(self.tokens)
        optional = ("tokens", "preemptions", "recomputed_tokens")
        return {k: v for k, v in content.items() if v is not None or k not in optional}


@dataclass(frozen=True, repr=False)
class Result(Tabular):
    """Predicted or measured figures of a scenario.

    Attributes:
        runs: number of runs.
        intervals_over: "runs", "batches" of a single one, or None.
        warmup_requests: requests left out of each run.
        utilization: busy share of time, by device.
        lossless: whether the schedule and its verification rule keep the target's text.
        complete: False where runs failed; ``failure`` says why.
        memory: peak resident bytes per device, if measured.
        targets: metrics of each pipeline by name, where there are several.
        critical_path: shares of a token's time along the critical path, in a simulation.
        recordings: of an execution, one per run, for replay.
        taken_as_exact: inputs that no interval includes, since nothing states their uncertainty.
        schedule: the schedule's name.

    >>> from treepipe import Scenario, simulate
    >>> result = simulate(Scenario.load("studies/scenarios/pp.toml"), runs=1)
    >>> [*result.utilization][:2], result.complete, result.to_json()["schema"]
    (['draft0', 'pipeline0.stage1'], True, 'treepipe.result/1')
    """

    source: Source
    scenario: str
    seed: int
    runs: int
    intervals_over: str | None = None
    warmup_requests: int = 0
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    utilization: Mapping[str, Interval] = field(default_factory=dict)
    sessions: tuple[Session, ...] = ()
    lossless: bool = True
    warnings: tuple[str, ...] = ()
    complete: bool = True
    memory: Mapping[str, int] | None = None
    failure: str | None = None
    targets: Mapping[str, Mapping[str, MetricValue]] = field(default_factory=dict)
    critical_path: CriticalPath | None = None
    taken_as_exact: tuple[str, ...] = ()
    schedule: str = ""
    traces: tuple[Trace, ...] = field(default=(), repr=False, compare=False)
    recordings: Sequence[Recording] = field(default=(), repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the result file, ready for ``json.dumps``."""
        targets = {
            target: {name: each.to_json() for name, each in metrics.items()}
            for target, metrics in self.targets.items()
        }
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "answer": self.screen.answer,
            "source": self.source,
            "scenario": self.scenario,
            **({"schedule": self.schedule} if self.schedule else {}),
            "seed": self.seed,
            "runs": self.runs,
            "intervals_over": self.intervals_over,
            "warmup_requests": self.warmup_requests,
            **({"taken_as_exact": [*self.taken_as_exact]} if self.taken_as_exact else {}),
            "metrics": {name: metric.to_json() for name, metric in self.metrics.items()},
            "utilization": {name: share.as_dict() for name, share in self.utilization.items()},
            **({"targets": targets} if self.targets else {}),
            **({} if self.critical_path is None else self.critical_path.to_json()),
            "sessions": [session.to_json() for session in self.sessions],
            "lossless": self.lossless,
        }
        content["complete"] = self.complete
        if self.failure is not None:
            content["failure"] = self.failure
        if faults := [asdict(fault) for trace in self.traces for fault in trace.faults]:
            content["faults"] = faults
        content["warnings"] = list(self.warnings)
        if self.memory is not None:
            sizes = self.memory.items()
            content["memory"] = {n: {"peak_memory_bytes": b, "unit": "bytes"} for n, b in sizes}
        return content

    @property
    def title(self) -> str:
        """The scenario's name, with the schedule's where that says something else."""
        named = not self.schedule or self.schedule in re.findall(r"\w+", self.scenario)
        return self.scenario if named else f"{self.scenario}, schedule {self.schedule}"

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Metrics, then utilizations, as rows of a table."""
        rows = [{"name": name, **metric.to_json()} for name, metric in self.metrics.items()]
        return rows + [
            {"name": f"utilization {device}", **share.as_dict(), "unit": "1"}
            for device, share in self.utilization.items()
        ]

    def plot(self) -> Figure:
        """Draw the first run's timeline, one row per device.

        Raises:
            UserError: no run is there to draw.
        """
        if not self.traces:
            raise UserError(f"{self.scenario}: a result of source {self.source!r} has no timeline")
        from treepipe.results.timeline import timelines_figure

        return timelines_figure([(self.scenario, self.traces[0])])

    @property
    def screen(self) -> Screen:
        path, tables = self.critical_path, result_tables(self)
        busy = {place: -share.mean for place, share in enumerate(self.utilization.values())}
        busiest = [len(self.metrics) + place for place in sorted(busy, key=busy.__getitem__)[:2]]
        order = dict.fromkeys([*range(ROWS - 2), *busiest, *range(len(tables[0].rows))])
        rows = [tables[0].rows[place] for place in order if place < len(tables[0].rows)]
        return Screen(
            f"{self.title}: {_in_words(self)}",
            replace(tables[0], rows=rows),
            [] if path is None else path.note,
            [*([] if self.lossless else [NOT_LOSSLESS]), *self.warnings],
            self.taken_as_exact,
            tables,
            [*_half(self), *([] if path is None else path.sentences)],
        )


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a ``pandas.DataFrame`` indexed by the rows' names; ``UserError`` without pandas."""
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        raise UserError(
            "to_pandas() needs pandas, which is not installed: pip install pandas"
        ) from None
    return pandas.DataFrame(rows).set_index("name")


def make_result(
    source: Literal["simulation", "execution"],
    scenario: str,
    seed: int,
    traces: Sequence[Trace],
    *,
    lossless: bool = True,
    memory: Mapping[str, int] | None = None,
    warmup: int | None = None,
    estimates: Estimates | None = None,
    recordings: Sequence[Recording] = (),
    taken_as_exact: Sequence[str] = (),
    schedule: str = "",
) -> Result:
    """Make the result of runs that ended well.

    Args:
        warmup: requests to leave out of each run; None: determined from the runs.
        estimates: estimates of the traces, if made already; they fix ``warmup``.
        taken_as_exact, schedule: as in ``Result``.
    """
    if estimates is None:
        estimates = observe(traces, warmup)
    metrics, shares = estimates.intervals
    return Result(
        source,
        scenario,
        seed,
        len(traces),
        estimates.over,
        estimates.warmup,
        {name: MetricValue.of(name, interval) for name, interval in metrics.items()},
        shares,
        _sessions(traces[0]) if traces else (),
        lossless,
        tuple(sorted({*(w for trace in traces for w in trace.warnings), *estimates.warnings})),
        memory=memory,
        targets={
            target: {name: MetricValue.of(name, interval) for name, interval in each.items()}
            for target, each in target_intervals(traces, estimates.warmup).items()
        },
        critical_path=critical_path(traces, estimates.warmup)
        if any(trace.paths for trace in traces)
        else None,
        taken_as_exact=tuple(taken_as_exact),
        schedule=schedule,
        traces=tuple(traces),
        recordings=recordings,
    )


def make_incomplete_result(
    scenario: str, seed: int, done: int, failure: str, ended: Trace
) -> Result:
    """Make the result of runs that failed: no metrics, but every text.

    Args:
        done: number of runs that ended well before the one that ``ended`` early.
        failure: a sentence that says why it ended.
    """
    return Result(
        "execution",
        scenario,
        seed,
        done,
        sessions=_sessions(ended, texts=True),
        lossless=False,
        warnings=tuple(ended.warnings),
        complete=False,
        failure=failure,
        traces=(ended,),
    )


def _sessions(trace: Trace, *, texts: bool = False) -> tuple[Session, ...]:
    """Return a run's requests, with their texts if asked for."""
    return tuple(
        Session(
            request.session,
            request.prompt_tokens,
            len(request.tokens),
            request.first_token_ms - request.started_ms if request.emitted else None,
            request.finished_ms - request.started_ms,
            len(request.rounds),
            request.reason,
            request.pipeline,
            tuple(request.tokens) if texts else None,
            request.preemptions if trace.paged else None,
            request.recomputed_tokens if trace.paged else None,
        )
        for request in trace.requests
    )


def write_json(content: Mapping[str, Any], target: str, option: str = "--json") -> None:
    """Write to a file, or to standard output for "-".

    Raises ``WriteError`` if it cannot be written; ``option`` names the option that asked for it.
    """
    text = json.dumps(content, indent=2) + "\n"
    if target == STANDARD_OUTPUT:
        write_standard_output(text, option)
    else:
        write_file(Path(target), text, option)


# --- as tables and sentences ----------------------------------------------------------------------

NOT_LOSSLESS = "not lossless: the rule may change the target's text"


def result_tables(result: Result) -> list[Sheet]:
    """Make tables of a result's figures in suitable units, and of several targets' figures."""
    columns = [*words("metric"), *figures("mean", "95 % interval"), *words("unit")]
    sheet = Sheet(f"{result.title} ({result.source}, {basis(result)})", columns)
    for value in map(result.metrics.__getitem__, means_first(result.metrics)):
        sheet.add(*_metric_cells(value))
    for device, share in result.utilization.items():
        sheet.add(f"utilization {device}", f"{share.mean:.3f}", ends(share, SHARE), SHARE.unit)
    if not result.targets:
        return [sheet]
    by_target = Sheet("by target", [*words("target, metric"), *columns[1:]])
    for target, metrics in result.targets.items():
        for value in metrics.values():
            name, *cells = _metric_cells(value)
            by_target.add(f"{target} {name}", *cells)
    return [sheet, by_target]


def _in_words(result: Result) -> str:
    """Return a result's figure as the end of a sentence."""
    if result.failure is not None:
        return f"the run failed: {result.failure}"
    between, served = (result.metrics.get(name) for name in (METRIC, "throughput_tokens_s"))
    how = "predicted" if result.source == "simulation" else "measured"
    if between is None or not between.mean:
        shown = f"{number(served.mean, DIGITS)} tokens/s" if served else "no token"
        return f"{how} {shown}, and no time between tokens"
    several = served is not None and served.mean > 1e3 / between.mean
    rate = speed(between.interval, each=several)
    together = f"; {number(served.mean, DIGITS)} tokens/s together" if served and several else ""
    return f"{how} {rate}{together}"


def _half(result: Result) -> list[str]:
    """Say why half of the tokens take no time, where that may surprise."""
    if (half := result.metrics.get("p50_time_between_tokens_ms")) is None or half.mean:
        return []
    return [
        "p50_time_between_tokens is 0: most tokens come together with the one before, from one "
        "verification"
    ]


def basis(result: Result) -> str:
    """Describe the basis of the figures: runs, batches and warm-up."""
    text = "1 run" if result.runs == 1 else f"{result.runs} runs"
    if result.intervals_over == "batches":
        text += " in batches"
    dropped = result.warmup_requests
    return text + (f", without its first {dropped} requests" if dropped else "")


def _metric_cells(value: MetricValue) -> tuple[str, str, str, str]:
    scale = Scale.of(value.unit, value.mean)
    mean = number(value.mean / scale.size)
    return scale.name(value.name), mean, ends(value.interval, scale), scale.unit
