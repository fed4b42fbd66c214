"""DSD's region: gain and saving over N and t1/t0, by its formula and simulated; its claims checked.

One published number determines acceptance (the speed-up without adaptive verification); its N and
t1/t0 are not published, so they are assumed. Everything else is predicted. Adaptive verification is
measured with the bundled pair: real processes decode, and the target alone then reads every text
and counts the tokens that exact decoding would not have chosen after the same prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure

from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import Launch, prepare
from treepipe.progress import Progress
from treepipe.results.metrics import METRIC, run_metrics
from treepipe.results.sheet import Sheet
from treepipe.studies.dsd.testbed import (
    REGION_NODES,
    REGION_RATIO,
    T0_MS,
    Cell,
    Measured,
    Network,
    accepted_for,
    in_region,
    region_fields,
    simulate_cells,
    table3,
    table3_sheet,
)
from treepipe.studies.plots import gain_figure
from treepipe.studies.reproduction import Reproduction, predicted, published, score, score_sheet
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.judgement import OVERRUN

NODES, RATIO = 4, REGION_RATIO[0]
"""Nodes and ratio of the runs: the lower border of the claimed region."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A run with one tau_max.

    Attributes:
        token_ms: time between tokens.
        tokens: tokens per window.
        differing: share of tokens that are not the target's own choice after the same prefix (each
            has total variation 1 from greedy decoding).
        nats: mean surprise of the target at a token of the text.
    """

    tau_max: float
    token_ms: float
    tokens: float
    differing: float
    nats: float

    @property
    def window_ms(self) -> float:
        """Measured time of a window, which other load on the host increases."""
        return self.token_ms * self.tokens


def emulated_window_ms() -> float:
    """Return the longest window of the emulated nodes: drafting that is not hidden, and a pass."""
    cell = Cell(NODES, RATIO, 0.0)
    return T0_MS * (cell.gamma * cell.draft + cell.window + cell.ways)


def run_adaptive(taus: Sequence[float], prompts: int, tokens: int, say: Progress) -> list[Relaxed]:
    """Decode greedily over the emulated nodes with every tau_max; the first must be 0: exact."""
    torch.set_num_threads(1)
    runs = []
    for tau in taus:
        launch = _launch(tau, prompts, tokens)
        say(f"running tau_max = {tau:g}", len(launch.deployment.requests))
        first = replace(launch.deployment, requests=launch.deployment.requests[:1])
        with Controller(launch.roles, launch.deployment) as controller:
            controller.run(first)  # warm-up
            trace, _ = controller.run(launch.deployment, lambda: say("", 1))
        metrics = run_metrics(trace)
        read = _read(launch, [tuple(request.tokens) for request in trace.requests])
        runs.append(Relaxed(tau, metrics[METRIC], metrics["tokens_per_round"], *read))
    return runs


def _launch(tau: float, prompts: int, tokens: int) -> Launch:
    changes = {
        "target.layers": 8,
        "sampling.rule": "adaptive",
        "sampling.tau_max": tau,
        "workload.requests": prompts,
        "workload.new_tokens": tokens,
        "workload.stop_at_end_of_text": False,
        "runs": 1,
    }
    return prepare(Cell(NODES, RATIO, 0.5).scenario("dsd", **changes))


def _read(launch: Launch, texts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the share of tokens that are not the target's choice, and its mean surprise (nats)."""
    requests = launch.deployment.requests
    longest = max(len(r.prompt) + len(text) for r, text in zip(requests, texts, strict=True))
    whole = WholeModel(launch.target, longest)
    wrong, nats = list[float](), list[float]()
    for request, text in zip(requests, texts, strict=True):
        tokens = [*request.prompt, *text]
        whole.stage.open(0)
        logits = whole.read(tokens[:-1], range(len(tokens) - 1), None)[len(request.prompt) - 1 :]
        whole.stage.close(0)
        chosen = torch.tensor(text)
        wrong += (logits.argmax(-1) != chosen).float().tolist()
        each = -logits.double().log_softmax(-1)[torch.arange(len(chosen)), chosen]
        nats += each.tolist()
    return fmean(wrong), fmean(nats)


NAME = "dsd-region"
PAGE = Path(__file__).with_name("page.md")
ASSUMED_AT = table3()[1].nodes, float(table3()[1].ratio)
"""N and t1/t0 of the published speed-up, assumed to be table 3's middle row."""
VARYING = Network(jitter=0.25, loss=0.01)


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job: the map, its runs, and the executor's part."""

    nodes: Sequence[int] = (2, 3, 4, 5, 6, 8, 12)
    ratios: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 5.0, 7.0, 10.0, 20.0)
    runs: int = 4
    tokens: int = 400
    taus: Sequence[float] = (0.0, 0.5, 1.0)
    prompts: int = 3
    new_tokens: int = 40


SHORT = Settings()
FULL = Settings(runs=12, tokens=1000, taus=(0.0, 0.25, 0.5, 0.75, 1.0), prompts=12, new_tokens=60)


@dataclass(frozen=True, slots=True)
class Map:
    """The cells, and their simulated results by label: over constant links, and ``varied``."""

    cells: Sequence[Cell]
    seen: Mapping[str, Measured]
    varied: Mapping[str, Measured]


def study(settings: Settings, say: Progress) -> StudyResult:
    """Calibrate, simulate the map, check the claims, and run the adaptive rule."""
    gain = float(published()["dsd"]["speedup_non_adaptive"])
    beta = accepted_for(gain, Cell(*ASSUMED_AT, beta=0.5))
    cells = [Cell(n, r, beta) for n, r in product(settings.nodes, settings.ratios)]
    shaken = [replace(cell, network=VARYING) for cell in cells]
    seen, varied = (
        simulate_cells(each, settings.runs, settings.tokens, say) for each in (cells, shaken)
    )
    region = Map(cells, seen, varied)
    relaxed = run_adaptive(settings.taus, settings.prompts, settings.new_tokens, say)
    made = Reproduction(NAME, PAGE)
    made.add(_entries(region, gain), "map", "Gain over plain decoding")
    title = "Adaptive verification, measured on real processes"
    made.add(_adaptive_entries(relaxed), "adaptive", title)
    made.tables += table3_sheet(f"{NAME}-table3"), _scores(made.entries, gain)
    fields = {**_fields(region), **_adaptive_fields(relaxed)}
    return made.result(fields, _figure(region))


def _fields(region: Map) -> dict[str, Any]:
    rows, seen, cells = table3(), region.seen, region.cells
    off = {c: abs(seen[c.label].gain.mean / c.gain - 1) for c in cells}
    shaken = [region.varied[label].gain.mean / seen[label].gain.mean - 1 for label in seen]
    return {
        "region": region_fields(cells),
        "nodes": REGION_NODES,
        "ratios": REGION_RATIO,
        "place": Cell(*ASSUMED_AT, beta=cells[0].beta),
        "network": VARYING,
        "too_high": max(off.values()),
        "too_high_near": min((error for c, error in off.items() if c.ways < 1), default=None),
        "shaken": (min(shaken), max(shaken)),
        "printed": ", ".join(f"{row.saving:.0%}" for row in rows),
        "printed_nodes": ", ".join(f"{row.nodes}" for row in rows),
        "of_communication": ", ".join(f"{row.tokens_of_communication:.1f}" for row in rows),
        "of_time": ", ".join(f"{row.tokens_of_time:.1f}" for row in rows),
        "asked_gains": ", ".join(f"{row.gain:.1f}" for row in rows),
        "largest": max(published()["dsd"]["speedup"].values()),
    }


def _adaptive_fields(runs: Sequence[Relaxed]) -> dict[str, Any]:
    longest, window_ms = max(each.window_ms for each in runs), emulated_window_ms()
    sentences = (
        f"tau_max = {each.tau_max:g}: {each.tokens / runs[0].tokens - 1:+.1%} tokens per window, "
        f"{each.differing:.1%} of the tokens are not exact decoding's"
        for each in runs[1:]
    )
    return {
        "run_at": Cell(NODES, RATIO, 0.5),
        "adaptive": "; ".join(sentences),
        "window_ms": window_ms,
        "overrun_ms": longest if longest >= OVERRUN * window_ms else None,
    }


def _entries(region: Map, gain: float) -> list[Entry]:
    savings = {Cell(row.nodes, row.ratio, 0.0).label: row.saving for row in table3()}
    entries = []
    for cell in region.cells:
        key, place = cell.label, (cell.nodes, cell.ratio)
        fact, seen = (gain if place == ASSUMED_AT else None), region.seen[key]
        entries += [
            predicted(f"{key}/gain", "1", seen.gain, fact, fitted=True),
            predicted(f"{key}/saving", "1", seen.saving, savings.get(key)),
            predicted(f"{key}/gain/formula", "1", cell.gain),
            predicted(f"{key}/gain/expected", "1", cell.expected_gain),
            predicted(f"{key}/gain/varying_links", "1", region.varied[key].gain),
        ]
    return entries


def _adaptive_entries(runs: Sequence[Relaxed]) -> list[Entry]:
    base, entries = runs[0], []
    for each in runs:
        key = f"adaptive/tau_max={each.tau_max:g}"
        entries += [
            Entry(f"{key}/speed_up", "1", measured=base.token_ms / each.token_ms),
            Entry(f"{key}/tokens_per_round", "tokens", measured=each.tokens),
            Entry(f"{key}/differing_share", "1", measured=each.differing),
            Entry(f"{key}/surprise_nats", "nats/token", measured=each.nats),
        ]
    return entries


def _scores(entries: Sequence[Entry], gain: float) -> Sheet:
    """Show errors for table 3's savings: simulation, the speed-up alone, and (N - 1) / N."""
    nodes = {f"{Cell(s.nodes, s.ratio, 0.0).label}/saving": s.nodes for s in table3()}
    same = dict.fromkeys(nodes, 1 - 1 / gain)
    above = {key: (n - 1) / n for key, n in nodes.items()}
    scores = [
        ("simulated, acceptance from the speed-up", score(entries)),
        ("1 - 1/speed-up, everywhere", score(entries, same)),
        ("(N - 1)/N, which is not the formula", score(entries, above)),
    ]
    title = "Error on table 3's savings, share of communication"
    return score_sheet(f"{NAME}-scores", scores, title)


# --- plots ---------------------------------------------------------------------------------------


def _figure(region: Map) -> Figure:
    ways: dict[str, Callable[[Cell], float]] = {
        "the paper's formula": lambda cell: cell.gain,
        "simulated": lambda cell: region.seen[cell.label].gain.mean,
        "simulated, links with jitter and loss": lambda cell: region.varied[cell.label].gain.mean,
    }
    places = {(f"{cell.nodes}", f"{cell.ratio:g}"): cell for cell in region.cells}
    panels = {name: {at: gain(each) for at, each in places.items()} for name, gain in ways.items()}
    frames = {(name, at): "-" for name in ways for at, each in places.items() if in_region(each)}
    title = "DSD: gain of speculation (framed: the claimed best region)"
    return gain_figure(title, panels, ("N, nodes", "t1 / t0"), frames)
