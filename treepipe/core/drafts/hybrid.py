"""A language model and prompt lookup, whose distributions are mixed, so both grow one tree."""

from __future__ import annotations

from dataclasses import dataclass

from treepipe.core.drafter import LANGUAGE_MODEL, Drafter
from treepipe.core.drafts.ngram import LOOKUP, LookupKeys
from treepipe.core.registry import key


@dataclass(frozen=True)
class HybridKeys(LookupKeys):
    """Keys of the mixture's weights."""

    weight: float = key(0.5, "of the model's candidates against the look-up's", least=0, most=1)


DRAFTS = (
    Drafter(
        name="hybrid",
        order=4,
        summary="both mixed",
        opens="treepipe.executor.models.hybrid:model_and_lookup",
        parameters=HybridKeys,
        weights=LANGUAGE_MODEL,
        unverified_depths=LOOKUP.unverified_depths,
        called="{weights} and prompt lookup",
    ),
)
