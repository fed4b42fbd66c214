"""The steps of PipeDec and SpecPipe, and the figures of a request of finite length."""

from __future__ import annotations

from itertools import accumulate

from treepipe.core.barrier import group_sizes
from treepipe.scenario.passage import Passage
from treepipe.sim.theory.alone import request_metrics
from treepipe.sim.theory.layered import (
    Broadcast,
    LockStep,
    pipedec_latency_ms,
    specpipe_even_tbt_ms,
)
from treepipe.sim.theory.tokens import DecisionOutcome, decoding_ms

MARKER_TURNS = 3
"""Number of transfers per group until all markers before a text's first layer are in place."""


def steps_of(passage: Passage, width: int, read_ms: float) -> LockStep:
    """Compute the steps of a deployment, with words as if all nodes below a hit stayed: the root,
    and the layers behind it in flight. ``read_ms`` is the draft's reading between the first token
    and its first layer."""
    deployment, stages = passage.deployment, passage.stages
    groups = group_sizes(deployment.service.groups, len(stages))
    ends = [*accumulate(groups)][:-1]
    return LockStep(
        groups=groups,
        stage_ms=tuple(passage.passes_ms(width)),
        prune_ms=tuple(stage.times.prune for stage in stages),
        hops=passage.ways(width),
        marker_hops=passage.ways(0),
        reports=tuple(map(passage.report, ends)),
        hit=Broadcast(*passage.told(1 + (len(groups) - 1) * width), prunes=True),
        flush=Broadcast(*passage.told(1), prunes=True),
        marker=Broadcast(*passage.told(0)),
        decide_ms=passage.decide_ms(width),
        draft_ms=passage.draft.times.draft(width),
        verify_ms=passage.verify_ms(width),
        read_ms=read_ms,
        overlapped=deployment.service.overlapped_pruning,
        central=deployment.wiring.central_transfers,
    )


def prefill_ms(passage: Passage, chunks: list[int], *, parallel: bool) -> tuple[float, float]:
    """Compute the time to the first token, and the draft's reading from there on.

    Args:
        parallel: the draft reads the prompt's chunks while the target does, and the first token
            behind them; else all of it then, in one pass.
    """
    read = passage.draft.times.read
    if not parallel:
        return passage.prefill_ms(chunks), read(sum(chunks) + 1)
    first, left = passage.first_token_ms(chunks, [*map(read, chunks)])
    return first, left + read(1)


def stepped_metrics(
    steps: LockStep, hit: float, prefill: float, new_tokens: int
) -> dict[str, float]:
    """Compute expected values of a request that finds an empty pipeline."""
    left = new_tokens - 1
    outcomes = [DecisionOutcome(hit, 1, steps.hit_ms), DecisionOutcome(1 - hit, 1, steps.miss_ms)]
    decode = decoding_ms(left, steps.first_ms, outcomes)
    return request_metrics(prefill, decode, new_tokens, 1 + (1 - hit) * (left - 1))


def stepped_terms(steps: LockStep, hit: float) -> dict[str, float]:
    """Compute the papers' quantities: SpecPipe, eq. 2, in both readings; PipeDec, section 2.3."""
    groups = len(steps.groups)
    inside = [
        sum(steps.stage_ms[end - size : end])
        + sum(lasts for lasts, _ in steps.hops[end - size + 1 : end])
        for size, end in zip(steps.groups, accumulate(steps.groups), strict=True)
    ]
    stage = max(inside)
    hop = max((lasts for lasts, _ in steps.hops[1:-1]), default=0.0)
    step = stage + hop
    return {
        "hit_probability": hit,
        "hit_ms": steps.hit_ms,
        "miss_ms": steps.miss_ms,
        "long_run_time_between_tokens_ms": steps.tbt_ms(hit),
        "specpipe_time_between_tokens_ms": specpipe_even_tbt_ms(step, hit, groups),
        "specpipe_worst_time_between_tokens_ms": specpipe_even_tbt_ms(step, hit, groups, "N"),
        "pipedec_latency_ms": pipedec_latency_ms(steps.draft_ms, stage, hop),
    }


def bent(passage: Passage, steps: LockStep, width: int, prefilled: int) -> list[str]:
    """Return the assumptions that the deployment breaks, for prompts of ``prefilled`` chunks."""
    central, groups = steps.central, steps.groups
    rippled_ms = MARKER_TURNS * len(groups) * max(lasts for lasts, _ in steps.marker_hops)
    waits = {
        "flights inside a group, or while stages prune, may wait for others in the central "
        "scheduler": central and (steps.overlapped or max(groups) > 1),
        "the prompt's chunks may wait for each other in the central scheduler": central
        and prefilled > 1,
        "words and layers may wait for each other at ports that every message keeps busy (links, "
        "message_ms)": any(link.message_ms for link in passage.links),
        "steps between hits take different times in turn, so that figures depend on where a text "
        "ends": steps.alternates,
        "the markers before a text's first layer wait for each other in the central scheduler": (
            central and len(groups) > 1 and rippled_ms > steps.stage_ms[0]
        ),
    }
    found = [f"the closed form leaves out that {each}" for each, bent in waits.items() if bent]
    if _times(passage, width) != _times(passage, 1):
        found.append(
            f"the closed form assumes that a layer takes as long as one of {width} rows, however "
            f"few are left"
        )
    return found


def _times(passage: Passage, rows: int) -> list[float]:
    return [*passage.stage_ms(rows), *passage.hops_ms(rows), passage.decide_ms(rows)]
