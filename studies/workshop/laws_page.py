"""Writes the tables of laws in ``docs/laws.md`` from ``treepipe.testing``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from treepipe.results.sheet import Sheet, words
from treepipe.studies.workshop.page_parts import with_parts
from treepipe.testing import LAWS, TREE_LAWS, Law

TABLES: Mapping[str, Mapping[str, Law]] = {"laws": LAWS, "laws of executors": TREE_LAWS}
"""By the comment that stands before each on the page."""


def with_laws(text: str) -> str:
    """Replace the page's tables of laws by those of the tool."""
    tables = dict[str, str]()
    for name, laws in TABLES.items():
        sheet = Sheet("", words("law", "what holds", "source", "trial"))
        for law in laws.values():
            sheet.add(law.name, law.sentence, law.source, law.trial)
        tables[name] = sheet.markdown().partition("\n\n")[2]
    return with_parts(text, tables)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_laws(page.read_text(encoding="utf-8")), encoding="utf-8")
