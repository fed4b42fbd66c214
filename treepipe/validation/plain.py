"""Plain greedy decoding of an unpartitioned target, and the agreement of a run's texts with it.

Definition: a text agrees if it is equal to the last token, or if its first difference from plain
decoding (in the same type, in 16 bits with the prompt in the same chunks, one row at a time) is the
runner-up of a tie, that is, if rounding alone separates the target's two best logits. Sums depend
on the number of rows of a pass; ties are frequent in 16 bits and rare in float32, where
``generate()`` itself breaks them differently with other chunks of the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from treepipe.results.trace import Trace
from treepipe.scenario.deployment import FULL, Computed, RequestSpec

TIE = 8.0
"""Largest difference of tied logits in units of rounding (the type's epsilon times the largest
logit); in 16 bits passes of other sizes move the bundled pair's logits by up to 2."""
LEAST_UNIT = 2.0**-15
"""Least unit as a share of the largest logit: in float32 roundings of all layers add up to many
epsilons. Seen: two logits of 12 that changed places were 0.0015 apart, four such units."""


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The second best token at a place, its logit's distance to the best, and rounding's unit."""

    token: int
    behind: float
    unit: float


@dataclass(frozen=True, slots=True)
class PlainText:
    """A plain continuation, and the second best tokens by place."""

    tokens: tuple[int, ...]
    runners_up: tuple[RunnerUp, ...]


PlainTexts: TypeAlias = Mapping[tuple[tuple[int, ...], frozenset[int]], PlainText]
"""Plain greedy continuations by (prompt, end of text)."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of a run's texts with plain decoding's, both computed in ``dtype``.

    Attributes:
        equal, texts: number of texts that are equal to the last token, and of all texts.
        tokens_before: tokens before the texts' first differences, of all ``tokens``.
        margin: largest difference (logits) between the target's own token and the other one at a
            first difference; None if there is none.
        lossless: whether all texts agree by the definition of this module.
        where: text and new token of that difference, counted from 1.
    """

    dtype: Computed
    equal: int
    texts: int
    tokens_before: int
    tokens: int
    margin: float | None
    lossless: bool
    where: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.equal == self.texts:
            where = "" if self.dtype == FULL else f" in {self.dtype}"
            return f"every text equals plain greedy decoding{where}"
        found = f"{self.equal} of {self.texts} texts equal plain greedy decoding in {self.dtype}"
        shares = f"{self.tokens_before} of {self.tokens} tokens are before a first difference"
        if self.margin is None or self.where is None:
            return f"{found}; {shares}"
        ties = "a tie by rounding" if self.lossless else "more than rounding explains"
        text, place = self.where
        return (
            f"{found}; {shares}, where logits differ by up to {self.margin:.2g} "
            f"(text {text}, token {place}): {ties}"
        )


def agreement(
    requests: Sequence[RequestSpec], executed: Trace, texts: PlainTexts, dtype: Computed
) -> Agreement:
    """Compare a run's texts with plain ones; a text that ended early does not agree."""
    equal, before, tokens, agree = 0, 0, 0, True
    parted = list[tuple[float, tuple[int, int]]]()
    for text, (spec, trace) in enumerate(zip(requests, executed.requests, strict=True), start=1):
        plain = texts[spec.prompt, spec.end_tokens]
        wanted, got = plain.tokens[: spec.max_new_tokens], trace.tokens
        tokens += len(got)
        if got == wanted:
            equal, before = equal + 1, before + len(got)
            continue
        pairs = enumerate(zip(got, wanted, strict=False))
        place = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
        before += len(got) if place is None else place
        tie = False
        if place is not None:
            runner = plain.runners_up[place]
            parted.append((runner.behind, (text, place + 1)))
            tie = got[place] == runner.token and runner.behind <= TIE * runner.unit
        agree = agree and tie
    most, where = max(parted, default=(None, None))
    return Agreement(dtype, equal, len(requests), before, tokens, most, agree, where)
