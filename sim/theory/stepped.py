"""PipeDec and SpecPipe on a plan: its steps, and what a request of finite length makes of them."""

from __future__ import annotations

from treepipe.sim.theory.layered import (
    LockStep,
    pipedec_latency_ms,
    specpipe_even_tbt_ms,
)
from treepipe.sim.theory.passage import Passage
from treepipe.sim.theory.tokens import Outcome, decoding_ms


def steps_of(passage: Passage, width: int, group: int) -> LockStep:
    """The steps of a plan; uneven stages and links count as the slowest one."""
    return LockStep(
        len(passage.stages),
        group,
        max(passage.stage_ms(width)),
        max(passage.hop_ms(link, width) for link in passage.links),
        max(stage.times.prune for stage in passage.stages),
        passage.decide_ms(width),
    )


def stepped_metrics(
    passage: Passage, steps: LockStep, hit: float, chunks: list[int], new_tokens: int
) -> dict[str, float]:
    """Expected values of a request that finds an empty pipeline."""
    prefill = passage.prefill_ms(chunks)
    left = new_tokens - 1
    outcomes = [Outcome(hit, 1, steps.hit_ms), Outcome(1 - hit, 1, steps.miss_ms)]
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


def stepped_terms(passage: Passage, steps: LockStep, hit: float, width: int) -> dict[str, float]:
    """The papers' own quantities: SpecPipe, eq. 2, in both readings; PipeDec, section 2.3."""
    stage, groups = steps.stage_ms * steps.group, steps.stages // steps.group
    links = [passage.hop_ms(link, width) for link in passage.links[1:-1]] or [0.0]
    step = stage + max(links)
    return {
        "hit_probability": hit,
        "hit_ms": steps.hit_ms,
        "miss_ms": steps.miss_ms,
        "long_run_time_between_tokens_ms": steps.tbt_ms(hit),
        "specpipe_time_between_tokens_ms": specpipe_even_tbt_ms(step, hit, groups),
        "specpipe_worst_time_between_tokens_ms": specpipe_even_tbt_ms(step, hit, groups, "N"),
        "pipedec_latency_ms": pipedec_latency_ms(passage.draft.times.draft(width), [stage], links),
    }


def bent(passage: Passage, steps: LockStep, width: int) -> list[str]:
    """Assumptions of the steps that the plan breaks."""
    found = []
    stages, hops = passage.stage_ms(width), [passage.hop_ms(each, 1) for each in passage.links]
    if min(stages) != max(stages) or min(hops) != max(hops):
        found.append("the closed form assumes equal stages and links; the slowest one counts")
    times = [passage.stage_ms(width), [passage.draft.times.evaluate(width)]]
    alone = [passage.stage_ms(1), [passage.draft.times.evaluate(1)]]
    if times != alone:
        found.append(
            f"the closed form assumes that every pass takes as long as one of {width} rows"
        )
    drafting = passage.draft.times.draft(width)
    if drafting > steps.hit_ms - steps.decide_ms:
        found.append(
            f"the closed form assumes that drafting a layer ({drafting:.4g} ms) hides behind a "
            f"step ({steps.hit_ms - steps.decide_ms:.4g} ms)"
        )
    return found
