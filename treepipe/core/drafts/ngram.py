"""Prompt lookup as a draft (Saxena): no model, the text itself says what followed before."""

from __future__ import annotations

from dataclasses import dataclass

from treepipe.core.drafter import Drafter, DraftParameters
from treepipe.core.registry import key


@dataclass(frozen=True)
class LookupKeys(DraftParameters):
    """What is looked up in the text so far."""

    ngram: int = key(3, "longest suffix that prompt lookup matches", least=1)


LOOKUP = Drafter(
    name="ngram",
    order=3,
    summary="prompt lookup",
    opens="treepipe.executor.ngram:PromptLookupDraft.opened",
    parameters=LookupKeys,
    unverified_depths=3,  # its counts lack no more than the tokens that are not verified
    called="prompt lookup",
)
DRAFTS = (LOOKUP,)
