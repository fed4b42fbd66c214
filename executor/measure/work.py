"""The timed work: peak figures, a block of layers, the model's two ends, and a draft.

Rows are those of a token tree, as in serving; a single row is a committed one (plain decoding).
The context is random committed cache entries, since times do not depend on their values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, field_validator

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.cache import TreeCache
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.computing import DTYPES
from treepipe.executor.draft_model import LanguageModelDraft
from treepipe.executor.measure.timing import Probe
from treepipe.executor.stage_model import Part, StageModel, TargetEnds
from treepipe.files.section import Count, Section
from treepipe.scenario.computing import Computed

WorkKind: TypeAlias = Literal[
    "block", "shared", "single", "head", "shared head", "embedding", "draft", "prune"
]
"""A block of layers, the same with rows of several requests, one layer alone, the two ends (of a
tied model also by one matrix), a whole draft pass, a cache compaction."""
ENDS: tuple[WorkKind, ...] = ("head", "shared head", "embedding")
WorkPoint: TypeAlias = tuple[WorkKind, int, int]
"""Kind, tokens, context."""
Peak: TypeAlias = tuple[str, int]
"""The name "matmul" with a number of floating-point operations, or "stream" with a number of
bytes."""

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256)
CONTEXTS = (0, 256, 1024, 4096)
LAYERS = 4
"""Layers of the timed block, unless the model has fewer or another number is given."""
MATMUL_SIZES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
STREAM_MIB = {"cpu": 128, "cuda": 1024}
"""Size of a matrix that no cache holds."""

ROOTS = 4
TOP_K = 10
"""Number of candidates per node of a draft pass."""
PRUNED_NODES = 64
SHARING = 3
"""Number of requests of a pass that they share."""
SINGLE_TOKENS = 16
"""Most rows of one layer alone, enough to separate a call's fixed cost."""


class Points(Section):
    """The points to measure.

    Attributes:
        tokens: rows per pass.
        contexts: cached tokens before a pass.
        layers: layers of the timed block; None: at most ``LAYERS``.
        threads: CPU threads that compute; a worker has one.
    """

    tokens: tuple[Count, ...] = Field(TOKENS, min_length=1)
    contexts: tuple[NonNegativeInt, ...] = Field(CONTEXTS, min_length=1)
    layers: Count | None = None
    threads: Count = 1

    @field_validator("tokens", "contexts")
    @classmethod
    def _in_order(cls, given: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(given)))


@dataclass(frozen=True, slots=True)
class Bench:
    """A device, its number type, and the points to measure."""

    device: str
    dtype: torch.dtype
    points: Points

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.points.tokens

    @property
    def contexts(self) -> tuple[int, ...]:
        return self.points.contexts

    @property
    def dtype_name(self) -> Computed:
        return next(name for name, dtype in DTYPES.items() if dtype == self.dtype)

    @property
    def rows(self) -> int:
        """Cache entries that the longest pass adds."""
        return max(*self.tokens, PRUNED_NODES)

    @property
    def grid(self) -> Iterator[tuple[int, int]]:
        """Every number of tokens after every context."""
        return ((tokens, context) for context in self.contexts for tokens in self.tokens)

    def random(self, *sizes: int) -> torch.Tensor:
        return torch.randn(sizes).to(self.device, self.dtype)


def peak_probes(device: str, dtype: torch.dtype) -> Iterator[Probe[Peak]]:
    """Yield a square matrix product, and one row against a matrix that no cache holds."""
    for size in MATMUL_SIZES[device]:
        square = torch.randn(size, size).to(device, dtype)
        yield Probe(("matmul", 2 * size**3), partial(torch.matmul, square, square))
    columns = 4096
    rows = STREAM_MIB[device] * 2**20 // (columns * dtype.itemsize)
    matrix = torch.empty(rows, columns, dtype=dtype, device=device).normal_()
    row = torch.randn(columns).to(device, dtype)
    yield Probe(("stream", rows * columns * dtype.itemsize), partial(torch.mv, matrix, row))


def tree(rows: int) -> list[int]:
    """Return the parents of a tree of ``rows`` nodes: four at the root, two children each below.

    >>> tree(8)
    [-1, -1, -1, -1, 0, 0, 1, 1]
    """
    return [NO_PARENT if row < ROOTS else (row - ROOTS) // 2 for row in range(rows)]


class LayerBlock:
    """The first ``layers`` decoder layers, with one cache per context length."""

    def __init__(self, checkpoint: Checkpoint, layers: int, bench: Bench) -> None:
        self._bench, self._hidden = bench, checkpoint.hidden_size
        capacity = max(bench.contexts) + bench.rows
        self._model = StageModel(checkpoint, range(layers), capacity, bench.dtype, bench.device)
        _open_caches(self._model, bench)

    def probe(self, key: WorkPoint) -> Probe[WorkPoint]:
        """Prepare a pass over the point's rows after its context."""
        _, tokens, context = key
        hidden, parents = self._bench.random(tokens, self._hidden), tree(tokens)
        positions = list[int]()
        for parent in parents:
            positions.append(context if parent == NO_PARENT else positions[parent] + 1)
        given = parents if tokens > 1 else None
        return Probe(
            key,
            partial(self._model.forward, context, hidden, positions, given),
            partial(_restore, self._model.cache(context), context),
        )

    def shared(self) -> Probe[WorkPoint]:
        """Prepare a pass over rows of ``SHARING`` requests, each after the shortest context."""
        bench, context = self._bench, min(self._bench.contexts)
        tokens = min(bench.tokens, key=lambda count: (count < SHARING, abs(count - 4 * SHARING)))
        sessions = [-1 - number for number in range(SHARING)]
        parts = [
            Part(
                session,
                bench.random(len(rows), self._hidden),
                [context] * len(rows),
                tree(len(rows)),
            )
            for session, rows in zip(sessions, np.array_split(range(tokens), SHARING), strict=True)
        ]
        for session in sessions:
            _open_cache(self._model, session, context, bench.rows)

        def before() -> None:
            for session in sessions:
                _restore(self._model.cache(session), context)

        return Probe(("shared", tokens, context), partial(self._model.forward_batch, parts), before)

    def prune(self) -> Probe[WorkPoint]:
        """Prepare the pruning of every second node of a tree."""
        context = sorted(self._bench.contexts)[len(self._bench.contexts) // 2]
        cache = self._model.cache(context)

        def before() -> None:
            _restore(cache, context)
            cache.begin(PRUNED_NODES, tree(PRUNED_NODES))
            cache.finish(committed=False)

        work = partial(cache.prune, range(1, PRUNED_NODES, 2), 1)
        return Probe(("prune", PRUNED_NODES, context), work, before)


def end_probes(checkpoint: Checkpoint, bench: Bench) -> Iterator[Probe[WorkPoint]]:
    """Yield the embedding, and the output projection up to the greedy token on the host."""
    # Apart, like a pipeline's first and last stage.
    embeds = TargetEnds(checkpoint, bench.dtype, bench.device, projects=False)
    projects: dict[WorkKind, TargetEnds] = {
        "head": TargetEnds(checkpoint, bench.dtype, bench.device, embeds=False)
    }
    if checkpoint.tied:
        projects["shared head"] = TargetEnds(checkpoint, bench.dtype, bench.device)
    for tokens in bench.tokens:
        hidden = bench.random(tokens, checkpoint.hidden_size)
        for kind, ends in projects.items():
            yield Probe((kind, tokens, 0), partial(ends.next_tokens, hidden))
        yield Probe(("embedding", tokens, 0), partial(embeds.embed, [0] * tokens))


def draft_probes(checkpoint: Checkpoint, bench: Bench) -> Iterator[Probe[WorkPoint]]:
    """Yield whole passes of a small model: embedding, layers, distributions, candidates."""
    capacity = max(bench.contexts) + bench.rows
    draft = LanguageModelDraft(checkpoint, capacity, bench.dtype, bench.device)
    _open_caches(draft, bench)
    for tokens, context in bench.grid:
        order = DraftPass(0, (), (0,) * tokens, tuple(tree(tokens)), False, TOP_K)
        yield Probe(
            ("draft", tokens, context),
            partial(draft.draft, context, order),
            partial(_restore, draft.cache(context), context),
        )


def _open_caches(model: StageModel | LanguageModelDraft, bench: Bench) -> None:
    """Open a session for each context, with as many random committed entries."""
    for context in bench.contexts:
        _open_cache(model, context, context, bench.rows)


def _open_cache(
    model: StageModel | LanguageModelDraft, session: int, context: int, rows: int
) -> None:
    model.open(session, context + rows)
    cache = model.cache(session)
    entries = cache.entries()
    sizes = (*entries.shape[:3], context, entries.shape[4])
    cache.append(torch.randn(sizes).to(entries.device, entries.dtype))


def _restore(cache: TreeCache, context: int) -> None:
    """Drop the entries that a pass has appended."""
    cache.prune((), 0)
    cache.truncate(context)
