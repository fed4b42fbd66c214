"""Writes the tables of keys in ``docs/scenario.md`` from the schema (``make docs``)."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from treepipe.results.sheet import Sheet, words
from treepipe.scenario.keys import KeyFacts, key_facts

PLACE = re.compile(r"(<!-- keys:(.*?)-->\n)(.*?)(<!-- end -->)", re.S)


def with_tables(text: str) -> str:
    """Replace the page's tables by those of the schema.

    A place lists the paths whose keys it holds; a key goes to the place with the longest path above
    it, a key without such a path to the place that lists none.
    """
    places = [found[2].split() for found in PLACE.finditer(text)]
    named = [path for paths in places for path in paths]
    rows: dict[str, list[KeyFacts]] = {path: [] for path in ("", *named)}
    for each in key_facts():
        above = [path for path in named if each.path.startswith(f"{path}.")]
        rows[max(above, key=len, default="")].append(each)

    def table(found: re.Match[str]) -> str:
        own = [each for path in found[2].split() or [""] for each in rows[path]]
        return f"{found[1]}\n{_table(own)}\n{found[4]}"

    return PLACE.sub(table, text)


def _table(found: Sequence[KeyFacts]) -> str:
    sheet = Sheet("", words("key", "meaning", "values", "default", "read only"))
    for each in found:
        default = f"`{each.default}`" if each.default else ""
        sheet.add(f"`{each.path}`", each.meaning, each.values, default, each.read)
    return sheet.filled.markdown().partition("\n\n")[2]


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
