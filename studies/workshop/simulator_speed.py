"""The simulator's speed, and the growth of its memory: part of ``benchmarks.py``."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import simpy

from treepipe.core.requests import RequestTrace
from treepipe.core.schedules import systems
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import hit_ratio_pool
from treepipe.sim.world import Simulation
from treepipe.validation.demo import SCENARIO

Figure = dict[str, Any]
SIMULATED = {"target.layers": 8, "workload.requests": 6, "workload.new_tokens": 300}
MEMORY_AT_TOKENS = (100_000, 1_000_000)


def figure(name: str, value: float, unit: str, aim: str = "") -> Figure:
    return {"name": name, "value": value, "unit": unit, "aim": aim}


SPEEDS: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in tuple(systems()) if name not in ("flowspec", "starsd")},
    "starsd": {
        "pipelines": [{"count": 6, "stages": [{"device": "emulated-20ms"}]}],
        "workload.concurrency": 6,
    },
    "specpipe, w = 64, 8 stages": {"schedule.width": 64, "pipelines.0.stages.0.count": 8},
    "flowspec": {},
}


def simulator_speed() -> list[Figure]:
    """Measure tokens per second of work, L = 80, 4 stages, 6 requests of 300 tokens, thrice."""
    figures = []
    for label, changes in SPEEDS.items():
        named = {"schedule.name": label.split(",")[0]}
        deployment = deploy(Scenario.load(SCENARIO).with_(**named, **SIMULATED, **changes))
        rates, events = [], []
        for seed in range(3):
            source = PoolSource(hit_ratio_pool({1: 0.7, 8: 0.95}), 1, seed)
            simulation = Simulation(deployment, source, record_spans=False)
            start = time.perf_counter()
            trace = simulation.run()
            seconds = time.perf_counter() - start
            rates.append(sum(len(r.tokens) for r in trace.requests) / seconds)
            events.append(simulation.events / seconds)
        figures.append(figure(f"simulator: {label}", statistics.median(rates), "tokens/s"))
    bare = _bare_events()
    rate = statistics.median(events)  # of flowspec, the last schedule
    return [
        *figures,
        figure("simulator: events, flowspec", rate, "1/s"),
        figure("bare SimPy timeouts", bare, "1/s"),
        figure("simulator events / bare SimPy events", rate / bare, "1"),
    ]


class _Forgetful(Simulation):
    """A simulation that counts and drops finished requests' tokens, and records its memory."""

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
    """Return the peak resident memory of this process after each of ``MEMORY_AT_TOKENS``."""
    many = {"schedule.name": "starsd", "workload.requests": MEMORY_AT_TOKENS[-1] // 300 + 1}
    scenario = Scenario.load(SCENARIO).with_(**{**SIMULATED, **SPEEDS["starsd"], **many})
    source = PoolSource(hit_ratio_pool({1: 0.7, 8: 0.95}), 1, 0)
    simulation = _Forgetful(deploy(scenario), source, record_spans=False)
    simulation.run()
    return simulation.peaks_kib


def simulator_memory() -> list[Figure]:
    """Measure the growth of the peak from 100,000 to 1,000,000 tokens, in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        first, last = fresh.submit(_peaks_kib).result()
    growth = (last - first) / 1024
    return [figure("simulator: growth of memory over 1,000,000 tokens", growth, "MiB", "flat")]


def _bare_events(count: int = 200_000) -> float:
    env = simpy.Environment()

    def ticks() -> Any:
        for _ in range(count):
            yield env.timeout(1.0)

    env.process(ticks())
    start = time.perf_counter()
    env.run()
    return count / (time.perf_counter() - start)
