"""How many examples a property is tried on: few in every run, many where time is given for them."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
SHARE = 8
"""A usual run takes one example of so many; other ones each time."""


def share_of(many: int) -> int:
    """The number of examples in this run of ``many``."""
    return many if THOROUGH else max(2, many // SHARE)


def examples(many: int, **rest: Any) -> settings:
    """Settings of a property that wants ``many`` examples; ``rest`` is given to hypothesis."""
    return settings(max_examples=share_of(many), **rest)
