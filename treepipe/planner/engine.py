"""What a serving engine accepts of a plan: the file that ``treepipe plan --out-config`` writes.

An engine is one file under ``engines/`` that ends in its record, with its documented options beside
it (``NAME.toml``: facts with their source and version). No file is written with an option or a
value that is not documented there.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treepipe.core.drafts.ngram import LookupKeys
from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.files.reading import named, visible
from treepipe.files.toml_file import read_toml
from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import DepthRange, Depths, times
from treepipe.planner.questions.worth import left_out, paying
from treepipe.planner.report import headline
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario

if TYPE_CHECKING:
    from treepipe.planner.halving import SearchResult

Settings = Mapping[str, Any]
"""Values by documented option; a dot leads into an option's own table."""
FOLDER = Path(__file__).parent / "engines"
UNNAMED = "DRAFT-CHECKPOINT"


@dataclass(frozen=True, slots=True)
class Served:
    """A plan as engines need it.

    Attributes:
        layers: of each stage; empty if the number of layers is unknown.
        depths: None if the plan does not draft.
        reasons: sentences for the file's head.
    """

    scenario: Scenario
    layers: tuple[int, ...]
    depths: Depths | None
    reasons: Sequence[str]

    @property
    def stages(self) -> int:
        return sum(stage.count for stage in self.scenario.pipelines[0].stages)

    @property
    def streams(self) -> int:
        """Requests that are open at once, by the workload."""
        workload = self.scenario.workload
        return min(workload.concurrency, workload.requests)

    @property
    def ranges(self) -> Sequence[DepthRange]:
        """By number of streams; empty if nothing is ever drafted."""
        found = self.depths.ranges if self.depths is not None else []
        return found if any(each.depth for each in found) else []

    @property
    def uneven(self) -> str:
        """The stages' layers as engines take them; empty if they are equal or unknown."""
        return ",".join(map(str, self.layers)) if len({*self.layers}) > 1 else ""

    @property
    def ngram(self) -> int:
        """Longest suffix that a draft looks up."""
        keys = self.scenario.drafts[0].parameters
        assert isinstance(keys, LookupKeys)  # the only draft without weights that engines have
        return keys.ngram

    @property
    def draft(self) -> str:
        """The draft's checkpoint, or a word that stands for it (engines have no bundled one)."""
        named = self.scenario.drafts[0].checkpoint
        return UNNAMED if named in (None, "reference") else named


@dataclass(frozen=True)
class Engine:
    """A serving engine.

    Attributes:
        file: name of its table of options, without the suffix.
        settings: a plan's options; also sentences on what it takes besides them.
        text: writes options as the engine reads them.
        mark: what begins a comment.
    """

    name: str
    file: str
    settings: Callable[[Engine, Served], tuple[Settings, Sequence[str]]]
    text: Callable[[Settings], str]
    mark: str = "#"

    @cached_property
    def documented(self) -> dict[str, Any]:
        """The table of options, with its source and version."""
        return read_toml(FOLDER / f"{self.file}.toml")

    def check_system(self, schedule: str) -> None:
        """Raise ``UserError`` if the engine does not decode as this system does."""
        if schedule not in self.documented["systems"]:
            raise UserError(
                f"--engine {self.name}: the best plan's system {schedule!r} "
                f"({systems()[schedule].summary}) is none that it runs as planned; those are "
                f"search.schedules = {self.documented['systems']}"
            )

    def method(self, served: Served) -> str:
        """Return the engine's name of the draft; raises ``UserError`` if it has none."""
        source, known = served.scenario.drafts[0].source, self.documented["methods"]
        if source not in known:
            raise UserError(
                f"--engine {self.name}: it documents no draft like drafts.source = {source!r}; it "
                f"has those of {', '.join(known)}"
            )
        return str(known[source])

    def config(self, served: Served) -> str:
        """Return the whole file. Raises ``UserError`` if the engine cannot run the plan."""
        settings, besides = self.settings(self, served)
        for option, value in settings.items():
            self.check(option, value)
        told = self.documented
        lines = [
            f"{served.scenario.name}: {self.name}, by treepipe plan",
            f"Options as of {told['version']}, read {told['read']}.",
            *served.reasons,
            *besides,
            *(f"It cannot: {each}." for each in told["cannot"]),
        ]
        if UNNAMED in settings.values():
            lines.append(f"Put the draft's checkpoint for {UNNAMED}: the plan names none.")
        head = [
            f"{self.mark} {part}"
            for line in lines
            for part in textwrap.wrap(visible(" ".join(line.split())), 98, break_long_words=False)
        ]
        return "\n".join([*head, self.text(settings)])

    def check(self, option: str, value: Any) -> None:
        """Raise ``ValueError`` if the engine documents no such option or value."""
        kind = self.documented["options"].get(option)
        fits = {
            "count": lambda: isinstance(value, int) and value >= 1,
            "text": lambda: isinstance(value, str) and bool(value),
            "flag": lambda: value is True,
            "ranges": lambda: _are_ranges(value),
        }
        good = value in kind if isinstance(kind, list) else kind is not None and fits[kind]()
        if not good:
            raise ValueError(f"{self.name}: option {option} = {value!r} is not documented ({kind})")


def _are_ranges(value: Any) -> bool:
    """Whether ranges of batch sizes begin at 1 and follow each other."""
    ends = [0, *(last for _, last, _ in value)]
    return bool(value) and all(
        first == before + 1 <= last and depth >= 0
        for before, (first, last, depth) in zip(ends, value, strict=False)
    )


def engine(name: str) -> Engine:
    """Return an engine by its name; raises ``UserError`` if there is none."""
    from treepipe.planner.engines import llama_cpp, sglang, vllm

    known = llama_cpp.ENGINE, sglang.ENGINE, vllm.ENGINE
    return named({each.name: each for each in known}, name, "--engine")


def served_best(result: SearchResult, asked: Engine) -> Served:
    """Return a search's best plan; raises ``UserError`` if the engine cannot run its system."""
    best = result.best.candidate
    asked.check_system(best.schedule)
    reasons = [headline(result), f"The plan is {best.label}."]
    drafts = systems()[best.schedule].drafts
    depths = Depths.of(result.cluster, _one_server(best.scenario)) if drafts else None
    served = Served(best.scenario, best.layers[0], depths, reasons)
    if depths is None:
        reasons.append("Drafting does not pay in this plan, so it is off.")
    else:
        reasons += _on_drafting(depths)
    if len(best.layers) > 1:
        reasons.append(f"The plan has {len(best.layers)} pipelines: start as many servers.")
    return served


def _one_server(plan: Scenario) -> Scenario:
    """Return a plan with the first of its pipelines and of its draft servers alone."""
    content = plan.content
    for key in content.keys() & {"pipelines", "drafts"}:
        content[key] = [{**content[key][0], "count": 1}]
    return Scenario.of(content, plan.path)


def served_question(cluster: Cluster) -> Served:
    """Return chains by the formula of the questions, on the cluster file's own stages."""
    depths = Depths.of(cluster)
    stages = resolve(depths.scenario).roles.pipelines[0]
    layers = tuple(len(stage.layers) for stage in stages)
    return Served(depths.scenario, layers, depths, _on_drafting(depths))


def _on_drafting(depths: Depths) -> list[str]:
    first = depths.ranges[0]
    gain = times(depths.gain(1, first.depth))
    table = "; ".join(f"{a} to {b} streams: {depth}" for a, b, depth in depths.ranges)
    return [
        f"Tokens to draft, by a formula: {table}.",
        f"One stream is {gain} times as fast as without drafting.",
        paying(depths),
        *left_out(depths),
        *(f"Warning: {each}." for each in depths.warnings),
    ]
