"""Drives schedules through real stage rules without time: the smallest possible world.

For tests of the core only: a pipeline of ``StageSession`` objects, a draft and a target given as
functions, and messages that move when the test says so. On the way every action of every stage is
held against ``NodeLedger``, which follows each fed node by plain lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from treepipe.messages import NO_PARENT, Segment, Word
from treepipe.protocol import (
    Announce,
    Drafted,
    DraftPass,
    Emit,
    Event,
    Feed,
    Returned,
    Schedule,
    Started,
)
from treepipe.stage import Action, Pass, Prune, Run, StageSession

Logits = Callable[[list[int]], np.ndarray]
Move = tuple[str, int]


class NodeLedger:
    """Reference of the index law: every fed node by a number of its own, and the word it left at.

    It follows the feeds and words in the order in which the draft gave them, so it knows the
    draft's tree after every word; no index arithmetic is shared with the stages.
    """

    def __init__(self) -> None:
        self.version = self.round = self.accepted = 0
        self.live: list[int] = []
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.parents: list[int] = []
        self.tickets: dict[int, Segment] = {}
        self._left_at: dict[int, int] = {}

    def feed(self, segment: Segment) -> list[int]:
        """Number the rows of a tree segment; returns the numbers."""
        assert segment.ticket not in self.tickets, "a ticket is given out once"
        self.tickets[segment.ticket] = segment
        if segment.committed:
            return []
        assert (segment.version, segment.round) == (self.version, self.round)
        assert segment.start == len(self.live), "rows are contiguous"
        first = len(self.tokens)
        nodes = list(range(first, first + len(segment.tokens)))
        self.live += nodes
        self.tokens += segment.tokens
        self.positions += segment.positions
        self.parents += [self.live[p] if p != NO_PARENT else p for p in segment.parents]
        return nodes

    def announce(self, word: Word) -> None:
        """Take the word's losses out of the draft's tree; nodes not fed yet do not count."""
        assert (word.number, word.round) == (self.version, self.round)
        self.version += 1
        if word.retained is not None:
            kept = [self.live[i] for i in word.retained if i < len(self.live)]
            for node in set(self.live) - set(kept[word.accepted :]):
                self._left_at[node] = self.version
            self.live = kept[word.accepted :]
            self.accepted += word.accepted
        self.round += word.ends_round

    def alive(self, node: int, version: int) -> bool:
        """True if the node was in the tree after ``version`` words (from when it was fed on)."""
        return self._left_at.get(node, version + 1) > version


class StagePipeline:
    """N stages, the boxes between them, and what an executor's caches would hold."""

    def __init__(
        self, stages: int, evaluate: Callable[[Segment], None] = lambda segment: None
    ) -> None:
        """Args: ``evaluate`` is called with what the last stage has just computed."""
        self.stages = [StageSession(n, stages) for n in range(1, stages + 1)]
        self.ledger = NodeLedger()
        self.inboxes: list[deque[Segment]] = [deque() for _ in range(stages + 1)]
        self.word_boxes: list[deque[Word]] = [deque() for _ in range(stages)]
        self.forward_sizes: list[list[int]] = [[] for _ in range(stages)]
        self.committed: list[list[int]] = [[] for _ in range(stages)]
        self.cached: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
        self.nodes: list[list[int]] = [[] for _ in range(stages)]
        self.answered: set[int] = set()
        self._evaluate = evaluate
        self.rows: dict[int, list[int]] = {}

    def feed(self, segment: Segment) -> None:
        self.rows[segment.ticket] = self.ledger.feed(segment)
        self.inboxes[0].append(segment)

    def announce(self, word: Word) -> None:
        self.ledger.announce(word)
        for box in self.word_boxes:
            box.append(word)

    @property
    def travelling(self) -> set[int]:
        """Tickets of the segments that are in a box or wait at a stage."""
        boxes = {segment.ticket for box in self.inboxes for segment in box}
        return boxes | {segment.ticket for stage in self.stages for segment in stage.waiting}

    def moves(self) -> list[Move]:
        """What could happen next: a segment or a word reaches the end of its box."""
        moves = [("segment", n) for n, box in enumerate(self.inboxes) if box]
        return moves + [("word", n) for n, box in enumerate(self.word_boxes) if box]

    def move(self, move: Move) -> Segment | None:
        """Let it happen; returns the segment that came back to the draft, if one did."""
        kind, n = move
        if n == len(self.stages):
            segment = self.inboxes[n].popleft()
            assert segment.ticket not in self.answered, "a ticket is answered once"
            self.answered.add(segment.ticket)
            return segment
        box = self.inboxes[n] if kind == "segment" else self.word_boxes[n]
        self.stages[n].receive(box.popleft())
        while (action := self.stages[n].next_action()) is not None:
            self._act(n, action)
        self._check(n)
        return None

    def _act(self, n: int, action: Action) -> None:
        if isinstance(action, Prune):
            self._prune(n, action)
            return
        segment = action.segment
        if segment.committed:
            first = len(self.committed[n])
            assert segment.positions == tuple(range(first, first + len(segment.tokens)))
            self.committed[n] += segment.tokens
        else:
            self._check_rows(n, action)
            self.cached[n] += zip(segment.tokens, segment.parents, strict=True)
        if isinstance(action, Run):
            self.forward_sizes[n].append(len(segment.tokens))
        if n + 1 == len(self.stages):
            self._evaluate(segment)
        self.inboxes[n + 1].append(segment)

    def _prune(self, n: int, action: Prune) -> None:
        kept = [self.cached[n][i] for i in action.keep]
        nodes, version = self.nodes[n], self.stages[n].version
        alive = [node for node in nodes if self.ledger.alive(node, version)]
        self.nodes[n] = [nodes[i] for i in action.keep[action.accepted :]]
        assert self.nodes[n] == alive, "a prune keeps what the draft keeps"
        self.committed[n] += [token for token, _ in kept[: action.accepted]]
        moved = {old: new - action.accepted for new, old in enumerate(action.keep)}
        self.cached[n] = [
            (token, max(moved.get(parent, NO_PARENT), NO_PARENT))
            for token, parent in kept[action.accepted :]
        ]

    def _check_rows(self, n: int, action: Run | Pass) -> None:
        """Exactly the rows that the stage's words left alive, with the indices they have now."""
        ledger, segment, version = self.ledger, action.segment, self.stages[n].version
        arrived = self.rows[segment.ticket]
        alive = [node for node in arrived if ledger.alive(node, version)]
        rows = action.rows if isinstance(action, Run) else ()
        assert alive == (arrived if rows is None else [arrived[i] for i in rows])
        assert isinstance(action, Run) == bool(alive), "an emptied segment costs no compute"
        assert ledger.tickets[segment.ticket].version <= version == segment.version
        assert segment.start == len(self.nodes[n]) or not alive
        assert list(segment.tokens) == [ledger.tokens[node] for node in alive]
        assert list(segment.positions) == [ledger.positions[node] for node in alive]
        self.nodes[n] += alive
        place = {node: index for index, node in enumerate(self.nodes[n])}
        parents = [place.get(ledger.parents[node], NO_PARENT) for node in alive]
        assert list(segment.parents) == parents
        self.rows[segment.ticket] = alive

    def _check(self, n: int) -> None:
        stage = self.stages[n]
        assert stage.cached == len(self.nodes[n]) == len(self.cached[n])
        assert stage.committed == len(self.committed[n])
        assert all(self.ledger.alive(node, stage.version) for node in self.nodes[n])


class TimelessWorld:
    """A pipeline, a draft and a target; ``choose`` picks which of the possible moves is next."""

    def __init__(
        self,
        schedule: Schedule,
        stages: int,
        target: Logits,
        draft: Logits,
        choose: Callable[[int], int] = lambda count: 0,
    ) -> None:
        self.schedule = schedule
        self.target, self.draft, self.choose = target, draft, choose
        self.pipeline = StagePipeline(stages, self._evaluate)
        self.draft_calls: list[int] = []
        self.text: list[int] = []
        self.read: list[int] = []
        self.scratch: list[list[int]] = []
        self.empty_returns = 0
        self._prompt: tuple[int, ...] = ()
        self.pending: deque[Drafted] = deque()
        self._offered: dict[tuple[int, ...], set[int]] = {}
        self._results: dict[int, tuple[int, ...]] = {}

    def run(self, prompt: Sequence[int], max_new_tokens: int, eos: int | None = None) -> list[int]:
        self._prompt = tuple(prompt)
        self.tell(Started(self._prompt, max_new_tokens, eos))
        while not self.schedule.done:
            self.step()
        return self.text

    def step(self) -> None:
        """One move: a draft pass ends, or a message reaches its place."""
        moves = [("draft", 0)] * len(self.pending) + self.pipeline.moves()
        assert moves, "deadlock: nothing moves, and the schedule is not done"
        move = moves[self.choose(len(moves))]
        if move[0] == "draft":
            self.tell(self.pending.popleft())
        elif (segment := self.pipeline.move(move)) is not None:
            self.empty_returns += not segment.tokens
            tokens = self._results.pop(segment.ticket)
            self.tell(Returned(segment.ticket, segment.version, segment.start, tokens))

    def drain(self) -> None:
        """After the end: let every message that is still under way reach its place."""
        while moves := self.pipeline.moves():
            self.pipeline.move(moves[self.choose(len(moves))])

    def tell(self, event: Event) -> None:
        for command in self.schedule.handle(event):
            if isinstance(command, DraftPass):
                self.pending.append(self._draft(command))
            elif isinstance(command, Feed):
                self.pipeline.feed(command.segment)
                self._check_offered()
            elif isinstance(command, Announce):
                self.pipeline.announce(command.word)
            elif isinstance(command, Emit):
                self.text += command.tokens

    def _check_offered(self) -> None:
        """The root is the newest committed token, others were drafted for their own path."""
        ledger, paths = self.pipeline.ledger, dict[int, tuple[int, ...]]()
        for node in ledger.live:
            above, token = paths.get(ledger.parents[node]), ledger.tokens[node]
            assert token in ([self.text[-1]] if above is None else self._offered[above])
            paths[node] = (*above, token) if above else (*self._prompt, *self.text)

    def _evaluate(self, segment: Segment) -> None:
        """The last stage's cache says what each row attends to; the target answers from that."""
        committed = self.pipeline.committed[-1]
        paths = [committed] if segment.committed else self._paths(segment)
        self._results[segment.ticket] = tuple(int(np.argmax(self.target(p))) for p in paths)

    def _paths(self, segment: Segment) -> list[list[int]]:
        """Token paths of the rows at the time the last stage computed them."""
        base, cache = self.pipeline.committed[-1], self.pipeline.cached[-1]
        paths = []
        for i, position in enumerate(segment.positions, segment.start):
            tail, node = [], i
            while node != NO_PARENT:
                tail.append(cache[node][0])
                node = cache[node][1]
            paths.append(base + tail[::-1])
            assert position == len(paths[-1]) - 1, "committed before the root + depth"
        return paths

    def _draft(self, order: DraftPass) -> Drafted:
        self.draft_calls.append(order.rows)
        if order.reset:
            self.scratch = []
        self.read += order.catch_up
        paths = [list(self.read)] if order.catch_up else []
        assert self.read == [*self._prompt, *self.text] or not paths, "it reads what is committed"
        for token, parent in zip(order.tokens, order.parents, strict=True):
            above = self.read if parent < 0 else self.scratch[parent]
            paths.append([*above, token])
            self.scratch.append(paths[-1])
        tokens, log_probs = [], []
        for path in paths:
            logits = self.draft(path)
            logs = logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
            top = np.argsort(-logs, kind="stable")[: order.top_k]
            tokens.append([int(t) for t in top])
            log_probs.append([float(logs[t]) for t in top])
            self._offered.setdefault(tuple(path), set()).update(tokens[-1])
        return Drafted(order.ticket, tokens, log_probs)
