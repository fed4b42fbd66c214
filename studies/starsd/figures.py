"""The plots of the study ``starsd-threshold``; numbers come in, figures go out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.plots import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LEGEND,
    MIST,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    band,
    clean,
)
from treepipe.results.statistics import Interval
from treepipe.sim.theory.starsd import Cycle
from treepipe.studies.starsd.packing import CONTEXTS_PLOTTED, PAIRS, Packing, memory_mib
from treepipe.studies.starsd.testbed import Simulated

SHADES = (BLUE, GREEN, ORANGE, PURPLE)
PUBLISHED = {"color": ORANGE, "marker": "o", "ls": "none", "ms": 7, "mec": "white"}
PREDICTED = {"color": BLUE, "label": "predicted"}

Values = Mapping[int, Mapping[str, Interval]]


@dataclass(frozen=True, slots=True)
class Blur:
    """Even targets, simulated by Z's coefficient of variation and by N, and the closed form."""

    cycle: Cycle
    seen: Mapping[float, Mapping[int, Simulated]]
    n_full: int

    @property
    def losses(self) -> str | None:
        """How far simulated rates are below the closed form's at N_full, by the jitter."""
        known = {cv: seen[self.n_full] for cv, seen in self.seen.items() if self.n_full in seen}
        rate = self.cycle.draft_rounds(self.n_full)
        found = [f"{1 - s.rounds.mean / rate:.1%} at CV {cv:.2g}" for cv, s in known.items() if cv]
        return " and ".join(found) or None


def targets_figure(
    values: Values,
    published: Mapping[int, Mapping[str, float]],
    seen: Mapping[int, Simulated],
    alone_tokens_s: float,
) -> Figure:
    """Every metric against N; and what a target's round is made of."""
    figure = Figure(figsize=(11, 9.5), layout="constrained")
    axes: Any = figure.subplots(3, 2, sharex=True)
    panels = [
        ("throughput_tokens_s", "throughput of all targets (tokens/s)"),
        ("per_target_tokens_s", "throughput of a target (tokens/s)"),
        ("draft_rounds_s", "rounds per second of the draft"),
        ("draft_idle_ms", "draft idle (ms per turn)"),
        ("draft_wait_ms", "waiting for the draft (ms per turn)"),
    ]
    for panel, (metric, label) in zip(axes.flat, panels, strict=False):
        band(panel, list(values), [each[metric] for each in values.values()], PREDICTED)
        known = {n: each[metric] for n, each in published.items()}
        panel.plot(list(known), list(known.values()), label="published, calibrated on", **PUBLISHED)
        panel.axvspan(max(published) + 0.5, max(values) + 0.4, color=MIST, lw=0, zorder=-5)
        panel.set_ylabel(label)
        panel.set_ylim(bottom=0)
        clean(panel)
    alone = axes.flat[1]
    alone.axhline(alone_tokens_s, color=GREY, ls=":", label="a target that decodes alone")
    for panel in (axes.flat[0], alone):
        panel.legend(loc="lower right" if panel is axes.flat[0] else "upper right", **LEGEND)
    _rounds(axes.flat[5], seen)
    for panel in axes[-1]:
        panel.set_xlabel("N: targets that share the draft (grey: nothing published was used)")
        panel.set_xticks(list(values))
    figure.suptitle("StarSD: one draft for N targets, calibrated on N = 1 to 4")
    return figure


def _rounds(panel: Any, seen: Mapping[int, Simulated]) -> None:
    """A target's round: served, waiting, away; stacked."""
    numbers = list(seen)
    served = [s.service.mean for s in seen.values()]
    waits = [s.wait.mean for s in seen.values()]
    away = [
        1e3 * n / s.rounds.mean - s.service.mean - s.wait.mean
        for n, s in zip(numbers, seen.values(), strict=True)
    ]
    bottom = [0.0] * len(numbers)
    parts = (("served by the draft", served, BLUE), ("verifying and on the way", away, PALE))
    for name, part, color in (*parts, ("waiting for the draft", waits, ORANGE)):
        panel.bar(numbers, part, bottom=bottom, color=color, label=name, width=0.8)
        bottom = [a + b for a, b in zip(bottom, part, strict=True)]
    panel.set_ylabel("a target's round (ms)")
    panel.legend(loc="upper left", **LEGEND)
    clean(panel)


def transition_figure(blur: Blur) -> Figure:
    """Sharp by the closed form, blurred by jitter: rounds and load against N."""
    figure = Figure(figsize=(9, 7.5), layout="constrained")
    axes: Any = figure.subplots(3, 1, sharex=True)
    numbers = list(next(iter(blur.seen.values())))
    cycle = blur.cycle
    forms = (
        [cycle.draft_rounds(n) for n in numbers],
        [cycle.idle_ms(n) / n for n in numbers],
        [cycle.wait_ms(n) for n in numbers],
    )
    labels = ("draft's rounds per second", "draft idle (ms per turn)", "waiting (ms per turn)")
    for panel, form, label in zip(axes, forms, labels, strict=True):
        panel.axvline(blur.n_full, color=GREY, ls=":", lw=1)
        panel.plot(numbers, form, color=GREY, ls="--", lw=2, label="closed form, no jitter")
        panel.set_ylabel(label)
        clean(panel)
    for (cv, seen), color in zip(blur.seen.items(), SHADES, strict=False):
        style = {"color": color, "label": f"simulated, jitter of Z: CV {cv:.2g}"}
        band(axes[0], numbers, [seen[n].rounds for n in numbers], style)
        band(axes[1], numbers, [seen[n].idle for n in numbers], style)
        band(axes[2], numbers, [seen[n].wait for n in numbers], style)
    axes[0].legend(loc="lower right", **LEGEND)
    axes[-1].set_xlabel(f"N: even targets on one server (dotted: ceil(Z/S) + 1 = {blur.n_full})")
    axes[-1].set_xticks(numbers)
    figure.suptitle("The transition to full load, sharp and blurred")
    return figure


def packing_figure(device: str = "a100", devices: int = 4) -> Figure:
    """Targets on a server against the length of their texts, draft shared and co-located."""
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes: Any = figure.subplots(2, 2, sharex=True)
    memory = memory_mib(device)
    for panel, pair in zip(axes.flat, PAIRS, strict=True):
        most = 1
        packings = [Packing.of(pair, context) for context in CONTEXTS_PLOTTED]
        # The wide line shows on both sides of the narrow one where both are equal.
        for name, count, style in (
            ("one draft for all", Packing.shared, {"color": SKY, "lw": 6}),
            ("a draft beside each target", Packing.colocated, {"color": BLACK, "lw": 1.6}),
        ):
            counts = [count(packing, memory, devices) for packing in packings]
            most = max(most, *counts)
            ends = {"solid_capstyle": "butt", "solid_joinstyle": "miter"}
            panel.step(CONTEXTS_PLOTTED, counts, where="mid", label=name, **style, **ends)
        panel.yaxis.get_major_locator().set_params(integer=True)
        panel.set_title(f"{pair.target} with {pair.draft}", fontsize=10)
        panel.set_ylim(0, 1.1 * most)
        panel.xaxis.set_major_formatter("{x:,.0f}")
        clean(panel)
    axes[0][0].legend(loc="upper right", **LEGEND)
    for panel in axes[-1]:
        panel.set_xlabel("tokens of text per target")
    for panel in axes[:, 0]:
        panel.set_ylabel("targets that fit")
    figure.suptitle(f"Memory packing on {devices} x {device} (float16)")
    return figure
