"""``treepipe keys``: the keys of a scenario as a table."""

from __future__ import annotations

from typing import Annotated

import typer


def keys(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="This key and those below it, e.g. serving.")
    ] = "",
) -> None:
    """Show the keys of a scenario: what each means, takes and defaults to, and who reads it."""
    from treepipe.results.sheet import Sheet, words
    from treepipe.results.show import console
    from treepipe.scenario.keys import key_facts

    sheet = Sheet("", words("key", "meaning", "values", "default", "read"))
    for each in key_facts(path):
        sheet.add(each.path, each.meaning, each.values, each.default, each.read)
    table = sheet.filled.rich()
    table.columns[0].no_wrap = True
    console().print(table)
