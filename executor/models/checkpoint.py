"""Reading a Hugging Face checkpoint directory tensor by tensor; no module holds weights here.

Every fault of the directory raises a ``UserError`` that names the file and the key or the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.executor.models.shards import open_shard, readable, shards_of
from treepipe.executor.models.supported import (
    INSTEAD,
    end_tokens,
    generation_warnings,
    head_size,
    max_positions,
    read_config,
    reason_of,
)
from treepipe.files.reading import read_json

DTYPES = ("F16", "BF16", "F32", "F64")
"""Weight types that can be read, by safetensors' names; quantized ones have others."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, whose tensors are read on demand.

    Attributes:
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
        """Open a directory. Raises ``UserError`` if it is incomplete or not supported."""
        for file in [directory, *directory.glob("*.gguf")]:
            if file.suffix == ".gguf" and not (directory / "config.json").exists():
                raise UserError(f"{file}: {INSTEAD}")
        if not directory.is_dir():
            raise UserError(f"{directory}: there is no such checkpoint directory")
        config, named = read_config(directory / "config.json")
        shards = shards_of(directory)
        checkpoint = cls(directory, config, named, shards)
        checkpoint._check_complete()
        end_tokens(directory)  # raises now, not in the middle of a run
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
    def embedding_parameters(self) -> int:
        """Number of parameters of the embedding, and of the output projection."""
        return self.vocabulary * self.hidden_size

    @property
    def kv_parameters(self) -> int:
        """Size of one token's keys and values in one layer."""
        return 2 * int(self.config.num_key_value_heads) * head_size(self.config)

    @property
    def layer_parameters(self) -> int:
        """Number of parameters of a layer; a model's layers are equal."""
        from treepipe.executor.models.families import layer_shapes

        return sum(map(math.prod, layer_shapes(self.architecture, self.config).values()))

    @property
    def max_positions(self) -> int:
        from treepipe.executor.models.families import FAMILIES

        return max_positions(self.config, FAMILIES[self.architecture])

    @property
    def end_tokens(self) -> frozenset[int]:
        return end_tokens(self.directory)

    @property
    def warnings(self) -> list[str]:
        """Settings of the checkpoint that are not applied."""
        return generation_warnings(self.directory)

    @property
    def tied(self) -> bool:
        """Whether the output projection is the embedding."""
        return "lm_head.weight" not in self.shards

    def tensors(self, prefix: str) -> dict[str, Any]:
        """Read the tensors below ``prefix``, as ``read_tensors``."""
        return read_tensors(self.shards, prefix)

    def _check_complete(self) -> None:
        """Check that the files hold exactly the config's tensors, in their shapes."""
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
        for name, shape in self._held().items():
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
        """Shape by name of every tensor that the config requires."""
        from treepipe.executor.models.families import layer_shapes

        ends: tuple[int, ...] = (self.vocabulary, self.hidden_size)
        shapes = {"model.embed_tokens.weight": ends, "model.norm.weight": (self.hidden_size,)}
        if not self.tied:
            shapes["lm_head.weight"] = ends
        try:
            layer = layer_shapes(self.architecture, self.config)
        except Exception as error:  # transformers builds any sizes of the config
            raise UserError(f"{self._config_path}: is not usable: {reason_of(error)}") from None
        for number in range(self.layers):
            shapes.update({f"model.layers.{number}.{name}": each for name, each in layer.items()})
        return shapes

    def _held(self) -> dict[str, tuple[int, ...]]:
        """Shape by name of the model's tensors in the files' headers."""
        found: dict[str, tuple[int, ...]] = {}
        for name, shard, file in _opened(self.shards, ("model.", "lm_head.")):
            tensor = file.get_slice(name)
            if tensor.get_dtype() not in DTYPES:
                raise UserError(
                    f"{shard}: tensor {name} holds {tensor.get_dtype()} values; "
                    f"supported are {', '.join(DTYPES)}"
                )
            found[name] = tuple(tensor.get_shape())
        return found


def read_tensors(shards: Mapping[str, Path], prefix: str = "") -> dict[str, Any]:
    """Read the tensors below ``prefix``, by the rest of their name.

    Raises:
        UserError: a value is NaN or infinite.
    """
    found: dict[str, Any] = {}
    for name, shard, file in _opened(shards, (prefix,)):
        with readable(shard):
            found[name.removeprefix(prefix)] = tensor = file.get_tensor(name)
        check_finite(shard, name, tensor)
    return found


def _opened(
    shards: Mapping[str, Path], prefixes: tuple[str, ...]
) -> Iterator[tuple[str, Path, Any]]:
    """Yield name, path and open file of these tensors; each file is opened once."""
    names = [name for name in shards if name.startswith(prefixes)]
    for shard in sorted({shards[name] for name in names}):
        with open_shard(shard) as file:
            yield from ((name, shard, file) for name in names if shards[name] == shard)


def check_finite(file: Path, name: str, tensor: Any) -> None:
    """Raise ``UserError`` if a value is NaN or infinite, in one pass without a copy."""
    low, high = (float(end) for end in tensor.aminmax())  # NaN if any value is
    if not (math.isfinite(low) and math.isfinite(high)):
        what = "no number (NaN)" if math.isnan(low) else "infinite"
        raise UserError(f"{file}: tensor {name} holds a value that is {what}")


def check_same_vocabulary(target: Checkpoint, draft: Checkpoint) -> None:
    """Raise ``UserError`` unless both models give each token id the same meaning."""
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
