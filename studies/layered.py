"""The servers of PipeDec and SpecPipe (same authors, same cards), and what is calibrated on them.

Two studies share it, and at its end what their pages show alike. Stage times are those of a
measured layer of Llama 3.1 8B, scaled by roofline times to a layer of the 70B
(``profiles/service.py``), and what the authors' software adds per layer. Law of this file: every
number found here was fitted to a published one, which it names. What the software adds follows from
the plain pipeline, as no draft is asked there; then a single number per data set is left for how
well the draft guesses: the share of positions whose token is the draft's first candidate.
HumanEval-X has two times for it, a static tree's and SpecPipe's, which must agree. The rest of a
level (further candidates, confidence, neighbours) is the bundled recorded pool's, drawn to reach
that share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from treepipe.files.toml_file import read_toml
from treepipe.physics.timing import TimeTable
from treepipe.profiles.library import LIBRARY, find_device, find_model, shape_of
from treepipe.profiles.schema import Hardware
from treepipe.profiles.service import ServedModel, ServiceTimes
from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome
from treepipe.studies.reproduction import (
    Reproduction,
    ScoreSheet,
    published,
    score,
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
"""Tokens in the caches while the stages work; between 0 and 2,000 a pass changes by 3 %."""
MOST_TOKENS = 2048
INSIDE = {"latency_ms": 0.03, "bandwidth_mbit_s": 80_000.0}
"""Between cards of one server: PCIe 4.0 through the host's memory."""
PRUNE_MS: float = published()["specpipe"]["prune_ms"]
LEAP: int = published()["specpipe"]["leap_tokens"]
"""Rows at which a stage's time leaps."""
DRAFT = "llama-3.2-1b"


@dataclass(frozen=True, slots=True)
class Card:
    """A stage's device.

    Attributes:
        server: number of the server it sits in.
    """

    device: str
    layers: int
    server: int = 0


@dataclass(frozen=True, slots=True)
class CardCluster:
    """A pipeline of cards, the draft's server, and what the authors' software adds.

    Attributes:
        overhead_ms: by device, per layer and pass, on top of the profiled time.
        draft_ms: a draft pass of so many rows.
        prune_ms: of a stage, per word.
    """

    cards: tuple[Card, ...]
    overhead_ms: Mapping[str, float]
    draft_ms: Mapping[int, float]
    prune_ms: float = PRUNE_MS

    def scenario(self, **changes: Any) -> Scenario:
        """Equal stages of the scenario file replaced by these cards, with changes on top."""
        made = {
            "drafts.0.device": {"draft_ms": self.draft_ms},
            "pipelines": [{"stages": self._stages()}],
            "links.pairs": self._links(),
        }
        return Scenario.load(SCENARIO).with_(**made, **changes)

    def stage_ms(self, tokens: int) -> list[float]:
        """The time of every stage for so many rows."""
        return [TimeTable(table)(tokens) for table in self._tables()]

    def slowest_ms(self, width: int) -> float:
        """A step whose layers have ``width`` rows; the last stage has only the root left."""
        *stages, _ = self.stage_ms(width)
        return max(*stages, self.stage_ms(1)[-1])

    def _tables(self) -> list[dict[int, float]]:
        last = len(self.cards) - 1
        return [
            {n: ms + self.overhead_ms[card.device] * card.layers for n, ms in profiled.items()}
            for number, card in enumerate(self.cards)
            for profiled in [pass_ms(card.device, card.layers, number == last)]
        ]

    def _stages(self) -> list[dict[str, Any]]:
        return [
            {"layers": card.layers, "device": {"stage_ms": table, "prune_ms": self.prune_ms}}
            for card, table in zip(self.cards, self._tables(), strict=True)
        ]

    def _links(self) -> list[dict[str, Any]]:
        """Between neighbours in one server; all others take the network."""
        return [
            {"ends": [f"pipeline0.stage{n}", f"pipeline0.stage{n + 1}"], **INSIDE}
            for n, (a, b) in enumerate(zip(self.cards, self.cards[1:], strict=False), 1)
            if a.server == b.server
        ]


def cards(name: str) -> tuple[Card, ...]:
    """One of the clusters of ``layered-cards.toml``."""
    rows = read_toml(CARDS)[name]
    return tuple(Card(*card) for count, *card in rows for _ in range(count))


def draft_table() -> dict[int, float]:
    """The draft's times on an L40, as its profile has them by its published one."""
    table = _service("l40").draft(_served(DRAFT))
    return {n: table(n) for n in table.points if n <= MOST_TOKENS}


def draft_overhead_ms() -> float:
    """What a layer of the draft takes on an L40 on top of the roofline, by its published time."""
    l40, draft = find_device("l40", __name__), _served(DRAFT)
    assert isinstance(l40, Hardware)
    roofline = ServiceTimes("l40", l40.model_copy(update={"draft": ()}), shape_of, [])
    wanted = published()["specpipe"]["draft_tbt_ms"][DRAFT]
    return float((wanted - roofline.draft(draft)(1, CONTEXT)) / draft.shape.layers)


@lru_cache(maxsize=64)
def pass_ms(device: str, layers: int, head: bool) -> Mapping[int, float]:
    """Milliseconds against tokens, as profiled, of so many layers and the output projection."""
    service, model = _service(device), _served(TARGET)
    stage, evaluation = service.stage(model, layers), service.evaluation(model)
    knots = [n for n in stage.points if n <= MOST_TOKENS]
    return {n: stage(n, CONTEXT) + (evaluation(n) if head else 0.0) for n in knots}


def unscaled_ms(device: str, stages: int) -> float:
    """A token through stages with nothing added to the profiled times."""
    layers = LAYERS // stages
    return (stages - 1) * pass_ms(device, layers, False)[1] + pass_ms(device, layers, True)[1]


def _service(device: str) -> ServiceTimes:
    hardware = find_device(device, __name__)
    assert isinstance(hardware, Hardware)
    return ServiceTimes(device, hardware, shape_of, [])


def _served(model: str) -> ServedModel:
    shape = find_model(model, __name__)
    return ServedModel(model, shape, shape.dtype)


# --- calibration ---------------------------------------------------------------------------------

POOL = LIBRARY / "acceptance" / "reference-model.json.gz"
_HITS = published()["specpipe"]["hit_ratio"]["llama-3.1-8b -> llama-3.1-70b"]
MISSES = {int(first): round(1 - share, 6) for first, share in _HITS.items()}
"""Share of book text's tokens that are not among the draft's first 1, 8 (8B for 70B; published)."""
LEVELS = (0.3, 0.6, 0.9, 1.2, 1.5, 1.9)
"""Multiples of ``MISSES`` that a curve is fitted through."""
HARDER = (2.4, 3.4)
"""Further ones, for PipeDec's slowest data set; the pool reaches 3.5."""
WIDTH = 64
SPECPIPE = {"schedule.name": "specpipe", "schedule.width": WIDTH, "schedule.children": 16}
"""As SpecPipe's figures are calibrated on; it leaves the width open, the study finds it best."""
PIPEDEC = {
    "schedule.name": "pipedec",
    "schedule.width": 32,
    "schedule.children": 16,
    "schedule.central_transfers": True,
}
"""PipeDec, section 4.3.1."""
SPECINFER = {"schedule.name": "specinfer", "schedule.draft_ahead": True}
"""SpecPipe's baseline (section 4.1): its tree, drafted asynchronously."""
SHARPNESS = 2.25
"""Makes the bundled draft as sure as it is right: the likeliest power over the recorded positions
(mean confidence 0.73 with 0.73 right, where it was 0.44)."""
OFF_PATH = 0.1
"""The same behind a wrong token, where it hardly prefers one candidate to another: found from the
two times on HumanEval-X. (The bundled draft, which knows few texts, is as sure there as elsewhere.)
Less would change nothing any more."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated at a point."""

    runs: int = 6
    new_tokens: int = 300

    def changes(self) -> dict[str, Any]:
        return {"runs": self.runs, "workload.new_tokens": self.new_tokens}


@dataclass(frozen=True, slots=True)
class Levels:
    """Multiples of ``MISSES``: of HumanEval-X, and of six data sets, the most misses first.

    Attributes:
        left_out: times of HumanEval-X in milliseconds by schedule, where the level comes from the
            other one's alone.
    """

    humaneval_x: float
    six: tuple[float, ...]
    left_out: Mapping[str, float]

    @property
    def spread(self) -> float:
        """Half-width of a 95 % interval of a predicted time's logarithm, by the times that were
        left out: what the model misses where another schedule is predicted."""
        facts = code_times()
        return t_spread([self.left_out[name] / facts[name] - 1 for name in facts])


def code_times() -> dict[str, float]:
    """Published times between tokens on HumanEval-X that a level is found from."""
    facts = published()["specpipe"]
    return {name: facts[f"{name}_tbt_ms_humaneval_x"] for name in ("specinfer", "specpipe")}


def acceptance(level: float, **changes: Any) -> dict[str, Any]:
    """A scenario's key for a level: passages with so many times the misses on book text.

    Args: ``changes``: other values of the key's.
    """
    ratio = {k: 1 - level * share for k, share in MISSES.items()}
    pool = {"source": "pool", "file": str(POOL), "hit_ratio": ratio}
    return {
        "acceptance": {**pool, "sharpness": SHARPNESS, "off_path_sharpness": OFF_PATH, **changes}
    }


def overhead_ms() -> float:
    """What the plain pipeline's 302.39 ms a token leave per layer of an RTX 3090."""
    wanted = published()["specpipe"]["pp_tbt_ms_humaneval_x"]
    bare = CardCluster(cards("one-server"), {"rtx-3090": 0.0}, {1: 0.0})
    return float((wanted - plain_ms(bare)) / LAYERS)


def l40_overhead_ms() -> float:
    """The same of an L40: what the 70B model on four of them leaves of 374 ms a token."""
    computing = sum(pass_ms("l40", 20, last)[1] for last in (False, False, False, True))
    return float((published()["specpipe"]["target_tbt_ms_4xL40"] - computing) / LAYERS)


def build(name: str) -> CardCluster:
    """A cluster with the calibrated overheads; an RTX 4090's is taken to be an RTX 3090's."""
    found = overhead_ms()
    overheads = {"rtx-3090": found, "rtx-4090": found, "l40": l40_overhead_ms()}
    return CardCluster(cards(name), overheads, draft_table())


def plain_ms(cluster: CardCluster) -> float:
    """Time between tokens of the plain pipeline; nothing is random but the links' jitter."""
    plain = {"schedule.name": "pp", **Effort(1, 60).changes()}
    return simulated({"pp": cluster.scenario(**plain)}, _unseen)["pp"].metrics[METRIC].mean


def _unseen(title: str, steps: int) -> None:
    """Progress of what takes no time."""


def find_levels(effort: Effort, say: Say) -> Levels:
    """Levels of the six data sets, from the range of PipeDec's speed-up with 14 stages, and of
    HumanEval-X, from SpecInfer's and SpecPipe's times together."""
    eight, fourteen_cards = build("one-server"), build("fourteen")
    curves = {
        "specinfer": _curve(eight, SPECINFER, LEVELS, effort, say),
        "specpipe": _curve(eight, SPECPIPE, LEVELS, effort, say),
    }
    longer = _curve(fourteen_cards, PIPEDEC, (*LEVELS, *HARDER), effort, say)
    low, high = published()["pipedec"]["speedup_over_pp_14_stage_range"]
    plain = plain_ms(fourteen_cards)
    ends = solve(longer, plain / low), solve(longer, plain / high)
    wanted = code_times()
    alone = {name: solve(curves[name], wanted[name]) for name in curves}
    left_out = {
        "specinfer": smooth(curves["specinfer"])(alone["specpipe"]),
        "specpipe": smooth(curves["specpipe"])(alone["specinfer"]),
    }
    together = solve_all([(curves[name], wanted[name]) for name in curves])
    return Levels(together, tuple(float(level) for level in np.linspace(*ends, 6)), left_out)


def _curve(
    cluster: CardCluster,
    schedule: Mapping[str, Any],
    levels: Sequence[float],
    effort: Effort,
    say: Say,
) -> dict[float, float]:
    """Time between tokens against levels."""
    trials = {
        f"{level}": cluster.scenario(**schedule, **acceptance(level), **effort.changes())
        for level in levels
    }
    outcomes = simulated(trials, say, "calibrating")
    return {level: outcomes[f"{level}"].metrics[METRIC].mean for level in levels}


def smooth(times: Mapping[float, float]) -> Callable[[Any], Any]:
    """The parabola through times against levels."""
    found = np.polynomial.Polynomial.fit(list(times), list(times.values()), 2)
    return lambda level: found(level)


def solve(times: Mapping[float, float], wanted_ms: float) -> float:
    """Where the parabola through times against levels has this value, within the levels.

    >>> round(solve({0.6: 90.0, 0.7: 80.0, 0.8: 70.0, 0.9: 60.0}, 65.0), 3)
    0.85
    """
    return solve_all([(times, wanted_ms)])


def solve_all(wanted: Sequence[tuple[Mapping[float, float], float]]) -> float:
    """The level at which several parabolas come nearest to their values (squared logarithms)."""
    levels = [level for times, _ in wanted for level in times]
    fine = np.linspace(min(levels), max(levels), 2001)
    misfit = sum(np.log(smooth(times)(fine) / value) ** 2 for times, value in wanted)
    return float(fine[np.argmin(misfit)])


# --- what both pages show ------------------------------------------------------------------------


def right(level: float) -> float:
    """Share of all tokens that are the draft's first candidate, at so many times the misses."""
    return float(1 - level * MISSES[1])


def shared_fields(levels: Levels) -> dict[str, Any]:
    """A page's fields: what was calibrated, as misses and as first candidates that are right; what
    was assumed."""
    hardest, *_, easiest = levels.six
    named = {"code": levels.humaneval_x, "hardest": hardest, "easiest": easiest}
    first = {name: right(level) for name, level in named.items()}
    return {
        "misses": named,
        "right": first,
        "sharpness": SHARPNESS,
        "off_path": OFF_PATH,
        "left_out": levels.left_out,
        "left_out_errors": {
            name: levels.left_out[name] / fact - 1 for name, fact in code_times().items()
        },
        "factor": exp(levels.spread),
        "context": CONTEXT,
        "prompt_tokens": Scenario.load(SCENARIO).workload.prompt_tokens,
    }


def speed_ups(slow: Sequence[Interval], times: Sequence[Interval]) -> list[Interval]:
    """Level by level."""
    return [time.inverse(each.mean) for each, time in zip(slow, times, strict=True)]


def ends(ratios: Sequence[Interval]) -> dict[str, Interval]:
    """The least and the largest one."""
    least, *_, largest = sorted(ratios, key=lambda ratio: ratio.mean)
    return {"low": least, "high": largest}


ACCEPTED = (METRIC, "throughput_tokens_s")


def with_model(entries: Sequence[Entry], levels: Levels) -> list[Entry]:
    """Predicted times and speed-ups with what the model may miss in their intervals, too.

    Figures in which no draft is asked have none of it, nor have hit rates, best parameters and what
    was calibrated on.
    """
    return [
        widened(each, levels.spread)
        if each.role == "predicted"
        and each.low is not None
        and ("/over_" in each.key or each.key.endswith(ACCEPTED))
        else each
        for each in entries
    ]


def add_errors(study: Reproduction, trivial: str, guesses: Mapping[str, float]) -> None:
    """Published beside predicted, and the errors beside those of a trivial predictor."""
    study.show([each for each in study.entries if each.published], "published", "Published figures")
    ratios = [entry for entry in study.entries if entry.unit != "nodes"]
    scores = ScoreSheet(f"{study.name}-errors")
    scores.add("simulation", score(ratios))
    scores.add(trivial, score(ratios, guesses))
    study.table(scores.sheet())


def times(outcomes: Mapping[Any, Outcome], metric: str = METRIC) -> dict[Any, Interval]:
    """A metric of outcomes, by the same labels."""
    return {label: outcome.metrics[metric] for label, outcome in outcomes.items()}
