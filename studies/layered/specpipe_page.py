"""What the study of SpecPipe says: its figures by key, tables, findings, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.sim.theory.layered import specpipe_even_tbt_ms
from treepipe.statistics import Interval
from treepipe.studies.layered.calibration import METRIC, MISSES, SHARPNESS, Levels
from treepipe.studies.layered.cluster import PRUNE_MS, Cluster, pass_ms
from treepipe.studies.layered.specpipe_figures import batch_figure, schedule_figure, width_figure
from treepipe.studies.layered.speedup import speedup
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

NAME = "specpipe-width"
FLAT = 0.03
"""Widths this near to the best one are called as good."""


@dataclass(frozen=True, slots=True)
class Server:
    """Times between tokens in milliseconds, on one cluster.

    Attributes:
        plain_ms: of the plain pipeline.
        code: per schedule, on HumanEval-X.
        specpipe, specinfer: per level, the one with most misses first.
    """

    plain_ms: float
    code: Mapping[str, Interval]
    specpipe: Sequence[Interval]
    specinfer: Sequence[Interval]


@dataclass(frozen=True, slots=True)
class Found:
    """All that was simulated."""

    levels: Levels
    servers: Mapping[str, Server]
    widths: Mapping[int, Outcome]
    children: Mapping[int, Outcome]
    batches: Mapping[int, Outcome]
    sensitivity: Mapping[str, Interval]
    cluster: Cluster

    @property
    def best_width(self) -> int:
        return min(self.widths, key=lambda width: self.time_ms(width))

    def time_ms(self, width: int) -> float:
        return self.widths[width].metrics[METRIC].mean

    @property
    def flat(self) -> list[int]:
        """Widths that are as good as the best one."""
        bound = (1 + FLAT) * self.time_ms(self.best_width)
        return [width for width in self.widths if self.time_ms(width) <= bound]

    def equation_ms(self, width: int) -> tuple[float, float]:
        """SpecPipe's equation 2 with the simulated hit rate, in its two readings (N - 1, N)."""
        step = self.cluster.slowest_ms(width) + PRUNE_MS
        hit, stages = self.widths[width].metrics["hit_rate"].mean, len(self.cluster.cards)
        return (
            specpipe_even_tbt_ms(step, hit, stages, "N-1"),
            specpipe_even_tbt_ms(step, hit, stages, "N"),
        )


def page(found: Found) -> StudyResult:
    """The whole result."""
    entries = _entries(found)
    scores = ScoreSheet("specpipe-width-errors")
    scores.add("simulation", score(entries))
    scores.add("constant ratios (below)", score(entries, _trivial()))
    return StudyResult(
        NAME,
        entries,
        [
            comparison_sheet(
                "specpipe-width-published",
                "Published and predicted",
                [each for each in entries if each.published],
            ),
            scores.sheet(),
            _code_sheet(found),
            _width_sheet(found),
            _batch_sheet(found),
            _sensitivity_sheet(found),
        ],
        {
            "specpipe-width": width_figure(found),
            "specpipe-schedules": schedule_figure(found.servers),
            "specpipe-batches": batch_figure(found.batches),
        },
        _findings(found),
        sections=_sections(found),
    )


def _entries(found: Found) -> list[Entry]:
    facts = published()["specpipe"]
    plain, stepped = facts["pp_tbt_ms_humaneval_x"], facts["specpipe_tbt_ms_humaneval_x"]
    one = found.servers["one-server"]
    entries = [
        calibrated(f"one-server/pp/{METRIC}", "ms", one.plain_ms, plain),
        calibrated(f"one-server/specpipe/{METRIC}", "ms", one.code["specpipe"], stepped),
        predicted(
            f"one-server/specpipe_at_pipedec_best_level/{METRIC}", "ms", one.specpipe[-1], stepped
        ),
        predicted(
            f"one-server/pp_as_profiled/{METRIC}",
            "ms",
            _profiled_ms("rtx-3090", 8),
            facts["pp_vllm_tbt_ms_humaneval_x"],
        ),
        predicted(
            f"four-l40/pp/{METRIC}",
            "ms",
            _profiled_ms("l40", 4) + 80 * found.cluster.overhead_ms["rtx-3090"],
            facts["target_tbt_ms_4xL40"],
        ),
        predicted(f"two-server/pp/{METRIC}", "ms", found.servers["two-server"].plain_ms),
        predicted(
            f"two-server/specpipe/{METRIC}", "ms", found.servers["two-server"].code["specpipe"]
        ),
    ]
    for name, server in found.servers.items():
        for schedule, time in server.code.items():
            if schedule != "specpipe":
                entries.append(predicted(f"{name}/{schedule}/{METRIC}", "ms", time))
        entries += _ratios(name, server)
    for width, outcome in found.widths.items():
        entries.append(predicted(f"width={width}/{METRIC}", "ms", outcome.metrics[METRIC]))
        entries.append(predicted(f"width={width}/hit_rate", "1", outcome.metrics["hit_rate"]))
        entries.append(predicted(f"width={width}/equation_2_ms", "ms", found.equation_ms(width)[0]))
    for count, outcome in found.children.items():
        entries.append(predicted(f"children={count}/{METRIC}", "ms", outcome.metrics[METRIC]))
    entries.append(predicted("best_width", "nodes", found.best_width))
    for count, outcome in found.batches.items():
        for metric, unit in (("throughput_tokens_s", "tokens/s"), (METRIC, "ms")):
            key = f"batch={count}/specpipe_db/{metric}"
            entries.append(predicted(key, unit, outcome.metrics[metric]))
    return entries


def _ratios(name: str, server: Server) -> list[Entry]:
    """The least and the largest speed-up over the six levels."""
    over_plain = [speedup(server.plain_ms, time) for time in server.specpipe]
    static = [
        speedup(slow.mean, time)
        for slow, time in zip(server.specinfer, server.specpipe, strict=True)
    ]
    return [
        predicted(f"{name}/{key}/{end}", "1", which(ratios, key=lambda ratio: ratio.mean))
        for key, ratios in (("over_pp", over_plain), ("over_specinfer", static))
        for end, which in (("low", min), ("high", max))
    ]


def _profiled_ms(device: str, stages: int) -> float:
    """A token through stages with nothing added to the profiled times."""
    layers = 80 // stages
    return (stages - 1) * pass_ms(device, layers, False)[1] + pass_ms(device, layers, True)[1]


def _trivial() -> dict[str, float]:
    """Constant ratios: PipeDec's best speed-up holds here, too; every plain pipeline of the 70B
    model takes as long as the one that was measured."""
    facts = published()
    plain = facts["specpipe"]["pp_tbt_ms_humaneval_x"]
    best = facts["pipedec"]["speedup_over_pp_14_stage_range"][1]
    return {
        f"one-server/specpipe_at_pipedec_best_level/{METRIC}": plain / best,
        f"one-server/pp_as_profiled/{METRIC}": plain,
        f"four-l40/pp/{METRIC}": plain,
    }


# --- tables --------------------------------------------------------------------------------------


def _code_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "specpipe-width-schedules",
        "Time between tokens on HumanEval-X",
        [
            Column("cluster"),
            Column("schedule"),
            Column("predicted", "ms"),
            Column("low", "ms"),
            Column("high", "ms"),
            Column("over the plain pipeline", shown=".2f"),
        ],
    )
    for name, server in found.servers.items():
        sheet.add(name, "pp", server.plain_ms, None, None, 1.0)
        for schedule, time in server.code.items():
            ratio = server.plain_ms / time.mean
            sheet.add(name, schedule, time.mean, time.low, time.high, ratio)
    return sheet


def _width_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "specpipe-width-widths",
        "SpecPipe, one server: the width of a layer (mean of the six levels)",
        [
            Column("width", shown="d"),
            Column("stage", "ms"),
            Column("hit rate P(w)", shown=".3f"),
            Column("steps per token", shown=".3f"),
            Column("TBT", "ms"),
            Column("low", "ms"),
            Column("high", "ms"),
            Column("equation 2, N - 1", "ms"),
            Column("equation 2, N", "ms"),
        ],
    )
    for width, outcome in found.widths.items():
        metrics = outcome.metrics
        time, equation = metrics[METRIC], found.equation_ms(width)
        sheet.add(
            width,
            found.cluster.slowest_ms(width),
            metrics["hit_rate"].mean,
            1 / metrics["tokens_per_step"].mean,
            time.mean,
            time.low,
            time.high,
            *equation,
        )
    return sheet


def _batch_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "specpipe-width-batches",
        "SpecPipe-DB, one server, HumanEval-X, width 64: B requests share the steps",
        [
            Column("B", shown="d"),
            Column("throughput", "tokens/s"),
            Column("low", "tokens/s"),
            Column("high", "tokens/s"),
            Column("TBT of a request", "ms"),
            Column("P99 TBT", "ms"),
        ],
    )
    for count, outcome in found.batches.items():
        rate = outcome.metrics["throughput_tokens_s"]
        slow = outcome.metrics[f"p99_{METRIC}"].mean
        sheet.add(count, rate.mean, rate.low, rate.high, outcome.metrics[METRIC].mean, slow)
    return sheet


def _sensitivity_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "specpipe-width-sensitivity",
        "HumanEval-X, one server, one assumption changed and nothing calibrated again",
        [Column("changed"), Column("TBT", "ms"), Column("low", "ms"), Column("high", "ms")],
    )
    code = found.servers["one-server"].code
    for name in ("specpipe", "specinfer"):
        sheet.add(f"{name}, nothing", code[name].mean, code[name].low, code[name].high)
    for name, time in found.sensitivity.items():
        sheet.add(name, time.mean, time.low, time.high)
    return sheet


# --- in words ------------------------------------------------------------------------------------


def _findings(found: Found) -> list[str]:
    best, one = found.best_width, found.servers["one-server"]
    wider = min((w for w in found.widths if w > 64), default=best)
    step, leap = found.cluster.slowest_ms(64), found.cluster.slowest_ms(wider)
    narrow, equal = min(found.widths), ", ".join(map(str, found.flat))
    losses = [
        f"{found.time_ms(w) / found.time_ms(best) - 1:+.0%} at {w}"
        for w in found.widths
        if w != best
    ]
    rates = {w: found.widths[w].metrics["hit_rate"].mean for w in found.widths}
    both = [one.code[name].mean for name in ("eagle", "eagle_own_device")]
    return [
        f"best width {best}: {found.time_ms(best):.1f} ms a token; within {FLAT:.0%} of it: "
        f"{equal}; time between tokens elsewhere {', '.join(losses)}",
        f"why: up to 64 rows a stage's time hardly grows ({found.cluster.slowest_ms(1):.1f} ms "
        f"at 1, {step:.1f} at 64), so that width is nearly free, but the hit rate saturates "
        f"({rates[narrow]:.3f} at {narrow}, {rates[best]:.3f} at {best}); beyond 64 rows the "
        f"stage's time leaps to {leap:.1f} ms at {wider} and nothing is left to gain",
        f"the paper's equation 2 with the simulated hit rate says "
        f"{found.equation_ms(best)[0]:.1f} ms at width {best}, the simulation "
        f"{found.time_ms(best):.1f}: the equation counts every miss as steps of full width, which "
        f"a refill's single rows are not, and leaves out hits whose descendants were crowded out "
        f"of the layers behind them, so that stages are idle, too",
        f"SpecInfer's tree needs {one.code['specinfer'].mean:.1f} ms on HumanEval-X with its draft "
        f"in sequence, {one.code['specinfer_hidden_draft'].mean:.1f} ms if drafting took no time",
        f"an EAGLE tree needs {both[0]:.1f} ms if drafting costs a pass of the pipeline, as the "
        f"paper says it did, and {both[1]:.1f} ms if its head had a device of its own; the paper "
        f"puts it above PP-vLLM's 181.41 ms",
        "the draft must be the 1B model: with 67 ms per pass of the 8B model no step could be "
        f"shorter than that, more than the 54.67 ms published (we get "
        f"{found.sensitivity['specpipe, drafted by the 8B model'].mean:.1f} ms)",
        f"PipeDec's best data set and SpecPipe's HumanEval-X agree on the draft: "
        f"{found.levels.six[-1]:.2f} and {found.levels.humaneval_x:.2f} times the misses on book "
        f"text",
    ]


def _sections(found: Found) -> dict[str, list[str]]:
    overhead, levels = found.cluster.overhead_ms["rtx-3090"], found.levels
    low, high = (1 - levels.six[0] * MISSES[1], 1 - levels.six[-1] * MISSES[1])
    code = 1 - levels.humaneval_x * MISSES[1]
    return {
        "Calibrated on": [
            f"plain pipeline on HumanEval-X, 302.39 ms: {overhead:.2f} ms per layer and pass on "
            f"top of the profiled RTX 3090 ({_profiled_ms('rtx-3090', 8):.0f} ms without)",
            f"SpecPipe on HumanEval-X, 54.67 ms: {levels.humaneval_x:.2f} times the misses on book "
            f"text ({code:.2f} of all tokens are the draft's first candidate)",
            f"PipeDec's range of speed-ups with 14 stages, 4.46 to 7.79 (same authors, models and "
            f"data sets): six levels in equal steps from {levels.six[0]:.2f} to "
            f"{levels.six[-1]:.2f} times these misses ({low:.2f} to {high:.2f})",
            "published as measured and taken over: draft pass 17 ms, prune 5 ms, hit ratios "
            "0.81 (first candidate) and 0.99 (first 8) of the 8B model on book text as the shape "
            "of a level",
        ],
        "True predictions": [
            "widths, candidates per node, best width; SpecInfer's tree; an EAGLE tree; everything "
            "on two servers; speed-ups over the six levels; SpecPipe-DB",
            "SpecPipe on HumanEval-X from PipeDec's best data set alone; PP-vLLM from the profile "
            "alone; four L40 with an RTX 3090's overhead",
            "the trivial predictor: PipeDec's best speed-up holds for SpecPipe, and any plain "
            "pipeline of the 70B model takes 302.39 ms",
        ],
        "Assumptions": [
            "the authors' software adds a constant per layer and pass: their 1B, 8B and 70B models "
            f"take {(17.0 - 3.67) / 16:.1f} to {found.cluster.overhead_ms['l40']:.1f} ms per layer "
            "more than profiled, while the factor would range from 1.5 to 4.6",
            "a layer's time against rows is Llama 3.1 8B's as measured, scaled by roofline times; "
            "its hump between 32 and 57 rows (17 to 31 %) may be the smaller matrices' own. The "
            "paper only says: flat, with leaps every 64 tokens",
            f"the bundled pair's confidence, sharpened (power {SHARPNESS}) until it is as sure as "
            "it is right; as recorded it is far too unsure: wrong branches crowd the true one out, "
            "and every layered time is longer (see the table)",
            "pruning delays every step by its 5 ms and hides the transfers, of which none is "
            "counted twice; 10 GbE to the draft, PCIe inside a server; context of 512 tokens",
            "RTX 4090 with the RTX 3090's overhead per layer; SpecPipe-DB on prompts of 64 tokens, "
            "its ragged batches cost nothing but their rows",
            "the EAGLE head guesses as the bundled one; its tree has 60 nodes and 7 passes",
        ],
        "Not predicted, and why": [
            "PP-vLLM and TP/PP-vLLM under load: another system's batching and tensor parallelism",
            "EAGLE3's own times: how its code runs under a pipeline is not said, but that drafting "
            "needs a full pass of it; its hit ratios are not given for these data sets",
            "SpecInfer's asynchronous drafting: that it overlaps with stages is said, not how; the "
            "two times given bound it",
            "which data set has which level: the paper gives one of the six as a number",
        ],
    }
