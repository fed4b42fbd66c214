"""An EAGLE head as a draft: it reads true states right below what was verified, and each level
further down its own guess (EAGLE, section 4.1)."""

from __future__ import annotations

from treepipe.core.captures import NORMED
from treepipe.core.drafter import EAGLE_HEAD, Drafter

DRAFTS = (
    Drafter(
        name="eagle",
        order=2,
        summary="an EAGLE head",
        opens="treepipe.executor.models.eagle:EagleDraft.opened",
        weights=EAGLE_HEAD,
        captures=(NORMED,),
        unverified_depths=7,
    ),
)
