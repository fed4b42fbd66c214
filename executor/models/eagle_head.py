"""The EAGLE head as a module, and its published checkpoint layout.

EAGLE-1 and -2, section 4: ``fc`` joins a token's embedding with the target's final state at the
position before it, one decoder layer predicts the state at this position, and the target's own
output projection reads tokens off it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from treepipe.core.errors import UserError
from treepipe.executor.models.checkpoint import Checkpoint, check_finite, read_tensors
from treepipe.executor.models.families import FAMILIES, fixed_rotary
from treepipe.executor.models.packed import pack
from treepipe.executor.models.shards import IGNORED, PICKLED, shards_of
from treepipe.executor.models.supported import config_of, reason_of
from treepipe.files.reading import read_json

FAMILY = "LlamaForCausalLM"
"""Architecture of the head's layer, for any target."""


class EagleHead(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """``fc`` and one decoder layer; embedding and output projection are the target's."""

    def __init__(self, config: Any, *, bias: bool, input_norm: bool) -> None:
        """Build the module; published heads have no norm on the layer's input."""
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)
        layer = FAMILIES[FAMILY].layer(config, 0)
        if not input_norm:
            layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])
        self.rotary = fixed_rotary(FAMILY, config)

    def forward(self, states: torch.Tensor, **rest: Any) -> torch.Tensor:
        """Predict final states [batch, n, hidden].

        Args:
            states: [batch, n, 2 hidden] embeddings of the tokens, each joined with the final state
                at the position before it.
            rest: the other arguments of a decoder layer.
        """
        result: torch.Tensor = self.layers[0](self.fc(states), **rest)
        return result


def load_head(
    directory: Path,
    target: Checkpoint,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[EagleHead, torch.Tensor | None]:
    """Load a head and its own embedding, if the checkpoint holds one. Raises ``UserError``.

    ``config.json`` is a Llama configuration of one layer; the weights are ``model.safetensors`` or
    ``pytorch_model.bin`` with ``fc.weight``, perhaps ``fc.bias``, and ``layers.0.*``.
    """
    config, tensors = _config(directory, target), read_head_tensors(directory)
    embedding = tensors.pop("embed_tokens.weight", None)
    if "fc.weight" not in tensors:
        raise UserError(f"{directory}: is no EAGLE head, tensor fc.weight is missing")
    head = EagleHead(
        config,
        bias="fc.bias" in tensors,
        input_norm="layers.0.input_layernorm.weight" in tensors,
    )
    if embedding is not None and embedding.shape != (target.vocabulary, target.hidden_size):
        raise UserError(
            f"{directory}: tensor embed_tokens.weight has shape {tuple(embedding.shape)}, "
            f"the target's is {(target.vocabulary, target.hidden_size)}"
        )
    load_module(head, tensors, directory, dtype, device)
    pack(head)
    return head, None if embedding is None else embedding.to(device, dtype)


def load_module(
    head: Any,
    tensors: Mapping[str, torch.Tensor],
    directory: Path,
    dtype: torch.dtype,
    device: str,
) -> None:
    """Give a head its weights. Raises ``UserError`` if one is missing or has another shape than
    ``config.json`` says."""
    wanted = {name: tensor.shape for name, tensor in head.state_dict().items()}
    for name, shape in wanted.items():
        if name not in tensors:
            raise UserError(f"{directory}: the weights are incomplete, tensor {name} is missing")
        if tensors[name].shape != shape:
            raise UserError(
                f"{directory}: tensor {name} has shape {tuple(tensors[name].shape)}, "
                f"config.json wants {tuple(shape)}"
            )
    read = {name: tensors[name].to(device, dtype) for name in wanted}
    head.load_state_dict(read, assign=True)  # the rotary embedding's frequencies stay in float32
    head.rotary.to(device)
    head.eval().requires_grad_(False)


def check_sizes(path: Path, config: Any, target: Checkpoint) -> None:
    """Raise ``UserError`` if a draft's states or tokens are not those of the target."""
    for key, size in (("hidden_size", target.hidden_size), ("vocab_size", target.vocabulary)):
        if getattr(config, key) != size:
            raise UserError(
                f"{path}: key {key} = {getattr(config, key)} differs from the target's {size}"
            )


def _config(directory: Path, target: Checkpoint) -> Any:
    from transformers import LlamaConfig

    path = directory / "config.json"
    content = read_json(path)
    config = config_of(path, lambda: LlamaConfig(**{**content, "num_hidden_layers": 1}))
    check_sizes(path, config, target)
    return config


def read_head_tensors(directory: Path) -> dict[str, torch.Tensor]:
    """Read a head's weights. Raises ``UserError`` if they are unreadable or not finite."""
    pickled = directory / PICKLED
    if (directory / "model.safetensors").exists() or not pickled.exists():
        return read_tensors(shards_of(directory, pickled.name))
    tensors = _unpickled(pickled)
    for name, tensor in tensors.items():
        check_finite(pickled, name, tensor)
    return tensors


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # the loader raises many kinds
        raise UserError(f"{path}: cannot be read: {reason_of(error)}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold tensors by name")
    found = {name: each for name, each in content.items() if not name.endswith(IGNORED)}
    return {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}
