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
    named = [path for found in PLACE.finditer(text) for path in found[2].split()]
    rows: dict[str, list[KeyFacts]] = {path: [] for path in ("", *named)}
    for each in key_facts():
        above = [path for path in named if each.path.startswith(f"{path}.")]
        rows[max(above, key=len, default="")].append(each)

    def table(found: re.Match[str]) -> str:
        own = [each for path in found[2].split() or [""] for each in rows[path]]
        return f"{found[1]}\n{_table(own)}\n{found[4]}"

    return PLACE.sub(table, text)


def _table(found: Sequence[KeyFacts]) -> str:
    """Show the keys, then which system reads which of ``[schedule]``."""
    sheet = Sheet("", words("key", "meaning", "values; default"))
    read: dict[str, list[str]] = {}
    for each in found:
        default = f"; `{each.default}`" if each.default else ""
        sheet.add(f"`{each.path}`", each.meaning, each.values + default)
        if each.read and each.path.startswith("schedule."):
            read.setdefault(each.read, []).append(f"`{each.path}`")
    rows = sheet.markdown().partition("\n\n")[2]
    readers = [f"* {', '.join(keys)}: {systems}\n" for systems, keys in read.items()]
    told = ["\nSome of these keys are those of some systems:\n\n"] if readers else []
    return "".join([rows, *told, *readers])


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
