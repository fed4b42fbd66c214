"""The GPU servers of PipeDec and SpecPipe (same authors, same cards) as scenarios.

Law of this file: which card holds which layers, what a pass costs there, and which link lies
between; which schedule runs on them is the studies' matter. Stage times are those of a measured
layer of Llama 3.1 8B, scaled by roofline times to a layer of the 70B (``profiles/service.py``), and
what the authors' software adds per layer, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from treepipe.physics.timing import TimeTable
from treepipe.profiles.library import find_device, find_model, shape_of
from treepipe.profiles.schema import Hardware
from treepipe.profiles.service import ServedModel, ServiceTimes

SCENARIO = Path(__file__).parent / "cluster.toml"
TARGET = "llama-3.1-70b"
CONTEXT = 512
"""Tokens in the caches while the stages work; between 0 and 2,000 a pass changes by 3 %."""
MOST_TOKENS = 2048
INSIDE = {"latency_ms": 0.03, "bandwidth_mbit_s": 80_000.0}
"""Between cards of one server: PCIe 4.0 through the host's memory."""
PRUNE_MS = 5.0
DRAFT = "llama-3.2-1b"


@dataclass(frozen=True, slots=True)
class Card:
    """A stage's device.

    Attributes:
        server: number of the server it sits in.
    """

    device: str
    layers: int
    server: int = 0


@dataclass(frozen=True, slots=True)
class Cluster:
    """A pipeline of cards, the draft's server, and what the authors' software adds.

    Attributes:
        overhead_ms: by device, per layer and pass, on top of the profiled time.
        draft_ms: a draft pass of so many rows.
        prune_ms: of a stage, per word.
    """

    cards: tuple[Card, ...]
    overhead_ms: Mapping[str, float]
    draft_ms: Mapping[int, float]
    prune_ms: float = PRUNE_MS

    def settings(self) -> tuple[str, ...]:
        """As ``--set`` takes them, on top of ``SCENARIO``."""
        return (
            f"drafts.0.device={{ draft_ms = {_table(self.draft_ms)} }}",
            f"pipelines=[{{ stages = [{', '.join(self._stages())}] }}]",
            f"links.pairs=[{', '.join(self._links())}]",
        )

    def stage_ms(self, tokens: int) -> list[float]:
        """Of every stage, for so many rows."""
        return [TimeTable(table)(tokens) for table in self._tables()]

    def slowest_ms(self, width: int) -> float:
        """Of a step whose layers have ``width`` rows; the last stage has only the root left."""
        *stages, _ = self.stage_ms(width)
        return max(*stages, self.stage_ms(1)[-1])

    def _tables(self) -> list[dict[int, float]]:
        last = len(self.cards) - 1
        return [
            {n: ms + self.overhead_ms[card.device] * card.layers for n, ms in profiled.items()}
            for number, card in enumerate(self.cards)
            for profiled in [pass_ms(card.device, card.layers, number == last)]
        ]

    def _stages(self) -> list[str]:
        return [
            f"{{ layers = {card.layers}, "
            f"device = {{ stage_ms = {_table(table)}, prune_ms = {self.prune_ms} }} }}"
            for card, table in zip(self.cards, self._tables(), strict=True)
        ]

    def _links(self) -> list[str]:
        """Between neighbours in one server; all others take the network."""
        link = ", ".join(f"{key} = {value}" for key, value in INSIDE.items())
        return [
            f'{{ ends = ["pipeline0.stage{n}", "pipeline0.stage{n + 1}"], {link} }}'
            for n, (a, b) in enumerate(zip(self.cards, self.cards[1:], strict=False), 1)
            if a.server == b.server
        ]


def one_server() -> tuple[Card, ...]:
    """SpecPipe's: eight RTX 3090 with ten layers each."""
    return (Card("rtx-3090", 10),) * 8


def two_servers() -> tuple[Card, ...]:
    """SpecPipe's: four RTX 3090, then four RTX 4090, with ten layers each."""
    return (*(Card("rtx-3090", 10, 0),) * 4, *(Card("rtx-4090", 10, 1),) * 4)


def fourteen() -> tuple[Card, ...]:
    """PipeDec's (section 4.1): RTX 3090; the two linear layers count among the five of two cards,
    or there would be 82 layers."""
    return (
        Card("rtx-3090", 4, 0),
        *(Card("rtx-3090", 6, 0),) * 7,
        *(Card("rtx-3090", 6, 1),) * 5,
        Card("rtx-3090", 4, 1),
    )


def twenty_one() -> tuple[Card, ...]:
    """PipeDec's (section 4.1): 14 RTX 3090, 4 RTX 4090, 3 L40; linear layers as in ``fourteen``."""
    return (
        Card("rtx-3090", 2, 0),
        *(Card("rtx-3090", 4, 0),) * 7,
        *(Card("rtx-3090", 4, 1),) * 6,
        *(Card("rtx-4090", 4, 2),) * 4,
        *(Card("l40", 4, 3),) * 2,
        Card("l40", 2, 3),
    )


def draft_table(model: str, alone_ms: float) -> dict[int, float]:
    """On an L40: ``alone_ms`` as published for one row, until the card itself takes longer."""
    service, served = _service("l40"), _served(model)
    table = service.draft(served)
    return {n: max(alone_ms, table(n, CONTEXT)) for n in table.points if n <= MOST_TOKENS}


@lru_cache(maxsize=64)
def pass_ms(device: str, layers: int, head: bool) -> Mapping[int, float]:
    """Milliseconds against tokens, as profiled, of so many layers and the output projection."""
    service, model = _service(device), _served(TARGET)
    stage, evaluation = service.stage(model, layers), service.evaluation(model)
    knots = [n for n in stage.points if n <= MOST_TOKENS]
    return {n: stage(n, CONTEXT) + (evaluation(n) if head else 0.0) for n in knots}


def unscaled_ms(device: str, stages: int) -> float:
    """A token through stages with nothing added to the profiled times."""
    layers = 80 // stages
    return (stages - 1) * pass_ms(device, layers, False)[1] + pass_ms(device, layers, True)[1]


def _service(device: str) -> ServiceTimes:
    hardware = find_device(device, __name__)
    assert isinstance(hardware, Hardware)
    return ServiceTimes(device, hardware, shape_of, [])


def _served(model: str) -> ServedModel:
    shape = find_model(model, __name__)
    return ServedModel(model, shape, shape.dtype)


def _table(times: Mapping[int, float]) -> str:
    return "{ " + ", ".join(f"{n} = {ms:.4f}" for n, ms in times.items()) + " }"
