"""Acceptance: the models and prompts to record, and the profile of a recorded pool."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from treepipe.core.drafter import EAGLE_HEAD, LANGUAGE_MODEL, Drafter
from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.executor.checkpoint import Checkpoint, check_same_vocabulary
from treepipe.executor.measure.calibration import Texts
from treepipe.executor.measure.requests import AcceptanceRequest
from treepipe.executor.measure.subject import NamedModel, RandomCheckpoint, open_model
from treepipe.executor.offsets import check_offsets
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.executor.sources import SourceSettings, check_runs
from treepipe.files.toml_file import validated
from treepipe.profiles.hit_ratio import CHAIN, chain_rounds
from treepipe.profiles.library import REFERENCE, checkpoint_directory
from treepipe.profiles.pool_file import PoolFile, ranks_of
from treepipe.profiles.schema import AcceptanceProfile, Origin
from treepipe.scenario.making import READS
from treepipe.scenario.schema import SamplingSection, SourceSection


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A target, a draft's name in profiles, its settings, and the texts to record along."""

    target: NamedModel
    draft_name: str
    settings: SourceSettings
    texts: Texts


def open_pair(asked: AcceptanceRequest) -> ModelPair:
    """Open the requested models, and check them against the prompts.

    Raises:
        UserError: they cannot be read, or do not fit together.
    """
    if asked.head is not None and asked.draft is not None:
        raise UserError("--draft and --head: give one of them, not both")
    kind, sampling = _kind(asked), _sampling(asked)
    drafter = kind.drafter
    check_runs(drafter)
    _check_options(asked, drafter)
    target = _with_weights(asked.model, "target", "--model")
    models, name, path = [target.checkpoint], "", None
    if drafter.weights == LANGUAGE_MODEL:
        small = _with_weights(asked.draft or "reference", "draft", "--draft")
        name, path = small.name, small.checkpoint.directory
        models.append(small.checkpoint)
        check_same_vocabulary(*models)
    elif drafter.weights is not None:
        path = checkpoint_directory(asked.head or "reference", drafter.weights.reference, Path())
        bundled = path == REFERENCE / drafter.weights.reference
        name = "reference" if bundled else path.resolve().name
    least = 2 if drafter.reads_states else 1  # a text's first token has no state before it
    prompts = _prompts(asked, models, least)
    settings = SourceSettings(kind, path, sampling, False, 0)
    whole, ends = target.checkpoint, target.checkpoint.end_tokens
    check_offsets(settings, whole)
    texts = Texts(whole, prompts, asked.new_tokens, ends, asked.seed, asked.prompts)
    return ModelPair(target, drafter.called_of(name), settings, texts)


def _kind(asked: AcceptanceRequest) -> SourceSection:
    """Return the given draft source, else the first one that reads the given checkpoint."""
    weights = LANGUAGE_MODEL if asked.head is None else EAGLE_HEAD
    source = asked.source or next(d.name for d in drafters().values() if d.weights == weights)
    return validated(SourceSection, {"source": source, **asked.keys}, "calibrate acceptance")


def _sampling(asked: AcceptanceRequest) -> SamplingSection:
    """Read the sampling. Raises ``UserError`` if it is invalid or cannot be recorded."""
    given = {key: getattr(asked, key) for key in SamplingSection.model_fields}
    sampling = validated(SamplingSection, given, "calibrate acceptance")
    if sampling.rule in READS:
        raise UserError(
            f"--rule {sampling.rule}: it judges no token by itself; record with "
            f"--rule {READS[sampling.rule]}, which a simulation with {sampling.rule} reads"
        )
    return sampling


def _check_options(asked: AcceptanceRequest, drafter: Drafter) -> None:
    """Raise ``UserError`` if this draft source does not read a given checkpoint."""
    own = None if drafter.weights is None else drafter.weights.option
    for option, value in (("--draft", asked.draft), ("--head", asked.head)):
        if value is not None and option != own:
            raise UserError(f"{option} {value}: --source {drafter.name} drafts without it")


def _prompts(
    asked: AcceptanceRequest, models: Sequence[Checkpoint], least: int
) -> tuple[tuple[int, ...], ...]:
    """Tokenize the prompts. Raises ``UserError`` if a prompt does not fit the models."""
    loaded = load_texts(asked.prompts, Path(), "--prompts")
    texts = tokenize(models[0], loaded, f"--prompts {asked.prompts}")
    most = min(each.max_positions for each in models) - asked.new_tokens
    for index, text in enumerate(texts):
        if not least <= len(text) <= most:
            raise UserError(
                f"--prompts {asked.prompts}: prompt {index} has {len(text)} tokens; with "
                f"{asked.new_tokens} new tokens (--new-tokens) it must have {least} to {most}"
            )
    return tuple(texts)


def _with_weights(named: str, role: str, option: str) -> NamedModel:
    found = open_model(named, role, option, torch.float32)
    if isinstance(found.checkpoint, RandomCheckpoint):
        raise UserError(f"{option} {named}: acceptance needs a checkpoint with its weights")
    return found


def acceptance_profile(
    pair: ModelPair, recorded: PoolFile, pool: str, task: str
) -> AcceptanceProfile:
    """Make the profile of a recorded pool, whose file is beside the profile's."""
    ranks = recorded.ranks
    shares = {k: sum(rank < k for rank in ranks) / len(ranks) for k in (1, 4, 8)}
    hits = ", ".join(f"{share:.1%} among the first {k}" for k, share in shares.items())
    done, asked = len(recorded.prompts), len(pair.texts.prompts)
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
            source=f"treepipe calibrate acceptance, prompts {pair.texts.named}",
            date=datetime.date.today(),
            note=note,
        ),
    )


def _by_depth(recorded: PoolFile) -> str:
    """Describe the hit ratios of a chain's rounds in these texts, as a clause of a sentence."""
    edges = [0, *itertools.accumulate(len(each.known.ranks) for each in recorded.prompts)]
    ranks = ranks_of(recorded.prompts)
    rounds = chain_rounds(ranks, itertools.pairwise(edges), 1, CHAIN)
    shares = ", ".join(f"{share:.3f}" for share in rounds.ratios)
    return (
        f"in rounds of a chain of {CHAIN}, by depth, {shares or 'none'}: {rounds.tokens:.2f} "
        f"tokens per round"
    )
