"""What the published times say about the authors' software and about acceptance on their texts.

Law of this file: every number found here was fitted to a published one, which it names. The factor
on stage times follows from the plain pipeline, as no draft is asked there; then one time per data
set is left for how well the draft guesses, a single number: the share of positions whose token is
the draft's first candidate. The rest of a level (further candidates, confidence, neighbours) is
the bundled recorded pool's, drawn to reach that share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treepipe.profiles.library import LIBRARY
from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.sim.points import Point, simulate_points
from treepipe.studies.layered.cluster import (
    DRAFT,
    SCENARIO,
    Card,
    Cluster,
    draft_table,
    fourteen,
    one_server,
    pass_ms,
)
from treepipe.studies.reproduction import published

POOL = LIBRARY / "acceptance" / "reference-model.json.gz"
MISSES = {1: 0.19, 8: 0.01}
"""Share of book text's tokens that are not among the draft's first 1, 8 (8B for 70B; published)."""
LEVELS = (0.25, 0.5, 0.8, 1.2, 1.6, 2.0)
"""Multiples of ``MISSES`` that a curve is fitted through."""
SPECPIPE = ("schedule.name=specpipe", "schedule.width=64", "schedule.children=16")
"""As SpecPipe's figures are calibrated on; it leaves the width open, the study finds it best."""
PIPEDEC = (
    "schedule.name=pipedec",
    "schedule.width=32",
    "schedule.children=16",
    "schedule.central_transfers=true",
)
"""PipeDec, section 4.3.1."""
SHARPNESS = 2.25
"""Makes the bundled draft as sure as it is right: the likeliest power over the recorded positions
(mean confidence 0.73 with 0.74 right, where it was 0.51)."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated at a point."""

    runs: int = 6
    new_tokens: int = 300

    def settings(self) -> tuple[str, ...]:
        return f"runs={self.runs}", f"workload.new_tokens={self.new_tokens}"


@dataclass(frozen=True, slots=True)
class Levels:
    """Multiples of ``MISSES``: of HumanEval-X, and of six data sets, the most misses first."""

    humaneval_x: float
    six: tuple[float, ...]


def acceptance(level: float, sharpness: float = SHARPNESS) -> str:
    """The setting for a level: passages with so many times the misses on book text."""
    ratio = ", ".join(f"{k} = {1 - level * share:.5f}" for k, share in MISSES.items())
    return (
        f"acceptance={{ source = 'pool', file = '{POOL}', hit_ratio = {{ {ratio} }}, "
        f"sharpness = {sharpness} }}"
    )


def overhead_ms() -> float:
    """Per layer of an RTX 3090: what the plain pipeline's 302.39 ms a token leave."""
    wanted = published()["specpipe"]["pp_tbt_ms_humaneval_x"]
    cards = one_server()
    alone = plain_ms(Cluster(cards, {"rtx-3090": 0.0}, {1: 0.0}))
    return float((wanted - alone) / sum(card.layers for card in cards))


def l40_overhead_ms() -> float:
    """The same of an L40: what the 70B model on four of them leaves of 374 ms a token."""
    computing = sum(pass_ms("l40", 20, last)[1] for last in (False, False, False, True))
    return float((published()["specpipe"]["target_tbt_ms_4xL40"] - computing) / 80)


def build(cards: tuple[Card, ...]) -> Cluster:
    """A cluster with the calibrated overheads; an RTX 4090's is taken to be an RTX 3090's."""
    found = overhead_ms()
    draft = draft_table(DRAFT, published()["specpipe"]["draft_tbt_ms"][DRAFT])
    return Cluster(cards, {"rtx-3090": found, "rtx-4090": found, "l40": l40_overhead_ms()}, draft)


def plain_ms(cluster: Cluster) -> float:
    """Time between tokens of the plain pipeline; nothing is random but the links' jitter."""
    point = Point("pp", SCENARIO, (*cluster.settings(), *PLAIN))
    return simulate_points([point], _unseen)["pp"].metrics[METRIC].mean


PLAIN = ("schedule.name=pp", "runs=1", "workload.new_tokens=60")


def _unseen(title: str, steps: int) -> None:
    """Progress of what takes no time."""


def find_levels(effort: Effort, say: Say) -> Levels:
    """Levels of the six data sets, from the range of PipeDec's speed-up with 14 stages, and of
    HumanEval-X, from SpecPipe's 54.67 ms a token."""
    facts = published()
    eight, fourteen_cards = build(one_server()), build(fourteen())
    stepped = _curve(eight, SPECPIPE, effort, say)
    longer = _curve(fourteen_cards, PIPEDEC, effort, say)
    low, high = facts["pipedec"]["speedup_over_pp_14_stage_range"]
    plain = plain_ms(fourteen_cards)
    ends = solve(longer, plain / low), solve(longer, plain / high)
    six = tuple(float(level) for level in np.linspace(*ends, 6))
    return Levels(solve(stepped, facts["specpipe"]["specpipe_tbt_ms_humaneval_x"]), six)


def _curve(
    cluster: Cluster, settings: Sequence[str], effort: Effort, say: Say
) -> dict[float, float]:
    """Time between tokens against levels."""
    points = [
        Point(
            f"{level}",
            SCENARIO,
            (*cluster.settings(), *settings, acceptance(level), *effort.settings()),
        )
        for level in LEVELS
    ]
    outcomes = simulate_points(points, say, "calibrating")
    return {level: outcomes[f"{level}"].metrics[METRIC].mean for level in LEVELS}


def solve(times: Mapping[float, float], wanted_ms: float) -> float:
    """Where the parabola through times against levels has this value, within the levels.

    >>> round(solve({0.6: 90.0, 0.7: 80.0, 0.8: 70.0, 0.9: 60.0}, 65.0), 3)
    0.85
    """
    levels = np.array(list(times))
    fine = np.linspace(levels.min(), levels.max(), 2001)
    curve = np.polyval(np.polyfit(levels, list(times.values()), 2), fine)
    return float(fine[np.abs(curve - wanted_ms).argmin()])
