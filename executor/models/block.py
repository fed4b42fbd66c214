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
from treepipe.executor.models.families import Rotations
from treepipe.executor.models.stage_model import TargetEnds
from treepipe.executor.models.static_pass import MOST_ROWS, Buffers, StaticPasses


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

    def __init__(
        self, head: BlockHead, ends: TargetEnds, capacity: int, graphs: bool = False
    ) -> None:
        """Make the draft, for ``capacity`` tokens per session; head and ends are of one type and
        on one processor. ``graphs`` as of a ``LayerStack``."""
        self._head, self._ends, self._capacity = head, ends, capacity
        like = head.fc.weight
        self._dtype, self._device = like.dtype, str(like.device)
        self._rotations, self._fixed_rotations = (
            Rotations(head.rotary, self._dtype, self._device) for _ in range(2)
        )
        config = head.config
        self._sizes = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        self._static: StaticPasses | None = None
        if graphs:
            sizes = head.fc.in_features, self._sizes, capacity
            self._static = StaticPasses(self._in_buckets, *sizes, self._dtype, self._device)
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
        ends = TargetEnds(opening.target, dtype, device)
        return cls(head, ends, capacity, opening.compute.graphs)

    def open(self, session: int) -> None:
        if self._static is None:
            cache = TreeCache(*self._sizes, self._capacity, self._dtype, self._device)
        else:
            cache = self._static.open(self._capacity)
        self._states[session] = _BlockState(cache)

    def close(self, session: int) -> None:
        state = self._states.pop(session, None)
        if self._static is not None and state is not None:
            self._static.close(state.cache)

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
        features, state.features = state.features[:count], state.features[count:]
        tokens = [state.newest, *[self._head.layout.mask] * (size - 1)]
        if self._static is not None and count + size <= MOST_ROWS:
            cache.reserve(count, None)
            buffers = self._static.buffers(size + count, before)
            places = [*range(before, before + size), *range(cache.length, before)]
            buffers.describe([cache], [count], places, tokens)
            buffers.send([torch.stack(features)] if features else [], size)
            cache.finish(committed=True)
            states = self._static.replay(buffers, size)
        else:
            if count:
                rotary = self._at(range(cache.length, before))
                read = self._head.context(torch.stack(features)[None], rotary)
                cache.append(torch.stack([torch.cat(each) for each in read], 1))
            keys, values = cache.entries()
            context = [*zip(keys[:, None], values[:, None], strict=True)]
            embedded = self._ends.embed(tokens)
            rotary = self._at(range(before, before + size))
            states = self._head(embedded[None], context, rotary, self._mask(before))[0]
        found = self._ends.project(states[1:]).double().log_softmax(-1)
        return torch.cat((found, torch.full_like(found[:1], -torch.inf)))

    def _in_buckets(self, buffers: Buffers) -> torch.Tensor:
        """Read the target's states, and run the block, which the first rows are: [size, hidden]."""
        assert self._static is not None  # it calls this
        size, causal = self._head.layout.size, self._head.layout.causal
        places, longest = buffers.positions[None], self._static.longest + size
        block = self._fixed_rotations.at(places[:, :size], longest)
        read = self._fixed_rotations.at(places[:, size:], longest)
        entries = self._head.context(buffers.states[:, size:], read)
        context = [buffers.update(*each, layer) for layer, each in enumerate(entries)]
        within = torch.ones((size, size), dtype=torch.bool, device=places.device)
        seen = (buffers.last > 0).expand(size, -1)
        mask = torch.cat((seen, within.tril() if causal else within), -1)
        embedded = self._ends.embedded(buffers.tokens[:size])[None]
        states: torch.Tensor = self._head(embedded, context, block, mask)[0]
        return states

    def _mask(self, before: int) -> torch.Tensor | None:
        if self._within is None:
            return None
        return torch.nn.functional.pad(self._within, (before, 0), value=True)

    def _at(self, positions: Sequence[int]) -> tuple[torch.Tensor, ...]:
        place = torch.tensor([*positions], device=self._device)[None]
        return self._rotations.at(place, positions[-1] + 1)
