"""Measuring acceptance: target and draft over prompts -> a recorded pool and its profile.

What is recorded, and how, is in ``calibration.py`` and ``head_calibration.py``.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import torch

from treepipe.core.errors import UserError
from treepipe.executor.checkpoint import check_same_vocabulary
from treepipe.executor.measure.calibration import AcceptanceRecorder, ModelRecorder, Texts
from treepipe.executor.measure.head_calibration import HeadRecorder
from treepipe.executor.measure.random_weights import RandomCheckpoint
from treepipe.executor.measure.subject import NamedModel, open_model
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.profiles.library import REFERENCE
from treepipe.profiles.pool_file import PoolFile
from treepipe.profiles.schema import AcceptanceProfile, Origin


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Who guesses whom, and on what.

    Attributes:
        draft: the model that drafts, None for a head.
        head: directory of an EAGLE head, None for a model.
        source: the prompts, as the command line names them.
        prompts: token ids.
    """

    target: NamedModel
    draft: NamedModel | None
    head: Path | None
    source: str
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int

    @property
    def draft_name(self) -> str:
        if self.draft is not None:
            return self.draft.name
        assert self.head is not None
        return "reference" if self.head == REFERENCE / "eagle" else self.head.resolve().name

    def texts(self, seed: int) -> Texts:
        """What it is recorded along; ``seed``: of the wrong tokens that are tried."""
        target = self.target.checkpoint
        return Texts(target, self.prompts, self.new_tokens, target.end_tokens, seed)

    def recorder(self, texts: Texts) -> AcceptanceRecorder:
        """The draft, ready to be recorded."""
        if self.draft is not None:
            return ModelRecorder(self.draft.checkpoint, texts)
        assert self.head is not None
        return HeadRecorder(self.head, self.draft_name, texts)


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
    return ModelPair(target, small, path, prompts, tuple(texts), new_tokens)


def _with_weights(named: str, role: str, option: str) -> NamedModel:
    found = open_model(named, role, option, torch.float32)
    if isinstance(found.checkpoint, RandomCheckpoint):
        raise UserError(f"{option} {named}: acceptance needs a checkpoint with its weights")
    return found


def acceptance_profile(
    pair: ModelPair, recorded: PoolFile, pool: str, task: str
) -> AcceptanceProfile:
    """Args: ``pool``: name of the pool's file, beside the profile."""
    ranks = recorded.ranks
    shares = {k: sum(rank < k for rank in ranks) / len(ranks) for k in (1, 4, 8)}
    hits = ", ".join(f"{share:.1%} among the first {k}" for k, share in shares.items())
    done, asked = len(recorded.prompts), len(pair.prompts)
    note = f"of {len(ranks)} tokens of {done} texts, {hits}"
    if done < asked:
        note += f"; interrupted, {asked} texts were asked for"
    return AcceptanceProfile(
        draft=pair.draft_name,
        target=pair.target.name,
        task=task,
        temperature=0.0,
        pool=pool,
        origin=Origin(
            source=f"treepipe calibrate acceptance, prompts {pair.source}",
            date=datetime.date.today(),
            note=note,
        ),
    )


def pool_path(out: Path) -> Path:
    """Where the pool of a profile is put: beside it. Raises ``UserError`` if it is the profile."""
    if out.suffix == ".json":
        raise UserError(f"--out {out}: must end in .toml; the pool is put beside it as .json")
    return out.with_suffix(".json")
