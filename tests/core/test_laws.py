"""Every system holds the laws of ``treepipe.testing``; the tool finds and tells a broken one."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import treepipe.testing
from tests.worlds.examples import THOROUGH, share_of
from treepipe.core.errors import UserError
from treepipe.core.protocol import Command, Drafted, DraftPass, Event, Schedule, Started
from treepipe.core.schedules import systems
from treepipe.core.schedules.pp import Autoregressive
from treepipe.core.system import ScheduleContext
from treepipe.testing.checking import run_trial
from treepipe.testing.trials import TRIALS, sampling

SLOW = "sampling"
SAMPLED = (
    tuple(systems())
    if THOROUGH
    else ("specinfer", "eagle", "chain", "flowspec", "specpipe_db", "dsd")
)
"""Systems whose long samples are drawn: a usual run takes one of each way to verify."""
CASES = [
    pytest.param(name, trial, marks=pytest.mark.long if trial == SLOW else ())
    for trial in TRIALS
    for name in (SAMPLED if trial == SLOW else systems())
]


@pytest.fixture(autouse=True)
def _fewer_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as many sampled texts in a usual run; the gallery and ``make soak`` look at all."""
    if not THOROUGH:
        monkeypatch.setattr(sampling, "LOOKS", sampling.LOOKS[:-1])


@pytest.mark.parametrize(("name", "trial"), CASES)
def test_a_system_holds_its_laws(name: str, trial: str) -> None:
    system, tried = systems()[name], TRIALS[trial]
    if not tried.applies(system):
        pytest.skip(tried.unless)
    many = 1 if trial == SLOW and not THOROUGH else share_of(tried.examples)
    found = run_trial(system, tried, many, secrets.randbelow(2**32))
    assert found.broken is None, found.broken.text()


# --- the tool ------------------------------------------------------------------------------------


class SwapsTokens:
    """A schedule that emits the second token of every pair first."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def handle(self, event: Event) -> Sequence[Command]:
        return [
            replace(each, tokens=each.tokens[::-1]) if hasattr(each, "tokens") else each
            for each in self._schedule.handle(event)
        ]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._schedule, name)


def swapped(parameters: Any, context: ScheduleContext) -> Schedule:
    schedule: Any = SwapsTokens(systems()["eagle"].make(parameters, context))
    return schedule


SWAPPED = replace(systems()["eagle"], name="swapped", make=swapped)


def test_a_broken_law_is_told_with_a_small_story_that_can_be_replayed() -> None:
    outcomes = [*treepipe.testing.check(SWAPPED, ["lossless", "order"])]
    (broken,) = (each for each in outcomes if each.verdict == "broken")
    assert broken.tried is not None
    found = broken.tried.broken
    assert found is not None
    assert found.law == broken.law.name
    assert found.story.events <= 12
    story, error = treepipe.testing.replay(SWAPPED, found.trial, found.case)
    assert isinstance(error, treepipe.testing.LawBroken)
    assert [*story.lines()] == [*found.story.lines()]
    assert found.line in found.text()
    rest = {each.verdict for each in outcomes if each is not broken}
    assert rest <= {"not reached"}


class InVain(Autoregressive):
    """Plain decoding beside a draft whose only answer it ignores."""

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, Drafted):
            return []
        commands = super().handle(event)
        if isinstance(event, Started):
            commands.append(DraftPass(9**9, event.prompt, (), (), True, 1))
        return commands


def in_vain(parameters: Any, context: ScheduleContext) -> Schedule:
    return InVain(context.session, parameters.prefill_chunk)


def test_a_draft_whose_answer_is_ignored_is_told() -> None:
    system = replace(systems()["pp"], name="in_vain", make=in_vain, scratch_tokens=None)
    (outcome,) = treepipe.testing.check(system, ["wanted"], examples=3)
    assert outcome.verdict == "broken"
    assert outcome.tried is not None
    assert outcome.tried.broken is not None
    assert "ignores the answer to pass" in outcome.tried.broken.sentence


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    for system, part in (
        ("swap", "there is no system 'swap'; there are pp,"),
        (f"{tmp_path}/none.py", "there is no such Python file"),
        (__file__, "has no tuple SYSTEMS"),
    ):
        with pytest.raises(UserError, match=part):
            list(treepipe.testing.check(system))
    with pytest.raises(UserError, match="there is no law 'swap'; there are protocol,"):
        list(treepipe.testing.check("pp", ["swap"]))


def test_a_system_of_a_file_is_tried(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from treepipe.core.schedules import systems\n"
        "SYSTEMS = tuple(replace(systems()['pp'], name=n) for n in ('one', 'two'))\n"
    )
    for name in ("one", "two"):
        outcomes = treepipe.testing.check(f"{file}:{name}", ["order", "closed_form"], examples=2)
        assert [each.verdict for each in outcomes] == ["holds", "does not apply"]
    with pytest.raises(UserError, match=r"has one, two: name one, as .*mine.py:one"):
        list(treepipe.testing.check(str(file)))


@treepipe.testing.laws("pp", examples=2)
def test_plain_decoding() -> None:
    """One test per law, made by the decorator."""
