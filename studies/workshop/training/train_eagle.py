"""Trains an EAGLE head for the bundled target. Run as a module; takes about ten minutes.

    python -m treepipe.studies.workshop.training.train_eagle --steps 700

As for the published heads (EAGLE-1, section 4.2), the head predicts the target's final state at the
next position (smooth L1) and through the target's projection its distribution (cross entropy,
weight 0.1), from true states with a little noise, as it later continues from its own predictions.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from treepipe.core.captures import NORMED
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.block import BlockDraft
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.eagle import EagleDraft
from treepipe.executor.eagle_head import EagleHead
from treepipe.executor.measure.calibration import WholeModel
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.profiles.library import REFERENCE
from treepipe.studies.workshop.training.corpus import KINDS, texts
from treepipe.studies.workshop.training.descent import SEED, Descent
from treepipe.studies.workshop.training.measure import rows

PEAK_RATE, NOISE, TOKEN_WEIGHT = 2e-3, 0.1, 0.1
DEPTHS, CAPACITY = 4, 1024
UNROLL = 2
"""Passes per step: the second reads the states that the first predicted."""


def main() -> None:
    """Train a head and save it in the published layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REFERENCE / "eagle")
    parser.add_argument("--steps", type=int, default=700)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    target = fixed_target()
    head = EagleHead(target.config, bias=True, input_norm=False)
    train(head, training_data(), arguments.steps, partial(head_loss, head, target))
    save(head, arguments.out)
    draft = EagleDraft(arguments.out, Checkpoint.open(REFERENCE / "target"), CAPACITY)
    write_figures(arguments.out, arguments.steps, draft, (NORMED,))


def fixed_target() -> Any:
    """Seed the training, and return the bundled target, whose weights stay fixed."""
    torch.manual_seed(SEED)
    target = LlamaForCausalLM.from_pretrained(REFERENCE / "target", dtype=torch.float32).eval()
    target.requires_grad_(False)
    target.config._attn_implementation = "sdpa"
    return target


def training_data() -> dict[str, torch.Tensor]:
    """Return the training texts' token ids by kind."""
    tokenizer = Tokenizer.from_file(str(REFERENCE / "target" / "tokenizer.json"))
    return {kind: rows(tokenizer, texts(kind, held_out=False)) for kind in KINDS}


def train(
    head: Any,
    data: dict[str, torch.Tensor],
    steps: int,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Train a head towards the target, whose weights stay fixed."""
    Descent(steps, PEAK_RATE, clip=0.5, weight_decay=0.01).run(head, data, loss_of)


def write_figures(
    out: Path,
    steps: int,
    draft: EagleDraft | BlockDraft,
    captured: tuple[int, ...],
    depths: int = DEPTHS,
) -> None:
    """Measure a finished head, and write ``metrics.json``."""
    figures = {"steps": steps, "agreement": agreement(draft, captured, depths)}
    text = json.dumps(figures, indent=1) + "\n"
    (out / "metrics.json").write_text(text, encoding="utf-8")


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


def agreement(
    draft: EagleDraft | BlockDraft, captured: tuple[int, ...], depths: int
) -> dict[str, dict[str, float]]:
    """Return how often the target's token is among the draft's first 1 and 4, by number of tokens
    predicted ahead.

    Measured along the target's greedy continuations, of 40 tokens, of all held-out prompts: at
    every fifth token the draft has true states up to there and follows the text from its own
    predictions.
    """
    checkpoint = Checkpoint.open(REFERENCE / "target")
    texts = load_texts("reference:heldout", REFERENCE)
    whole, seen = WholeModel(checkpoint, CAPACITY, captured=captured), dict[int, list[int]]()
    for prompt in tokenize(checkpoint, texts):
        text = [*prompt, *whole.greedy(prompt, 40)]
        whole.stage.open(0)
        states = whole.stage.forward(0, whole.ends.embed(text), range(len(text)), None)
        whole.stage.close(0)
        draft.open(1)
        draft.observe(1, whole.ends.read_states(states, captured))
        read = 0
        for place in range(len(prompt), len(text) - depths, 5):
            order = DraftPass(0, tuple(text[read : place + 1]), (), (), True, 4)
            read = place + 1
            for depth in range(depths):
                found = [int(token) for token in draft.draft(1, order).tokens[0]]
                truth = text[read + depth]
                seen.setdefault(depth, []).append(found.index(truth) if truth in found else 4)
                parent = (depth - 1,) if depth else (NO_PARENT,)
                order = DraftPass(0, (), (truth,), parent, False, 4)
        draft.close(1)
    return {
        str(depth): {
            "top_1": sum(rank < 1 for rank in ranks) / len(ranks),
            "top_4": sum(rank < 4 for rank in ranks) / len(ranks),
        }
        for depth, ranks in seen.items()
    }


def save(head: EagleHead, out: Path) -> None:
    """Save ``config.json`` and ``model.safetensors``; embedding and projection are the target's."""
    out.mkdir(parents=True, exist_ok=True)
    content = json.loads((REFERENCE / "target" / "config.json").read_text(encoding="utf-8"))
    content |= {"num_hidden_layers": 1, "bias": True}
    (out / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {name: tensor.half().contiguous() for name, tensor in head.state_dict().items()}
    temporary = out / "model.safetensors.part"
    save_file(tensors, temporary)
    shutil.move(temporary, out / "model.safetensors")


if __name__ == "__main__":
    main()
