"""Service times of a stage, a draft pass and an output projection, from a device and a model.

Times measured in this shape and type are used unchanged. Those of another shape are scaled by the
ratio of the two roofline times at each token count. Weights of other bytes have other kernels,
whose growth by rows a table does not tell: then it is the roofline, times what the smallest
measured pass took over its own. Without measurements it is the roofline itself, which also adds
attention that a table leaves out. Over several rows quantized weights follow the law of their
kernels (``kernels.py``), also far behind a table's only row. A mixture's table follows the law of
its experts between its rows and beyond them (``mixtures.py``). Every departure from a measurement
adds a warning, and a table knows the rows that it rests on (``TimeTable.unknown``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import NamedTuple, TypeAlias, TypeVar

from treepipe.core.errors import UserError
from treepipe.core.verification import RuleName
from treepipe.physics.timing import ServiceTable, TimeTable, Unknown, united
from treepipe.profiles.kernels import KERNELS, ROWS, UNRATED, KernelFamily, filled
from treepipe.profiles.mixtures import bend, with_law
from treepipe.profiles.schema import Hardware, MeasuredTime, Roofline, SamplingTime
from treepipe.profiles.shapes import BYTES, STATE_BYTES, DType, Shape, compute_dtype

Entry = TypeVar("Entry", bound=MeasuredTime)
Result = TypeVar("Result")
Tables: TypeAlias = dict[int, dict[int, float]]
"""Milliseconds by context, by tokens."""

CONTEXTS = (0, 4096)
"""Context lengths of estimates; two suffice where the roofline's attention is linear in the
context."""
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Token counts of estimates."""
MORE_ROWS: Unknown = ((1, math.inf),)
"""What one pass of one row leaves unknown, however well it is known."""
MOST_KNOWN = 4096
UNSTATED = {False: 0.4, True: 1.0}
"""Relative uncertainty of times that no measurement of the device in weights of as many bytes
supports, where its profile states none; of quantized weights (True) and of others
(docs/physical-model.md has the sources)."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as served: its profile's name, its sizes, its weights' type."""

    name: str
    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        return f"{self.name} in {self.dtype}"

    @property
    def mtp_head(self) -> ServedModel:
        """The target's MTP head: a layer with plain attention behind a fusion of a state and an
        embedding (DeepSeek-V3, section 2.2)."""
        experts = self.shape.experts
        if experts is not None:
            experts = experts.model_copy(update={"dense_layers": 0})
        sizes = {"layers": 1, "kinds": (), "eagle": True, "experts": experts}
        return ServedModel(f"{self.name}'s head", self.shape.model_copy(update=sizes), self.dtype)

    def shared(self, devices: int) -> ServedModel:
        """Return one device's part of a model whose layers so many share (``Shape.shared``)."""
        if devices == 1:
            return self
        return ServedModel(f"1/{devices} of {self.name}", self.shape.shared(devices), self.dtype)


@dataclass(frozen=True, slots=True)
class PassWork:
    """Floating-point operations, and bytes moved between memory and processor."""

    flops: float
    moved_bytes: float


def layer_work(shape: Shape, dtype: DType, tokens: int) -> PassWork:
    """Work of a decoder layer without attention itself: its weights once (of a mixture those of the
    experts that the rows touch), its rows in and out."""
    rows = 2 * tokens * (shape.hidden_size + shape.mlp_width(1)) * BYTES[compute_dtype(dtype)]
    flops = 2.0 * shape.matrix_parameters(1) * tokens
    return PassWork(flops, shape.layer_bytes(dtype, tokens) + rows)


def attention_work(shape: Shape, dtype: DType, tokens: int, context: int) -> PassWork:
    """Work of a layer's scores and weighted sums: every row against what it sees of the context,
    and all rows; a linear layer reads and writes its state."""
    if not shape.kinds:
        keys = context + tokens
        flops = 4.0 * tokens * keys * shape.heads * shape.head_dim
        return PassWork(flops, keys * shape.kv_bytes(dtype))
    flops = shape.mean(lambda k: float(k.operations) * tokens * (k.seen(context) + tokens))
    cached = shape.mean(lambda k: k.cached * (k.seen(context) + tokens))
    state = 2 * STATE_BYTES * shape.state
    return PassWork(flops, cached * BYTES[compute_dtype(dtype)] + state)


def contexts_of(shape: Shape) -> tuple[int, ...]:
    """Contexts between and beyond which the roofline's attention is linear."""
    windows = {kind.window for kind in shape.kinds if kind.window is not None}
    if not windows:
        return CONTEXTS
    return tuple(sorted({*CONTEXTS, *windows, 2 * max(windows)}))


def head_work(shape: Shape, dtype: DType, tokens: int) -> PassWork:
    """Work of the output projection, which quantized models keep in the type they compute in."""
    size = BYTES[compute_dtype(dtype)]
    moved = shape.head_parameters + tokens * (shape.hidden_size + shape.vocabulary)
    return PassWork(2.0 * shape.head_parameters * tokens, moved * size)


def fusion_work(shape: Shape, dtype: DType, tokens: int) -> PassWork:
    """Work of the fusion in front of an EAGLE head's layer."""
    moved = shape.fusion_parameters * BYTES[dtype]
    return PassWork(2.0 * shape.fusion_parameters * tokens, moved)


def roofline_ms(work: PassWork, roofline: Roofline, dtype: DType) -> float:
    """Slower of computing and moving in milliseconds, at the device's efficiencies.

    Source: Williams, Waterman, Patterson, "Roofline" (Communications of the ACM 52(4), 2009). A
    type without a given peak uses that of another type of its size, else the lowest given peak.
    """
    peaks = roofline.tflops
    used = compute_dtype(dtype)
    alike = [peak for known, peak in peaks.items() if BYTES[known] == BYTES[used]]
    peak = peaks.get(used) or (alike[0] if alike else min(peaks.values()))
    computing = work.flops / (peak * 1e9 * roofline.compute_efficiency)
    moving = work.moved_bytes / (roofline.memory_gb_s * 1e6 * roofline.reached(dtype))
    return max(computing, moving)


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """A kind of work that is measured on its own.

    Attributes:
        sizes: all sizes that its time depends on; equal sizes are equal work.
        stored: the type of its weights in a model of a type.
        work: the work of a shape in a type, over a number of tokens behind a context.
    """

    name: str
    sizes: Callable[[Shape], tuple[float, ...]]
    work: Callable[[Shape, DType, int, int], list[PassWork]]
    stored: Callable[[DType], DType] = lambda dtype: dtype

    def bytes_of(self, dtype: DType) -> float:
        """Return the bytes of one of its weights in a model of this type."""
        return BYTES[self.stored(dtype)]

    def unknown(self, dtype: DType) -> Unknown:
        """Return the rows whose growth over one row the roofline does not tell: quantized weights
        are unpacked for every few rows anew."""
        return MORE_ROWS if self.bytes_of(dtype) < 2 else ()


LAYER = MeasuredPart("layer", lambda s: s.layer_sizes, lambda s, d, n, c: [layer_work(s, d, n)])
ATTENDING_LAYER = MeasuredPart(
    "layer",
    lambda s: s.layer_sizes,
    lambda s, d, n, c: [layer_work(s, d, n), attention_work(s, d, n, c)],
)
HEAD = MeasuredPart(
    "output projection",
    lambda s: s.head_sizes,
    lambda s, d, n, c: [head_work(s, d, n)],
    compute_dtype,
)
FUSION = MeasuredPart("fusion", lambda s: s.head_sizes, lambda s, d, n, c: [fusion_work(s, d, n)])


class Remark(NamedTuple):
    """A sentence about a device, in which {parts} and {models} stand for those it is true of."""

    device: str
    sentence: str
    part: str = ""
    model: str = ""


def told(remarks: Iterable[Remark]) -> list[tuple[tuple[str, ...], str]]:
    """Return each sentence once for all that it is true of, behind the names of its devices."""
    devices: dict[tuple[str, str, str], list[str]] = {}
    for device, *true in remarks:
        devices.setdefault((true[0], true[1], true[2]), []).append(device)
    subjects: dict[tuple[tuple[str, ...], str], list[tuple[str, str]]] = {}
    for (sentence, part, model), named in devices.items():
        subjects.setdefault((tuple(named), sentence), []).append((part, model))
    found = []
    for (shared, sentence), own in subjects.items():
        parts = " or ".join(dict.fromkeys(part for part, _ in own))
        models = ", ".join(dict.fromkeys(model for _, model in own))
        found.append((shared, sentence.replace("{parts}", parts).replace("{models}", models)))
    return found


def _once(method: Callable[..., Result]) -> Callable[..., Result]:
    """Remember a method's results, with its remarks, by all that they depend on: a search, or cases
    of uncertain inputs, place the same model on the same devices thousands of times, which took
    most of their time."""
    known = dict[tuple[object, ...], tuple[Result, list[Remark], float | None]]()

    @wraps(method)
    def remembered(self: ServiceTimes, *args: object, **options: object) -> Result:
        key = self._device, self._content, self._shape_of, repr((args, options))
        if key not in known:
            if len(known) == MOST_KNOWN:
                known.clear()
            alone = copy(self)
            alone._warnings, alone.uncertainty = [], None
            result = method(alone, *args, **options)
            known[key] = result, alone._warnings, alone.uncertainty
        result, remarks, uncertainty = known[key]
        self._warnings += [each for each in remarks if each not in self._warnings]
        if uncertainty is not None:
            self.uncertainty = max(uncertainty, self.uncertainty or 0.0)
        return result

    return remembered


class ServiceTimes:
    """Service times on one device."""

    def __init__(
        self,
        device: str,
        hardware: Hardware,
        shape_of: Callable[[MeasuredTime], Shape],
        warnings: list[Remark],
    ) -> None:
        """Prepare the times of ``device``.

        ``warnings`` gets a sentence for each departure from a measurement; ``shape_of`` returns the
        sizes of a measured model. ``uncertainty`` is that of layers that nobody measured so far.
        """
        self._device, self._hardware, self._shape_of = device, hardware, shape_of
        self._warnings = warnings
        self._content = repr(hardware)
        self.uncertainty: float | None = None

    @_once
    def stage(self, model: ServedModel, layers: int) -> TimeTable:
        """Time a pass through ``layers`` decoder layers."""
        unknown = self._unknown_layer(model)
        doubt, request_ms = self._doubt(unknown, model), self._request_ms(model, layers)
        return self._call([(self.layer(model), layers)], unknown, request_ms, doubt)

    @_once
    def draft(self, model: ServedModel, target: Shape | None = None) -> TimeTable:
        """Time one draft pass: all layers and the output projection (an EAGLE head's target's)."""
        shape = model.shape
        whole = self._own(self._hardware.draft, model)
        if whole:
            taken = self._taken(whole, model, "draft pass")
            tables = self._by_law(taken.ms, model, shape.layers)
            unknown = self._rows(taken, LAYER, model)
            request_ms = self._request_ms(model, shape.layers)
            return ServiceTable(tables, request_ms, unknown, self._doubt(unknown, model))
        parts, unknown = [(self.layer(model), shape.layers)], self._unknown_layer(model)
        if shape.eagle or shape.inputs:
            parts.append((self._estimated(FUSION, model, (0,)), 1))
            unknown = united([unknown, FUSION.unknown(model.dtype)])
        owner = model if target is None else ServedModel(model.name, target, model.dtype)
        return self._call(
            [*parts, (self.head(owner, owner.shape.tied), 1), *self._embedding(model)],
            united([unknown, self._unknown_head(owner)]),
            self._request_ms(model, shape.layers),
            self._doubt(unknown, model),
        )

    @_once
    def projection(self, model: ServedModel, target: Shape | None = None) -> TimeTable | None:
        """Time a draft pass's output projection; None if nothing separates it from the rest."""
        owner = model if target is None else ServedModel(model.name, target, model.dtype)
        known = self._hardware.roofline is not None or any(
            HEAD.sizes(self._shape_of(entry)) == HEAD.sizes(owner.shape)
            for entry in self._hardware.head
        )
        return self.evaluation(owner, embeds=True) if known else None

    @_once
    def evaluation(self, model: ServedModel, embeds: bool = False) -> TimeTable:
        """Time the output projection of returned rows, at a role that also embeds or not."""
        parts = [(self.head(model, embeds and model.shape.tied), 1)]
        return self._call(parts, self._unknown_head(model))

    def sampling(self, model: ServedModel, rule: RuleName, truncated: bool) -> SamplingTime | None:
        """Return what a rule adds to each row; None, with a warning, if nobody measured it."""
        vocabulary = model.shape.vocabulary
        named = f"rule {rule!r}{' with top_k or top_p' * truncated}"
        entries = [
            entry
            for entry in self._hardware.sampling
            if (entry.rule, entry.truncated) == (rule, truncated)
        ]
        if not entries:
            self._warn(f"no [[sampling]] holds {named}: its time is left out")
            return None
        entry = min(entries, key=lambda each: abs(math.log(each.vocabulary / vocabulary)))
        if (ratio := vocabulary / entry.vocabulary) == 1:
            return entry
        self._warn(
            f"times of {named} over {vocabulary} tokens are scaled from those over "
            f"{entry.vocabulary}"
        )
        drawn = entry.draw_ms and {n: ms * ratio for n, ms in entry.draw_ms.items()}
        return entry.model_copy(update={"judge_ms": entry.judge_ms * ratio, "draw_ms": drawn})

    @_once
    def layer(self, model: ServedModel) -> Tables:
        """Return the times of one decoder layer with attention."""
        return self._by_law(self._layer(model), model)

    def _layer(self, model: ServedModel) -> Tables:
        if not self._hardware.layer:
            return self._unmeasured(ATTENDING_LAYER, model, contexts_of(model.shape))
        nearest = self._nearest(self._hardware.layer, LAYER, model)
        part = ATTENDING_LAYER if nearest.attention else LAYER
        tables = self._of_measured(nearest, part, model)
        if nearest.attention and len(tables) > 1:
            return tables
        return self._with_attention(tables, model, included=nearest.attention)

    @_once
    def head(self, model: ServedModel, shared: bool = False) -> Tables:
        """Return the times of one output projection, by the matrix of the embedding or not."""
        if not self._hardware.head:
            return self._unmeasured(HEAD, model, (0,))
        alike = [entry for entry in self._hardware.head if entry.shared == shared]
        nearest = self._nearest(alike or self._hardware.head, HEAD, model)
        if nearest.shared and not shared:
            self._warn(
                "times of an output projection of {models} are those of a role that also embeds",
                "",
                model,
            )
        return self._of_measured(nearest, HEAD, model)

    def _by_law(self, tables: Tables, model: ServedModel, layers: int = 1) -> Tables:
        """Add rows to tables of so many ``layers``: of quantized weights behind one measured row by
        the law of their kernels, to a mixture's by the law of its experts."""
        experts = model.shape.experts
        if BYTES[model.dtype] < 2 and (
            experts is None or all(len(t) == 1 for t in tables.values())
        ):
            row_ms = self._row_ms(2.0 * model.shape.matrix_parameters(1) * layers)

            def law(ms: float, rows: int) -> float:
                return self._kernels.times(ms * _read(model, rows), row_ms, rows, _met(model, rows))

            return {context: filled(points, law) for context, points in tables.items()}
        if experts is None:
            return tables
        if dense := experts.dense_layers:
            self._warn(
                f"{dense} of {model.shape.layers} layers of {model} are dense, and all count as "
                f"the mean: the times of stages that hold more or fewer of them are off"
            )
        last = min(max(points) for points in tables.values())
        if last < bend(experts):
            self._warn(
                f"times of {model} over more than {last} rows follow from the number of experts "
                f"that the rows touch (uniform routing), without a cost of each row"
            )
        return {context: with_law(points, experts) for context, points in tables.items()}

    def _embedding(self, model: ServedModel) -> list[tuple[Tables, int]]:
        """Return the embedding's measured times; without any it is neglected (a few KB a row)."""
        entries = self._own(self._hardware.embedding, model)
        return [(self._taken(entries, model, "embedding").ms, 1)] if entries else []

    def _call(
        self,
        parts: Sequence[tuple[Tables, int]],
        unknown: Unknown,
        request_ms: float = 0.0,
        doubt: float | None = None,
    ) -> TimeTable:
        """Add the parts, each times its count, and the overhead of one call."""
        total = add_tables(parts, self._hardware.call_overhead_ms)
        if len(total) == 1 and not request_ms:
            return TimeTable(total[min(total)], unknown, doubt)
        return ServiceTable(total, request_ms, unknown, doubt)

    def _request_ms(self, model: ServedModel, layers: int) -> float:
        """Return what each request beyond the first adds to a pass through ``layers``: what was
        measured, and the ``state_moves`` of its linear layers' state."""
        moved = 2 * STATE_BYTES * model.shape.state * self._kernels.state_moves
        roofline, state = self._hardware.roofline, PassWork(0.0, moved)
        state_ms = 0.0 if roofline is None else roofline_ms(state, roofline, model.dtype)
        return layers * (self._hardware.request_ms + state_ms)

    def _doubt(self, unknown: Unknown, model: ServedModel) -> float | None:
        """Return the uncertainty of the law of kernels, where rows above the first follow it."""
        if BYTES[model.dtype] >= 2 or not unknown or unknown[0][0] != 1:
            return None
        return max(self._kernels.uncertainty, UNRATED if self._row_ms(1.0) is None else 0.0)

    @property
    def _kernels(self) -> KernelFamily:
        return KERNELS[self._hardware.kernels]

    def _row_ms(self, operations: float) -> float | None:
        """Return the time of a row's operations at the float32 peak; None: that is not known."""
        peaks = {} if self._hardware.roofline is None else self._hardware.roofline.tflops
        return operations / (peaks["float32"] * 1e9) if "float32" in peaks else None

    def _unknown_layer(self, model: ServedModel) -> Unknown:
        entries = self._hardware.layer
        nearest = self._nearest(entries, LAYER, model) if entries else None
        return self._rows(nearest, LAYER, model)

    def _unknown_head(self, model: ServedModel) -> Unknown:
        entries = self._hardware.head
        nearest = self._nearest(entries, HEAD, model) if entries else None
        return self._rows(nearest, HEAD, model)

    @staticmethod
    def _rows(entry: MeasuredTime | None, part: MeasuredPart, model: ServedModel) -> Unknown:
        """Return the rows that a measurement in weights of as many bytes leaves unknown, else those
        that the roofline does."""
        if entry is None or part.bytes_of(entry.dtype) != part.bytes_of(model.dtype):
            return part.unknown(model.dtype)
        if part is HEAD and all(len(times) == 1 for times in entry.ms.values()):
            return ()  # so imports say that a projection takes as long for any number of rows
        return united([TimeTable(times).unknown for times in entry.ms.values()])

    def _nearest(self, entries: Sequence[Entry], part: MeasuredPart, model: ServedModel) -> Entry:
        """Return the entry of equal size, type and name, else the nearest in this order."""

        def distance(entry: MeasuredTime) -> tuple[float, bool, bool, bool]:
            ours, theirs = part.sizes(model.shape), part.sizes(self._shape_of(entry))
            away = sum(abs(math.log(a / b)) for a, b in zip(ours, theirs, strict=True))
            other_bytes = BYTES[entry.dtype] != BYTES[model.dtype]
            return away, other_bytes, entry.dtype != model.dtype, entry.model != model.name

        return min(entries, key=distance)

    @staticmethod
    def _own(entries: Sequence[MeasuredTime], model: ServedModel) -> list[MeasuredTime]:
        """Return the measurements of this model, or of one with all its sizes."""
        return [
            entry
            for entry in entries
            if entry.model == model.name
            or (entry.shape is not None and entry.shape.sizes == model.shape.sizes)
        ]

    def _taken(
        self, entries: Sequence[MeasuredTime], model: ServedModel, what: str
    ) -> MeasuredTime:
        """Return the measurement of a model in its type if there is one, else another one of it."""
        chosen = min(entries, key=lambda entry: entry.dtype != model.dtype)
        if chosen.dtype != model.dtype:
            self._warn(
                f"times of {{parts}} of {{models}} are those measured in {chosen.dtype}",
                _one(what),
                model,
            )
        return chosen

    def _of_measured(self, entry: MeasuredTime, part: MeasuredPart, model: ServedModel) -> Tables:
        """Return the measured times, scaled unless the work is the same."""
        source = ServedModel(entry.model, self._shape_of(entry), entry.dtype)
        same = part.sizes(source.shape) == part.sizes(model.shape)
        alike = part.bytes_of(source.dtype) == part.bytes_of(model.dtype)
        if same and alike:
            if source.dtype != model.dtype:
                self._warn(f"times of {{models}} are those measured in {source.dtype}", "", model)
            return entry.ms
        if not alike:
            return self._of_other_bytes(entry, part, source, model)
        self._warn(
            f"times of {{parts}} of {{models}} are scaled from those of {source} by the ratio of "
            f"their roofline times",
            _one(part.name),
            model,
        )

        def ratio(tokens: int, context: int) -> float:
            ours = self._roofline_ms(part, model, tokens, context)
            return ours / self._roofline_ms(part, source, tokens, context)

        return {
            context: {tokens: ms * ratio(tokens, context) for tokens, ms in times.items()}
            for context, times in entry.ms.items()
        }

    def _of_other_bytes(
        self, entry: MeasuredTime, part: MeasuredPart, source: ServedModel, model: ServedModel
    ) -> Tables:
        """Return the model's roofline times what the smallest measured pass took over its own.

        A table's growth by rows is of its own kernels. It bends where computing takes over from
        reading, which weights of other bytes do at other rows.
        """
        self._warn(
            f"times of {{parts}} of {{models}} are the roofline's, times what the smallest "
            f"measured pass of {source} took over its own",
            _one(part.name),
            model,
        )
        self._unsupported(part, model)
        found = {}
        for context, times in entry.ms.items():
            first = min(times)
            over = times[first] / self._roofline_ms(part, source, first, context)
            estimated = self._estimated(part, model, (context,))[context]
            found[context] = {tokens: ms * over for tokens, ms in estimated.items()}
        return found

    def _unsupported(self, part: MeasuredPart, model: ServedModel) -> None:
        """Note that no measurement tells how long a part takes; only layers are most of a pass."""
        if part.name == LAYER.name:
            own = UNSTATED[BYTES[model.dtype] < 2]
            self.uncertainty = max(own, self.uncertainty or 0.0)

    def _with_attention(self, tables: Tables, model: ServedModel, included: bool) -> Tables:
        """Add attention, except the part ``included`` at the one measured context."""
        if self._hardware.roofline is None and included:
            self._warn(
                "times of a layer of {models} were measured at one context length only", "", model
            )
            return tables
        self._warn("attention of {models} over its context is added by the roofline", "", model)
        measured = min(tables)

        def added(tokens: int, context: int) -> float:
            ms = self._attention_ms(model, tokens, context)
            return ms - self._attention_ms(model, tokens, measured) * included

        base = tables[measured]
        known = contexts_of(model.shape)
        contexts = sorted({measured, *known}) if included else known
        return {c: {n: max(0.0, ms + added(n, c)) for n, ms in base.items()} for c in contexts}

    def _unmeasured(
        self, part: MeasuredPart, model: ServedModel, contexts: Sequence[int]
    ) -> Tables:
        self._warn(
            "no {parts} was measured there: times of {models} are the roofline's, an estimate",
            part.name,
            model,
        )
        self._unsupported(part, model)
        return self._estimated(part, model, contexts)

    def _estimated(self, part: MeasuredPart, model: ServedModel, contexts: Sequence[int]) -> Tables:
        quantized = part.bytes_of(model.dtype) < 2
        rows = sorted({*TOKENS, *ROWS}) if quantized else TOKENS
        return {
            context: {
                n: self._roofline_ms(part, model, n, context)
                + quantized * self._unpacking_ms(part, model, n)
                for n in rows
            }
            for context in contexts
        }

    def _roofline_ms(
        self, part: MeasuredPart, model: ServedModel, tokens: int, context: int
    ) -> float:
        works = part.work(model.shape, model.dtype, tokens, context)
        roofline = self._roofline(model, part.name)
        return sum(roofline_ms(work, roofline, part.stored(model.dtype)) for work in works)

    def _unpacking_ms(self, part: MeasuredPart, model: ServedModel, rows: int) -> float:
        """Return what the law of its kernels adds to the roofline of quantized weights."""
        work = part.work(model.shape, model.dtype, rows, 0)[0]
        roofline, row_ms = self._roofline(model, part.name), self._row_ms(work.flops / rows)
        reading_ms = roofline_ms(PassWork(0.0, work.moved_bytes), roofline, model.dtype)
        law = self._kernels.times(reading_ms, row_ms, rows, _met(model, rows))
        return max(0.0, law - roofline_ms(work, roofline, model.dtype))

    def _attention_ms(self, model: ServedModel, tokens: int, context: int) -> float:
        work = attention_work(model.shape, model.dtype, tokens, context)
        return roofline_ms(work, self._roofline(model, "attention over a context"), model.dtype)

    def _roofline(self, model: ServedModel, lacking: str) -> Roofline:
        """Return the roofline; the ``UserError`` without one names the part that tables lack."""
        if self._hardware.roofline is None:
            raise UserError(
                f"device {self._device}: key roofline is missing; its tables ([[layer]], [[head]]) "
                f"do not hold {lacking} of {model}, so it is computed from peak figures"
            )
        return self._hardware.roofline

    def _warn(self, sentence: str, part: str = "", model: ServedModel | str = "") -> None:
        remark = Remark(self._device, sentence, part, str(model))
        if remark not in self._warnings:
            self._warnings.append(remark)


def _met(model: ServedModel, rows: int) -> float:
    """Return how many of a pass's rows meet a weight: of a mixture those that an expert has."""
    experts = model.shape.experts
    return rows if experts is None else rows * experts.per_token / experts.touched(rows)


def _read(model: ServedModel, rows: int) -> float:
    """Return the weights that a pass reads, over those of one row."""
    return model.shape.layer_bytes(model.dtype, rows) / model.shape.layer_bytes(model.dtype, 1)


def _one(name: str) -> str:
    return f"a{'n' * (name[0] in 'aeiou')} {name}"


def add_tables(parts: Sequence[tuple[Tables, int]], constant_ms: float) -> Tables:
    """Add tables, each times its count, at all knots; the sum ends where the first table ends."""
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
