"""DSD's region: gain and saving over N and t1/t0, by its formula and simulated; its claims checked.

One published number sets acceptance (the speed-up without adaptive verification); where it was
measured is not published, so a place is assumed. Everything else is predicted. Adaptive
verification is measured on real processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.sheet import Sheet
from treepipe.results.show import Say
from treepipe.studies.dsd.adaptive import NODES, RATIO, Relaxed, emulated_window_ms, run_adaptive
from treepipe.studies.dsd.claims import (
    REGION_NODES,
    REGION_RATIO,
    in_region,
    region,
    table3,
    table3_sheet,
)
from treepipe.studies.dsd.testbed import (
    Cell,
    Measured,
    Network,
    accepted_for,
    simulate_cells,
)
from treepipe.studies.plots import Panel, gain_figure, line_figure, shaded
from treepipe.studies.reproduction import (
    Reproduction,
    ScoreSheet,
    calibrated,
    predicted,
    published,
    score,
)
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.judgement import OVERRUN

NAME = "dsd-region"
PAGE = Path(__file__).with_name("page.md")
ASSUMED_AT = table3()[1].nodes, float(table3()[1].ratio)
"""N and t1/t0 at which the published speed-up is taken to hold: table 3's middle row."""
VARYING = Network(jitter=0.25, loss=0.01)


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: the map, its runs, and the executor's part."""

    nodes: Sequence[int] = (2, 3, 4, 5, 6, 8, 12)
    ratios: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 5.0, 7.0, 10.0, 20.0)
    runs: int = 4
    tokens: int = 400
    taus: Sequence[float] = (0.0, 0.5, 1.0)
    prompts: int = 3
    new_tokens: int = 40


FULL = Settings(runs=12, tokens=1000, taus=(0.0, 0.25, 0.5, 0.75, 1.0), prompts=12, new_tokens=60)


def run(say: Say, full: bool) -> StudyResult:
    """3 prompts with three levels of relaxation, or 12 with five; shorter intervals."""
    return study(FULL if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, map, check the claims, and run the adaptive rule."""
    gain = float(published()["dsd"]["speedup_non_adaptive"])
    place = Cell(*ASSUMED_AT, beta=0.5)
    beta = accepted_for(gain, place)
    cells = [Cell(n, r, beta) for n, r in itertools.product(settings.nodes, settings.ratios)]
    seen = simulate_cells(cells, settings.runs, settings.tokens, say)
    shaken = [replace(cell, network=VARYING) for cell in cells]
    varied = simulate_cells(shaken, settings.runs, settings.tokens, say)
    relaxed = run_adaptive(settings.taus, settings.prompts, settings.new_tokens, say)
    made = Reproduction(NAME, PAGE)
    made.add(_entries(cells, seen, varied, gain), "map", "Gain over plain decoding")
    made.add(
        _adaptive_entries(relaxed),
        "adaptive",
        "Adaptive verification, measured on real processes",
    )
    made.table(table3_sheet(f"{NAME}-table3"))
    made.table(_scores(made.entries, gain))
    figures = {NAME: _map(cells, seen, varied), f"{NAME}-adaptive": _trade(relaxed)}
    return made.result(_fields(cells, seen, varied, relaxed), figures)


def _fields(
    cells: Sequence[Cell],
    seen: Mapping[str, Measured],
    varied: Mapping[str, Measured],
    runs: Sequence[Relaxed],
) -> dict[str, Any]:
    """What the page says beyond the entries."""
    rows, base = table3(), runs[0]
    off = {c: abs(seen[c.label].gain.mean / c.gain - 1) for c in cells}
    shaken = [varied[c.label].gain.mean / seen[c.label].gain.mean - 1 for c in cells]
    longest, window_ms = max(each.window_ms for each in runs), emulated_window_ms()
    return {
        "region": region(cells),
        "nodes": REGION_NODES,
        "ratios": REGION_RATIO,
        "place": place_of(cells[0].beta),
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
        "run_at": Cell(NODES, RATIO, 0.5),
        "adaptive": "; ".join(
            f"tau_max = {each.tau_max:g}: {each.tokens / base.tokens - 1:+.1%} tokens per window, "
            f"{each.differing:.1%} of the tokens are not exact decoding's"
            for each in runs[1:]
        ),
        "window_ms": window_ms,
        "overrun_ms": longest if longest >= OVERRUN * window_ms else None,
    }


def place_of(beta: float) -> Cell:
    """The testbed for which the published speed-up is taken to hold."""
    return Cell(*ASSUMED_AT, beta=beta)


def _entries(
    cells: Sequence[Cell],
    seen: Mapping[str, Measured],
    varied: Mapping[str, Measured],
    gain: float,
) -> list[Entry]:
    savings = {(row.nodes, float(row.ratio)): row.saving for row in table3()}
    found = []
    for cell in cells:
        key, at = cell.label, (cell.nodes, cell.ratio)
        simulated = seen[key]
        if at == ASSUMED_AT:
            found.append(calibrated(f"{key}/gain", "1", simulated.gain, gain))
        else:
            found.append(predicted(f"{key}/gain", "1", simulated.gain))
        found.append(predicted(f"{key}/saving", "1", simulated.saving, savings.get(at)))
        found.append(predicted(f"{key}/gain/formula", "1", cell.gain))
        found.append(predicted(f"{key}/gain/expected", "1", cell.expected_gain))
        found.append(predicted(f"{key}/gain/varying_links", "1", varied[key].gain))
    return found


def _adaptive_entries(runs: Sequence[Relaxed]) -> list[Entry]:
    base, found = runs[0], []
    for each in runs:
        key = f"adaptive/tau_max={each.tau_max:g}"
        found += [
            Entry(f"{key}/speed_up", "1", measured=base.token_ms / each.token_ms),
            Entry(f"{key}/tokens_per_round", "tokens", measured=each.tokens),
            Entry(f"{key}/differing_share", "1", measured=each.differing),
            Entry(f"{key}/surprise_nats", "nats/token", measured=each.nats),
        ]
    return found


def _scores(entries: Sequence[Entry], gain: float) -> Sheet:
    """Table 3's savings: ours, what the speed-up alone says, and (N - 1) / N."""
    sheet = ScoreSheet(f"{NAME}-scores", "Error on table 3's savings, share of communication")
    sheet.add("simulated, acceptance from the speed-up", score(entries))
    keys = {f"{Cell(s.nodes, s.ratio, 0.0).label}/saving": s for s in table3()}
    sheet.add("1 - 1/speed-up, everywhere", score(entries, dict.fromkeys(keys, 1 - 1 / gain)))
    above = {key: (row.nodes - 1) / row.nodes for key, row in keys.items()}
    sheet.add("(N - 1)/N, which is not the formula", score(entries, above))
    return sheet.sheet()


# --- plots ---------------------------------------------------------------------------------------


def _map(
    cells: Sequence[Cell], seen: Mapping[str, Measured], varied: Mapping[str, Measured]
) -> Figure:
    """Gain over N and t1/t0: by the formula, simulated, and with links that vary."""
    ways: dict[str, Callable[[Cell], float]] = {
        "the paper's formula": lambda cell: cell.gain,
        "simulated": lambda cell: seen[cell.label].gain.mean,
        "simulated, links with jitter and loss": lambda cell: varied[cell.label].gain.mean,
    }
    places = {(f"{cell.nodes}", f"{cell.ratio:g}"): cell for cell in cells}
    panels = {name: {at: gain(each) for at, each in places.items()} for name, gain in ways.items()}
    frames = {(name, at): "-" for name in ways for at, each in places.items() if in_region(each)}
    title = "DSD: gain of speculation (framed: the claimed best region)"
    return gain_figure(title, panels, ("N, nodes", "t1 / t0"), frames)


def _trade(runs: Sequence[Relaxed]) -> Figure:
    """Speed-up over the exact rule, and the tokens it is paid with."""
    base = runs[0]
    over = {
        "measured time": {each.tau_max: base.token_ms / each.token_ms for each in runs},
        "tokens per window": {each.tau_max: each.tokens / base.tokens for each in runs},
    }
    for name, gain in zip(("least", "most"), published()["dsd"]["adaptive_gain"], strict=True):
        over[f"claimed at {name}"] = dict.fromkeys((runs[0].tau_max, runs[-1].tau_max), gain)
    differing = {"tokens": {each.tau_max: each.differing for each in runs}}
    return line_figure(
        "Adaptive verification on the bundled pair",
        "tau_max (0: exact)",
        [
            Panel("over the exact rule", shaded(over)),
            Panel("share of tokens that\nexact decoding would not choose", shaded(differing)),
        ],
    )
