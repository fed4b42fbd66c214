"""The servers of PipeDec and SpecPipe (same authors, same cards), and their calibration.

Stage times are those of a measured layer of Llama 3.1 8B, scaled by roofline times to a layer of
the 70B (``profiles/service.py``), plus the overhead of the authors' software per layer. Invariant:
every calibrated number is fitted to a published one, which its docstring names. The overhead
follows from the plain pipeline, which uses no draft. Two numbers per data set are left for the
draft's accuracy: how often its first candidate misses, which a static tree's time shows, and how
often the rest of the tree does, on which SpecPipe's time depends most. What else a level needs
(confidence, neighbours) comes from the bundled recorded pool, drawn to reach those shares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from pathlib import Path
from statistics import fmean
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
LEVELS, RESTS = (0.6, 0.9, 1.2, 1.5, 1.9), (0.25, 0.5, 1.0, 1.5)
"""Multiples of ``MISSES`` at which curves are simulated, of the first candidate and of the rest."""
HARDER = (0.6, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0)
"""Multiples of HumanEval-X's misses of the first candidate, for PipeDec's data sets."""
TAIL = 4.0
"""Exponent with which the misses of the rest of the tree go with the first candidate's over data
sets. SpecPipe's section 3.3.1 has the rest miss two (8B) to four times (1B) as often on a distilled
target, and the first candidate 1.27 times as often on one of two targets: 2.9 to 5.8. With 1 both
go by one factor; without bound the first candidate stays the same on all texts."""
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
"""Exponent behind a wrong token, where the draft hardly prefers one candidate to another: chosen by
the two times on HumanEval-X. (The bundled draft, which knows few texts, is as sure there as
elsewhere.) Smaller values change nothing."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of a simulated point."""

    runs: int = 6
    new_tokens: int = 300

    def changes(self) -> dict[str, Any]:
        return {"runs": self.runs, "workload.new_tokens": self.new_tokens}


class Level(NamedTuple):
    """Multiples of ``MISSES``: of the first candidate, and of the rest of the tree."""

    first: float
    rest: float

    def at(self, first: float) -> Level:
        """Return the level of another data set, by its first candidate (``TAIL``)."""
        return Level(first, self.rest * (first / self.first) ** TAIL)


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of HumanEval-X, and of six data sets, the most misses first.

    Attributes:
        left_out: times of HumanEval-X in milliseconds by schedule, from the other schedule's time
            alone, with the rest of the tree as on book text.
    """

    humaneval_x: Level
    six: tuple[Level, ...]
    left_out: Mapping[str, float]

    @property
    def middle(self) -> Level:
        """The mean of the six."""
        return Level(*map(fmean, zip(*self.six, strict=True)))

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


def acceptance(level: Level, **changes: Any) -> dict[str, Any]:
    """Return a scenario's acceptance for a level, with ``changes``."""
    ratio = {k: 1 - times * share for times, (k, share) in zip(level, MISSES.items(), strict=True)}
    pool = {"source": "pool", "file": str(POOL), "hit_ratio": ratio}
    return {
        "acceptance": {**pool, "sharpness": SHARPNESS, "off_path_sharpness": OFF_PATH, **changes}
    }


def overhead_ms() -> float:
    """Return the unexplained part of the plain pipeline's 302.39 ms a token, per RTX 3090 layer."""
    wanted = published()["specpipe"]["pp_tbt_ms_humaneval_x"]
    bare = CardCluster(cards("one-server"), {"rtx-3090": 0.0}, {1: 0.0})
    return float((wanted - plain_ms(bare)) / LAYERS)


def build(name: str) -> CardCluster:
    """Make a cluster with the calibrated overheads (an RTX 4090's is assumed equal to an RTX
    3090's; an L40's is of the 70B model's 374 ms a token on four) and the draft's profiled times on
    an L40."""
    found, token_ms = overhead_ms(), published()["specpipe"]["target_tbt_ms_4xL40"]
    l40 = float((token_ms - unscaled_ms("l40", 4)) / LAYERS)
    overheads = {"rtx-3090": found, "rtx-4090": found, "l40": l40}
    draft = device_times("l40").draft(model_profile(DRAFT))
    draft_ms = {n: draft(n) for n in draft.points if n <= MOST_TOKENS}
    return CardCluster(cards(name), overheads, draft_ms)


def plain_ms(cluster: CardCluster) -> float:
    """Simulate the time between tokens of the plain pipeline; only the links' jitter is random."""
    plain = {"schedule.name": "pp", **Effort(1, 60).changes()}
    found = simulated({"pp": cluster.scenario(**plain)}, lambda *_: None)
    return found["pp"].metrics[METRIC].mean


def find_levels(effort: Effort, say: Progress) -> Levels:
    """Find HumanEval-X's two numbers, the first candidate's from SpecInfer's time and the rest's
    from SpecPipe's, and the levels of six data sets from the range of PipeDec's speed-up with 14
    stages."""
    eight, fourteen_cards, wanted = build("one-server"), build("fourteen"), code_times()
    book = {first: Level(first, 1.0) for first in LEVELS}
    tree, layers = (_curve(eight, each, book, effort, say) for each in (SPECINFER, SPECPIPE))
    first = solve(tree, wanted["specinfer"])
    rests = _curve(eight, SPECPIPE, {rest: Level(first, rest) for rest in RESTS}, effort, say)
    code = Level(first, solve(rests, wanted["specpipe"]))
    harder = {times: code.at(times * first) for times in HARDER}
    longer = _curve(fourteen_cards, PIPEDEC, harder, effort, say)
    plain, ends = plain_ms(fourteen_cards), published()["pipedec"]["speedup_over_pp_14_stage_range"]
    left_out = {
        "specinfer": float(_smooth(tree)(solve(layers, wanted["specpipe"]))),
        "specpipe": float(_smooth(rests)(1.0)),
    }
    hardest, easiest = (solve(longer, plain / ratio) for ratio in ends)
    times = np.linspace(hardest, easiest, 6)
    return Levels(code, tuple(map(code.at, (times * first).tolist())), left_out)


def _curve(
    cluster: CardCluster,
    schedule: Mapping[str, Any],
    levels: Mapping[float, Level],
    effort: Effort,
    say: Progress,
) -> dict[float, float]:
    trials = {
        f"{x}": cluster.scenario(**schedule, **acceptance(level), **effort.changes())
        for x, level in levels.items()
    }
    outcomes = simulated(trials, say, "calibrating")
    return {x: outcomes[f"{x}"].metrics[METRIC].mean for x in levels}


def _smooth(times: Mapping[float, float]) -> Callable[[Any], Any]:
    """Fit a parabola to times against levels."""
    curve: Callable[[Any], Any]
    curve = np.polynomial.Polynomial.fit(list(times), list(times.values()), 2)
    return curve


def solve(times: Mapping[float, float], wanted: float) -> float:
    """Return the level, within those simulated, at which the parabola through times against levels
    is nearest to a value.

    >>> round(solve({0.6: 90.0, 0.7: 80.0, 0.8: 70.0, 0.9: 60.0}, 65.0), 3)
    0.85
    """
    fine = np.linspace(min(times), max(times), 2001)
    return float(fine[np.argmin(np.abs(_smooth(times)(fine) - wanted))])


# --- what both pages show ------------------------------------------------------------------------


def right(level: Level) -> float:
    """Return the share of all tokens that are the draft's first candidate at a level."""
    return float(1 - level.first * MISSES[1])


def shared_fields(levels: Levels) -> dict[str, Any]:
    """Return the fields of both pages: the calibrated levels, as correct first candidates and as
    misses of the first 8, and the assumptions."""
    hardest, *_, easiest = levels.six
    named = {"code": levels.humaneval_x, "hardest": hardest, "easiest": easiest}
    first = {name: right(level) for name, level in named.items()}
    return {
        "right": first,
        "beyond": {name: level.rest * MISSES[8] for name, level in named.items()},
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
