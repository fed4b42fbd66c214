"""``treepipe check``: the laws of schedules, tried on a system of anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from treepipe.cli.options import Output, Quiet, command
from treepipe.core.errors import RunError, UserError
from treepipe.extras import need
from treepipe.files.outputs import check_outputs

if TYPE_CHECKING:
    from treepipe.results.sheet import Sheet
    from treepipe.testing import Law, LawOutcome


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Output):
    """Options of ``treepipe check``."""

    system: Annotated[
        str | None,
        typer.Argument(metavar="SYSTEM|FILE.py[:NAME]", help="A system's name, or its file."),
    ] = None
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            metavar="ours|transformers|FILE.py:FUNCTION",
            help="Try an engine's tree attention and cache instead of a system.",
        ),
    ] = None
    law: Annotated[
        list[str] | None, typer.Option("--law", metavar="NAME", help="This law only; again: more.")
    ] = None
    examples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Cases per trial, instead of its own.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Of the cases.")] = 0
    listed: Annotated[bool, typer.Option("--list", help="Show the laws, and do no more.")] = False
    quiet: Quiet = False

    @property
    def subject(self) -> str:
        return self.system or self.executor or ""


@command(CheckOptions)
def check(options: CheckOptions) -> None:
    """Try the laws of decoding on a system; alone, show them.

    A broken law comes with its story, and with exit code 1.
    """
    need("check", ("hypothesis",), "treepipe check")
    from treepipe import testing
    from treepipe.results.result import write_json
    from treepipe.results.show import console, print_sheet

    if options.listed or options == CheckOptions():
        for laws, whose in ((testing.LAWS, "of systems"), (testing.TREE_LAWS, "of executors")):
            print_sheet(console(), law_sheet(laws, f"laws {whose}"))
        return
    if (options.system is None) == (options.executor is None):
        raise UserError("treepipe check tries a system, by name or as FILE.py, or an --executor")
    check_outputs({"--json": options.json})
    how = options.law or (), options.examples, options.seed
    outcomes = []
    for outcome in (
        testing.check_executor(options.executor, *how)
        if options.system is None and options.executor is not None
        else testing.check(options.system or "", *how)
    ):
        outcomes.append(outcome)
        if not options.silent:
            typer.echo(f"{outcome.law.name:14} {_verdict(outcome)}")
    if options.json is not None:
        tried = [each.to_json() for each in outcomes]
        write_json({"subject": options.subject, "seed": options.seed, "laws": tried}, options.json)
    broken = [each.law.name for each in outcomes if each.verdict == "broken"]
    if broken:
        raise RunError(f"{options.subject}: broken: {', '.join(broken)}")


def _verdict(outcome: LawOutcome) -> str:
    if outcome.tried is None:
        return f"{outcome.verdict}: {outcome.unless}"
    cases = f"{outcome.tried.cases} cases in {outcome.tried.seconds:.1f} s"
    if outcome.verdict != "broken" or outcome.tried.broken is None:
        return f"{outcome.verdict} ({cases}, trial {outcome.tried.trial.name})"
    return f"BROKEN ({cases})\n{outcome.tried.broken.text()}"


def law_sheet(laws: Mapping[str, Law], title: str) -> Sheet:
    """Return a table of laws."""
    from treepipe.results.sheet import Sheet, words

    sheet = Sheet(title, words("law", "what holds", "source", "trial"), name="laws")
    for law in laws.values():
        sheet.add(law.name, law.sentence, law.source, law.trial)
    return sheet
