"""How many targets fit on a server's GPUs: with a draft beside each, or one draft for all.

(StarSD, section 4.2, "packing advantage".) Weights, keys and values of one text per target, and a
reserve per process; everything from model and device profiles. Sizes are in MiB.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from statistics import fmean

from treepipe.profiles.library import find_device, find_model
from treepipe.profiles.schema import ModelProfile
from treepipe.results.sheet import Column, Sheet
from treepipe.scenario.footprint import MIB

RESERVE_MIB = 1024
"""Of a process: the runtime's own memory and activations (an assumption)."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and its draft, by their profiles' names."""

    target: str
    draft: str


PAIRS = (
    Pair("vicuna-7b", "eagle-vicuna-7b"),
    Pair("vicuna-13b", "eagle-vicuna-13b"),
    Pair("llama-3.1-8b", "llama-3.2-1b"),
    Pair("qwen-2.5-14b", "qwen-2.5-1.5b"),
)
SERVERS = (("rtx-4090", 4), ("a100", 4))
CONTEXTS = (2048, 8192, 16384)
CONTEXTS_PLOTTED = tuple(range(1024, 32769, 512))


@dataclass(frozen=True, slots=True)
class Packing:
    """What a pair needs with texts of so many tokens.

    Attributes:
        target_mib: a target with its caches.
        colocated_mib: what a draft adds on the target's own device.
        shared_mib: a draft server without its sessions.
        session_mib: what each target adds to the draft server.
    """

    target_mib: float
    colocated_mib: float
    shared_mib: float
    session_mib: float

    @classmethod
    def of(cls, pair: Pair, context: int) -> Packing:
        """A shared EAGLE head keeps its own copy of the embedding and output projection that it
        borrows beside the target."""
        target, draft = find_model(pair.target, "packing"), find_model(pair.draft, "packing")
        session = _cache_mib(draft, context)
        borrowed = 2 * draft.head_parameters * 2 / MIB if draft.eagle else 0.0
        weights = _weights_mib(draft)
        return cls(
            _weights_mib(target) + _cache_mib(target, context) + RESERVE_MIB,
            weights + session,
            weights + borrowed + RESERVE_MIB,
            session,
        )

    def colocated(self, memory_mib: float, devices: int) -> int:
        """Targets if each has a draft beside it.

        >>> Packing(10.0, 2.0, 3.0, 0.5).colocated(24.0, 4)
        8
        """
        return devices * int(memory_mib // (self.target_mib + self.colocated_mib))

    def shared(self, memory_mib: float, devices: int) -> int:
        """Targets if one draft serves all: it takes its place on one device first.

        >>> Packing(10.0, 3.0, 3.0, 0.5).shared(24.0, 4), Packing(10.0, 3.0, 3.0, 0.5).colocated(
        ...     24.0, 4)
        (7, 4)
        """
        elsewhere = (devices - 1) * int(memory_mib // self.target_mib)
        beside = int(
            (memory_mib - self.shared_mib - elsewhere * self.session_mib)
            // (self.target_mib + self.session_mib)
        )
        return elsewhere + beside if beside >= 0 else 0


def gains_of_sharing() -> tuple[float, float]:
    """Shares of the plotted cases: one draft for all packs more targets; it packs fewer."""
    gained = []
    for pair, (device, devices), context in itertools.product(PAIRS, SERVERS, CONTEXTS_PLOTTED):
        packing, memory = Packing.of(pair, context), memory_mib(device)
        gained.append(packing.shared(memory, devices) - packing.colocated(memory, devices))
    return fmean(each > 0 for each in gained), fmean(each < 0 for each in gained)


def memory_mib(device: str) -> float:
    """The memory of a profiled device."""
    memory = find_device(device, "packing").memory_mib
    assert memory is not None, f"{device} states its memory"
    return memory


def _weights_mib(model: ModelProfile) -> float:
    return model.parameters * 2 / MIB


def _cache_mib(model: ModelProfile, context: int) -> float:
    return context * model.layers * model.kv_bytes("float16") / MIB


def packing_sheet(name: str) -> Sheet:
    """Targets that fit, for every pair, server and context."""
    columns = [
        Column("pair"),
        Column("server"),
        Column("tokens of text", shown="d"),
        Column("a draft beside each", "targets", shown="d"),
        Column("one draft for all", "targets", shown="d"),
    ]
    sheet = Sheet(name, "Memory packing (float16)", columns)
    for pair in PAIRS:
        for device, devices in SERVERS:
            for context in CONTEXTS:
                packing, memory = Packing.of(pair, context), memory_mib(device)
                counts = packing.colocated(memory, devices), packing.shared(memory, devices)
                sheet.add(
                    f"{pair.target} + {pair.draft}", f"{devices} x {device}", context, *counts
                )
    return sheet
