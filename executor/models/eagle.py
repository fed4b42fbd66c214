"""An EAGLE head as a draft (Li et al., EAGLE, EAGLE-2 and EAGLE-3).

The entry of a token at position p is made from its embedding and the state at p - 1; the prompt's
first token has no state before it and no entry (as in the published code). Candidates below
committed tokens come from the target's states, below scratch nodes from the head's own, so they get
worse with every level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeAlias

import torch

from treepipe.core.protocol import DraftPass
from treepipe.core.scratch import Scratch, ScratchNode
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_source import DraftSource, Opening, Passes
from treepipe.executor.models.eagle_head import load_head
from treepipe.executor.models.stage_model import LayerStack, Part, TargetEnds

Node: TypeAlias = ScratchNode[torch.Tensor]
"""A token, with the head's own state [hidden] at it after a pass has read it."""


@dataclass(slots=True)
class _State:
    """The state of one session.

    Attributes:
        tokens: committed tokens.
        features: what the head reads of the target's states, by position, as far as they were
            observed.
        newest: the newest committed token; unset before the first catch-up pass.
        true_entries: cache entries made from the target's states; the head guessed the others.
    """

    tokens: list[int] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)
    newest: Node = field(init=False)
    scratch: Scratch[torch.Tensor] = field(default_factory=Scratch)
    true_entries: int = 0


class BorrowingHead:
    """An EAGLE-1 or EAGLE-2 head with the target's embedding and output projection."""

    def __init__(
        self, directory: Path, target: Checkpoint, dtype: torch.dtype, device: str
    ) -> None:
        """Load the head. Raises ``UserError`` if it cannot be loaded or does not fit the target."""
        head, self._embedding = load_head(directory, target, dtype, device)
        self.layers, self.rotary, self.config = [head], head.rotary, head.config
        self._ends, self._device = TargetEnds(target, dtype, device), device

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Embed [n] token ids -> [n, hidden]."""
        if self._embedding is None:
            return self._ends.embed(tokens)
        return self._embedding[torch.tensor(tokens, dtype=torch.long, device=self._device)]

    def observed(self, states: torch.Tensor) -> torch.Tensor:
        """Return what the layers read of the target's states [n, captured hidden]."""
        return states

    def fed_on(self, states: torch.Tensor) -> torch.Tensor:
        """Return what the layers read of their own states [n, hidden] a level above."""
        return states

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Project the layers' states [n, hidden] -> [n, vocabulary of the target]."""
        return self._ends.project(states)


class EagleDraft(DraftSource):
    """A head that reads tokens and states, level by level."""

    opens: type[Any] = BorrowingHead
    """Class of the head, made as ``BorrowingHead`` and with its methods."""

    def __init__(
        self,
        directory: Path,
        target: Checkpoint,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        graphs: bool = False,
    ) -> None:
        """Load the head; ``graphs`` as of a ``LayerStack``. Raises ``UserError`` if it cannot be
        loaded or does not fit the target."""
        head = self._head = self.opens(directory, target, dtype, device)
        layers, sizes = (head.layers, head.rotary, head.config), (capacity, dtype, device)
        self._stack = LayerStack(*layers, *sizes, graphs=graphs, width=2 * head.config.hidden_size)
        self._dtype, self._device = dtype, device
        self._states: dict[int, _State] = {}

    @classmethod
    def opened(cls, opening: Opening) -> EagleDraft:
        """Open a draft source whose weights are such a head."""
        assert opening.target is not None  # a head's record borrows the target's ends
        place, graphs = opening.place, opening.compute.graphs
        return cls(opening.directory, opening.target, *place, graphs=graphs)

    def open(self, session: int) -> None:
        self._stack.open(session)
        self._states[session] = _State()

    def close(self, session: int) -> None:
        self._stack.close(session)
        self._states.pop(session, None)

    @torch.inference_mode()
    def observe(self, session: int, features: torch.Tensor) -> None:
        """Store the target's states [n, captured hidden] of its next n committed tokens."""
        states = features.to(self._device, self._dtype)
        self._states[session].features += list(self._head.observed(states))

    @torch.inference_mode()
    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        """Run the passes level by level, each level of all passes at once."""
        asked = [self._follow(*each) for each in passes]
        levels = [self._levels(*each, nodes) for each, nodes in zip(passes, asked, strict=True)]
        for found in zip_longest(*levels):  # a level needs the states of the one above it
            parts, nodes = zip(*[level for level in found if level is not None], strict=True)
            for own, states in zip(nodes, self._stack.forward_batch(parts), strict=True):
                for node, state in zip(own, states[-len(own) :], strict=True):
                    node.payload = state
        answers = torch.stack([node.payload for node in chain.from_iterable(asked)])
        log_probs = self._head.logits(answers).double().log_softmax(-1)
        return list(log_probs.split([len(nodes) for nodes in asked]))

    def _follow(self, session: int, order: DraftPass) -> list[Node]:
        """Prune as the pass requires; return the nodes that it answers for."""
        state = self._states[session]
        if order.cut is not None:
            self._stack.cache(session).prune(*order.cut)
        followed = state.scratch.follow(order)
        for node in followed.committed:  # with guessed states, until the next catch-up
            state.tokens.append(node.token)
            state.newest = node
        if not order.catch_up:
            return followed.added
        state.newest = ScratchNode(order.catch_up[-1], None)
        return [state.newest]

    def _levels(
        self, session: int, order: DraftPass, asked: Sequence[Node]
    ) -> Iterator[tuple[Part, Sequence[Node]]]:
        """Yield the levels of a pass, each with the nodes that receive the states of its last rows.

        A new node needs the head's own state at its parent, which may be a node of the same pass (a
        whole tree that is run again).
        """
        state = self._states[session]
        if order.catch_up:
            part = self._caught_up(session, order.catch_up)
            if len(part.positions):
                yield part, asked
            else:
                state.newest.payload = state.features[0]
            return
        first, newest = len(state.scratch.nodes) - len(asked), state.newest
        for start, stop in _runs(first, order.parents):
            nodes, parents = asked[start:stop], order.parents[start:stop]
            above = [(newest if node.parent is None else node.parent).payload for node in nodes]
            given = self._head.fed_on(torch.stack(above))
            if len(state.tokens) == 1:  # it has no entry, so no state of the head's own
                given[[node.parent is None for node in nodes]] = state.features[0]
            positions = [len(state.tokens) - 2 + len(node.path) for node in nodes]
            inputs = self._inputs([node.token for node in nodes], given)
            yield Part(session, inputs, positions, parents), nodes

    def _caught_up(self, session: int, tokens: Sequence[int]) -> Part:
        """Return the part from the first committed token whose entry is missing or guessed; it is
        empty behind a prompt's first token alone, whose children read the target's own state."""
        state = self._states[session]
        first = state.true_entries
        self._stack.cache(session).truncate(first)
        state.tokens += tokens
        last = state.true_entries = len(state.tokens) - 1
        tokens, features = state.tokens[first + 1 :], state.features[first:last]
        inputs = self._inputs(tokens, torch.stack(features)) if tokens else torch.empty(0, 0)
        return Part(session, inputs, range(first, last), None)

    def _inputs(self, tokens: Sequence[int], given: torch.Tensor) -> torch.Tensor:
        """Inputs [n, 2 hidden]: the tokens' embeddings, and the states [n, hidden] before them."""
        return torch.cat((self._head.embed(tokens), given), -1)


def _runs(first: int, parents: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut a pass into runs [start, stop) of nodes, no node's parent in its own run.

    ``first`` is the index of the pass's first node among the scratch nodes, as in ``parents``; a
    node comes after its parent.
    """
    start = 0
    for place, parent in enumerate(parents):
        if parent >= first + start:
            yield start, place
            start = place
    yield start, len(parents)
