"""Trains an EAGLE head for the bundled target. Run as a module; takes about ten minutes.

    python -m treepipe.studies.workshop.training.train_eagle --steps 700

As for the published heads (EAGLE-1, section 4.2), the head predicts the target's final state at the
next position (smooth L1) and through the target's projection its distribution (cross entropy,
weight 0.1), from true states with a little noise, as it later continues from its own predictions.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional

from treepipe.core.captures import NORMED
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle import EagleDraft
from treepipe.executor.models.eagle_head import EagleHead
from treepipe.profiles.library import REFERENCE
from treepipe.studies.workshop.training.heads import (
    CAPACITY,
    asked,
    fixed_target,
    save,
    target_config,
    train,
    training_data,
    write_figures,
)

NOISE, TOKEN_WEIGHT = 0.1, 0.1
UNROLL = 2
"""Passes per step: the second reads the states that the first predicted."""


def main() -> None:
    """Train a head and save it in the published layout."""
    out, steps = asked(__doc__, "eagle", 700)
    torch.set_num_threads(2)
    target = fixed_target()
    head = EagleHead(target.config, bias=True, input_norm=False)
    train(head, training_data(), steps, partial(head_loss, head, target))
    save(out, {**target_config(), "num_hidden_layers": 1, "bias": True}, head.state_dict())
    draft = EagleDraft(out, Checkpoint.open(REFERENCE / "target"), CAPACITY)
    write_figures(out, steps, draft, (NORMED,))


def head_loss(head: EagleHead, target: Any, window: torch.Tensor) -> torch.Tensor:
    """Return the mean loss over positions and passes; ``window`` is [batch, length] tokens."""
    with torch.no_grad():
        features = target.model(window).last_hidden_state
        wanted = target.lm_head(features).log_softmax(-1)
        embedded = target.model.embed_tokens(window)
    length = window.shape[1] - 1
    rotary = head.rotary(embedded, torch.arange(length)[None])
    mask = torch.ones((1, 1, length, length), dtype=torch.bool).tril()
    given = features[:, :-1] + NOISE * (2 * torch.rand_like(features[:, :-1]) - 1)
    loss = torch.zeros(())
    for _ in range(UNROLL):
        inputs = torch.cat((embedded[:, 1:], given), -1)
        predicted = head(inputs, attention_mask=mask, position_embeddings=rotary)
        logits = target.lm_head(predicted).log_softmax(-1)
        tokens = -(wanted[:, 1:].exp() * logits).sum(-1).mean()
        loss = loss + functional.smooth_l1_loss(predicted, features[:, 1:]) + TOKEN_WEIGHT * tokens
        # The head's own prediction of the state before a token.
        given = torch.cat((features[:, :1], predicted[:, :-1].detach()), 1)
    return loss / UNROLL


if __name__ == "__main__":
    main()
