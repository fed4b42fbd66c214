"""N nodes and their links as a scenario, in units of t0, and the closed forms for them.

DSD, section 3: t0 is a pass's compute on all nodes, t1 a link's latency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scipy.optimize import brentq

from treepipe.progress import Progress
from treepipe.results.metrics import METRIC
from treepipe.results.sheet import Sheet, columns
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.theory import dsd
from treepipe.sim.theory.closed_form import closed_form
from treepipe.sim.theory.tokens import committed
from treepipe.studies.reproduction import published, simulated

SCENARIO = Path(__file__).with_name("testbed.toml")
T0_MS = 20.0


@dataclass(frozen=True, slots=True)
class Network:
    """Links with jitter and losses, which the paper assumes constant.

    Attributes:
        jitter: scale of a half-normal delay on top of each link's latency, as a share of it.
        loss: probability that a message is lost and sent again, ``again`` latencies later.
    """

    jitter: float = 0.0
    loss: float = 0.0
    again: float = 2.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A place on the map: N and t1 / t0.

    Attributes:
        beta: acceptance probability of a drafted token.
        gamma: drafted tokens of a window.
        draft, window: time of a draft pass, and of a pass over gamma + 1 tokens, over t0.
    """

    nodes: int
    ratio: float
    beta: float
    gamma: int = 5
    draft: float = 0.1
    window: float = 1.05
    network: Network = Network()

    @property
    def label(self) -> str:
        return f"n={self.nodes}/ratio={self.ratio:g}"

    @property
    def ways(self) -> float:
        """(N - 1) t1 / t0, the only dependence of the paper's formula on N and t1."""
        return (self.nodes - 1) * self.ratio

    @property
    def tokens(self) -> float:
        """k: tokens of a window, with the target's own one."""
        return committed(self.beta, self.gamma)

    @property
    def gain(self) -> float:
        """The paper's gain, with all drafting hidden."""
        window = dsd.speculative_ms(0.0, self.window, self.nodes, self.ratio)
        return dsd.gain(self.tokens, self.nodes, 1.0, self.ratio, window)

    @property
    def expected_gain(self) -> float:
        """The gain over constant links, with the drafting after a miss, which is not hidden."""
        found = closed_form(replace(self, network=Network()).scenario("dsd"))
        return self.plain_ms / found.metrics[METRIC]

    @property
    def plain_ms(self) -> float:
        """Time of a token of plain decoding over constant links."""
        return dsd.plain_ms(1, self.nodes, T0_MS, self.ratio * T0_MS)

    def scenario(self, schedule: str, **changes: Any) -> Scenario:
        """Return the scenario of these nodes, with further changes."""
        share, latency = T0_MS / self.nodes, self.ratio * T0_MS
        stage_ms = {1: share, self.gamma + 1: self.window * share}
        ends = ("draft0", "pipeline0.stage1"), (f"pipeline0.stage{self.nodes}", "draft0")
        link = {"latency_ms": latency, "jitter_ms": self.network.jitter * latency}
        if self.network.loss:
            again = self.network.again * latency
            link |= {"loss": self.network.loss, "retransmit_ms": again}
        made = {
            "schedule.name": schedule,
            "schedule.gamma": self.gamma,
            "target.layers": self.nodes,
            "drafts.0.device": {"draft_ms": {1: self.draft * T0_MS}},
            "pipelines.0.stages": [{"device": {"stage_ms": stage_ms}, "count": self.nodes}],
            "links.default": link,
            "links.pairs": [{"ends": list(each), "latency_ms": 0.0} for each in ends],
            "acceptance.beta": self.beta,
        }
        return Scenario.load(SCENARIO).with_(**{**made, **changes})


def accepted_for(gain: float, cell: Cell) -> float:
    """Return β with which the cell's expected gain is ``gain``."""
    found: float = brentq(
        lambda beta: replace(cell, beta=beta).expected_gain - gain, 0.05, 0.99, xtol=1e-4
    )
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """A simulated cell: gain over plain decoding, and the share of communication saved."""

    gain: Interval
    saving: Interval


def simulate_cells(
    cells: Sequence[Cell], runs: int, tokens: int, say: Progress
) -> Mapping[str, Measured]:
    """Simulate the cells; results by label. Plain decoding over constant links is computed."""
    effort = {"runs": runs, "workload.new_tokens": tokens}
    found = simulated(
        {
            f"{cell.label}/{schedule}": cell.scenario(schedule, **effort)
            for cell in cells
            for schedule in (("dsd", "pp") if cell.network != Network() else ("dsd",))
        },
        say,
    )
    measured = {}
    for cell in cells:
        metrics, plain = found[f"{cell.label}/dsd"].metrics, found.get(f"{cell.label}/pp")
        plain_ms = cell.plain_ms if plain is None else plain.metrics[METRIC].mean
        gain = metrics[METRIC].inverse(plain_ms)
        measured[cell.label] = Measured(gain, metrics["tokens_per_round"].inverse().complement())
    return measured


# --- the printed claims ---------------------------------------------------------------------------

_CLAIMED = published()["dsd"]["best_region"]
REGION_NODES: tuple[int, int] = tuple(_CLAIMED["nodes"])
REGION_RATIO: tuple[float, float] = tuple(_CLAIMED["t1_over_t0"])
"""Borders of the claimed best region in t1 / t0; the paper excludes them."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A row of table 3 as printed, and what follows from it by the paper's own formula."""

    nodes: int
    ratio: float
    saving: float

    @property
    def ways(self) -> float:
        """(N - 1) t1 / t0."""
        return (self.nodes - 1) * self.ratio

    @property
    def tokens_of_communication(self) -> float:
        """k if the saving is a share of communication: (k - 1) / k.

        >>> Saving(4, 5.0, 0.75).tokens_of_communication
        4.0
        """
        return 1 / (1 - self.saving)

    @property
    def tokens_of_time(self) -> float:
        """k if the saving is a share of all time: (k - 1) / k of x / (1 + x), x = (N - 1) t1 / t0.

        >>> round(Saving(4, 5.0, 0.75).tokens_of_time, 6)
        5.0
        """
        return 1 / (1 - self.saving * (1 + self.ways) / self.ways)

    @property
    def gain(self) -> float:
        """The gain of a window of ``tokens_of_communication`` tokens by the paper's formula."""
        return Cell(self.nodes, self.ratio, 0.0).gain * self.tokens_of_communication


def table3() -> list[Saving]:
    rows = published()["dsd"]["table3"]
    return [Saving(row["nodes"], row["t1_over_t0"], row["saving"]) for row in rows]


def table3_sheet(name: str) -> Sheet:
    """Show printed savings, the tokens per window that they imply, and the resulting gain."""
    heads = columns(
        *("N|d", "t1/t0|g", "saving, printed|.0%", "(N - 1)/N|.1%"),
        *("k, as a share of communication|.2f", "k, as a share of all time|.2f"),
        "gain with the first k|.2f",
    )
    title = "Table 3 by its own formula: the tokens k of a window it asks for"
    sheet = Sheet(title, heads, name=name)
    for row in table3():
        ks = row.tokens_of_communication, row.tokens_of_time
        above = (row.nodes - 1) / row.nodes
        sheet.add(row.nodes, row.ratio, row.saving, above, *ks, row.gain)
    return sheet


def in_region(cell: Cell) -> bool:
    """Return whether the claim counts the cell among the best (its borders in t1/t0 included)."""
    nodes, ratio = REGION_NODES, REGION_RATIO
    return nodes[0] <= cell.nodes <= nodes[1] and ratio[0] <= cell.ratio <= ratio[1]


def region_fields(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return expected gains inside the claimed region, below it, and the best one beyond it."""
    gains = {cell: cell.expected_gain for cell in cells}
    inside = [gain for cell, gain in gains.items() if in_region(cell)]
    beyond = {
        cell.label: gain
        for cell, gain in gains.items()
        if cell.nodes > REGION_NODES[1] or cell.ratio > REGION_RATIO[1]
    }
    below = [gain for cell, gain in gains.items() if cell.ratio < REGION_RATIO[0]]
    best = max(beyond, key=lambda label: beyond[label])
    named = {"least": min(inside), "most": max(inside), "below": min(below)}
    return {**named, "beyond": beyond[best], "where": best}
