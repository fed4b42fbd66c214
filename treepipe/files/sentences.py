"""Sentences listed in a Markdown file, by heading, so that prose stays out of the code."""

from __future__ import annotations


def sentences(text: str) -> dict[str, list[str]]:
    """Return a template's list items by heading ("" before the first one).

    >>> sentences("- one\\n  goes on\\n\\n## More\\n\\n- two\\n")
    {'': ['one goes on'], 'More': ['two']}
    """
    found: dict[str, list[str]] = {"": []}
    heading = ""
    for line in text.splitlines():
        if line.startswith("## "):
            heading = line[3:]
            found[heading] = []
        elif line.startswith("- "):
            found[heading].append(line[2:])
        elif line.startswith("  "):
            found[heading][-1] += " " + line.strip()
    return found
