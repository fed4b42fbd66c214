"""What is measured: the models that the command line names, opened and checked.

A checkpoint directory is read; a ``config.json`` gets random weights, since times do not depend on
what the weights are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from treepipe.errors import UserError
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.random_weights import RandomCheckpoint
from treepipe.profiles.library import REFERENCE, load_model
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
    """Args: ``model``, ``draft``: "reference", a checkpoint directory, or a ``config.json``.

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
    if path.is_dir():
        config, checkpoint = path / "config.json", Checkpoint.open(path)
    elif path.suffix == ".json":
        config, checkpoint = path, RandomCheckpoint.from_config(path, dtype, device)
    else:
        raise UserError(
            f"{option} {named}: is neither a checkpoint directory nor a config.json, "
            f"nor 'reference'"
        )
    name = (
        named if named == "reference" else (path if path.is_dir() else path.parent).resolve().name
    )
    profile = load_model(config)
    shape = Shape.model_validate(profile.model_dump(include=set(Shape.model_fields)))
    return NamedModel(name, shape, checkpoint)
