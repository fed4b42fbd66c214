"""What ``treepipe profiles`` shows: the list, one profile as a table, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from treepipe.errors import UserError
from treepipe.links import link_times
from treepipe.profiles.check import check_file
from treepipe.profiles.library import (
    KINDS,
    LIBRARY,
    AnyProfile,
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
    Link,
    LinkProfile,
    ModelProfile,
)
from treepipe.profiles.service import ServedModel, ServiceTimes
from treepipe.profiles.shapes import BYTES
from treepipe.timing import TimeTable

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512, 1024, 2048)
SIZES = tuple(2**power for power in range(10, 27, 2))
STYLES = ("-", "--", ":", "-.")
EXAMPLE = "llama-2-7b"
"""Whose layer is shown on a device where none was measured."""

Curves: TypeAlias = dict[str, dict[str, Callable[[int], float]]]
"""Milliseconds at a token count or size: by what belongs together, by heading."""


def show_profiles(console: Console) -> None:
    """List all profiles by kind."""
    names = {kind: profile_names(kind) for kind in KINDS}
    table = Table(expand=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("name", no_wrap=True)
    table.add_column("origin", no_wrap=True, overflow="ellipsis", ratio=1)
    for kind in KINDS:
        for name in names[kind]:
            _, profile = load_any(LIBRARY / kind / f"{name}.toml")
            table.add_row(kind, name, _one_line(profile))
        table.add_section()
    console.print(table)


def show_profile(name: str, plot: Path | None, console: Console) -> None:
    """Print one profile as tables, and draw it.

    Args:
        name: of a profile of the library, or a file.

    Raises:
        UserError: there is none of that name, it is not valid, or cannot be drawn.
    """
    path = _path(name)
    kind, profile = load_any(path)
    console.print(f"{kind}/{path.stem}: {profile.origin.source}", highlight=False)
    for line in _origin_lines(profile):
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    curves, unit = _curves(profile, path.stem)
    if isinstance(profile, ModelProfile):
        console.print(_sizes_table(profile))
    elif isinstance(profile, AcceptanceProfile):
        console.print(_acceptance_table(profile))
    else:
        for title, columns in curves.items():
            console.print(_curve_table(title, columns, unit))
    if plot is not None:
        if not curves:
            raise UserError(f"--plot {plot}: a profile of {kind} holds no times to draw")
        draw_curves(curves, unit, path.stem, plot)


def check_profiles(name: str | None, console: Console) -> None:
    """Validate one profile or all of the library, and say what is odd.

    Raises:
        UserError: at the first profile that is not valid.
    """
    if name is not None:
        paths = [_path(name)]
    else:
        paths = [LIBRARY / kind / f"{each}.toml" for kind in KINDS for each in profile_names(kind)]
    odd = 0
    for path in paths:
        kind, warnings = check_file(path)
        odd += len(warnings)
        for warning in warnings:
            console.print(
                f"{kind}/{path.stem}: warning: {warning}", highlight=False, soft_wrap=True
            )
    console.print(f"{len(paths)} valid, {odd} warnings", highlight=False)


def _path(name: str) -> Path:
    if is_path(name):
        return profile_path("models", name, "profile")
    for kind in KINDS:
        if name in profile_names(kind):
            return LIBRARY / kind / f"{name}.toml"
    known = [known for kind in KINDS for known in profile_names(kind)]
    raise UserError(f"profile {name!r}: there is none of that name; there are {', '.join(known)}")


def _one_line(profile: AnyProfile) -> str:
    origin = profile.origin
    mark = f"estimate, ± {origin.uncertainty:.0%}: " if origin.estimate else ""
    return mark + origin.source


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
    return lines


def _curves(profile: AnyProfile, name: str) -> tuple[Curves, str]:
    """All times of a profile, and what they are against."""
    if isinstance(profile, DeviceProfile):
        return _device_curves(profile, name), "tokens"
    if isinstance(profile, Device):
        keys = ("stage_ms", "draft_ms", "evaluate_ms")
        return {name: {key: TimeTable(getattr(profile, key)) for key in keys}}, "tokens"
    if isinstance(profile, LinkProfile):
        return {name: {"ms": _link_curve(profile)}}, "bytes"
    return {}, ""


def _device_curves(profile: DeviceProfile, name: str) -> Curves:
    """One layer of each measured model, with attention, and everything else as measured."""
    service = ServiceTimes(name, profile, shape_of, [])
    models = [ServedModel(e.model, shape_of(e), e.dtype) for e in profile.layer]
    if not models and profile.roofline is not None:
        models = [ServedModel(EXAMPLE, find_model(EXAMPLE, "example"), "float16")]
    curves: Curves = {}
    for model in models:
        layer = service.layer(model)
        curves[str(model)] = {f"layer, context {c}": TimeTable(layer[c]) for c in sorted(layer)}
    others = {
        "output projection": profile.head,
        "embedding": profile.embedding,
        "draft pass": profile.draft,
    }
    for what, entries in others.items():
        for entry in entries:
            columns = curves.setdefault(f"{entry.model} in {entry.dtype}", {})
            for context, times in sorted(entry.ms.items()):
                suffix = f", context {context}" if len(entry.ms) > 1 else ""
                columns[what + suffix] = TimeTable(times)
    return curves


def _link_curve(link: Link) -> Callable[[int], float]:
    times = link_times(link)
    return lambda size: times.latency_ms + times.occupied_ms(size)


def _curve_table(title: str, columns: Mapping[str, Callable[[int], float]], unit: str) -> Table:
    table = Table(title=f"{title}: milliseconds", title_justify="left")
    table.add_column(unit, justify="right")
    for heading in columns:
        table.add_column(heading, justify="right")
    for size in SIZES if unit == "bytes" else TOKENS:
        table.add_row(f"{size:,}", *(f"{curve(size):.4g}" for curve in columns.values()))
    return table


def _sizes_table(model: ModelProfile) -> Table:
    table = Table(title="sizes")
    table.add_column("what")
    table.add_column("value", justify="right")
    for key in type(model).model_fields:
        if key != "origin":
            table.add_row(key, str(getattr(model, key)))
    table.add_row("parameters", f"{model.parameters:,}")
    table.add_row("parameters of a layer", f"{model.layer_parameters:,}")
    for dtype in BYTES:
        table.add_row(f"layer in {dtype}, MiB", f"{model.layer_bytes(dtype) / 2**20:.1f}")
    kv = model.kv_bytes(model.dtype) / 2**10
    table.add_row(f"keys and values of a token in a layer in {model.dtype}, KiB", f"{kv:g}")
    return table


def _acceptance_table(profile: AcceptanceProfile) -> Table:
    title = f"{profile.draft} for {profile.target}: {profile.task}, T = {profile.temperature:g}"
    table = Table("first k", "hit ratio", title=title)
    for k, share in sorted((profile.hit_ratio or {}).items()):
        table.add_row(str(k), f"{share:g}")
    if profile.pool is not None:
        table.add_row("recorded", profile.pool)
    return table


def draw_curves(curves: Curves, unit: str, title: str, path: Path) -> None:
    """Milliseconds against tokens or bytes, both logarithmic. Raises ``UserError``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator

    from treepipe.studies.plots import LEGEND, clean, save_figure

    dense = [round(2 ** (power / 8)) for power in range(80, 209)]
    sizes = list(range(1, 2049)) if unit == "tokens" else dense
    figure, panel = plt.subplots(figsize=(9, 5.5))
    for number, (group, columns) in enumerate(curves.items()):
        for style, (heading, curve) in zip(cycle(STYLES), columns.items(), strict=False):
            label = f"{group}: {heading}"
            times = [curve(size) for size in sizes]
            panel.plot(sizes, times, label=label, lw=1.5, color=f"C{number}", ls=style)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_locator(NullLocator())
    if unit == "tokens":
        ticks = [2**power for power in range(12)]
        panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.set(xlabel=unit, ylabel="milliseconds", title=title)
    clean(panel, "both")
    panel.legend(fontsize=8, **LEGEND)
    figure.tight_layout()
    plt.close(figure)
    save_figure(figure, path, 120, "--plot")
