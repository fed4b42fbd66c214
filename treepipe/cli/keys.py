"""``treepipe keys``: the keys of a scenario as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from treepipe.results.sheet import Sheet
    from treepipe.scenario.keys import KeyFacts


def keys(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="This key and those below it, e.g. serving.")
    ] = "",
) -> None:
    """Show the keys of a scenario: what each means, takes and defaults to, and who reads it."""
    from treepipe.results.show import console
    from treepipe.scenario.keys import key_facts

    table = key_sheet(key_facts(path)).filled.rich()
    table.columns[0].no_wrap = True
    console().print(table)


def key_sheet(found: Sequence[KeyFacts]) -> Sheet:
    from treepipe.results.sheet import Sheet, words

    sheet = Sheet("", words("key", "meaning", "values", "default", "read"))
    for each in found:
        sheet.add(each.path, each.meaning, each.values, each.default, each.read)
    return sheet
