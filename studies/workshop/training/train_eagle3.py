"""Trains an EAGLE-3 head for the bundled target. Run as a module; takes about a quarter of an hour.

    python -m treepipe.studies.workshop.training.train_eagle3 --steps 1000

"Training-time test" (EAGLE-3, section 3.2): from the second pass on, a row reads the head's own
state at the position before it, and attends to true entries only as far back as in drafting. The
loss is the cross entropy with the target's distribution over the head's tokens.
"""

from __future__ import annotations

import argparse
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from treepipe.core.captures import named_boundaries
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.eagle3 import Eagle3Draft
from treepipe.executor.eagle3_head import Eagle3Head, HeadRules
from treepipe.profiles.library import REFERENCE
from treepipe.studies.workshop.training.corpus import KINDS
from treepipe.studies.workshop.training.descent import WEIGHTS
from treepipe.studies.workshop.training.train_eagle import (
    CAPACITY,
    fixed_target,
    train,
    training_data,
    write_figures,
)

TOKENS, INNER = 1024, 384
"""The head's vocabulary, and the inner width of its layer."""
UNROLL, DECAY = 2, 0.8
"""Passes per step, and the weight of each one's loss against the one before."""


def main() -> None:
    """Train a head and save it in the layout of EAGLE's code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=REFERENCE / "eagle3")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    target = fixed_target()
    content = head_config()
    config = LlamaConfig(**content)
    config._attn_implementation = "sdpa"
    rules = HeadRules(target_width=target.config.hidden_size, tokens=TOKENS)
    head = Eagle3Head(config, "LlamaForCausalLM", rules, bias=False)
    captured = named_boundaries("auto", None, 0, target.config.num_hidden_layers)
    data = training_data()
    known = frequent(data, target.config.vocab_size)
    train(head, data, arguments.steps, partial(head_loss, head, target, captured, known))
    save(head, content, known, target.config.vocab_size, arguments.out)
    draft = Eagle3Draft(arguments.out, Checkpoint.open(REFERENCE / "target"), CAPACITY)
    write_figures(arguments.out, arguments.steps, draft, captured)


def head_config() -> dict[str, Any]:
    """Return the head's ``config.json``: the target's with one smaller layer."""
    content = json.loads((REFERENCE / "target" / "config.json").read_text(encoding="utf-8"))
    changes = {"num_hidden_layers": 1, "intermediate_size": INNER, "draft_vocab_size": TOKENS}
    named = {"architectures": ["LlamaForCausalLMEagle3"], "tie_word_embeddings": False}
    return {**content, **changes, **named}


def frequent(data: dict[str, torch.Tensor], vocabulary: int) -> torch.Tensor:
    """Return the most frequent tokens of the training windows, in ascending order."""
    share = torch.zeros(vocabulary)
    for kind in KINDS:
        share += WEIGHTS[kind] * torch.bincount(data[kind], minlength=vocabulary) / len(data[kind])
    return share.topk(TOKENS).indices.sort().values


def head_loss(
    head: Eagle3Head,
    target: Any,
    captured: tuple[int, ...],
    known: torch.Tensor,
    window: torch.Tensor,
) -> torch.Tensor:
    """Return the weighted mean loss over positions and passes; ``window`` is [batch, length]."""
    with torch.no_grad():
        found = target.model(window, output_hidden_states=True)
        states = torch.cat([found.hidden_states[each] for each in captured], -1)[:, :-1]
        logits = target.lm_head(found.last_hidden_state[:, 1:])
        judged = torch.isin(logits.argmax(-1), known)
        wanted = logits[..., known].softmax(-1)
        embedded = target.model.embed_tokens(window[:, 1:])
    rows, count = list[torch.Tensor](), embedded.shape[1]
    given, total = head.observed(states), torch.zeros(())
    for level in range(UNROLL):
        rows.append(torch.cat((embedded, given), -1))
        place = torch.arange(count).repeat(level + 1)[None]
        guessed = head.layers[0](
            torch.cat(rows, 1),
            attention_mask=drafting_mask(count, level + 1)[None, None],
            position_embeddings=head.rotary(embedded, place),
        )[:, -count:]
        losses = -(wanted * head.logits(guessed).log_softmax(-1)).sum(-1)
        total = total + DECAY**level * losses[judged].mean()
        given = torch.cat((given[:, :1], guessed[:, :-1]), 1)
    return total / sum(DECAY**level for level in range(UNROLL))


def drafting_mask(count: int, levels: int) -> torch.Tensor:
    """Return which of ``levels`` passes' rows each one reads: true ones up to its draft's root, and
    its own path's guesses."""
    seen = torch.zeros((levels, count, levels, count), dtype=torch.bool)
    place = torch.arange(count)
    for level in range(levels):
        seen[level, :, 0] = place[None] <= (place - level)[:, None]
        for above in range(1, level + 1):
            own = place[level - above :]
            seen[level, own, above, own - (level - above)] = True
    return seen.view(levels * count, levels * count)


def save(
    head: Eagle3Head, content: dict[str, Any], known: torch.Tensor, vocabulary: int, out: Path
) -> None:
    """Save ``config.json`` and ``model.safetensors``; the embedding is the target's."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {
        name.replace("layers.0.", "midlayer."): tensor.half().contiguous()
        for name, tensor in head.state_dict().items()
    }
    tensors["d2t"] = known - torch.arange(TOKENS)
    tensors["t2d"] = torch.isin(torch.arange(vocabulary), known)
    temporary = out / "model.safetensors.part"
    save_file(tensors, temporary)
    shutil.move(temporary, out / "model.safetensors")


if __name__ == "__main__":
    main()
