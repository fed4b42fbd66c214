"""A contiguous range of a model's decoder layers, and the two ends (embedding, projection).

Only the asked layers are ever built or read; no process holds the whole target.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treepipe.executor.cache import TreeCache
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.families import FAMILIES
from treepipe.protocol import NO_PARENT


class StageModel:
    """Layers ``layers`` of a checkpoint, with one cache per session.

    Attributes:
        check_causality: assert at every pass that each row attends to the committed entries,
            its ancestors and itself, and to nothing else (slow; for tests).
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        layers: range,
        capacity: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Args: ``capacity``: cache entries per session."""
        self.check_causality = False
        self._config = checkpoint.config
        self._capacity, self._dtype = capacity, dtype
        family = FAMILIES[checkpoint.architecture]
        self._rotary = family.rotary(config=self._config)
        self._layers = []
        for place, number in enumerate(layers):
            with torch.device("meta"):
                layer = family.layer(self._config, number)
            tensors = checkpoint.tensors(f"model.layers.{number}.")
            tensors = {key: tensor.to(dtype) for key, tensor in tensors.items()}
            layer.load_state_dict(tensors, assign=True)
            layer.self_attn.layer_idx = place  # the cache counts this stage's layers only
            self._layers.append(layer.eval().requires_grad_(False))
        self._caches: dict[int, TreeCache] = {}

    @property
    def parameter_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for m in self._layers for p in m.parameters())

    def open(self, session: int) -> None:
        """Give the session an empty cache."""
        heads = self._config.num_key_value_heads
        size = getattr(self._config, "head_dim", None) or (
            self._config.hidden_size // self._config.num_attention_heads
        )
        self._caches[session] = TreeCache(
            len(self._layers), heads, size, self._capacity, self._dtype
        )

    def close(self, session: int) -> None:
        """Free the session's cache; unknown sessions are ignored."""
        self._caches.pop(session, None)

    def cache(self, session: int) -> TreeCache:
        return self._caches[session]

    @torch.inference_mode()
    def forward(
        self,
        session: int,
        hidden: torch.Tensor,
        positions: Sequence[int],
        parents: Sequence[int] | None,
    ) -> torch.Tensor:
        """[n, hidden] in and out; appends n entries to the session's cache.

        Args:
            positions: position id per row.
            parents: index of each row's parent in the tree part; None for committed rows.
        """
        cache = self._caches[session]
        mask = cache.begin(len(positions), parents)
        if self.check_causality and parents is not None and mask is not None:
            _assert_causal(cache, mask, parents)
        states = hidden[None]
        place = torch.tensor([positions])
        rotary = self._rotary(states, place)
        for layer in self._layers:
            states = layer(
                states,
                attention_mask=None if mask is None else mask[None, None],
                position_ids=place,
                past_key_values=cache,
                use_cache=True,
                position_embeddings=rotary,
            )
        cache.finish(committed=parents is None)
        result: torch.Tensor = states[0]
        return result


class TargetEnds:
    """A model's embedding, final norm and output projection."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> None:
        config = checkpoint.config
        self._embedding = checkpoint.tensors("model.embed_tokens.")["weight"].to(dtype)
        self._norm = FAMILIES[checkpoint.architecture].norm(config.hidden_size, config.rms_norm_eps)
        self._norm.weight = torch.nn.Parameter(
            checkpoint.tensors("model.norm.")["weight"].to(dtype), requires_grad=False
        )
        self._projection = (
            self._embedding
            if checkpoint.tied
            else checkpoint.tensors("lm_head.")["weight"].to(dtype)
        )

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """[n] token ids -> [n, hidden]."""
        return self._embedding[torch.tensor(tokens, dtype=torch.long)]

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocabulary]."""
        result: torch.Tensor = self._norm(hidden) @ self._projection.T
        return result

    def next_tokens(self, hidden: torch.Tensor) -> tuple[int, ...]:
        """Greedy token per row of [n, hidden]."""
        return tuple(self.logits(hidden).argmax(-1).tolist()) if len(hidden) else ()


def _assert_causal(cache: TreeCache, mask: torch.Tensor, parents: Sequence[int]) -> None:
    """Recompute each row's allowed entries from its chain of parents, and compare."""
    nodes = cache.length - cache.committed
    chain: dict[int, set[int]] = {
        i: set(torch.nonzero(cache.tree_mask[i]).flatten().tolist()) for i in range(nodes)
    }
    for row, parent in enumerate(parents):
        above = chain[parent] if parent != NO_PARENT else set()
        chain[nodes + row] = above | {nodes + row}
        allowed = set(range(cache.committed)) | {cache.committed + i for i in chain[nodes + row]}
        attended = set(torch.nonzero(mask[row]).flatten().tolist())
        if attended != allowed:
            raise AssertionError(f"row {row} attends to {attended}, allowed are {allowed}")
