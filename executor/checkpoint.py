"""Reading a Hugging Face checkpoint directory, tensor by tensor; no module is built here.

Every fault of the directory ends in a ``UserError`` that names the file and the key.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from treepipe.errors import UserError
from treepipe.json_file import read_json

ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
"""Supported architectures, as ``config.json`` names them."""
PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.o_proj", "mlp.down_proj")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were found complete; tensors are read when they are asked for.

    Attributes:
        directory: where it is.
        config: the model's configuration (a transformers ``PreTrainedConfig``).
        architecture: one of ``ARCHITECTURES``.
        shards: file per tensor name.
    """

    directory: Path
    config: Any
    architecture: str
    shards: dict[str, Path]

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Raises ``UserError`` if anything is missing or of an unsupported architecture."""
        if not directory.is_dir():
            raise UserError(f"{directory}: there is no such checkpoint directory")
        config, named = read_config(directory / "config.json")
        checkpoint = cls(directory, config, named, _shards(directory))
        checkpoint._check_complete()
        return checkpoint

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token in one layer, in float32."""
        config = self.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * 4 * int(config.num_key_value_heads) * int(size)

    @property
    def layer_bytes(self) -> int:
        """Weights of the first layer, in float32."""
        names = [name for name in self.shards if name.startswith("model.layers.0.")]
        total = 0
        for name in names:
            with safe_open(self.shards[name], framework="pt") as file:
                total += 4 * math.prod(file.get_slice(name).get_shape())
        return total

    @property
    def max_positions(self) -> int:
        """Positions that can be attended to in full (a sliding window limits them)."""
        window = getattr(self.config, "sliding_window", None)
        slides = "sliding_attention" in (getattr(self.config, "layer_types", None) or [])
        limited = window if window and (slides or "Mistral" in self.architecture) else None
        return int(min(self.config.max_position_embeddings, limited or 2**62))

    @property
    def tied(self) -> bool:
        """Whether the output projection is the embedding."""
        return "lm_head.weight" not in self.shards

    def tensors(self, prefix: str) -> dict[str, Any]:
        """All tensors below ``prefix``, by the rest of their name; only these are read."""
        wanted = [name for name in self.shards if name.startswith(prefix)]
        found: dict[str, Any] = {}
        for shard in sorted({self.shards[name] for name in wanted}):
            with safe_open(shard, framework="pt") as file:
                for name in wanted:
                    if self.shards[name] == shard:
                        found[name.removeprefix(prefix)] = file.get_tensor(name)
        return found

    def _check_complete(self) -> None:
        needed = ["model.embed_tokens.weight", "model.norm.weight"]
        needed += [
            f"model.layers.{layer}.{part}.weight"
            for layer in range(self.layers)
            for part in (*PROJECTIONS, "input_layernorm")
        ]
        for name in needed:
            if name not in self.shards:
                raise UserError(
                    f"{self.directory}: the weights are incomplete, tensor {name} is missing"
                )
        beyond = f"model.layers.{self.layers}."
        if any(name.startswith(beyond) for name in self.shards):
            raise UserError(
                f"{self.directory / 'config.json'}: key num_hidden_layers = {self.layers}, but the "
                f"weights hold further layers"
            )
        self._check_shape("model.embed_tokens.weight", "vocab_size", "hidden_size")
        self._check_shape("model.layers.0.mlp.down_proj.weight", "hidden_size", "intermediate_size")
        self._check_heads()

    def _check_shape(self, tensor: str, *keys: str) -> None:
        said = tuple(int(getattr(self.config, key)) for key in keys)
        self._check_said(tensor, " and ".join(keys), said)

    def _check_heads(self) -> None:
        config, attention = self.config, "model.layers.0.self_attn"
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        for projection, key in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            said = (int(getattr(config, key)) * int(size), self.hidden_size)
            keys = f"{key}, head_dim and hidden_size"
            self._check_said(f"{attention}.{projection}_proj.weight", keys, said)

    def _check_said(self, tensor: str, keys: str, said: tuple[int, ...]) -> None:
        with safe_open(self.shards[tensor], framework="pt") as file:
            shape = tuple(file.get_slice(tensor).get_shape())
        if shape != said:
            raise UserError(
                f"{self.directory / 'config.json'}: keys {keys} say {said}, but tensor {tensor} "
                f"has shape {shape}"
            )


def read_config(path: Path) -> tuple[Any, str]:
    """A ``config.json`` as a transformers configuration, and its architecture.

    Raises:
        UserError: it cannot be read, or its architecture is not supported.
    """
    named = (read_json(path).get("architectures") or ["none"])[0]
    if named not in ARCHITECTURES:
        raise UserError(
            f"{path}: key architectures = {named!r} is not supported; "
            f"supported are {', '.join(ARCHITECTURES)}"
        )
    return _config(path), named


def check_shapes(
    directory: Path, prefix: str, found: Mapping[str, Any], expected: Mapping[str, Sequence[int]]
) -> None:
    """Raises ``UserError`` unless the tensors below ``prefix`` are what the config asks for."""
    for name in sorted({*found, *expected}):
        if name not in found:
            raise UserError(
                f"{directory}: the weights are incomplete, tensor {prefix}{name} is missing"
            )
        if name not in expected:
            raise UserError(
                f"{directory / 'config.json'}: has no place for the weights' tensor {prefix}{name}"
            )
        wanted, shape = tuple(expected[name]), tuple(found[name].shape)
        if wanted != shape:
            raise UserError(
                f"{directory / 'config.json'}: asks for tensor {prefix}{name} in shape {wanted}, "
                f"but the weights hold it in shape {shape}"
            )


def check_same_vocabulary(target: Checkpoint, draft: Checkpoint) -> None:
    """Raises ``UserError`` unless the two agree on what each token id means."""
    if target.vocabulary != draft.vocabulary:
        raise UserError(
            f"{draft.directory / 'config.json'}: key vocab_size = {draft.vocabulary} differs from "
            f"the target's {target.vocabulary}; draft and target must share a vocabulary"
        )
    ours, theirs = (_vocabulary(each.directory) for each in (target, draft))
    if ours is not None and theirs is not None and ours != theirs:
        raise UserError(
            f"{draft.directory / 'tokenizer.json'}: the vocabulary differs from the target's "
            f"({target.directory / 'tokenizer.json'})"
        )


def _vocabulary(directory: Path) -> Any:
    path = directory / "tokenizer.json"
    return read_json(path).get("model", {}).get("vocab") if path.exists() else None


def _config(path: Path) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:  # transformers raises many kinds for a config it cannot read
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: is not usable: {reason}") from None
    config._attn_implementation = "sdpa"
    return config


def _shards(directory: Path) -> dict[str, Path]:
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if index.exists():
        names = {name: directory / file for name, file in read_json(index)["weight_map"].items()}
        for shard in sorted(set(names.values())):
            if not shard.exists():
                raise UserError(f"{index}: names {shard.name}, which is missing")
        return names
    if not single.exists():
        raise UserError(f"{directory}: holds neither {single.name} nor {index.name}")
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{single}: cannot be read: {error}") from None
