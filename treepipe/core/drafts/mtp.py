"""A multi-token-prediction head as a draft (DeepSeek-V3, arXiv 2412.19437, section 2.2): a module
of the target's checkpoint, which reads the target's last state and the newest token. Applied again
to its own state, it goes on as a chain. It is predicted only."""

from __future__ import annotations

from treepipe.core.captures import NORMED
from treepipe.core.drafter import EAGLE_HEAD, Drafter

DRAFTS = (
    Drafter(
        name="mtp",
        order=7,
        summary="a multi-token-prediction head",
        opens=None,
        weights=EAGLE_HEAD,
        captures=(NORMED,),
        unverified_depths=7,
        in_turn=True,
    ),
)
