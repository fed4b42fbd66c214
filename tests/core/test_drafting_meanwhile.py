"""Systems that draft while the target verifies, step for step beside a loop without a pipeline;
a draft server hands out no returned segment between their passes, and they refuse one."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from tests.worlds.one_request import OneRequest
from treepipe.core.dock import Dock
from treepipe.core.draft_desk import DraftDesk
from treepipe.core.draft_work import Begin, Draft, Evaluate, Orders
from treepipe.core.errors import ProtocolError
from treepipe.core.front_desk import ArrivalQueue
from treepipe.core.messages import Flight
from treepipe.core.protocol import (
    Command,
    Drafted,
    DraftPass,
    Event,
    Returned,
    Started,
    Withdraw,
)
from treepipe.core.schedules import systems
from treepipe.core.schedules.pp import Autoregressive
from treepipe.core.system import ScheduleContext
from treepipe.testing.case import TrialCase
from treepipe.testing.hashed_lm import DRAFTS, Logits, any_order, target
from treepipe.testing.trials.decoding import decode

PROMPT, WANTED = (3, 1, 4), 40


def steps_of(name: str, draft: str, seed: int, **keys: int) -> list[list[int]]:
    """Tokens that each returned pass committed, by round."""
    system = systems()[name]
    schedule = system.make(system.parameters(**keys), ScheduleContext(1, 3))
    OneRequest(schedule, 3, target, DRAFTS[draft], any_order(seed), 1).decode(PROMPT, WANTED)
    return [list(each.committed_per_step) for each in schedule.rounds]


def likeliest(model: Logits, text: list[int], count: int = 1) -> list[int]:
    return [int(token) for token in np.argsort(-model(text), kind="stable")[:count]]


def chained(model: Logits, text: list[int], count: int) -> list[int]:
    """So many tokens behind a text, each the likeliest one."""
    found = list[int]()
    for _ in range(count):
        found += likeliest(model, [*text, *found])
    return found


def agreed(text: list[int], drafted: list[int]) -> int:
    """How many of the drafted tokens are the target's."""
    kept = 0
    while kept < len(drafted) and likeliest(target, [*text, *drafted[:kept]]) == [drafted[kept]]:
        kept += 1
    return kept


def pearl_steps(model: Logits, text: list[int], gamma: int) -> Iterator[tuple[int, bool]]:
    """Tokens of each step, and whether it ends a round (PEARL's two kinds of verification)."""
    judged: list[int] = []  # below the root, drafted in the step before
    while True:
        meanwhile = chained(model, [*text, *judged], gamma)
        wanted = [*judged, meanwhile[0]]  # the last pass judges the first of these, too
        kept = agreed(text, wanted)
        text = [*text, *wanted[:kept]]
        if missed := kept < len(wanted):
            text += likeliest(target, text)
        judged = [] if missed else meanwhile[1:]
        yield kept + missed, missed


@pytest.mark.parametrize(
    ("name", "ever"),
    [*dict.fromkeys(("dsd", "pearl", "engine_pp"), False).items(), ("flowspec_free", True)],
)
def test_a_chain_that_is_judged_when_it_is_back_has_nothing_to_cancel(
    name: str, ever: bool
) -> None:
    """One segment of a request is under way at once, so a verdict finds none behind it; what it
    refutes is a draft pass at most, which is withdrawn. So they have no key ``cancels``."""
    system, seen = systems()[name], set[int]()
    for seed in range(6):
        schedule = system.make(system.parameters(), ScheduleContext(1, 3))
        world = OneRequest(schedule, 3, target, DRAFTS["noisy"], any_order(seed), 1)
        world.open(1, schedule, Started(PROMPT, WANTED))
        while world.step():
            seen |= schedule._flying.cancelled
    assert bool(seen) == ever == ("cancels" in system.keys)


@pytest.mark.parametrize("draft", ["noisy", "poor", "perfect"])
@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_pearl_verifies_what_was_drafted_in_the_step_before(draft: str, gamma: int) -> None:
    expected, left = [list[int]()], WANTED - 1
    first = [*PROMPT, *likeliest(target, [*PROMPT])]
    for tokens, missed in pearl_steps(DRAFTS[draft], first, gamma):
        expected[-1].append(min(tokens, left))
        left -= tokens
        if left <= 0:
            break
        expected += [[]] * missed
        expected[-1] = [*expected[-1]]
    assert steps_of("pearl", draft, gamma, gamma=gamma) == expected


def ssd_chains(
    model: Logits, text: list[int], gamma: int, fan_out: int, jit: bool
) -> Iterator[int]:
    """Tokens of each round, by whether its outcome was guessed in the round before."""
    chain = chained(model, text, gamma)
    while True:
        kept = agreed(text, chain)
        at, own = [*text, *chain[:kept]], likeliest(target, [*text, *chain[:kept]])[0]
        guesses = [
            token for token in likeliest(model, at, 7) if token not in chain[kept : kept + 1]
        ]
        text = [*at, own]
        hit = own in guesses[:fan_out]
        chain = chained(model, text, gamma) if hit or jit else []
        yield kept + 1


@pytest.mark.parametrize("draft", ["noisy", "poor", "perfect"])
@pytest.mark.parametrize(("gamma", "fan_out", "jit"), [(1, 1, False), (3, 2, False), (3, 1, True)])
def test_ssd_goes_on_where_it_has_guessed_the_outcome(
    draft: str, gamma: int, fan_out: int, jit: bool
) -> None:
    first = [*PROMPT, *likeliest(target, [*PROMPT])]
    expected, left = list[list[int]](), WANTED - 1
    for tokens in ssd_chains(DRAFTS[draft], first, gamma, fan_out, jit):
        expected.append([min(tokens, left)])
        left -= tokens
        if left <= 0:
            break
    keys = {"gamma": gamma, "fan_out": fan_out, "jit_speculate": jit}
    assert steps_of("ssd", draft, gamma, **keys) == expected


MEANWHILE = {
    "pruned_pp",
    "flowspec",
    "pipedec",
    "specpipe",
    "specpipe_db",
    "spd",
    "pearl",
    "ssd",
} | {"pipeinfer"}
"""Systems that draft while segments travel, and do not listen."""


@pytest.mark.parametrize("name", [n for n, each in systems().items() if each.drafts])
def test_a_segment_comes_back_between_passes_only_to_those_who_listen(name: str) -> None:
    """No desk hands one out, or decoding would end with an error; told by hand it is refused."""
    system, told = systems()[name], 0
    for seed in range(4):
        schedule = system.make(system.parameters(), ScheduleContext(1, 3))
        world = OneRequest(schedule, 3, target, DRAFTS["noisy"], any_order(seed), 1)
        world.open(1, schedule, Started(PROMPT, WANTED))
        while world.step():
            if world.servers[0].drafted and not schedule.listens:
                before = pickle.dumps(schedule)
                for ticket in world.travelling():
                    with pytest.raises(ProtocolError):
                        schedule.handle(Returned(ticket, 0, 0, (1,)))
                    assert pickle.dumps(schedule) == before
                    told += 1
        assert len(world.text(1)) == WANTED
    assert bool(told) == (name in MEANWHILE)


def flights(orders: Orders) -> list[Flight]:
    return [message for _, message in orders.messages if isinstance(message, Flight)]


def answer(order: DraftPass) -> Drafted:
    """The draft's candidates are 6 and 5, at every node."""
    rows = order.asked if order.top_k else 0
    tokens, log_probs = [6, 5][: order.top_k], [-0.1, -2.4][: order.top_k]
    return Drafted(order.ticket, [tokens] * rows, [log_probs] * rows)


@pytest.mark.parametrize("jit", [False, True])
def test_a_chain_drafted_on_the_spot_lets_all_wait(jit: bool) -> None:
    """Of two requests that come back together the second one's outcome was not guessed."""
    desk = DraftDesk(0, [1], ArrivalQueue(), dock=Dock(2))
    system, fed = systems()["ssd"], list[Flight]()
    keys = system.parameters(gamma=1, fan_out=1, jit_speculate=jit)
    for session in (1, 2):
        schedule = system.make(keys, ScheduleContext(session, 1))
        desk.open(session, 0, schedule, Started((4, 5), 9), 0.0)
        work = desk.next(0.0)
        assert isinstance(work, Begin)
        fed += flights(desk.began(work))
    for answers in ([(6,), (6,)], [(6, 6), (4, 4)]):  # behind the prompts, then behind 6, 6
        flight = Flight(0, 0, tuple(segment for each in fed for segment in each.segments))
        desk.receive(flight, None, 0.0)
        assert isinstance(desk.next(0.0), Evaluate)
        fed, waited = flights(desk.returned(flight, answers)), 0
        while isinstance(work := desk.next(0.0), Draft):
            waited += not fed
            fed += flights(desk.drafted([(s, answer(order)) for s, order in work.passes]))
    assert [[segment.session for segment in each.segments] for each in fed] == [[1, 2]]
    assert [len(segment.tokens) for segment in fed[0].segments] == [2, 1 + jit]
    assert waited == jit


def test_a_pass_that_is_given_up_before_it_begins_is_not_run() -> None:
    """A window comes back, rejected, while the draft works: what it was to draft next is void."""
    desk, system = DraftDesk(0, [1], ArrivalQueue()), systems()["dsd"]
    schedule = system.make(system.parameters(gamma=2), ScheduleContext(1, 1))
    desk.open(1, 0, schedule, Started((4, 5), 9), 0.0)
    begun = desk.next(0.0)
    assert isinstance(begun, Begin)
    (prompt,), fed = flights(desk.began(begun)), list[Flight]()
    desk.receive(prompt, None, 0.0)
    desk.next(0.0)
    desk.returned(prompt, [(6,)])
    while True:
        work = desk.next(0.0)
        assert isinstance(work, Draft)
        if fed:
            desk.receive(fed[0], None, 0.0)
        orders = desk.drafted([(s, answer(order)) for s, order in work.passes])
        if fed:
            break
        fed += flights(orders)
    assert isinstance(desk.next(0.0), Evaluate)
    desk.returned(fed[0], [(4, 4, 4)])
    work = desk.next(0.0)
    assert isinstance(work, Draft)
    assert [order.catch_up for _, order in work.passes] == [(4,)], "the target's own token"
    desk.drafted([(1, answer(work.passes[0][1]))])
    assert isinstance(desk.next(0.0), Draft)


class TakesBack(Autoregressive):
    """Plain decoding that begins by taking back a draft pass that it has not ordered."""

    def handle(self, event: Event) -> list[Command]:
        return [Withdraw(7), *super().handle(event)]


def test_a_pass_that_does_not_wait_cannot_be_withdrawn() -> None:
    desk = DraftDesk(0, [1], ArrivalQueue())
    desk.open(1, 0, TakesBack(1, 64), Started((4, 5), 9), 0.0)
    begun = desk.next(0.0)
    assert isinstance(begun, Begin)
    with pytest.raises(ProtocolError, match="7"):
        desk.began(begun)


@pytest.mark.parametrize("draft", ["poor", "random", "sure"])
def test_in_turns_a_draft_guesses_the_targets_token_before_it_reads_it(draft: str) -> None:
    """With K = 1 the root is verified alone, so the draft's first pass comes behind the verdict: it
    stops before the target's token, whose place its answer is for."""
    pipespec, case = systems()["pipespec"], TrialCase.replaying({"draft": draft, "levels": []})
    keys = pipespec.parameters(gamma=1, draft_ahead=False)
    decode(pipespec, keys, case, [(length, 40, frozenset()) for length in range(1, 9)], 1)
