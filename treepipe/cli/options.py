"""Options of commands as records: a class holds the options that several commands share.

A command's own record adds options to these by inheritance; ``command`` makes a command of a
function that takes the record.
"""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_origin, get_type_hints

import typer

from treepipe.core.errors import RunError
from treepipe.files.outputs import Failures, check_outputs

if TYPE_CHECKING:
    from treepipe.results.result import Result
    from treepipe.results.screen import Screen
    from treepipe.results.trace import Trace

Action: TypeAlias = Callable[[], object]
"""What writes one file or prints tables, once all work is done."""
Quiet = Annotated[bool, typer.Option("--quiet", help="No table and no progress.")]
HowMuch = Annotated[
    bool | None,
    typer.Option("--quiet/--verbose", show_default=False, help="Show nothing; or all figures."),
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]


def command(*options: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function of some records so that typer takes each of their fields as an option.

    A field without ``Annotated`` in its type is no option; typer gives it its ``Context``.
    """
    own = {record: _parameters(record) for record in options}
    parameters = [parameter for each in own.values() for parameter in each]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            function(*(r(**{p.name: given[p.name] for p in each}) for r, each in own.items()))

        called.__name__, called.__doc__ = function.__name__, function.__doc__
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return decorate


def _parameters(record: type) -> list[inspect.Parameter]:
    hints = get_type_hints(record, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(record)
        if get_origin(hints[each.name]) is Annotated or hints[each.name] is typer.Context
    ]


@dataclass(frozen=True, kw_only=True)
class OfScenario:
    """The scenario that a command reads."""

    scenario: Annotated[Path, typer.Argument(metavar="SCENARIO.toml")]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Changes to keys of the file that is read."""

    settings: Annotated[
        list[str] | None,
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
    """Changes to keys, with an option each for the two that change most often."""

    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the scenario's.")] = None
    runs: Annotated[int | None, typer.Option(min=1, help="Instead of the scenario's.")] = None

    @property
    def changes(self) -> list[str]:
        given = {"seed": self.seed, "runs": self.runs}
        return [*super().changes, *(f"{k}={v}" for k, v in given.items() if v is not None)]


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options of what a command shows and where it writes its result."""

    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the result; - is standard output."),
    ] = None
    quiet: HowMuch = None

    @property
    def silent(self) -> bool:
        """Whether no tables are printed to standard output."""
        return bool(self.quiet) or self.json == "-"

    def show(self, screen: Screen) -> Action:
        """Return what prints an answer."""
        from treepipe.results.show import print_screen

        return partial(print_screen, screen, verbose=self.quiet is False)

    def results(self, content: Mapping[str, Any], show: Action) -> list[Action]:
        """Write ``--json``, and show the result unless the command is silent."""
        from treepipe.results.result import write_json

        written = [] if self.json is None else [partial(write_json, content, self.json)]
        return [*written, *([] if self.silent else [show])]

    def check(
        self,
        files: Mapping[str, Path | str | None],
        *inputs: Path | None,
        keep: tuple[str, ...] = (),
    ) -> None:
        """Refuse, before the work, outputs that could not be written after it (``check_outputs``).

        Args:
            files: files by option, besides ``--json``.
            keep: options whose file must not exist yet.
        """
        check_outputs({"--json": self.json, **files}, inputs=inputs, keep=keep)

    def emit(self, *shown: Action | None) -> None:
        """Write and show everything, even if some of it cannot be written."""
        with Failures() as failures:
            for each in shown:
                if each is not None:
                    failures.attempt(each)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Pictures and the trace of a run."""

    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="Write Chrome/Perfetto trace events of the first run here."),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png", help="Draw the first run's timeline here."),
    ] = None

    @property
    def files(self) -> dict[str, Path | str | None]:
        """Files to write, by option."""
        return {"--trace": self.trace, "--plot": self.plot}

    def drawn(self, traces: Sequence[tuple[str, Trace]]) -> list[Action]:
        """Write ``--trace`` and ``--plot`` of named traces."""
        from treepipe.results.trace import write_chrome_trace

        found = list[Action]()
        if self.trace is not None:
            found.append(partial(write_chrome_trace, traces, self.trace, "--trace"))
        if self.plot is not None:
            from treepipe.results.timeline import draw_timelines

            found.append(partial(draw_timelines, traces, "", self.plot, option="--plot"))
        return found


@dataclass(frozen=True, kw_only=True)
class OfRuns(Output, Drawn, Changes, OfScenario):
    """Options of commands that simulate or run a scenario."""

    def outputs(self, result: Result, notes: Sequence[str] = ()) -> list[Action]:
        """Write and show a result, with further notes and with the first run's pictures; where
        workers' time goes, too, if all of it is wanted."""
        from treepipe.results.where import shares, shares_table

        drawn = self.drawn([(result.scenario, run) for run in result.traces[:1]])
        content, screen = result.to_json(), result.screen
        tables, sentences = [*screen.tables], [*screen.sentences, *notes]
        if self.quiet is False:
            workers = shares(result.traces)
            content["where_time_goes"] = {"unit": "1", "workers": workers}
            tables.append(shares_table(workers))
        screen = replace(screen, notes=[*screen.notes, *notes], tables=tables, sentences=sentences)
        return [*drawn, *self.results(content, self.show(screen))]


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """The option of commands that run many simulations."""

    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, metavar="N", help="Simulations at once; default: all cores."),
    ] = None


def check_faults(faults: Sequence[str]) -> None:
    """Raise ``RunError`` if runs were at fault; call it once all files are written."""
    if faults:
        raise RunError("; ".join(faults))


def command_line() -> str:
    """Return the command line, quoted for a shell."""
    return shlex.join(["treepipe", *sys.argv[1:]])
