"""A checkpoint of which only the sizes are known: its tensors are random, of the right shapes.

Times do not depend on what the weights are, so that a device can be measured without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.families import AutoConfig, layer_shapes
from treepipe.executor.supported import read_config
from treepipe.profiles.shapes import Shape

SPREAD = 0.02
"""Standard deviation of the weights: small, so that no state overflows in 16 bits."""


@dataclass(frozen=True)
class RandomCheckpoint(Checkpoint):
    """Tensors are made anew, and on ``device``, whenever they are asked for."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @classmethod
    def from_config(
        cls, path: Path, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> RandomCheckpoint:
        """Args: ``path``: of a ``config.json``. Raises ``UserError`` if it is not usable."""
        config, architecture = read_config(path)
        return cls(path.parent, config, architecture, {}, device=device, dtype=dtype)

    @classmethod
    def from_shape(
        cls, name: str, shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> RandomCheckpoint:
        """A model that is known by its sizes alone; how its layers are built follows from them.

        Args: ``name``: what the model is called, in place of a directory.
        """
        family = "Qwen3" if shape.query_norm else "Qwen2" if shape.attention_bias else "Llama"
        config = AutoConfig.for_model(
            family.lower(),
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            vocab_size=shape.vocabulary,
            tie_word_embeddings=shape.tied,
        )
        config._attn_implementation = "sdpa"
        return cls(Path(name), config, f"{family}ForCausalLM", {}, device=device, dtype=dtype)

    @property
    def tied(self) -> bool:
        return bool(self.config.tie_word_embeddings)

    def tensors(self, prefix: str) -> dict[str, Any]:
        return {
            name.removeprefix(prefix): self._random(shape)
            for name, shape in self._shapes(prefix)
            if name.startswith(prefix)
        }

    def _random(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device).normal_(0.0, SPREAD)

    def _shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Shapes of the ends, and of the layer that ``prefix`` names."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden_size)
        yield "lm_head.weight", (self.vocabulary, self.hidden_size)
        yield "model.norm.weight", (self.hidden_size,)
        if prefix.startswith("model.layers."):
            number = int(prefix.split(".")[2])
            for name, shape in layer_shapes(self.architecture, self.config).items():
                yield f"model.layers.{number}.{name}", shape
