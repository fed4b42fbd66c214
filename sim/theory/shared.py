"""StarSD: Z and S from a deployment's devices and links, then N equal targets in steady state."""

from __future__ import annotations

from treepipe.scenario.passage import Passage
from treepipe.sim.theory.starsd import Cycle
from treepipe.sim.theory.tokens import accepted, committed


def cycle_of(passage: Passage, beta: float, gamma: int) -> Cycle:
    """Compute Z and S of one target (section 4, eq. 5 and 6) for segments of ``gamma`` + 1 nodes.

    S holds evaluation and decision besides the ``gamma`` passes, where the draft server does them.
    Pruning is part of Z only as far as drafting does not hide it.
    """
    rows = gamma + 1
    drafting = gamma * passage.draft.times.draft(1)
    back = passage.round_ms(rows, drafting, rows) - drafting
    return Cycle(back, passage.decide_ms(rows) + drafting, committed(beta, gamma))


def shared_metrics(cycle: Cycle, targets: int) -> dict[str, float]:
    between = cycle.iteration_ms(targets) / cycle.tokens
    fairness = {"fairness": 1.0} if targets > 1 else {}  # they are equal
    return {
        **fairness,
        "time_between_tokens_ms": between,
        "throughput_tokens_s": cycle.throughput(targets),
        "per_session_throughput_tokens_s": cycle.target_throughput(targets),
        "tokens_per_round": cycle.tokens,
        "tokens_per_step": cycle.tokens,
        "hit_rate": 1 - 1 / cycle.tokens,
        "flushes_per_100_tokens": 100 / cycle.tokens,
        "draft_service_ms": cycle.service_ms,
        "draft_wait_ms": cycle.wait_ms(targets),
        "draft_idle_ms": cycle.idle_ms(targets) / targets,
        "draft_rounds_s": cycle.draft_rounds(targets),
        "target_rounds_s": cycle.target_rounds(targets),
    }


def shared_utilization(passage: Passage, cycle: Cycle, targets: int, rows: int) -> dict[str, float]:
    iteration = cycle.iteration_ms(targets)
    found = {passage.draft.name: cycle.load(targets)}
    for number, stages in enumerate(passage.deployment.roles.pipelines):
        times = Passage(passage.deployment, number).stage_ms(rows)
        for stage, stage_ms in zip(stages, times, strict=True):
            found[stage.name] = (stage_ms + stage.times.prune) / iteration
    return found


def shared_terms(passage: Passage, cycle: Cycle, beta: float, gamma: int) -> dict[str, float]:
    """Return StarSD's own quantities; ``n_max`` compares with a target "without" the draft server
    (section 4.2): plain decoding that sends it nothing."""
    return {
        "service_ms": cycle.service_ms,
        "return_ms": cycle.back_ms,
        "accepted_tokens": accepted(beta, gamma),
        "n_full": cycle.n_full,
        "n_max": cycle.n_max(1e3 / passage.standalone_ms),
    }
