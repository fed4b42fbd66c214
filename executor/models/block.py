"""A block draft (DFlash, arXiv 2602.06036; JetSpec, 2606.18394) as a draft source.

Whenever committed tokens are new to it, it reads the target's states before the newest one, and
one pass over that token and the masks behind it gives a distribution per level. From then on all
nodes of a level have the level's distribution, whatever their paths; below the last level nothing
is proposed until the next block. So a verified feature is as old as the node is deep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from treepipe.core.errors import UserError
from treepipe.core.protocol import DraftPass
from treepipe.core.scratch import Scratch
from treepipe.executor.models.block_head import BlockHead, load_block_head
from treepipe.executor.models.cache import TreeCache
from treepipe.executor.models.draft_source import DraftSource, Opening, Passes
from treepipe.executor.models.stage_model import Rotations, TargetEnds


@dataclass(slots=True)
class _BlockState:
    """The state of one session.

    Attributes:
        cache: keys and values of the target's states, by position.
        read: number of committed tokens.
        newest: the last of them.
        features: the target's states [n, width] that are not yet in the cache.
        levels: log probabilities [levels, vocabulary] of the block; -inf in a last row.
    """

    cache: TreeCache
    read: int = 0
    newest: int = 0
    features: list[torch.Tensor] = field(default_factory=list)
    scratch: Scratch[None] = field(default_factory=Scratch)
    levels: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class BlockDraft(DraftSource):
    """The draft with the target's embedding and output projection."""

    def __init__(self, head: BlockHead, ends: TargetEnds, capacity: int) -> None:
        """Make the draft, for ``capacity`` tokens per session; head and ends are of one type and
        on one processor."""
        self._head, self._ends, self._capacity = head, ends, capacity
        like = head.fc.weight
        self._dtype, self._device = like.dtype, str(like.device)
        self._rotations = Rotations(head.rotary, self._dtype, self._device)
        size, mask = head.layout.size, None
        if head.layout.causal:
            mask = torch.ones(size, size, dtype=torch.bool, device=like.device).tril()
        self._within = mask
        self._states: dict[int, _BlockState] = {}

    @classmethod
    def opened(cls, opening: Opening) -> BlockDraft:
        """Open the draft source ``block``. Raises ``UserError`` if its block is of another size."""
        assert opening.target is not None  # the record of ``block`` borrows the target's ends
        capacity, dtype, device = opening.place
        head = load_block_head(opening.directory, opening.target, dtype, device)
        config, layout = opening.directory / "config.json", head.layout
        if layout.size != opening.keys.block:
            raise UserError(
                f"{config}: key block_size = {layout.size}, but drafts.block = {opening.keys.block}"
            )
        return cls(head, TargetEnds(opening.target, dtype, device), capacity)

    def open(self, session: int) -> None:
        config, capacity = self._head.config, self._capacity
        shape = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self._states[session] = _BlockState(TreeCache(*shape, capacity, self._dtype, self._device))

    def close(self, session: int) -> None:
        self._states.pop(session, None)

    def observe(self, session: int, features: torch.Tensor) -> None:
        """Store the target's states [n, width] of its next n committed tokens."""
        self._states[session].features += list(features.to(self._device, self._dtype))

    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        return [self._log_probs(self._states[session], order) for session, order in passes]

    def _log_probs(self, state: _BlockState, order: DraftPass) -> torch.Tensor:
        followed = state.scratch.follow(order)
        new = [*[node.token for node in followed.committed], *order.catch_up]
        if new:
            state.read, state.newest = state.read + len(new), new[-1]
            state.levels = self._block(state)
        last = len(state.levels) - 1
        return state.levels[[min(len(path), last) for path in followed.asked]]

    @torch.inference_mode()
    def _block(self, state: _BlockState) -> torch.Tensor:
        """Read the states before the newest token, and run a block behind it."""
        size, cache, before = self._head.layout.size, state.cache, state.read - 1
        count = before - cache.length
        if count:
            states = torch.stack(state.features[:count])[None]
            state.features = state.features[count:]
            rotary = self._at(range(cache.length, before))
            read = self._head.context(states, rotary)
            cache.append(torch.stack([torch.cat(each) for each in read], 1))
        keys, values = cache.entries()
        context = [*zip(keys[:, None], values[:, None], strict=True)]
        embedded = self._ends.embed([state.newest, *[self._head.layout.mask] * (size - 1)])
        rotary = self._at(range(before, before + size))
        states = self._head(embedded[None], context, rotary, self._mask(before))[0, 1:]
        found = self._ends.project(states).double().log_softmax(-1)
        return torch.cat((found, torch.full_like(found[:1], -torch.inf)))

    def _mask(self, before: int) -> torch.Tensor | None:
        if self._within is None:
            return None
        return torch.nn.functional.pad(self._within, (before, 0), value=True)

    def _at(self, positions: Sequence[int]) -> tuple[torch.Tensor, ...]:
        place = torch.tensor([*positions], device=self._device)[None]
        return self._rotations.at(place, positions[-1] + 1)
