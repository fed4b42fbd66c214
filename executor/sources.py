"""Which draft a draft server runs: the scenario's choice, opened and checked for the schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pkgutil import resolve_name

from treepipe.core.drafter import LANGUAGE_MODEL, Drafter
from treepipe.core.drafts.ngram import LOOKUP
from treepipe.core.errors import UserError
from treepipe.core.verification import Sampling
from treepipe.executor.checkpoint import Checkpoint, CheckpointSource
from treepipe.executor.draft_memory import RememberingDraft
from treepipe.executor.draft_source import DraftSource, Opening
from treepipe.scenario.computing import Compute
from treepipe.scenario.schema import SamplingSection, SourceSection


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """What a draft server drafts with.

    Attributes:
        section: as the scenario's draft server says it.
        model: the draft source's weights, None if it has none.
        sampling: of the target, since drawn trees are drawn alike.
        remembers: the verification rule wants the draft's distributions.
    """

    section: SourceSection
    model: CheckpointSource | None
    sampling: SamplingSection
    remembers: bool
    seed: int

    @property
    def of_stand_in(self) -> SourceSettings:
        """What a server has that nobody asks to draft: a look-up, which needs no model."""
        section = SourceSection(source=LOOKUP.name)
        return replace(self, section=section, model=None, remembers=False)

    @property
    def whole(self) -> bool:
        """Whether its weights are a language model's, whose vocabulary and positions must fit."""
        return self.section.drafter.weights == LANGUAGE_MODEL


def judged_sampling(section: SamplingSection) -> Sampling:
    """What distributions the rule is shown; see ``treepipe.core.verification``."""
    relaxes = section.rule not in ("exact", "rejection")
    temperature = 1.0 if relaxes and not section.temperature else section.temperature
    return Sampling(temperature, section.top_p, section.top_k)


def opener(drafter: Drafter) -> Callable[[Opening], DraftSource]:
    """The executor part that a record names; raises ``UserError`` if it cannot be loaded."""
    try:
        found: Callable[[Opening], DraftSource] = resolve_name(drafter.opens)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"draft source {drafter.name!r}: {drafter.opens} cannot be loaded: {error}"
        ) from error
    return found


def open_source(
    settings: SourceSettings,
    target: Checkpoint | None,
    vocabulary: int,
    capacity: int,
    compute: Compute,
) -> DraftSource:
    """The draft itself; raises ``UserError`` if it cannot be opened.

    Args: as of ``Opening``.
    """
    section, model = settings.section, settings.model
    opening = Opening(section.parameters, model, target, vocabulary, capacity, compute)
    source = opener(section.drafter)(opening)
    if settings.remembers:
        return RememberingDraft(source, judged_sampling(settings.sampling), settings.seed)
    return source
