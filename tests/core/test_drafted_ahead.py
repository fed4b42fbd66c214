"""A static tree whose successor is drafted meanwhile: what is asked, and what a guess is worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Command, Drafted, DraftPass, Feed, Returned, Started, Withdraw
from treepipe.core.schedules import systems
from treepipe.core.scratch import Scratch
from treepipe.core.system import ScheduleContext

LINE = 100
"""The text, and the draft's first candidate: each token is its predecessor plus one."""


class Line:
    """A schedule beside a draft that always continues the line, its second candidate far away."""

    def __init__(self, branching: tuple[int, ...]) -> None:
        system = systems()["specinfer"]
        keys = system.parameters(branching=branching, draft_ahead=True)
        self.schedule = system.make(keys, ScheduleContext(1, 2))
        self.scratch = Scratch[int]()
        self.passes = list[DraftPass]()
        self.fed = list[Feed]()
        self.withdrawn = list[int]()
        self.take(self.schedule.handle(Started((LINE - 1,), 40)))
        self.back((LINE,))

    def take(self, commands: Sequence[Command]) -> None:
        self.passes += [each for each in commands if isinstance(each, DraftPass)]
        self.fed += [each for each in commands if isinstance(each, Feed)]
        self.withdrawn += [each.ticket for each in commands if isinstance(each, Withdraw)]

    def back(self, answers: tuple[int, ...]) -> None:
        segment = self.fed[-1].segment
        self.take(
            self.schedule.handle(Returned(segment.ticket, segment.version, segment.start, answers))
        )

    def answer(self) -> None:
        """The draft's pass that was asked for last."""
        order = self.passes[-1]
        self.scratch.follow(order)
        read = order.tokens or order.catch_up[-1:]
        ids = [[token + 1, -token][: order.top_k] for token in read]
        logs = np.log([[0.9, 0.1][: order.top_k]] * len(read))
        self.take(self.schedule.handle(Drafted(order.ticket, ids, logs)))


@pytest.fixture
def line() -> Line:
    """A tree of 2 + 2 nodes is in the pipeline, and the guess is asked for."""
    made = Line((2, 1))
    made.answer()
    made.answer()
    return made


def test_the_likeliest_path_is_read_to_its_end(line: Line) -> None:
    assert [segment.segment.tokens for segment in line.fed][1][0] == LINE
    guess = line.passes[-1]
    assert (guess.tokens, guess.parents, guess.keep) == ((LINE + 2,), (0,), (0,))
    assert guess.top_k == 1
    assert line.schedule.listens


def test_a_guess_that_holds_is_fed_at_once(line: Line) -> None:
    for _ in range(3):  # the guessed token, and the tree below it
        line.answer()
    asked = len(line.passes)
    tokens = line.fed[-1].segment.tokens
    line.back(tuple(token + 1 for token in tokens))
    assert line.fed[-1].segment.tokens[0] == LINE + 3
    order = line.passes[-1]
    assert len(line.passes) == asked + 1
    assert order.accepted == 3, "the path and the guess are committed with the next pass"
    line.answer()
    assert line.scratch.read == 2 + 3


def test_a_tree_that_is_under_way_is_finished(line: Line) -> None:
    line.answer()
    fed = len(line.fed)
    line.back(tuple(token + 1 for token in line.fed[-1].segment.tokens))
    assert len(line.fed) == fed
    line.answer()
    line.answer()
    assert line.fed[-1].segment.tokens[0] == LINE + 3


@pytest.mark.parametrize("known", [0, 1, 3])
def test_a_guess_that_fails_costs_what_no_guess_does(line: Line, known: int) -> None:
    for _ in range(known):
        line.answer()
    useless = [] if known == 3 else [line.passes[-1].ticket]
    line.back((7,) * len(line.fed[-1].segment.tokens))
    assert line.withdrawn == useless, "of the guess no further pass begins"
    order = line.passes[-1]
    assert order.reset
    assert order.catch_up == (7,), "the root was read, what was guessed is dropped"
    assert not line.schedule.listens


@pytest.mark.parametrize("known", [0, 1, 3])
@pytest.mark.parametrize("accepted", [1, 2])
def test_of_a_path_that_was_guessed_the_accepted_part_is_kept(
    line: Line, known: int, accepted: int
) -> None:
    """Its leaf, too, if the draft has read it to guess the token behind it."""
    for _ in range(known):
        line.answer()
    tokens = line.fed[-1].segment.tokens
    line.back(tuple(token + 1 if token < LINE + accepted else 7 for token in tokens))
    order = line.passes[-1]
    kept = accepted if known else 1
    assert order.cut == (tuple(range(kept)), kept)
    assert order.catch_up == (*range(LINE + 1 + kept, LINE + 1 + accepted), 7)


def test_what_was_read_as_a_guess_is_read_again_after_a_failure(line: Line) -> None:
    for _ in range(3):
        line.answer()
    line.back(tuple(token + 1 for token in line.fed[-1].segment.tokens))
    line.back((7,) * len(line.fed[-1].segment.tokens))
    assert line.passes[-1].catch_up == (7,)
    assert line.passes[-2].accepted == 3


def test_a_chain_of_one_hangs_its_guess_at_the_root() -> None:
    line = Line((1,))
    line.answer()
    assert line.passes[-1].parents == (NO_PARENT,)
    line.answer()
    assert (line.passes[-1].tokens, line.passes[-1].parents) == ((LINE + 2,), (0,))
