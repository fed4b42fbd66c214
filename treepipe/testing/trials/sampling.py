"""The trial of sampled texts: chi-square against the known distribution of a toy target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from scipy import stats

from treepipe.core.messages import Flight
from treepipe.core.protocol import Drafted, DraftPass, Offer, Started
from treepipe.core.system import ScheduleContext, System
from treepipe.core.verification import (
    Exact,
    MultiCandidate,
    Rule,
    Sampling,
    draw_without_replacement,
    target_distribution,
)
from treepipe.testing.case import TrialCase
from treepipe.testing.hashed_lm import VOCABULARY, Logits, any_order, noisy, target
from treepipe.testing.law import hold
from treepipe.testing.strategies import parameters_of
from treepipe.testing.timeless_world import Sharing, TimelessWorld
from treepipe.testing.trial import Trial

PROMPT, HORIZON = (3, 1, 4), 2
"""All 49 texts of two tokens have a known probability."""
LOOKS, LEAST_P = (200, 400, 800, 1600), 1e-7
"""Numbers of texts that are compared with the target's: few show a plainly wrong rule."""
WARM = Sampling(1.0)
DRAFT = noisy(2.0)
"""A draft so unlike the target that so many texts show a wrong rule."""


@lru_cache(50_000)
def distribution(model: Logits, path: tuple[int, ...]) -> Any:
    """[7] a model's distribution behind a path; a rule that writes to it raises."""
    found = target_distribution(np.asarray(model([*path]), dtype=np.float64), WARM)
    found.flags.writeable = False
    return found


class SamplingWorld(TimelessWorld):
    """The draft server takes the target's tokens by a rule, one draw per offered row."""

    def __init__(self, stages: int, seed: int, *, drawn: bool, cut: bool = False) -> None:
        sharing = Sharing(round_ms=(lambda rows: 0.3 + rows) if cut else None)
        super().__init__([stages], target, DRAFT, any_order(seed), sharing)
        self._rng = np.random.default_rng([seed, 1])
        exact = Exact(self._rng, greedy=False)
        self._rule: Rule = MultiCandidate(self._rng) if drawn else exact

    def answer(self, session: int, order: DraftPass, paths: list[list[int]]) -> Drafted:
        if not order.drawn or not order.top_k:
            return super().answer(session, order, paths)
        tokens, log_probs = [], []
        for path in paths:
            q = distribution(self.draft, tuple(path))
            drawn = draw_without_replacement(q, min(order.top_k, VOCABULARY), self._rng)
            tokens.append(drawn)
            log_probs.append([float(np.log(q[token])) for token in drawn])
        return Drafted(order.ticket, tokens, log_probs)

    def _end(self, number: int) -> None:
        flight = self.servers[number].flight
        for segment in flight.segments if isinstance(flight, Flight) else ():
            request = self.requests[segment.session]
            if request.reason is None and segment.tokens:
                self._judge(request, segment)
        super()._end(number)

    def _judge(self, request: Any, segment: Any) -> None:
        offers: Any = [Offer((), 0, ())]
        above = request.committed
        if segment.committed:
            above = request.committed[: segment.positions[-1] + 1]
        else:
            offers = request.schedule.offers(segment, children=True)
        answers = [self._token([*above, *(o.path if o else ())], o) for o in offers]
        self.pipelines[0].answers[segment.session, segment.ticket] = tuple(answers)

    def _token(self, path: list[int], offer: Offer | None) -> int:
        children = offer.children if offer else ()
        return self._rule.next_token(
            distribution(target, tuple(path)), children, distribution(DRAFT, tuple(path))
        )


def chi_square(counts: Counter[tuple[int, ...]], shares: Mapping[tuple[int, ...], float]) -> float:
    """Return the p-value of counted texts against their probabilities; rare ones share a cell."""
    total = counts.total()
    common = [text for text, share in shares.items() if share * total >= 5]
    expected = np.array([shares[text] * total for text in common])
    seen = np.array([counts[text] for text in common])
    expected = np.append(expected, max(total - expected.sum(), 1e-9))
    seen = np.append(seen, total - seen.sum())
    return float(stats.chisquare(seen, expected * (total / expected.sum())).pvalue)


def probability(text: tuple[int, ...]) -> float:
    """Return the target's probability of a text behind the prompt."""
    steps = [distribution(target, (*PROMPT, *text[:i]))[t] for i, t in enumerate(text)]
    return float(np.prod(steps))


def sampled_texts(system: System, case: TrialCase) -> None:
    """Many texts of two tokens; by rejection of drawn candidates if the system can draft those."""
    parameters = system.parameters(**case.draw("parameters", parameters_of(system)))
    drawn = system.drawn and parameters.drawable and not parameters.cut
    drawn = drawn and not case.draw("exact", st.booleans())
    stages, seed = case.draw("stages", st.integers(1, 3)), case.draw("seed", st.integers(0, 999))
    world = SamplingWorld(stages, seed, drawn=drawn, cut=parameters.cut)
    counts = Counter[tuple[int, ...]]()
    shares = {text: probability(text) for text in product(range(VOCABULARY), repeat=HORIZON)}
    for session in range(1, LOOKS[-1] + 1):
        schedule = system.make(parameters, ScheduleContext(session, stages, drawn))
        world.open(session, schedule, Started(PROMPT, HORIZON))
        world.run()
        # Each look at the world's requests would take longer than the one before.
        counts[tuple(world.requests.pop(session).text)] += 1
        if session in LOOKS:
            found = chi_square(counts, shares)
            said = f"p = {found:.1e} that {session} texts are the target's"
            hold(found > LEAST_P, "sampling", said)


TRIALS = (Trial("sampling", sampled_texts, 3),)
