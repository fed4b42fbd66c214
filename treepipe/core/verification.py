"""The verification rules: the token that follows a node, given the target's distribution there.

A rule takes distributions and returns a token; every random number comes from the generator it was
made with. ``p`` is the target's distribution after temperature, top-k and top-p, ``q`` the draft's
after the same, both [vocabulary], float64, summing to 1. A lossy rule under greedy decoding gets
both at temperature 1, since one token alone is not informative. Lossless rules return a token of
exactly the distribution ``p``, whatever the children are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from treepipe.core.tree import best

Distribution: TypeAlias = npt.NDArray[np.float64]
RuleName: TypeAlias = Literal[
    "exact", "rejection", "block", "relaxed_best", "relaxed_top_p", "adaptive"
]
NUCLEUS, NUCLEUS_GROWTH = 64, 16
"""Number of tokens sorted at first to reach a share, and the growth factor if they do not."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The transformation of logits into a distribution.

    Attributes:
        temperature: 0 puts everything on the most probable token.
        top_p: keep the most probable tokens that together reach this share.
        top_k: number of most probable tokens to keep; 0 keeps all.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        usual = 0 <= self.temperature < float("inf")  # false for a NaN, too
        if not usual or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(f"{self} is out of range")


def target_distribution(logits: npt.NDArray[np.floating], sampling: Sampling) -> Distribution:
    """Convert [vocabulary] logits to a distribution: temperature, then top-k, then top-p.

    Ties count by token id, the lower one first, so that temperature 0 is the argmax.
    """
    logits = np.asarray(logits, dtype=np.float64)
    p = np.zeros(len(logits))
    if sampling.temperature == 0:
        p[int(np.argmax(logits))] = 1.0
        return p
    p = np.exp((logits - logits.max()) / sampling.temperature)
    p /= p.sum()
    if sampling.top_k or sampling.top_p < 1:
        kept = nucleus(p, sampling.top_p, sampling.top_k)
        whole, p = p, np.zeros(len(logits))
        p[kept] = whole[kept] / whole[kept].sum()
    return p


def nucleus(p: Distribution, share: float, most: int = 0) -> npt.NDArray[np.intp]:
    """Return the most probable tokens that together reach this share of the ``most`` most probable
    ones (0: of all), ties by token id, including the token that crosses it.

    A few of a large vocabulary nearly always do, so only the first ones are sorted.
    """
    count = most or NUCLEUS
    while True:
        kept = best(p, count)
        shares = np.cumsum(p[kept]) / (p[kept] if most else p).sum()
        if most or shares[-1] >= share or count >= len(p):
            return kept[: int(np.searchsorted(shares, share)) + 1]
        count *= NUCLEUS_GROWTH


def draw(p: Distribution, rng: np.random.Generator) -> int:
    token = int(np.cumsum(p).searchsorted(rng.random() * p.sum(), side="right"))
    # The sum may be reached a rounding early.
    return token if token < len(p) else int(np.flatnonzero(p)[-1])


def draw_without_replacement(q: Distribution, count: int, rng: np.random.Generator) -> list[int]:
    """Draw up to ``count`` different tokens, in the order drawn; fewer if ``q`` holds fewer."""
    left, drawn = q.copy(), list[int]()
    while len(drawn) < count and left.sum() > 0:
        drawn.append(draw(left, rng))
        left[drawn[-1]] = 0.0
    return drawn


class Rule(Protocol):
    """The choice of the token that follows a node. One instance per request.

    Attributes:
        lossless: the text has exactly the target's distribution.
        needs_draft: ``next_token`` needs ``q``.
        needs_tree: it reads the children, which only the draft's side knows; others can run
            wherever the target's logits are.
    """

    lossless: bool
    needs_draft: bool
    needs_tree: bool

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        """Return a child's token (it is accepted), or another (a miss: the new root); ``children``
        are in the order in which they were drafted."""


class Exact:
    """The target's own token, whatever the children are: the argmax, or a draw.

    For trees of most probable candidates this is the lossless rule at any temperature (what
    PipeDec, SpecPipe and FlowSpec do in effect).
    """

    lossless, needs_draft, needs_tree = True, False, False

    def __init__(self, rng: np.random.Generator, *, greedy: bool) -> None:
        """Make the rule; ``greedy`` takes the argmax. Lossy rules read more of ``p`` than that."""
        self._rng, self._greedy = rng, greedy

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        return int(p.argmax()) if self._greedy else draw(p, self._rng)


class MultiCandidate:
    """Rejection sampling over drawn children (SpecInfer, section 5.2; EAGLE, section 3.2).

    Lossless if the children were drawn without replacement from ``q``, in this order.
    """

    lossless, needs_draft, needs_tree = True, True, True

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        if q is not None:
            p, q = p.copy(), q.copy()
            for child in children:
                if not q[child]:  # no draw from q: to judge it would shift the distribution
                    continue
                if self._rng.random() * q[child] < p[child]:
                    return child
                left = np.maximum(p - q, 0.0)
                if not left.any():  # p and q differ by roundings only
                    return child
                p = left / left.sum()
                q[child] = 0.0
                if q.sum() <= 0:
                    break
                q /= q.sum()
        return draw(p, self._rng)


class Block(MultiCandidate):
    """Block verification of a drawn chain (Sun et al., arXiv 2403.10444, algorithm 2): lossless,
    and never fewer tokens in the mean than one by one.

    The tokens are judged together: an unlikely one may be made good by those behind it.
    """

    def chain(
        self, p: Sequence[Distribution], drawn: Sequence[int], q: Sequence[Distribution]
    ) -> tuple[int, ...]:
        """Return the accepted tokens of a chain and the target's own behind them, which is not the
        next of ``drawn``.

        Args:
            p: the target's distributions at the root and behind each token; without the last one
                a chain that is accepted whole has none of the target's behind it.
            q: the draft's, from which each of them was drawn.
        """
        shares, kept = [1.0], 0
        for depth, token in enumerate(drawn, 1):
            share = min(1.0, shares[-1] * p[depth - 1][token] / q[depth - 1][token])
            shares.append(share)
            limit = share
            if depth < len(drawn) and share < 1:
                left = float(np.maximum(share * p[depth] - q[depth], 0.0).sum())
                limit = left / (left + 1 - share)
            if self._rng.random() < limit:
                kept = depth  # the last one counts, whatever failed before it
        if kept == len(p):
            return tuple(drawn)
        rest = p[kept]
        if kept < len(drawn):
            left_over = np.maximum(shares[kept] * rest - q[kept], 0.0)
            rest = left_over if left_over.any() else rest  # else they differ by roundings only
        return (*drawn[:kept], draw(rest, self._rng))


class RelaxedBest:
    """Lossy: the child that the target likes best, so that nothing is ever flushed.

    (SpecPipe, section 3.4, option 1.) Without children: the exact rule; and when sampling, a drawn
    token that is a child stands, where the paper, which decodes greedily, would take the best one.
    """

    lossless, needs_draft, needs_tree = False, False, True

    def __init__(self, exact: Exact) -> None:
        self._exact = exact

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        token = self._exact.next_token(p, children, q)
        if token in children or not children:
            return token
        return max(children, key=lambda child: p[child])


class RelaxedTopP:
    """Lossy: of the children inside the target's top-p set the one that the draft likes best.

    (SpecPipe, section 3.4, option 2.) That is the first of them, since children come in the order
    in which they were drafted. If there is none: the exact rule.
    """

    lossless, needs_draft, needs_tree = False, False, True

    def __init__(self, exact: Exact, top_p: float) -> None:
        self._exact, self._top_p = exact, top_p

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        inside = set(nucleus(p, self._top_p).tolist())
        for child in children:
            if child in inside and p[child]:
                return child
        return self._exact.next_token(p, children, q)


SMOOTHING = 0.1
"""The newest position's weight in the running share of matches."""


class Adaptive:
    """Lossy for ``tau_max`` > 0: a drafted token is also accepted if it is nearly good enough.

    (DSD, "Adaptive Speculative Verification". The paper names three signals and that tau goes to 0
    where they disagree, but neither their formula nor their weights; chosen here:)

    * contrast: H(q, p) - H(q), the draft's surprise at the target beyond its own uncertainty;
      as a signal exp(-contrast), 1 where the two are equal;
    * matches: running share of positions whose most probable tokens are the same;
    * agreement: 1 - total variation of p and q.

    tau = ``tau_max`` times their geometric mean by ``weights`` (in this order), and a child is
    accepted if its target probability is at least (1 - tau) of the most probable token's. tau = 0
    accepts nothing but what the exact rule gives.
    """

    needs_draft, needs_tree = True, True

    def __init__(
        self, exact: Exact, tau_max: float, weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    ) -> None:
        """Make the rule; ``weights`` are non-negative, and not all 0."""
        self._exact, self._tau_max = exact, tau_max
        self._powers = np.array(weights) / sum(weights)
        self.lossless = tau_max == 0
        self._matches = 0.5

    def next_token(self, p: Distribution, children: Sequence[int], q: Distribution | None) -> int:
        token = self._exact.next_token(p, children, q)
        if q is None or not children:
            return token
        tau = self._tau(p, q)
        if token in children or tau == 0:
            return token
        child = max(children, key=lambda each: p[each])
        return child if p[child] and p[child] >= (1 - tau) * p.max() else token

    def _tau(self, p: Distribution, q: Distribution) -> float:
        same = float(p.argmax() == q.argmax())
        self._matches += SMOOTHING * (same - self._matches)
        drafted = q > 0
        ratio = np.log(q[drafted]) - np.log(np.maximum(p[drafted], 1e-12))
        contrast = float(np.sum(q[drafted] * ratio))
        agreement = 1 - 0.5 * float(np.abs(p - q).sum())
        signals = np.exp(-max(contrast, 0.0)), self._matches, max(agreement, 0.0)
        return self._tau_max * float(np.prod(np.power(signals, self._powers)))


RULES: Mapping[str, type[Rule]] = {
    "exact": Exact,
    "rejection": MultiCandidate,
    "block": Block,
    "relaxed_best": RelaxedBest,
    "relaxed_top_p": RelaxedTopP,
    "adaptive": Adaptive,
}
DRAWN = ("rejection", "block")
"""Rules that judge children drawn from the draft's distribution."""
LOSSLESS = ("exact", *DRAWN)
"""Rules that keep the target's distribution, whatever their keys are."""
