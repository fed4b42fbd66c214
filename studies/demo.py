"""The demonstration: calibrate, predict, run for real, and compare, schedule by schedule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from treepipe.errors import UserError
from treepipe.executor.calibration import WholeModel, record_acceptance
from treepipe.executor.cluster import Cluster
from treepipe.executor.launch import Launch, prepare
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.metrics import Interval, run_metrics, summarize
from treepipe.plan import Plan
from treepipe.planning import make_plan
from treepipe.recording import Recording
from treepipe.scenario import Scenario
from treepipe.scenario_file import load_scenario
from treepipe.sim.acceptance import PoolSource, ReplaySource
from treepipe.sim.pool import Pool
from treepipe.sim.predict import run_seeds
from treepipe.sim.world import simulate
from treepipe.studies.timeline import draw_timelines
from treepipe.trace import Trace, write_chrome_trace

SCENARIO = Path(__file__).parent / "scenarios" / "demo.toml"
SCHEDULES = ("pp", "naive_pp", "pruned_pp", "flowspec")
PLAIN_REQUESTS = 3
"""Plain decoding takes the same time for every token, so a few prompts tell it."""
CALIBRATION_TOKENS = 64
METRIC = "time_between_tokens_ms"


@dataclass(frozen=True, slots=True)
class Row:
    """One schedule's prediction and run.

    Attributes:
        predicted: time between tokens over the prediction's runs, made before the run.
        replayed: the same simulated with the run's own acceptance: only durations differ.
        measured: in the run.
    """

    schedule: str
    predicted: Interval
    replayed: float
    measured: float
    predicted_utilization: dict[str, float]
    utilization: dict[str, float]
    tokens_per_round: float
    lossless: bool
    prediction: Trace
    replay: Trace
    execution: Trace

    @property
    def error(self) -> float:
        """Signed, relative to the measurement."""
        return self.predicted.mean / self.measured - 1

    @property
    def duration_error(self) -> float:
        """The part of the error that is left when the run's acceptance is replayed."""
        return self.replayed / self.measured - 1


Say = Callable[[str, int], None]
"""Progress: what happens now, and how many steps of it there are; ("", 1) is one step done."""


def run_demo(say: Say) -> list[Row]:
    """Calibrate, predict all schedules, then run them; every time is in ``METRIC``'s unit."""
    torch.set_num_threads(1)  # small models; more threads only wait for each other
    scenario = load_scenario(SCENARIO)
    launch = prepare(scenario, SCENARIO)
    pool = _calibrate(launch, say)
    predictions = {}
    say("predicting", len(SCHEDULES) * scenario.runs)
    for name in SCHEDULES:
        plan = _plan_for(scenario, name, launch.plan)
        predictions[name] = [
            _step(say, simulate(replace(plan, seed=seed), PoolSource(pool, 16, seed)))
            for seed in run_seeds(scenario.seed, scenario.runs)
        ]
    texts = _plain_texts(launch)
    return _execute(scenario, launch, predictions, texts, say)


def write_demo(rows: list[Row], out: Path) -> None:
    """Pictures, traces and ``demo.json`` into ``out``."""
    for row in rows:
        draw_timelines(
            [
                ("simulated, with this run's acceptance replayed", row.replay),
                ("executed", row.execution),
            ],
            f"{row.schedule}: 4 emulated stages of 20 ms, links of 1 ms",
            out / f"timeline-{row.schedule}.png",
        )
    for label in ("prediction", "execution"):
        traces = [(row.schedule, getattr(row, label)) for row in rows]
        write_chrome_trace(traces, out / f"{label}-trace.json")
    content = {"schema": "treepipe.demo/1", "rows": [_row_content(row) for row in rows]}
    (out / "demo.json").write_text(json.dumps(content, indent=2) + "\n")


def claim_folder(out: Path) -> None:
    """Make the folder; refuse one that holds something other than an earlier demonstration."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file, not a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / "demo.json").exists():
        raise UserError(
            f"--out {out}: the folder holds something else than an earlier demonstration; "
            f"name an empty or a new one"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be made: {error.strerror}") from None


def _step(say: Say, trace: Trace) -> Trace:
    say("", 1)
    return trace


def _calibrate(launch: Launch, say: Say) -> Pool:
    """Acceptance on the calibration prompts, which are none of those predicted."""
    texts = load_texts("reference:calibration", SCENARIO.parent)
    prompts = tokenize(launch.target.directory, texts)
    say("calibrating acceptance", len(prompts))
    content = record_acceptance(
        launch.target,
        launch.draft,
        prompts,
        CALIBRATION_TOKENS,
        None,
        seed=launch.plan.seed,
        progress=lambda: say("", 1),
    )
    return Pool.from_content(content)


def _plan_for(scenario: Scenario, name: str, base: Plan) -> Plan:
    """The plan with another schedule; plain decoding with fewer requests."""
    section = scenario.schedule.model_copy(update={"name": name})
    requests = base.requests[: PLAIN_REQUESTS if name == "pp" else None]
    return make_plan(
        scenario.model_copy(update={"schedule": section}),
        SCENARIO,
        row_bytes=base.row_bytes,
        requests=requests,
    )


def _plain_texts(launch: Launch) -> list[tuple[int, ...]]:
    """Plain greedy decoding of the unpartitioned target: what every schedule must give."""
    longest = max(len(r.prompt) + r.max_new_tokens for r in launch.plan.requests)
    whole = WholeModel(launch.target, longest)
    return [
        tuple(whole.greedy(request.prompt, request.max_new_tokens, request.end_of_text))
        for request in launch.plan.requests
    ]


def _execute(
    scenario: Scenario,
    launch: Launch,
    predictions: dict[str, list[Trace]],
    texts: list[tuple[int, ...]],
    say: Say,
) -> list[Row]:
    rows = []
    say("starting 5 processes", 1)
    with Cluster(launch.roles, launch.plan) as cluster:
        say("", 1)
        for name, predicted in predictions.items():
            plan = _plan_for(scenario, name, launch.plan)
            section = scenario.schedule.model_copy(update={"name": name})
            say(f"running {name}", len(plan.requests))
            executed, recording = cluster.run(section, plan.requests, lambda: say("", 1))
            rows.append(_compare(name, plan, predicted, executed, recording, texts))
    return rows


def _compare(
    name: str,
    plan: Plan,
    predicted: list[Trace],
    executed: Trace,
    recording: Recording,
    texts: list[tuple[int, ...]],
) -> Row:
    metrics, shares = summarize(predicted)
    measured, measured_shares = summarize([executed])
    replay = simulate(plan, ReplaySource(recording))
    found = [request.tokens for request in executed.requests]
    return Row(
        schedule=name,
        predicted=metrics[METRIC],
        replayed=run_metrics(replay)[METRIC],
        measured=measured[METRIC].mean,
        predicted_utilization={key: share.mean for key, share in shares.items()},
        utilization={key: share.mean for key, share in measured_shares.items()},
        tokens_per_round=measured["tokens_per_round"].mean,
        lossless=found == texts[: len(found)],
        prediction=predicted[0],
        replay=replay,
        execution=executed,
    )


def _row_content(row: Row) -> dict[str, Any]:
    return {
        "schedule": row.schedule,
        "predicted_time_between_tokens_ms": row.predicted.mean,
        "predicted_interval_ms": [row.predicted.low, row.predicted.high],
        "measured_time_between_tokens_ms": row.measured,
        "error": row.error,
        "duration_error": row.duration_error,
        "tokens_per_round": row.tokens_per_round,
        "lossless": row.lossless,
        "predicted_utilization": row.predicted_utilization,
        "utilization": row.utilization,
    }
