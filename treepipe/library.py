"""The public library: everything that ``import treepipe`` gives; no other package imports it.

Nothing is computed here. Each function calls the package that does the work, imports it on first
use, and returns its result. ``docs/api.md`` lists the names; ``docs/tutorial.md`` shows their use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from treepipe.core.errors import UserError
from treepipe.extras import need_executor
from treepipe.progress import Progress, silent
from treepipe.results.result import Result
from treepipe.scenario.scenario import Scenario

if TYPE_CHECKING:
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.plan import Plan
    from treepipe.results.trace import Trace
    from treepipe.results.versus import Comparison
    from treepipe.sweeps.sweep import Sweep, SweepResult
    from treepipe.validation.validation import Validation


def simulate(
    scenario: Scenario, runs: int | None = None, seed: int | None = None, say: Progress = silent
) -> Result:
    """Predict a scenario.

    Args:
        runs, seed: values in place of the scenario's.

    Raises ``UserError``: something the scenario names is wrong.

    >>> from treepipe import Scenario, simulate
    >>> result = simulate(Scenario.load("studies/scenarios/chain.toml"), runs=8)
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
    >>> short = {"workload.requests": 1, "workload.new_tokens": 3}
    >>> result = run(Scenario.load("studies/scenarios/pp.toml").with_(**short), runs=1)
    >>> result.source, result.sessions[0].new_tokens
    ('execution', 3)
    """
    need_executor("treepipe.run")
    from treepipe.executor.hosts.fork_server import import_ahead
    from treepipe.executor.hosts.remote import ask_all
    from treepipe.results.result import make_result
    from treepipe.sim.theory.closed_form import resolve_admission

    chosen = resolve_admission(_changed(scenario, runs=runs, seed=seed))
    ask_all(chosen.workers, chosen.key_file)
    import_ahead()
    from treepipe.executor.run.controller import execute  # with PyTorch: now that all is checked

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
    >>> slow = Scenario.load("studies/scenarios/pp.toml")
    >>> found = compare(slow, slow.with_(**{"scale.stages": 0.5}), runs=2)
    >>> found.differences["time_between_tokens_ms"].difference.mean < 0
    True
    """
    from treepipe.results.versus import Side, check_pairs, distinct_names, make_comparison

    a = _changed(a, runs=runs)
    b = distinct_names(a, _changed(b, runs=runs, seed=a.seed), changed)
    check_pairs(a, b)
    first, second = (_predicted(each, say, paths=False) for each in (a, b))
    return make_comparison(Side(a, first), Side(b, second))


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
    >>> short = {"workload.requests": 1, "workload.new_tokens": 4}
    >>> found = validate(Scenario.load("studies/scenarios/pp.toml").with_(**short))
    >>> found.lossless, found.metrics["time_between_tokens_ms"].unit
    (True, 'ms')
    """
    need_executor("treepipe.validate")
    from treepipe.executor.hosts.remote import ask_all

    ask_all(scenario.workers, scenario.key_file)
    from treepipe.validation.comparison import Case
    from treepipe.validation.comparison import compare as predict_and_run
    from treepipe.validation.validation import Validation

    return Validation(tuple(predict_and_run([Case(scenario.name, scenario, calibrate_on)], say)))


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
    >>> [each.worker for each in found.robustness() if each.case == "a device 1.5 times as slow"]
    ['pipeline0.stage1']
    """
    from treepipe.planner.cluster import Cluster
    from treepipe.planner.plan import search

    return search(cluster if isinstance(cluster, Cluster) else Cluster.load(cluster), say)


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
draft, dtype, eager, force, model, out, seconds, settings
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
