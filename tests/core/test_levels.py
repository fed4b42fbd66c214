"""Drafts of drafts in the world without time: every law holds, and a broken level breaks one."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

import treepipe.testing
from tests.worlds.examples import share_of
from treepipe.core.levels import Level, LevelDesk, Neighbour
from treepipe.core.messages import Close, Text
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.system import System
from treepipe.testing import checking
from treepipe.testing.case import TrialCase
from treepipe.testing.trials import adversary, decoding

LAWS = ["lossless", "batches", "rooms", "self_draft", "refusal", "replay"]
"""A law of each trial in the world without time; all laws of the trials are observed."""


def broken(
    monkeypatch: pytest.MonkeyPatch,
    levels: Sequence[str],
    laws: Sequence[str],
    examples: int = 15,
    start: int = 0,
) -> dict[str, str]:
    """The laws that ``pipespec`` with these drafts of its draft breaks, of those that are tried,
    each with its story."""
    drawn = decoding.drawn_levels

    def these(system: System, keys: Any, stages: int, case: TrialCase) -> Any:
        case.draw("levels", st.just([*levels]))
        return drawn(system, keys, stages, TrialCase.replaying(case.values))

    for trials in (decoding, adversary):
        monkeypatch.setattr(trials, "drawn_levels", these)
    outcomes = treepipe.testing.check("pipespec", laws, examples, start)
    return {
        each.law.name: each.tried.broken.text() if each.tried and each.tried.broken else ""
        for each in outcomes
        if each.verdict != "holds"
    }


@pytest.mark.parametrize(
    "levels", [("noisy",), ("perfect", "random"), ("tied", "noisy", "perfect")]
)
def test_all_laws_hold_below_a_draft(
    levels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not broken(monkeypatch, levels, LAWS, share_of(48), secrets.randbelow(2**32))


def final_too_early(level: Level, message: Text, heard: Any = Level.hear) -> list[Text]:
    """Takes what the draft above has drafted for final, though the target may refuse it."""
    final = message.final and max(message.final, message.start + len(message.tokens))
    result: list[Text] = heard(level, replace(message, final=final))
    return result


def forgets_nothing(desk: LevelDesk, message: Text | Close, heard: Any = LevelDesk.hear) -> Any:
    """Keeps a request that is over."""
    known = dict(desk.levels)
    letters = heard(desk, message)
    desk.levels.update(known)
    return letters


def one_further(level: Level, of: Any = Level.room) -> int:
    """Drafts a token more than the draft has room for."""
    return int(of.fget(level)) + 1


@pytest.mark.parametrize(
    ("kind", "name", "fault", "law"),
    [
        (Level, "hear", final_too_early, "drafted"),
        (LevelDesk, "hear", forgets_nothing, "freed"),
        (Level, "room", property(one_further), "bounds"),
    ],
    ids=["hear", "forget", "room"],
)
def test_the_tool_finds_a_broken_hierarchy(
    kind: type, name: str, fault: Any, law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``treepipe check pipespec --law LAW`` does, whose cases draw the drafts below a draft."""
    monkeypatch.setattr(kind, name, fault)
    monkeypatch.setattr(checking, "SHRINK_S", 0.0)  # nothing is asked of the story
    (outcome,) = [e for e in treepipe.testing.check("pipespec", [law]) if e.law.name == law]
    assert outcome.verdict == "broken"


def level(*tokens: int, final: int = 2) -> Level:
    made = Level(1, 9)
    assert made.hear(Text(1, 0, tokens, final)) == [Text(1, 0, tokens, final)]
    return made


def drafts(of: Level, token: int) -> tuple[DraftPass, Text]:
    """Its next pass, each of whose rows says this token, and its news for the draft above."""
    assert of.room
    order = of.next_pass()
    rows = [[token]] * max(1, len(order.tokens))
    told = of.drafted(Drafted(order.ticket, rows, [[-0.1]] * len(rows)))
    (news,) = [each for each in told if not each.final]
    return order, news


def test_a_level_reads_what_it_adopts_and_drops_what_is_wrong() -> None:
    """Text 5 6, drafted 7 7 7; the one above says 5 6 7 8 9 of which 7 is final."""
    of = level(5, 6)
    assert [drafts(of, 7)[0].catch_up, *(drafts(of, 7)[0].tokens for _ in range(2))] == [
        (5, 6), (7,), (7,)
    ]  # fmt: skip
    of.hear(Text(1, 2, (7, 8, 9), 3))
    order, news = drafts(of, 4)
    assert (order.keep, order.accepted, order.tokens) == ((0,), 1, (8, 9))
    assert news == Text(1, 3, (8, 9, 4))


def test_a_level_begins_anew_below_a_token_that_it_had_otherwise() -> None:
    of = level(5, 6)
    for _ in range(3):
        drafts(of, 7)
    of.hear(Text(1, 2, (8,), 3))
    order, news = drafts(of, 4)
    assert (order.catch_up, order.reset) == ((8,), True)
    assert news == Text(1, 2, (8, 4))


def test_a_level_that_is_ahead_of_the_one_above_goes_on_until_its_bound() -> None:
    of = level(5, 6)
    for n in range(9):
        assert drafts(of, n)[1] == Text(1, 2 + n, (n,))
    assert not of.room
    of.hear(Text(1, 2, (0,), 3))
    assert drafts(of, 9)[0].accepted == 1


def test_neighbours_hear_only_what_is_new() -> None:
    above = Neighbour()
    above.hear(Text(1, 0, (5, 6), 2))
    assert above.news(1, [5, 6], 2) == []
    assert above.news(1, [5, 6, 7, 8], 2) == [Text(1, 2, (7, 8), 2)]
    assert above.news(1, [5, 6, 7, 9, 9], 3) == [Text(1, 3, (9, 9), 3)]
    assert above.news(1, [5, 6, 7], 3) == [Text(1, 3, (), 3)]
    above.hear(Text(1, 2, (7, 1)))
    assert above.guesses([5, 6, 7], 5) == [1]
    assert above.guesses([5, 6, 8], 5) == ()


def test_a_token_that_is_final_before_the_level_has_read_it_is_read_once() -> None:
    of = level(5, 6, 7, 8)
    of.hear(Text(1, 4, (), 3))
    assert [drafts(of, 4)[0].catch_up, drafts(of, 4)[0].tokens] == [(5, 6, 7), (8,)]
