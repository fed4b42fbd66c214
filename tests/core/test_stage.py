"""The index law: every stage reaches the draft's tree, in whatever order messages reach it.

``pipeline.py`` holds every action of every stage against a ledger of the nodes: rows that the known
words had pruned are never computed, all others are. Here the draft is a small
model that grows its tree and prunes it as hypothesis says.
"""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.examples import examples
from tests.worlds.one_request import travelling
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Beat, Flight, Segment, Word
from treepipe.core.stage import Action, Pass, Prune, Run, StageSession
from treepipe.core.tree import TokenTree
from treepipe.core.words import WordLog
from treepipe.testing.pipeline import Event, TimelessPipeline


class RandomDraft:
    """A draft that feeds, prunes and ends rounds at random in front of a real pipeline."""

    def __init__(self, stages: int, data: st.DataObject, *, lock_step: bool) -> None:
        self.pipeline = TimelessPipeline(stages)
        self.data, self.lock_step = data, lock_step
        self.tree = TokenTree(0)
        self.fed = self.verified = self.committed = self.tickets = self.steps = 0

    def grow(self, most: int) -> None:
        for _ in range(self.data.draw(st.integers(0, most))):
            parent = self.data.draw(st.integers(0, len(self.tree) - 1))
            token = self.data.draw(st.integers(0, 3))
            if self.tree.child(parent, token) is None:
                self.tree.append(token, parent, 0.0)

    def feed(self, most: int = 99) -> None:
        tree, first = self.tree, self.fed
        last = min(first + most, len(tree))
        self.tickets += 1
        segment = Segment(
            session=0,
            ticket=self.tickets,
            round=self.pipeline.ledger().round,
            version=self.pipeline.ledger().version,
            start=first,
            tokens=tuple(tree.tokens[first:last]),
            positions=tuple(self.committed + depth for depth in tree.depths[first:last]),
            parents=tuple(tree.parents[first:last]),
            step=self.steps if self.lock_step else None,
        )
        self.steps += 1
        self.fed = last
        self.pipeline.send(Flight(0, 0, (segment,)))

    def open_round(self) -> None:
        """In lock-step a round opens with one segment more than there are stages."""
        self.tree = TokenTree(self.data.draw(st.integers(0, 3)))
        self.fed = self.verified = self.steps = 0
        self.grow(8)
        for _ in range(len(self.pipeline.desks) + 1 if self.lock_step else 0):
            self.feed(self.data.draw(st.integers(1, 3)))

    def say(self) -> None:
        """Announce something that what has come back allows: a prune, "go on", or a round's end."""
        done = self.verified
        roots = [n for n in range(1, len(self.tree)) if all(p < done for p in self._above(n))]
        choice = self.data.draw(st.sampled_from(["prune", "prune", "go on", "end"]))
        if choice == "prune" and roots:
            node = self.data.draw(st.sampled_from(roots))
            self._announce((*self._above(node), *self.tree.subtree(node)), len(self._above(node)))
        elif choice == "end" and done:
            path = self.tree.path(self.data.draw(st.integers(0, done - 1)))
            self._announce(path, len(path), ends_round=True)
        else:
            self._announce(None, 0)

    def _above(self, node: int) -> tuple[int, ...]:
        return self.tree.path(node)[:-1]

    def _announce(
        self, retained: tuple[int, ...] | None, accepted: int, *, ends_round: bool = False
    ) -> None:
        ledger = self.pipeline.ledger()
        word = Word(0, ledger.round, ledger.version, retained, accepted, ends_round, self.lock_step)
        self.pipeline.send(Beat(0, (word,)))
        self.committed += accepted
        if ends_round:
            self.open_round()
        elif retained is not None:
            kept = retained[accepted:]
            self.fed = sum(i < self.fed for i in kept)
            self.verified = sum(i < self.verified for i in kept)
            self.tree.retain(retained, accepted)

    def move(self, move: Event) -> bool:
        """One move; True if a segment of the current round came back."""
        flight = self.pipeline.move(move)
        ledger = self.pipeline.ledger()
        if flight is None or flight.segments[0].round != ledger.round:
            return False
        last = self.pipeline.records[len(self.pipeline.desks) - 1, 0]
        alive = [n for n in last.nodes if ledger.alive(n, ledger.version)]
        # Nodes come back in order: the last row of this segment that is left, and all before it.
        known = [n for n in alive if n not in self._in_last_box()]
        self.verified = max(self.verified, len(known))
        return True

    def _in_last_box(self) -> set[int]:
        waiting = self.pipeline.boxes[Event("flight", len(self.pipeline.desks))]
        rows = self.pipeline.ledger().rows
        return {
            n
            for flight in waiting
            if isinstance(flight, Flight)
            for n in rows[flight.segments[0].ticket]
        }

    def choose(self) -> Event | None:
        moves = self.pipeline.events()
        return self.data.draw(st.sampled_from(moves)) if moves else None

    def assert_agreement(self) -> None:
        """With nothing under way every stage holds what the draft has fed and not pruned."""
        pipeline, tree = self.pipeline, self.tree
        expected = list(zip(tree.tokens, tree.parents, strict=True))[: self.fed]
        assert pipeline.ledger().accepted == self.committed
        for record in pipeline.records.values():
            assert record.cached == expected
            assert record.committed == pipeline.records[0, 0].committed
            assert len(record.committed) == self.committed

    def assert_tickets(self) -> None:
        """Each came back (the pipeline asserts: once), waits for a word, or its round has ended."""
        ledger, answered = self.pipeline.ledger(), {t for _, t in self.pipeline.answered}
        live = {number for number, fed in ledger.tickets.items() if fed.round == ledger.round}
        assert live - answered == live & travelling(self.pipeline)


@examples(200)
@given(st.integers(1, 4), st.data())
def test_free_words_and_segments_in_any_order_agree(stages: int, data: st.DataObject) -> None:
    draft = RandomDraft(stages, data, lock_step=False)
    for _ in range(data.draw(st.integers(5, 40))):
        choice = data.draw(st.sampled_from(["feed", "say", "move", "move", "move"]))
        if choice == "feed":
            draft.grow(4)
            draft.feed(data.draw(st.integers(0, 5)))
        elif choice == "say":
            draft.say()
        elif move := draft.choose():
            draft.move(move)
    while move := draft.choose():
        draft.move(move)
    draft.assert_agreement()
    draft.assert_tickets()


@examples(200)
@given(st.integers(1, 4), st.data())
def test_lock_step_in_any_order_agrees(stages: int, data: st.DataObject) -> None:
    """Whatever is late, a round never waits for ever and its end leaves the same text behind."""
    draft = RandomDraft(stages, data, lock_step=True)
    draft.open_round()
    for _ in range(data.draw(st.integers(0, 12))):
        returned = False
        while not returned:
            move = draft.choose()
            assert move is not None, "deadlock"
            returned = draft.move(move)
        before = draft.pipeline.ledger().round
        draft.say()
        if draft.pipeline.ledger().round == before:
            draft.grow(3)
            draft.feed(data.draw(st.integers(0, 4)))
    while move := draft.choose():
        draft.move(move)
    assert draft.pipeline.ledger().accepted == draft.committed
    texts = {tuple(record.committed) for record in draft.pipeline.records.values()}
    assert len(texts) == 1
    draft.assert_tickets()


# --- lock-step, by hand --------------------------------------------------------------------------


def _segment(step: int | None, start: int, rows: int, version: int = 0) -> Segment:
    parents = tuple(range(start - 1, start + rows - 1))
    tokens = tuple(range(start, start + rows))
    return Segment(0, start + 1, 0, version, start, tokens, tokens, parents, step)


def _actions(stage: StageSession) -> list[Action]:
    return list(iter(stage.next_action, None))


GO_ON = Word(0, 0, 0, None, 0, False, True)


@pytest.mark.parametrize("stages", range(1, 6))
def test_stage_computes_its_free_segments_then_waits_for_words(stages: int) -> None:
    """Stage n of N computes N + 1 - n segments before the first word, then one per word."""
    for number in range(1, stages + 1):
        stage = StageSession(number, stages)
        for step in range(stages + 2):
            stage.receive(_segment(step, 2 * step, 2))
        assert len(_actions(stage)) == stages + 1 - number
        stage.receive(GO_ON)
        assert len(_actions(stage)) == 1
        assert len(stage._segments) == number


def test_word_prunes_cache_and_waiting_segment_before_it_is_computed() -> None:
    stage = StageSession(2, 3)
    for step in range(3):
        stage.receive(_segment(step, 2 * step, 2))
    assert [type(action) for action in _actions(stage)] == [Run, Run]
    stage.receive(Word(0, 0, 0, (0, 1, 2, 3, 5), 1, False, True))
    assert stage.next_action() == Prune(0, (0, 1, 2, 3), 1)
    action = stage.next_action()
    assert isinstance(action, Run)
    assert (action.rows, action.segment.start, action.segment.tokens) == ((1,), 3, (5,))
    assert (stage.committed, stage.cached) == (1, 4)


def test_emptied_segment_goes_on_as_a_marker() -> None:
    stage = StageSession(1, 1)
    stage.receive(_segment(0, 0, 2))
    stage.receive(_segment(1, 2, 2))
    assert [type(action) for action in _actions(stage)] == [Run]
    stage.receive(Word(0, 0, 0, (0, 1), 1, False, True))
    assert [type(action) for action in _actions(stage)] == [Prune, Pass]
    assert (stage.committed, stage.cached) == (1, 1)


def test_word_of_a_step_waits_for_the_segment_of_that_step() -> None:
    stage = StageSession(1, 1)
    stage.receive(_segment(0, 0, 2))
    assert isinstance(stage.next_action(), Run)
    stage.receive(Word(0, 0, 0, (0, 1), 1, False, True))
    assert stage.next_action() is None
    stage.receive(_segment(1, 2, 0))
    assert stage.next_action() == Prune(0, (0, 1), 1)


def test_ended_round_drops_its_segments() -> None:
    stage = StageSession(1, 2)
    for step in range(3):
        stage.receive(_segment(step, 2 * step, 2))
    assert [type(action) for action in _actions(stage)] == [Run, Run]
    stage.receive(Word(0, 0, 0, (0,), 1, True, True))
    assert stage.next_action() == Prune(0, (0,), 1)
    assert stage.next_action() is None
    assert (stage.committed, stage.cached, stage.round, len(stage._segments)) == (1, 0, 1, 0)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (Word(0, 0, 0, (0, 1), 2, False, False), "has not passed this stage"),
        (Word(0, 0, 1, (0,), 1, False, False), "word 1 arrived at version 0"),
        (_segment(None, 5, 2), "starts at node 5, but 1 nodes are cached"),
        (_segment(0, 5, 2), "starts at node 5, but 1 nodes are cached"),
    ],
    ids=["accepts too early", "word out of order", "rows are missing", "rows, lock-step"],
)
def test_illegal_message_changes_no_cache(message: Segment | Word, sentence: str) -> None:
    stage = StageSession(1, 1)
    stage.receive(_segment(None, 0, 1))
    assert isinstance(stage.next_action(), Run)
    before = pickle.dumps(stage)
    stage.receive(message)
    with pytest.raises(ProtocolError, match=sentence):
        stage.next_action()
    assert pickle.dumps(stage) == before, "the message is gone and nothing else has changed"


def test_word_log_takes_words_in_order_only() -> None:
    log = WordLog()
    log.add(Word(0, 0, 0, (0, 2, 3), 1, False, False))
    before = pickle.dumps(log)
    with pytest.raises(ProtocolError, match="word 0 arrived at version 1"):
        log.add(GO_ON)
    assert pickle.dumps(log) == before
    assert log.survivors(0, 1, 3) == ([1, 2], 0)
    assert log.survivors(1, 0, 2) == (None, 0)


def test_records_are_validated() -> None:
    with pytest.raises(ProtocolError, match="one position per token"):
        Segment(0, 1, 0, 0, 0, (1, 2), (0,))
    with pytest.raises(ProtocolError, match="one parent per token"):
        Segment(0, 1, 0, 0, 0, (1, 2), (0, 1), (0,))
    with pytest.raises(ProtocolError, match="among the retained"):
        Word(0, 0, 0, (1,), 2, False, True)
    with pytest.raises(ProtocolError, match="keeps no live node"):
        Word(0, 0, 0, (1, 2), 1, True, True)
