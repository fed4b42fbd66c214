"""A request alone in a pipeline: pp, chain, dsd, round after round of one segment; pipeinfer.

Each schedule has its outcomes of a decision; all metrics follow from them in the same way, as
expected values of requests of finite length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from treepipe.scenario.passage import Passage
from treepipe.sim.theory.tokens import (
    DecisionOutcome,
    acceptances,
    decoding_ms,
)


@dataclass(frozen=True, slots=True)
class Decoding:
    """The rounds of one request, a segment each.

    Attributes:
        rows: rows of a segment.
        first_ms: time from the first token to the first decision.
        outcomes: outcomes of a decision; ``then_ms`` is the time to the next one.
        warnings: assumptions that the deployment breaks.
    """

    rows: int
    first_ms: float
    outcomes: tuple[DecisionOutcome, ...]
    warnings: tuple[str, ...] = ()


def plain(passage: Passage) -> Decoding:
    """Model plain decoding (PipeDec, section 2.2): every token is a lap."""
    lap = passage.lap_ms(1) + passage.decide_ms(1)
    return Decoding(1, lap, (DecisionOutcome(1.0, 1, lap),))


def chain(
    passage: Passage,
    beta: float | Sequence[float],
    gamma: int,
    prompt_tokens: int,
    *,
    ahead: bool = False,
) -> Decoding:
    """Draft ``gamma`` tokens one by one, verify them in one lap; nothing overlaps.

    Args:
        beta: acceptance, or by depth (``tokens.acceptances``).
        ahead: the draft has fed itself the last token, too.
    """
    draft, rows = passage.draft.times.draft, gamma + 1
    others = (gamma - 1) * draft(1)
    read, fed = passage.draft.times.read, gamma if ahead else gamma - 1
    unread = [passage.unread(accepted, fed) for accepted in range(rows)]
    drafts = [read(count) + others for count in unread]
    decide = passage.decide_ms(rows)
    outcomes = tuple(
        DecisionOutcome(
            share, accepted + 1, passage.round_ms(rows, drafts[accepted], accepted + 1) + decide
        )
        for accepted, share in enumerate(acceptances(beta, gamma))
    )
    first = read(prompt_tokens + 1) + others + passage.lap_ms(rows) + decide
    return Decoding(rows, first, outcomes)


def chain_ahead(passage: Passage, beta: float, gamma: int, prompt_tokens: int) -> Decoding:
    """Model DSD: as ``chain``, but the next window and the token before it are drafted meanwhile.

    They are useful if all of the window and that token are right (``beta`` ** (``gamma`` + 1));
    then the next window leaves at once.
    """
    draft, rows = passage.draft.times.draft, gamma + 1
    plain_chain = chain(passage, beta, gamma, prompt_tokens, ahead=True)
    decide = passage.decide_ms(rows)
    hit = passage.round_ms(rows, 0.0, rows) + decide
    *misses, whole = plain_chain.outcomes
    outcomes = (
        *misses,
        DecisionOutcome(whole.probability * (1 - beta), rows, whole.then_ms),
        DecisionOutcome(whole.probability * beta, rows, hit),
    )
    ahead = rows * draft(1)
    warnings = []
    if ahead > passage.round_ms(rows, 0.0, 1):
        warnings.append(
            f"the closed form assumes that drafting hides behind a window's way, but {rows} passes "
            f"take {ahead:.4g} ms and the way {passage.round_ms(rows, 0.0, 1):.4g} ms"
        )
    warnings += passage.bent_reading(gamma, gamma)
    return Decoding(rows, plain_chain.first_ms, outcomes, tuple(warnings))


def continuous_ms(passage: Passage, beta: float, gamma: int) -> tuple[float, float, float]:
    """Return the mean time of a token of PipeInfer's draft that goes on, and the times if all is
    right and if nothing is.

    The root leaves alone, with the draft's pass over it, and micro-batches of ``gamma`` passes, or
    of a stage's time if that is longer, follow. Behind each ``gamma`` passes the draft looks for
    verdicts; a round of g right tokens ends at the look that sees the batch of the g-th one, whose
    verdict holds the first wrong one. (By hand from its code's rules; no paper has it.)
    """
    pass_ms = passage.draft.times.draft(1)
    look_ms = gamma * pass_ms
    batch_ms = max(look_ms, *passage.stage_ms(gamma))

    def looks(way_ms: float) -> float:
        return look_ms * max(0, ceil(way_ms / look_ms - 1e-9)) if look_ms else way_ms

    root_ms = pass_ms + looks(passage.lap_ms(1) + passage.decide_ms(1) - pass_ms)
    way_ms = pass_ms + looks(passage.lap_ms(gamma) + passage.decide_ms(gamma))
    whole_ms = batch_ms / gamma
    if beta == 1:
        return whole_ms, whole_ms, root_ms
    round_ms = (1 - beta) * root_ms + beta * (way_ms + batch_ms / (1 - beta**gamma))
    return round_ms * (1 - beta), whole_ms, root_ms


def request_metrics(
    prefill_ms: float, decode_ms: float, new_tokens: int, rounds: float
) -> dict[str, float]:
    """Return the metrics of requests one after another, each of so many expected ``rounds``."""
    left, whole_ms = new_tokens - 1, prefill_ms + decode_ms
    found = {
        "throughput_tokens_s": 1e3 * new_tokens / whole_ms,
        "time_to_first_token_ms": prefill_ms,
        "request_latency_ms": whole_ms,
    }
    if not left:
        return found
    return found | {
        "time_between_tokens_ms": decode_ms / left,
        "per_session_throughput_tokens_s": 1e3 * left / decode_ms,
        "tokens_per_round": left / rounds,
        "hit_rate": 1 - rounds / left,
        "flushes_per_100_tokens": 100 * rounds / left,
    }


@dataclass(frozen=True, slots=True)
class Alone:
    """Expected values of a request: prompt chunks, then ``new_tokens`` (one by the prompt)."""

    passage: Passage
    decoding: Decoding
    chunks: Sequence[int]
    new_tokens: int

    @property
    def prefill_ms(self) -> float:
        return self.passage.prefill_ms(list(self.chunks))

    @property
    def decoding_ms(self) -> float:
        """Expected time of decoding (ms)."""
        return decoding_ms(self._left, self.decoding.first_ms, self.decoding.outcomes)

    @property
    def rounds(self) -> float:
        outcomes = [replace(each, then_ms=1.0) for each in self.decoding.outcomes]
        return decoding_ms(self._left, 1.0, outcomes)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of requests one after another."""
        left, rounds = self._left, self.rounds
        found = request_metrics(self.prefill_ms, self.decoding_ms, self.new_tokens, rounds)
        if not left:
            return found
        wasted = 1 - left / (rounds * self.decoding.rows)
        return found | {"tokens_per_step": left / rounds, "wasted_node_share": wasted}

    @property
    def _left(self) -> int:
        return self.new_tokens - 1
