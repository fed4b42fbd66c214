"""The bundled weights' training counts steps: the same seed gives the same weights."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from treepipe.profiles.library import REFERENCE
from treepipe.studies.workshop.training.card import card
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


def test_the_card_of_a_new_pair_says_steps_only(tmp_path: Path) -> None:
    for name in ("target", "draft", "eagle"):
        (tmp_path / name).symlink_to(REFERENCE / name)
    (tmp_path / "eagle").unlink()
    (tmp_path / "eagle").mkdir()
    for name in ("metrics.json", "eagle/metrics.json"):
        text = (REFERENCE / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(re.sub(r'"minutes": [0-9.]+,', "", text), encoding="utf-8")
    assert "--target-steps 2512 --draft-steps 1556" in card(tmp_path)
    assert "clock" not in card(tmp_path)


def test_the_card_is_what_its_figures_say() -> None:
    assert (REFERENCE / "MODEL_CARD.md").read_text(encoding="utf-8") == card(REFERENCE)
