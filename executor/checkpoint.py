"""Reading a Hugging Face checkpoint directory, tensor by tensor; no module holds weights here.

Every fault of the directory ends in a ``UserError`` that names the file and the key or the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from treepipe.core.errors import UserError
from treepipe.executor.supported import (
    end_tokens,
    generation_warnings,
    head_size,
    max_positions,
    read_config,
    reason_of,
)
from treepipe.files.json_file import read_json

DTYPES = ("F16", "BF16", "F32", "F64")
"""Types of weights, as safetensors names them; what is quantized has others."""
INDEX = "model.safetensors.index.json"
"""Of a checkpoint in several files, which file holds which tensor."""
IGNORED = "rotary_emb.inv_freq"
"""Buffers that old checkpoints hold; transformers computes them itself."""


@dataclass(frozen=True, slots=True)
class CheckpointSource:
    """What a process is told of a checkpoint, to open it by itself.

    Attributes:
        directory: where it is.
    """

    directory: Path

    def open(self) -> Checkpoint:
        """Raises ``UserError`` as ``Checkpoint.open``."""
        return Checkpoint.open(self.directory)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files were found complete; tensors are read when they are asked for.

    Attributes:
        directory: where it is.
        config: the model's configuration (a transformers ``PreTrainedConfig``).
        architecture: one of ``families.FAMILIES``.
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
        shards = shards_of(directory)
        checkpoint = cls(directory, config, named, shards)
        checkpoint._check_complete()
        end_tokens(directory)  # its faults are named here, not in the middle of a run
        return checkpoint

    @property
    def source(self) -> CheckpointSource:
        """What another process opens the same with."""
        return CheckpointSource(self.directory)

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
    def embedding_parameters(self) -> int:
        """Weights of the embedding; the output projection has as many."""
        return self.vocabulary * self.hidden_size

    @property
    def kv_parameters(self) -> int:
        """Numbers that keys and values of one token hold in one layer."""
        return 2 * int(self.config.num_key_value_heads) * head_size(self.config)

    @property
    def layer_parameters(self) -> int:
        """Weights of a layer; all layers of a model have as many."""
        from treepipe.executor.families import layer_shapes

        return sum(map(math.prod, layer_shapes(self.architecture, self.config).values()))

    @property
    def max_positions(self) -> int:
        """Positions that a text can take."""
        return max_positions(self.config)

    @property
    def end_tokens(self) -> frozenset[int]:
        """Any of these ends a text."""
        return end_tokens(self.directory)

    @property
    def warnings(self) -> list[str]:
        """What the checkpoint asks for and does not get."""
        return generation_warnings(self.directory)

    @property
    def tied(self) -> bool:
        """Whether the output projection is the embedding."""
        return "lm_head.weight" not in self.shards

    def tensors(self, prefix: str) -> dict[str, Any]:
        """All tensors below ``prefix``, by the rest of their name; only these are read.

        Raises:
            UserError: one of them holds a value that is no number, or an infinite one.
        """
        wanted = [name for name in self.shards if name.startswith(prefix)]
        found: dict[str, Any] = {}
        for shard in sorted({self.shards[name] for name in wanted}):
            with open_shard(shard) as file:
                for name in wanted:
                    if self.shards[name] == shard:
                        found[name.removeprefix(prefix)] = file.get_tensor(name)
                        check_finite(shard, name, found[name.removeprefix(prefix)])
        return found

    def _check_complete(self) -> None:
        """Every tensor that the config asks for is there, in its shape, and no other.

        Where sizes disagree, the keys that say so are named first.
        """
        layer = f"model.layers.{self.layers}."
        if any(name.startswith(layer) for name in self.shards):
            raise UserError(
                f"{self._config_path}: key num_hidden_layers = {self.layers}, but the weights hold "
                f"further layers"
            )
        if self.tied and not self.config.tie_word_embeddings:
            raise UserError(
                f"{self.directory}: the weights are incomplete, tensor lm_head.weight is missing "
                f"(config.json: tie_word_embeddings = false)"
            )
        expected = self._expected()
        for name in expected:
            if name not in self.shards:
                raise UserError(
                    f"{self.directory}: the weights are incomplete, tensor {name} is missing"
                )
        shapes = self._held()
        self._check_sizes(shapes)
        for name, shape in shapes.items():
            if name not in expected:
                raise UserError(f"{self._config_path}: has no place for the weights' tensor {name}")
            if shape != expected[name]:
                raise UserError(
                    f"{self._config_path}: asks for tensor {name} in shape {expected[name]}, but "
                    f"{self.shards[name].name} holds it in shape {shape}"
                )

    @property
    def _config_path(self) -> Path:
        return self.directory / "config.json"

    def _expected(self) -> dict[str, tuple[int, ...]]:
        """Shape by name of every tensor that the config asks for."""
        from treepipe.executor.families import layer_shapes

        ends: tuple[int, ...] = (self.vocabulary, self.hidden_size)
        shapes = {"model.embed_tokens.weight": ends, "model.norm.weight": (self.hidden_size,)}
        if not self.tied:
            shapes["lm_head.weight"] = ends
        try:
            layer = layer_shapes(self.architecture, self.config)
        except Exception as error:  # transformers builds what the config says, whatever it is
            raise UserError(f"{self._config_path}: is not usable: {reason_of(error)}") from None
        for number in range(self.layers):
            shapes.update({f"model.layers.{number}.{name}": each for name, each in layer.items()})
        return shapes

    def _held(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor of the model's by name, as the files' headers say."""
        ours = [name for name in self.shards if name.startswith(("model.", "lm_head."))]
        found: dict[str, tuple[int, ...]] = {}
        for shard in sorted({self.shards[name] for name in ours}):
            with open_shard(shard) as file:
                for name in ours:
                    if self.shards[name] == shard:
                        tensor = file.get_slice(name)
                        if tensor.get_dtype() not in DTYPES:
                            raise UserError(
                                f"{shard}: tensor {name} holds {tensor.get_dtype()} values; "
                                f"supported are {', '.join(DTYPES)}"
                            )
                        found[name] = tuple(tensor.get_shape())
        return found

    def _check_sizes(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Name the keys of the config where they disagree with the first layer and the ends."""
        config, layer = self.config, "model.layers.0."
        said: list[tuple[str, str, tuple[int, ...]]] = [
            (
                "model.embed_tokens.weight",
                "vocab_size and hidden_size",
                (self.vocabulary, self.hidden_size),
            ),
            (
                f"{layer}mlp.down_proj.weight",
                "hidden_size and intermediate_size",
                (self.hidden_size, int(config.intermediate_size)),
            ),
        ]
        for projection, key in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
            tensor = f"{layer}self_attn.{projection}_proj.weight"
            rows = int(getattr(config, key)) * head_size(config)
            said.append((tensor, f"{key}, head_dim and hidden_size", (rows, self.hidden_size)))
        for tensor, keys, wanted in said:
            if shapes[tensor] != wanted:
                raise UserError(
                    f"{self._config_path}: keys {keys} say {wanted}, but tensor {tensor} has shape "
                    f"{shapes[tensor]}"
                )


def check_finite(file: Path, name: str, tensor: Any) -> None:
    """Raises ``UserError`` if a value is no number, or infinite: one pass, nothing is copied."""
    low, high = (float(end) for end in tensor.aminmax())  # NaN if any value is
    if not (math.isfinite(low) and math.isfinite(high)):
        what = "no number (NaN)" if math.isnan(low) else "infinite"
        raise UserError(f"{file}: tensor {name} holds a value that is {what}")


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
    if not path.exists():
        return None
    model = read_json(path).get("model")
    return model.get("vocab") if isinstance(model, dict) else None


def shards_of(directory: Path, other: str = INDEX) -> dict[str, Path]:
    """File by tensor name; every file was opened once, and holds what it should.

    Args: ``other``: what an error says could be there instead of ``model.safetensors``.
    """
    index = directory / INDEX
    single = directory / "model.safetensors"
    if index.exists():
        return _indexed(index)
    if not single.exists():
        raise UserError(f"{directory}: holds neither {single.name} nor {other}")
    with open_shard(single) as file:
        return {name: single for name in file.keys() if not name.endswith(IGNORED)}  # noqa: SIM118


def _indexed(index: Path) -> dict[str, Path]:
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(v, str) for v in weights.values()):
        raise UserError(f"{index}: key weight_map must map tensors' names to files")
    names = {
        name: index.parent / file for name, file in weights.items() if not name.endswith(IGNORED)
    }
    for shard in sorted(set(names.values())):
        if not shard.exists():
            raise UserError(f"{index}: names {shard.name}, which is missing")
        with open_shard(shard) as file:
            held = set(file.keys())
        for name, place in names.items():
            if place == shard and name not in held:
                raise UserError(f"{index}: names tensor {name} in {shard.name}, which lacks it")
    return names


@contextmanager
def open_shard(path: Path) -> Iterator[Any]:
    """A file of tensors. Raises ``UserError`` if it cannot be read, or is cut off."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
