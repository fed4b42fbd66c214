"""The passes that are timed: what a stage, a draft and the output projection compute.

Rows are those of a token tree, as in serving; a single row is a committed one (plain decoding).
The context is as many committed cache entries, random, since times do not depend on their values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.cache import TreeCache
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.computing import DTYPES
from treepipe.executor.draft_model import LanguageModelDraft
from treepipe.executor.measure.timing import Probe
from treepipe.executor.stage_model import StageModel, TargetEnds
from treepipe.scenario.computing import Computed

WorkKind: TypeAlias = Literal["block", "single", "head", "embedding", "draft", "prune"]
"""A block of layers, one layer alone, the two ends, a whole draft pass, a cache compaction."""
WorkPoint: TypeAlias = tuple[WorkKind, int, int]
"""Kind, tokens, context."""

ROOTS = 4
TOP_K = 10
"""Candidates asked per node of a draft pass."""
PRUNED_NODES = 64
SINGLE_TOKENS = 16
"""One layer alone is timed up to so many rows: there, a call's fixed cost can be told apart."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and in what type things are computed, and the points to measure."""

    device: str
    dtype: torch.dtype
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]

    @property
    def dtype_name(self) -> Computed:
        """The type of the weights, as profiles call it."""
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    @property
    def entries(self) -> int:
        """Cache entries that the longest pass needs."""
        return max(self.contexts) + max(*self.tokens, PRUNED_NODES)


def tree(rows: int) -> list[int]:
    """Parents of a tree of ``rows`` nodes: four at the root, two children each below.

    >>> tree(8)
    [-1, -1, -1, -1, 0, 0, 1, 1]
    """
    return [NO_PARENT if row < ROOTS else (row - ROOTS) // 2 for row in range(rows)]


def _positions(context: int, parents: Sequence[int]) -> list[int]:
    depths = list[int]()
    for parent in parents:
        depths.append(0 if parent == NO_PARENT else depths[parent] + 1)
    return [context + depth for depth in depths]


class LayerBlock:
    """The first ``layers`` decoder layers, with one cache per context length."""

    def __init__(self, checkpoint: Checkpoint, layers: int, bench: Bench) -> None:
        self._bench, self._hidden = bench, checkpoint.hidden_size
        self._model = StageModel(
            checkpoint, range(layers), bench.entries, bench.dtype, bench.device
        )
        for context in bench.contexts:
            self._model.open(context, context + bench.entries - max(bench.contexts))
            fill(self._model.cache(context), context)

    def probes(self, kind: WorkKind, most_tokens: int) -> Iterator[Probe[WorkPoint]]:
        """A pass per number of tokens (at most so many) and context."""
        for context in self._bench.contexts:
            for tokens in self._bench.tokens:
                if tokens <= most_tokens:
                    yield self.probe((kind, tokens, context))

    def probe(self, key: WorkPoint) -> Probe[WorkPoint]:
        _, tokens, context = key
        bench, cache = self._bench, self._model.cache(context)
        hidden = torch.randn(tokens, self._hidden).to(bench.device, bench.dtype)
        parents = tree(tokens)
        positions = _positions(context, parents)
        given = parents if tokens > 1 else None

        def work() -> None:
            self._model.forward(context, hidden, positions, given)

        return Probe(key, work, lambda: restore(cache, context))

    def prune(self) -> Probe[WorkPoint]:
        """Dropping every second node of a tree."""
        context = sorted(self._bench.contexts)[len(self._bench.contexts) // 2]
        cache = self._model.cache(context)
        keep = range(1, PRUNED_NODES, 2)

        def before() -> None:
            restore(cache, context)
            cache.begin(PRUNED_NODES, tree(PRUNED_NODES))
            cache.finish(committed=False)

        return Probe(("prune", PRUNED_NODES, context), lambda: cache.prune(keep, 1), before)


def fill(cache: TreeCache, context: int) -> None:
    """Give an empty cache ``context`` random committed entries."""
    entries = cache.entries()
    sizes = (*entries.shape[:3], context, entries.shape[4])
    cache.append(torch.randn(sizes).to(entries.device, entries.dtype))


def restore(cache: TreeCache, context: int) -> None:
    """Forget what a pass has appended."""
    cache.prune((), 0)
    cache.truncate(context)


class Ends:
    """Embedding, and output projection up to the greedy token on the host."""

    def __init__(self, checkpoint: Checkpoint, bench: Bench) -> None:
        self._bench, self._hidden = bench, checkpoint.hidden_size
        # Apart, as a pipeline's first and last stage have them.
        where = bench.dtype, bench.device
        self._embeds = TargetEnds(checkpoint, *where, projects=False)
        self._projects = TargetEnds(checkpoint, *where, embeds=False)

    def probes(self) -> Iterator[Probe[WorkPoint]]:
        for tokens in self._bench.tokens:
            yield self._head(tokens)
            yield self._embedding(tokens)

    def _head(self, tokens: int) -> Probe[WorkPoint]:
        hidden = torch.randn(tokens, self._hidden).to(self._bench.device, self._bench.dtype)
        return Probe(("head", tokens, 0), lambda: self._projects.next_tokens(hidden))

    def _embedding(self, tokens: int) -> Probe[WorkPoint]:
        ids = [0] * tokens
        return Probe(("embedding", tokens, 0), lambda: self._embeds.embed(ids))


class DraftWork:
    """Whole passes of a small model: embedding, layers, distributions, candidates."""

    def __init__(self, checkpoint: Checkpoint, bench: Bench) -> None:
        self._bench = bench
        self._draft = LanguageModelDraft(checkpoint, bench.entries, bench.dtype, bench.device)
        for context in bench.contexts:
            self._draft.open(context, context + bench.entries - max(bench.contexts))
            fill(self._draft.cache(context), context)

    def probes(self) -> Iterator[Probe[WorkPoint]]:
        for context in self._bench.contexts:
            for tokens in self._bench.tokens:
                yield self._probe(tokens, context)

    def _probe(self, tokens: int, context: int) -> Probe[WorkPoint]:
        cache, ids = self._draft.cache(context), (0,) * tokens
        order = DraftPass(0, (), ids, tuple(tree(tokens)), False, TOP_K)
        return Probe(
            ("draft", tokens, context),
            lambda: self._draft.draft(context, order),
            lambda: restore(cache, context),
        )
