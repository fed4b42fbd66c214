"""Control characters in what users and their files say: a terminal would obey them."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""All but tabs and ends of lines."""


def visible(text: str) -> str:
    """The text with control characters written out.

    >>> visible("a\\x1b[31mb")
    'a\\\\x1b[31mb'
    """
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
