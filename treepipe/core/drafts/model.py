"""A causal language model as a draft: the same token path always gets the same answer."""

from __future__ import annotations

from treepipe.core.drafter import LANGUAGE_MODEL, Drafter

DRAFTS = (
    Drafter(
        name="model",
        order=1,
        summary="a language model",
        opens="treepipe.executor.models.draft_model:LanguageModelDraft.opened",
        weights=LANGUAGE_MODEL,
    ),
)
