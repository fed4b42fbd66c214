"""What the study of PipeDec says: its figures by key, tables, findings, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from treepipe.statistics import Interval
from treepipe.studies.layered.calibration import METRIC, MISSES, SHARPNESS, Levels
from treepipe.studies.layered.cluster import Cluster
from treepipe.studies.layered.pipedec_figures import grid_figure, speedup_figure, together_figure
from treepipe.studies.layered.speedup import average, speedup
from treepipe.studies.points import Outcome
from treepipe.studies.reproduction import (
    ScoreSheet,
    calibrated,
    comparison_sheet,
    predicted,
    published,
    score,
)
from treepipe.studies.sheet import Column, Sheet
from treepipe.studies.study import Entry, StudyResult

NAME = "pipedec-stages"
STAGES = ("7-stage", "14-stage", "21-stage")
THROUGHPUT = "throughput_tokens_s"
STOCHASTIC = 1.25
"""Times the misses of greedy decoding, at temperature 0.6, top-p 0.9, top-k 80 (assumed)."""


@dataclass(frozen=True, slots=True)
class Found:
    """All that was simulated.

    Attributes:
        plain_ms: time between tokens of the plain pipeline on the 14 cards.
        times: by number of stages, and of the static tree ("stpp"): per level, in milliseconds.
        cases: with 14 stages and of the static tree: at further levels.
        grid: by width and candidates per node.
        together: by method and number of requests side by side.
    """

    levels: Levels
    plain_ms: float
    times: Mapping[str, Sequence[Interval]]
    cases: Mapping[str, Mapping[str, Outcome]]
    grid: Mapping[tuple[int, int], Outcome]
    together: Mapping[tuple[str, int], Outcome]
    cluster: Cluster

    def over_plain(self, name: str) -> list[Interval]:
        """Speed-up per level."""
        return [speedup(self.plain_ms, time) for time in self.times[name]]

    def over_static(self, name: str) -> list[Interval]:
        """Speed-up per level."""
        pairs = zip(self.times["stpp"], self.times[name], strict=True)
        return [speedup(slow.mean, time) for slow, time in pairs]

    @property
    def best(self) -> tuple[int, int]:
        """Width and candidates per node."""
        return min(self.grid, key=lambda pair: self.grid[pair].metrics[METRIC].mean)

    @property
    def gain(self) -> float:
        """Of 14 stages over 7: by how much more tokens come in the same time."""
        seven, longer = (fmean(t.mean for t in self.times[n]) for n in STAGES[:2])
        return seven / longer - 1


def page(found: Found) -> StudyResult:
    """The whole result."""
    entries = _entries(found)
    scores = ScoreSheet("pipedec-stages-errors")
    ratios = [entry for entry in entries if entry.unit != "nodes"]
    scores.add("simulation", score(ratios))
    scores.add("SpecPipe's speed-up in proportion to the stages", score(ratios, _trivial()))
    return StudyResult(
        NAME,
        entries,
        [
            comparison_sheet(
                "pipedec-stages-published",
                "Published and predicted",
                [each for each in entries if each.published],
            ),
            scores.sheet(),
            _stage_sheet(found),
            _grid_sheet(found),
            _together_sheet(found),
        ],
        {
            "pipedec-stages": speedup_figure(found),
            "pipedec-parameters": grid_figure(found),
            "pipedec-throughput": together_figure(found),
        },
        _findings(found),
        sections=_sections(found),
    )


def _entries(found: Found) -> list[Entry]:
    facts = published()["pipedec"]
    entries = []
    for name in STAGES:
        for key, ratios in (
            ("over_pp", found.over_plain(name)),
            ("over_stpp", found.over_static(name)),
        ):
            ordered = sorted(ratios, key=lambda ratio: ratio.mean)
            values = {"mean": average(ratios), "low": ordered[0], "high": ordered[-1]}
            for which, value in values.items():
                entries.append(_speedup_entry(f"{name}/{key}/{which}", value))
    width, count = found.best
    entries += [
        predicted("gain_7_to_14", "1", found.gain),
        predicted("best_width", "nodes", width, facts["width"]),
        predicted("best_children", "nodes", count, facts["children"]),
        predicted(
            "14-stage/over_pp/at_specpipe_code_level",
            "1",
            speedup(found.plain_ms, found.cases["code"]["14-stage"].metrics[METRIC]),
            facts["speedup_over_pp_14_stage_range"][1],
        ),
        predicted("14-stage/pp/time_between_tokens_ms", "ms", found.plain_ms),
    ]
    for case in ("middle", "stochastic"):
        for name, outcome in found.cases[case].items():
            entries.append(predicted(f"{case}/{name}/{METRIC}", "ms", outcome.metrics[METRIC]))
    for (width, count), outcome in found.grid.items():
        for metric, unit in ((METRIC, "ms"), ("hit_rate", "1")):
            key = f"width={width}/children={count}/{metric}"
            entries.append(predicted(key, unit, outcome.metrics[metric]))
    for (method, count), outcome in found.together.items():
        key = f"k={count}/{method}/{THROUGHPUT}"
        entries.append(predicted(key, "tokens/s", outcome.metrics[THROUGHPUT]))
    return entries


def _speedup_entry(key: str, value: Interval) -> Entry:
    """The range over the plain pipeline with 14 stages is what the levels were fitted to."""
    low, high = published()["pipedec"]["speedup_over_pp_14_stage_range"]
    ends = {"14-stage/over_pp/low": low, "14-stage/over_pp/high": high}
    return calibrated(key, "1", value, ends[key]) if key in ends else predicted(key, "1", value)


def _trivial() -> dict[str, float]:
    """SpecPipe's speed-up on code in proportion to the stages."""
    facts = published()["specpipe"]
    ratio = facts["pp_tbt_ms_humaneval_x"] / facts["specpipe_tbt_ms_humaneval_x"]
    return {"14-stage/over_pp/at_specpipe_code_level": ratio * 14 / facts["stages"]}


# --- tables --------------------------------------------------------------------------------------


def _stage_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "pipedec-stages-speedups",
        "Speed-up of PipeDec over six levels of acceptance (plain pipeline and static tree: "
        "14 cards)",
        [
            Column("level", shown="d"),
            Column("first candidate right", shown=".2f"),
            Column("static tree", "ms"),
            *(Column(name, "ms") for name in STAGES),
            *(Column(f"{name} over pp", shown=".2f") for name in STAGES),
            *(Column(f"{name} over static", shown=".2f") for name in STAGES),
        ],
    )
    for n, level in enumerate(found.levels.six):
        sheet.add(
            n + 1,
            1 - level * MISSES[1],
            found.times["stpp"][n].mean,
            *(found.times[name][n].mean for name in STAGES),
            *(found.over_plain(name)[n].mean for name in STAGES),
            *(found.over_static(name)[n].mean for name in STAGES),
        )
    return sheet


def _grid_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "pipedec-stages-parameters",
        "14 stages, mean of the six levels: width and candidates per node",
        [
            Column("width", shown="d"),
            Column("candidates", shown="d"),
            Column("hit rate", shown=".3f"),
            Column("TBT", "ms"),
            Column("low", "ms"),
            Column("high", "ms"),
        ],
    )
    for (width, count), outcome in found.grid.items():
        time = outcome.metrics[METRIC]
        hit = outcome.metrics["hit_rate"].mean
        sheet.add(width, count, hit, time.mean, time.low, time.high)
    return sheet


def _together_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "pipedec-stages-throughput",
        "Throughput of k requests side by side on 14 cards",
        [
            Column("method"),
            Column("k", shown="d"),
            Column("throughput", "tokens/s"),
            Column("low", "tokens/s"),
            Column("high", "tokens/s"),
        ],
    )
    for (method, count), outcome in found.together.items():
        rate = outcome.metrics[THROUGHPUT]
        sheet.add(method, count, rate.mean, rate.low, rate.high)
    return sheet


# --- in words ------------------------------------------------------------------------------------


def _findings(found: Found) -> list[str]:
    means = {name: average(found.over_plain(name)).mean for name in STAGES}
    static = {name: average(found.over_static(name)).mean for name in STAGES}
    width, count = found.best
    greedy, drawn = found.cases["middle"], found.cases["stochastic"]
    slower = {
        name: drawn[name].metrics[METRIC].mean / greedy[name].metrics[METRIC].mean - 1
        for name in greedy
    }
    ks = sorted({k for _, k in found.together})
    rates = {
        method: [found.together[method, k].metrics[THROUGHPUT].mean for k in (ks[0], ks[-1])]
        for method in ("pp", "stpp", "pipedec")
    }
    listed = ", ".join(f"{name} {ratio:.2f}" for name, ratio in means.items())
    against = ", ".join(f"{name} {ratio:.2f}" for name, ratio in static.items())
    side = ", ".join(f"{m} {a:.1f} to {b:.1f}" for m, (a, b) in rates.items())
    return [
        f"mean speed-up over the plain pipeline: {listed}; over the static tree: {against}",
        f"14 stages yield {found.gain:.0%} more tokens per second than 7 groups of two; "
        f"{_plateau(means)}",
        f"best of the grid: width {width}, {count} candidates per node; the paper chose "
        f"{published()['pipedec']['width']} and {published()['pipedec']['children']}",
        f"with {STOCHASTIC} times the misses (our assumption for temperature 0.6, "
        f"top-p 0.9, top-k 80) PipeDec is {slower['14-stage']:.0%} slower and the static tree "
        f"{slower['stpp']:.0%}",
        f"from {ks[0]} to {ks[-1]} requests side by side, tokens per second: {side}; PipeDec "
        f"serves them one after another",
        "the cards' layers add up only if the two linear layers count among the five: 12 x 6 + "
        "2 x 5 = 82 = 80 + 2, and so with 21 cards",
    ]


def _plateau(means: Mapping[str, float]) -> str:
    change = means["21-stage"] / means["14-stage"] - 1
    return (
        f"21 stages change the speed-up by {change:+.0%} against 14: shorter steps, but a deeper "
        f"tree to refill and to lose the true branch in, and the L40s' slower layers"
    )


def _sections(found: Found) -> dict[str, list[str]]:
    levels = found.levels
    worst, best = (1 - levels.six[n] * MISSES[1] for n in (0, -1))
    return {
        "Calibrated on": [
            "the range of speed-ups over the plain pipeline with 14 stages, 4.46 to 7.79: six "
            f"levels of acceptance in equal steps ({worst:.2f} to {best:.2f} of all tokens are the "
            "draft's first candidate)",
            "SpecPipe's plain pipeline (same authors, cards and model), 302.39 ms: what the "
            "software adds per layer and pass; 374 ms on four L40: the same there; 17 ms a draft "
            "pass, 5 ms to prune",
        ],
        "True predictions": [
            "mean speed-ups; the static tree; 7 and 21 stages; width and candidates; stochastic "
            "decoding; throughput; the best data set's speed-up from SpecPipe's HumanEval-X",
            "the trivial predictor: SpecPipe's speed-up on HumanEval-X in proportion to the "
            "stages; the width would be 64, where a stage's time leaps, with all candidates",
        ],
        "Assumptions": [
            "STPP's tree is SpecInfer's (the paper does not say), its draft in sequence",
            "speed-ups of 7 and 21 stages are over the plain pipeline and the static tree on the "
            "14 cards, as the paper compares them",
            "cards of a server next to each other, 8 + 6 in two servers; 21 cards: 8 + 6 RTX 3090, "
            "4 RTX 4090, 3 L40; 10 GbE between servers, central transfers",
            f"six levels between the ends in equal steps; confidence sharpened (power {SHARPNESS}) "
            "as in the study of SpecPipe",
            "stochastic decoding: a quarter more misses; the simulator takes acceptance as given",
            "throughput: 12 requests with prompts of 64 tokens; memory for all of them",
        ],
        "Not predicted, and why": [
            "latency of the 8B model on one L40: not a pipeline",
            "which data set has which level: the paper gives its range only",
            "throughput under 4 GB of free memory: what a cache of the authors' code takes is not "
            "given",
            "accuracy in their sense (layers that hold the true token): our hit rate counts tokens",
        ],
    }
