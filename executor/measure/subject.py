"""The models to measure, named on the command line, opened and checked.

A ``config.json`` or a model profile gets random weights, since times do not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treepipe.core.errors import UserError
from treepipe.executor.measure.work import LAYERS, Bench
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.families import AutoConfig, layer_shapes
from treepipe.executor.models.supported import read_config
from treepipe.profiles.library import LIBRARY, REFERENCE, load_model, profile_names
from treepipe.profiles.shapes import Shape

SPREAD = 0.02
"""Standard deviation of the weights: small, so that no state overflows in 16 bits."""


@dataclass(frozen=True)
class RandomCheckpoint(Checkpoint):
    """A checkpoint that makes random tensors on ``device`` at each read."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @classmethod
    def from_config(
        cls, path: Path, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> RandomCheckpoint:
        """Read a ``config.json``. Raises ``UserError`` if it is not usable."""
        config, architecture = read_config(path)
        return cls(path.parent, config, architecture, {}, device=device, dtype=dtype)

    @classmethod
    def from_shape(
        cls, name: str, shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> RandomCheckpoint:
        """Build a model of these sizes, which determine its family; it has no directory."""
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
            name.removeprefix(prefix): torch.empty(
                shape, dtype=self.dtype, device=self.device
            ).normal_(0.0, SPREAD)
            for name, shape in self._shapes(prefix)
            if name.startswith(prefix)
        }

    def _shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the shapes of the ends, and of the layer that ``prefix`` names."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden_size)
        yield "lm_head.weight", (self.vocabulary, self.hidden_size)
        yield "model.norm.weight", (self.hidden_size,)
        if prefix.startswith("model.layers."):
            number = int(prefix.split(".")[2])
            for name, shape in layer_shapes(self.architecture, self.config).items():
                yield f"model.layers.{number}.{name}", shape


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model's name in profiles, its sizes, and the source of its tensors."""

    name: str
    shape: Shape
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Subject:
    """A target, of which a block of layers is timed, and a draft if its passes are timed."""

    target: NamedModel
    draft: NamedModel | None
    layers: int


def open_subject(model: str, draft: str | None, bench: Bench) -> Subject:
    """Open the models. Raises ``UserError`` if one is missing or contradicts itself."""
    if draft is None and model == "reference":
        draft = "reference"
    target = open_model(model, "target", "--model", bench.dtype, bench.device)
    small = None
    if draft is not None:
        small = open_model(draft, "draft", "--draft", bench.dtype, bench.device)
    layers, most = bench.points.layers, target.shape.layers
    if layers is not None and layers > most:
        raise UserError(f"--set layers={layers}: {target.name} has {most} layers")
    return Subject(target, small, layers or min(LAYERS, most))


def open_model(
    named: str, role: str, option: str, dtype: torch.dtype, device: str = "cpu"
) -> NamedModel:
    """Open a model by its path or its profile's name; "reference" is the bundled one of a role."""
    path = REFERENCE / role if named == "reference" else Path(named)
    name, checkpoint = named, None
    if path.is_dir():
        checkpoint, shape = Checkpoint.open(path), _shape(path / "config.json")
        name = named if named == "reference" else path.resolve().name
    elif path.suffix == ".json":
        checkpoint, shape = RandomCheckpoint.from_config(path, dtype, device), _shape(path)
        name = path.resolve().parent.name if path.stem == "config" else path.stem
    elif named in profile_names("models"):
        shape = _shape(LIBRARY / "models" / f"{named}.toml")
    else:
        raise UserError(
            f"{option} {named}: is neither a checkpoint directory nor a config.json, nor a model "
            f"profile (treepipe profiles lists them), nor 'reference'"
        )
    if shape.eagle or shape.inputs:
        raise UserError(f"{option} {named}: is an EAGLE head, which is no model of its own")
    if checkpoint is None and (shape.experts is not None or shape.kinds):
        what = "has several kinds of layers" if shape.experts is None else "is a mixture of experts"
        raise UserError(f"{option} {named}: {what}; give its checkpoint or its config.json")
    if checkpoint is None:
        checkpoint = RandomCheckpoint.from_shape(name, shape, dtype, device)
    return NamedModel(name, shape, checkpoint)


def _shape(path: Path) -> Shape:
    return Shape.model_validate(load_model(path).model_dump(include=set(Shape.model_fields)))
