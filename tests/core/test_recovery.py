"""What is known of requests outside of their draft servers: told late at most, lost never."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from treepipe.core.recovery import TELL_MS, CommitReporter, Journal
from treepipe.core.requests import LIVES, RUN_ENDED, Assignment

emissions = st.lists(
    st.tuples(
        st.floats(0, 3 * TELL_MS),
        st.integers(1, 3),
        st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    ),
    max_size=30,
)


@given(emissions, st.integers(0, 2))
def test_the_journal_lags_by_what_was_emitted_since_it_was_told_last(
    emitted: list[tuple[float, int, tuple[int, ...]]], lives: int
) -> None:
    teller, journal, now = CommitReporter(), Journal(), 0.0
    texts: dict[int, list[int]] = {1: [], 2: [], 3: []}
    told = {1: 0, 2: 0, 3: 0}
    said_ms = -TELL_MS
    for session in texts:
        journal.open(session, 4, Assignment(session - 1, 0.0, 0, 1))
    for gap, session, tokens in emitted:
        now += gap
        teller.emitted(now, [(session + lives * LIVES, tokens)])
        texts[session] += tokens
        if now - said_ms >= TELL_MS:
            said_ms, told = now, {each: len(text) for each, text in texts.items()}
        for said in teller.due(now):
            journal.committed(said)
    for request in journal.texts(now):
        text = texts[request.session][: told[request.session]]
        assert list(request.tokens) == text
        assert sum(count for _, count in request.emitted) == len(text)
        assert (request.reason, request.pipeline, request.finished_ms) == (RUN_ENDED, 1, now)


def test_a_request_that_is_over_is_told_by_itself() -> None:
    teller, journal = CommitReporter(), Journal()
    journal.open(1, 4, Assignment(0, 0.0, 0, 0))
    teller.emitted(0.0, [(1 + LIVES, (5, 6))])
    late = teller.due(0.0)
    teller.emitted(1.0, [(1 + LIVES, (7,))])
    teller.over(1)
    assert not teller.due(2 * TELL_MS)
    journal.closed(1)
    journal.committed(late[0])
    assert not journal.texts(0.0)


def test_nothing_is_told_twice_once_whole_texts_were_asked_for() -> None:
    """The server goes on until it is ended; what it emits then nobody has seen."""
    teller, journal = CommitReporter(), Journal()
    journal.open(1, 4, Assignment(0, 0.0, 0, 0))
    teller.emitted(0.0, [(1, (5,))])
    journal.committed(teller.due(0.0)[0])
    teller.emitted(1.0, [(1, (6,))])
    (text,) = journal.texts(1.0)
    journal.known(replace(text, emitted=((0.0, 1), (1.0, 1)), tokens=(5, 6)))
    teller.end()
    teller.emitted(2.0, [(1, (7,))])
    for said in teller.due(9 * TELL_MS):
        journal.committed(said)
    assert journal.texts(2.0)[0].tokens == (5, 6)
