"""PipeDec and SpecPipe: its steps, and what a request of finite length makes of them."""

from __future__ import annotations

from dataclasses import asdict

from treepipe.core.barrier import group_sizes
from treepipe.sim.theory.central import CentralLockStep
from treepipe.sim.theory.layered import (
    LockStep,
    pipedec_latency_ms,
    specpipe_even_tbt_ms,
)
from treepipe.sim.theory.passage import Passage
from treepipe.sim.theory.tokens import DecisionOutcome, decoding_ms

SLIGHT = 0.01
"""Of a step: what is less of it is named by no warning."""


def steps_of(passage: Passage, width: int, read_ms: float) -> LockStep:
    """The steps of a deployment; uneven stages and links count as the slowest one, and the words of
    a central scheduler as if all nodes below a hit stayed.

    Args: ``read_ms``: what the draft has to read from the first token on, before its first layer.
    """
    deployment = passage.deployment
    first, *between, last = passage.hops_ms(width)
    steps = LockStep(
        groups=group_sizes(deployment.groups, len(passage.stages)),
        stage_ms=max(passage.passes_ms(width)),
        hop_ms=max(between, default=0.0),
        end_ms=max(first, last),
        prune_ms=max(stage.times.prune for stage in passage.stages),
        decide_ms=passage.decide_ms(width),
        marker_ms=passage.marker_ms,
        draft_ms=passage.draft.times.draft(width),
        verify_ms=passage.verify_ms(width),
        read_ms=read_ms,
        overlapped=deployment.overlapped_pruning,
    )
    if not deployment.central_transfers:
        return steps
    return CentralLockStep(
        **asdict(steps),
        word_ms=passage.word_ms(1 + len(steps.groups) * width),
        flush_ms=passage.word_ms(1),
        empty_ms=passage.word_ms(0),
    )


def prefill_ms(passage: Passage, chunks: list[int], *, parallel: bool) -> tuple[float, float]:
    """The time to the first token, and what the draft has to read from there on.

    Args: ``parallel``: the draft reads the prompt's chunks while the target does, and the first
        token behind them; else all of it then, in one pass.
    """
    draft = passage.draft.times.draft
    if not parallel:
        return passage.prefill_ms(chunks), draft(sum(chunks) + 1)
    first, left = passage.first_token_ms(chunks, [draft(rows) for rows in chunks])
    return first, left + draft(1)


def stepped_metrics(
    steps: LockStep, hit: float, prefill: float, new_tokens: int
) -> dict[str, float]:
    """Expected values of a request that finds an empty pipeline; its prefill takes so long."""
    left = new_tokens - 1
    outcomes = [DecisionOutcome(hit, 1, steps.hit_ms), DecisionOutcome(1 - hit, 1, steps.miss_ms)]
    decode = decoding_ms(left, steps.first_ms, outcomes)
    found = {
        "throughput_tokens_s": 1e3 * new_tokens / (prefill + decode),
        "time_to_first_token_ms": prefill,
        "request_latency_ms": prefill + decode,
    }
    if not left:
        return found
    rounds = 1 + (1 - hit) * (left - 1)
    return found | {
        "time_between_tokens_ms": decode / left,
        "per_session_throughput_tokens_s": 1e3 * left / decode,
        "tokens_per_round": left / rounds,
        "hit_rate": 1 - rounds / left,
        "flushes_per_100_tokens": 100 * rounds / left,
    }


def stepped_terms(steps: LockStep, hit: float) -> dict[str, float]:
    """The papers' own quantities: SpecPipe, eq. 2, in both readings; PipeDec, section 2.3."""
    groups, slowest = len(steps.groups), max(steps.groups)
    stage = slowest * steps.stage_ms + (slowest - 1) * steps.hop_ms
    step = stage + steps.hop_ms
    return {
        "hit_probability": hit,
        "hit_ms": steps.hit_ms,
        "miss_ms": steps.miss_ms,
        "long_run_time_between_tokens_ms": steps.tbt_ms(hit),
        "specpipe_time_between_tokens_ms": specpipe_even_tbt_ms(step, hit, groups),
        "specpipe_worst_time_between_tokens_ms": specpipe_even_tbt_ms(step, hit, groups, "N"),
        "pipedec_latency_ms": pipedec_latency_ms(steps.draft_ms, [stage], [steps.hop_ms]),
    }


def bent(passage: Passage, steps: LockStep, width: int) -> list[str]:
    """Assumptions of the steps that the deployment breaks."""
    found = []
    first, *between, last = passage.links
    words = [passage.deployment.link(passage.draft.name, stage.name) for stage in passage.stages]
    uneven = len(set(passage.passes_ms(width))) > 1
    uneven |= len({stage.times.prune for stage in passage.stages}) > 1
    if uneven or len({*between}) > 1 or len({first, last, *words}) > 1:
        found.append("the closed form assumes equal stages and links; the slowest one counts")
    if _times(passage, width) != _times(passage, 1):
        found.append(
            f"the closed form assumes that a layer takes as long as one of {width} rows, however "
            f"few are left"
        )
    word_ms = passage.word_ms(1 + len(steps.groups) * width)
    if not passage.deployment.central_transfers and steps.end_ms - word_ms > SLIGHT * steps.hit_ms:
        found.append(
            f"the closed form takes a word to be as long on its way as a layer ({steps.end_ms:.4g} "
            f"ms instead of {word_ms:.4g} ms)"
        )
    return found + steps.bent()


def _times(passage: Passage, rows: int) -> list[float]:
    """All that a layer of so many rows takes in the pipeline."""
    return [*passage.stage_ms(rows), *passage.hops_ms(rows), passage.decide_ms(rows)]
