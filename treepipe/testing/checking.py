"""Trying laws on a subject (a system, or an executor of trees): trials, and each law's outcome.

A subject is found by name or in a Python file; ``laws`` makes one pytest test per law of a system.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from treepipe.core.errors import UserError
from treepipe.core.registry import load_file
from treepipe.core.schedules import REGISTRY, systems
from treepipe.core.system import System
from treepipe.extras import need_executor
from treepipe.testing.case import Size, Trial, TrialCase, shrunk
from treepipe.testing.law import LAWS, PROTOCOL, TREE_LAWS, Law, LawBroken
from treepipe.testing.story import Story
from treepipe.testing.tree_executor import TREE_TRIALS, TreeExecutor
from treepipe.testing.trials import TRIALS

_LOADED: dict[str, dict[str, System]] = {}
"""Records by name, by file: its code runs once."""


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


def found_executor(executor: str | TreeExecutor) -> TreeExecutor:
    """Return an executor: an adapter of ``adapters.py`` by name, or FILE.py:FUNCTION's result.

    Raises:
        UserError: there is none, the file cannot be loaded, or the function fails.
    """
    if not isinstance(executor, str):
        return executor
    file, _, name = executor.partition(":")
    if not file.endswith(".py"):
        need_executor("an executor of this project")
        from treepipe.testing.adapters import ADAPTERS, adapted

        if executor not in ADAPTERS:
            known = ", ".join(ADAPTERS)
            raise UserError(f"there is no executor {executor!r}; there are {known} and FILE.py")
        return adapted(executor)
    make: Any = getattr(load_file(Path(file)), name, None) if name else None
    if not callable(make):
        raise UserError(f"{executor}: name a function of the file that returns one: {file}:make")
    try:
        made: TreeExecutor = make()
    except Exception as error:  # any fault of somebody's code
        raise UserError(f"{executor}: {type(error).__name__}: {error}") from error
    return made


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest case found in which a law does not hold.

    Attributes:
        subject: the system or executor, as ``replay`` finds it.
        law: name of the broken law.
        sentence: what was seen.
        case: the values that replay it.
        story: what happened in it.
    """

    subject: str
    trial: str
    law: str
    sentence: str
    case: Mapping[str, Any]
    story: Story

    def text(self) -> str:
        """The law, what was seen, the story and the line that replays it."""
        law = {**TREE_LAWS, **LAWS}[self.law]
        head = f"{self.law}: {law.sentence} ({law.source})"
        return "\n".join([head, self.sentence, *self.story.lines(), self.line])

    @property
    def line(self) -> str:
        """A line of Python that replays it."""
        values = ", ".join(f"{name}={value!r}" for name, value in self.case.items())
        return f"treepipe.testing.replay({self.subject!r}, {self.trial!r}, dict({values}))"


@dataclass(frozen=True, slots=True)
class Tried:
    """The outcome of one trial.

    Attributes:
        cases: number of cases tried, those of shrinking excluded.
        broken: None if every law held.
    """

    trial: Trial
    cases: int
    seconds: float
    broken: Counterexample | None = None


@dataclass(frozen=True, slots=True)
class LawOutcome:
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
"""Processor seconds that the search for a smaller case may take."""


@dataclass
class _Found:
    """The case that failed, and the number of cases until then."""

    cases: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)
    error: Exception | None = None


def run_trial(
    subject: Any,
    trial: Trial,
    examples: int | None = None,
    start: int = 0,
    label: str | None = None,
) -> Tried:
    """Try a trial on many cases, and shrink the first one that fails.

    Args:
        examples: number of cases; None: as many as the trial states.
        start: seed of the cases.
        label: how the line that replays a counterexample names the subject; None: by its name.
    """
    found, began = _Found(), time.perf_counter()

    @seed(start)
    @settings(
        max_examples=examples or trial.examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=(Phase.generate,),
    )
    @given(st.data())
    def law_holds(data: st.DataObject) -> None:
        if found.error is not None:
            raise found.error  # hypothesis tries the case again
        case = TrialCase(data.draw)
        found.cases += 1
        try:
            trial.run(subject, case)
        except Exception as error:
            found.values, found.error = case.shortened(), error
            raise

    broken = None
    try:
        law_holds()
    except Exception:
        if found.error is None:
            raise
        called = subject.name if label is None else label
        broken = _counterexample(subject, trial, found.values, _law(found.error), called)
    return Tried(trial, found.cases, time.perf_counter() - began, broken)


def _counterexample(
    subject: Any, trial: Trial, values: Mapping[str, Any], law: tuple[str, str], label: str
) -> Counterexample:
    """Shrink a case that breaks a law, and tell it."""
    until = time.process_time() + SHRINK_S

    def size(case: Mapping[str, Any]) -> Size | None:
        story, error = _played(subject, trial, case)
        same = _law(error) == law
        return (story.events, len(story.steps), len(repr(case))) if same else None

    values = shrunk(subject, values, size, lambda: time.process_time() < until)
    values = TrialCase.replaying(values).shortened()
    story, error = _played(subject, trial, values)
    own = str(error).partition(": ")[2]
    sentence = own if isinstance(error, LawBroken) else f"{type(error).__name__}: {error}"
    return Counterexample(label, trial.name, law[0], sentence, values, story)


def _law(error: Exception | None) -> tuple[str, str]:
    """Return the law that an error breaks, and the kind of an error that is no broken law."""
    if error is None:
        return "", ""
    if isinstance(error, LawBroken):
        return error.law, ""
    return PROTOCOL, type(error).__name__


def _played(
    subject: Any, trial: Trial, values: Mapping[str, Any]
) -> tuple[Story, Exception | None]:
    story = Story()
    try:
        trial.run(subject, TrialCase.replaying(values, story))
    except Exception as error:
        return story, error
    return story, None


def check(
    system: str | System,
    laws: Collection[str] = (),
    examples: int | None = None,
    start: int = 0,
) -> Iterator[LawOutcome]:
    """Try laws on a system, and yield the outcome of each.

    Args:
        system: its record, or a name as ``found_system`` takes it.
        laws: names; empty: all of them.
        examples: number of cases per trial; None: as many as each trial states.
        start: seed of the cases.

    Raises:
        UserError: there is no such system or law.
    """
    label = system if isinstance(system, str) else None
    suite = Suite(LAWS, TRIALS)
    return suite.check(found_system(system), laws, examples, start, label)


def check_executor(
    executor: str | TreeExecutor,
    laws: Collection[str] = (),
    examples: int | None = None,
    start: int = 0,
) -> Iterator[LawOutcome]:
    """Try the laws of tree attention on an engine, as ``check`` does those of systems.

    Args:
        executor: an object of the protocol, or a name as ``found_executor`` takes it.
    """
    label = executor if isinstance(executor, str) else None
    suite = Suite(TREE_LAWS, TREE_TRIALS)
    return suite.check(found_executor(executor), laws, examples, start, label)


@dataclass(frozen=True, slots=True)
class Suite:
    """The laws of one kind of subject, and their trials."""

    laws: Mapping[str, Law]
    trials: Mapping[str, Trial]

    def check(
        self,
        subject: Any,
        laws: Collection[str],
        examples: int | None,
        start: int,
        label: str | None,
    ) -> Iterator[LawOutcome]:
        """Yield the outcome of each law, trial by trial. Raises ``UserError`` as ``check``."""
        for name in {*laws} - {*self.laws}:
            raise UserError(f"there is no law {name!r}; there are {', '.join(self.laws)}")
        wanted = [law for name, law in self.laws.items() if not laws or name in laws]
        for name in dict.fromkeys(law.trial for law in wanted):
            trial, own = self.trials[name], [law for law in wanted if law.trial == name]
            if not trial.applies(subject):
                yield from (LawOutcome(law, "does not apply", unless=trial.unless) for law in own)
                continue
            yield from self._outcomes(run_trial(subject, trial, examples, start, label), own)

    def _outcomes(self, tried: Tried, own: Collection[Law]) -> Iterator[LawOutcome]:
        """Yield the outcomes of a trial's laws; a law of another trial may have broken in it."""
        broken = None if tried.broken is None else tried.broken.law
        if broken is not None and broken not in [law.name for law in own]:
            yield LawOutcome(self.laws[broken], "broken", tried)
        for law in own:
            hidden = "broken" if law.name == broken else "not reached"
            yield LawOutcome(law, "holds" if broken is None else hidden, tried)


def replay(
    subject: str | System | TreeExecutor, trial: str, values: Mapping[str, Any]
) -> tuple[Story, Exception | None]:
    """Run one case again; return its story, and the error that ended it (None: all laws hold)."""
    if trial in TREE_TRIALS:
        executor: Any = subject
        return _played(found_executor(executor), TREE_TRIALS[trial], values)
    system: Any = subject
    return _played(found_system(system), TRIALS[trial], values)


Test = Callable[[str], None]


@cache
def _tried(system: System, trial: str, examples: int | None, start: int) -> Tried:
    """Try a trial once for all its laws."""
    return run_trial(system, TRIALS[trial], examples, start)


def laws(
    system: str | System, *, examples: int | None = None, start: int = 0
) -> Callable[[Any], Test]:
    """Make of the decorated function one test per law of a system; its body is not run.

    A law fails with its counterexample. Laws of one trial share its cases, so that one that breaks
    hides the others of its trial, which then are skipped.

    Args:
        system: its record, or a name as ``check`` takes it.
        examples: number of cases per trial; None: as many as each trial states.
        start: seed of the cases.
    """
    import pytest

    chosen = found_system(system)

    def test(law: str) -> None:
        trial = TRIALS[LAWS[law].trial]
        if not trial.applies(chosen):
            pytest.skip(trial.unless)
        broken = _tried(chosen, trial.name, examples, start).broken
        if broken is None:
            return
        if broken.law == law or LAWS[broken.law].trial != trial.name:
            pytest.fail(broken.text(), pytrace=False)
        pytest.skip(f"{broken.law} broke first")

    def decorate(function: Any) -> Test:
        test.__name__, test.__doc__ = function.__name__, function.__doc__
        test.__module__, test.__qualname__ = function.__module__, function.__qualname__
        return pytest.mark.parametrize("law", list(LAWS))(test)

    return decorate
