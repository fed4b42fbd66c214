"""The index law: every stage reaches the draft's tree, in whatever order messages reach it."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treepipe.errors import ProtocolError
from treepipe.protocol import Message, Segment, Word
from treepipe.stage import Prune, Run, StageSession
from treepipe.tree import TokenTree


class FreePipeline:
    """A draft that prunes at random, and stages whose words and segments move in any order."""

    def __init__(self, stages: int) -> None:
        self.stages = [StageSession(n, stages) for n in range(1, stages + 1)]
        self.segments: list[deque[Message]] = [deque() for _ in range(stages + 1)]
        self.words: list[deque[Message]] = [deque() for _ in range(stages)]
        self.tree = TokenTree(0)
        self.fed = self.returned = self.committed = self.version = self.tickets = 0
        # Per stage: token and parent of each cached tree node, as an executor would hold them.
        self.cached: list[list[tuple[int, int]]] = [[] for _ in range(stages)]

    def feed(self) -> None:
        tree, first = self.tree, self.fed
        tokens, parents = tuple(tree.tokens[first:]), tuple(tree.parents[first:])
        positions = tuple(self.committed + depth for depth in tree.depths[first:])
        self.tickets += 1
        segment = Segment(0, self.tickets, 0, self.version, first, tokens, positions, parents)
        self.fed = len(tree)
        self.segments[0].append(segment)

    def prune(self, node: int) -> None:
        """Make ``node`` the root; its ancestors, which came back, are accepted."""
        above = self.tree.path(node)[:-1]
        kept = self.tree.subtree(node)
        retained = (*above, *kept)
        word = Word(0, 0, self.version, retained, len(above), False, False)
        self.committed += len(above)
        self.fed = sum(i < self.fed for i in kept)
        self.returned = sum(i < self.returned for i in kept)
        self.tree.retain(retained, len(above))
        self.version += 1
        for box in self.words:
            box.append(word)

    def possible_roots(self) -> list[int]:
        """Nodes all of whose ancestors have passed every stage."""
        tree, done = self.tree, self.returned
        return [n for n in range(1, len(tree)) if all(a < done for a in tree.path(n)[:-1])]

    def moves(self) -> list[tuple[deque[Message], int]]:
        boxes = [*enumerate(self.segments), *enumerate(self.words)]
        return [(box, place) for place, box in boxes if box]

    def move(self, box: deque[Message], place: int) -> None:
        message = box.popleft()
        if place == len(self.stages):
            if self.stages[-1].version == self.version:
                self.returned = max(self.returned, self.stages[-1].cached)
            return
        stage = self.stages[place]
        stage.receive(message)
        while (action := stage.next_action()) is not None:
            if isinstance(action, Prune):
                self._compact(place, action)
                continue
            segment = action.segment
            self.cached[place] += zip(segment.tokens, segment.parents, strict=True)
            assert isinstance(action, Run) == bool(segment.tokens)
            self.segments[place + 1].append(segment)

    def _compact(self, place: int, prune: Prune) -> None:
        moved = {old: new - prune.accepted for new, old in enumerate(prune.keep)}
        kept = [self.cached[place][i] for i in prune.keep[prune.accepted :]]
        self.cached[place] = [(token, max(moved.get(parent, -1), -1)) for token, parent in kept]


def _grow(pipeline: FreePipeline, data: st.DataObject) -> None:
    tree = pipeline.tree
    for _ in range(data.draw(st.integers(0, 4))):
        parent = data.draw(st.integers(0, len(tree) - 1))
        token = data.draw(st.integers(0, 3))
        if tree.child(parent, token) is None:
            tree.append(token, parent, 0.0)


@settings(max_examples=200)
@given(st.integers(1, 4), st.data())
def test_any_interleaving_of_words_and_segments_agrees(stages: int, data: st.DataObject) -> None:
    pipeline = FreePipeline(stages)
    for _ in range(data.draw(st.integers(1, 12))):
        choice = data.draw(st.integers(0, 3))
        roots = pipeline.possible_roots()
        if choice == 0:
            _grow(pipeline, data)
            pipeline.feed()
        elif choice == 1 and roots:
            pipeline.prune(data.draw(st.sampled_from(roots)))
        elif moves := pipeline.moves():
            pipeline.move(*data.draw(st.sampled_from(moves)))
    while moves := pipeline.moves():
        pipeline.move(*data.draw(st.sampled_from(moves)))
    for stage, cached in zip(pipeline.stages, pipeline.cached, strict=True):
        assert stage.cached == len(cached) == pipeline.fed
        assert stage.committed == pipeline.committed
        tree = pipeline.tree
        assert cached == list(zip(tree.tokens, tree.parents, strict=True))[: pipeline.fed]


def _segment(step: int | None, start: int, rows: int, version: int = 0) -> Segment:
    parents = tuple(range(start - 1, start + rows - 1))
    tokens = tuple(range(start, start + rows))
    return Segment(0, start + 1, 0, version, start, tokens, tokens, parents, step)


def test_lock_step_stage_computes_its_free_segments_then_waits_for_words() -> None:
    """Stage n of N runs N + 1 - n segments, then one per word (FlowSpec's code)."""
    stage = StageSession(2, 3)
    for step in range(3):
        stage.receive(_segment(step, 2 * step, 2))
    ran = [stage.next_action() for _ in range(3)]
    assert [isinstance(action, Run) for action in ran] == [True, True, False]
    stage.receive(Word(0, 0, 0, (0, 1, 2, 3, 5), 1, False, True))
    assert stage.next_action() == Prune(0, (0, 1, 2, 3), 1)
    action = stage.next_action()
    assert isinstance(action, Run)
    assert (action.rows, action.segment.start, action.segment.tokens) == ((1,), 3, (5,))
    assert (stage.committed, stage.cached) == (1, 4)


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
    stage.receive(_segment(0, 0, 2))
    assert isinstance(stage.next_action(), Run)
    stage.receive(_segment(1, 2, 2))
    assert isinstance(stage.next_action(), Run)
    stage.receive(_segment(2, 4, 2))
    stage.receive(Word(0, 0, 0, (0,), 1, True, True))
    assert stage.next_action() == Prune(0, (0,), 1)
    assert stage.next_action() is None
    assert (stage.committed, stage.cached, stage.round, stage.waiting) == (1, 0, 1, ())


def test_accepting_what_has_not_passed_is_refused() -> None:
    stage = StageSession(1, 1)
    stage.receive(Word(0, 0, 0, (0,), 1, False, False))
    with pytest.raises(ProtocolError, match="has not passed this stage"):
        stage.next_action()


def test_records_are_validated() -> None:
    with pytest.raises(ProtocolError, match="one position per token"):
        Segment(0, 1, 0, 0, 0, (1, 2), (0,))
    with pytest.raises(ProtocolError, match="one parent per token"):
        Segment(0, 1, 0, 0, 0, (1, 2), (0, 1), (0,))
    with pytest.raises(ProtocolError, match="among the retained"):
        Word(0, 0, 0, (1,), 2, False, True)
    with pytest.raises(ProtocolError, match="keeps no live node"):
        Word(0, 0, 0, (1, 2), 1, True, True)
