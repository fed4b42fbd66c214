"""The draft sources: a file each, named after the draft source, ending in its ``DRAFTS``.

A file holds records and no code that drafts: that is the executor's, which a record names. The same
file may also be a module of another installed package, which names it under the entry point group
``treepipe.drafts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from treepipe.core.drafter import Drafter
from treepipe.core.registry import Registry

REGISTRY = Registry("draft source", "treepipe.drafts", "DRAFTS", Drafter)


@lru_cache(maxsize=1)
def drafters() -> Mapping[str, Drafter]:
    """Return all draft sources by name, in the order of their records; the first is the default.

    Raises:
        UserError: as ``Registry.find``.
    """
    return REGISTRY.find(__name__)
