"""Output of ``treepipe profiles``: the list, or one profile as tables.

Invariant: a time counts as measured only between measured sizes, not beyond them, where it is
extrapolated, nor where it is computed from peak figures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rich.console import Console

from treepipe.core.errors import UserError
from treepipe.physics.timing import TimeTable
from treepipe.profiles.hit_ratio import said
from treepipe.profiles.library import (
    KINDS,
    LIBRARY,
    LOADERS,
    AnyProfile,
    check_file,
    find_model,
    is_path,
    load_any,
    profile_names,
    profile_path,
    shape_of,
)
from treepipe.profiles.schema import (
    AcceptanceProfile,
    Device,
    DeviceProfile,
    Hardware,
    HopProfile,
    HostProfile,
    LinkProfile,
    ModelProfile,
)
from treepipe.profiles.service import Remark, ServedModel, ServiceTimes, told
from treepipe.profiles.shapes import BYTES, STATE_BYTES, compute_dtype
from treepipe.results.sheet import Sheet, columns, figures, words
from treepipe.results.show import print_sheet

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512, 1024, 2048)
SIZES = tuple(2**power for power in range(10, 27, 2))
"""Sizes of shown messages in bytes, for any profile."""
EXAMPLE = "llama-2-7b"
"""The model whose layer is shown for a device without a measured one."""
ANYWHERE = (0, math.inf)


class Curve(NamedTuple):
    """Milliseconds against rows or bytes of a kind of work.

    Attributes:
        context: tokens cached before the pass; None if only one context is known.
        known: sizes between which the times are measured, or given by definition; None: all times
            are computed from peak figures.
    """

    what: str
    ms: Callable[[int], float]
    known: tuple[float, float] | None = ANYWHERE
    context: int | None = None

    @property
    def heading(self) -> str:
        return self.what if self.context is None else f"{self.what}, context {self.context:,}"

    def measured(self, size: int) -> bool:
        return self.known is not None and self.known[0] <= size <= self.known[1]


Curves: TypeAlias = dict[str, list[Curve]]
"""Curves by a title, such as a model's name."""


def show_profiles(console: Console) -> None:
    """List all profiles by kind."""
    sheet = Sheet("", words("kind", "name", "origin"))
    for kind, load in LOADERS.items():
        for name in profile_names(kind):
            origin = load(LIBRARY / kind / f"{name}.toml").origin
            mark = f"estimate, ± {origin.uncertainty:.0%}: " if origin.estimate else ""
            sheet.add(kind, name, mark + origin.source)
    for line in sheet.plain(console.width)[0]:
        console.print(line, highlight=False)


def show_profile(name: str, console: Console) -> None:
    """Print one profile as tables; raises ``UserError`` if there is none."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    path = _path(name)
    kind, profile = load_any(path)
    curves, notes = curves_of(profile, path.stem)
    say(f"{kind}/{path.stem}: {profile.origin.source}")
    for line in (*_lines(profile), *notes):
        say(f"  {line}")
    for table in (*_curve_tables(profile, curves), *_key_tables(profile)):
        print_sheet(console, table)
    if doubt := unmeasured(profile, curves):
        say(f"~ {doubt}")


def check_profiles(name: str | None, console: Console) -> None:
    """Validate a profile or the library, and print what is odd; raises ``UserError``."""
    odd, paths = 0, [_path(name)] if name is not None else list(_library().values())
    for path in paths:
        kind, warnings = check_file(path)
        odd += len(warnings)
        for warning in warnings:
            line = f"{kind}/{path.stem}: warning: {warning}"
            console.print(line, highlight=False, soft_wrap=True)
    console.print(f"{len(paths)} valid, {odd} warnings", highlight=False)


def _library() -> dict[str, Path]:
    return {name: LIBRARY / kind / f"{name}.toml" for kind in KINDS for name in profile_names(kind)}


def _path(name: str) -> Path:
    if is_path(name):
        return profile_path("models", name, "profile")
    known = _library()
    if name not in known:
        raise UserError(
            f"profile {name!r}: there is none of that name; there are {', '.join(known)}"
        )
    return known[name]


def _lines(profile: AnyProfile) -> Iterator[str]:
    """Yield what a profile says besides its tables."""
    origin = profile.origin
    yield f"date {origin.date}"
    if isinstance(profile, (Device, Hardware, LinkProfile)):
        yield f"hardware: {profile.origin.hardware}; with: {profile.origin.versions}"
    if origin.estimate:
        yield f"an estimate, uncertain by {origin.uncertainty:.0%}"
    if origin.note:
        yield origin.note
    if isinstance(profile, DeviceProfile):
        for entry in (*profile.layer, *profile.head):
            if (error := entry.fit_error) is not None:
                yield (
                    f"{entry.model} in {entry.dtype}: the knots hold {error.points} measured "
                    f"points within {error.max:.1%} (median {error.median:.1%})"
                )
    if isinstance(profile, (Device, Hardware)):
        if profile.memory_mib is not None:
            yield f"memory {profile.memory_mib:g} MiB"
        if profile.power is not None:
            yield str(profile.power)
        if (price := getattr(profile, "price", None)) is not None:
            yield f"price {price}"
    if isinstance(profile, ModelProfile):
        yield from (f"key {caveat}" for caveat in profile.caveats.values())


# --- times --------------------------------------------------------------------------------------


def curves_of(profile: AnyProfile, name: str) -> tuple[Curves, Sequence[str]]:
    """Collect all times of a profile, and sentences on those that are not measured; no curves if it
    holds none."""
    if isinstance(profile, DeviceProfile):
        return _device_curves(profile, name)
    if isinstance(profile, Device):
        keys = ("stage_ms", "draft_ms", "evaluate_ms")
        return {name: [_given(key, getattr(profile, key)) for key in keys]}, ()
    return ({name: _link_curves(profile)}, ()) if isinstance(profile, LinkProfile) else ({}, ())


def _given(what: str, points: dict[int, float]) -> Curve:
    """Make the curve of a table that defines its times, one point alone for any rows."""
    return Curve(what, TimeTable(points), (1, max(points) if len(points) > 1 else math.inf))


def _device_curves(profile: DeviceProfile, name: str) -> tuple[Curves, Sequence[str]]:
    """Collect one layer of each measured model, with attention, and all else as measured.

    A layer's context is measured if attention was, else computed; in a profile that is an estimate
    as a whole all times have the same standing.
    """
    remarks = list[Remark]()
    service = ServiceTimes(name, profile, shape_of, remarks)
    models = [ServedModel(e.model, shape_of(e), e.dtype) for e in profile.layer]
    if not models and profile.roofline is not None:
        models = [ServedModel(EXAMPLE, find_model(EXAMPLE, "example"), "float16")]
    curves: Curves = {}
    for model in models:
        own = [e for e in profile.layer if (e.model, e.dtype) == (model.name, model.dtype)]
        seen = {context: times for e in own if e.attention for context, times in e.ms.items()}
        ends = {context: (min(times), max(times)) for context, times in seen.items()}
        curves[str(model)] = [
            Curve("layer", TimeTable(times), known, context)
            for context, times in sorted(service.layer(model).items())
            for known in [ANYWHERE if profile.origin.estimate else ends.get(context)]
        ]
    parts = {
        "output projection": profile.head,
        "embedding": profile.embedding,
        "draft pass": profile.draft,
    }
    for what, entries in parts.items():
        for entry in entries:
            curves.setdefault(f"{entry.model} in {entry.dtype}", []).extend(
                Curve(
                    what,
                    TimeTable(times),
                    (min(times), max(times)),
                    context if len(entry.ms) > 1 else None,
                )
                for context, times in sorted(entry.ms.items())
            )
    return curves, [text for _, text in told(remarks)]


def _link_curves(link: LinkProfile) -> list[Curve]:
    """Make the curves of a message's mean time on a free link, and without jitter and losses."""
    times = link.times
    known = (0.0, float(link.measured_to_bytes or math.inf))
    if link.transfer_ms is not None and len(link.transfer_ms) > 1:
        known = (min(link.transfer_ms), max(link.transfer_ms))

    def bare(size: int) -> float:
        return times.latency_ms + times.occupied_ms(size)

    if not (link.jitter_ms or link.loss):
        return [Curve("transfer", bare, known)]
    return [
        Curve("mean, with jitter and losses", times.mean_ms, known),
        Curve("without jitter and losses", bare, known),
    ]


def unmeasured(profile: AnyProfile, curves: Curves) -> str:
    """Describe the times that were not measured, or return an empty text."""
    _, sizes = _axis(profile)
    known = [curve.known for group in curves.values() for curve in group]
    parts = {
        "extrapolated": any(each and each[1] < sizes[-1] for each in known),
        "computed in part from peak figures": None in known,
    }
    return " or ".join(part for part, holds in parts.items() if holds)


def _axis(profile: AnyProfile) -> tuple[str, Sequence[int]]:
    return ("bytes", SIZES) if isinstance(profile, LinkProfile) else ("tokens", TOKENS)


def _curve_tables(profile: AnyProfile, curves: Curves) -> Iterator[Sheet]:
    """Yield a table per kind of work of several contexts, and one for all else of a model; times
    that were not measured are marked."""
    unit, sizes = _axis(profile)
    doubt = f", an estimate, ± {profile.origin.uncertainty:.0%}" if profile.origin.estimate else ""
    for title, of_title in curves.items():
        several = Counter(curve.what for curve in of_title)
        groups = dict[str, list[Curve]]()
        for curve in of_title:
            groups.setdefault(curve.what if several[curve.what] > 1 else "", []).append(curve)
        for _, group in sorted(groups.items(), key=lambda each: not each[0]):
            headings = (curve.heading for curve in group)
            sheet = Sheet(f"{title}: milliseconds{doubt}", figures(unit, *headings))
            for size in sizes:
                marks = (("" if curve.measured(size) else "~", curve) for curve in group)
                sheet.add(f"{size:,}", *(f"{mark}{curve.ms(size):.4g}" for mark, curve in marks))
            yield sheet


# --- keys ---------------------------------------------------------------------------------------


def _key_tables(profile: AnyProfile) -> Iterator[Sheet]:
    """Yield tables of what a profile holds besides times by size."""
    if isinstance(profile, ModelProfile):
        yield _sizes_table(profile)
    elif isinstance(profile, AcceptanceProfile):
        title = f"{profile.draft} for {profile.target}: {profile.task}, T = {profile.temperature:g}"
        sheet = Sheet(title, words("first k", "hit ratio"))
        for k, share in sorted((profile.hit_ratio or {}).items()):
            sheet.add(str(k), said(share))
        if profile.pool is not None:
            sheet.add("recorded", profile.pool)
        yield sheet
    elif isinstance(profile, HostProfile | HopProfile):
        title = "what the host adds to its devices' times"
        if isinstance(profile, HopProfile):
            title = "what the engine adds to a link: name it as LINK+ENGINE"
        sheet = Sheet(title, words("key", "values", "meaning"))
        for key in sorted(profile.model_fields_set - {"origin", "iqr", "fit"}):
            value = getattr(profile, key)
            if isinstance(value, Mapping):
                value = ", ".join(f"{knot:,}: {each:.4g}" for knot, each in sorted(value.items()))
            sheet.add(key, str(value), type(profile).model_fields[key].description or "")
        yield sheet
    elif isinstance(profile, Hardware) and profile.sampling:
        heads = ("rule", "top_k, top_p", "vocabulary|,", "judging|.4g", "drawing, by candidates")
        sheet = Sheet("sampling: milliseconds per row", columns(*heads))
        for each in profile.sampling:
            drawn = ", ".join(f"{count}: {ms:.4g}" for count, ms in (each.draw_ms or {}).items())
            truncated = "yes" if each.truncated else "no"
            sheet.add(each.rule, truncated, each.vocabulary, each.judge_ms, drawn)
        yield sheet


def _sizes_table(model: ModelProfile) -> Sheet:
    sheet = Sheet("sizes", [*words("what"), *figures("value")])
    for key in type(model).model_fields:
        if key not in ("origin", "kinds", "caveats"):
            value = getattr(model, key)
            sheet.add(key, f"{value:,}" if key == "mtp_parameters" else str(value))
    for kind in model.kinds:
        own = ((key, getattr(kind, key)) for key in type(kind).model_fields if key != "layers")
        told = ", ".join(
            key if value is True else f"{key} {value:,}" for key, value in own if value
        )
        sheet.add(f"{kind.layers} layers", told)
    sheet.add("parameters", f"{model.parameters:,}")
    sheet.add("of them read by a pass over one row", f"{model.active_parameters:,}")
    sheet.add("parameters of a layer", f"{model.layer_parameters:,}")
    sheet.add(f"all weights in {model.dtype}, GB", f"{model.model_bytes(model.dtype) / 1e9:.3f}")
    for dtype in BYTES:
        each = model if dtype == model.dtype else model.model_copy(update={"bits": None})
        sheet.add(f"layer in {dtype}, MiB", f"{each.layer_bytes(dtype) / 2**20:.1f}")
    kv, of = model.kv_bytes(model.dtype) / 2**10, f"a layer in {compute_dtype(model.dtype)}"
    sheet.add(f"keys and values of a token in {of}, KiB", f"{kv:g}")
    sheet.add("keys and values of a token in all layers, KiB", f"{kv * model.layers:g}")
    if state := model.layers * model.state * STATE_BYTES:
        sheet.add("state of a request in all layers, MiB", f"{state / 2**20:.1f}")
    return sheet
