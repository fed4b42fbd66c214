"""Options of commands as records: what several commands take is a class, written once.

A command's own record adds its own options to these by inheritance; ``command`` makes the command
of a function that takes the record.
"""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar, get_type_hints

import typer

from treepipe.files.outputs import check_outputs

Record = TypeVar("Record")
Quiet = Annotated[bool, typer.Option("--quiet", help="No table and no progress.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


def command(options: type[Record]) -> Callable[[Callable[[Record], None]], Callable[..., None]]:
    """Decorate a function of one record so that typer takes each of its fields as an option."""
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(options)  # type: ignore[arg-type]  # every record is a dataclass
    ]

    def decorate(function: Callable[[Record], None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            function(options(**given))

        called.__name__, called.__doc__ = function.__name__, function.__doc__
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return decorate


@dataclass(frozen=True, kw_only=True)
class OfScenario:
    """The scenario that a command reads."""

    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml")]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Changes to keys of the file that is read."""

    settings: Annotated[
        Optional[list[str]],  # noqa: UP045  (typer reads the annotation on Python 3.10, too)
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a key, e.g. schedule.tree_size=40."
        ),
    ] = None

    @property
    def changes(self) -> list[str]:
        """All changes, as ``Scenario.load`` takes them."""
        return self.settings or []


@dataclass(frozen=True, kw_only=True)
class Changes(Settings):
    """The same with an option each for the two keys that change most often."""

    seed: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=0, help="Instead of the scenario's."),
    ] = None
    runs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Instead of the scenario's."),
    ] = None

    @property
    def changes(self) -> list[str]:
        given = {"seed": self.seed, "runs": self.runs}
        return [*(self.settings or []), *(f"{k}={v}" for k, v in given.items() if v is not None)]


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command shows and where it writes its result."""

    json: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--json", metavar="FILE|-", help="Write the result; - is standard output."),
    ] = None
    quiet: Quiet = False

    @property
    def silent(self) -> bool:
        """Whether standard output has no room for tables."""
        return self.quiet or self.json == "-"


@dataclass(frozen=True, kw_only=True)
class Reported(Output):
    """The same with a page of all of it."""

    report: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--report", metavar="DIR", help="Write all of it as a page, DIR/index.html."),
    ] = None
    force: Force = False

    def check(
        self, files: dict[str, Path | str | None], *inputs: Path | None, keep: tuple[str, ...] = ()
    ) -> None:
        """Refuse, before the work, what could not be written after it (``check_outputs``).

        Args:
            files: by option, besides ``--json`` and ``--report``.
            keep: options whose file must not exist yet unless ``--force`` is given.
        """
        check_outputs(
            {"--json": self.json, **files, "--report": self.report},
            inputs=inputs,
            keep=() if self.force else ("--report", *keep),
        )


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Pictures and the trace of a run."""

    trace: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--trace", help="Write Chrome/Perfetto trace events of the first run here."),
    ] = None
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--plot", metavar="FILE.png", help="Draw the first run's timeline here."),
    ] = None
    where_time_goes: Annotated[
        bool,
        typer.Option(
            "--where-time-goes",
            help="Show where workers' time goes; with --plot also FILE-where-time-goes.png.",
        ),
    ] = False

    @property
    def files(self) -> dict[str, Path | str | None]:
        """What is written, by option."""
        from treepipe.results.where import picture_beside

        drawn = self.plot is not None and self.where_time_goes
        beside = picture_beside(self.plot) if drawn and self.plot is not None else None
        return {"--trace": self.trace, "--plot": self.plot, "--where-time-goes": beside}


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """The processes that many simulations run on."""

    jobs: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--jobs", min=1, metavar="N", help="Simulations at once; default: all cores."),
    ] = None
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="joblib|ray|dask",
            help="Processes of this machine, or a cluster (--address).",
        ),
    ] = "joblib"
    address: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Of a running Ray or Dask cluster.",
        ),
    ] = None


def command_line() -> str:
    """What was typed, for a shell to take it again."""
    return shlex.join(["treepipe", *sys.argv[1:]])
