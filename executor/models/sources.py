"""Opening the draft that the scenario chooses."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name

from treepipe.core.drafter import Drafter
from treepipe.core.errors import UserError
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_memory import RememberingDraft
from treepipe.executor.models.draft_source import DraftSource, Opening
from treepipe.executor.models.source_settings import SourceSettings, judged_sampling
from treepipe.scenario.deployment import Compute


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
