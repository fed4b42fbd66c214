"""What the study of SpecPipe finds and rests on, in sentences."""

from __future__ import annotations

from treepipe.studies.layered.calibration import MISSES, SHARPNESS
from treepipe.studies.layered.cluster import unscaled_ms
from treepipe.studies.layered.specpipe_found import FLAT, Found


def findings(found: Found) -> list[str]:
    """Conclusions."""
    best, one = found.best_width, found.servers["one-server"]
    wider = min((w for w in found.widths if w > 64), default=best)
    step, leap = found.cluster.slowest_ms(64), found.cluster.slowest_ms(wider)
    narrow, equal = min(found.widths), ", ".join(map(str, found.flat))
    losses = [
        f"{found.time_ms(w) / found.time_ms(best) - 1:+.0%} at {w}"
        for w in found.widths
        if w != best
    ]
    level = [
        f"{found.level_ms(w) / found.level_ms(64) - 1:+.0%} at {w}" for w in found.widths if w < 64
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
        "were a stage's time exactly level up to 64 rows, as the paper draws it, times against "
        f"width 64 would be {', '.join(level)}",
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


def sections(found: Found) -> dict[str, list[str]]:
    """What it was calibrated on, predicts, assumes, and does not predict."""
    overhead, levels = found.cluster.overhead_ms["rtx-3090"], found.levels
    low, high = (1 - levels.six[0] * MISSES[1], 1 - levels.six[-1] * MISSES[1])
    code = 1 - levels.humaneval_x * MISSES[1]
    return {
        "Calibrated on": [
            f"plain pipeline on HumanEval-X, 302.39 ms: {overhead:.2f} ms per layer and pass on "
            f"top of the profiled RTX 3090 ({unscaled_ms('rtx-3090', 8):.0f} ms without)",
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
