"""An EAGLE head as a draft: it reads the target's states where they are known, and its own beyond.

The entry of a token at position p is made from its embedding and the state at p - 1; the prompt's
first token has no state before it and no entry (the published code drops it, too). Candidates below
committed tokens come from true states, below scratch nodes from the head's own predictions, so they
get worse with every level below the last verified token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treepipe.core.protocol import DraftPass
from treepipe.core.scratch import Scratch, ScratchNode
from treepipe.executor.cache import TreeCache
from treepipe.executor.checkpoint import Checkpoint, CheckpointSource
from treepipe.executor.draft_source import DraftSource, Passes
from treepipe.executor.eagle_head import load_head
from treepipe.executor.stage_model import TargetEnds
from treepipe.executor.supported import head_size


@dataclass(slots=True)
class _State:
    """One session.

    Attributes:
        tokens: committed tokens read.
        features: true states by position, as far as they were observed.
        predicted: the head's state at the newest committed token, [hidden].
        scratch: the scratch nodes, with the head's state at each.
        true_entries: cache entries made from true states; those behind it were guessed.
    """

    cache: TreeCache
    tokens: list[int] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)
    predicted: torch.Tensor | None = None
    scratch: Scratch[torch.Tensor] = field(default_factory=Scratch)
    true_entries: int = 0


class EagleDraft(DraftSource):
    """The head with the target's embedding and output projection."""

    def __init__(
        self,
        source: CheckpointSource,
        target: Checkpoint,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
    ) -> None:
        """Raises ``UserError`` if the head cannot be loaded or does not fit the target."""
        self._head, embedding = load_head(source, target, dtype, device)
        self._ends = TargetEnds(target, dtype, device)
        self._embedding, self._dtype, self._device = embedding, dtype, device
        self._capacity = capacity
        config: Any = self._head.config  # packed layers do not tell their sizes
        self._heads, self._head_size = int(config.num_key_value_heads), head_size(config)
        self._states: dict[int, _State] = {}

    def open(self, session: int) -> None:
        sizes = 1, self._heads, self._head_size, self._capacity
        cache = TreeCache(*sizes, self._dtype, self._device)
        self._states[session] = _State(cache)

    def close(self, session: int) -> None:
        self._states.pop(session, None)

    def observe(self, session: int, features: torch.Tensor) -> None:
        """The target's final states [n, hidden] of its next n committed tokens."""
        self._states[session].features += list(features.to(self._device, self._dtype))

    @torch.inference_mode()
    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        return [self._log_probs(session, order) for session, order in passes]

    def _log_probs(self, session: int, order: DraftPass) -> torch.Tensor:
        state = self._states[session]
        if order.cut is not None:
            state.cache.prune(*order.cut)
        followed = state.scratch.follow(order)
        for node in followed.committed:  # with guessed states; the next catch-up redoes them
            state.predicted = node.payload
            state.tokens.append(node.token)
        if order.catch_up:
            states = self._read(state, order.catch_up)
        else:
            states = self._expand(state, order.parents, followed.added)
        logits = self._ends.project(states)
        return logits.double().log_softmax(-1)

    def _read(self, state: _State, tokens: Sequence[int]) -> torch.Tensor:
        """Committed tokens, from the first one whose entry is missing or was guessed."""
        first = state.true_entries + 1
        state.cache.truncate(state.true_entries)
        state.tokens += tokens
        positions = range(first, len(state.tokens))
        state.true_entries = len(state.tokens) - 1
        given = torch.stack(state.features[first - 1 : len(state.tokens) - 1])
        states = self._run(state, state.tokens[first:], given, positions, None)
        state.predicted = states[-1]
        return states[-1:]

    def _expand(
        self, state: _State, parents: Sequence[int], nodes: Sequence[ScratchNode[torch.Tensor]]
    ) -> torch.Tensor:
        """New scratch nodes, each from the head's own state at its parent.

        A parent may be a node of the same pass (a whole tree that is run again): then the head runs
        once per level, since a node's input is its parent's result.
        """
        first, found = len(state.scratch.nodes) - len(nodes), []
        for start, stop in _levels(first, parents):
            found.append(self._expand_level(state, parents[start:stop], nodes[start:stop]))
        return torch.cat(found)

    def _expand_level(
        self, state: _State, parents: Sequence[int], nodes: Sequence[ScratchNode[torch.Tensor]]
    ) -> torch.Tensor:
        """Nodes whose parents' states are known."""
        root = state.predicted
        assert root is not None  # a catch-up pass came before
        given = [root if node.parent is None else node.parent.payload for node in nodes]
        positions = [len(state.tokens) - 1 + len(node.path) for node in nodes]
        tokens = [node.token for node in nodes]
        states = self._run(state, tokens, torch.stack(given), positions, parents)
        for node, own in zip(nodes, states, strict=True):
            node.payload = own
        return states

    def _run(
        self,
        state: _State,
        tokens: Sequence[int],
        given: torch.Tensor,
        positions: Sequence[int],
        parents: Sequence[int] | None,
    ) -> torch.Tensor:
        """[n, hidden] predicted states; appends n entries. ``positions`` are the tokens' own."""
        mask = state.cache.begin(len(tokens), parents).to(self._device)
        places = torch.tensor([[position - 1 for position in positions]], device=self._device)
        embedded = self._embed(tokens)[None]
        states = self._head(embedded, given[None], places, mask[None, None], state.cache)
        state.cache.finish(committed=parents is None)
        result: torch.Tensor = states[0]
        return result

    def _embed(self, tokens: Sequence[int]) -> torch.Tensor:
        if self._embedding is None:
            return self._ends.embed(tokens)
        return self._embedding[torch.tensor(tokens, dtype=torch.long, device=self._device)]


def _levels(first: int, parents: Sequence[int]) -> Iterator[tuple[int, int]]:
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
