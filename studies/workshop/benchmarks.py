"""Benchmarks: the prediction's accuracy, the executor's overhead, and the speed of both.

    python -m treepipe.studies.workshop.benchmarks --out bench/results.json

Every figure is a median; rates that depend on the machine come with a yardstick measured in the
same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import Launch, prepare
from treepipe.results.sheet import Sheet, words
from treepipe.results.show import ProgressBars, console, print_sheet
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import Scenario
from treepipe.studies.real_speed import generate_rate, whole_model
from treepipe.studies.workshop.message_cost import curve_cost, message_cost, step_cost
from treepipe.studies.workshop.regret import regret_figures
from treepipe.studies.workshop.simulator_speed import (
    Figure,
    figure,
    simulator_memory,
    simulator_speed,
)
from treepipe.validation.demo import SCENARIO, run_demo
from treepipe.validation.judgement import Row

FREE_STAGES = {"emulate": False, "workload.requests": 6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    with ProgressBars(quiet=False) as say:
        rows = run_demo(say)
        figures = _demo_figures(rows)
        say("running without emulation", 7)
        figures += [*message_cost(), *curve_cost()]
        figures += step_cost(_launch({"schedule.name": "pp"}))
        say("", 1)
        figures += _split(say)
        figures += _real_time(say)
        figures += _sampling_overhead(say)
        figures += simulator_speed()
        figures += simulator_memory()
        figures += regret_figures(say)
    content = {
        "schema": "treepipe.bench/1",
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
        "figures": figures,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=2) + "\n")
    _print(figures)


def _demo_figures(rows: list[Row]) -> list[Figure]:
    return [
        figure(f"demo: error, {row.schedule}", abs(row.error), "1", "at most 0.10, aim 0.05")
        for row in rows
    ]


def _split(say: Callable[[str, int], None]) -> list[Figure]:
    """Measure the parts of a flowspec step on this machine, without emulation, as medians."""
    launch = _launch({})
    with Controller(launch.roles, launch.deployment) as controller:
        trace, _ = controller.run(launch.deployment)
    say("", 1)
    kinds = {
        "transport (one message)": "transfer",
        "tree work (schedule per returned segment)": "decide",
        "pruning (cache compaction at a stage)": "prune",
        "stage pass (layers and cache)": "compute",
        "draft pass": "draft",
        "evaluation (output projection)": "evaluate",
    }
    return [
        figure(f"real cost, {name}", _median(trace, kind), "ms") for name, kind in kinds.items()
    ]


def _median(trace: Trace, kind: str) -> float:
    return statistics.median(s.end_ms - s.start_ms for s in trace.spans if s.kind == kind)


def _real_time(say: Callable[[str, int], None]) -> list[Figure]:
    """Measure tokens per second of naive_pp with one stage, generate(), and assisted generation."""
    launch = _launch({"schedule.name": "naive_pp", "pipelines.0.stages.0.count": 1})
    with Controller(launch.roles, launch.deployment) as controller:
        trace, _ = controller.run(launch.deployment)
    seconds = sum(r.finished_ms - r.started_ms for r in trace.requests) / 1e3
    ours = sum(len(r.tokens) for r in trace.requests) / seconds
    say("", 1)
    requests = launch.deployment.requests
    assert launch.draft is not None, "the demonstration's draft is a model"
    target, draft = whole_model(launch.target), whole_model(launch.draft)
    plain = generate_rate(target, None, requests, 1)
    assisted = generate_rate(target, draft, requests, 1)
    say("", 2)
    return [
        figure("no emulation: naive_pp, 1 stage", ours, "tokens/s"),
        figure("no emulation: generate()", plain, "tokens/s"),
        figure("no emulation: assisted generate()", assisted, "tokens/s"),
        figure("no emulation: naive_pp / generate()", ours / plain, "1"),
    ]


def _sampling_overhead(say: Callable[[str, int], None]) -> list[Figure]:
    """Measure an evaluation's median time (projection and rule), greedy and two lossless rules."""
    drawn = {"sampling.temperature": 1.0}
    cases: Mapping[str, Mapping[str, Any]] = {
        "greedy": {},
        "sampling, exact": drawn,
        "sampling, rejection": {**drawn, "sampling.rule": "rejection"},
    }
    found = []
    for name, changes in cases.items():
        launch = _launch({"schedule.name": "specinfer", **changes})
        with Controller(launch.roles, launch.deployment) as controller:
            trace, _ = controller.run(launch.deployment)
        time_ms = _median(trace, "evaluate")
        found.append(figure(f"evaluation of a specinfer tree, {name}", time_ms, "ms"))
    say("", 2)
    return found


def _launch(changes: Mapping[str, Any]) -> Launch:
    """Prepare the demonstration's scenario without emulation, with ``changes``."""
    return prepare(Scenario.load(SCENARIO).with_(**FREE_STAGES, **changes))


def _print(figures: list[Figure]) -> None:
    sheet = Sheet("Benchmarks (medians)", words("figure", "value", "unit", "aim"))
    for each in figures:
        sheet.add(each["name"], f"{each['value']:.4g}", each["unit"], each["aim"])
    print_sheet(console(110), sheet)


if __name__ == "__main__":
    main()
