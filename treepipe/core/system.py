"""What a system is to everyone else: one record of its name, parameters, bounds and needs.

Law of this file: whoever wants to know something of a system asks its record; nobody compares
names. A record is pure data and functions of the parameters, so both worlds, the memory bound,
the planner, the documents and the tests read the same one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from treepipe.core.protocol import Schedule

Block: TypeAlias = Mapping[str, Sequence[Any]]
"""A part of a planner's grid: the product of its keys' values is tried."""


def key(default: Any, help: str, *, least: int | None = None) -> Any:  # noqa: A002
    """A field of a system's parameters: its default, what it means, and its smallest value."""
    return field(default=default, metadata={"help": help, "least": least})


@dataclass(frozen=True)
class Parameters:
    """What every system can be told. A system's own keys are fields of a subclass.

    A subclass may raise ``ValueError`` from ``check`` if its values contradict each other; the
    sentence begins with the key's name.
    """

    prefill_chunk: int = key(64, "longest prompt segment", least=1)

    def check(self) -> None:
        """Raises ``ValueError`` if the values contradict each other."""

    def overruled(self) -> Mapping[str, str]:
        """Keys that the values of other keys leave without effect, each with what does so."""
        return {}

    def candidates(self) -> Mapping[str, int]:
        """By key: so many candidates may be asked for below one node."""
        return {}

    def lengths(self) -> Mapping[str, int]:
        """By key: so many tokens may be drafted in a row."""
        return {}


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a schedule is to work.

    Attributes:
        session: number that every message of the request carries.
        stages: of its pipeline.
        drawn: candidates are draws from the draft's distribution, as the rejection rule needs.
    """

    session: int
    stages: int
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """What a planner's grid may depend on: stages per pipeline, and requests open at once."""

    stages: tuple[int, ...]
    requests: int


def _one_block(load: Load) -> Sequence[Block]:
    return ({},)


def _no_nodes(parameters: Any, stages: int) -> int:
    return 0


def _one_row(parameters: Any, stages: int) -> int:
    return 1


def _no_bound(parameters: Any) -> int | None:
    return None


@dataclass(frozen=True, slots=True)
class System:
    """A decoding schedule with all that others need to know of it.

    Attributes:
        name: as scenarios call it.
        year, source: of the publication, with the section that describes the schedule.
        summary: what it does, in a few words.
        parameters: the dataclass of its keys, with defaults as published.
        make: a fresh schedule for one request.
        tree_tokens: most tree nodes that one request holds in a stage's cache, by stages.
        segment_tokens: most of them in one pass, by stages (fewer never make it less); without
            the prompt.
        scratch_tokens: most scratch nodes in the draft's cache at once, by stages; None: as many
            as ``tree_tokens``.
        drafts: whether it needs a draft at all.
        in_lock_step: its pipeline steps as a whole, with one draft server as its master.
        drawn: it can draft by drawing, as the rejection rule needs.
        chains: its trees never branch, as the adaptive rule needs.
        places: most requests that one pipeline serves at once by itself; None: no bound.
        grid: values that the planner tries where a file names none.
        closed_form: name of the closed form that predicts it, None if there is none.
    """

    name: str
    year: int
    source: str
    summary: str
    parameters: type[Parameters]
    make: Callable[[Any, Seat], Schedule]
    tree_tokens: Callable[[Any, int], int] = _no_nodes
    segment_tokens: Callable[[Any, int], int] = _one_row
    scratch_tokens: Callable[[Any, int], int] | None = None
    drafts: bool = True
    in_lock_step: bool = False
    drawn: bool = False
    chains: bool = False
    places: Callable[[Any], int | None] = _no_bound
    grid: Callable[[Load], Sequence[Block]] = _one_block
    closed_form: str | None = None

    @property
    def keys(self) -> frozenset[str]:
        """Names of the parameters that it reads."""
        return frozenset(field.name for field in dataclasses.fields(self.parameters))

    def most_scratch_tokens(self, parameters: Parameters, stages: int) -> int:
        """Most scratch nodes in the draft's cache at once."""
        return (self.scratch_tokens or self.tree_tokens)(parameters, stages)

    def most_pass_tokens(self, parameters: Parameters, stages: int) -> int:
        """Most rows that one pass computes for one request, its prompt included."""
        return max(self.segment_tokens(parameters, stages), parameters.prefill_chunk)
