"""What is measured: the models that the command line names, opened and checked.

A checkpoint directory is read; a ``config.json`` or a model profile gets random weights, since
times do not depend on what the weights are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from treepipe.core.errors import UserError
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.measure.random_weights import RandomCheckpoint
from treepipe.profiles.library import LIBRARY, REFERENCE, load_model, profile_names
from treepipe.profiles.shapes import Shape

LAYERS = 4
"""Of the block that is timed, unless the model has fewer or others are asked for."""


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model as profiles name it, its sizes, and where its tensors come from."""

    name: str
    shape: Shape
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes:
        draft: None without draft passes.
        layers: of the target's block.
    """

    target: NamedModel
    draft: NamedModel | None
    layers: int


def open_subject(
    model: str, draft: str | None, layers: int | None, dtype: torch.dtype, device: str
) -> Subject:
    """Args:
        model, draft: "reference", a checkpoint directory, a ``config.json``, or the name of a
            model profile.

    Raises:
        UserError: there is no such thing, or it is not what it says it is.
    """
    if draft is None and model == "reference":
        draft = "reference"
    target = open_model(model, "target", "--model", dtype, device)
    small = None if draft is None else open_model(draft, "draft", "--draft", dtype, device)
    most = target.shape.layers
    if layers is not None and layers > most:
        raise UserError(f"--layers {layers}: {target.name} has {most} layers")
    return Subject(target, small, layers or min(LAYERS, most))


def open_model(
    named: str, role: str, option: str, dtype: torch.dtype, device: str = "cpu"
) -> NamedModel:
    """Args: ``role``: of the bundled pair's, "target" or "draft"; others as ``open_subject``."""
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
    if shape.eagle:
        raise UserError(f"{option} {named}: is an EAGLE head, which is no model of its own")
    if checkpoint is None:
        checkpoint = RandomCheckpoint.from_shape(name, shape, dtype, device)
    return NamedModel(name, shape, checkpoint)


def _shape(path: Path) -> Shape:
    return Shape.model_validate(load_model(path).model_dump(include=set(Shape.model_fields)))
