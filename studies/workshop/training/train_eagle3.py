"""Trains an EAGLE-3 head for the bundled target. Run as a module; takes about a quarter of an hour.

    python -m treepipe.studies.workshop.training.train_eagle3 --steps 1000

"Training-time test" (EAGLE-3, section 3.2): from the second pass on, a row reads the head's own
state at the position before it, and attends to true entries only as far back as in drafting. The
loss is the cross entropy with the target's distribution over the head's tokens.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import LlamaConfig

from treepipe.core.captures import named_boundaries
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle3 import Eagle3Draft
from treepipe.executor.models.eagle3_head import Eagle3Head, HeadRules
from treepipe.profiles.library import REFERENCE
from treepipe.studies.workshop.training.corpus import KINDS
from treepipe.studies.workshop.training.descent import WEIGHTS
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

TOKENS, INNER = 1024, 384
"""The head's vocabulary, and the inner width of its layer."""
UNROLL, DECAY = 2, 0.8
"""Passes per step, and the weight of each one's loss against the one before."""


def main() -> None:
    """Train a head and save it in the layout of EAGLE's code."""
    out, steps = asked(__doc__, "eagle3", 1000)
    target = fixed_target()
    content = head_config()
    config = LlamaConfig(**content)
    config._attn_implementation = "sdpa"
    rules = HeadRules(target_width=target.config.hidden_size, tokens=TOKENS)
    head = Eagle3Head(config, "LlamaForCausalLM", rules, bias=False)
    captured = named_boundaries("auto", None, 0, target.config.num_hidden_layers)
    data = training_data()
    known = frequent(data, target.config.vocab_size)
    train(head, data, steps, partial(head_loss, head, target, captured, known))
    save(out, content, tensors(head, known, target.config.vocab_size))
    draft = Eagle3Draft(out, Checkpoint.open(REFERENCE / "target"), CAPACITY)
    write_figures(out, steps, draft, captured)


def head_config() -> dict[str, Any]:
    """Return the head's ``config.json``: the target's with one smaller layer."""
    changes = {"num_hidden_layers": 1, "intermediate_size": INNER, "draft_vocab_size": TOKENS}
    named = {"architectures": ["LlamaForCausalLMEagle3"], "tie_word_embeddings": False}
    return {**target_config(), **changes, **named}


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


def tensors(head: Eagle3Head, known: torch.Tensor, vocabulary: int) -> dict[str, torch.Tensor]:
    """Return the head's tensors by their published names; the embedding is the target's."""
    found = {n.replace("layers.0.", "midlayer."): t for n, t in head.state_dict().items()}
    found["d2t"] = known - torch.arange(TOKENS)
    found["t2d"] = torch.isin(torch.arange(vocabulary), known)
    return found


if __name__ == "__main__":
    main()
