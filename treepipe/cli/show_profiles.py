"""Output of ``treepipe profiles``: the list, or one profile as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from treepipe.core.errors import UserError
from treepipe.profiles.check import check_file
from treepipe.profiles.curves import SIZES, TOKENS, Curve, Shown, curves_of
from treepipe.profiles.hit_ratio import said
from treepipe.profiles.library import (
    KINDS,
    LIBRARY,
    LOADERS,
    AnyProfile,
    is_path,
    load_any,
    profile_names,
    profile_path,
)
from treepipe.profiles.schema import (
    AcceptanceProfile,
    Device,
    DeviceProfile,
    EmulatedProfile,
    Hardware,
    HostProfile,
    Link,
    ModelProfile,
    SamplingTime,
)
from treepipe.profiles.shapes import BYTES, STATE_BYTES, compute_dtype
from treepipe.results.sheet import Sheet, columns, figures, words
from treepipe.results.show import print_sheet


def show_profiles(console: Console) -> None:
    """List all profiles by kind."""
    table = Table(expand=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("name", no_wrap=True)
    table.add_column("origin", no_wrap=True, overflow="ellipsis", ratio=1)
    for kind, load in LOADERS.items():
        for name in profile_names(kind):
            origin = load(LIBRARY / kind / f"{name}.toml").origin
            mark = f"estimate, ± {origin.uncertainty:.0%}: " if origin.estimate else ""
            table.add_row(kind, name, mark + origin.source)
        table.add_section()
    console.print(table)


def show_profile(name: str, console: Console) -> None:
    """Print one profile as tables; raises ``UserError`` if there is none."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True)

    path = _path(name)
    kind, profile = load_any(path)
    shown = curves_of(profile, path.stem)
    say(f"{kind}/{path.stem}: {profile.origin.source}")
    caveats = profile.caveats.values() if isinstance(profile, ModelProfile) else ()
    for line in (*_origin_lines(profile), *(f"key {each}" for each in caveats), *shown.notes):
        say(f"  {line}")
    if isinstance(profile, ModelProfile):
        print_sheet(console, _sizes_table(profile))
    elif isinstance(profile, AcceptanceProfile):
        print_sheet(console, _acceptance_table(profile))
    elif isinstance(profile, HostProfile):
        print_sheet(console, _host_table(profile))
    else:
        for table in _curve_tables(shown):
            print_sheet(console, table)
        if isinstance(profile, Hardware) and profile.sampling:
            print_sheet(console, _sampling_table(profile.sampling))
        if shown.unmeasured:
            say(f"~ {shown.unmeasured}")


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


def _origin_lines(profile: AnyProfile) -> list[str]:
    origin = profile.origin
    lines = [f"date {origin.date}"]
    if isinstance(profile, (Device, Hardware, Link)):
        lines.append(f"hardware: {profile.origin.hardware}; with: {profile.origin.versions}")
    if origin.estimate:
        lines.append(f"an estimate, uncertain by {origin.uncertainty:.0%}")
    if origin.note:
        lines.append(origin.note)
    if isinstance(profile, DeviceProfile):
        lines += [
            f"{entry.model} in {entry.dtype}: the knots hold {entry.fit_error.points} measured "
            f"points within {entry.fit_error.max:.1%} (median {entry.fit_error.median:.1%})"
            for entry in (*profile.layer, *profile.head)
            if entry.fit_error is not None
        ]
    if isinstance(profile, (Device, Hardware)) and profile.memory_mib is not None:
        lines.append(f"memory {profile.memory_mib:g} MiB")
    if isinstance(profile, (Device, Hardware)) and profile.power is not None:
        lines.append(str(profile.power))
    if isinstance(profile, (DeviceProfile, EmulatedProfile)) and profile.price is not None:
        lines.append(f"price {profile.price}")
    return lines


def _curve_tables(shown: Shown) -> Iterator[Sheet]:
    """Yield a table per kind of work of several contexts, and one for all else of a model; times
    that were not measured are marked."""
    for title, curves in shown.curves.items():
        several = Counter(curve.what for curve in curves)
        groups = dict[str, list[Curve]]()
        for curve in curves:
            groups.setdefault(curve.what if several[curve.what] > 1 else "", []).append(curve)
        for _, group in sorted(groups.items(), key=lambda each: not each[0]):
            headings = (curve.heading for curve in group)
            sheet = Sheet(f"{title}: milliseconds{_doubt(shown)}", figures(shown.unit, *headings))
            for size in SIZES if shown.unit == "bytes" else TOKENS:
                marks = (("" if curve.measured(size) else "~", curve) for curve in group)
                sheet.add(f"{size:,}", *(f"{mark}{curve.ms(size):.4g}" for mark, curve in marks))
            yield sheet


def _sampling_table(measured: Sequence[SamplingTime]) -> Sheet:
    heads = columns("rule", "top_k, top_p", "vocabulary|,", "judging|.4g", "drawing, by candidates")
    sheet = Sheet("sampling: milliseconds per row", heads)
    for each in measured:
        drawn = ", ".join(f"{count}: {ms:.4g}" for count, ms in (each.draw_ms or {}).items())
        truncated = "yes" if each.truncated else "no"
        sheet.add(each.rule, truncated, each.vocabulary, each.judge_ms, drawn)
    return sheet


def _doubt(shown: Shown) -> str:
    return "" if shown.uncertainty is None else f", an estimate, ± {shown.uncertainty:.0%}"


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


def _host_table(profile: HostProfile) -> Sheet:
    """Show what the profile holds, each table at its own knots."""
    sheet = Sheet("what the host adds to its devices' times", words("key", "values", "meaning"))
    for key in sorted(profile.model_fields_set - {"origin", "iqr", "fit"}):
        value = getattr(profile, key)
        if isinstance(value, Mapping):
            value = ", ".join(f"{knot:,}: {each:.4g}" for knot, each in sorted(value.items()))
        sheet.add(key, str(value), HostProfile.model_fields[key].description or "")
    return sheet


def _acceptance_table(profile: AcceptanceProfile) -> Sheet:
    title = f"{profile.draft} for {profile.target}: {profile.task}, T = {profile.temperature:g}"
    sheet = Sheet(title, words("first k", "hit ratio"))
    for k, share in sorted((profile.hit_ratio or {}).items()):
        sheet.add(str(k), said(share))
    if profile.pool is not None:
        sheet.add("recorded", profile.pool)
    return sheet
