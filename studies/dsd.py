"""DSD's region: gain and saving over N and t1/t0, by its formula and simulated; its claims checked.

N nodes and their links are a scenario in units of t0, a pass's compute on all nodes; t1 is a link's
latency (DSD, section 3). One published number determines acceptance (the speed-up without adaptive
verification); its N and t1/t0 are not published, so they are assumed. Everything else is predicted.
Adaptive verification is measured with the bundled pair: real processes decode, and the target alone
then reads every text and counts the tokens that exact decoding would not have chosen after the same
prefix.
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
from scipy.optimize import brentq

from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import Launch, prepare
from treepipe.progress import Progress
from treepipe.results.metrics import METRIC, run_metrics
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.theory import dsd
from treepipe.sim.theory.closed_form import closed_form
from treepipe.sim.theory.tokens import committed
from treepipe.studies.plots import gain_figure
from treepipe.studies.reproduction import (
    Reproduction,
    predicted,
    published,
    simulated,
    widened,
)
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.judgement import OVERRUN

SCENARIO = Path(__file__).with_name("dsd.toml")
T0_MS = 20.0


@dataclass(frozen=True, slots=True)
class Network:
    """Links with jitter and losses, which the paper assumes constant.

    Attributes:
        jitter: scale of a half-normal delay on top of each link's latency, as a share of it.
        loss: probability that a message is lost and sent again, ``again`` latencies later.
    """

    jitter: float = 0.0
    loss: float = 0.0
    again: float = 2.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A place on the map: N and t1 / t0.

    Attributes:
        beta: acceptance probability of a drafted token.
        gamma: drafted tokens of a window.
        draft, window: time of a draft pass, and of a pass over gamma + 1 tokens, over t0.
    """

    nodes: int
    ratio: float
    beta: float
    gamma: int = 5
    draft: float = 0.1
    window: float = 1.05
    network: Network = Network()

    @property
    def label(self) -> str:
        return f"n={self.nodes}/ratio={self.ratio:g}"

    @property
    def ways(self) -> float:
        """(N - 1) t1 / t0, the only dependence of the paper's formula on N and t1."""
        return (self.nodes - 1) * self.ratio

    @property
    def tokens(self) -> float:
        """k: tokens of a window, with the target's own one."""
        return committed(self.beta, self.gamma)

    @property
    def gain(self) -> float:
        """The paper's gain, with all drafting hidden."""
        window = dsd.speculative_ms(0.0, self.window, self.nodes, self.ratio)
        return dsd.gain(self.tokens, self.nodes, 1.0, self.ratio, window)

    @property
    def expected_gain(self) -> float:
        """The gain over constant links, with the drafting after a miss, which is not hidden."""
        found = closed_form(replace(self, network=Network()).scenario("dsd"))
        return self.plain_ms / found.metrics[METRIC]

    @property
    def plain_ms(self) -> float:
        """Time of a token of plain decoding over constant links."""
        return dsd.plain_ms(1, self.nodes, T0_MS, self.ratio * T0_MS)

    def scenario(self, schedule: str, **changes: Any) -> Scenario:
        """Return the scenario of these nodes, with further changes."""
        share, latency = T0_MS / self.nodes, self.ratio * T0_MS
        stage_ms = {1: share, self.gamma + 1: self.window * share}
        ends = ("draft0", "pipeline0.stage1"), (f"pipeline0.stage{self.nodes}", "draft0")
        link = {"latency_ms": latency, "jitter_ms": self.network.jitter * latency}
        if self.network.loss:
            again = self.network.again * latency
            link |= {"loss": self.network.loss, "retransmit_ms": again}
        made = {
            "schedule.name": schedule,
            "schedule.gamma": self.gamma,
            "target.layers": self.nodes,
            "drafts.0.device": {"draft_ms": {1: self.draft * T0_MS}},
            "pipelines.0.stages": [{"device": {"stage_ms": stage_ms}, "count": self.nodes}],
            "links.default": link,
            "links.pairs": [{"ends": list(each), "latency_ms": 0.0} for each in ends],
            "acceptance.beta": self.beta,
        }
        return Scenario.load(SCENARIO).with_(**{**made, **changes})


def accepted_for(gain: float, cell: Cell) -> float:
    """Return β with which the cell's expected gain is ``gain``."""
    found: float = brentq(
        lambda beta: replace(cell, beta=beta).expected_gain - gain, 0.05, 0.99, xtol=1e-4
    )
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """A simulated cell: gain over plain decoding, and the share of communication saved."""

    gain: Interval
    saving: Interval


def simulate_cells(
    cells: Sequence[Cell], runs: int, tokens: int, say: Progress
) -> Mapping[str, Measured]:
    """Simulate the cells; results by label. Plain decoding over constant links is computed."""
    effort = {"runs": runs, "workload.new_tokens": tokens}
    found = simulated(
        {
            f"{cell.label}/{schedule}": cell.scenario(schedule, **effort)
            for cell in cells
            for schedule in (("dsd", "pp") if cell.network != Network() else ("dsd",))
        },
        say,
    )
    measured = {}
    for cell in cells:
        metrics, plain = found[f"{cell.label}/dsd"].metrics, found.get(f"{cell.label}/pp")
        plain_ms = cell.plain_ms if plain is None else plain.metrics[METRIC].mean
        gain = metrics[METRIC].inverse(plain_ms)
        measured[cell.label] = Measured(gain, metrics["tokens_per_round"].inverse().complement())
    return measured


# --- the printed claims ---------------------------------------------------------------------------

_CLAIMED = published()["dsd"]["best_region"]
REGION_NODES: tuple[int, int] = tuple(_CLAIMED["nodes"])
REGION_RATIO: tuple[float, float] = tuple(_CLAIMED["t1_over_t0"])
"""Borders of the claimed best region in t1 / t0; the paper excludes them."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A row of table 3 as printed, and what follows from it by the paper's own formula."""

    nodes: int
    ratio: float
    saving: float

    @property
    def ways(self) -> float:
        """(N - 1) t1 / t0."""
        return (self.nodes - 1) * self.ratio

    @property
    def tokens_of_communication(self) -> float:
        """k if the saving is a share of communication: (k - 1) / k.

        >>> Saving(4, 5.0, 0.75).tokens_of_communication
        4.0
        """
        return 1 / (1 - self.saving)

    @property
    def tokens_of_time(self) -> float:
        """k if the saving is a share of all time: (k - 1) / k of x / (1 + x), x = (N - 1) t1 / t0.

        >>> round(Saving(4, 5.0, 0.75).tokens_of_time, 6)
        5.0
        """
        return 1 / (1 - self.saving * (1 + self.ways) / self.ways)

    @property
    def gain(self) -> float:
        """The gain of a window of ``tokens_of_communication`` tokens by the paper's formula."""
        return Cell(self.nodes, self.ratio, 0.0).gain * self.tokens_of_communication


def table3() -> list[Saving]:
    rows = published()["dsd"]["table3"]
    return [Saving(row["nodes"], row["t1_over_t0"], row["saving"]) for row in rows]


def in_region(cell: Cell) -> bool:
    """Return whether the claim counts the cell among the best (its borders in t1/t0 included)."""
    nodes, ratio = REGION_NODES, REGION_RATIO
    return nodes[0] <= cell.nodes <= nodes[1] and ratio[0] <= cell.ratio <= ratio[1]


def region_fields(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return expected gains inside the claimed region, below it, and the best one beyond it."""
    gains = {cell: cell.expected_gain for cell in cells}
    inside = [gain for cell, gain in gains.items() if in_region(cell)]
    beyond = {
        cell.label: gain
        for cell, gain in gains.items()
        if cell.nodes > REGION_NODES[1] or cell.ratio > REGION_RATIO[1]
    }
    below = [gain for cell, gain in gains.items() if cell.ratio < REGION_RATIO[0]]
    best = max(beyond, key=lambda label: beyond[label])
    named = {"least": min(inside), "most": max(inside), "below": min(below)}
    return {**named, "beyond": beyond[best], "where": best}


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
PAGE = Path(__file__).with_name("dsd.md")
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
    entries = _entries(region, gain)
    savings = [e for e in entries if e.role == "predicted" and e.published]
    wide = made.leave_out({"dsd/dsd": savings})
    made.trivial = {each.key: 1 - 1 / gain for each in savings}  # the same saving everywhere
    entries = [widened(e, wide, 1.0) if e.key.endswith("/saving") else e for e in entries]
    made.add(entries, "map", "Gain over plain decoding")
    title = "Adaptive verification, measured on real processes"
    made.add(_adaptive_entries(relaxed), "adaptive", title)
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
