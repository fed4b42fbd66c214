"""The offset test: whether a draft reads the boundaries of the target that it was trained on.

Checkpoints name boundaries by layers' ids whose meaning differs between engines; a head that reads
its states one layer off still works, but accepts less. So it drafts along a text from the
boundaries as they are said or guessed, and from those one layer below and above. What it accepts
at a place is the probability that rejection sampling keeps its token, the sum of min(p, q) over the
vocabulary (Leviathan et al. 2023, section 3.3): it differs at every place, where the most probable
tokens differ at few. The target's layers are loaded one after the other, and a passed test is
remembered.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from treepipe.core.captures import NORMED
from treepipe.core.drafter import Drafter
from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.core.protocol import DraftPass
from treepipe.executor.models.block_head import block_layout
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.copies import digest_of
from treepipe.executor.models.prompts import load_texts, tokenize
from treepipe.executor.models.source_settings import SourceSettings
from treepipe.executor.models.sources import open_source
from treepipe.executor.models.stage_model import StageModel, TargetEnds
from treepipe.files.outputs import cache_folder
from treepipe.files.section import Section
from treepipe.files.toml_file import validated
from treepipe.profiles.library import CALIBRATION
from treepipe.scenario.deployment import ONE_CORE
from treepipe.scenario.scenario import override_key
from treepipe.scenario.schema import SamplingSection, SourceSection

PLACES, BEFORE = 64, 16
"""Places of the text at which it drafts, and tokens before the first of them."""
CLEARLY = 2.5
"""Other boundaries are clearly better if the mean of the differences, place by place, is so many
standard errors above 0 (paired t-test; of equally good ones that are one in 130)."""


@dataclass(frozen=True, slots=True)
class OffsetTrial:
    """What a draft accepts along the text from some boundaries.

    Attributes:
        by: layers between these boundaries and those that are said or guessed.
        said: how a user names these boundaries.
        kept: by place, the probability that its token is accepted.
    """

    by: int
    said: str
    kept: tuple[float, ...]

    def clearly_better(self, other: OffsetTrial) -> bool:
        more = np.subtract(self.kept, other.kept)
        return bool(more.mean() > CLEARLY * more.std(ddof=1) / math.sqrt(len(more)))

    def __str__(self) -> str:
        return f"{np.mean(self.kept):.1%} of {len(self.kept)} tokens with {self.said}"


def check_offsets(settings: SourceSettings, target: Checkpoint) -> None:
    """Try a draft whose checkpoint names boundaries, unless it has passed before. Raises
    ``UserError`` as ``refuse``."""
    if settings.model is None or not _names_layers(settings.section.drafter):
        return
    models = [digest_of(target.directory), digest_of(settings.model)]
    known = repr((models, settings.captured(target.layers))).encode()
    passed = cache_folder() / "offsets" / blake2b(known, digest_size=16).hexdigest()
    if not passed.exists():
        refuse(measure_offsets(settings, target))
        with suppress(OSError):  # the next run measures it again
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.touch()


def refuse(offsets: Sequence[OffsetTrial]) -> None:
    """Raise ``UserError``, with the figures, if another offset than 0 is clearly better."""
    own = next(each for each in offsets if not each.by)
    for other in offsets:
        if other.clearly_better(own):
            raise UserError(
                f"the head was trained on other states of the target than it reads: accepted are "
                f"{own}, but {other}; say the latter"
            )


def _names_layers(drafter: Drafter) -> bool:
    return "capture" in drafter.keys or drafter.drafts_blocks


class _Drafting(Section):
    """The table of a scenario that says how a head drafts."""

    drafts: SourceSection


def head_settings(head: Path, *settings: str) -> SourceSettings:
    """Return the settings of a draft whose checkpoint names boundaries; by default the first such.

    Args:
        settings: keys of a scenario's table ``drafts``, e.g. ``drafts.capture=1,2,3``.

    Raises:
        UserError: a key is invalid or has no effect, or the source's boundaries cannot be said.
    """
    found = {each.name: each for each in drafters().values() if _names_layers(each)}
    content: dict[str, Any] = {"drafts": {"source": next(iter(found))}}
    for setting in settings:
        override_key(content, setting)
    section = validated(_Drafting, content, "profiles check").drafts
    if section.source not in found:
        raise UserError(
            f"--set drafts.source={section.source}: reads no states between layers: "
            f"{', '.join(found)} do"
        )
    blocks = section.drafter.drafts_blocks  # then the checkpoint's target_layer_ids say it
    for key in content["drafts"].keys() - {"source", *(() if blocks else ("capture",))}:
        raise UserError(f"--set drafts.{key}: has no effect on the boundaries that {head} reads")
    if blocks:
        size = block_layout(head / "config.json")[1].size
        section = section.model_copy(update={"block": size})
    return SourceSettings(section, head, SamplingSection(), False, 0)


def measure_offsets(settings: SourceSettings, target: Checkpoint) -> list[OffsetTrial]:
    """Draft along a text of the target's vocabulary from each offset. Raises ``UserError``."""
    found, wanted = list[OffsetTrial](), _shifted(settings, target.layers)
    tokens = text_of(target)
    states, chosen = _states(target, tokens, {b for each in wanted.values() for b in each})
    draft = open_source(settings, target, target.vocabulary, 2 * len(tokens), ONE_CORE)
    for session, (by, boundaries) in enumerate(wanted.items(), 1):
        draft.open(session)
        reader: Any = draft  # its record captures states
        reader.observe(session, torch.cat([states[each] for each in boundaries], -1))
        kept, read = list[float](), 0
        for place, own in enumerate(chosen, len(tokens) - PLACES):
            order = DraftPass(0, tokens[read : place + 1], (), (), True, 1)
            drafted = draft.log_probs(session, order)[0].exp()
            kept.append(float(torch.minimum(own, drafted).sum()))
            read = place + 1
        draft.close(session)
        found.append(OffsetTrial(by, _said(settings, boundaries, target.layers), tuple(kept)))
    return found


def _shifted(settings: SourceSettings, layers: int) -> dict[int, tuple[int, ...]]:
    """Return the boundaries by offset, of those offsets at which all of them exist."""
    blocks = settings.section.drafter.drafts_blocks
    known = [*range(1, layers), NORMED] if blocks else [*range(layers + 1)]
    places = [known.index(each) for each in settings.captured(layers)]
    return {
        by: tuple(known[place + by] for place in places)
        for by in (0, -1, 1)
        if min(places) + by >= 0 and max(places) + by < len(known)
    }


def _said(settings: SourceSettings, boundaries: Sequence[int], layers: int) -> str:
    """Return how a user names boundaries to this draft."""
    if settings.section.drafter.drafts_blocks:
        return f"target_layer_ids = {[min(each, layers) - 1 for each in boundaries]}"
    return f"capture = '{','.join(map(str, boundaries))}'"


def text_of(target: Checkpoint) -> tuple[int, ...]:
    """Return tokens of bundled texts; of a target without a tokenizer any tokens."""
    count = BEFORE + PLACES
    if (target.directory / "tokenizer.json").exists():
        texts = load_texts(CALIBRATION, target.directory)
        tokens = [token for text in tokenize(target, texts) for token in text]
        return tuple(tokens[:count])
    rng = np.random.default_rng(0)
    return tuple(map(int, rng.integers(target.vocabulary, size=count)))


def _states(
    target: Checkpoint, tokens: Sequence[int], boundaries: Collection[int]
) -> tuple[dict[int, torch.Tensor], torch.Tensor]:
    """Return [tokens, hidden] by boundary, and the target's distributions [PLACES, vocabulary]
    behind the last tokens."""
    ends, found = TargetEnds(target), dict[int, torch.Tensor]()
    states = ends.embed(tokens)
    for number in range(target.layers + 1):
        if number in boundaries:
            found[number] = states
        if number < target.layers:
            layer = StageModel(target, range(number, number + 1), len(tokens))
            layer.open(0)
            states = layer.forward(0, states, range(len(tokens)), None)
    found[NORMED] = ends.features(states)
    return found, ends.project(found[NORMED][-PLACES:]).double().softmax(-1)
