"""A model's decoder layers with a cache per session, and its ends (embedding, projection)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from treepipe.core.captures import NORMED, kept
from treepipe.core.messages import NO_PARENT
from treepipe.executor.models.cache import RaggedCache, TreeCache
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.families import FAMILIES, FULL, SLIDING, fixed_rotary
from treepipe.executor.models.packed import linear, pack
from treepipe.executor.models.supported import head_size


@dataclass(frozen=True, slots=True)
class Part:
    """One session's rows of a pass.

    Attributes:
        hidden: [n, hidden] (for an EAGLE head [n, 2 hidden]).
        positions: position id per row.
        parents: index of each row's parent in the tree part; None for committed rows.
    """

    session: int
    hidden: torch.Tensor
    positions: Sequence[int]
    parents: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class OpenedPass:
    """The inputs of a pass.

    Attributes:
        caches: a cache per part, opened for its rows.
        place: [1, all rows] position ids.
        masks: [1, 1, all rows, all entries] by kind of layers; None where every row may attend to
            everything.
    """

    parts: Sequence[Part]
    caches: Sequence[TreeCache]
    place: torch.Tensor
    masks: Mapping[str, torch.Tensor | None]

    @property
    def rows(self) -> list[int]:
        return [len(part.positions) for part in self.parts]


class Rotations:
    """Cosines and sines of every position, from ``families.fixed_rotary``."""

    def __init__(self, rotary: Any, dtype: torch.dtype, device: str, kind: str = FULL) -> None:
        """Args: ``kind``: the kind of layers, where each has frequencies of its own."""
        by_kind = isinstance(rotary.rope_type, dict)
        self._rotary = partial(rotary, layer_type=kind) if by_kind else rotary
        self._like = torch.empty(0, dtype=dtype, device=device)
        self._tables: tuple[torch.Tensor, ...] = ()

    def at(self, place: torch.Tensor, below: int) -> tuple[torch.Tensor, ...]:
        """Return [1, rows, head] each, for positions [1, rows] that are less than ``below``."""
        if not self._tables or len(self._tables[0]) < below:
            known = torch.arange(2 * below, device=self._like.device)[None]
            self._tables = tuple([table[0] for table in self._rotary(self._like, known)])
        return tuple([table[place] for table in self._tables])


class LayerStack:
    """Decoder layers with one cache per session; a pass runs the rows of several sessions.

    Attributes:
        check_causality: assert at every pass that each row attends to the committed entries,
            its ancestors and itself, and to nothing else (slow).
        kept: numbers of the layers whose inputs a pass returns in front of its result.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        rotary: Any,
        config: Any,
        capacity: int,
        dtype: torch.dtype,
        device: str,
        kinds: Sequence[str] = (),
    ) -> None:
        """Prepare layers whose caches hold ``capacity`` entries per session.

        ``kinds`` are the layers' kinds (``families.FULL``, which is the default, or ``SLIDING``).
        """
        self.check_causality, self.kept = False, tuple[int, ...]()
        self._config = config
        self._capacity, self._dtype, self._device = capacity, dtype, device
        self._kinds = kinds or [FULL] * len(layers)
        self._rotations = {
            kind: Rotations(rotary, dtype, device, kind) for kind in dict.fromkeys(self._kinds)
        }
        self._additive = config._attn_implementation == "eager"
        self._layers = layers
        self._caches: dict[int, TreeCache] = {}

    def open(self, session: int, capacity: int | None = None) -> None:
        """Create the session's empty cache, of the default capacity unless one is given."""
        heads = self._config.num_key_value_heads
        size = head_size(self._config)
        self._caches[session] = TreeCache(
            len(self._layers), heads, size, capacity or self._capacity, self._dtype, self._device
        )

    def close(self, session: int) -> None:
        """Free the session's cache; unknown sessions are ignored."""
        self._caches.pop(session, None)

    @property
    def sessions(self) -> int:
        return len(self._caches)

    def cache(self, session: int) -> TreeCache:
        return self._caches[session]

    def forward(
        self,
        session: int,
        hidden: torch.Tensor,
        positions: Sequence[int],
        parents: Sequence[int] | None,
    ) -> torch.Tensor:
        """Run one session's rows; see ``forward_batch``."""
        return self.forward_batch([Part(session, hidden, positions, parents)])[0]

    def forward_batch(self, parts: Sequence[Part]) -> list[torch.Tensor]:
        """Map [n, hidden] per session in one pass, appending n entries to each cache."""
        behind: list[torch.Tensor] = self.run(self.begin(parts))
        return behind

    def begin(self, parts: Sequence[Part]) -> OpenedPass:
        """Open the next pass: its masks and positions, and room in the caches."""
        caches = [self._caches[part.session] for part in parts]
        masks = [
            cache.begin(len(part.positions), part.parents)
            for cache, part in zip(caches, parts, strict=True)
        ]
        if self.check_causality:
            for cache, mask, part in zip(caches, masks, parts, strict=True):
                _assert_causal(cache, mask, part.parents)
        positions = np.fromiter(chain.from_iterable([part.positions for part in parts]), np.int64)
        place = torch.from_numpy(positions)[None].to(self._device)
        single = len(positions) == 1 and parts[0].parents is None
        opened = {kind: self._mask(kind, caches, masks, single) for kind in self._rotations}
        return OpenedPass(parts, caches, place, opened)

    def _mask(
        self, kind: str, caches: Sequence[TreeCache], masks: Sequence[torch.Tensor], single: bool
    ) -> torch.Tensor | None:
        """Return the mask of a kind of layers as they read it; a single committed row that attends
        to everything needs none."""
        if kind == SLIDING:
            window = self._config.sliding_window
            masks = [cache.within(mask, window) for cache, mask in zip(caches, masks, strict=True)]
        if single and bool(masks[0].all()):
            return None
        mask = (masks[0] if len(masks) == 1 else RaggedCache.mask(masks))[None, None]
        if self._additive:
            hidden = torch.finfo(self._dtype).min
            mask = torch.zeros(mask.shape, dtype=self._dtype).masked_fill_(~mask, hidden)
        return mask.to(self._device)

    @torch.inference_mode()
    def run(
        self, opened: OpenedPass, stops: Callable[[int], bool] | None = None
    ) -> list[torch.Tensor]:
        """Return [n, (k + 1) hidden] per part: the inputs of the k layers that are ``kept``, then
        the states after the last layer.

        Args:
            stops: whether to stop, called behind each layer with the number of those that are done;
                the rows then have entries in the caches that only a prune may follow.
        """
        parts, caches, rows = opened.parts, opened.caches, opened.rows
        states = torch.cat([part.hidden for part in parts])[None]
        below = 1 + max([max(part.positions) for part in parts])
        rotary = {kind: each.at(opened.place, below) for kind, each in self._rotations.items()}
        cache = caches[0] if len(parts) == 1 else RaggedCache(caches, rows)
        held = list[torch.Tensor]()
        for number, (layer, kind) in enumerate(zip(self._layers, self._kinds, strict=True)):
            held += [states] * self.kept.count(number)
            states = layer(
                states,
                attention_mask=opened.masks[kind],
                position_ids=opened.place,
                past_key_values=cache,
                use_cache=True,
                position_embeddings=rotary[kind],
            )
            if stops is not None and stops(number + 1):
                break
        for own, part in zip(caches, parts, strict=True):
            own.finish(committed=part.parents is None)
        return list((torch.cat([*held, states], -1) if held else states)[0].split(rows))


class StageModel(LayerStack):
    """Layers ``layers`` of a checkpoint."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        layers: range,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        captured: Sequence[int] = (),
    ) -> None:
        """Load the layers, for ``capacity`` cache entries per session, to return the states at the
        ``captured`` boundaries, too. Raises as ``load_layer``."""
        loaded = [load_layer(checkpoint, number, dtype, device) for number in layers]
        for place, layer in enumerate(loaded):
            layer.self_attn.layer_idx = place  # the cache counts this stage's layers only
        config, family = checkpoint.config, FAMILIES[checkpoint.architecture]
        rotary = fixed_rotary(checkpoint.architecture, config).to(device)
        kinds = [family.kind(config, number) for number in layers]
        super().__init__(loaded, rotary, config, capacity, dtype, device, kinds)
        self.kept = kept(captured, layers)


def load_layer(checkpoint: Checkpoint, number: int, dtype: torch.dtype, device: str) -> Any:
    """Load one decoder layer. Raises ``UserError`` if a weight is no finite number."""
    family = FAMILIES[checkpoint.architecture]
    with torch.device("meta"):
        layer = family.layer(checkpoint.config, number)
    found = checkpoint.tensors(f"model.layers.{number}.")
    if family.experts is not None:
        found = family.experts.stacked(found)
    tensors = {
        name: tensor.to(device, family.dtype_of(name, dtype)) for name, tensor in found.items()
    }
    layer.load_state_dict(tensors, assign=True)
    layer.eval().requires_grad_(False)
    pack(layer)
    return layer


class TargetEnds:
    """A model's embedding, final norm and output projection, or one end of it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        *,
        embeds: bool = True,
        projects: bool = True,
    ) -> None:
        """Load the selected ends. Raises ``UserError`` if a weight is no finite number."""
        config, family = checkpoint.config, FAMILIES[checkpoint.architecture]
        self._layers, self._width = checkpoint.layers, checkpoint.hidden_size

        def read(prefix: str) -> torch.Tensor:
            tensor: torch.Tensor = checkpoint.tensors(prefix)["weight"]
            return tensor.to(device, family.dtype_of(prefix, dtype))

        self._scale = family.embedding_scale(config, dtype)
        self._softcap = family.softcap(config)
        if embeds:
            self._embedding = read("model.embed_tokens.")
        if projects:
            self._norm = family.norm(checkpoint.hidden_size, config.rms_norm_eps)
            self._norm.weight = torch.nn.Parameter(read("model.norm."), requires_grad=False)
            if checkpoint.tied and embeds:  # it is not copied in another order
                self._project = partial(torch.nn.functional.linear, weight=self._embedding)
            else:
                name = "model.embed_tokens." if checkpoint.tied else "lm_head."
                self._project = linear(read(name))

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """Embed [n] token ids -> [n, hidden]."""
        rows = torch.tensor(tokens, dtype=torch.long, device=self._embedding.device)
        found = self._embedding[rows]
        return found if self._scale is None else found * self._scale

    @torch.inference_mode()
    def features(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the final norm to the last layer's states, of rows [n, (k + 1) hidden] behind the k
        captured states -> [n, hidden]."""
        result: torch.Tensor = self._norm(hidden[..., -self._width :])
        return result

    def read_states(self, hidden: torch.Tensor, captured: Sequence[int]) -> torch.Tensor:
        """Return what a draft reads [n, len(captured) hidden] of rows as above."""
        behind = hidden[:, -self._width :]
        found = [hidden[:, : -self._width], *[behind] * captured.count(self._layers)]
        return torch.cat([*found, *[self.features(hidden)] * captured.count(NORMED)], -1)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute rows as above -> [n, vocabulary]."""
        return self.project(self.features(hidden))

    @torch.inference_mode()
    def project(self, features: torch.Tensor) -> torch.Tensor:
        """Project [n, hidden] final states -> [n, vocabulary]."""
        found: torch.Tensor = self._project(features)
        return found if self._softcap is None else (found / self._softcap).tanh() * self._softcap

    def next_tokens(self, hidden: torch.Tensor) -> tuple[int, ...]:
        """Greedy token per row of [n, hidden]."""
        if not len(hidden):
            return ()
        logits = self.logits(hidden)
        if logits.device.type == "cpu":  # NumPy takes a twelfth of PyTorch's time, or a fortieth
            return tuple(logits.float().numpy().argmax(-1).tolist())
        return tuple(logits.argmax(-1).tolist())


def _assert_causal(cache: TreeCache, mask: torch.Tensor, parents: Sequence[int] | None) -> None:
    """Recompute each row's allowed entries from its chain of parents, and compare.

    Must be called between ``begin`` and ``finish`` of a pass.
    """
    before = cache.length
    nodes = before - cache.committed
    chain: dict[int, set[int]] = {
        i: set(torch.nonzero(cache.tree_mask[i]).flatten().tolist()) for i in range(nodes)
    }
    for row in range(len(mask)):
        if parents is None:
            allowed = set(range(before + row + 1))
        else:
            above = chain[parents[row]] if parents[row] != NO_PARENT else set()
            chain[nodes + row] = above | {nodes + row}
            committed = set(range(cache.committed))
            allowed = committed | {cache.committed + i for i in chain[nodes + row]}
        attended = set(torch.nonzero(mask[row]).flatten().tolist())
        if attended != allowed:
            raise AssertionError(f"row {row} attends to {attended}, allowed are {allowed}")
