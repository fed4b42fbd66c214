"""What the study ``flowspec-table`` found, and what it states about itself in words.

Law of this file: sentences, and the figures in them; nothing is computed from figures here but
means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean

from treepipe.studies.flowspec.curves import Curves
from treepipe.studies.flowspec.fit import Fit
from treepipe.studies.flowspec.testbed import (
    PROMPT_TOKENS,
    TEMPLATE_TOKENS,
    Size,
    Times,
    roofline_times,
)
from treepipe.studies.study import Entry


@dataclass(frozen=True, slots=True)
class Findings:
    """All that the study found.

    Attributes:
        left_out: errors of Vicuna 7B's cells at temperature 0 whose dataset was not fitted to.
        times, curves: by the models' size.
        own_slowdown: the 13B models' factor if only one model's cell is taken.
        table, ablation, third, sweep: entries of Tables 1, 2, 3 and of the bandwidths.
        grid: FlowSpec's tokens per second by d0 and d_exp.
    """

    fit: Fit
    left_out: Mapping[tuple[str, str], float]
    times: Mapping[Size, Times]
    own_slowdown: Mapping[str, float]
    curves: Mapping[Size, Curves]
    table: Sequence[Entry]
    ablation: Sequence[Entry]
    third: Sequence[Entry]
    sweep: Sequence[Entry]
    grid: Mapping[tuple[int, int], float]


def sections(found: Findings) -> dict[str, list[str]]:
    return {
        "Calibrated on": _calibrated(found),
        "True predictions": [
            "all PipeDec and FlowSpec cells of Llama 2 Chat 7B, of the 13B models (but MT-bench's "
            "PipeDec at T = 0) and of T = 1: none of them was used, none is known here",
            "Table 2's pruned_pp, FlowSpec without score segmentation and FlowSpec (accuracy from "
            "that table's naive_pp); Table 3's PipeDec and FlowSpec",
            "but Table 2 was looked at while the model was made: that the times must let the draft "
            "reach every naive_pp figure was added when its predictions were 7 % off for FlowSpec "
            "and 11 % for pruned_pp; of the forms tried (a fixed tail of misses, a loss at every "
            "depth, a loss beyond recorded depths, stage times that grow with tokens), the one "
            "that fits Vicuna 7B's rows best was kept, and the cross-validation does not repeat "
            "that choice",
            "the bandwidth sweep and the map of depths",
            "the cross-validation: a dataset's PipeDec and FlowSpec from a fit to the other five",
            "intervals: 95 %, from the errors of that cross-validation (Student's t, six cells per "
            "method), so they hold the published samples' noise; the naive_pp cells have none, as "
            "they are where the accuracy comes from",
        ],
        "Assumptions": _assumptions(),
        "Not predicted, and why": [
            "naive_pp itself: the draft's accuracy per model and dataset is not published, so each "
            "of its cells is used up to find it",
            "latencies of Table 2: samples were not capped at 128 tokens there, and 34.25 s "
            "(without score segmentation, MT-bench) contradicts that row's own throughput",
            "a cell more exactly than its sample: 10 or 20 prompts per cell; the same cell differs "
            "by up to 16 % between two of the paper's tables",
            "absolute times from data sheets: the roofline comes near a 7B stage, but a 4-bit 13B "
            "stage takes several times what it takes in float16 there (bitsandbytes unpacks the "
            "weights), and nothing published says how long the draft and a step take",
            "FlowSpec better than by a constant ratio: on the cells that are known, its ratio to "
            "naive_pp varies less than the model's, which gains more where acceptance is low",
            "decode-only throughput, as reported since 2026: another quantity",
        ],
    }


def _calibrated(found: Findings) -> list[str]:
    small, large = found.times["7b"], found.times["13b"]
    roofline = roofline_times()
    own = ", ".join(f"{model} {factor:.2f}" for model, factor in found.own_slowdown.items())
    rms = sqrt(fmean(error**2 for error in found.fit.errors.values()))
    return [
        f"7B times, from the 18 cells of Vicuna 7B at T = 0, so that all naive_pp cells of the 7B "
        f"models lie within (or next to) what the draft can reach: a stage {small.stage_ms:.1f} ms "
        f"(roofline {roofline.stage_ms:.1f} ms), synchronisation {small.sync_ms:.1f} ms per step, "
        f"a draft pass {small.draft_ms:.1f} ms (roofline {roofline.draft_ms:.1f} ms); the PipeDec "
        f"and FlowSpec cells fitted to are met to {rms:.1%} (root mean square)",
        f"the draft's loss beyond the recorded depths, {found.fit.depth_loss:g} of the positions "
        f"per unverified token, from the same cells: PipeDec's draft there sees no new context "
        f"within a round",
        f"one factor for all times of both 13B models (same layers, same devices), from their two "
        f"PipeDec cells: {large.stage_ms / small.stage_ms:.2f}, so a stage takes "
        f"{large.stage_ms:.0f} ms; each model's own cell would say: {own}",
        "top-1 accuracy of every cell, from its naive_pp figure",
    ]


def _assumptions() -> list[str]:
    prompts = ", ".join(f"{name} {tokens}" for name, tokens in PROMPT_TOKENS.items())
    return [
        "throughput is 128 new tokens over a request's whole time, prefill included; every request "
        "is 128 tokens long (Vicuna's MT-bench answers were about 104, by Table 3's own latency)",
        f"prompt tokens: {prompts}; the families' templates add {TEMPLATE_TOKENS['vicuna']} "
        f"(Vicuna) and {TEMPLATE_TOKENS['llama2']} (Llama 2); chunks of 64",
        "a cell's draft differs from the recorded one (the bundled EAGLE head's positions, by "
        "depth) only in how often easy passages come: one number, top-1 accuracy",
        "temperature 1 lowers accuracy and changes nothing else: the target's token is sampled and "
        "looked for among the children",
        "time against tokens has the shape of the Orin Nano's float16 roofline (flat up to 128 "
        "tokens), for 4-bit weights too, as they are unpacked for every pass; a share that grows "
        "with tokens was tried as a further parameter, and fits worse",
        "with the 13B models everything is slower by one factor, draft and synchronisation too "
        "(4-bit weights are unpacked on every device): FlowSpec's ratio to naive_pp is known to "
        "depend little on the model (a constant is about 3 % off); a draft in float16 at the "
        "roofline's pace would hide behind such slow stages, and FlowSpec gain 1.6 to 1.7",
        "beyond the accuracies that the recorded pool can be tilted to, curves go on along their "
        "tangents",
        "links of 1 Gbit/s and 0.2 ms; a stage's time does not depend on the context's length",
        "PipeDec as in FlowSpec's code: layers of 16 nodes out of ten candidates each, the whole "
        "tree drafted again for every layer; FlowSpec's score-aware expansion is off, its "
        "expansions have 64 nodes",
    ]
