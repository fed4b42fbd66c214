"""Trains the reference pair: tokenizer, target, draft. Run as a module; takes about half an hour on
two CPU cores.

    python -m treepipe.studies.workshop.training.train --out executor/reference

The target learns to predict the corpus; the draft learns the target's own distribution. Then the
prompts are cut and the pair is measured: ``metrics.json`` keeps the figures with the steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from treepipe.studies.workshop.training import prompts
from treepipe.studies.workshop.training.corpus import KINDS, texts
from treepipe.studies.workshop.training.descent import SEED, Descent
from treepipe.studies.workshop.training.measure import perplexity, record, rows

VOCABULARY = 2048
END = "<|end|>"
SHAPES = {
    "target": {"num_hidden_layers": 8, "hidden_size": 192, "intermediate_size": 512, "heads": 6},
    "draft": {"num_hidden_layers": 1, "hidden_size": 160, "intermediate_size": 448, "heads": 5},
}
STEPS = {"target": 2512, "draft": 1556}
"""Training steps of the bundled pair."""
PEAK_RATES = {"target": 3e-3, "draft": 4e-3}
SAVE_EVERY = 400
"""Steps between saved pairs."""
CHECK_WINDOWS = 40

Texts = dict[str, torch.Tensor]


def main() -> None:
    """Train a pair, cut prompts, and measure the pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of target and draft")
    for role, steps in STEPS.items():
        parser.add_argument(f"--{role}-steps", type=int, default=steps)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    data = {kind: rows(tokenizer, texts(kind, held_out=False)) for kind in KINDS}
    held_out = {kind: rows(tokenizer, texts(kind, held_out=True)) for kind in KINDS}
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "seed": SEED,
        "training_tokens": {kind: len(ids) for kind, ids in data.items()},
    }
    teacher = None
    for role, steps in (("target", arguments.target_steps), ("draft", arguments.draft_steps)):
        model = LlamaForCausalLM(config(role))
        keep = partial(save, tokenizer=tokenizer, directory=out / role)
        descent = Descent(steps, PEAK_RATES[role])
        figures[role] = train(model, (data, held_out), descent, teacher, keep)
        keep(model)
        teacher = model.eval()
    (out / "metrics.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    prompts.write(tokenizer, out)
    record(out)


def config(role: str) -> Any:
    """Return the architecture of "target" or "draft"."""
    shape = dict(SHAPES[role])
    heads = shape.pop("heads")
    return LlamaConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
        **shape,
    )


def train_tokenizer() -> Any:
    """Train a byte-level BPE whose token 0 ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((t for k in KINDS for t in texts(k, held_out=False)), trainer)
    return tokenizer


def train(
    model: Any,
    texts_of: tuple[Texts, Texts],
    descent: Descent,
    teacher: Any | None,
    keep: Callable[[Any], None],
) -> dict[str, Any]:
    """Train by next tokens or (with a teacher) towards its distribution; returns the figures.

    Args:
        texts_of: training and held-out texts.
        keep: callback with the model at intervals, which saves a pair in case of interruption.
    """
    data, held_out = texts_of

    def after(step: int) -> None:
        if step % SAVE_EVERY == 0:
            keep(model)

    last = descent.run(model, data, lambda window: _loss(model, teacher, window), after)
    figures = {
        "steps": descent.steps,
        "final_training_loss": last,
        "held_out_perplexity": perplexity(model, held_out, CHECK_WINDOWS),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    print(figures, flush=True)
    return figures


def _loss(model: Any, teacher: Any | None, window: torch.Tensor) -> Any:
    """Return the next tokens' cross entropy, or the divergence from the teacher's distribution."""
    logits = model(window[:, :-1]).logits
    if teacher is None:
        return functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
    with torch.no_grad():
        wanted = teacher(window[:, :-1]).logits.log_softmax(-1)
    return functional.kl_div(
        logits.log_softmax(-1).flatten(0, 1),
        wanted.flatten(0, 1),
        reduction="batchmean",
        log_target=True,
    )


def save(model: Any, tokenizer: Any, directory: Path) -> None:
    """Save a Hugging Face checkpoint in float16 with its tokenizer.

    Files are written beside the folder and renamed into it, so that a reader never finds half a
    file. The model in memory does not change.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as name:
        beside = Path(name)
        copy = LlamaForCausalLM(model.config)
        copy.load_state_dict(model.state_dict())
        copy.to(torch.float16).save_pretrained(beside)
        tokenizer.save(str(beside / "tokenizer.json"))
        install(beside, directory)


def install(source: Path, directory: Path) -> None:
    """Move a checkpoint's files from ``source`` to ``directory``, each by one rename."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        beside = directory.parent / f".{directory.name}.{name}"
        shutil.copyfile(source / name, beside)
        beside.chmod(0o644)
        beside.replace(directory / name)


if __name__ == "__main__":
    main()
