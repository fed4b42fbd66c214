"""The timed work of verification rules that sample: rows of the target's, and of a draft's pass.

A rule judges row by row, in NumPy on the host. Its time depends on the number of tokens, on whether
top-k or top-p truncates the distribution, and, where the rule rejects children, on how often. So
the rows' logits are normal with a standard deviation with which a few tokens have most of the
probability, as in trained models, and the draft's differ from the target's by noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeAlias, get_args

import numpy as np
import torch

from treepipe.core.verification import (
    DRAWN,
    Distribution,
    Rule,
    RuleName,
    Sampling,
    draw_without_replacement,
    target_distribution,
)
from treepipe.executor.measure.timing import Probe
from treepipe.executor.measure.work import Bench
from treepipe.executor.verifier import distribution_of, new_rule
from treepipe.scenario.schema import SamplingSection

SamplingPoint: TypeAlias = tuple[RuleName, bool, int]
"""Rule, whether it truncates, and the candidates per row of a draft pass (0: the target's rows)."""

SAMPLED_ROWS = 4
"""Rows per timed piece of work, some of which a rule accepts and some not."""
CANDIDATES = (1, 4)
"""Candidates of the timed draft passes: a chain's and a tree's."""
SPREAD, NOISE = 5.0, 2.0
"""Standard deviations of the target's logits, and of the draft's difference from them. Nine tenths
of the probability then lie on some 20 of 128,256 tokens."""
TOP_P = 0.9


def sampling_probes(vocabulary: int, bench: Bench) -> Iterator[Probe[SamplingPoint]]:
    """Yield a judgement of rows by each rule, and draws for the rules that need a draft."""
    logits = torch.randn(SAMPLED_ROWS, vocabulary) * SPREAD
    guessed = (logits + torch.randn(SAMPLED_ROWS, vocabulary) * NOISE).double().log_softmax(-1)
    logits = logits.to(bench.device, bench.dtype)
    for name in get_args(RuleName):
        rule = new_rule(SamplingSection(rule=name, temperature=1.0), np.random.default_rng(0))
        for truncated in (False, True):
            sampling = Sampling(1.0, TOP_P if truncated else 1.0)
            drafted = [distribution_of(row, sampling) for row in guessed]
            judge = partial(_judge, rule, logits, sampling, drafted)
            yield Probe((name, truncated, 0), judge)
            if rule.needs_draft:
                for candidates in CANDIDATES:
                    drawn = candidates if name in DRAWN else 0
                    yield Probe(
                        (name, truncated, candidates), partial(_draw, guessed, sampling, drawn)
                    )


def _judge(
    rule: Rule, logits: torch.Tensor, sampling: Sampling, drafted: Sequence[Distribution]
) -> None:
    """Judge each row with the draft's best token as its child."""
    for row, q in zip(logits, drafted, strict=True):
        rule.next_token(distribution_of(row, sampling), [int(q.argmax())], q)


def _draw(log_probs: torch.Tensor, sampling: Sampling, candidates: int) -> None:
    """Keep each row's distribution, and draw from it, as ``RememberingDraft`` does."""
    rng = np.random.default_rng(0)
    for row in log_probs.numpy():
        draw_without_replacement(target_distribution(row, sampling), candidates, rng)
