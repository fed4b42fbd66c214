"""The target's next token at returned rows: output projection, then the session's rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from treepipe.core.errors import ProtocolError
from treepipe.core.messages import NO_TOKEN, Flight
from treepipe.core.protocol import Offer
from treepipe.core.verification import (
    Adaptive,
    Block,
    Distribution,
    Exact,
    MultiCandidate,
    RelaxedBest,
    RelaxedTopP,
    Rule,
    Sampling,
    target_distribution,
)
from treepipe.executor.models.draft_memory import stream
from treepipe.executor.models.source_settings import judged_sampling
from treepipe.executor.models.stage_model import TargetEnds
from treepipe.scenario.schema import SamplingSection


def new_rule(section: SamplingSection, rng: np.random.Generator) -> Rule:
    """Make the scenario's rule for one request."""
    if section.rule == "rejection":
        return MultiCandidate(rng)
    if section.rule == "block":
        return Block(rng)
    exact = Exact(rng, greedy=section.temperature == 0)
    if section.rule == "relaxed_best":
        return RelaxedBest(exact)
    if section.rule == "relaxed_top_p":
        return RelaxedTopP(exact, section.relaxed_top_p)
    if section.rule == "adaptive":
        return Adaptive(exact, section.tau_max, section.weights)
    return exact


def distribution_of(logits: torch.Tensor, sampling: Sampling) -> Distribution:
    """Compute a row's distribution from its logits [vocabulary] on any device."""
    return target_distribution(logits.cpu().double().numpy(), sampling)


ALONE = Offer((), 0, ())
"""The offer of a row without a tree."""


def answered_states(flight: Flight, hidden: torch.Tensor) -> list[torch.Tensor]:
    """Return, per segment, the states of the rows at which the target's token is chosen."""
    split = hidden.split([len(segment.tokens) for segment in flight.segments])
    pairs = zip(flight.segments, split, strict=True)
    return [states[segment.answered.start :] for segment, states in pairs]


class Remembers(Protocol):
    """A draft that keeps its distributions."""

    def distribution(self, session: int, text: Sequence[int], path: tuple[int, ...]) -> Any: ...


@dataclass(slots=True)
class _Judge:
    """One session's rule, its text, and the tokens chosen after it so far."""

    rule: Rule
    text: list[int]
    walk: tuple[int, ...] = ()


class Verifier:
    """A chooser of the target's tokens from hidden states, session by session.

    Plain greedy decoding takes one argmax over all rows. Any other rule chooses tokens along the
    walk from the root only, since a distribution over a large vocabulary is expensive.
    """

    def __init__(
        self, ends: TargetEnds, section: SamplingSection, seed: int, draft: Remembers | None
    ) -> None:
        """Prepare a rule; ``draft`` is None if the rule does not need its distributions."""
        self._ends, self._section, self._seed, self._draft = ends, section, seed, draft
        self._sampling = judged_sampling(section)
        self._judges: dict[int, _Judge] = {}

    @property
    def greedy(self) -> bool:
        return self._section.greedy

    def open(self, session: int, prompt: Sequence[int] = ()) -> None:
        """Begin a request; the prompt is for rules that need the draft's distributions."""
        rng = np.random.default_rng(stream(self._seed, session, 0))
        self._judges[session] = _Judge(new_rule(self._section, rng), [*prompt])

    def close(self, session: int) -> None:
        self._judges.pop(session, None)

    def emitted(self, session: int, tokens: Sequence[int]) -> None:
        """Append final tokens to the session's text."""
        judge = self._judges[session]
        judge.text += tokens
        judge.walk = judge.walk[len(tokens) :]

    def next_tokens(
        self, session: int, hidden: torch.Tensor, offers: Sequence[Offer | None]
    ) -> tuple[int, ...]:
        """Choose a token per row of [n, hidden]; ``NO_TOKEN`` at rows pruned or off the walk."""
        if self.greedy:
            return self._ends.next_tokens(hidden)
        judge, found = self._judges[session], list[int]()
        if isinstance(judge.rule, Block):
            return self._chain(session, judge.rule, hidden, offers)
        token_at = self.tokens(session, hidden)
        for row, offer in enumerate(offers):
            token = NO_TOKEN
            if offer is not None and (not offer.path or offer.path == judge.walk):
                token = token_at(row, offer)
                judge.walk = (*offer.path, token)
            found.append(token)
        return tuple(found)

    def tokens(self, session: int, hidden: torch.Tensor) -> Callable[..., int]:
        """Return a function that chooses the token at a row of [n, hidden], drawing anew."""
        if self.greedy:
            argmax = self._ends.next_tokens(hidden)
            return lambda row, offer=ALONE: argmax[row]
        logits = self._ends.logits(hidden)
        return lambda row, offer=ALONE: self._judge(session, logits[row], offer)

    def _chain(
        self, session: int, rule: Block, hidden: torch.Tensor, offers: Sequence[Offer | None]
    ) -> tuple[int, ...]:
        """Judge a chain that came back whole, root first; a pruned one has no offers."""
        rows = [offer for offer in offers if offer is not None]
        unknown = len(offers) * (NO_TOKEN,)
        if not rows:
            return unknown
        drawn = [offer.children[0] for offer in rows if offer.children]
        if len(rows) < len(offers) or any(
            offer.path != tuple(drawn[:depth]) for depth, offer in enumerate(rows)
        ):
            raise ProtocolError("block verification needs a chain in one segment, from its root")
        p = [distribution_of(row, self._sampling) for row in self._ends.logits(hidden)]
        q = [self._drafted(session, offer) for offer in rows if offer.children]
        return (*rule.chain(p, drawn, q), *unknown)[: len(offers)]

    def _judge(self, session: int, logits: torch.Tensor, offer: Offer) -> int:
        p = distribution_of(logits, self._sampling)
        q = None if self._draft is None else self._drafted(session, offer)
        return self._judges[session].rule.next_token(p, offer.children, q)

    def _drafted(self, session: int, offer: Offer) -> Any:
        """Return the draft's distribution at a node; None where it has not been asked."""
        assert self._draft is not None  # the rule needs it
        q = self._draft.distribution(session, self._judges[session].text, offer.path)
        if q is None and offer.children:
            raise ProtocolError(f"what the draft answered at {offer.path} is forgotten")
        return q
