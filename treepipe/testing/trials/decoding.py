"""Trials that decode requests to their ends, without time and in any order of moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from treepipe.core.barrier import Groups
from treepipe.core.cache_room import DRAFT, CacheRoom
from treepipe.core.protocol import Started
from treepipe.core.system import Parameters, ScheduleContext, System
from treepipe.testing.case import Trial, TrialCase
from treepipe.testing.hashed_lm import DRAFTS, VOCABULARY, Logits, greedy, target
from treepipe.testing.law import hold
from treepipe.testing.ledger import NodeLedger
from treepipe.testing.strategies import (
    DRAFT_NAMES,
    GROUPS,
    PARTITION,
    parameters_of,
    requests,
)
from treepipe.testing.timeless_world import ALONE, Sharing, TimelessWorld

Requested = list[tuple[int, int, frozenset[int]]]
"""Prompt length, most new tokens and end tokens of each request."""


def prompt_of(session: int, length: int) -> tuple[int, ...]:
    """Return the prompt of a session, which differs from the other sessions' prompts."""
    return tuple((session * i) % VOCABULARY for i in range(length))


def drawn_partition(system: System, case: TrialCase) -> tuple[int, Groups]:
    """Return the number of stages, and the groups of them that step together (lock-step only)."""
    groups = case.draw("groups", GROUPS) if system.in_lock_step else 1
    if isinstance(groups, tuple):
        return sum(groups), groups
    return case.draw("stages", st.integers(1, 5)), 1


def drawn_parameters(system: System, case: TrialCase, groups: Groups = 1) -> Parameters:
    """Return parameters of the system, with this partition if a key of it cuts the pipeline."""
    values: dict[str, Any] = case.draw("parameters", parameters_of(system))
    if PARTITION in system.keys:
        values = {**values, PARTITION: groups}
    return system.parameters(**values)


def drawn_levels(
    system: System, parameters: Parameters, stages: int, case: TrialCase
) -> tuple[Parameters, list[tuple[Logits, int]]]:
    """Return the drafts of the draft, the uppermost first, with the tokens that each may be ahead;
    and parameters that a scenario may have with them."""
    some = st.booleans().flatmap(lambda led: st.lists(DRAFT_NAMES, min_size=led, max_size=3 * led))
    names = case.draw("levels", some) if system.levels else []
    if names:
        fit: dict[str, Any] = {"draft_ahead": True, "lookup": 0}
        parameters = replace(parameters, **{k: v for k, v in fit.items() if k in system.keys})
    bounds = system.bounds(parameters, stages)
    ahead = [bounds.ahead(n, len(names)) for n in range(1, len(names) + 1)]
    return parameters, [*zip([DRAFTS[name] for name in names], ahead, strict=True)]


def least_room(
    system: System, parameters: Parameters, stages: int, tokens: int, *, paged: bool = True
) -> CacheRoom:
    """Return the room for one request of so many tokens, at the stages and at the draft."""
    bounds = system.bounds(parameters, stages)
    held = bounds.tree_tokens, bounds.scratch_tokens, paged
    of = CacheRoom((), 0.0, *held)
    return CacheRoom((of.held(0, tokens),), of.held(DRAFT, tokens), *held)


def decode(
    system: System,
    parameters: Parameters,
    case: TrialCase,
    requested: Requested,
    stages: int,
    pipelines: int = 1,
    sharing: Sharing = ALONE,
    draft: Logits | None = None,
) -> TimelessWorld:
    """Decode all requests at once, and hold their texts against plain greedy decoding. Args:
    ``draft``: None: one of any quality."""
    draft = draft or DRAFTS[case.draw("draft", DRAFT_NAMES)]
    levels = list[tuple[Logits, int]]()
    if not sharing.block:
        parameters, levels = drawn_levels(system, parameters, stages, case)
    sharing = replace(sharing, least=0.0) if levels else sharing
    places = system.places(parameters)
    if parameters.cut:
        row_ms = case.draw("row_ms", st.floats(0.0, 2.0))
        sharing = replace(sharing, round_ms=lambda rows: 1.0 + row_ms * rows + 3 * (rows > 8))
    fitting = places is None or len(requested) <= places * pipelines
    played = TimelessWorld(
        [stages] * pipelines,
        target,
        draft,
        case.choose,
        replace(sharing, in_phases=not parameters.overlapped_pruning, cancels=parameters.cancels),
        levels=levels,
        bounds=system.bounds(parameters, stages) if fitting else None,
        story=case.story,
    )
    of_draft = False, sharing.block > 0, sharing.block > 0, bool(levels)

    def new_schedule(session: int) -> Any:
        return system.make(parameters, ScheduleContext(session, stages, *of_draft))

    played.new_schedule = new_schedule
    for session, (length, wanted, ends) in enumerate(requested, start=1):
        started = Started(prompt_of(session, length), wanted, ends)
        at = (session - 1) % pipelines, session % sharing.drafts
        played.open(session, new_schedule(session), started, *at)
    played.run()
    for session, (length, wanted, ends) in enumerate(requested, start=1):
        expected = greedy(list(prompt_of(session, length)), wanted, ends)
        found = played.text(session)
        hold(found == expected, "lossless", f"request {session}: {found}, not {expected}")
        if not played.preemptions:
            played.assert_waste(session)
    played.assert_freed()
    return played


def any_requests(system: System, case: TrialCase) -> None:
    """One to four requests at once, on any partition, each on its own pipeline or together."""
    requested = case.draw("requests", requests())
    stages, together = drawn_partition(system, case)
    parameters = drawn_parameters(system, case, together)
    most = 1 if system.in_lock_step else len(requested)
    pipelines = case.draw("pipelines", st.integers(1, most))
    drafts = 1 if system.in_lock_step else case.draw("drafts", st.integers(1, 3))
    policy = case.draw("policy", st.sampled_from(POLICIES))
    least = case.draw("least", st.just(0.0) | st.floats(0.01, 1.0))
    sharing = Sharing(together, drafts=drafts, policy=policy, least=least)
    decode(system, parameters, case, requested, stages, pipelines, sharing)


POLICIES = ["fifo", "weighted_fair", "earliest_deadline"]


def shared_passes(system: System, case: TrialCase) -> None:
    """Several requests in the passes of one pipeline, or of two."""
    requested = case.draw("requests", requests(2, 9))
    stages = case.draw("stages", st.integers(1, 5))
    batch = case.draw("batch", st.sampled_from([1, 2, 4, 8]))
    parameters = drawn_parameters(system, case)
    few = st.integers(1, 1 if system.in_lock_step else 2)
    pipelines, drafts = case.draw("pipelines", few), case.draw("drafts", few)
    prompts = case.draw("prompts", st.sampled_from(["first", "last"]))
    sharing = Sharing(drafts=drafts, batch=batch, prompts=prompts)
    played = decode(system, parameters, case, requested, stages, pipelines, sharing)
    if not system.in_lock_step:
        stages_of_all = [shared for each in played.pipelines for shared in each.shared]
        most = max(max(shared, default=0) for shared in stages_of_all)
        hold(most <= batch, "batches", f"a pass serves {most} requests, {batch} may share it")


def little_room(system: System, case: TrialCase) -> None:
    """Requests that wait for room, or are preempted and begin again."""
    requested = case.draw("requests", requests(2, 6, longest=30))
    stages = case.draw("stages", st.integers(1, 4))
    parameters = drawn_parameters(system, case)
    longest = max(length + wanted for length, wanted, _ in requested)
    tokens = longest + case.draw("more_room", st.integers(0, 40))
    paged = case.draw("paged", st.booleans())
    room = least_room(system, parameters, stages, tokens, paged=paged)
    batch = case.draw("batch", st.sampled_from([1, 3]))
    sharing = Sharing(batch=batch, room=room)
    played = decode(system, parameters, case, requested, stages, sharing=sharing)
    hold(paged or not played.preemptions, "rooms", "a reserved cache was taken away")


def block_drafts(system: System, case: TrialCase) -> None:
    """Requests at once, with a draft that makes a block of few levels of the committed text."""
    requested = case.draw("requests", requests(1, 3))
    stages, together = drawn_partition(system, case)
    parameters = drawn_parameters(system, case, together)
    sharing = Sharing(together, block=case.draw("block", st.integers(1, 5)))
    decode(system, parameters, case, requested, stages, sharing=sharing)


def self_draft(system: System, case: TrialCase) -> None:
    """The target as the draft, but for the best token at some places."""
    asked = case.draw("requests", requests(1, 3))
    stages, together = drawn_partition(system, case)
    parameters = drawn_parameters(system, case, together)
    wrong = case.draw("wrong", st.frozensets(st.integers(1, 40), max_size=4))

    def draft(path: list[int]) -> Any:
        return -target(path) if len(path) in wrong else target(path)

    played = decode(system, parameters, case, asked, stages, 1, Sharing(together), draft)
    for session in range(1, len(asked) + 1):
        text = [*played.requests[session].prompt, *played.text(session)]
        _hold_accepted(played.pipelines[0].ledger(session), text, wrong)


def _hold_accepted(ledger: NodeLedger, text: list[int], wrong: frozenset[int]) -> None:
    """Hold that a text's tokens are fed once, and with the first candidate below each of them."""
    nodes = ledger.of_text(text)
    places = [ledger.positions[node] for node in nodes]
    again = [at for at in places if places.count(at) > 1]
    hold(not again, "self_draft", f"tokens at positions {again} are fed again: they were accepted")
    for node, at in zip(nodes, places, strict=True):
        below = {t for t, p in zip(ledger.tokens, ledger.parents, strict=True) if p == node}
        right = not below or at + 1 in {*wrong, len(text)} or text[at + 1] in below
        hold(right, "self_draft", f"below position {at} {below} are fed, the best token is not")


TRIALS = (
    Trial("requests", any_requests, 60),
    Trial("batches", shared_passes, 30),
    Trial("rooms", little_room, 30),
    Trial("self_draft", self_draft, 30, lambda system: system.drafts, "it drafts nothing"),
    Trial("blocks", block_drafts, 30, lambda system: system.drafts, "it drafts nothing"),
)
