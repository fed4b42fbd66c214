"""How much of each chain travels: by hand, that no token is judged by what is behind it, and that
sampled texts of cut chains have the target's distribution, by enumeration of all draws."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.dock import Dock
from treepipe.core.draft_desk import DraftDesk
from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders
from treepipe.core.front_desk import ArrivalQueue
from treepipe.core.messages import Flight
from treepipe.core.protocol import Drafted, Started
from treepipe.core.schedules import systems
from treepipe.core.system import ScheduleContext
from treepipe.core.verify_length import admitted
from treepipe.testing.hashed_lm import VOCABULARY, target
from treepipe.testing.trials.sampling import PROMPT, SamplingWorld, distribution

CHAINS = [(0.9, 0.8), (0.5,)]
shares = st.lists(st.floats(0.05, 1.0), max_size=5)
slopes = st.floats(0.0, 2.0)


def chances(conditional: list[float]) -> list[float]:
    found, product = [], 1.0
    for share in conditional:
        product *= share
        found.append(product)
    return found


def test_by_hand() -> None:
    """Two roots give 2 tokens in 3 ms; with 0.9 of one more 2.9 in 4, with 0.8 3.7 in 5, with 0.5
    4.2 in 6, which is less per ms. Rows that cost next to nothing all go."""
    assert admitted(CHAINS, 0, lambda rows: 1.0 + rows) == [2, 0]
    assert admitted(CHAINS, 0, lambda rows: 10.0 + rows) == [2, 1]
    assert admitted(CHAINS, 0, lambda rows: 5.0) == [2, 1]
    assert admitted(CHAINS, 0, lambda rows: float(rows)) == [0, 0]


def test_rows_that_travel_anyway_make_room() -> None:
    assert admitted(CHAINS, 9, lambda rows: 1.0 + rows) == [2, 1]


def test_the_first_that_does_not_pay_ends_it() -> None:
    """A third row costs much, a fourth nothing: both together would pay."""
    times = {1: 1.0, 2: 1.2, 3: 2.0, 4: 2.0}
    assert (1 + 0.9) / 1.2 < (1 + 0.9 + 0.89 + 0.88) / 2.0
    assert admitted([(0.9, 0.89, 0.88)], 0, times.__getitem__) == [1]


@given(shares, shares, st.floats(0.05, 1.0), slopes, st.integers(1, 6))
def test_what_is_drafted_behind_a_token_does_not_decide_on_it(
    own: list[float], other: list[float], last: float, slope: float, step: int
) -> None:
    """Sampled text would lose the target's distribution otherwise."""

    def round_ms(rows: int) -> float:
        return 1.0 + slope * rows + rows // step

    shorter, _ = admitted([chances(own), chances(other)], 0, round_ms)
    longer, _ = admitted([chances([*own, last]), chances(other)], 0, round_ms)
    assert longer in ((shorter,) if shorter < len(own) else (shorter, shorter + 1))


def flights(orders: Orders) -> list[Flight]:
    return [message for _, message in orders.messages if isinstance(message, Flight)]


def test_requests_of_a_flight_compete_for_its_rows() -> None:
    """Two chains of two tokens: one is drafted with confidence, of the other the root goes."""
    desk = DraftDesk(0, [1], ArrivalQueue(), dock=Dock(2, rounds_ms=[lambda rows: 1.0 + rows]))
    system, fed = systems()["chain"], list[Flight]()
    for session in (1, 2):
        keys = system.parameters(gamma=2, dynamic_length=True)
        schedule = system.make(keys, ScheduleContext(session, 1))
        desk.open(session, 0, schedule, Started((4, 5), 9), 0.0)
        work = desk.next(0.0)
        assert isinstance(work, Begin)
        fed += flights(desk.began(work))
    prompts = Flight(0, 0, tuple(segment for each in fed for segment in each.segments))
    desk.receive(prompts, None, 0.0)
    assert isinstance(desk.next(0.0), Evaluate)
    assert not flights(desk.returned(prompts, [(6,), (6,)]))
    fed = []
    while isinstance(work := desk.next(0.0), Draft):
        answers = [
            (session, Drafted(order.ticket, [[7]], [[-0.1 if session == 1 else -2.0]]))
            for session, order in work.passes
        ]
        fed += flights(desk.drafted(answers))
    (flight,) = fed
    assert [segment.tokens for segment in flight.segments] == [(6, 7, 7), (6,)]


class OneDrawOfAll(SamplingWorld):
    """A world whose target draws the given tokens, and the first one from then on.

    Attributes:
        drawn: tokens of the text that were drawn, those beyond its end included.
        chance: probability of these draws.
        travelled: rows of every segment of drafted tokens.
    """

    def __init__(self, given: list[int]) -> None:
        super().__init__(2, 0, drawn=False, cut=True)
        self.given, self.drawn, self.chance = given, list[int](), 1.0
        self.travelled = Counter[int]()

    def _judge(self, request: Any, segment: Any) -> None:
        self.travelled[len(segment.tokens)] += not segment.committed
        super()._judge(request, segment)

    def _token(self, path: list[int], offer: object) -> int:
        if path != [*PROMPT, *self.drawn]:
            return 0  # behind a rejected token: nobody reads it
        known = self.given[len(self.drawn) :]
        self.drawn.append(known[0] if known else 0)
        self.chance *= float(distribution(target, tuple(path))[self.drawn[-1]])
        return self.drawn[-1]


@pytest.mark.parametrize("name", ["chain", "engine_pp"])
def test_texts_of_cut_chains_have_exactly_the_targets_distribution(name: str) -> None:
    """All texts of three tokens, over all that the target may draw."""
    shares = defaultdict[tuple[int, ...], float](float)
    travelled, left = Counter[int](), [list[int]()]
    system, wanted = systems()[name], 3
    keys = system.parameters(gamma=2, dynamic_length=True)
    while left:
        world = OneDrawOfAll(left.pop())
        world.open(1, system.make(keys, ScheduleContext(1, 2)), Started(PROMPT, wanted))
        world.run()
        shares[tuple(world.text(1))] += world.chance
        travelled += world.travelled
        for place in range(len(world.given), len(world.drawn)):
            left += [[*world.drawn[:place], token] for token in range(1, VOCABULARY)]
    assert len(travelled) == 3, "chains go whole, in part and not at all"
    for text in product(range(VOCABULARY), repeat=wanted):
        steps = [distribution(target, (*PROMPT, *text[:i]))[t] for i, t in enumerate(text)]
        assert shares[text] == pytest.approx(np.prod(steps), rel=1e-9), text
