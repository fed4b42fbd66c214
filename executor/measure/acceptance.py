"""Acceptance: the models and prompts to record, and the profile of a recorded pool."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treepipe.core.drafter import EAGLE_HEAD, LANGUAGE_MODEL, Drafter
from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.executor.measure.calibration import Texts
from treepipe.executor.measure.requests import AcceptanceRequest
from treepipe.executor.measure.subject import NamedModel, RandomCheckpoint, open_model
from treepipe.executor.models.checkpoint import Checkpoint, check_same_vocabulary
from treepipe.executor.models.offsets import check_offsets
from treepipe.executor.models.prompts import load_texts, tokenize
from treepipe.executor.models.source_settings import SourceSettings
from treepipe.executor.models.sources import check_runs
from treepipe.files.section import Section
from treepipe.files.toml_file import validated
from treepipe.profiles.hit_ratio import CHAIN, chain_rounds
from treepipe.profiles.library import REFERENCE, checkpoint_directory
from treepipe.profiles.pool_file import PoolFile, ranks_of
from treepipe.profiles.schema import AcceptanceProfile, Origin
from treepipe.scenario.making import READS, provenance
from treepipe.scenario.scenario import override_key
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
    recorded = _recorded(asked)
    drafter = recorded.drafts.drafter
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
    settings = SourceSettings(recorded.drafts, path, recorded.sampling, False, 0)
    whole, ends = target.checkpoint, target.checkpoint.end_tokens
    check_offsets(settings, whole)
    texts = Texts(whole, prompts, asked.new_tokens, ends, asked.seed, asked.prompts)
    return ModelPair(target, drafter.called_of(name), settings, texts)


class _Recorded(Section):
    """The tables of a scenario that say how a pool is recorded."""

    drafts: SourceSection
    sampling: SamplingSection = SamplingSection()


def _recorded(asked: AcceptanceRequest) -> _Recorded:
    """Read the keys, by default of the first draft source that reads the given checkpoint.

    Raises:
        UserError: a key is invalid or has no effect, or the rule cannot be recorded.
    """
    weights = LANGUAGE_MODEL if asked.head is None else EAGLE_HEAD
    source = next(d.name for d in drafters().values() if d.weights == weights)
    content: dict[str, Any] = {"drafts": {"source": source}}
    for setting in asked.settings or ():
        override_key(content, setting)
    recorded = validated(_Recorded, content, "calibrate acceptance")
    rule = recorded.sampling.rule
    if rule in READS:
        raise UserError(
            f"--set sampling.rule={rule}: it judges no token by itself; record with "
            f"sampling.rule={READS[rule]}, which a simulation with {rule} reads"
        )
    made = provenance(recorded.sampling, recorded.drafts, asked.prompts)
    for table, read in (("drafts", made.draft), ("sampling", made.sampling)):
        for key in content.get(table, {}):
            if key not in read:
                read_here = ", ".join(f"{table}.{each}" for each in read)
                raise UserError(f"--set {table}.{key}: has no effect here; {read_here} have")
    return recorded


def _check_options(asked: AcceptanceRequest, drafter: Drafter) -> None:
    """Raise ``UserError`` if this draft source does not read a given checkpoint."""
    own = None if drafter.weights is None else drafter.weights.option
    for option, value in (("--draft", asked.draft), ("--head", asked.head)):
        if value is not None and option != own:
            raise UserError(f"{option} {value}: drafts.source={drafter.name} drafts without it")


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
