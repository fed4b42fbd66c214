"""Parts of a page that the tool writes: each stands between a comment with its name and an end."""

from __future__ import annotations

from collections.abc import Mapping


def with_parts(text: str, parts: Mapping[str, str]) -> str:
    """Replace a page's parts, by name."""
    for name, part in parts.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text = f"{before}{begin}\n{part}\n{end}{after}"
    return text
