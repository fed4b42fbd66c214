"""Drafts of drafts in the world without time: every law holds, and a broken level breaks one."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

import treepipe.testing
from tests.worlds.examples import share_of
from tests.worlds.timeless_levels import WorldOfLevels
from treepipe.core.levels import Level, Neighbour
from treepipe.core.messages import Text
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.schedules import systems
from treepipe.testing.hashed_lm import DRAFTS
from treepipe.testing.trials import adversary, decoding

PIPESPEC = systems()["pipespec"]
LED = replace(PIPESPEC, make=lambda keys, of: PIPESPEC.make(keys, replace(of, below=True)))
"""The system where each draft has a draft of its own."""
LAWS = ["lossless", "batches", "rooms", "self_draft", "refusal", "replay"]
"""A law of each trial in the world without time; all laws of the trials are observed."""


def broken(
    monkeypatch: pytest.MonkeyPatch,
    levels: Collection[str],
    laws: Collection[str],
    examples: int,
    start: int = 0,
) -> list[str]:
    """The laws that a system with these levels breaks, each with its story."""
    monkeypatch.setattr(WorldOfLevels, "drafts", tuple(DRAFTS[name] for name in levels))
    for trials in (decoding, adversary):
        monkeypatch.setattr(trials, "TimelessWorld", WorldOfLevels)
    outcomes = [*treepipe.testing.check(LED, laws, examples, start)]
    tried = [each.tried for each in outcomes if each.verdict == "broken"]
    return [each.broken.text() for each in tried if each is not None and each.broken is not None]


@pytest.mark.parametrize(
    "levels", [("noisy",), ("perfect", "random"), ("tied", "noisy", "perfect"), ("poor",)], ids=str
)
def test_all_laws_hold_below_a_draft(
    levels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not broken(monkeypatch, levels, LAWS, share_of(48), secrets.randbelow(2**32))


def test_a_level_that_takes_a_refused_token_for_final_breaks_a_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hear(level: Level, message: Text, heard: Any = Level.hear) -> Text | None:
        final = message.final and max(message.final, message.start + len(message.tokens))
        result: Text | None = heard(level, replace(message, final=final))
        return result

    monkeypatch.setattr(Level, "hear", hear)
    assert broken(monkeypatch, ("noisy",), ["drafted"], 30)


def level(*tokens: int, final: int = 2) -> Level:
    return Level(Text(1, 0, tokens, final), 9, last=True)


def drafts(of: Level, token: int) -> tuple[DraftPass, Text | None]:
    """Its next pass, each of whose rows says this token, and its news for the draft above."""
    order = of.next_pass()
    assert order is not None
    rows = [[token]] * max(1, len(order.tokens))
    return order, of.drafted(Drafted(order.ticket, rows, [[-0.1]] * len(rows)))[0]


def test_a_level_reads_what_it_adopts_and_drops_what_is_wrong() -> None:
    """Text 5 6, drafted 7 7 7; the one above says 5 6 7 8 9 of which 7 is final."""
    of = level(5, 6)
    assert [drafts(of, 7)[0].catch_up, *(drafts(of, 7)[0].tokens for _ in range(2))] == [
        (5, 6), (7,), (7,)
    ]  # fmt: skip
    assert of.hear(Text(1, 2, (7, 8, 9), 3)) is None
    order, news = drafts(of, 4)
    assert (order.keep, order.accepted, order.tokens) == ((0,), 1, (8, 9))
    assert news == Text(1, 3, (8, 9, 4))


def test_a_level_begins_anew_below_a_token_that_it_had_otherwise() -> None:
    of = level(5, 6)
    for _ in range(3):
        drafts(of, 7)
    assert of.hear(Text(1, 2, (8,), 3)) is None
    order, news = drafts(of, 4)
    assert (order.catch_up, order.reset) == ((8,), True)
    assert news == Text(1, 2, (8, 4))


def test_a_level_that_is_ahead_of_the_one_above_goes_on_until_its_bound() -> None:
    of = level(5, 6)
    for n in range(9):
        assert drafts(of, n)[1] == Text(1, 2 + n, (n,))
    assert of.next_pass() is None
    assert of.hear(Text(1, 2, (0,), 3)) is None
    assert drafts(of, 9)[0].accepted == 1


def test_neighbours_hear_only_what_is_new() -> None:
    above = Neighbour(Text(1, 0, (5, 6), 2))
    assert above.news(1, [5, 6], 2) is None
    assert above.news(1, [5, 6, 7, 8], 2) == Text(1, 2, (7, 8), 2)
    assert above.news(1, [5, 6, 7, 9, 9], 3) == Text(1, 3, (9, 9), 3)
    assert above.news(1, [5, 6, 7], 3) == Text(1, 3, (), 3)
    above.hear(Text(1, 2, (7, 1)))
    assert above.guesses([5, 6, 7], 5) == [1]
    assert above.guesses([5, 6, 8], 5) == ()


def test_a_token_that_is_final_before_the_level_has_read_it_is_read_once() -> None:
    of = level(5, 6, 7, 8)
    assert of.hear(Text(1, 4, (), 3)) is None
    assert [drafts(of, 4)[0].catch_up, drafts(of, 4)[0].tokens] == [(5, 6, 7), (8,)]
