"""Drives schedules through real stage rules without time: the smallest possible world.

For tests of the core only: a pipeline of ``StageSession`` objects, a draft and a target given as
functions, and messages that move when the test says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from treepipe.protocol import (
    Announce,
    Drafted,
    DraftPass,
    Emit,
    Event,
    Feed,
    Message,
    Returned,
    Schedule,
    Segment,
    Started,
)
from treepipe.stage import Pass, Prune, Run, StageSession

Logits = Callable[[list[int]], np.ndarray]


class TimelessWorld:
    """N stages and a draft; ``choose`` picks which deliverable message moves next."""

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
        self.stages = [StageSession(n, stages) for n in range(1, stages + 1)]
        self.inboxes: list[deque[Message]] = [deque() for _ in range(stages + 1)]
        self.word_boxes: list[deque[Message]] = [deque() for _ in range(stages)]
        self.events: deque[Event] = deque()
        self.forward_sizes: list[list[int]] = [[] for _ in range(stages)]
        self.draft_calls: list[int] = []
        self.text: list[int] = []
        self.committed: list[list[int]] = [[] for _ in range(stages)]
        self.cached: list[list[tuple[int, int]]] = [[] for _ in range(stages)]
        self.read: list[int] = []
        self.scratch: list[list[int]] = []
        self.empty_returns = 0
        self.answered: set[int] = set()
        self.results: deque[tuple[int, ...]] = deque()

    def run(self, prompt: Sequence[int], max_new_tokens: int, eos: int | None = None) -> list[int]:
        self._tell(Started(tuple(prompt), max_new_tokens, eos))
        while not self.schedule.done:
            self._step()
        return self.text

    def _step(self) -> None:
        if self.events:
            self._tell(self.events.popleft())
            return
        moves = [n for n, box in enumerate(self.inboxes) if box]
        moves += [-1 - n for n, box in enumerate(self.word_boxes) if box]
        assert moves, "deadlock: nothing moves, and the schedule is not done"
        move = moves[self.choose(len(moves))]
        if move == len(self.stages):
            message = self.inboxes[move].popleft()
            assert isinstance(message, Segment)
            self._return(message)
        elif move >= 0:
            self.stages[move].receive(self.inboxes[move].popleft())
            self._advance(move)
        else:
            self.stages[-1 - move].receive(self.word_boxes[-1 - move].popleft())
            self._advance(-1 - move)

    def _advance(self, n: int) -> None:
        stage = self.stages[n]
        while (action := stage.next_action()) is not None:
            if isinstance(action, Prune):
                kept = [self.cached[n][i] for i in action.keep]
                self.committed[n] += [token for token, _ in kept[: action.accepted]]
                gone = action.accepted
                shift = {old: new - gone for new, old in enumerate(action.keep)}
                self.cached[n] = [
                    (token, max(shift.get(parent, -1), -1)) for token, parent in kept[gone:]
                ]
                continue
            segment = action.segment
            if isinstance(action, Run) and segment.committed:
                self.committed[n] += segment.tokens
                self.forward_sizes[n].append(len(segment.tokens))
            elif isinstance(action, Run):
                assert segment.start == len(self.cached[n])
                self.cached[n] += list(zip(segment.tokens, segment.parents, strict=True))
                self.forward_sizes[n].append(len(segment.tokens))
            else:
                assert isinstance(action, Pass)
            if n + 1 == len(self.stages):
                self.results.append(self._evaluate(segment))
            self.inboxes[n + 1].append(segment)

    def _return(self, segment: Segment) -> None:
        tokens = self.results.popleft()
        assert segment.ticket not in self.answered
        self.answered.add(segment.ticket)
        rows = len(segment.tokens)
        self.empty_returns += rows == 0
        self.events.append(Returned(segment.ticket, segment.version, segment.start, tokens))

    def _evaluate(self, segment: Segment) -> tuple[int, ...]:
        """The last stage's cache says what each row attends to; the target answers from that."""
        paths = [self.committed[-1]] if segment.committed else self._paths(segment)
        return tuple(int(np.argmax(self.target(path))) for path in paths)

    def _paths(self, segment: Segment) -> list[list[int]]:
        """Token paths of the rows at the time the last stage computed them."""
        base, cache = list(self.committed[-1]), self.cached[-1]
        paths = []
        for i in range(segment.start, segment.start + len(segment.tokens)):
            tail, node = [], i
            while node != -1:
                tail.append(cache[node][0])
                node = cache[node][1]
            paths.append(base + tail[::-1])
        return paths

    def _tell(self, event: Event) -> None:
        for command in self.schedule.handle(event):
            if isinstance(command, DraftPass):
                self.events.append(self._draft(command))
            elif isinstance(command, Feed):
                self.inboxes[0].append(command.segment)
            elif isinstance(command, Announce):
                for box in self.word_boxes:
                    box.append(command.word)
            elif isinstance(command, Emit):
                self.text += command.tokens

    def _draft(self, order: DraftPass) -> Drafted:
        self.draft_calls.append(order.rows)
        if order.reset:
            self.scratch = []
        self.read += order.catch_up
        paths = [list(self.read)] if order.catch_up else []
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
        return Drafted(order.ticket, tokens, log_probs)
