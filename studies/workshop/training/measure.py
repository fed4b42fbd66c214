"""Measures the reference pair: perplexity on held-out texts, and the draft's agreement.

    python -m treepipe.studies.workshop.training.measure --out executor/reference

The checkpoints are read from their folders and used in float32, as in the executor. The result is
kept in ``metrics.json`` under "measured".
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from treepipe.studies.workshop.training.corpus import KINDS, unseen

CONTINUATION = 64
RANKS = (1, 4, 8)
WINDOW = 256
WINDOWS = 120
SAMPLES = 2
END_TOKEN = 0


def measure(out: Path) -> dict[str, Any]:
    """Measure the pair in ``out``."""
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    tokenizer = Tokenizer.from_file(str(out / "target" / "tokenizer.json"))
    prompts = json.loads((out / "prompts.json").read_text(encoding="utf-8"))
    target, draft = (
        AutoModelForCausalLM.from_pretrained(out / role, dtype=torch.float32).eval()
        for role in ("target", "draft")
    )
    texts = {kind: rows(tokenizer, unseen(kind)) for kind in KINDS}
    return {
        "held_out_tokens": {kind: len(ids) for kind, ids in texts.items()},
        "held_out_perplexity": {
            "target": perplexity(target, texts, WINDOWS),
            "draft": perplexity(draft, texts, WINDOWS),
        },
        "continuations": {
            kind: _continuations(target, draft, tokenizer, prompts[kind]["heldout"])
            for kind in KINDS
        },
    }


def rows(tokenizer: Any, documents: list[str]) -> torch.Tensor:
    """Return one long row of token ids, with texts separated by the end token."""
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(documents):
        ids += [*encoding.ids, END_TOKEN]
    return torch.tensor(ids)


@torch.no_grad()
def perplexity(model: Any, texts: dict[str, torch.Tensor], windows: int) -> dict[str, float]:
    """Return the model's perplexity by kind, over the first ``windows`` windows of 256 tokens."""
    training = model.training
    model.eval()
    result = {}
    for kind, ids in texts.items():
        total, count = 0.0, 0
        for part in ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)[:windows].split(20):
            logits = model(part[:, :-1]).logits.flatten(0, 1)
            total += float(functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))
            count += part[:, 1:].numel()
        result[kind] = round(math.exp(total / count), 3)
    model.train(training)
    return result


@torch.no_grad()
def _continuations(target: Any, draft: Any, tokenizer: Any, prompts: list[str]) -> dict[str, Any]:
    """Generate the target's greedy continuations, and rank their tokens among the draft's."""
    hits = dict.fromkeys(RANKS, 0)
    positions, fresh, grams = 0, 0, 0
    samples = []
    for number, prompt in enumerate(prompts):
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        whole = _greedy(target, ids)
        chosen = whole[0, ids.shape[1] :]
        scores = draft(whole[:, :-1]).logits[0, ids.shape[1] - 1 :]
        for rank in RANKS:
            best = scores.topk(rank).indices
            hits[rank] += int((best == chosen[:, None]).any(-1).sum())
        positions += len(chosen)
        found = [tuple(chosen[i : i + 4].tolist()) for i in range(len(chosen) - 3)]
        fresh, grams = fresh + len(set(found)), grams + len(found)
        if number < SAMPLES:
            samples.append({"prompt": prompt, "continuation": tokenizer.decode(chosen.tolist())})
    return {
        "positions": positions,
        "agreement": {f"top-{rank}": round(hits[rank] / positions, 4) for rank in RANKS},
        "distinct_4_grams": round(fresh / grams, 4),
        "samples": samples,
    }


def _greedy(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Return the prompt and up to `CONTINUATION` most probable tokens, fewer if the text ends."""
    state, rest = None, ids
    for _ in range(CONTINUATION):
        answer = model(rest, past_key_values=state, use_cache=True)
        state = answer.past_key_values
        rest = answer.logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, rest], dim=1)
        if int(rest) == END_TOKEN:
            break
    return ids


def record(out: Path) -> None:
    """Measure the pair in ``out``, and keep the figures in ``metrics.json``."""
    path = out / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    metrics["measured"] = measure(out)
    path.write_text(json.dumps(metrics, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure an existing pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of target and draft")
    record(parser.parse_args().out)


if __name__ == "__main__":
    main()
