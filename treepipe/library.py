"""The public library: everything that ``import treepipe`` gives; no other package imports it.

Nothing is computed here. Each function calls the package that does the work, imports it on first
use, and returns its result. ``docs/api.md`` lists the names; ``docs/tutorial.md`` shows their use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from treepipe.core.errors import UserError
from treepipe.extras import need_executor
from treepipe.progress import Progress, silent
from treepipe.results.result import Result, data_frame
from treepipe.scenario.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from treepipe.planner.analysis import Finding
    from treepipe.planner.break_even import BreakEven, Regions
    from treepipe.planner.capacity import Capacity
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.halving import SearchResult
    from treepipe.planner.robustness import StressCase
    from treepipe.planner.sensitivity import Sensitivity
    from treepipe.results.trace import Trace
    from treepipe.results.versus import Comparison
    from treepipe.sweeps.sweep import Sweep, SweepResult
    from treepipe.validation.judgement import Row
    from treepipe.validation.validation import BusyShares, MetricErrors


def simulate(
    scenario: Scenario, runs: int | None = None, seed: int | None = None, say: Progress = silent
) -> Result:
    """Predict a scenario.

    Args:
        runs, seed: values in place of the scenario's.

    Raises ``UserError``: something the scenario names is wrong.

    >>> from treepipe import Scenario, simulate
    >>> scenario = Scenario.of({
    ...     "name": "two stages",
    ...     "target": {"layers": 4},
    ...     "drafts": [{"device": {"draft_ms": {1: 3.0}}}],
    ...     "pipelines": [{"stages": [{"device": {"stage_ms": {1: 20.0}}, "count": 2}]}],
    ...     "schedule": {"name": "chain", "gamma": 3},
    ...     "acceptance": {"source": "bernoulli", "beta": 0.7},
    ...     "workload": {"new_tokens": 40},
    ... })
    >>> result = simulate(scenario, runs=8)
    >>> result.metrics["time_between_tokens_ms"].unit, result.runs, result.lossless
    ('ms', 8, True)
    """
    from treepipe.results.result import make_result
    from treepipe.scenario.making import taken_as_exact

    chosen = _changed(scenario, runs=runs, seed=seed)
    return make_result(
        "simulation",
        chosen.name,
        chosen.seed,
        _predicted(chosen, say, paths=True),
        lossless=chosen.sampling.lossless,
        warmup=chosen.workload.warmup_requests,
        taken_as_exact=taken_as_exact(chosen),
        schedule=chosen.schedule.name,
    )


def run(
    scenario: Scenario,
    runs: int | None = None,
    seed: int | None = None,
    say: Progress = silent,
    json: str | None = None,
    recording: Path | None = None,
) -> Result:
    """Execute a scenario with real processes on this machine (needs the extra ``executor``).

    Args:
        runs, seed: values in place of the scenario's.
        json, recording: files for the committed tokens of a run that fails.

    Raises:
        UserError: something the scenario names is wrong.
        RunError: a worker does not answer, or a run failed.

    >>> from treepipe import Scenario, run
    >>> import torch  # what runs need
    >>> result = run(Scenario.of({
    ...     "name": "real",
    ...     "emulate": False,
    ...     "target": {"checkpoint": "reference"},
    ...     "drafts": [{"source": "ngram"}],
    ...     "pipelines": [{"stages": [{"device": "emulated-20ms"}]}],
    ...     "schedule": {"name": "pp"},
    ...     "workload": {"prompts": "reference:heldout", "requests": 1, "new_tokens": 3},
    ... }))
    >>> result.source, result.sessions[0].new_tokens
    ('execution', 3)
    """
    need_executor("treepipe.run")
    from treepipe.executor.fork_server import import_ahead
    from treepipe.executor.remote import ask_all
    from treepipe.results.result import make_result
    from treepipe.sim.theory.admission import resolve_admission

    chosen = resolve_admission(_changed(scenario, runs=runs, seed=seed))
    ask_all(chosen.workers, chosen.key_file)
    import_ahead()
    from treepipe.executor.execute import execute  # with PyTorch: now that all is checked

    execution = execute(chosen, say, json, recording)
    return make_result(
        "execution",
        chosen.name,
        chosen.seed,
        execution.traces,
        lossless=chosen.sampling.lossless,
        memory=execution.peak_memory_bytes,
        warmup=chosen.workload.warmup_requests,
        recordings=execution.recordings,
        schedule=chosen.schedule.name,
    )


def compare(
    a: Scenario,
    b: Scenario,
    runs: int | None = None,
    changed: Sequence[str] = (),
    say: Progress = silent,
) -> Comparison:
    """Simulate two scenarios on common random numbers; ``b`` takes the seed of ``a``.

    Args:
        runs: runs of both, in place of the scenarios' numbers.
        changed: the changes that distinguish ``b`` if both scenarios have the same name.

    Raises ``UserError``: something is wrong with one of them, or their runs cannot be paired.

    >>> from treepipe import Scenario, compare
    >>> slow = Scenario.of({
    ...     "name": "slow",
    ...     "target": {"layers": 4},
    ...     "pipelines": [{"stages": [{"device": {"stage_ms": {1: 20.0}}, "count": 2}]}],
    ...     "schedule": {"name": "pp"},
    ... })
    >>> fast = slow.with_(name="fast", **{"pipelines.0.stages.0.device": {"stage_ms": {1: 10.0}}})
    >>> round(compare(slow, fast).differences["time_between_tokens_ms"].difference.mean)
    -20
    """
    from treepipe.results.versus import Side, check_pairs, distinct_names, make_comparison

    a = _changed(a, runs=runs)
    b = distinct_names(a, _changed(b, runs=runs, seed=a.seed), changed)
    check_pairs(a, b)
    first, second = (_predicted(each, say, paths=False) for each in (a, b))
    return make_comparison(Side(a, first), Side(b, second))


@dataclass(frozen=True)
class Validation:
    """Predictions, runs and their relative errors; ``validate`` makes one.

    >>> from treepipe import Validation
    >>> Validation((), {"schema": "treepipe.validation/1", "scenarios": []}, ()).warnings
    ()
    """

    rows: tuple[Row, ...]
    content: dict[str, Any]
    scenarios: tuple[Scenario, ...]

    @property
    def metrics(self) -> dict[str, MetricErrors]:
        """Predicted, replayed and measured figures of the first scenario, with errors."""
        from treepipe.validation.validation import metric_errors

        return metric_errors(self.rows[0])

    @property
    def utilization(self) -> dict[str, BusyShares]:
        """The first scenario's busy shares, predicted, replayed and measured, by device."""
        from treepipe.validation.validation import busy_shares

        return busy_shares(self.rows[0])

    @property
    def lossless(self) -> bool | None:
        """Whether all texts equal plain greedy decoding; None where texts are sampled."""
        found = [row.lossless for row in self.rows]
        return None if None in found else all(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(warning for row in self.rows for warning in row.warnings)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file ``treepipe.validation/1``."""
        return self.content

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` of the first scenario's metrics; needs pandas."""
        return data_frame(self._table())

    def plot(self) -> Figure:
        """Draw the first scenario's timelines, simulated with the run's acceptance and executed."""
        from treepipe.results.timeline import timelines_figure

        row = self.rows[0]
        return timelines_figure([("simulated", row.replay), ("executed", row.execution)], row.label)

    def __repr__(self) -> str:
        return "\n".join(
            f"{row.label}: {row.predicted.mean:.4g} ms between tokens predicted, "
            f"{row.measured:.4g} ms measured ({row.error:+.1%})"
            for row in self.rows
        )

    def _repr_html_(self) -> str:
        from treepipe.results.sheet import notebook
        from treepipe.validation.validation_report import metrics_sheet

        return notebook([metrics_sheet(self.content["scenarios"][0])], self.warnings)

    def _table(self) -> list[dict[str, Any]]:
        return [{"name": name, **asdict(each)} for name, each in self.metrics.items()]


def validate(
    scenario: Scenario, calibrate_on: str | None = None, say: Progress = silent
) -> Validation:
    """Predict a scenario, execute it, and compare the two.

    Args:
        calibrate_on: prompts to calibrate acceptance on, in place of the scenario's acceptance.

    Raises:
        UserError: something the scenario names is wrong.
        RunError: a worker does not answer, or the run failed.

    >>> from treepipe import Scenario, validate
    >>> import torch  # what runs need
    >>> found = validate(Scenario.of({
    ...     "name": "held against a run",
    ...     "target": {"checkpoint": "reference"},
    ...     "drafts": [{"source": "ngram"}],
    ...     "pipelines": [{"stages": [{"device": {"stage_ms": {1: 10.0, 64: 11.0}}}]}],
    ...     "schedule": {"name": "pp"},
    ...     "workload": {"prompts": "reference:heldout", "requests": 1, "new_tokens": 4},
    ... }))
    >>> found.lossless, found.metrics["time_between_tokens_ms"].unit
    (True, 'ms')
    """
    need_executor("treepipe.validate")
    from treepipe.executor.remote import ask_all

    ask_all(scenario.workers, scenario.key_file)
    from treepipe.validation.comparison import Case
    from treepipe.validation.comparison import compare as predict_and_run
    from treepipe.validation.validation import entry, validation

    rows = tuple(predict_and_run([Case(scenario.name, scenario, calibrate_on)], say))
    return Validation(rows, validation([entry(row) for row in rows]), (scenario,))


@dataclass(frozen=True)
class Plan:
    """The result of a search: the ranking and the refused candidates.

    >>> from treepipe import plan
    >>> from treepipe.planner.cluster import Cluster
    >>> found = plan(Cluster.of({
    ...     "name": "two stages",
    ...     "runs": 2,
    ...     "target": {"layers": 4},
    ...     "pipelines": [{"stages": [{"device": {"stage_ms": {1: 20.0}}, "count": 2}]}],
    ...     "workload": {"new_tokens": 4},
    ...     "search": {"schedules": ["pp"]},
    ... }))
    >>> found.rows[0]["name"], found.metrics["time_between_tokens_ms"].mean > 40
    ('pp', True)
    """

    found: SearchResult

    @property
    def best(self) -> Scenario:
        """The best plan as a scenario; if no plan keeps the limits, the one nearest to them."""
        return self.found.best.candidate.scenario

    @property
    def feasible(self) -> bool:
        """Whether a plan keeps the limits."""
        return self.found.feasible

    @property
    def metrics(self) -> dict[str, Any]:
        """The best plan's figures with intervals, by name."""
        return dict(self.found.best.outcome.metrics)

    @property
    def utilization(self) -> dict[str, Any]:
        """The busy shares of the best plan's devices."""
        return dict(self.found.best.outcome.utilization)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The best plan's warnings."""
        return self.found.best.outcome.warnings

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The ranking, best first: each plan's name and goal."""
        goal = self.found.cluster.search.goal
        return [
            {"name": each.candidate.label, **each.outcome.metrics[goal].as_dict()}
            for each in self.found.ranking
            if goal in each.outcome.metrics
        ]

    def examine(self, name: str, *given: str, say: Progress = silent) -> Finding:
        """Run an analysis by its name.

        The methods below return the results as lists and values.

        Args:
            given: values of the analysis's option of ``treepipe plan``.

        Raises:
            UserError: the analysis does not exist or is not possible.
        """
        from treepipe.planner.analysis import ANALYSES

        if name not in ANALYSES:
            raise UserError(f"examine({name!r}): there are {', '.join(ANALYSES)}")
        finding = ANALYSES[name].finding
        finding.check(self.found.cluster, given)
        return finding.run(self.found, say, given)

    def sensitivity(self, say: Progress = silent) -> list[Sensitivity]:
        """Compute the effect of 10 % less and more of each input on the best plan's goal, largest
        first; empty if no plan keeps the limits.

        Raises ``UserError``: an input cannot be that much larger.
        """
        from treepipe.planner.sensitivity import sensitivities

        return sensitivities(self.found, say)

    def break_even(self, key: str, say: Progress = silent) -> BreakEven | None:
        """Find where another schedule becomes the best as one input changes; None if no plan keeps
        the limits.

        Args: ``key``: ``KEY`` or ``KEY=LOW:HIGH``, as for ``--break-even``.

        Raises ``UserError``: the key does not exist, or a value is refused.
        """
        from treepipe.planner.break_even import BreakEvens

        return BreakEvens.run(self.found, say, [key]).even

    def break_even_map(self, x: str, y: str, say: Progress = silent) -> Regions | None:
        """Find the best schedule at values of two inputs; None if no plan keeps the limits.

        Args: ``x``, ``y``: two different inputs, each as for ``break_even``.

        Raises ``UserError``: a key does not exist, both are the same, or a value is refused.
        """
        from treepipe.planner.break_even import axes_of, regions

        across, up = axes_of((x, y), self.found.cluster)
        return regions(self.found, across, up, say) if self.feasible else None

    def capacity(self, say: Progress = silent) -> list[Capacity]:
        """Find the largest arrival rate that the best plan of each schedule serves within the
        limits, largest first.

        Raises ``UserError``: the cluster has no arrival rate, or no limit that depends on load.
        """
        from treepipe.planner.capacity import capacities

        return capacities(self.found, say)

    def robustness(self, say: Progress = silent) -> list[StressCase]:
        """Evaluate the best plan's goal with one thing wrong: jitter, a burst, a slow or a lost
        device; empty if no plan keeps the limits.

        Raises ``UserError``: a case is refused.
        """
        from treepipe.planner.robustness import stress_cases

        return stress_cases(self.found, say)

    def plot(self) -> Figure:
        """Draw the Pareto front: every plan by the goal and each other goal.

        Raises ``UserError``: no plan keeps the limits.
        """
        from treepipe.planner.front_plot import search_figure

        if not self.feasible:
            raise UserError(f"{self.found.cluster.path}: no plan keeps the limits; none is drawn")
        return search_figure(self.found)

    def report(self, folder: Path | str) -> Path:
        """Write the page of ``treepipe plan --report``, and return its path.

        Raises ``UserError``: such a page exists already, or it cannot be written there.
        """
        from treepipe.files.outputs import REPORT, REPORT_PAGE, check_outputs
        from treepipe.planner.page import plan_report
        from treepipe.report.page import write_report

        check_outputs({REPORT: folder}, keep=(REPORT,))
        write_report(lambda: plan_report(self.found), Path(folder))
        return Path(folder) / REPORT_PAGE

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file ``treepipe.plan/1``."""
        from treepipe.planner.report import plan_content

        return plan_content(self.found)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` of the ranking; ``UserError`` without pandas."""
        return data_frame(self.rows)

    def __repr__(self) -> str:
        from treepipe.planner.report import verdict

        return "\n".join(verdict(self.found))

    def _repr_html_(self) -> str:
        from treepipe.planner.report import (
            all_taken_as_exact,
            binding,
            equal_plans,
            plan_warnings,
            short_table,
            verdict,
        )
        from treepipe.results.sheet import notebook
        from treepipe.results.units import taken_as_exact

        found, first = self.found, taken_as_exact(all_taken_as_exact(self.found))
        said = [*equal_plans(found), *verdict(found), *binding(found), *plan_warnings(found)]
        return notebook([short_table(found)], said, first)


def plan(cluster: Cluster | Path | str, say: Progress = silent) -> Plan:
    """Search schedules, parameters and partitions for a cluster and a goal.

    Args:
        cluster: a cluster, or the path of its file.

    Raises:
        UserError: the cluster is wrong, or no plan is possible.
        RunError: a simulation came to a standstill.

    >>> from treepipe import plan
    >>> from treepipe.planner.cluster import Cluster
    >>> found = plan(Cluster.of({
    ...     "name": "two stages",
    ...     "runs": 2,
    ...     "target": {"layers": 4},
    ...     "pipelines": [{"stages": [{"device": {"stage_ms": {1: 20.0}}, "count": 2}]}],
    ...     "workload": {"new_tokens": 8},
    ...     "search": {"schedules": ["pp"]},
    ... }))
    >>> found.best.schedule.name, found.feasible
    ('pp', True)
    >>> found.sensitivity()[0].key, found.break_even("scale.latency").matters
    ('scale.stages', True)
    >>> found.break_even_map("scale.latency=1:2", "scale.drafts=1:2").best[0][0]
    'pp'
    >>> [each.worker for each in found.robustness() if each.case == "a device 1.5 times as slow"]
    ['pipeline0.stage1']
    """
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.halving import search

    return Plan(search(cluster if isinstance(cluster, Cluster) else Cluster.load(cluster), say))


def sweep(
    grid: Sweep | Path | str,
    out: Path | str,
    jobs: int | None = None,
    backend: str = "joblib",
    *,
    force: bool = False,
    say: Progress = silent,
) -> SweepResult:
    """Simulate many scenarios into Parquet files, skipping those already there (needs the extra
    ``sweep``).

    Args:
        grid: a sweep, or the path of its file.
        out: folder of the Parquet files.
        jobs: simulations at once; None: the number of cores.
        backend: "joblib" is processes of this machine, "ray://HOST:PORT" or "dask://HOST:PORT" a
            running cluster.
        force: delete results of another sweep in ``out``.

    Raises:
        UserError: the file is wrong, ``out`` holds something else, or no cluster answers.
        RunError: a file could not be written, or a cluster failed.

    >>> from tempfile import TemporaryDirectory
    >>> from treepipe import sweep
    >>> from treepipe.sweeps.sweep import Sweep
    >>> sizes = Sweep.of({
    ...     "name": "sizes",
    ...     "target": {"layers": 4},
    ...     "pipelines": [{"stages": [{"device": {"stage_ms": {1: 20.0}}, "count": 2}]}],
    ...     "schedule": {"name": "pp"},
    ...     "sweep": {"grid": {"workload.new_tokens": [4, 8], "links.default.latency_ms": [0, 1]}},
    ... })
    >>> import pyarrow  # what the files are written with
    >>> with TemporaryDirectory() as folder:
    ...     found = sweep(sizes, folder, jobs=1)
    ...     found.rows, found.table(["workload.new_tokens"])["workload.new_tokens"].to_pylist()
    (4, [4, 4, 8, 8])
    """
    from treepipe.sim.engine import engine
    from treepipe.sweeps.sweep import Sweep, carry_out

    loaded = grid if isinstance(grid, Sweep) else Sweep.load(grid)
    with engine(backend, jobs):
        return carry_out(loaded, Path(out), say, force=force)


def calibrate(
    what: Literal["device", "links", "acceptance", "run"] = "device",
    out: Path | str | None = None,
    say: Progress = silent,
    **options: Any,
) -> Path:
    """Measure this machine, links, or acceptance; write a profile that scenarios can name.

    Args:
        out: the profile's file, or the folder for a scenario's ``links`` and for a ``run`` on
            several hosts; None: ``calibrated-WHAT`` in the current folder.
        options: options of ``treepipe calibrate`` (of its ``links``, ``acceptance`` and ``run``),
            by name.

    Returns:
        The profile's file, or the folder.

    Raises:
        UserError: an option is unknown, missing or wrong, or the file may not be written.

    >>> from treepipe import calibrate
    >>> import torch  # what is measured
    >>> calibrate("device", spead=3)
    Traceback (most recent call last):
        ...
    treepipe.core.errors.UserError: calibrate('device'): no option 'spead'; there are device, \
draft, dtype, force, model, out, seconds, settings
    """
    need_executor("treepipe.calibrate")
    from treepipe.executor.measure.calibrate import CALIBRATIONS

    if what not in CALIBRATIONS:
        raise UserError(f"calibrate({what!r}): there are {', '.join(CALIBRATIONS)}")
    request, measure = CALIBRATIONS[what]
    names = sorted(each.name for each in fields(request))
    for name in options:
        if name not in names:
            raise UserError(
                f"calibrate({what!r}): no option {name!r}; there are {', '.join(names)}"
            )
    if what == "run" and "scenario" not in options:
        raise UserError("calibrate('run'): option 'scenario' is missing")
    if out is not None:
        options["out"] = Path(out)
    files = measure(request(**options), say)
    return files[0] if len(files) == 1 else files[0].parent


def _predicted(scenario: Scenario, say: Progress, *, paths: bool) -> list[Trace]:
    from treepipe.sim.predict import predict

    say("simulating", scenario.runs)
    return predict(scenario, lambda: say("", 1), paths=paths)


def _changed(scenario: Scenario, **given: int | None) -> Scenario:
    changes = {key: value for key, value in given.items() if value is not None}
    return scenario.with_(**changes) if changes else scenario
