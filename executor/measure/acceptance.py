"""Measuring acceptance: target and draft over prompts -> a recorded pool and its profile.

What is recorded, and how, is in ``calibration.py`` and ``head_calibration.py``.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treepipe.core.errors import UserError
from treepipe.executor.checkpoint import check_same_vocabulary
from treepipe.executor.eagle import EagleDraft
from treepipe.executor.measure.calibration import growing_pool
from treepipe.executor.measure.head_calibration import growing_head_pool
from treepipe.executor.measure.random_weights import RandomCheckpoint
from treepipe.executor.measure.subject import NamedModel, open_model
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.profiles.library import REFERENCE
from treepipe.profiles.schema import AcceptanceProfile, Origin


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Who guesses whom, and on what.

    Attributes:
        draft: the model that drafts, None for a head.
        head: directory of an EAGLE head, None for a model.
        prompts: token ids.
    """

    target: NamedModel
    draft: NamedModel | None
    head: Path | None
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int

    @property
    def draft_name(self) -> str:
        if self.draft is not None:
            return self.draft.name
        assert self.head is not None
        return "reference" if self.head == REFERENCE / "eagle" else self.head.resolve().name

    def pools(self, seed: int) -> Iterator[dict[str, Any]]:
        """The pool file's content after every prompt."""
        target = self.target.checkpoint
        ends = target.end_tokens
        if self.draft is not None:
            draft = self.draft.checkpoint
            return growing_pool(target, draft, self.prompts, self.new_tokens, ends, seed)
        assert self.head is not None
        capacity = 2 * (max(map(len, self.prompts)) + self.new_tokens)
        head = EagleDraft(self.head, target, capacity)
        return growing_head_pool(
            target, head, self.draft_name, self.prompts, self.new_tokens, ends, seed
        )


def open_pair(
    model: str, draft: str | None, head: str | None, prompts: str, new_tokens: int
) -> ModelPair:
    """Args: ``model``, ``draft``: "reference" or checkpoint directories; ``head``: the same for an
    EAGLE head, instead of a draft; ``prompts``: see ``prompts.load_texts``.

    Raises:
        UserError: they cannot be read, or do not fit together.
    """
    if head is not None and draft is not None:
        raise UserError("--draft and --head: give one of them, not both")
    target = _with_weights(model, "target", "--model")
    small = None if head is not None else _with_weights(draft or "reference", "draft", "--draft")
    models = [target.checkpoint, *([] if small is None else [small.checkpoint])]
    if small is not None:
        check_same_vocabulary(target.checkpoint, small.checkpoint)
    texts = tokenize(
        target.checkpoint, load_texts(prompts, Path(), "--prompts"), f"--prompts {prompts}"
    )
    limit = min(each.max_positions for each in models)
    least = 1 if head is None else 2  # a head reads no entry for a text's first token
    for index, text in enumerate(texts):
        if not least <= len(text) <= limit - new_tokens:
            raise UserError(
                f"--prompts {prompts}: prompt {index} has {len(text)} tokens; with {new_tokens} "
                f"new tokens (--new-tokens) it must have {least} to {limit - new_tokens}"
            )
    path = None if head is None else (REFERENCE / "eagle" if head == "reference" else Path(head))
    return ModelPair(target, small, path, tuple(texts), new_tokens)


def _with_weights(named: str, role: str, option: str) -> NamedModel:
    found = open_model(named, role, option, torch.float32)
    if isinstance(found.checkpoint, RandomCheckpoint):
        raise UserError(f"{option} {named}: acceptance needs a checkpoint with its weights")
    return found


def acceptance_profile(
    pair: ModelPair, content: dict[str, Any], pool: str, task: str, prompts: str
) -> AcceptanceProfile:
    """Args: ``content``: of the pool file; ``pool``: its name, beside the profile."""
    ranks = list(itertools.chain.from_iterable(each["ranks"] for each in content["prompts"]))
    shares = {k: sum(rank < k for rank in ranks) / len(ranks) for k in (1, 4, 8)}
    hits = ", ".join(f"{share:.1%} among the first {k}" for k, share in shares.items())
    recorded, asked = len(content["prompts"]), len(pair.prompts)
    note = f"of {len(ranks)} tokens of {recorded} texts, {hits}"
    if recorded < asked:
        note += f"; interrupted, {asked} texts were asked for"
    return AcceptanceProfile(
        draft=pair.draft_name,
        target=pair.target.name,
        task=task,
        temperature=0.0,
        pool=pool,
        origin=Origin(
            source=f"treepipe calibrate acceptance, prompts {prompts}",
            date=datetime.date.today(),
            note=note,
        ),
    )


def pool_path(out: Path) -> Path:
    """Where the pool of a profile is put: beside it. Raises ``UserError`` if it is the profile."""
    if out.suffix == ".json":
        raise UserError(f"--out {out}: must end in .toml; the pool is put beside it as .json")
    return out.with_suffix(".json")
