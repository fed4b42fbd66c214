"""The bundled weights' training counts steps: the same seed gives the same weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from treepipe.profiles.library import REFERENCE
from treepipe.studies.workshop.training.corpus import KINDS
from treepipe.studies.workshop.training.descent import SEED, Descent, window

DATA = {kind: torch.arange(2000) % 7 for kind in KINDS}


def trained(steps: int) -> torch.Tensor:
    torch.manual_seed(SEED)
    model = torch.nn.Linear(8, 1)
    seen: list[int] = []

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        return model(tokens[:, :8].float()).square().mean()

    Descent(steps, 1e-2).run(model, DATA, loss_of, seen.append)
    assert seen == list(range(1, steps + 1))
    return model.weight.detach().clone()


def test_the_same_steps_give_the_same_weights() -> None:
    assert torch.equal(trained(5), trained(5))
    assert not torch.equal(trained(5), trained(6))


def test_the_rate_warms_up_and_falls_over_the_steps() -> None:
    rates = [Descent(1000, 1.0).rate(step) for step in range(1000)]
    assert rates[0] == 0.0
    assert 90 <= int(np.argmax(rates)) <= 110
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[-1] < 0.03


def test_every_eighth_window_is_long() -> None:
    rng = np.random.default_rng(0)
    shapes = [tuple(window(DATA, rng, step).shape) for step in (0, 7)]
    assert shapes == [(16, 160), (4, 640)]


def figures_of(path: Path) -> Iterator[str]:
    """Yield the figures of a file as the card writes them."""
    found = json.loads(path.read_text(encoding="utf-8"))
    agreements = [found.get("agreement", {})]
    if "measured" in found:
        agreements += found["measured"]["continuations"].values()
        for role in ("target", "draft"):
            yield f"| {found[role]['steps']:,} | {found[role]['final_training_loss']:.3f} |"
            for kinds in (
                found[role]["held_out_perplexity"],
                found["measured"]["held_out_perplexity"][role],
            ):
                mean = math.prod(kinds.values()) ** (1 / 3)
                yield f"| {mean:.2f} | {' | '.join(f'{kinds[kind]:.2f}' for kind in KINDS)} |"
    for each in agreements:
        for shares in [each["agreement"]] if "agreement" in each else each.values():
            yield f"| {' | '.join(f'{share:.1%}' for share in shares.values())} |"


@pytest.mark.parametrize("folder", [".", "eagle", "eagle3", "block"])
def test_the_card_quotes_the_measured_figures(folder: str) -> None:
    card = (REFERENCE / "MODEL_CARD.md").read_text(encoding="utf-8")
    found = list(figures_of(REFERENCE / folder / "metrics.json"))
    assert len(found) >= 4
    assert not [figure for figure in found if figure not in card]
