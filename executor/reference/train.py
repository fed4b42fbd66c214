"""Trains the reference pair: tokenizer, target, draft. Run as a module; takes about half an hour.

    python -m treepipe.executor.reference.train --out executor/reference --minutes 25

The target learns to predict the corpus; the draft, in a quarter of the time, to give the target's
own distribution. Then the prompts are cut and the pair is measured: ``metrics.json`` keeps the
figures and ``MODEL_CARD.md`` says them. Training stops by the clock, so a second run on another
machine gives another pair of the same make, not the same weights.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from treepipe.executor.reference import prompts
from treepipe.executor.reference.corpus import KINDS, texts
from treepipe.executor.reference.measure import perplexity, record, rows

VOCABULARY = 2048
END = "<|end|>"
SEED = 20261120
WEIGHTS = {"code": 0.5, "prose": 0.35, "arithmetic": 0.15}
SHAPES = {
    "target": {"num_hidden_layers": 8, "hidden_size": 192, "intermediate_size": 512, "heads": 6},
    "draft": {"num_hidden_layers": 1, "hidden_size": 160, "intermediate_size": 448, "heads": 5},
}
PEAK_RATES = {"target": 3e-3, "draft": 4e-3}
WARM_UP_STEPS = 100
BATCH = 16
SHORT_WINDOW, LONG_WINDOW = 160, 640
"""Tokens per window; every eighth step takes a quarter as many windows of the long kind."""
SAVE_EVERY_MINUTES = 4.0
CHECK_WINDOWS = 40

Texts = dict[str, torch.Tensor]


def main() -> None:
    """Train, cut, measure and describe a pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of target and draft")
    parser.add_argument("--minutes", type=float, default=25.0, help="of training the target")
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
    for role, minutes in (("target", arguments.minutes), ("draft", arguments.minutes / 4)):
        model = LlamaForCausalLM(config(role))
        keep = partial(save, tokenizer=tokenizer, directory=out / role)
        figures[role] = train(model, data, held_out, minutes, PEAK_RATES[role], teacher, keep)
        keep(model)
        teacher = model.eval()
    (out / "metrics.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    prompts.write(tokenizer, out)
    record(out)


def config(role: str) -> Any:
    """The architecture of "target" or "draft"."""
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
    """A byte-level BPE whose token 0 ends a text."""
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
    data: Texts,
    held_out: Texts,
    minutes: float,
    peak: float,
    teacher: Any | None,
    keep: Callable[[Any], None],
) -> dict[str, Any]:
    """Train for a time, by next tokens or (with a teacher) towards its distribution.

    ``keep`` is called with the model every few minutes, so that a run cut short leaves a pair.
    """
    rng = np.random.default_rng(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.05)
    start, steps, last, five_minutes = time.monotonic(), 0, math.nan, None
    next_save = SAVE_EVERY_MINUTES
    model.train()
    while (elapsed := (time.monotonic() - start) / 60) < minutes:
        for group in optimizer.param_groups:
            group["lr"] = peak * _rate(steps, elapsed / minutes)
        last, steps = _step(model, teacher, optimizer, _window(data, rng, steps)), steps + 1
        if five_minutes is None and elapsed >= 5:
            five_minutes = perplexity(model, held_out, CHECK_WINDOWS)
            print("5 minutes:", five_minutes, flush=True)
        if elapsed >= next_save:
            keep(model)
            next_save += SAVE_EVERY_MINUTES
        if steps % 100 == 0:
            print(f"{elapsed:.1f} min, step {steps}, loss {last:.3f}", flush=True)
    figures = {
        "minutes": minutes,
        "steps": steps,
        "final_training_loss": last,
        "held_out_perplexity": perplexity(model, held_out, CHECK_WINDOWS),
        "held_out_perplexity_after_5_minutes": five_minutes,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    print(figures, flush=True)
    return figures


def _rate(steps: int, share: float) -> float:
    """Share of the peak learning rate: a warm-up over steps, a cosine over the time."""
    warm = min(1.0, steps / WARM_UP_STEPS)
    return warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))


def _window(data: Texts, rng: np.random.Generator, steps: int) -> torch.Tensor:
    """[batch, length] windows, kinds drawn by weight."""
    long = steps % 8 == 7
    batch, length = (BATCH // 4, LONG_WINDOW) if long else (BATCH, SHORT_WINDOW)
    kinds = rng.choice(KINDS, size=batch, p=[WEIGHTS[kind] for kind in KINDS])
    drawn = []
    for kind in kinds:
        first = int(rng.integers(len(data[kind]) - length))
        drawn.append(data[kind][first : first + length])
    return torch.stack(drawn)


def _step(model: Any, teacher: Any | None, optimizer: Any, window: torch.Tensor) -> float:
    """One step of the optimizer; the loss before it."""
    loss = _loss(model, teacher, window)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _loss(model: Any, teacher: Any | None, window: torch.Tensor) -> Any:
    """Cross entropy of the next tokens, or divergence from the teacher's distribution."""
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
    """A Hugging Face checkpoint in float16 with its tokenizer.

    Files are written beside the folder and renamed into it, so that a reader never finds half a
    file. The model in memory stays as it is.
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
    """Put a checkpoint's files from ``source`` in ``directory``, each by one rename."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "config.json", "model.safetensors"):
        beside = directory.parent / f".{directory.name}.{name}"
        shutil.copyfile(source / name, beside)
        beside.chmod(0o644)
        beside.replace(directory / name)


if __name__ == "__main__":
    main()
