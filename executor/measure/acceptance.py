"""Measuring acceptance: target and draft over prompts -> a recorded pool and its profile.

What is recorded, and how, is in ``calibration.py`` and ``source_calibration.py``.
"""

from __future__ import annotations

import datetime
import itertools
from dataclasses import dataclass
from pathlib import Path

import torch

from treepipe.core.drafter import EAGLE_HEAD, LANGUAGE_MODEL, Drafter
from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.executor.checkpoint import CheckpointSource, check_same_vocabulary
from treepipe.executor.measure.calibration import AcceptanceRecorder, Texts
from treepipe.executor.measure.random_weights import RandomCheckpoint
from treepipe.executor.measure.source_calibration import recorder_of
from treepipe.executor.measure.subject import NamedModel, open_model
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.executor.sources import SourceSettings
from treepipe.profiles.hit_ratio import CHAIN, chain_rounds
from treepipe.profiles.library import REFERENCE, checkpoint_directory
from treepipe.profiles.pool_file import PoolFile, ranks_of
from treepipe.profiles.schema import AcceptanceProfile, Origin
from treepipe.scenario.schema import GREEDY, SamplingSection, SourceSection


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Who guesses whom, and on what.

    Attributes:
        draft_name: what drafts, as the profile names it.
        settings: what it drafts with.
        source: the prompts, as the command line names them.
        prompts: token ids.
    """

    target: NamedModel
    draft_name: str
    settings: SourceSettings
    source: str
    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int

    def texts(self, seed: int) -> Texts:
        """What it is recorded along; ``seed``: of sampled texts, and of the wrong tokens that are
        tried."""
        target, sampling = self.target.checkpoint, self.settings.sampling
        ends = target.end_tokens
        return Texts(target, self.prompts, self.new_tokens, ends, seed, sampling, self.source)

    def recorder(self, texts: Texts) -> AcceptanceRecorder:
        """The draft, ready to be recorded."""
        return recorder_of(self.settings, texts)


def open_pair(
    model: str,
    draft: str | None,
    head: str | None,
    prompts: str,
    new_tokens: int,
    kind: SourceSection | None = None,
    sampling: SamplingSection = GREEDY,
) -> ModelPair:
    """Args: ``model``, ``draft``: "reference" or checkpoint directories; ``head``: the same for an
    EAGLE head, instead of a draft; ``prompts``: see ``prompts.load_texts``; ``kind``: what drafts,
    None: what ``draft`` and ``head`` say.

    Raises:
        UserError: they cannot be read, or do not fit together.
    """
    if head is not None and draft is not None:
        raise UserError("--draft and --head: give one of them, not both")
    kind = kind or source_for(head)
    drafter = kind.drafter
    _check_options(draft, head, drafter, sampling)
    target = _with_weights(model, "target", "--model")
    models, name, path = [target.checkpoint], "", None
    if drafter.weights == LANGUAGE_MODEL:
        small = _with_weights(draft or "reference", "draft", "--draft")
        name, path = small.name, small.checkpoint.directory
        models.append(small.checkpoint)
        check_same_vocabulary(*models)
    elif drafter.weights is not None:
        path = checkpoint_directory(head or "reference", drafter.weights.reference, Path())
        bundled = path == REFERENCE / drafter.weights.reference
        name = "reference" if bundled else path.resolve().name
    texts = tokenize(
        target.checkpoint, load_texts(prompts, Path(), "--prompts"), f"--prompts {prompts}"
    )
    limit = min(each.max_positions for each in models)
    least = 2 if drafter.reads_states else 1  # no state is before a text's first token
    for index, text in enumerate(texts):
        if not least <= len(text) <= limit - new_tokens:
            raise UserError(
                f"--prompts {prompts}: prompt {index} has {len(text)} tokens; with {new_tokens} "
                f"new tokens (--new-tokens) it must have {least} to {limit - new_tokens}"
            )
    opened = None if path is None else CheckpointSource(path)
    settings = SourceSettings(kind, opened, sampling, False, 0)
    called = drafter.called_of(name)
    return ModelPair(target, called, settings, prompts, tuple(texts), new_tokens)


def source_for(head: str | None) -> SourceSection:
    """What drafts where nothing says it: the first draft source that reads what is given."""
    weights = LANGUAGE_MODEL if head is None else EAGLE_HEAD
    return SourceSection(source=next(d.name for d in drafters().values() if d.weights == weights))


def _check_options(
    draft: str | None, head: str | None, drafter: Drafter, sampling: SamplingSection
) -> None:
    """Raises ``UserError`` if something is given that this draft source does not read."""
    for weights, value in ((LANGUAGE_MODEL, draft), (EAGLE_HEAD, head)):
        if value is not None and drafter.weights != weights:
            raise UserError(f"{weights.option} {value}: --source {drafter.name} drafts without it")
    if sampling.rule == "relaxed_best":
        raise UserError(
            "--rule relaxed_best: it takes some candidate wherever there is one; record with "
            "--rule exact, which a simulation with relaxed_best reads"
        )


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
    note = f"of {len(ranks)} tokens of {done} texts, {hits}; {_by_depth(recorded)}"
    if done < asked:
        note += f"; interrupted, {asked} texts were asked for"
    return AcceptanceProfile(
        draft=pair.draft_name,
        target=pair.target.name,
        task=task,
        temperature=pair.settings.sampling.temperature,
        pool=pool,
        origin=Origin(
            source=f"treepipe calibrate acceptance, prompts {pair.source}",
            date=datetime.date.today(),
            note=note,
        ),
    )


def _by_depth(recorded: PoolFile) -> str:
    """What a chain's rounds in these texts hit, in words."""
    edges = [0, *itertools.accumulate(len(each.known.ranks) for each in recorded.prompts)]
    ranks = ranks_of(recorded.prompts)
    rounds = chain_rounds(ranks, itertools.pairwise(edges), 1, CHAIN)
    shares = ", ".join(f"{share:.3f}" for share in rounds.ratios)
    return (
        f"in rounds of a chain of {CHAIN}, by depth, {shares or 'none'}: {rounds.tokens:.2f} "
        f"tokens per round"
    )


def pool_path(out: Path) -> Path:
    """Where the pool of a profile is put: beside it. Raises ``UserError`` if it is the profile."""
    if out.suffix == ".json":
        raise UserError(f"--out {out}: must end in .toml; the pool is put beside it as .json")
    return out.with_suffix(".json")
