"""The servers of PipeDec and SpecPipe (same authors, same cards), and their calibration.

Stage times are those of a measured layer of Llama 3.1 8B, scaled by roofline times to a layer of
the 70B (``profiles/service.py``), plus the overhead of the authors' software per layer. Invariant:
every calibrated number is fitted to a published one, which its docstring names. The overhead
follows from the plain pipeline, which uses no draft. One number per data set is left for the
draft's accuracy: the share of positions whose token is the draft's first candidate. HumanEval-X has
two times for it, a static tree's and SpecPipe's, which must agree. The rest of a level (further
candidates, confidence, neighbours) comes from the bundled recorded pool, drawn to reach that share.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treepipe.files.toml_file import read_toml
from treepipe.physics.timing import TimeTable
from treepipe.profiles.library import LIBRARY
from treepipe.progress import Progress
from treepipe.results.metrics import METRIC
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.studies.reproduction import (
    Reproduction,
    device_times,
    model_profile,
    published,
    simulated,
    t_spread,
    widened,
)
from treepipe.studies.study import Entry

SCENARIO = Path(__file__).with_name("layered.toml")
CARDS = Path(__file__).with_name("layered-cards.toml")
TARGET = "llama-3.1-70b"
LAYERS = 80
CONTEXT = 512
"""Tokens in the caches; between 0 and 2,000 the time of a pass changes by 3 %."""
MOST_TOKENS = 2048
INSIDE = {"latency_ms": 0.03, "bandwidth_mbit_s": 80_000.0}
"""Link between cards of one server: PCIe 4.0 through the host's memory."""
PRUNE_MS: float = published()["specpipe"]["prune_ms"]
LEAP: int = published()["specpipe"]["leap_tokens"]
"""Number of rows at which a stage's time jumps."""
DRAFT = "llama-3.2-1b"


class Card(NamedTuple):
    """A stage's device, and the number of its server."""

    device: str
    layers: int
    server: int = 0


@dataclass(frozen=True, slots=True)
class CardCluster:
    """A pipeline of cards, the draft's server, and the overhead of the authors' software.

    Attributes:
        overhead_ms: overhead by device, per layer and pass, on top of the profiled time.
        draft_ms: time of a draft pass by number of rows.
        prune_ms: time of a stage's cache compaction per word.
    """

    cards: tuple[Card, ...]
    overhead_ms: Mapping[str, float]
    draft_ms: Mapping[int, float]
    prune_ms: float = PRUNE_MS

    def scenario(self, **changes: Any) -> Scenario:
        """Replace the scenario file's equal stages by these cards, with further changes."""
        stages = [
            {"layers": card.layers, "device": {"stage_ms": table, "prune_ms": self.prune_ms}}
            for card, table in zip(self.cards, self._tables(), strict=True)
        ]
        links = [  # neighbours in one server; others use the network
            {"ends": [f"pipeline0.stage{n}", f"pipeline0.stage{n + 1}"], **INSIDE}
            for n, (a, b) in enumerate(zip(self.cards, self.cards[1:], strict=False), 1)
            if a.server == b.server
        ]
        made = {
            "drafts.0.device": {"draft_ms": self.draft_ms},
            "pipelines": [{"stages": stages}],
            "links.pairs": links,
        }
        return Scenario.load(SCENARIO).with_(**made, **changes)

    def slowest_ms(self, width: int) -> float:
        """Return the slowest stage's time with ``width`` rows; the last stage has only the root."""
        *stages, last = map(TimeTable, self._tables())
        return max(*(stage(width) for stage in stages), last(1))

    def _tables(self) -> list[dict[int, float]]:
        last = len(self.cards) - 1
        return [
            {n: ms + self.overhead_ms[card.device] * card.layers for n, ms in profiled.items()}
            for number, card in enumerate(self.cards)
            for profiled in [pass_ms(card.device, card.layers, number == last)]
        ]


def cards(name: str) -> tuple[Card, ...]:
    """Return one of the clusters of ``layered-cards.toml``."""
    rows = read_toml(CARDS)[name]
    return tuple(Card(*card) for count, *card in rows for _ in range(count))


def draft_overhead_ms() -> float:
    """Return the draft's time per layer on an L40 above the roofline, from its published time."""
    draft, roofline = model_profile(DRAFT), device_times("l40", draft=())
    wanted = published()["specpipe"]["draft_tbt_ms"][DRAFT]
    return float((wanted - roofline.draft(draft)(1, CONTEXT)) / draft.shape.layers)


@lru_cache(maxsize=64)
def pass_ms(device: str, layers: int, head: bool) -> Mapping[int, float]:
    """Return profiled milliseconds by tokens of ``layers`` layers, with or without the head."""
    service, model = device_times(device), model_profile(TARGET)
    stage, evaluation = service.stage(model, layers), service.evaluation(model)
    knots = [n for n in stage.points if n <= MOST_TOKENS]
    return {n: stage(n, CONTEXT) + (evaluation(n) if head else 0.0) for n in knots}


def unscaled_ms(device: str, stages: int) -> float:
    """Return the time of a token through all stages without overhead."""
    layers = LAYERS // stages
    return (stages - 1) * pass_ms(device, layers, False)[1] + pass_ms(device, layers, True)[1]


# --- calibration ---------------------------------------------------------------------------------

POOL = LIBRARY / "acceptance" / "reference-model.json.gz"
_HITS = published()["specpipe"]["hit_ratio"]["llama-3.1-8b -> llama-3.1-70b"]
MISSES = {int(first): round(1 - share, 6) for first, share in _HITS.items()}
"""Share of book text's tokens that are not among the draft's first 1, 8 (8B for 70B; published)."""
LEVELS = (0.3, 0.6, 0.9, 1.2, 1.5, 1.9)
"""Levels, as multiples of ``MISSES``, at which a curve is simulated."""
HARDER = (2.4, 3.4)
"""Further levels, for PipeDec's slowest data set; the pool reaches 3.5."""
WIDTH = 64
SPECPIPE = {"schedule.name": "specpipe", "schedule.width": WIDTH, "schedule.children": 16}
"""SpecPipe's keys; the paper leaves the width open, and this one is best."""
PIPEDEC = {
    "schedule.name": "pipedec",
    "schedule.width": 32,
    "schedule.children": 16,
    "schedule.central_transfers": True,
}
"""PipeDec's keys (section 4.3.1)."""
SPECINFER = {"schedule.name": "specinfer", "schedule.draft_ahead": True}
"""Keys of SpecPipe's baseline (section 4.1): its tree, drafted asynchronously."""
SHARPNESS = 2.25
"""Exponent that calibrates the bundled draft's confidence: the likeliest one over the recorded
positions (mean confidence 0.73 with 0.73 right, where it was 0.44)."""
OFF_PATH = 0.1
"""Exponent behind a wrong token, where the draft hardly prefers one candidate to another: fitted to
the two times on HumanEval-X. (The bundled draft, which knows few texts, is as sure there as
elsewhere.) Smaller values change nothing."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of a simulated point."""

    runs: int = 6
    new_tokens: int = 300

    def changes(self) -> dict[str, Any]:
        return {"runs": self.runs, "workload.new_tokens": self.new_tokens}


@dataclass(frozen=True, slots=True)
class Levels:
    """Multiples of ``MISSES``: of HumanEval-X, and of six data sets, the most misses first.

    Attributes:
        left_out: times of HumanEval-X in milliseconds by schedule, with the level from the other
            schedule's time alone.
    """

    humaneval_x: float
    six: tuple[float, ...]
    left_out: Mapping[str, float]

    @property
    def errors(self) -> dict[str, float]:
        """Relative errors of the left-out times."""
        return {name: self.left_out[name] / fact - 1 for name, fact in code_times().items()}

    @property
    def spread(self) -> float:
        """Half-width of a 95 % interval of a predicted time's logarithm, from the left-out times:
        the model's error for another schedule."""
        return t_spread(list(self.errors.values()))


def code_times() -> dict[str, float]:
    """Return the published times between tokens on HumanEval-X that determine a level."""
    facts = published()["specpipe"]
    return {name: facts[f"{name}_tbt_ms_humaneval_x"] for name in ("specinfer", "specpipe")}


def acceptance(level: float, **changes: Any) -> dict[str, Any]:
    """Return a scenario's acceptance for a level, with ``changes``: passages with ``level`` times
    the misses on book text."""
    ratio = {k: 1 - level * share for k, share in MISSES.items()}
    pool = {"source": "pool", "file": str(POOL), "hit_ratio": ratio}
    return {
        "acceptance": {**pool, "sharpness": SHARPNESS, "off_path_sharpness": OFF_PATH, **changes}
    }


def overhead_ms() -> float:
    """Return the unexplained part of the plain pipeline's 302.39 ms a token, per RTX 3090 layer."""
    wanted = published()["specpipe"]["pp_tbt_ms_humaneval_x"]
    bare = CardCluster(cards("one-server"), {"rtx-3090": 0.0}, {1: 0.0})
    return float((wanted - plain_ms(bare)) / LAYERS)


def l40_overhead_ms() -> float:
    """Return the overhead per layer of an L40, from the 70B model's 374 ms a token on four."""
    return float((published()["specpipe"]["target_tbt_ms_4xL40"] - unscaled_ms("l40", 4)) / LAYERS)


def build(name: str) -> CardCluster:
    """Make a cluster with the calibrated overheads (an RTX 4090's is assumed equal to an RTX
    3090's) and the draft's profiled times on an L40."""
    found = overhead_ms()
    overheads = {"rtx-3090": found, "rtx-4090": found, "l40": l40_overhead_ms()}
    draft = device_times("l40").draft(model_profile(DRAFT))
    draft_ms = {n: draft(n) for n in draft.points if n <= MOST_TOKENS}
    return CardCluster(cards(name), overheads, draft_ms)


def plain_ms(cluster: CardCluster) -> float:
    """Simulate the time between tokens of the plain pipeline; only the links' jitter is random."""
    plain = {"schedule.name": "pp", **Effort(1, 60).changes()}
    found = simulated({"pp": cluster.scenario(**plain)}, lambda *_: None)
    return found["pp"].metrics[METRIC].mean


def find_levels(effort: Effort, say: Progress) -> Levels:
    """Find the levels of the six data sets, from the range of PipeDec's speed-up with 14 stages,
    and of HumanEval-X, from SpecInfer's and SpecPipe's times together."""
    eight, fourteen_cards = build("one-server"), build("fourteen")
    tree = _curve(eight, SPECINFER, LEVELS, effort, say)
    layers = _curve(eight, SPECPIPE, LEVELS, effort, say)
    longer = _curve(fourteen_cards, PIPEDEC, (*LEVELS, *HARDER), effort, say)
    low, high = published()["pipedec"]["speedup_over_pp_14_stage_range"]
    plain = plain_ms(fourteen_cards)
    ends = solve_all([(longer, plain / low)]), solve_all([(longer, plain / high)])
    wanted = code_times()
    pairs = [(tree, wanted["specinfer"]), (layers, wanted["specpipe"])]
    left_out = {
        "specinfer": _smooth(tree)(solve_all(pairs[1:])),
        "specpipe": _smooth(layers)(solve_all(pairs[:1])),
    }
    six = tuple(float(level) for level in np.linspace(*ends, 6))
    return Levels(solve_all(pairs), six, left_out)


def _curve(
    cluster: CardCluster,
    schedule: Mapping[str, Any],
    levels: Sequence[float],
    effort: Effort,
    say: Progress,
) -> dict[float, float]:
    trials = {
        f"{level}": cluster.scenario(**schedule, **acceptance(level), **effort.changes())
        for level in levels
    }
    outcomes = simulated(trials, say, "calibrating")
    return {level: outcomes[f"{level}"].metrics[METRIC].mean for level in levels}


def _smooth(times: Mapping[float, float]) -> Callable[[Any], Any]:
    """Fit a parabola to times against levels."""
    found: Callable[[Any], Any]
    found = np.polynomial.Polynomial.fit(list(times), list(times.values()), 2)
    return found


def solve_all(wanted: Sequence[tuple[Mapping[float, float], float]]) -> float:
    """Return the level, within those simulated, at which the parabolas through times against levels
    are nearest to their values (squared logarithms).

    >>> round(solve_all([({0.6: 90.0, 0.7: 80.0, 0.8: 70.0, 0.9: 60.0}, 65.0)]), 3)
    0.85
    """
    levels = [level for times, _ in wanted for level in times]
    fine = np.linspace(min(levels), max(levels), 2001)
    misfit = sum(np.log(_smooth(times)(fine) / value) ** 2 for times, value in wanted)
    return float(fine[np.argmin(misfit)])


# --- what both pages show ------------------------------------------------------------------------


def right(level: float) -> float:
    """Return the share of all tokens that are the draft's first candidate at a level."""
    return float(1 - level * MISSES[1])


def shared_fields(levels: Levels) -> dict[str, Any]:
    """Return the fields of both pages: the calibrated levels, as misses and as correct first
    candidates, and the assumptions."""
    hardest, *_, easiest = levels.six
    named = {"code": levels.humaneval_x, "hardest": hardest, "easiest": easiest}
    first = {name: right(level) for name, level in named.items()}
    return {
        "misses": named,
        "right": first,
        "levels": levels,
        "factor": exp(levels.spread),
        "layered": sys.modules[__name__],
        "prompt_tokens": Scenario.load(SCENARIO).workload.prompt_tokens,
    }


def speed_ups(slow: Sequence[Interval], times: Sequence[Interval]) -> list[Interval]:
    """Return the ratio of ``slow`` to ``times`` for each level."""
    return [time.inverse(each.mean) for each, time in zip(slow, times, strict=True)]


def ends(ratios: Sequence[Interval]) -> dict[str, Interval]:
    """Return the least and the largest ratio."""
    least, *_, largest = sorted(ratios, key=lambda ratio: ratio.mean)
    return {"low": least, "high": largest}


ACCEPTED = (METRIC, "throughput_tokens_s")


def with_model(entries: Sequence[Entry], levels: Levels) -> list[Entry]:
    """Widen the intervals of predicted times and speed-ups by the model's error.

    Figures without a draft, hit rates, best parameters and calibrated figures are not widened.
    """
    return [
        widened(each, levels.spread)
        if each.role == "predicted"
        and each.low is not None
        and ("/over_" in each.key or each.key.endswith(ACCEPTED))
        else each
        for each in entries
    ]


def leave_out(study: Reproduction, paper: str) -> None:
    """Score published figures that nothing was fitted to, by schedule, and widen plain pipelines
    elsewhere by their errors. A parameter is no figure."""
    for whole in (True, False):  # the first ones have the model's error (``with_model``)
        groups = dict[str, list[Entry]]()
        for entry in study.entries:
            if entry.role == "predicted" and entry.published and entry.unit != "nodes":
                schedule = entry.key.split("/")[1].split("_")[0] if paper == "specpipe" else paper
                if (entry.low is not None) is whole:
                    groups.setdefault(f"{paper}/{schedule}", []).append(entry)
        wide = study.leave_out(groups, whole)
    study.entries = [
        widened(e, wide) if e.key.endswith(f"/pp/{METRIC}") and e.low is None else e
        for e in study.entries
    ]
