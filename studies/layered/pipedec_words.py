"""What the study of PipeDec finds and rests on, in sentences."""

from __future__ import annotations

from collections.abc import Mapping

from treepipe.results.metrics import METRIC
from treepipe.results.statistics import Interval
from treepipe.studies.layered.calibration import MISSES, SHARPNESS
from treepipe.studies.layered.pipedec_found import STAGES, STOCHASTIC, THROUGHPUT, Found
from treepipe.studies.reproduction import published


def findings(found: Found) -> list[str]:
    """Conclusions."""
    means = {name: Interval.averaged(found.over_plain(name)).mean for name in STAGES}
    static = {name: Interval.averaged(found.over_static(name)).mean for name in STAGES}
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


def sections(found: Found) -> dict[str, list[str]]:
    """What it was calibrated on, predicts, assumes, and does not predict."""
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
            "throughput: 8 requests with prompts of 64 tokens; memory for all of them",
        ],
        "Not predicted, and why": [
            "latency of the 8B model on one L40: not a pipeline",
            "which data set has which level: the paper gives its range only",
            "throughput under 4 GB of free memory: what a cache of the authors' code takes is not "
            "given",
            "accuracy in their sense (layers that hold the true token): our hit rate counts tokens",
        ],
    }
