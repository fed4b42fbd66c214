"""Device profile and model -> service times of a stage, a draft pass, an output projection.

What was measured of this shape and type is taken as it is. Else the nearest measured shape is
scaled by the ratio of the two roofline times at each token count; where nothing was measured, the
roofline itself is taken. Attention that a table leaves out is added by the roofline. Every step
away from a measurement leaves a warning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from treepipe.core.errors import UserError
from treepipe.physics.timing import ServiceTable, TimeTable
from treepipe.profiles.roofline import (
    PassWork,
    attention_work,
    fusion_work,
    head_work,
    layer_work,
    roofline_ms,
)
from treepipe.profiles.schema import Hardware, MeasuredTime, Roofline
from treepipe.profiles.shapes import BYTES, DType, Shape

Entry = TypeVar("Entry", bound=MeasuredTime)
Tables: TypeAlias = dict[int, dict[int, float]]
"""Milliseconds by context, by tokens."""

CONTEXTS = (0, 4096)
"""Attention by the roofline is linear in the context, so that two lengths say all."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Knots where nothing was measured."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as it is served: what its profile is called, its sizes, its weights' type."""

    name: str
    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return f"{self.name} in {self.dtype}"


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """A kind of work that is measured on its own: what it is called, its size, its work.

    Attributes:
        sizes: all that its time depends on; equal sizes are equal work.
        work: of a shape in a type, over so many tokens behind so long a context.
    """

    name: str
    sizes: Callable[[Shape], tuple[int, ...]]
    work: Callable[[Shape, DType, int, int], list[PassWork]]


LAYER = MeasuredPart("layer", lambda s: s.layer_sizes, lambda s, d, n, c: [layer_work(s, d, n)])
ATTENDING_LAYER = MeasuredPart(
    "layer",
    lambda s: s.layer_sizes,
    lambda s, d, n, c: [layer_work(s, d, n), attention_work(s, d, n, c)],
)
HEAD = MeasuredPart(
    "output projection", lambda s: s.head_sizes, lambda s, d, n, c: [head_work(s, d, n)]
)
FUSION = MeasuredPart("fusion", lambda s: s.head_sizes, lambda s, d, n, c: [fusion_work(s, d, n)])


Remark: TypeAlias = tuple[str, str]
"""A device's name, and a sentence about it."""


class ServiceTimes:
    """Service times on one device."""

    def __init__(
        self,
        device: str,
        hardware: Hardware,
        shape_of: Callable[[MeasuredTime], Shape],
        warnings: list[Remark],
    ) -> None:
        """Args: ``device``: its name in warnings; ``shape_of``: sizes of a measured model;
        ``warnings``: gets what the times rest on besides measurements, each sentence once."""
        self._device, self._hardware, self._shape_of = device, hardware, shape_of
        self._warnings = warnings

    def stage(self, model: ServedModel, layers: int) -> TimeTable:
        """A pass through ``layers`` decoder layers."""
        return self._call([(self.layer(model), layers)])

    def draft(self, model: ServedModel, target: Shape | None = None) -> TimeTable:
        """One draft pass: all layers and the output projection.

        Args:
            target: whose output projection an EAGLE head borrows.
        """
        shape = model.shape
        whole = self._own(self._hardware.draft, model)
        if whole:
            return ServiceTable(self._taken(whole, model, "draft pass").ms)
        parts = [(self.layer(model), shape.layers)]
        if shape.eagle:
            parts.append((self._estimated(FUSION, model, (0,)), 1))
        owner = model if target is None else ServedModel(model.name, target, model.dtype)
        return self._call([*parts, (self.head(owner), 1), *self._embedding(model)])

    def projection(self, model: ServedModel, target: Shape | None = None) -> TimeTable | None:
        """The output projection's part of a draft pass, None if nothing tells it from the rest.

        Args: ``target``: as for ``draft``.
        """
        owner = model if target is None else ServedModel(model.name, target, model.dtype)
        known = self._hardware.roofline is not None or any(
            HEAD.sizes(self._shape_of(entry)) == HEAD.sizes(owner.shape)
            for entry in self._hardware.head
        )
        return self.evaluation(owner) if known else None

    def evaluation(self, model: ServedModel) -> TimeTable:
        """The output projection of returned rows."""
        return self._call([(self.head(model), 1)])

    def layer(self, model: ServedModel) -> Tables:
        """One decoder layer, with attention."""
        if not self._hardware.layer:
            return self._unmeasured(ATTENDING_LAYER, model, CONTEXTS)
        nearest = self._nearest(self._hardware.layer, LAYER, model)
        part = ATTENDING_LAYER if nearest.attention else LAYER
        tables = self._of_measured(nearest, part, model)
        if nearest.attention and len(tables) > 1:
            return tables
        return self._with_attention(tables, model, included=nearest.attention)

    def head(self, model: ServedModel) -> Tables:
        """One output projection."""
        if not self._hardware.head:
            return self._unmeasured(HEAD, model, (0,))
        return self._of_measured(self._nearest(self._hardware.head, HEAD, model), HEAD, model)

    def _embedding(self, model: ServedModel) -> list[tuple[Tables, int]]:
        """The embedding where it was measured; else it is neglected, a row is a few kilobytes."""
        entries = self._own(self._hardware.embedding, model)
        return [(self._taken(entries, model, "embedding").ms, 1)] if entries else []

    def _call(self, parts: Sequence[tuple[Tables, int]]) -> TimeTable:
        """Parts, each so many times, one after another, and the overhead of one call."""
        total = add_tables(parts, self._hardware.call_overhead_ms)
        return ServiceTable(total) if len(total) > 1 else TimeTable(total[min(total)])

    def _nearest(self, entries: Sequence[Entry], part: MeasuredPart, model: ServedModel) -> Entry:
        """The entry of equal size, type and name, else the nearest in this order."""

        def distance(entry: MeasuredTime) -> tuple[float, bool, bool, bool]:
            ours, theirs = part.sizes(model.shape), part.sizes(self._shape_of(entry))
            away = sum(abs(math.log(a / b)) for a, b in zip(ours, theirs, strict=True))
            other_bytes = BYTES[entry.dtype] != BYTES[model.dtype]
            return away, other_bytes, entry.dtype != model.dtype, entry.model != model.name

        return min(entries, key=distance)

    @staticmethod
    def _own(entries: Sequence[MeasuredTime], model: ServedModel) -> list[MeasuredTime]:
        """What was measured of this very model, or of one of all its sizes."""
        return [
            entry
            for entry in entries
            if entry.model == model.name
            or (entry.shape is not None and entry.shape.sizes == model.shape.sizes)
        ]

    def _taken(
        self, entries: Sequence[MeasuredTime], model: ServedModel, what: str
    ) -> MeasuredTime:
        """The measurement of a model in its type if there is one, else another one of it."""
        chosen = min(entries, key=lambda entry: entry.dtype != model.dtype)
        if chosen.dtype != model.dtype:
            self._warn(f"times of a {what} of {model} are those measured in {chosen.dtype}")
        return chosen

    def _of_measured(self, entry: MeasuredTime, part: MeasuredPart, model: ServedModel) -> Tables:
        """The measured times, scaled unless the work is the same."""
        source = ServedModel(entry.model, self._shape_of(entry), entry.dtype)
        same = part.sizes(source.shape) == part.sizes(model.shape)
        if same and BYTES[source.dtype] == BYTES[model.dtype]:
            if source.dtype != model.dtype:
                self._warn(f"times of {model} are those measured in {source.dtype}")
            return entry.ms
        self._warn(
            f"times of a {part.name} of {model} are scaled from those of {source} by the ratio "
            f"of their roofline times"
        )

        def ratio(tokens: int, context: int) -> float:
            ours = self._roofline_ms(part, model, tokens, context)
            return ours / self._roofline_ms(part, source, tokens, context)

        return {
            context: {tokens: ms * ratio(tokens, context) for tokens, ms in times.items()}
            for context, times in entry.ms.items()
        }

    def _with_attention(self, tables: Tables, model: ServedModel, included: bool) -> Tables:
        """Args: ``included``: at the one context that was measured."""
        if self._hardware.roofline is None and included:
            self._warn(f"times of a layer of {model} were measured at one context length only")
            return tables
        self._warn(f"attention of {model} over its context is added by the roofline")
        measured = min(tables)

        def added(tokens: int, context: int) -> float:
            ms = self._attention_ms(model, tokens, context)
            return ms - self._attention_ms(model, tokens, measured) * included

        base = tables[measured]
        contexts = sorted({measured, *CONTEXTS}) if included else CONTEXTS
        return {c: {n: max(0.0, ms + added(n, c)) for n, ms in base.items()} for c in contexts}

    def _unmeasured(
        self, part: MeasuredPart, model: ServedModel, contexts: Sequence[int]
    ) -> Tables:
        self._warn(
            f"no {part.name} was measured there: times of {model} are the roofline's, an estimate"
        )
        return self._estimated(part, model, contexts)

    def _estimated(self, part: MeasuredPart, model: ServedModel, contexts: Sequence[int]) -> Tables:
        return {
            context: {n: self._roofline_ms(part, model, n, context) for n in TOKENS}
            for context in contexts
        }

    def _roofline_ms(
        self, part: MeasuredPart, model: ServedModel, tokens: int, context: int
    ) -> float:
        works = part.work(model.shape, model.dtype, tokens, context)
        roofline = self._roofline(model, part.name)
        return sum(roofline_ms(work, roofline, model.dtype) for work in works)

    def _attention_ms(self, model: ServedModel, tokens: int, context: int) -> float:
        work = attention_work(model.shape, model.dtype, tokens, context)
        return roofline_ms(work, self._roofline(model, "attention over a context"), model.dtype)

    def _roofline(self, model: ServedModel, lacking: str) -> Roofline:
        """Args: ``lacking``: the part of a pass that the tables do not hold."""
        if self._hardware.roofline is None:
            raise UserError(
                f"device {self._device}: key roofline is missing; its tables ([[layer]], [[head]]) "
                f"do not hold {lacking} of {model}, so it is computed from peak figures"
            )
        return self._hardware.roofline

    def _warn(self, sentence: str) -> None:
        remark = (self._device, sentence)
        if remark not in self._warnings:
            self._warnings.append(remark)


def add_tables(parts: Sequence[tuple[Tables, int]], constant_ms: float) -> Tables:
    """Sum of tables, each taken so many times, at all their knots; it ends where the first ends."""
    tables = [(ServiceTable(part), count) for part, count in parts]
    contexts = {context for part, _ in parts for context in part}
    end = min(
        (max(points) for part, _ in parts for points in part.values() if len(points) > 1), default=1
    )
    tokens = {n for part, _ in parts for points in part.values() for n in points if n <= end}
    return {
        context: {
            n: constant_ms + sum(count * table(n, context) for table, count in tables)
            for n in sorted(tokens | {end})
        }
        for context in sorted(contexts)
    }
