"""The table of analyses of a search's answer; each is an option of ``treepipe plan``.

The command, the result file, the terminal and the report iterate over these and know no single one.
Nothing here imports an analysis's computations, as the command line lists the options first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, cast

from treepipe.results.screen import Screen

if TYPE_CHECKING:
    from typing_extensions import Self

    from treepipe.planner.cluster import Cluster
    from treepipe.planner.halving import SearchResult
    from treepipe.progress import Progress
    from treepipe.report.page import Picture
    from treepipe.results.sheet import Sheet


@dataclass(frozen=True, slots=True)
class Analysis:
    """An analysis as the command line and reports see it.

    Attributes:
        name: name of the option, ``--NAME``.
        help: description of the option, in a sentence.
        heading: heading of its chapter in a report.
        finds: import path MODULE:CLASS of its ``Finding``.
        also: name of a second option, which may be repeated, with what the analysis is to look at.
        takes: placeholder for that option's value.
        also_help: its description.
    """

    name: str
    help: str
    heading: str
    finds: str
    also: str = ""
    takes: str = ""
    also_help: str = ""

    @property
    def option(self) -> str:
        return option_of(self.name)

    @property
    def finding(self) -> type[Finding]:
        """Import and return the class that ``finds`` names."""
        return cast("type[Finding]", resolve_name(self.finds))


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


class Finding:
    """The result of an analysis; made without arguments, an empty result.

    Attributes:
        draws: whether the result includes a picture.
    """

    draws: ClassVar[bool] = False

    @classmethod
    def check(cls, cluster: Cluster, given: Sequence[str]) -> None:
        """Raise ``UserError`` if the analysis is impossible, before a search that may take minutes.

        Args:
            given: ``ALL`` for the flag, and the second option's values, as in ``run``.
        """

    @classmethod
    def run(cls, result: SearchResult, say: Progress, given: Sequence[str] = ()) -> Self:
        """Analyse a search's answer.

        Raises:
            UserError: an input of the analysis is wrong.
            RunError: a simulation came to a standstill.
        """
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """Return the result's keys in the file ``treepipe.plan/1``."""
        raise NotImplementedError

    def screen(self, result: SearchResult) -> Screen | None:
        """What is shown of it, below the plan; None if there is no result."""
        tables = self.tables(result)
        return Screen(tables[0].title, tables[0], tables=tables) if tables else None

    def tables(self, result: SearchResult) -> list[Sheet]:
        return []

    def pictures(self, result: SearchResult) -> list[Picture]:
        return []


ALL = "all"
"""What a flag gives its analysis."""
_TABLE = (
    Analysis(
        "sensitivity",
        "Show what 10 % of each input does, and where another schedule becomes the best.",
        "What the answer hangs on",
        "treepipe.planner.sensitivity:Sensitivities",
        also="break_even",
        takes="KEY[=LOW:HIGH]",
        also_help="The same of any input, e.g. scale.latency=0.5:20.",
    ),
    Analysis(
        "capacity",
        "Find the largest arrival rate that keeps the limits.",
        "Load",
        "treepipe.planner.capacity:Capacities",
    ),
    Analysis(
        "robust",
        "Show what jitter, bursts, slow and lost devices do to it.",
        "Where things go wrong",
        "treepipe.planner.robustness:StressCases",
    ),
)
ANALYSES = {each.name: each for each in _TABLE}
"""All analyses by name, in the order of presentation."""


def with_empty(done: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return the findings of all analyses by name; those not requested are empty."""
    return {name: done.get(name) or each.finding() for name, each in ANALYSES.items()}
