"""PipeDec's steps, played from the paper's text with a draft and a target; it shares no code with
the core.

(PipeDec, sections 3.3.2 to 3.3.4 and 3.4.3; SpecPipe, sections 3.2 and 3.3.2 to 3.3.3.) A node is
its tokens from the root's child down. A step: every group computes the layer that it holds and the
draft its candidates below the newest layer; the last group's token prunes everything; then the tree
is extended, and every layer moves one group on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Logits = Callable[[list[int]], np.ndarray]
Node = tuple[int, ...]


@dataclass
class PaperSteps:
    """One request's text and what its steps did.

    Attributes:
        text: new tokens, the first one included.
        computed: per group the rows of each of its passes, empty ones left out.
        hits: per round, per step the tokens that it gave (0 or 1).
        fed: last tokens of the nodes that the first group took, in order.
        empty: steps at which the first group had no layer to take.
    """

    target: Logits
    draft: Logits
    groups: int
    width: int
    children: int
    text: list[int] = field(default_factory=list)
    computed: list[list[int]] = field(default_factory=list)
    hits: list[list[int]] = field(default_factory=list)
    fed: list[int] = field(default_factory=list)
    empty: int = 0

    def play(self, prompt: list[int], wanted: int) -> None:
        """Steps until there are so many new tokens."""
        context, self.computed = [*prompt], [[] for _ in range(self.groups)]
        root = int(np.argmax(self.target(context)))
        self.text.append(root)
        self._new_tree()
        while len(self.text) < wanted:
            self._compute()
            known = [*context, self.text[-1]]
            self._ask(known)
            if () not in self._held[-1]:
                self.hits[-1].append(0)
                self._update()
                continue
            x = int(np.argmax(self.target(known)))
            context.append(self.text[-1])
            self.text.append(x)
            self.hits[-1].append(1)
            if len(self.text) == wanted:
                return
            if any((x,) in layer for layer in self._held):
                self._prune(x)
                self._update()
            else:
                self._new_tree()

    def _new_tree(self) -> None:
        """The groups are empty but for the first, which has the root."""
        self._held: list[list[Node]] = [[()], *([] for _ in range(self.groups - 1))]
        self._score: dict[Node, float] = {(): 0.0}
        self._offers: dict[Node, list[tuple[float, int]]] = {}
        self.hits.append([])
        self.fed.append(self.text[-1])

    def _compute(self) -> None:
        for rows, layer in zip(self.computed, self._held, strict=True):
            rows += [len(layer)] if layer else []

    def _ask(self, known: list[int]) -> None:
        """The draft's best candidates below each node of the layer that was taken last."""
        for node in self._held[0]:
            logits = self.draft([*known, *node])
            logs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            best = np.argsort(-logs, kind="stable")[: self.children]
            self._offers[node] = [(float(logs[token]), int(token)) for token in best]

    def _prune(self, x: int) -> None:
        """Only the subtree of x stays, of the draft's candidates, too; x is the root."""

        def below(node: Node) -> bool:
            return node[:1] == (x,)

        self._held = [[node[1:] for node in layer if below(node)] for layer in self._held]
        self._score = {node[1:]: each for node, each in self._score.items() if below(node)}
        self._offers = {node[1:]: each for node, each in self._offers.items() if below(node)}

    def _update(self) -> None:
        """The best of what the deepest nodes offer, by cumulative probability, are the next
        layer, which the first group takes while all others move on."""
        deepest = max(map(len, self._score))
        offered = [
            (self._score[node] + log, (*node, token))
            for node in self._score
            if len(node) == deepest
            for log, token in self._offers[node]
        ]
        layer = sorted(offered, key=lambda each: -each[0])[: self.width]
        self._score |= {node: score for score, node in layer}
        self._held = [[node for _, node in layer], *self._held[:-1]]
        self.fed += [node[-1] for _, node in layer]
        self.empty += not layer
