"""What the training of the target's heads and block draft has in common."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.models.block import BlockDraft
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle import EagleDraft
from treepipe.executor.models.prompts import load_texts, tokenize
from treepipe.profiles.library import HELD_OUT, REFERENCE
from treepipe.studies.workshop.training.corpus import KINDS, texts
from treepipe.studies.workshop.training.descent import SEED, Descent
from treepipe.studies.workshop.training.measure import rows

DEPTHS, CAPACITY = 4, 1024


def asked(about: str | None, name: str, steps: int) -> tuple[Path, int]:
    """Parse the command line: the folder to write, and the number of steps."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, default=REFERENCE / name)
    parser.add_argument("--steps", type=int, default=steps)
    arguments = parser.parse_args()
    return arguments.out, arguments.steps


def fixed_target() -> Any:
    """Seed the training, and return the bundled target, whose weights stay fixed."""
    torch.manual_seed(SEED)
    target = LlamaForCausalLM.from_pretrained(REFERENCE / "target", dtype=torch.float32).eval()
    target.requires_grad_(False)
    target.config._attn_implementation = "sdpa"
    return target


def target_config() -> dict[str, Any]:
    """Return the target's ``config.json``."""
    content: dict[str, Any]
    content = json.loads((REFERENCE / "target" / "config.json").read_text(encoding="utf-8"))
    return content


def training_data() -> dict[str, torch.Tensor]:
    """Return the training texts' token ids by kind."""
    tokenizer = Tokenizer.from_file(str(REFERENCE / "target" / "tokenizer.json"))
    return {kind: rows(tokenizer, texts(kind, held_out=False)) for kind in KINDS}


def train(
    head: Any,
    data: Mapping[str, torch.Tensor],
    steps: int,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    peak_rate: float = 2e-3,
) -> None:
    """Train a head towards the target, whose weights stay fixed."""
    Descent(steps, peak_rate, clip=0.5, weight_decay=0.01).run(head, data, loss_of)


def save(out: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Save ``config.json`` and ``model.safetensors``, with numbers in float16."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    temporary = out / "model.safetensors.part"
    stored = {n: t.half() if t.is_floating_point() else t for n, t in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, temporary)
    temporary.replace(out / "model.safetensors")


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
    texts = load_texts(HELD_OUT, REFERENCE)
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
