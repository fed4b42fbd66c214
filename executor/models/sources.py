"""Opening the draft that the scenario chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from treepipe.core.drafter import LANGUAGE_MODEL, Drafter
from treepipe.core.errors import UserError
from treepipe.core.verification import LOSSLESS, Sampling
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_memory import RememberingDraft
from treepipe.executor.models.draft_source import DraftSource, Opening
from treepipe.files.reading import read_json
from treepipe.scenario.deployment import Compute
from treepipe.scenario.schema import SamplingSection, SourceSection


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The draft of a draft server.

    Attributes:
        model: folder of its weights, or None.
        sampling: the target's sampling, by which trees are drawn, too.
        remembers: whether the verification rule needs the draft's distributions.
    """

    section: SourceSection
    model: Path | None
    sampling: SamplingSection
    remembers: bool
    seed: int

    def captured(self, layers: int) -> tuple[int, ...]:
        """Return the boundaries that the draft reads of a target of ``layers`` layers.

        Raises ``UserError``: there are no such boundaries, or the draft's config is unreadable.
        """
        config = Path() if self.model is None else self.model / "config.json"
        try:
            parameters = self.section.parameters
            return self.section.drafter.captured(parameters, partial(read_json, config), layers)
        except ValueError as fault:
            raise UserError(f"draft source {self.section.source!r}: {fault}") from None

    @property
    def whole(self) -> bool:
        """Whether its weights are a whole language model's."""
        return self.section.drafter.weights == LANGUAGE_MODEL


def judged_sampling(section: SamplingSection) -> Sampling:
    """Sampling of the rule's distributions; see ``treepipe.core.verification``."""
    relaxes = section.rule not in LOSSLESS
    temperature = 1.0 if relaxes and not section.temperature else section.temperature
    return Sampling(temperature, section.top_p, section.top_k)


def check_runs(drafter: Drafter) -> str:
    """Return the name of the function that opens a draft; raises ``UserError`` if there is none."""
    if drafter.opens is None:
        raise UserError(
            f"draft source {drafter.name!r}: {drafter.summary} is predicted only (treepipe "
            f"simulate, plan); nothing here computes it"
        )
    return drafter.opens


def opener(drafter: Drafter) -> Callable[[Opening], DraftSource]:
    """Load the function that a record names. Raises ``UserError`` if that fails."""
    name = check_runs(drafter)
    try:
        found: Callable[[Opening], DraftSource] = resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"draft source {drafter.name!r}: {name} cannot be loaded: {error}"
        ) from error
    return found


def open_source(
    settings: SourceSettings,
    target: Checkpoint | None,
    vocabulary: int,
    capacity: int,
    compute: Compute,
) -> DraftSource:
    """Open a draft with an ``Opening``. Raises ``UserError`` if that fails."""
    section, model = settings.section, settings.model
    captured = () if target is None else settings.captured(target.layers)
    opening = Opening(section.parameters, model, target, vocabulary, capacity, compute, captured)
    source = opener(section.drafter)(opening)
    if settings.remembers:
        return RememberingDraft(source, judged_sampling(settings.sampling), settings.seed)
    return source
