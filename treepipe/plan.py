"""A scenario with every name resolved to numbers: what both worlds are started with.

Nothing here reads a file; ``scenario.py`` builds plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from treepipe.protocol import Message, Schedule, Segment
from treepipe.timing import DeviceTimes, LinkTimes

HEADER_BYTES = 64
"""Size that a message's header is counted with, on top of its rows."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A role on a device.

    Attributes:
        name: as metrics and traces show it ("draft0", "pipeline0.stage1").
        times: what its device needs for each kind of work.
        layers: the target's layers it holds (empty for the draft).
    """

    name: str
    times: DeviceTimes
    layers: range = range(0)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request: prompt token ids (for the simulator only their number counts) and its length.

    ``end_of_text`` is a token id, so it means nothing where a simulation's tokens are ranks.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_of_text: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A draft, a pipeline, the links between them, and the schedule to run.

    Attributes:
        new_schedule: session number -> a fresh schedule.
        default_link, links: link times, by (sender, receiver) where they differ.
        row_bytes: bytes of one row's hidden state between stages.
        seed: root of every random stream.
    """

    name: str
    draft: Placed
    stages: tuple[Placed, ...]
    new_schedule: Callable[[int], Schedule]
    requests: tuple[RequestSpec, ...]
    default_link: LinkTimes
    links: Mapping[tuple[str, str], LinkTimes] = field(default_factory=dict)
    row_bytes: int = 0
    seed: int = 0

    @property
    def devices(self) -> tuple[str, ...]:
        return (self.draft.name, *(stage.name for stage in self.stages))

    def link(self, sender: str, receiver: str) -> LinkTimes:
        return self.links.get((sender, receiver), self.default_link)


def message_bytes(message: Message, row_bytes: int) -> int:
    """Bytes on a link: hidden states and ids per row, or one index per retained node."""
    if isinstance(message, Segment):
        return HEADER_BYTES + len(message.tokens) * (row_bytes + 8)
    return HEADER_BYTES + 4 * len(message.retained or ())
