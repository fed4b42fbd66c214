"""A verification rule's judgement of a draft along a text: the ranks that a pool records.

Invariant: rank r means that the rule takes the text's token as one of the draft's first r + 1
candidates, and of no fewer, so that all rules' pools are drawn from alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from treepipe.core.verification import Distribution, draw, target_distribution
from treepipe.executor.sources import judged_sampling
from treepipe.executor.verifier import new_rule
from treepipe.scenario.schema import SamplingSection

CANDIDATES = 16
"""Number of candidates recorded per position."""
LEAST_LOG_RATIO = -99.0
"""A log ratio of a token that the draft never draws."""
DIGITS = 4
"""Decimal digits of a log probability."""


class Judge:
    """A scenario's rule along one text, for a draft ``depth`` tokens below the verified ones.

    Under a lossy rule the text depends on the draft, which is then ``in_the_loop``.
    """

    def __init__(self, section: SamplingSection, rng: np.random.Generator, depth: int = 0) -> None:
        self._section, self._rng, self._depth = section, rng, depth
        self._rule, self._sampling = new_rule(section, rng), judged_sampling(section)
        self.in_the_loop = not self._rule.lossless

    @property
    def argmax(self) -> bool:
        """Whether the text is the target's greedy one, so that a rank is its token's place."""
        return self._section.greedy

    def token(self, logits: Any, log_probs: Any = None) -> int:
        """Choose the text's next token; ``log_probs`` are the draft's, if it is in the loop."""
        p = target_distribution(logits, self._sampling)
        if not self.in_the_loop:
            return draw(p, self._rng)
        children = candidates_of(torch.as_tensor(log_probs)[None])[0][0]
        # Rules for chains see one child, as in their schedules.
        shown = children[:1] if self._section.rule == "adaptive" else children
        return self._rule.next_token(p, shown.tolist(), self._draft(log_probs))

    def rank(self, logits: Any, log_probs: Any, candidates: Any, token: int) -> int:
        """Rank the text's token among the draft's candidates, or return their number.

        Args:
            logits: the target's [vocabulary]; rule ``exact`` does not need them.
            log_probs: the draft's [vocabulary], float64.
        """
        rule = self._section.rule
        if rule == "rejection":
            p = target_distribution(logits, self._sampling)
            return rejection_rank(p, self._draft(log_probs), token, self._rng)
        place = rank_of(candidates, token)
        if not self._depth:
            return place  # the rule chose the text's token
        if rule == "relaxed_top_p":
            return self._first_inside(logits, candidates, place)
        if rule == "adaptive":
            p, best = target_distribution(logits, self._sampling), int(candidates[0])
            taken = self._rule.next_token(p, (best,), self._draft(log_probs))
            return 0 if taken == best else place
        return place

    def log_ratio(self, logits: Any, log_probs: Any, token: int) -> float:
        """Return log(q / p) of the text's token, at least ``LEAST_LOG_RATIO``."""
        p = target_distribution(logits, self._sampling)[token]
        q = self._draft(log_probs)[token]
        return max(LEAST_LOG_RATIO, round(float(np.log(q / p)), DIGITS)) if q else LEAST_LOG_RATIO

    def _draft(self, log_probs: Any) -> Distribution:
        return target_distribution(np.asarray(log_probs), self._sampling)

    def _first_inside(self, logits: Any, candidates: Any, place: int) -> int:
        """Return the draft's best candidate in the target's top-p set, else ``place``."""
        p = target_distribution(logits, self._sampling)
        order = np.argsort(-p, kind="stable")
        count = int(np.searchsorted(np.cumsum(p[order]), self._section.relaxed_top_p)) + 1
        inside = np.flatnonzero(np.isin(candidates, order[:count]) & (p[candidates] > 0))
        return int(inside[0]) if len(inside) else place


def rejection_rank(p: Distribution, q: Distribution, token: int, rng: np.random.Generator) -> int:
    """Draw which child gave ``token`` under multi-candidate rejection (``MultiCandidate``).

    The text is a draw from ``p`` for any children, so the children may be drawn after it, given
    that the rule's outcome is this token: with probability min(p, q) / p at the token the next
    child is this token and accepted, else it is another one, drawn by max(q - p, 0), and rejected.
    """
    p, q = p.copy(), q.copy()
    for rank in range(CANDIDATES):
        if rng.random() * p[token] < min(p[token], q[token]):
            return rank
        rejected, left = np.maximum(q - p, 0.0), np.maximum(p - q, 0.0)
        if not rejected.any() or not left.any():  # p and q differ by roundings only
            return rank
        q[draw(rejected / rejected.sum(), rng)] = 0.0
        if q.sum() <= 0:
            break
        p, q = left / left.sum(), q / q.sum()
    return CANDIDATES


def candidates_of(logits: torch.Tensor) -> tuple[Any, Any]:
    """Sort token ids and log probabilities [n, CANDIDATES] in descending order, ties by token id;
    ``logits`` may be log probabilities."""
    log_probs = logits.double().log_softmax(-1)
    values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
    return tokens[:, :CANDIDATES].numpy(), values[:, :CANDIDATES].numpy()


def rank_of(candidates: Any, token: int) -> int:
    """Place of a token among candidates, or ``CANDIDATES``."""
    found = np.flatnonzero(candidates == token)
    return int(found[0]) if len(found) else CANDIDATES
