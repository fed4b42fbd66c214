"""Trying the laws on a system: which trials are run, and the outcome of each law."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from treepipe.core.errors import UserError
from treepipe.core.schedules import REGISTRY, systems
from treepipe.core.system import System
from treepipe.testing.case import Case
from treepipe.testing.law import LAWS, Law, LawBroken
from treepipe.testing.story import Story
from treepipe.testing.trial import Trial
from treepipe.testing.trials import TRIALS


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest case found in which a law does not hold.

    Attributes:
        law: name of the broken law.
        sentence: what was seen.
        case: the values that replay it.
        story: what happened in it.
    """

    system: str
    trial: str
    law: str
    sentence: str
    case: Mapping[str, Any]
    story: Story

    def text(self) -> str:
        """The law, what was seen, the story and the line that replays it."""
        head = f"{self.law}: {LAWS[self.law].sentence} ({LAWS[self.law].source})"
        return "\n".join([head, self.sentence, *self.story.lines(), self.line])

    @property
    def line(self) -> str:
        """A line of Python that replays it."""
        values = ", ".join(f"{name}={value!r}" for name, value in self.case.items())
        return f"treepipe.testing.replay({self.system!r}, {self.trial!r}, dict({values}))"


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of one trial.

    Attributes:
        cases: number of cases tried, those of shrinking included.
        broken: None if every law held.
    """

    trial: Trial
    cases: int
    seconds: float
    broken: Counterexample | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one law: "holds", "broken", "not reached" (another law of its trial broke
    first) or "does not apply" (``unless`` says why)."""

    law: Law
    verdict: str
    tried: Tried | None = None
    unless: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as a value of JSON."""
        found: dict[str, Any] = {"law": self.law.name, "verdict": self.verdict}
        if self.tried is not None:
            found |= {"trial": self.tried.trial.name, "cases": self.tried.cases}
            broken = self.tried.broken
            if broken is not None and self.verdict == "broken":
                found |= {"sentence": broken.sentence, "replay": broken.line}
                found["story"] = [*broken.story.lines()]
        return found


SHRINK_S = 20.0
"""Seconds that the search for a smaller case may take."""


class _Enough(BaseException):
    """Ends hypothesis, which lets no ``Exception`` through."""


@dataclass
class _Found:
    """The smallest case that failed so far, and when the first one did."""

    cases: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    since: float = inf

    def note(self, values: dict[str, Any], error: Exception) -> None:
        now = time.perf_counter()
        if self.error is None or len(repr(values)) <= len(repr(self.values)):
            self.values, self.error = values, error
        self.since = min(self.since, now)
        if now - self.since > SHRINK_S:
            raise _Enough from None


def run_trial(system: System, trial: Trial, examples: int | None = None, start: int = 0) -> Tried:
    """Try a trial on many cases, and shrink the first one that fails.

    Args:
        examples: number of cases; None: as many as the trial states.
        start: seed of the cases.
    """
    found, began = _Found(), time.perf_counter()

    @seed(start)
    @settings(
        max_examples=examples or trial.examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
    )
    @given(st.data())
    def law_holds(data: st.DataObject) -> None:
        case = Case(data.draw)
        found.cases += 1
        try:
            trial.run(system, case)
        except Exception as error:
            found.note(case.shortened(), error)
            raise

    broken = None
    try:
        law_holds()
    except (Exception, _Enough):
        if found.error is None:
            raise
        broken = _counterexample(system, trial, found.error, found.values)
    return Tried(trial, found.cases, time.perf_counter() - began, broken)


def _counterexample(
    system: System, trial: Trial, error: Exception, values: dict[str, Any]
) -> Counterexample:
    story, _ = replay(system, trial.name, values)
    if isinstance(error, LawBroken):
        law, sentence = error.law, str(error).partition(": ")[2]
    else:  # the schedule itself failed
        law, sentence = "protocol", f"{type(error).__name__}: {error}"
    return Counterexample(system.name, trial.name, law, sentence, values, story)


def found_system(system: str | System) -> System:
    """Return the record of a system that is named: in the table, or as FILE.py or FILE.py:NAME.

    Raises:
        UserError: there is none, or the file cannot be loaded.
    """
    if isinstance(system, System):
        return system
    file, _, name = system.partition(":")
    if not file.endswith(".py"):
        if system not in systems():
            raise UserError(f"there is no system {system!r}; there are {', '.join(systems())}")
        return systems()[system]
    if file not in _LOADED:
        _LOADED[file] = {record.name: record for record in REGISTRY.of_file(Path(file))}
    found = _LOADED[file]
    if not name and len(found) > 1:
        raise UserError(f"{file} has {', '.join(found)}: name one, as {file}:{next(iter(found))}")
    if name and name not in found:
        raise UserError(f"{file} has no system {name!r}; it has {', '.join(found)}")
    return found[name or next(iter(found))]


_LOADED: dict[str, dict[str, System]] = {}
"""Records by name, by file: its code runs once."""


def check(
    system: str | System,
    laws: Collection[str] = (),
    examples: int | None = None,
    start: int = 0,
) -> Iterator[Outcome]:
    """Try laws on a system, and yield the outcome of each.

    Args:
        system: its record, or a name as ``found_system`` takes it.
        laws: names; empty: all of them.
        examples: number of cases per trial; None: as many as each trial states.
        start: seed of the cases.

    Raises:
        UserError: there is no such system or law.
    """
    system = found_system(system)
    for name in {*laws} - {*LAWS}:
        raise UserError(f"there is no law {name!r}; there are {', '.join(LAWS)}")
    wanted = [law for name, law in LAWS.items() if not laws or name in laws]
    for name in dict.fromkeys(law.trial for law in wanted):
        trial, own = TRIALS[name], [law for law in wanted if law.trial == name]
        if not trial.applies(system):
            yield from (Outcome(law, "does not apply", unless=trial.unless) for law in own)
            continue
        tried = run_trial(system, trial, examples, start)
        yield from outcomes(tried, own)


def outcomes(tried: Tried, own: Collection[Law]) -> Iterator[Outcome]:
    """Yield the outcomes of a trial's laws; a law of another trial may have broken in it."""
    broken = None if tried.broken is None else tried.broken.law
    if broken is not None and broken not in [law.name for law in own]:
        yield Outcome(LAWS[broken], "broken", tried)
    for law in own:
        verdict = "holds" if broken is None else "broken" if law.name == broken else "not reached"
        yield Outcome(law, verdict, tried)


def replay(
    system: str | System, trial: str, values: Mapping[str, Any]
) -> tuple[Story, Exception | None]:
    """Run one case again; return its story, and the error that ended it (None: all laws hold)."""
    story = Story()
    try:
        TRIALS[trial].run(found_system(system), Case.replaying(values, story))
    except Exception as error:
        return story, error
    return story, None
