"""Block verification of drawn chains: its whole law, measured from outside and without chance."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pytest

from tests.worlds.draws import ALMOST_ONE, generator, scripted, threshold
from treepipe.core.verification import Block, Distribution, draw

Text: TypeAlias = tuple[int, ...]
Model: TypeAlias = Mapping[Text, Distribution]
TOKENS, LENGTH = 3, 3


def model(seed: int, length: int = LENGTH) -> Model:
    """Distributions behind every text of up to ``length`` tokens, some of them without a token."""
    rng, found = generator(seed), {}
    for size in range(length + 1):
        for text in itertools.product(range(TOKENS), repeat=size):
            weights = rng.integers(0, 5, TOKENS) + np.eye(TOKENS)[1]
            found[text] = weights / weights.sum()
    return found


def probability(of: Model, text: Text) -> float:
    return float(np.prod([of[text[:i]][token] for i, token in enumerate(text)]))


def outcomes(rule: type[Block], target: Model, draft: Model, drawn: Text) -> dict[Text, float]:
    """Texts that the rule makes of a drawn chain, with their probabilities.

    The number below which a token is kept, whatever the others say, is its probability; the last
    number draws the token behind the kept ones.
    """
    above = [drawn[:size] for size in range(len(drawn) + 1)]
    p, q = [target[text] for text in above], [draft[text] for text in above[:-1]]

    def made(numbers: Sequence[float], last: float = 0.0) -> Text:
        return rule(scripted(*numbers, last)).chain(p, drawn, q)

    def alone(place: int, number: float) -> list[float]:
        return [number if i == place else ALMOST_ONE for i in range(len(drawn))]

    def kept_at_all(kept: int) -> float:
        return threshold(lambda u: len(made(alone(kept - 1, u))) > kept) if kept else 1.0

    def up_to(token: int, numbers: Sequence[float]) -> float:
        return threshold(lambda u: made(numbers, u)[-1] <= token)

    found, left = dict[Text, float](), 1.0
    for kept in range(len(drawn), -1, -1):
        share = kept_at_all(kept)
        if left * share:
            edges = [up_to(token, alone(kept - 1, 0.0)) for token in range(TOKENS)]
            for token, part in enumerate(np.diff([0.0, *edges])):
                text = (*drawn[:kept], token)
                found[text] = found.get(text, 0.0) + left * share * part
        left *= 1 - share
    return found


def law(rule: type[Block], target: Model, draft: Model, length: int) -> dict[Text, float]:
    """The law of ``length`` + 1 tokens: what the rule emits, and the target's own behind it."""
    found = defaultdict[Text, float](float)
    for drawn in itertools.product(range(TOKENS), repeat=length):
        if weight := probability(draft, drawn):
            for text, share in outcomes(rule, target, draft, drawn).items():
                for rest in itertools.product(range(TOKENS), repeat=length + 1 - len(text)):
                    own = [target[(*text, *rest[:i])][t] for i, t in enumerate(rest)]
                    found[(*text, *rest)] += weight * share * float(np.prod(own))
    return found


def texts(length: int) -> list[Text]:
    return [*itertools.product(range(TOKENS), repeat=length)]


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_text_has_exactly_the_targets_distribution(seed: int, length: int) -> None:
    target, draft = model(seed), model(seed + 100)
    found = law(Block, target, draft, length)
    for text in texts(length + 1):
        assert found[text] == pytest.approx(probability(target, text), abs=1e-9)


class FirstFailure(Block):
    """Keeps the tokens before the first one that fails, as one engine shipped it."""

    def chain(
        self, p: Sequence[Distribution], drawn: Sequence[int], q: Sequence[Distribution]
    ) -> Text:
        share = 1.0
        for depth, token in enumerate(drawn):
            before = np.maximum(share * p[depth] - q[depth], 0.0)
            share = min(1.0, share * p[depth][token] / q[depth][token])
            limit = share
            if depth + 1 < len(drawn) and share < 1:
                left = np.maximum(share * p[depth + 1] - q[depth + 1], 0.0).sum()
                limit = left / (left + 1 - share)
            if self._rng.random() >= limit:
                return (*drawn[:depth], draw(before / before.sum(), self._rng))
        return (*drawn, draw(p[-1], self._rng))


def test_the_first_failure_does_not_count() -> None:
    """A token that fails by itself is kept if one behind it holds; a rule that forgets so is
    found out by the law."""
    sure, unsure = np.array([0.5, 0.5, 0.0]), np.array([1.0, 0.0, 0.0])
    p, q = [sure, unsure, sure], [unsure, sure]
    kept = Block(scripted(0.6, 0.4, 0.0)).chain(p, (0, 0), q)
    assert kept[:2] == (0, 0)
    target, draft = model(0), model(100)
    found = law(FirstFailure, target, draft, 2)
    assert max(abs(found[text] - probability(target, text)) for text in texts(3)) > 1e-3


def token_by_token(target: Model, draft: Model, length: int) -> float:
    """Accepted tokens in the mean of a chain judged by min(1, p / q) at each."""
    least = {above: np.minimum(target[above], draft[above]) for above in target}
    return sum(
        float(np.prod([least[text[:i]][token] for i, token in enumerate(text)]))
        for size in range(1, length + 1)
        for text in texts(size)
    )


def of_texts(target: Model, draft: Model, length: int) -> float:
    """The same of a block, from the text's side: so many tokens are kept of a text as the least
    product of q / p down to there, or 1, if that is less."""
    total = 0.0
    for size in range(1, length + 1):
        for text in texts(size):
            if whole := probability(target, text):
                steps = [(draft[text[:i]][t], target[text[:i]][t]) for i, t in enumerate(text)]
                total += whole * min(1.0, *np.cumprod([q / p for q, p in steps]))
    return total


def test_what_is_kept_of_a_text_does_not_depend_on_the_rest_of_it() -> None:
    """Of a text of the target's distribution i tokens or more are kept with probability min(1, q /
    p of its first token, ..., of its first i): the simulator draws them so (``sim/acceptance.py``).
    """
    target, draft = model(0), model(100)
    kept = defaultdict[tuple[int, Text], float](float)
    for drawn in filter(partial(probability, draft), texts(2)):
        for made, share in outcomes(Block, target, draft, drawn).items():
            for rest in itertools.product(range(TOKENS), repeat=LENGTH - len(made)):
                text = (*made, *rest)
                own = [target[text[:at]][text[at]] for at in range(len(made), LENGTH)]
                weight = probability(draft, drawn) * share * float(np.prod(own))
                for size in range(len(made)):
                    kept[size, text] += weight
    for text in texts(LENGTH):
        if whole := probability(target, text):
            steps = [draft[text[:i]][t] / target[text[:i]][t] for i, t in enumerate(text[:2])]
            for size in range(3):
                least = min(1.0, *np.cumprod(steps[:size])) if size else 1.0
                assert kept[size, text] / whole == pytest.approx(least, abs=1e-8)


def test_no_fewer_tokens_are_accepted_than_one_by_one() -> None:
    more = 0
    for seed in range(6):
        target, draft = model(seed, 2), model(seed + 100, 2)
        found = sum(
            probability(draft, drawn) * share * (len(text) - 1)
            for drawn in texts(2)
            if probability(draft, drawn)
            for text, share in outcomes(Block, target, draft, drawn).items()
        )
        assert found == pytest.approx(of_texts(target, draft, 2), abs=1e-8)
        single = token_by_token(target, draft, 2)
        assert found >= single - 1e-8
        more += found > single + 1e-3
    assert more >= 3


def test_a_last_token_may_wait_for_the_targets_behind_it() -> None:
    """Without the distribution there a chain ends with its last token; all else is the same."""
    p, q = [np.array([0.2, 0.3, 0.5])] * 3, [np.array([0.5, 0.3, 0.2])] * 2
    for numbers in itertools.product((0.1, 0.39, 0.7, 0.9), repeat=2):
        whole = Block(scripted(*numbers, 0.5)).chain(p, (0, 2), q)
        assert Block(scripted(*numbers, 0.5)).chain(p[:2], (0, 2), q) == whole[:2]


def test_a_draft_that_is_the_target_is_accepted_whole() -> None:
    target = model(3)
    for drawn in texts(LENGTH):
        if probability(target, drawn):
            above = [target[drawn[:size]] for size in range(LENGTH + 1)]
            rule = Block(scripted(*[ALMOST_ONE] * LENGTH, 0.5))
            assert rule.chain(above, drawn, above[:-1])[:LENGTH] == drawn
