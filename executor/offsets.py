"""The offset test: whether a draft reads the boundaries of the target that it was trained on.

Checkpoints name boundaries by layers' ids whose meaning differs between engines; a head that reads
its states one layer off still works, but accepts far less. So it drafts along a text from the
boundaries as they are said or guessed, and from those one layer below and above. The target's
layers are loaded one after the other, and a passed test is remembered.
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

from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.core.protocol import DraftPass
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.copies import digest_of
from treepipe.executor.prompts import load_texts, tokenize
from treepipe.executor.sources import SourceSettings, open_source
from treepipe.executor.stage_model import StageModel, TargetEnds
from treepipe.files.outputs import cache_folder
from treepipe.files.toml_file import validated
from treepipe.scenario.computing import ONE_CORE
from treepipe.scenario.schema import SamplingSection, SourceSection

PLACES, BEFORE = 64, 16
"""Places of the text at which it drafts, and tokens before the first of them."""
CLEARLY = 3.0
"""Other boundaries are clearly better if so many standard errors are between them, of the places at
which only one of the two is right (McNemar's test); by chance that happens once in 700 tests."""
TEXTS = "reference:calibration"


@dataclass(frozen=True, slots=True)
class OffsetTrial:
    """What a draft accepts along the text from some boundaries.

    Attributes:
        by: layers between these boundaries and those that are said or guessed.
        right: by place, whether its most probable token is the target's.
    """

    by: int
    boundaries: tuple[int, ...]
    right: tuple[bool, ...]

    @property
    def accepted(self) -> int:
        return sum(self.right)

    def clearly_better(self, other: OffsetTrial) -> bool:
        pairs = [*zip(self.right, other.right, strict=True)]
        won, lost = pairs.count((True, False)), pairs.count((False, True))
        return won - lost > CLEARLY * math.sqrt(won + lost)

    def __str__(self) -> str:
        return f"{self.accepted} of {len(self.right)} from boundaries {self.boundaries}"


def check_offsets(settings: SourceSettings, target: Checkpoint) -> None:
    """Try a draft whose boundaries can be said (``capture``), unless it has passed before. Raises
    ``UserError`` as ``refuse``."""
    if settings.model is None or "capture" not in settings.section.drafter.keys:
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
                f"the head was trained on other states of the target than it reads: it accepts "
                f"{own}, but {other}; say the latter "
                f"(capture = '{','.join(map(str, other.boundaries))}')"
            )


def head_settings(head: Path, source: str | None, capture: str) -> SourceSettings:
    """Return the settings of a draft whose boundaries can be said; by default the first such.

    Raises ``UserError``: there is no such source, or its boundaries cannot be said.
    """
    found = [each.name for each in drafters().values() if "capture" in each.keys]
    named = source or found[0]
    section = validated(SourceSection, {"source": named, "capture": capture}, "profiles check")
    if named not in found:
        raise UserError(f"--source {named}: reads no states between layers: {', '.join(found)} do")
    return SourceSettings(section, head, SamplingSection(), False, 0)


def measure_offsets(settings: SourceSettings, target: Checkpoint) -> list[OffsetTrial]:
    """Draft along a text of the target's vocabulary from each offset. Raises ``UserError``."""
    own, found = settings.captured(target.layers), list[OffsetTrial]()
    shifted = {by: tuple([each + by for each in own]) for by in (0, -1, 1)}
    wanted = {
        by: each for by, each in shifted.items() if min(each) >= 0 and max(each) <= target.layers
    }
    tokens = text_of(target)
    states, choices = _states(target, tokens, {b for each in wanted.values() for b in each})
    draft = open_source(settings, target, target.vocabulary, 2 * len(tokens), ONE_CORE)
    for session, (by, boundaries) in enumerate(wanted.items(), 1):
        draft.open(session)
        reader: Any = draft  # its record captures states
        reader.observe(session, torch.cat([states[each] for each in boundaries], -1))
        right, read = list[bool](), 0
        for place in range(len(tokens) - PLACES, len(tokens)):
            order = DraftPass(0, tokens[read : place + 1], (), (), True, 1)
            right.append(int(draft.draft(session, order).tokens[0][0]) == choices[place])
            read = place + 1
        draft.close(session)
        found.append(OffsetTrial(by, boundaries, tuple(right)))
    return found


def text_of(target: Checkpoint) -> tuple[int, ...]:
    """Return tokens of bundled texts; of a target without a tokenizer any tokens."""
    count = BEFORE + PLACES
    if (target.directory / "tokenizer.json").exists():
        texts = load_texts(TEXTS, target.directory)
        tokens = [token for text in tokenize(target, texts) for token in text]
        return tuple(tokens[:count])
    rng = np.random.default_rng(0)
    return tuple(map(int, rng.integers(target.vocabulary, size=count)))


def _states(
    target: Checkpoint, tokens: Sequence[int], boundaries: Collection[int]
) -> tuple[dict[int, torch.Tensor], tuple[int, ...]]:
    """Return [tokens, hidden] by boundary, and the target's choice behind each token."""
    ends, found = TargetEnds(target), dict[int, torch.Tensor]()
    states = ends.embed(tokens)
    for number in range(target.layers + 1):
        if number in boundaries:
            found[number] = states
        if number < target.layers:
            layer = StageModel(target, range(number, number + 1), len(tokens))
            layer.open(0)
            states = layer.forward(0, states, range(len(tokens)), None)
    return found, ends.next_tokens(states)
