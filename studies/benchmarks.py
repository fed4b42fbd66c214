"""Benchmarks of our own: how good the prediction is, what the executor adds, how fast we are.

    python -m treepipe.studies.benchmarks --out bench/results.json

Every figure is a median; rates that depend on the machine come with a yardstick measured in the
same run.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, get_args

import simpy
import torch
from rich.console import Console
from rich.table import Table

from treepipe.executor.cluster import Cluster
from treepipe.executor.launch import Launch, prepare
from treepipe.planning import make_plan
from treepipe.presentation import Progress
from treepipe.scenario import ScheduleName
from treepipe.scenario_file import load_scenario
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import hit_ratio_pool
from treepipe.sim.world import Simulation
from treepipe.studies.demo import SCENARIO, run_demo
from treepipe.studies.judgement import Row
from treepipe.trace import BUSY, RequestTrace, Trace

Figure = dict[str, Any]
SIMULATED = ("target.layers=8", "workload.requests=6", "workload.new_tokens=300")
MEMORY_AT_TOKENS = (100_000, 1_000_000)
FREE_STAGES = ("emulate=false", "workload.requests=6")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    torch.set_num_threads(1)
    with Progress(quiet=False) as say:
        rows = run_demo(say)
        figures = _demo_figures(rows)
        say("running without emulation", 7)
        figures += _overhead(say)
        figures += _split(say)
        figures += _real_time(say)
        figures += _sampling_overhead(say)
        figures += _simulator_speed()
        figures += _simulator_memory()
    content = {
        "schema": "treepipe.bench/1",
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
        "figures": figures,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=2) + "\n")
    _print(figures)


def _figure(name: str, value: float, unit: str, aim: str = "") -> Figure:
    return {"name": name, "value": value, "unit": unit, "aim": aim}


def _demo_figures(rows: list[Row]) -> list[Figure]:
    return [
        _figure(f"demo: error, {row.schedule}", abs(row.error), "1", "at most 0.10, aim 0.05")
        for row in rows
    ]


def _overhead(say: Callable[[str, int], None]) -> list[Figure]:
    """What a token of plain decoding takes beyond all work on its way: messages and waking up.

    Without emulation, as a device's time hides what this host spends between two pieces of work.
    """
    launch = _launch(*FREE_STAGES, "schedule.name=pp")
    with Cluster(launch.roles, launch.plan) as cluster:
        trace, _ = cluster.run(launch.plan)
    say("", 1)
    tokens = sum(len(r.tokens) - 1 for r in trace.requests)
    spent = sum(r.finished_ms - r.first_token_ms for r in trace.requests)
    first = {r.session: r.first_token_ms for r in trace.requests}
    busy = sum(
        span.end_ms - span.start_ms
        for span in trace.spans
        if span.kind in BUSY and span.start_ms >= first.get(span.session, 0.0)
    )
    messages = len(launch.plan.pipelines[0]) + 1
    per_token = (spent - busy) / tokens
    return [
        _figure(
            f"overhead per token of pp, {messages} messages", per_token, "ms", "aim 1 ms a step"
        ),
        _figure("overhead per message", per_token / messages, "ms"),
    ]


def _split(say: Callable[[str, int], None]) -> list[Figure]:
    """Medians of what a flowspec step really costs on this machine, without padding."""
    launch = _launch(*FREE_STAGES)
    with Cluster(launch.roles, launch.plan) as cluster:
        trace, _ = cluster.run(launch.plan)
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
        _figure(f"real cost, {name}", _median(trace, kind), "ms") for name, kind in kinds.items()
    ]


def _median(trace: Trace, kind: str) -> float:
    return statistics.median(s.end_ms - s.start_ms for s in trace.spans if s.kind == kind)


def _real_time(say: Callable[[str, int], None]) -> list[Figure]:
    """Tokens per second of naive_pp with one stage, generate(), and assisted generation."""
    launch = _launch(
        *FREE_STAGES,
        "schedule.name=naive_pp",
        "pipelines.0.stages.0.count=1",
    )
    with Cluster(launch.roles, launch.plan) as cluster:
        trace, _ = cluster.run(launch.plan)
    seconds = sum(r.finished_ms - r.started_ms for r in trace.requests) / 1e3
    ours = sum(len(r.tokens) for r in trace.requests) / seconds
    say("", 1)
    plain, assisted = _generate(launch, assisted=False), _generate(launch, assisted=True)
    say("", 2)
    return [
        _figure("no emulation: naive_pp, 1 stage", ours, "tokens/s"),
        _figure("no emulation: generate()", plain, "tokens/s"),
        _figure("no emulation: assisted generate()", assisted, "tokens/s"),
        _figure("no emulation: naive_pp / generate()", ours / plain, "1"),
    ]


def _generate(launch: Launch, assisted: bool) -> float:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    models = [
        AutoModelForCausalLM.from_pretrained(each.directory, dtype=torch.float32).eval()
        for each in (launch.target, launch.draft)
        if each is not None
    ]
    extra = {"assistant_model": models[1]} if assisted else {}
    tokens, start = 0, time.perf_counter()
    for request in launch.plan.requests:
        ids = torch.tensor([request.prompt])
        text = models[0].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **extra,
        )
        tokens += text.shape[1] - ids.shape[1]
    return tokens / (time.perf_counter() - start)


def _sampling_overhead(say: Callable[[str, int], None]) -> list[Figure]:
    """Median time of an evaluation (projection and rule), greedy and with two lossless rules."""
    cases = {
        "greedy": ["schedule.name=specinfer"],
        "sampling, exact": ["schedule.name=specinfer", "sampling.temperature=1"],
        "sampling, rejection": [
            "schedule.name=specinfer",
            "sampling.temperature=1",
            "sampling.rule=rejection",
        ],
    }
    found = []
    for name, overrides in cases.items():
        launch = _launch(*FREE_STAGES, *overrides)
        with Cluster(launch.roles, launch.plan) as cluster:
            trace, _ = cluster.run(launch.plan)
        figure = _median(trace, "evaluate")
        found.append(_figure(f"evaluation of a specinfer tree, {name}", figure, "ms"))
    say("", 2)
    return found


SPEEDS: dict[str, tuple[str, ...]] = {
    **{name: () for name in get_args(ScheduleName) if name not in ("flowspec", "starsd")},
    "starsd": (
        'pipelines=[{count=6,stages=[{device="emulated-20ms"}]}]',
        "workload.concurrency=6",
    ),
    "specpipe, w = 64, 8 stages": ("schedule.width=64", "pipelines.0.stages.0.count=8"),
    "flowspec": (),
}


def _simulator_speed() -> list[Figure]:
    """Simulated tokens per second of work, L = 80, 4 stages, 6 requests of 300 tokens, thrice."""
    figures = []
    for label, overrides in SPEEDS.items():
        name = label.split(",")[0]
        scenario = load_scenario(SCENARIO, [f"schedule.name={name}", *SIMULATED, *overrides])
        plan = make_plan(scenario, SCENARIO)
        rates, events = [], []
        for seed in range(3):
            source = PoolSource(hit_ratio_pool({1: 0.7, 8: 0.95}), 1, seed)
            simulation = Simulation(plan, source, record_spans=False)
            start = time.perf_counter()
            trace = simulation.run()
            seconds = time.perf_counter() - start
            rates.append(sum(len(r.tokens) for r in trace.requests) / seconds)
            events.append(simulation.events / seconds)
        figures.append(_figure(f"simulator: {label}", statistics.median(rates), "tokens/s"))
    bare = _bare_events()
    rate = statistics.median(events)  # flowspec's, the last one
    return [
        *figures,
        _figure("simulator: events, flowspec", rate, "1/s"),
        _figure("bare SimPy timeouts", bare, "1/s"),
        _figure("simulator events / bare SimPy events", rate / bare, "1"),
    ]


class _Forgetful(Simulation):
    """Counts the tokens of finished requests and drops them; notes the memory on the way."""

    tokens = 0
    peaks_kib: tuple[int, ...] = ()

    def finished(self, request: RequestTrace) -> None:
        super().finished(request)
        self.trace.requests.clear()
        self.tokens += len(request.tokens)
        due = MEMORY_AT_TOKENS[len(self.peaks_kib) :]
        if due and self.tokens >= due[0]:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self.peaks_kib = (*self.peaks_kib, peak)


def _peaks_kib() -> tuple[int, ...]:
    """Peak resident memory of this process after each of ``MEMORY_AT_TOKENS``."""
    requests = f"workload.requests={MEMORY_AT_TOKENS[-1] // 300 + 1}"
    scenario = load_scenario(
        SCENARIO, ["schedule.name=starsd", *SIMULATED, requests, *SPEEDS["starsd"]]
    )
    source = PoolSource(hit_ratio_pool({1: 0.7, 8: 0.95}), 1, 0)
    simulation = _Forgetful(make_plan(scenario, SCENARIO), source, record_spans=False)
    simulation.run()
    return simulation.peaks_kib


def _simulator_memory() -> list[Figure]:
    """Growth of the peak from 100,000 to 1,000,000 tokens, in a process with no other past."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        first, last = fresh.submit(_peaks_kib).result()
    growth = (last - first) / 1024
    return [_figure("simulator: growth of memory over 1,000,000 tokens", growth, "MiB", "flat")]


def _bare_events(count: int = 200_000) -> float:
    env = simpy.Environment()

    def ticks() -> Any:
        for _ in range(count):
            yield env.timeout(1.0)

    env.process(ticks())
    start = time.perf_counter()
    env.run()
    return count / (time.perf_counter() - start)


def _launch(*overrides: str) -> Launch:
    return prepare(load_scenario(SCENARIO, overrides), SCENARIO)


def _print(figures: list[Figure]) -> None:
    table = Table(title="Benchmarks (medians)")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("unit")
    table.add_column("aim")
    for figure in figures:
        table.add_row(figure["name"], f"{figure['value']:.4g}", figure["unit"], figure["aim"])
    console = Console()
    (console if console.is_terminal else Console(width=110)).print(table)


if __name__ == "__main__":
    main()
