"""Which draft a draft server runs: the scenario's choice, opened and checked for the schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

from treepipe.core.verification import Sampling
from treepipe.executor.checkpoint import Checkpoint, CheckpointSource
from treepipe.executor.computing import DTYPES
from treepipe.executor.draft_memory import RememberingDraft
from treepipe.executor.draft_model import LanguageModelDraft
from treepipe.executor.draft_source import DraftSource
from treepipe.executor.eagle import EagleDraft
from treepipe.executor.hybrid import HybridDraft
from treepipe.executor.ngram import PromptLookupDraft
from treepipe.scenario.computing import Compute
from treepipe.scenario.schema import DraftSection, SamplingSection


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What a draft server drafts with.

    Attributes:
        kind: as in the scenario's ``drafts.source``.
        model: the draft model or the EAGLE head, None if the kind has neither.
        ngram: longest suffix that prompt lookup matches.
        weight: of the model, in a hybrid.
        sampling: of the target, since drawn trees are drawn alike.
        remembers: the verification rule wants the draft's distributions.
    """

    kind: str
    model: CheckpointSource | None
    ngram: int
    weight: float
    sampling: SamplingSection
    remembers: bool
    seed: int

    @property
    def of_stand_in(self) -> SourceSettings:
        """What a server has that nobody asks to draft: a look-up, which needs no model."""
        return replace(self, kind="ngram", model=None, remembers=False)

    @property
    def section(self) -> DraftSection:
        """The same as a scenario writes it."""
        kind = {"source": self.kind, "ngram": self.ngram, "weight": self.weight}
        return DraftSection.model_validate(kind)


def judged_sampling(section: SamplingSection) -> Sampling:
    """What distributions the rule is shown; see ``treepipe.core.verification``."""
    relaxes = section.rule not in ("exact", "rejection")
    temperature = 1.0 if relaxes and not section.temperature else section.temperature
    return Sampling(temperature, section.top_p, section.top_k)


def open_source(
    settings: SourceSettings,
    target: Checkpoint | None,
    vocabulary: int,
    capacity: int,
    compute: Compute,
) -> DraftSource:
    """The draft itself; raises ``UserError`` if it cannot be opened.

    Args:
        target: read by an EAGLE head; no other draft needs it.
        vocabulary: of the target.
        capacity: cache entries per session.
    """
    source = _open(settings, target, vocabulary, capacity, compute)
    if settings.remembers:
        return RememberingDraft(source, judged_sampling(settings.sampling), settings.seed)
    return source


def _open(
    settings: SourceSettings,
    target: Checkpoint | None,
    vocabulary: int,
    capacity: int,
    compute: Compute,
) -> DraftSource:
    lookup = PromptLookupDraft(vocabulary, settings.ngram)
    if settings.kind == "ngram":
        return lookup
    assert settings.model is not None  # checked at launch
    dtype, device = DTYPES[compute.dtype], compute.device
    if settings.kind == "eagle":
        assert target is not None
        return EagleDraft(settings.model, target, capacity, dtype, device)
    model = LanguageModelDraft(settings.model.open(), capacity, dtype, device)
    return HybridDraft(model, lookup, settings.weight) if settings.kind == "hybrid" else model
