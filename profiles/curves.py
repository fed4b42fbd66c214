"""The times of a profile as curves, and the sizes between which each was measured.

Invariant: a time counts as measured only between measured sizes, not beyond them, where it is
extrapolated, nor where it is computed from peak figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from treepipe.physics.timing import TimeTable
from treepipe.profiles.library import AnyProfile, find_model, shape_of
from treepipe.profiles.schema import (
    Device,
    DeviceProfile,
    HostProfile,
    LayerTime,
    LinkProfile,
    MeasuredTime,
)
from treepipe.profiles.service import Remark, ServedModel, ServiceTimes, Tables, told

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512, 1024, 2048)
SIZES = tuple(2**power for power in range(10, 27, 2))
"""Sizes of shown messages in bytes, for any profile."""
EXAMPLE = "llama-2-7b"
"""The model whose layer is shown for a device without a measured one."""
MEAN, BARE = "mean, with jitter and losses", "without jitter and losses"


@dataclass(frozen=True, slots=True)
class Curve:
    """Milliseconds against tokens or bytes of a kind of work.

    Attributes:
        context: tokens cached before the pass; None if only one context is known.
        known: sizes between which the times are measured, or given by definition; None: all times
            are computed from peak figures.
    """

    what: str
    ms: Callable[[int], float]
    context: int | None = None
    known: tuple[float, float] | None = (0, math.inf)

    @property
    def heading(self) -> str:
        return self.what if self.context is None else f"{self.what}, context {self.context:,}"

    def measured(self, size: int) -> bool:
        return self.known is not None and self.known[0] <= size <= self.known[1]


Curves: TypeAlias = dict[str, list[Curve]]
"""Curves by a title, such as a model's name."""


@dataclass(frozen=True, slots=True)
class Shown:
    """All times of a profile, against "tokens" or "bytes".

    Attributes:
        uncertainty: relative uncertainty of a profile that is an estimate as a whole.
        basis: basis of ``Curve.known``: "measured", "given" (by definition) or "estimated".
        notes: sentences on the basis of the times besides measurements.
    """

    curves: Curves
    unit: str
    uncertainty: float | None = None
    basis: str = "measured"
    notes: tuple[str, ...] = ()

    @property
    def unmeasured(self) -> str:
        """Description of the times that were not measured, or an empty text."""
        curves = [curve for group in self.curves.values() for curve in group]
        last = (TOKENS if self.unit == "tokens" else SIZES)[-1]
        parts = []
        if any(curve.known and not curve.known[0] <= last <= curve.known[1] for curve in curves):
            parts.append("extrapolated")
        if any(curve.known is None for curve in curves):
            parts.append("computed in part from peak figures")
        return f"not {self.basis}: {' or '.join(parts)}" if parts else ""


def curves_of(profile: AnyProfile, name: str) -> Shown:
    """Collect all times of a profile; without curves if it holds none."""
    uncertainty = profile.origin.uncertainty if profile.origin.estimate else None
    basis = "given" if uncertainty is None else "estimated"
    if isinstance(profile, DeviceProfile):
        remarks: list[Remark] = []
        curves = _device_curves(profile, name, remarks)
        basis = "measured" if uncertainty is None else basis
        return Shown(curves, "tokens", uncertainty, basis, tuple(text for _, text in told(remarks)))
    if isinstance(profile, Device):
        keys = ("stage_ms", "draft_ms", "evaluate_ms")
        given = [_given(key, getattr(profile, key)) for key in keys]
        return Shown({name: given}, "tokens", uncertainty, basis)
    if isinstance(profile, LinkProfile):
        if profile.measured_to_bytes or profile.transfer_ms:
            basis = "measured"
        return Shown({name: _link_curves(profile)}, "bytes", uncertainty, basis)
    if isinstance(profile, HostProfile):
        given = [_given(key, getattr(profile, key)) for key in ("send_ms", "receive_ms")]
        return Shown({name: given}, "bytes", uncertainty, basis)
    return Shown({}, "")


def _given(what: str, points: dict[int, float]) -> Curve:
    """Make the curve of a table that defines its times, one point alone for any size."""
    known = (1, max(points) if len(points) > 1 else math.inf)
    return Curve(what, TimeTable(points), None, known)


def _device_curves(profile: DeviceProfile, name: str, remarks: list[Remark]) -> Curves:
    """Collect one layer of each measured model, with attention, and all else as measured."""
    service = ServiceTimes(name, profile, shape_of, remarks)
    models = [ServedModel(e.model, shape_of(e), e.dtype) for e in profile.layer]
    if not models and profile.roofline is not None:
        models = [ServedModel(EXAMPLE, find_model(EXAMPLE, "example"), "float16")]
    curves: Curves = {str(model): [] for model in models}
    for model in models:
        own = [e for e in profile.layer if (e.model, e.dtype) == (model.name, model.dtype)]
        curves[str(model)] = _layer_curves(service.layer(model), own, profile.origin.estimate)
    others = {
        "output projection": profile.head,
        "embedding": profile.embedding,
        "draft pass": profile.draft,
    }
    for what, entries in others.items():
        for entry in entries:
            curves.setdefault(f"{entry.model} in {entry.dtype}", []).extend(_measured(what, entry))
    return curves


def _layer_curves(tables: Tables, own: Sequence[LayerTime], estimate: bool) -> list[Curve]:
    """Make a layer's curves; contexts of ``own`` are measured if attention was, else computed.

    In a profile that is an estimate as a whole, all times have the same standing.
    """
    if estimate:
        return [Curve("layer", TimeTable(times), c) for c, times in sorted(tables.items())]
    measured = {
        context: times for entry in own if entry.attention for context, times in entry.ms.items()
    }
    found = []
    for context, times in sorted(tables.items()):
        points = measured.get(context)
        known = (min(points), max(points)) if points else None
        found.append(Curve("layer", TimeTable(times), context, known))
    return found


def _measured(what: str, entry: MeasuredTime) -> list[Curve]:
    several = len(entry.ms) > 1
    return [
        Curve(what, TimeTable(times), context if several else None, (min(times), max(times)))
        for context, times in sorted(entry.ms.items())
    ]


def _link_curves(link: LinkProfile) -> list[Curve]:
    """Make the curves of a message's mean time on a free link, and without jitter and losses."""
    times = link.times
    known = (0.0, float(link.measured_to_bytes or math.inf))
    if link.transfer_ms is not None and len(link.transfer_ms) > 1:
        known = (min(link.transfer_ms), max(link.transfer_ms))

    def bare(size: int) -> float:
        return times.latency_ms + times.occupied_ms(size)

    if not (link.jitter_ms or link.loss):
        return [Curve("transfer", bare, None, known)]
    return [Curve(MEAN, times.mean_ms, None, known), Curve(BARE, bare, None, known)]
