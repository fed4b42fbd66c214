"""Streams that decode together: in every round a chain of the same length for each of them.

The streams of a pipeline are divided among as many flights as it has stages, as engines' pipelines
do. A flight's round is drafting and a lap, and no device works on two flights at once; so the
period is the longer one of a round and of the busiest device's work on all flights (asymptotic
bounds, Lazowska et al. 1984, chapter 5). Links are taken as free, contexts as short.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from treepipe.core.errors import UserError
from treepipe.profiles.hit_ratio import at_depth, chain_rounds, depths_of, round_tokens
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.passage import Passage
from treepipe.scenario.scale import scaled_hits
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import HIT_RATIOS, Replay
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.sim.blocks import blocks_of


def shares_of(scenario: Scenario, depth: int) -> tuple[float, ...]:
    """Return P(accepted at a depth | all above it accepted), for ``depth`` depths.

    Raises ``UserError`` if the acceptance is missing or is a replay of one text.
    """
    acceptance = scenario.acceptance
    if acceptance is None or isinstance(acceptance, Replay):
        raise UserError(
            f"{scenario.path}: key acceptance must be of source bernoulli, hit_ratio, stated, pool "
            f"or profile"
        )
    if isinstance(acceptance, HIT_RATIOS) and depths_of(acceptance.table) > 1:
        hits = scaled_hits(scenario, acceptance.table)[min(acceptance.table)]
        return tuple(at_depth(hits, level) for level in range(depth))
    pool, length, hit_ratio = acceptance_pool(scenario)
    if hit_ratio is not None or not pool.depths:
        return (blocks_of(pool, length, hit_ratio).hit_ratio(1),) * depth
    edges = itertools.accumulate(pool.lengths, initial=0)
    found = chain_rounds(pool.ranks_by_depth, itertools.pairwise(edges), 1, depth).ratios
    return tuple(at_depth(found, level) for level in range(depth))


class Batches(NamedTuple):
    """How a pipeline's streams are divided: in ``flights``, the largest of ``batch`` streams."""

    flights: int
    batch: int

    @classmethod
    def of(cls, streams: int, stages: int) -> Batches:
        flights = min(streams, stages)
        return cls(flights, -(-streams // flights))


def passages_of(deployment: Deployment) -> list[Passage]:
    """Return the way through each pipeline, from the draft server that serves it."""
    pipelines, servers = len(deployment.roles.pipelines), len(deployment.roles.drafts)
    return [Passage(deployment, number, number % servers) for number in range(pipelines)]


def tokens_s(
    passages: Sequence[Passage], users: int, depth: int, groups: int, shares: Sequence[float]
) -> float:
    """Return the tokens per second of all users, who share the pipelines evenly, each pipeline's in
    so many groups.

    Args:
        passages: as of ``passages_of``; all else is as for ``period_ms``.
    """
    pipelines, servers = len(passages), len(passages[0].deployment.roles.drafts)
    served, rounds_s = -(-min(users, pipelines) // servers), 0.0
    for number in range(min(users, pipelines)):
        streams = users // pipelines + (number < users % pipelines)
        batches = Batches(min(groups, streams), -(-streams // min(groups, streams)))
        rounds_s += 1e3 * streams / period_ms(passages[number], batches, depth, shares, served)
    return rounds_s * round_tokens(shares[:depth])


def period_ms(
    passage: Passage, batches: Batches, depth: int, shares: Sequence[float], served: int = 1
) -> float:
    """Return the time from one round of a stream to its next.

    Args:
        depth: drafted tokens of each stream's round; 0: plain decoding.
        shares: as of ``shares_of``, at least ``depth`` of them.
        served: pipelines like this one that the draft server serves.
    """
    flights, batch = batches
    passage = passage.shared_by(batch)
    rows = batch * (depth + 1)
    drafting = drafting_ms(passage, batch, depth, shares)
    # A batch holds a decision of each stream, of which ``Passage`` counts one.
    ends = passage.deployment.roles.ends == "pipeline"
    last = passage.stages[-1] if ends else passage.draft
    decisions = (batch - 1) * last.times.decide
    lap = passage.round_ms(rows, drafting, batch * (depth + 1)) if depth else passage.lap_ms(rows)
    round_ms = lap + passage.decide_ms(rows) + decisions
    work = defaultdict[str, float](float)
    times = [*passage.stage_ms(rows), served * (drafting + passage.decide_ms(rows))]
    for machine, taken in zip(passage.machines, times, strict=True):
        work[machine.name] += taken / machine.capacity
    work[passage.machines[-2 if ends else -1].name] += decisions
    return max(round_ms, flights * max(work.values()))


def drafting_ms(passage: Passage, batch: int, depth: int, shares: Sequence[float]) -> float:
    """Return the time of a batch's draft passes; the first one also reads what is committed."""
    draft, reached = passage.draft, 1.0
    if not depth:
        return 0.0
    unread = 0.0
    for accepted, share in enumerate((*shares[:depth], 0.0)):
        unread += reached * (1 - share) * passage.unread(accepted, depth - 1)
        reached *= share
    rows, more_ms = round(batch * unread), (batch - 1) * draft.times.draft.request_ms
    if draft.block:
        return draft.times.draft(rows + batch * draft.block) + more_ms
    others = (depth - 1) * (draft.times.draft(batch) + more_ms)
    return draft.times.draft(rows) - draft.times.spared(rows, batch) + more_ms + others
