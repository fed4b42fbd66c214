"""What a round's first draft pass reads, by hand: a language model keeps what it has computed for
accepted tokens, an EAGLE head reads them again from the target's states."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from treepipe.core.messages import NO_PARENT, Segment
from treepipe.core.protocol import Command, Drafted, DraftPass, Feed, Returned, Started
from treepipe.core.schedules import systems
from treepipe.core.system import ScheduleContext

ROOT = 100
"""The first new token. The draft's first candidate is its token plus one, the second its negative;
where the text leaves the tree, the target says ``OTHER``."""
OTHER = 7
K = 3
CHAIN = (ROOT + 1, ROOT + 2, ROOT + 3)


def drafted(order: DraftPass) -> Drafted:
    read = order.tokens or order.catch_up[-1:]
    tokens = [[token + 1, -token][: order.top_k] for token in read]
    return Drafted(order.ticket, tokens, np.log([[0.6, 0.3][: order.top_k]] * len(read)))


def returned(segment: Segment, text: tuple[int, ...], paths: list[tuple[int, ...]]) -> Returned:
    """The target continues the root with ``text``, and everything else with ``OTHER``.

    Args: ``paths``: below the root, of the tree's nodes in segments before.
    """
    if segment.committed:
        return Returned(segment.ticket, segment.version, segment.start, (ROOT,))
    answers = list[int]()
    for token, parent in zip(segment.tokens, segment.parents, strict=True):
        paths.append(() if parent == NO_PARENT else (*paths[parent], token))
        on_text = paths[-1] == text[: len(paths[-1])] and len(paths[-1]) < len(text)
        answers.append(text[len(paths[-1])] if on_text else OTHER)
    return Returned(segment.ticket, segment.version, segment.start, tuple(answers))


def second_round(
    name: str, text: tuple[int, ...], *, reads_states: bool = False, **keys: Any
) -> DraftPass:
    """The first draft pass behind a tree whose root the target continues with ``text``; all passes
    of the draft are answered before."""
    system = systems()[name]
    schedule = system.make(
        system.parameters(**keys), ScheduleContext(1, 2, reads_states=reads_states)
    )
    todo: list[Command] = [*schedule.handle(Started((ROOT - 1,), 40))]
    fed, paths = deque[Segment](), list[tuple[int, ...]]()
    while True:
        command = todo.pop(0) if todo else None
        if isinstance(command, DraftPass):
            todo += schedule.handle(drafted(command))
        elif isinstance(command, Feed):
            fed.append(command.segment)
        elif command is None:
            todo += schedule.handle(returned(fed.popleft(), text, paths))
            orders = [each for each in todo if isinstance(each, DraftPass)]
            if paths and orders:
                return orders[0]


@pytest.mark.parametrize("name", ["chain", "starsd"])
@pytest.mark.parametrize(("accepted", "kept", "read"), [(0, 0, 1), (1, 1, 1), (2, 2, 1), (3, 2, 2)])
def test_a_chain_is_kept_but_for_its_last_token(
    name: str, accepted: int, kept: int, read: int
) -> None:
    """The draft has proposed the last of the k tokens, and was not fed it."""
    order = second_round(name, CHAIN[:accepted], gamma=K)
    assert order.cut == (tuple(range(kept)), kept)
    assert order.rows == read
    assert order.catch_up == (*CHAIN[kept:accepted], OTHER)


@pytest.mark.parametrize("accepted", range(K + 1))
def test_a_chain_that_goes_on_is_kept_whole(accepted: int) -> None:
    """``dsd`` drafts on from the last token of its window while that is verified."""
    order = second_round("dsd", CHAIN[:accepted], gamma=K)
    assert order.cut == (tuple(range(accepted)), accepted)
    assert order.catch_up == (OTHER,)


@pytest.mark.parametrize("name", ["chain", "starsd", "dsd"])
@pytest.mark.parametrize("accepted", range(K + 1))
def test_a_head_reads_all_accepted_tokens_again(name: str, accepted: int) -> None:
    order = second_round(name, CHAIN[:accepted], reads_states=True, gamma=K)
    assert order.cut == ((), 0)
    assert order.catch_up == (*CHAIN[:accepted], OTHER)


@pytest.mark.parametrize(
    ("text", "kept", "read"),
    [
        ((ROOT + 5,), (), (ROOT + 5,)),
        ((-ROOT,), (1,), (OTHER,)),
        ((ROOT + 1, ROOT + 2), (0, 2), (OTHER,)),
        ((-ROOT, 1 - ROOT), (1, 4), (OTHER,)),
        ((-ROOT, 1 - ROOT, 2 - ROOT), (1, 4), (2 - ROOT, OTHER)),
    ],
)
@pytest.mark.parametrize("name", ["specinfer", "starsd"])
def test_of_a_tree_the_accepted_path_is_kept(
    name: str, text: tuple[int, ...], kept: tuple[int, ...], read: tuple[int, ...]
) -> None:
    """Fed are two children of the root, then two of each of them; their children are leaves."""
    order = second_round(name, text, branching=(2, 2, 1))
    assert order.cut == (kept, len(kept))
    assert order.catch_up == read


def test_the_new_root_is_read_even_where_the_draft_had_gone_on_from_it() -> None:
    """A dynamic tree drafts more than it feeds: the target's own token may be among that, but the
    pass must answer for it."""
    keys: dict[str, Any] = {"tree_size": 1, "tree_depth": 2, "top_k": 2}
    order = second_round("eagle", (ROOT + 1, ROOT + 2), **keys)
    assert order.cut == ((0,), 1)
    assert order.catch_up == (ROOT + 2,)


def test_flowspecs_baseline_reads_what_its_authors_code_reads() -> None:
    order = second_round("naive_pp", CHAIN[:2], tree_size=3, tree_depth=2, top_k=1)
    assert order.cut == ((), 0)
    assert order.catch_up == (*CHAIN[:2], OTHER)
