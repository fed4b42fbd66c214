"""An EAGLE head written out plainly, random heads on disk, and what drives a draft beside them.

Nothing here uses the executor's own head: it is what that one is compared with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.tiny_models import VOCABULARY
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.eagle import EagleDraft
from treepipe.messages import NO_PARENT
from treepipe.protocol import DraftPass

WIDTH, INNER, HEADS, KV_HEADS, SIZE = 32, 48, 4, 2, 8
THETA, EPS = 500.0, 1e-5
FEATURES = torch.randn((200, WIDTH), generator=torch.Generator().manual_seed(5))
"""Stands for the target's final states, by position."""

ATTENTION, MLP = "layers.0.self_attn.", "layers.0.mlp."


def head_config(**changes: Any) -> dict[str, Any]:
    """``config.json`` with the keys of the published heads."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": INNER,
        "max_position_embeddings": 256,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "pad_token_id": 0,
        "pretraining_tp": 1,
        "rms_norm_eps": EPS,
        "rope_scaling": None,
        "rope_theta": THETA,
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
        **changes,
    }


def head_weights(
    *,
    seed: int = 0,
    norm: bool = False,
    bias: bool = True,
    embedding: bool = False,
    qkv: bool = False,
) -> dict[str, Tensor]:
    """Random tensors under the published names, large enough that answers vary."""
    wide, narrow = HEADS * SIZE, KV_HEADS * SIZE
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, 2 * WIDTH),
        ATTENTION + "q_proj.weight": (wide, WIDTH),
        ATTENTION + "k_proj.weight": (narrow, WIDTH),
        ATTENTION + "v_proj.weight": (narrow, WIDTH),
        ATTENTION + "o_proj.weight": (WIDTH, wide),
        MLP + "gate_proj.weight": (INNER, WIDTH),
        MLP + "up_proj.weight": (INNER, WIDTH),
        MLP + "down_proj.weight": (WIDTH, INNER),
        "layers.0.post_attention_layernorm.weight": (WIDTH,),
    }
    shapes |= {"fc.bias": (WIDTH,)} if bias else {}
    shapes |= {"layers.0.input_layernorm.weight": (WIDTH,)} if norm else {}
    shapes |= {"embed_tokens.weight": (VOCABULARY, WIDTH)} if embedding else {}
    if qkv:  # as the published heads of Qwen2 targets have it: no bias at o_proj
        sizes = (("q", wide), ("k", narrow), ("v", narrow))
        shapes |= {f"{ATTENTION}{name}_proj.bias": (size,) for name, size in sizes}
    rng = torch.Generator().manual_seed(seed)
    return {name: 0.25 * torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def save_head(
    directory: Path, tensors: dict[str, Tensor], *, pickled: bool = False, **changes: Any
) -> Path:
    """Write a head's two files; returns the folder."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(head_config(**changes)))
    if pickled:
        torch.save(tensors, directory / "pytorch_model.bin")
    else:
        save_file(tensors, directory / "model.safetensors")
    return directory


class Dense:
    """The head in plain operations; nothing is cached, every call computes all rows anew."""

    def __init__(self, tensors: dict[str, Tensor], target: Checkpoint) -> None:
        self.w = tensors
        shared = target.tensors("model.embed_tokens.")["weight"]
        self.projection = shared if target.tied else target.tensors("lm_head.")["weight"]
        self.embedding = tensors.get("embed_tokens.weight", shared)

    def log_probs(self, text: list[int], true: int) -> Tensor:
        """[vocabulary] behind ``text``; the states at its first ``true`` positions are known."""
        given = [FEATURES[position] for position in range(true)]
        while len(given) < len(text):  # the state at a position, as the head itself guesses it
            given.append(self._states(text[1 : len(given) + 1], given)[-1])
        return (given[-1] @ self.projection.T).double().log_softmax(-1)

    def _states(self, tokens: list[int], given: list[Tensor]) -> Tensor:
        """[n, hidden] states at these tokens, from those one position before."""
        x = self._linear(torch.cat((self.embedding[tokens], torch.stack(given)), 1), "fc")
        x = x + self._linear(self._attend(self._norm(x, "input")), ATTENTION + "o_proj")
        inner = self._norm(x, "post_attention")
        gate = torch.nn.functional.silu(self._linear(inner, MLP + "gate_proj"))
        return x + self._linear(gate * self._linear(inner, MLP + "up_proj"), MLP + "down_proj")

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.w[name + ".weight"].T + self.w.get(name + ".bias", torch.zeros(()))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.w.get(f"layers.0.{name}_layernorm.weight")
        return x if weight is None else weight * x / (x.pow(2).mean(-1, True) + EPS).sqrt()

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = (
            self._linear(x, f"{ATTENTION}{name}_proj").view(len(x), -1, SIZE) for name in "qkv"
        )
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (_turn(k), v))
        scores = torch.einsum("ihs,jhs->hij", _turn(q), k) / SIZE**0.5
        future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        shares = scores.masked_fill(future, -torch.inf).softmax(-1)
        return torch.einsum("hij,jhs->ihs", shares, v).flatten(1)


def _turn(x: Tensor) -> Tensor:
    """[n, heads, size] turned by the angles of positions 0, 1, ... (the first token has none)."""
    angles = torch.arange(len(x))[:, None] * THETA ** (-torch.arange(0, SIZE, 2) / SIZE)
    angles = torch.cat((angles, angles), 1)[:, None]
    turned = torch.cat((-x[..., SIZE // 2 :], x[..., : SIZE // 2]), -1)
    return x * angles.cos() + turned * angles.sin()


@dataclass
class Driver:
    """One session of a draft, and what it must know by now; every answer is checked.

    Attributes:
        text: committed tokens read.
        true: positions whose known states the last catch-up pass could use.
        paths: tokens below ``text`` per scratch node.
        above: the scratch node above each scratch node.
    """

    draft: EagleDraft
    dense: Dense
    session: int = 0
    text: list[int] = field(default_factory=list)
    true: int = 0
    observed: int = 0
    paths: list[list[int]] = field(default_factory=list)
    above: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draft.open(self.session)

    def observe(self) -> None:
        """States of all committed tokens but the newest, which the target has not read."""
        if self.observed < len(self.text) - 1:
            self.draft.observe(self.session, FEATURES[self.observed : len(self.text) - 1])
            self.observed = len(self.text) - 1

    def catch_up(self, tokens: list[int], keep: tuple[int, ...] | None = None) -> None:
        """Read tokens; behind the scratch nodes ``keep``, all accepted, else in a clean tree."""
        self.text += [*(self.paths[keep[-1]] if keep else ()), *tokens]
        self.observe()
        self.true, self.paths, self.above = len(self.text) - 1, [], []
        accepted = len(keep or ())
        self._check(DraftPass(1, tuple(tokens), (), (), keep is None, 5, keep, accepted), [[]])

    def scratch(
        self,
        tokens: list[int],
        parents: list[int],
        keep: tuple[int, ...] | None = None,
        accepted: int = 0,
    ) -> None:
        """Read scratch nodes, after a prune if ``keep`` is given."""
        if keep is not None:
            self.text += self.paths[keep[accepted - 1]] if accepted else []
            places = {old: new for new, old in enumerate(keep[accepted:])}
            self.paths = [self.paths[old][accepted:] for old in places]
            self.above = [places.get(self.above[old], NO_PARENT) for old in places]
        first = len(self.paths)
        for token, parent in zip(tokens, parents, strict=True):
            self.paths.append([*(() if parent == NO_PARENT else self.paths[parent]), token])
        self.above += parents
        order = DraftPass(1, (), tuple(tokens), tuple(parents), False, 5, keep, accepted)
        self._check(order, self.paths[first:])

    def _check(self, order: DraftPass, paths: list[list[int]]) -> None:
        found = self.draft.log_probs(self.session, order)
        wanted = [self.dense.log_probs(self.text + path, self.true) for path in paths]
        torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-4)
