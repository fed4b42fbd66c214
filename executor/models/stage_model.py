"""A model's decoder layers with a cache per session, and its ends (embedding, projection)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch

from treepipe.core.captures import NORMED, kept
from treepipe.executor.models.cache import RaggedCache, TreeCache
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.families import FAMILIES, FULL, SLIDING, Rotations, fixed_rotary
from treepipe.executor.models.packed import linear, pack
from treepipe.executor.models.static_pass import MOST_ROWS, Buffers, StaticPasses
from treepipe.executor.models.supported import head_size

Stops: TypeAlias = Callable[[int], bool]
"""Whether a pass is to stop, called behind each layer with the number of those that are done."""
Masks: TypeAlias = Mapping[str, torch.Tensor | None]
"""[1, 1, all rows, all entries] by kind of layers; None where all may be attended to."""


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
    """A pass that is ready.

    Attributes:
        caches: a cache per part, opened for its rows.
        compute: the pass [all rows, (k + 1) hidden]; its argument as that of ``LayerStack.run``.
    """

    parts: Sequence[Part]
    caches: Sequence[TreeCache]
    compute: Callable[[Stops | None], torch.Tensor]

    @property
    def rows(self) -> list[int]:
        return [len(part.positions) for part in self.parts]


class LayerStack:
    """Decoder layers with one cache per session; a pass runs the rows of several sessions.

    Attributes:
        kept: numbers of the layers whose inputs a pass returns in front of its result.
        static: the passes in buckets, with graphs.
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
        graphs: bool = False,
        width: int | None = None,
    ) -> None:
        """Prepare layers whose caches hold ``capacity`` entries per session.

        ``kinds`` are the layers' kinds (``families.FULL``, which is the default, or ``SLIDING``).
        ``graphs``: passes run on static buffers, as captured graphs on a GPU. ``width``: of the
        rows that the first layer reads; None: the states'.
        """
        self.kept = tuple[int, ...]()
        self._config = config
        self._capacity, self._dtype, self._device = capacity, dtype, device
        self._kinds = kinds or [FULL] * len(layers)
        self._rotations, self._fixed_rotations = (
            {kind: Rotations(rotary, dtype, device, kind) for kind in dict.fromkeys(self._kinds)}
            for _ in range(2)
        )
        self._additive = config._attn_implementation == "eager"
        self._layers = layers
        self._caches: dict[int, TreeCache] = {}
        self._sizes = len(layers), config.num_key_value_heads, head_size(config)
        self.static: StaticPasses | None = None
        if graphs:
            sizes = width or config.hidden_size, self._sizes, capacity
            self.static = StaticPasses(self._in_buckets, *sizes, dtype, device)

    def open(self, session: int, capacity: int | None = None) -> None:
        """Create the session's empty cache, of the default capacity unless one is given."""
        entries = capacity or self._capacity
        self.close(session)
        self._caches[session] = (
            TreeCache(*self._sizes, entries, self._dtype, self._device)
            if self.static is None
            else self.static.open(entries)
        )

    def close(self, session: int) -> None:
        """Free the session's cache; unknown sessions are ignored."""
        cache = self._caches.pop(session, None)
        if self.static is not None and cache is not None:
            self.static.close(cache)

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
        rows = [len(part.positions) for part in parts]
        positions = np.fromiter(chain.from_iterable([part.positions for part in parts]), np.int64)
        if self.static is not None and sum(rows) <= MOST_ROWS:
            for cache, count, part in zip(caches, rows, parts, strict=True):
                cache.reserve(count, part.parents)
            states = [part.hidden for part in parts]
            return OpenedPass(parts, caches, self.static.begin(caches, rows, positions, states))
        masks = [
            cache.begin(len(part.positions), part.parents)
            for cache, part in zip(caches, parts, strict=True)
        ]
        place = torch.from_numpy(positions)[None].to(self._device)
        single = len(positions) == 1 and parts[0].parents is None
        opened = {kind: self._mask(kind, caches, masks, single) for kind in self._rotations}
        return OpenedPass(parts, caches, partial(self._eagerly, parts, caches, place, opened))

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
        mask = masks[0] if len(masks) == 1 else RaggedCache.mask(masks)
        return self._as_read(mask).to(self._device)

    def _as_read(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a mask [rows, entries] as layers read it."""
        mask = mask[None, None]
        if self._additive:
            hidden = torch.finfo(self._dtype).min
            zeros = torch.zeros(mask.shape, dtype=self._dtype, device=mask.device)
            mask = zeros.masked_fill_(~mask, hidden)
        return mask

    @torch.inference_mode()
    def run(self, opened: OpenedPass, stops: Stops | None = None) -> list[torch.Tensor]:
        """Return [n, (k + 1) hidden] per part: the inputs of the k layers that are ``kept``, then
        the states after the last layer.

        Args:
            stops: whether to stop behind a layer; the rows then have entries in the caches that
                only a prune may follow. A pass on static buffers does not stop.
        """
        states = opened.compute(stops)
        for own, part in zip(opened.caches, opened.parts, strict=True):
            own.finish(committed=part.parents is None)
        return list(states.split(opened.rows))

    def _eagerly(
        self,
        parts: Sequence[Part],
        caches: Sequence[TreeCache],
        place: torch.Tensor,
        masks: Masks,
        stops: Stops | None,
    ) -> torch.Tensor:
        """Compute a pass at position ids [1, all rows]."""
        states = torch.cat([part.hidden for part in parts])[None].to(self._device)
        below = 1 + max([max(part.positions) for part in parts])
        rotary = {kind: each.at(place, below) for kind, each in self._rotations.items()}
        rows = [len(part.positions) for part in parts]
        cache = caches[0] if len(parts) == 1 else RaggedCache(caches, rows)
        return self._through(states, place, masks, rotary, cache, stops)

    def _in_buckets(self, buffers: Buffers) -> torch.Tensor:
        """Compute a pass on static buffers."""
        assert self.static is not None  # it calls this
        window = {FULL: None, SLIDING: getattr(self._config, "sliding_window", None)}
        place = buffers.positions[None]
        rotations = self._fixed_rotations.items()
        masks = {kind: self._as_read(buffers.mask(window[kind])) for kind, _ in rotations}
        rotary = {kind: each.at(place, self.static.longest) for kind, each in rotations}
        return self._through(buffers.states, place, masks, rotary, buffers)

    def _through(
        self,
        states: torch.Tensor,
        place: torch.Tensor,
        masks: Masks,
        rotary: Mapping[str, tuple[torch.Tensor, ...]],
        cache: Any,
        stops: Stops | None = None,
    ) -> torch.Tensor:
        """Run [1, rows, width] through the layers."""
        held = list[torch.Tensor]()
        for number, (layer, kind) in enumerate(zip(self._layers, self._kinds, strict=True)):
            held += [states] * self.kept.count(number)
            states = layer(
                states,
                attention_mask=masks[kind],
                position_ids=place,
                past_key_values=cache,
                use_cache=True,
                position_embeddings=rotary[kind],
            )
            if stops is not None and stops(number + 1):
                break
        result: torch.Tensor = (torch.cat([*held, states], -1) if held else states)[0]
        return result


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
        graphs: bool = False,
    ) -> None:
        """Load the layers, for ``capacity`` cache entries per session, to return the states at the
        ``captured`` boundaries, too. ``graphs`` as of a ``LayerStack``. Raises as ``load_layer``.
        """
        loaded = [load_layer(checkpoint, number, dtype, device) for number in layers]
        for place, layer in enumerate(loaded):
            layer.self_attn.layer_idx = place  # the cache counts this stage's layers only
        config, family = checkpoint.config, FAMILIES[checkpoint.architecture]
        rotary = fixed_rotary(checkpoint.architecture, config).to(device)
        kinds = [family.kind(config, number) for number in layers]
        graphs = graphs and family.uncaptured(device) is None
        super().__init__(loaded, rotary, config, capacity, dtype, device, kinds, graphs)
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
        return self.embedded(torch.tensor(tokens, dtype=torch.long, device=self._embedding.device))

    def embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embed token ids [n] on the device -> [n, hidden]."""
        found = self._embedding[tokens]
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
