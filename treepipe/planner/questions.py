"""The questions that ``treepipe plan --question`` answers by a formula, without a search, and two
of them: how many tokens to draft by the number of streams, and whether drafting pays at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pkgutil import resolve_name
from typing import Any, Protocol, cast

from treepipe.files.reading import named
from treepipe.planner.cluster import Cluster
from treepipe.planner.depths import GOOD_ENOUGH, MOST_STREAMS, SHOWN, Depths, times
from treepipe.planner.drawn import FEWEST_CASES
from treepipe.report.page import Chapter, Report, background
from treepipe.results.screen import Screen, Shown
from treepipe.results.sheet import Sheet, columns, figures
from treepipe.scenario.making import taken_as_exact
from treepipe.scenario.scale import Estimated
from treepipe.scenario.scenario import Scenario

DEPTH = "How many tokens to draft, by the number of streams?"
WORTH = "Does speculation pay here, and up to which load?"
QUESTIONS = {
    "depth": "treepipe.planner.questions:depth_answer",
    "saturation": "treepipe.planner.saturation:saturation_answer",
    "split": "treepipe.planner.split_question:split_answer",
    "worth": "treepipe.planner.questions:worth_answer",
}
"""The function that answers each question, by its import path."""
QUESTION_ROWS = 11
"""Most rows of a question's table, which has nothing else to show."""


class Answered(Protocol):
    """What a formula found for a scenario, and in the ``cases`` of its uncertain ``inputs``."""

    @property
    def scenario(self) -> Scenario: ...
    @property
    def inputs(self) -> Mapping[Estimated, float]: ...
    @property
    def cases(self) -> Sequence[object]: ...
    @property
    def warnings(self) -> Sequence[str]: ...

    def as_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True, repr=False)
class QuestionAnswer(Shown):
    """What a question finds.

    Attributes:
        asks: the question in words.
        sentences: the answer in two or three sentences, and what it leaves out.
    """

    name: str
    asks: str
    result: Answered
    sentences: Sequence[str]
    table: Sheet

    @property
    def screen(self) -> Screen:
        exact, warnings = taken_as_exact(self.result.scenario), self.result.warnings
        answer, *notes = self.sentences
        says, tables = answer.removesuffix("."), [self.table]
        return Screen(says, self.table, notes, warnings, exact, tables, notes, rows=QUESTION_ROWS)

    @property
    def content(self) -> Mapping[str, Any]:
        """The file of ``--json``."""
        return {
            "schema": "treepipe.plan/1",
            "cluster": self.result.scenario.name,
            "question": self.name,
            "answer": self.screen.answer,
            **self.result.as_dict(),
            "cases": len(self.result.cases),
            "warnings": list(self.result.warnings),
        }

    def page(self, command: str) -> Report:
        """Return the page that shows the answer."""
        scenario, screen = self.result.scenario, self.screen
        last = background(scenario, [*screen.warnings, *screen.exact], command)
        first = Chapter("Table", screen.notes, [self.table])
        return Report(f"{self.asks} ({scenario.name})", screen.answer, [first, *last])


def question(name: str) -> Callable[[Cluster], QuestionAnswer]:
    """Return what answers a question for a cluster; both raise ``UserError``."""
    answers = resolve_name(named(QUESTIONS, name, "--question"))
    return cast("Callable[[Cluster], QuestionAnswer]", answers)


def depth_table(found: Depths) -> Sheet:
    heads = columns("streams", "drafted|d", "tokens of a round|.2f", "round (ms)|.4g")
    sheet = Sheet("Tokens to draft, and the gain over plain decoding", [*heads, *figures("gain")])
    for first, last, depth in found.ranges:
        sheet.add(
            f"{first} to {last}" if last > first else f"{first}",
            depth,
            float(found.tokens[depth]),
            float(found.periods_ms[first - 1, depth]),
            times(found.gain(first, depth), "-"),
        )
    return sheet


def depth_answer(cluster: Cluster) -> QuestionAnswer:
    found = Depths.of(cluster)
    first = found.ranges[0]
    drafted = (
        f"Draft {first.depth} token{'s' * (first.depth > 1)}" if first.depth else "Draft nothing"
    )
    sentences = [
        f"{drafted} for {f'up to {first.last} streams' if first.last > 1 else '1 stream'}; the "
        f"table has the others, and the speed at the first of each range.",
        paying(found),
        *left_out(found),
    ]
    return QuestionAnswer("depth", DEPTH, found, sentences, depth_table(found))


def worth_answer(cluster: Cluster) -> QuestionAnswer:
    found = Depths.of(cluster)
    title = "Tokens/s of a stream without and with drafting, and tokens of a round"
    heads = columns("streams|d", "drafted|d", "plain|.4g", "drafting (tokens/s)|.4g")
    sheet = Sheet(title, [*heads, *figures("gain"), *columns("tokens|.2f", "pays at|.2f")])
    gains = list[float]()
    for streams in SHOWN:
        depth = max(1, found.best(streams))
        plain, drafting = found.periods_ms[streams - 1, [0, depth]].tolist()
        tokens, gain = float(found.tokens[depth]), found.gain(streams, depth)
        gains.append(gain.mean)
        speeds = 1e3 / plain, 1e3 * tokens / drafting
        sheet.add(streams, depth, *speeds, times(gain, "-"), tokens, drafting / plain)
    alone = found.gain(1, max(1, found.best(1)))
    verdict = "pays" if alone.mean > 1 else "does not pay"
    steps = any(more > less * (1 + GOOD_ENOUGH) for less, more in pairwise(gains))
    sentences = [
        f"For one stream speculation {verdict}: {times(alone)} times the speed of plain decoding.",
        paying(found),
        *["More streams gain more in places: passes take steps with their rows."] * steps,
        *left_out(found),
    ]
    return QuestionAnswer("worth", WORTH, found, sentences, sheet)


def paying(found: Depths) -> str:
    """Say up to how many streams drafting pays, with the interval over the cases."""
    last, spread = found.last_paying, ""
    if last.low is not None and last.high is not None:
        spread = f" (in 95 % of {len(found.cases)} cases {last.low:.0f} to {last.high:.0f})"
    if not last.mean:
        return f"Drafting does not pay at any number of streams{spread}."
    if found.gains[: int(last.mean), 1:].max(axis=1).min() < 1 - GOOD_ENOUGH:
        spread += ", and of fewer only where the table has a gain"
    if last.mean == MOST_STREAMS:
        return f"Drafting pays up to {MOST_STREAMS} streams, the most that were tried{spread}."
    return f"Do not speculate above {last.mean:.0f} streams{spread}."


def left_out(found: Answered) -> list[str]:
    """Say what the intervals hold, and what the formula does not know."""
    of = ", ".join(f"{each} ±{share * 100:.3g} %" for each, share in found.inputs.items())
    if not found.inputs:
        known = "No input states its uncertainty, so there is no interval."
    elif len(found.cases) < FEWEST_CASES:
        known = (
            f"Uncertain are {of}; fewer than {FEWEST_CASES} cases (search.cases) tell no interval."
        )
    else:
        known = (
            f"An interval holds 95 % of {len(found.cases)} cases of {of}; a figure without one "
            f"hardly depends on these."
        )
    return [
        known,
        "The formula leaves out prefill, queues, contexts, what further requests add to a pass "
        "(request_ms) and an engine's own work beside its passes; it takes all streams of a batch "
        "as drafting the same number of tokens.",
    ]
