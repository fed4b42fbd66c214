"""Prompt lookup as a draft (Saxena): it proposes what followed in the text before."""

from __future__ import annotations

from dataclasses import dataclass

from treepipe.core.drafter import Drafter, DraftParameters
from treepipe.core.registry import key


@dataclass(frozen=True)
class LookupKeys(DraftParameters):
    """Keys of the lookup in the text so far."""

    ngram: int = key(3, "longest suffix that is looked up in the text so far", least=1)


LOOKUP = Drafter(
    name="ngram",
    order=3,
    summary="prompt lookup",
    opens="treepipe.executor.models.ngram:PromptLookupDraft.opened",
    parameters=LookupKeys,
    unverified_depths=3,  # its counts lack only the unverified tokens
    called="prompt lookup",
)
DRAFTS = (LOOKUP,)
