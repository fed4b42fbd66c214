"""Writes the tables of laws in ``docs/laws.md`` from ``treepipe.testing``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from treepipe.testing import LAWS, TREE_LAWS, Law

TABLES: Mapping[str, Mapping[str, Law]] = {"laws": LAWS, "laws of executors": TREE_LAWS}
"""By the comment that stands before each on the page."""


def with_laws(text: str) -> str:
    """Replace the page's tables of laws by those of the tool."""
    for name, laws in TABLES.items():
        rows = [f"| {x.name} | {x.sentence} | {x.source} | {x.trial} |" for x in laws.values()]
        table = "\n".join(["| law | what holds | source | trial |", "|---|---|---|---|", *rows])
        place = re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->)", re.S)
        text = place.sub(partial(_filled, table), text)
    return text


def _filled(table: str, found: re.Match[str]) -> str:
    return f"{found[1]}\n{table}\n\n{found[3]}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_laws(page.read_text(encoding="utf-8")), encoding="utf-8")
