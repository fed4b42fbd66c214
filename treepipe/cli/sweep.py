"""``treepipe sweep``: its arguments; ``sweeps`` does the work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treepipe.cli.options import Distributed, Output, Settings, command
from treepipe.extras import need_parquet
from treepipe.files.outputs import check_outputs

if TYPE_CHECKING:
    from rich.console import Console

    from treepipe.sweeps.sweep import SweepResult

REASONS = 3
"""Most reasons of refusals that are printed; the files hold all of them."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Output, Distributed, Settings):
    """Options of ``treepipe sweep``."""

    grid: Annotated[Path, typer.Argument(metavar="GRID.toml")]
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the Parquet files; resumed if there.")
    ]
    force: Annotated[
        bool, typer.Option("--force", help="Throw away what DIR holds of another sweep.")
    ] = False


@command(SweepOptions)
def sweep(asked: SweepOptions) -> None:
    """Simulate many scenarios, all combinations or Latin hypercubes, into Parquet files."""
    from treepipe.results.result import write_json
    from treepipe.results.show import ProgressBars, console
    from treepipe.sim.engine import engine
    from treepipe.sweeps.sweep import Sweep, carry_out

    need_parquet()
    check_outputs({"--json": asked.json}, inputs=(asked.grid,))
    loaded = Sweep.load(asked.grid, asked.changes)
    with engine(asked.backend, asked.jobs), ProgressBars(asked.quiet) as say:
        swept = carry_out(loaded, asked.out, say, force=asked.force)
    if asked.json is not None:
        write_json(swept.to_json(), asked.json)
    if not asked.silent:
        _show(swept, console())


def _show(swept: SweepResult, console: Console) -> None:
    there = swept.scenarios - swept.simulated
    kept = f" ({there} were there already)" if there else ""
    console.print(
        f"{swept.scenarios} scenarios{kept}, {swept.rows} rows in {swept.out}", highlight=False
    )
    for reason, count in list(swept.reasons.items())[:REASONS]:
        console.print(f"refused: {count} scenarios: {reason}", highlight=False)
    if len(swept.reasons) > REASONS:
        more = len(swept.reasons) - REASONS
        console.print(f"refused: {more} more reasons in column 'error'", highlight=False)
