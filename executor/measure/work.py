"""The measured models, and the timed work: peak figures, layers, the two ends, a draft, and rules.

Rows are those of a token tree, as in serving; a single row is a committed one (plain decoding).
The context is random committed cache entries, since times do not depend on their values, and a
``config.json`` or a model profile gets random weights for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, field_validator

from treepipe.core.errors import UserError
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.core.verification import (
    DRAWN,
    Distribution,
    Rule,
    RuleName,
    Sampling,
    draw_without_replacement,
    target_distribution,
)
from treepipe.executor.measure.timing import Probe
from treepipe.executor.models.cache import TreeCache
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import DTYPES
from treepipe.executor.models.draft_model import LanguageModelDraft
from treepipe.executor.models.families import AutoConfig, layer_shapes
from treepipe.executor.models.stage_model import Part, StageModel, TargetEnds
from treepipe.executor.models.supported import read_config
from treepipe.executor.models.verifier import distribution_of, new_rule
from treepipe.files.section import Count, Section
from treepipe.profiles.library import LIBRARY, REFERENCE, load_model, profile_names
from treepipe.profiles.schema import AnyHardware
from treepipe.profiles.shapes import Shape
from treepipe.scenario.deployment import Computed
from treepipe.scenario.schema import SamplingSection

WorkKind: TypeAlias = Literal[
    "block", "shared", "single", "head", "shared head", "embedding", "draft", "prune", "eager"
]
"""A block of layers, the same with rows of several requests, one layer alone, the two ends (of a
tied model also by one matrix), a whole draft pass, a cache compaction, the block without graphs."""
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
SamplingPoint: TypeAlias = tuple[RuleName, bool, int]
"""Rule, whether it truncates, and the candidates per row of a draft pass (0: the target's rows)."""

SAMPLED_ROWS = 4
"""Rows per timed piece of work, some of which a rule accepts and some not."""
DRAWS = (1, 4)
"""Candidates of the timed draft passes: a chain's and a tree's."""
LOGITS, NOISE = 5.0, 2.0
"""Standard deviations of the target's logits, and of the draft's difference from them. Nine tenths
of the probability then lie on some 20 of 128,256 tokens, as of trained models, and a rule takes as
long as with those: its time depends on the number of tokens, on whether top-k or top-p truncates,
and, where the rule rejects children, on how often."""
TOP_P = 0.9


class Points(Section):
    """The points to measure.

    Attributes:
        tokens: rows per pass.
        contexts: cached tokens before a pass.
        layers: layers of the timed block; None: at most ``LAYERS``.
        threads: CPU threads that compute; a worker has one.
        graphs: as a device's: passes run in buckets, on a GPU as captured graphs.
    """

    tokens: tuple[Count, ...] = Field(TOKENS, min_length=1)
    contexts: tuple[NonNegativeInt, ...] = Field(CONTEXTS, min_length=1)
    layers: Count | None = None
    threads: Count = 1
    graphs: Literal["auto", False] = AnyHardware.model_fields["graphs"].default

    @field_validator("tokens", "contexts")
    @classmethod
    def _in_order(cls, given: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(given)))


@dataclass(frozen=True, slots=True)
class Bench:
    """A device, its number type, the points to measure, and whether eager passes are timed beside
    graphs."""

    device: str
    dtype: torch.dtype
    points: Points
    eager: bool = False

    @property
    def graphs(self) -> bool:
        return self.points.graphs == "auto"

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

    def __init__(self, checkpoint: Checkpoint, layers: int, bench: Bench, *, graphs: bool) -> None:
        self._bench, self._hidden = bench, checkpoint.hidden_size
        capacity = max(bench.contexts) + bench.rows
        place = bench.dtype, bench.device
        self._model = StageModel(checkpoint, range(layers), capacity, *place, graphs=graphs)
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
    draft = LanguageModelDraft(checkpoint, capacity, bench.dtype, bench.device, bench.graphs)
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


# --- verification rules that sample -------------------------------------------------------------


def sampling_probes(vocabulary: int, bench: Bench) -> Iterator[Probe[SamplingPoint]]:
    """Yield a judgement of rows by each rule, and draws for the rules that need a draft."""
    logits = torch.randn(SAMPLED_ROWS, vocabulary) * LOGITS
    guessed = (logits + torch.randn(SAMPLED_ROWS, vocabulary) * NOISE).double().log_softmax(-1)
    logits = logits.to(bench.device, bench.dtype)
    for name in get_args(RuleName):
        rule = new_rule(SamplingSection(rule=name, temperature=1.0), np.random.default_rng(0))
        for truncated in (False, True):
            sampling = Sampling(1.0, TOP_P if truncated else 1.0)
            drafted = [distribution_of(row, sampling) for row in guessed]
            judge = partial(_judge, rule, logits, sampling, drafted)
            yield Probe((name, truncated, 0), judge)
            if rule.needs_draft:
                for candidates in DRAWS:
                    drawn = candidates if name in DRAWN else 0
                    yield Probe(
                        (name, truncated, candidates), partial(_draw, guessed, sampling, drawn)
                    )


def _judge(
    rule: Rule, logits: torch.Tensor, sampling: Sampling, drafted: Sequence[Distribution]
) -> None:
    """Judge each row with the draft's best token as its child."""
    for row, q in zip(logits, drafted, strict=True):
        rule.next_token(distribution_of(row, sampling), [int(q.argmax())], q)


def _draw(log_probs: torch.Tensor, sampling: Sampling, candidates: int) -> None:
    """Keep each row's distribution, and draw from it, as ``RememberingDraft`` does."""
    rng = np.random.default_rng(0)
    for row in log_probs.numpy():
        draw_without_replacement(target_distribution(row, sampling), candidates, rng)


SPREAD = 0.02
"""Standard deviation of the weights: small, so that no state overflows in 16 bits."""


@dataclass(frozen=True)
class RandomCheckpoint(Checkpoint):
    """A checkpoint that makes random tensors on ``device`` at each read."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @classmethod
    def from_config(
        cls, path: Path, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> RandomCheckpoint:
        """Read a ``config.json``. Raises ``UserError`` if it is not usable."""
        config, architecture = read_config(path)
        return cls(path.parent, config, architecture, {}, device=device, dtype=dtype)

    @classmethod
    def from_shape(
        cls, name: str, shape: Shape, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> RandomCheckpoint:
        """Build a model of these sizes, which determine its family; it has no directory."""
        family = "Qwen3" if shape.query_norm else "Qwen2" if shape.attention_bias else "Llama"
        config = AutoConfig.for_model(
            family.lower(),
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            vocab_size=shape.vocabulary,
            tie_word_embeddings=shape.tied,
        )
        config._attn_implementation = "sdpa"
        return cls(Path(name), config, f"{family}ForCausalLM", {}, device=device, dtype=dtype)

    @property
    def tied(self) -> bool:
        return bool(self.config.tie_word_embeddings)

    def tensors(self, prefix: str) -> dict[str, Any]:
        return {
            name.removeprefix(prefix): torch.empty(
                shape, dtype=self.dtype, device=self.device
            ).normal_(0.0, SPREAD)
            for name, shape in self._shapes(prefix)
            if name.startswith(prefix)
        }

    def _shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the shapes of the ends, and of the layer that ``prefix`` names."""
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden_size)
        yield "lm_head.weight", (self.vocabulary, self.hidden_size)
        yield "model.norm.weight", (self.hidden_size,)
        if prefix.startswith("model.layers."):
            number = int(prefix.split(".")[2])
            for name, shape in layer_shapes(self.architecture, self.config).items():
                yield f"model.layers.{number}.{name}", shape


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model's name in profiles, its sizes, and the source of its tensors."""

    name: str
    shape: Shape
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Subject:
    """A target, of which a block of layers is timed, and a draft if its passes are timed."""

    target: NamedModel
    draft: NamedModel | None
    layers: int


def open_subject(model: str, draft: str | None, bench: Bench) -> Subject:
    """Open the models. Raises ``UserError`` if one is missing or contradicts itself."""
    if draft is None and model == "reference":
        draft = "reference"
    target = open_model(model, "target", "--model", bench.dtype, bench.device)
    small = None
    if draft is not None:
        small = open_model(draft, "draft", "--draft", bench.dtype, bench.device)
    layers, most = bench.points.layers, target.shape.layers
    if layers is not None and layers > most:
        raise UserError(f"--set layers={layers}: {target.name} has {most} layers")
    return Subject(target, small, layers or min(LAYERS, most))


def open_model(
    named: str, role: str, option: str, dtype: torch.dtype, device: str = "cpu"
) -> NamedModel:
    """Open a model by its path or its profile's name; "reference" is the bundled one of a role."""
    path = REFERENCE / role if named == "reference" else Path(named)
    name, checkpoint = named, None
    if path.is_dir():
        checkpoint, shape = Checkpoint.open(path), _shape(path / "config.json")
        name = named if named == "reference" else path.resolve().name
    elif path.suffix == ".json":
        checkpoint, shape = RandomCheckpoint.from_config(path, dtype, device), _shape(path)
        name = path.resolve().parent.name if path.stem == "config" else path.stem
    elif named in profile_names("models"):
        shape = _shape(LIBRARY / "models" / f"{named}.toml")
    else:
        raise UserError(
            f"{option} {named}: is neither a checkpoint directory nor a config.json, nor a model "
            f"profile (treepipe profiles lists them), nor 'reference'"
        )
    if shape.eagle or shape.inputs:
        raise UserError(f"{option} {named}: is an EAGLE head, which is no model of its own")
    if checkpoint is None and (shape.experts is not None or shape.kinds):
        what = "has several kinds of layers" if shape.experts is None else "is a mixture of experts"
        raise UserError(f"{option} {named}: {what}; give its checkpoint or its config.json")
    if checkpoint is None:
        checkpoint = RandomCheckpoint.from_shape(name, shape, dtype, device)
    return NamedModel(name, shape, checkpoint)


def _shape(path: Path) -> Shape:
    return Shape.model_validate(load_model(path).model_dump(include=set(Shape.model_fields)))
