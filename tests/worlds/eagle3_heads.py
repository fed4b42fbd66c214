"""Random EAGLE-3 heads in the published layouts, and their computation by the published formulas
(Li et al., EAGLE-3, section 3, and its code), written without the executor's classes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import scaled_dot_product_attention, silu

from treepipe.executor.models.checkpoint import Checkpoint

Weights = dict[str, torch.Tensor]
HEADS, KV, SIZE, EPS = 4, 2, 6, 1e-5
"""Of a layer of every such head; the size is not width / heads."""
DIALECTS: dict[str, dict[str, Any]] = {
    "eagle": {"rope_theta": 500.0},
    "specforge": {
        "width": 20,
        "state_norms": "each",
        "attention_bias": True,
        "norm_output": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
    },
    "speculators": {
        "layers": 2,
        "state_norms": "all",
        "norm_before_residual": True,
        "norm_output": True,
        "model_type": "qwen3",
        "aux_hidden_state_layer_ids": [1, 2, 4],
    },
}
"""What is not plain about a head of each."""


def save_eagle3(
    folder: Path, target: Checkpoint, dialect: str, *, pickled: bool = False, **changes: Any
) -> Path:
    """Save a head; ``changes`` are of its ``config.json`` or of its tensors (... removes one)."""
    folder.mkdir(exist_ok=True)
    own = {"width": target.hidden_size, "layers": 1, "state_norms": "", **DIALECTS[dialect]}
    tensors = _tensors(own, target)
    if dialect != "speculators":
        tensors = {name.replace("layers.0.", "midlayer."): t for name, t in tensors.items()}
    content = _config(own, target, dialect, len(tensors["lm_head.weight"]))
    for key, value in changes.items():
        held: dict[str, Any] = tensors if "." in key or key in tensors else content
        held[key] = value
        if value is ...:
            del held[key]
    (folder / "config.json").write_text(json.dumps(content))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return folder


def _config(own: Mapping[str, Any], target: Checkpoint, dialect: str, tokens: int) -> Any:
    layer = {
        "model_type": own.get("model_type", "llama"),
        "hidden_size": own["width"],
        "intermediate_size": 24,
        "num_hidden_layers": own["layers"],
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": SIZE,
        "vocab_size": target.vocabulary,
        "rms_norm_eps": EPS,
        "attention_bias": own.get("attention_bias", False),
        **({"rope_theta": own["rope_theta"]} if "rope_theta" in own else {}),
    }
    named = ("norm_output", "norm_before_residual", "eagle_config", "aux_hidden_state_layer_ids")
    rest = {"draft_vocab_size": tokens, **{key: own[key] for key in named if key in own}}
    if own["width"] != target.hidden_size:
        rest["target_hidden_size"] = target.hidden_size
    if dialect != "speculators":
        return {**layer, **rest, "architectures": ["LlamaForCausalLMEagle3"]}
    verifier = {"verifier": {"name_or_path": f"somebody/{target.directory.name}"}}
    kind = {"speculators_model_type": "eagle3", "speculators_config": verifier}
    return {**kind, **rest, "transformer_layer_config": layer}


def _tensors(own: Mapping[str, Any], target: Checkpoint) -> Weights:
    torch.manual_seed(11)
    width, wide, tokens = own["width"], target.hidden_size, 40

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape) / math.sqrt(shape[-1])

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(size)

    found = {"fc.weight": matrix(width, 3 * wide), "lm_head.weight": matrix(tokens, width)}
    for number in range(own["layers"]):
        at, read = f"layers.{number}.", width * (2 if number == 0 else 1)
        sizes = {"q": HEADS * SIZE, "k": KV * SIZE, "v": KV * SIZE}
        for name, size in sizes.items():
            found[f"{at}self_attn.{name}_proj.weight"] = matrix(size, read)
            if own.get("attention_bias"):
                found[f"{at}self_attn.{name}_proj.bias"] = 0.1 * torch.randn(size)
        found[f"{at}self_attn.o_proj.weight"] = matrix(width, HEADS * SIZE)
        if own.get("attention_bias"):
            found[f"{at}self_attn.o_proj.bias"] = 0.1 * torch.randn(width)
        if own.get("model_type") == "qwen3":
            found |= {f"{at}self_attn.{name}_norm.weight": norm(SIZE) for name in "qk"}
        found |= {f"{at}mlp.{name}_proj.weight": matrix(24, width) for name in ("gate", "up")}
        found[f"{at}mlp.down_proj.weight"] = matrix(width, 24)
        names = ["input_layernorm", "post_attention_layernorm", *["hidden_norm"] * (number == 0)]
        found |= {f"{at}{name}.weight": norm(width) for name in names}
    if own["state_norms"] == "each":
        found |= {f"fc_norm.{place}.weight": norm(wide) for place in range(3)}
    elif own["state_norms"]:
        found["input_norm.weight"] = norm(3 * wide)
    if own.get("norm_output", True):
        found["norm.weight"] = norm(width)
    if width != wide:
        found["embed_tokens.weight"] = matrix(target.vocabulary, width)
    known = torch.randperm(target.vocabulary)[:tokens].sort().values
    found["d2t"] = known - torch.arange(tokens)
    found["t2d"] = torch.zeros(target.vocabulary, dtype=torch.bool).index_fill_(0, known, 1)
    return found


# --- by the formulas -----------------------------------------------------------------------------


class Formulas:
    """A head read from its files again, computed densely from the beginning every time."""

    def __init__(self, weights: Weights, dialect: str, embedding: torch.Tensor) -> None:
        self.weights = {name.replace("midlayer.", "layers.0."): t for name, t in weights.items()}
        self.own = {"layers": 1, "state_norms": "", **DIALECTS[dialect]}
        self.feeds_normed = dialect == "speculators" and self.own.get("norm_output", False)
        self.norms_output = dialect == "speculators" or self.own.get("norm_output", True)
        self.embedding = self.weights.get("embed_tokens.weight", embedding)

    def log_probs(
        self, text: Sequence[int], states: torch.Tensor, path: Sequence[int]
    ) -> torch.Tensor:
        """[vocabulary] behind ``path``, guessed below ``text``; ``states`` [len(text) - 1, 3 width]
        are the target's at all tokens of the text but the last."""
        given = self.joined(states)
        for count in range(len(path) + 1):
            tokens = torch.tensor([*text[1:], *path[:count]])
            behind = self.layers(self.embedding[tokens], given)
            fed = self.norm("norm", behind) if self.feeds_normed else behind
            given = torch.cat((given, fed[-1:]))
        last = self.norm("norm", behind[-1:]) if self.norms_output else behind[-1:]
        own = (last @ self.weights["lm_head.weight"].T)[0].log_softmax(-1)
        found = torch.full((len(self.embedding),), -math.inf)
        found[torch.arange(len(own)) + self.weights["d2t"]] = own
        return found

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS)
        return x * scale * self.weights[f"{name}.weight"]

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        product = x @ self.weights[f"{name}.weight"].T
        return product + self.weights.get(f"{name}.bias", torch.zeros(()))

    def joined(self, states: torch.Tensor) -> torch.Tensor:
        if self.own["state_norms"] == "each":
            parts = states.chunk(3, -1)
            states = torch.cat(
                [self.norm(f"fc_norm.{n}", part) for n, part in enumerate(parts)], -1
            )
        elif self.own["state_norms"]:
            states = self.norm("input_norm", states)
        return self.linear("fc", states)

    def layers(self, embedded: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        normed = self.norm("layers.0.hidden_norm", given)
        read = torch.cat((self.norm("layers.0.input_layernorm", embedded), normed), -1)
        residual = normed if self.own.get("norm_before_residual") else given
        states = self.rest("layers.0", residual, read)
        for number in range(1, self.own["layers"]):
            read = self.norm(f"layers.{number}.input_layernorm", states)
            states = self.rest(f"layers.{number}", states, read)
        return states

    def rest(self, at: str, residual: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        states = residual + self.linear(f"{at}.self_attn.o_proj", self.attention(at, read))
        inner = self.norm(f"{at}.post_attention_layernorm", states)
        gate, up = (self.linear(f"{at}.mlp.{name}_proj", inner) for name in ("gate", "up"))
        return states + self.linear(f"{at}.mlp.down_proj", silu(gate) * up)

    def attention(self, at: str, read: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            self.linear(f"{at}.self_attn.{name}_proj", read).view(len(read), -1, SIZE)
            for name in "qkv"
        )
        if self.own.get("model_type") == "qwen3":
            q = self.norm(f"{at}.self_attn.q_norm", q)
            k = self.norm(f"{at}.self_attn.k_norm", k)
        q, k = self.turned(q), self.turned(k)
        k, v = (each.repeat_interleave(HEADS // KV, 1) for each in (k, v))
        turned = (each.transpose(0, 1)[None] for each in (q, k, v))
        found = scaled_dot_product_attention(*turned, is_causal=True)[0]
        return found.transpose(0, 1).reshape(len(read), -1)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate each pair (i, i + size / 2) of [n, heads, size] by its position's angle."""
        half = SIZE // 2
        speeds = self.own.get("rope_theta", 10_000.0) ** -(torch.arange(half) * 2 / SIZE)
        angles = torch.outer(torch.arange(len(x)).float(), speeds)[:, None]
        low, high = x[..., :half], x[..., half:]
        return torch.cat(
            (
                low * angles.cos() - high * angles.sin(),
                high * angles.cos() + low * angles.sin(),
            ),
            -1,
        )
