"""The training loop of target, draft and head: windows, learning rate, and number of steps.

Invariant: the weights follow from seed, texts and number of steps (and from the versions of Python
and torch, and the number of threads); no clock is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from treepipe.studies.workshop.training.corpus import KINDS

SEED = 20261120
WEIGHTS = {"code": 0.5, "prose": 0.35, "arithmetic": 0.15}
WARM_UP_STEPS = 100
BATCH = 16
SHORT_WINDOW, LONG_WINDOW = 160, 640
"""Tokens per window; every eighth step takes a quarter as many windows of the long kind."""
TELL_EVERY = 100
"""Steps between printed losses."""


@dataclass(frozen=True, slots=True)
class Descent:
    """Settings of the training of a model, independent of its loss.

    Attributes:
        steps: number of steps; the rate falls over them in a cosine after a warm-up.
        peak: the largest learning rate.
        clip: largest norm of a step's gradient.
        weight_decay: weight decay of AdamW.
    """

    steps: int
    peak: float
    clip: float = 1.0
    weight_decay: float = 0.05

    def run(
        self,
        model: Any,
        data: Mapping[str, torch.Tensor],
        loss_of: Callable[[torch.Tensor], torch.Tensor],
        after: Callable[[int], None] = lambda step: None,
    ) -> float:
        """Train the model; returns the last step's loss.

        Args:
            data: token ids by kind, each one long row.
            loss_of: function from a [batch, length] window to the loss.
            after: callback with the number of finished steps, after each one.
        """
        rng, loss = np.random.default_rng(SEED), torch.tensor(math.nan)
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.peak, betas=(0.9, 0.95), weight_decay=self.weight_decay
        )
        model.train()
        for step in range(self.steps):
            for group in optimizer.param_groups:
                group["lr"] = self.rate(step)
            loss = loss_of(window(data, rng, step))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            optimizer.step()
            if step % TELL_EVERY == 0:
                print(f"step {step} of {self.steps}, loss {float(loss.detach()):.4f}", flush=True)
            after(step + 1)
        return float(loss.detach())

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        warm = min(1.0, step / WARM_UP_STEPS)
        return self.peak * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / self.steps)))


def window(data: Mapping[str, torch.Tensor], rng: np.random.Generator, step: int) -> torch.Tensor:
    """Return [batch, length] windows, with kinds drawn by weight."""
    long = step % 8 == 7
    batch, length = (BATCH // 4, LONG_WINDOW) if long else (BATCH, SHORT_WINDOW)
    kinds = rng.choice(KINDS, size=batch, p=[WEIGHTS[kind] for kind in KINDS])
    drawn = []
    for kind in kinds:
        first = int(rng.integers(len(data[kind]) - length))
        drawn.append(data[kind][first : first + length])
    return torch.stack(drawn)
