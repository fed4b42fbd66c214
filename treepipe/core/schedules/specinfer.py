"""SpecInfer's tree under a pipeline, in one batch: so many children per node at each depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.core.decoding.keys import fixed_tree, fixed_tree_tokens
from treepipe.core.decoding.static_tree import StaticTree
from treepipe.core.system import Block, Load, Parameters, Seat, System, key


@dataclass(frozen=True)
class BranchingKeys(Parameters):
    """The tree (SpecInfer, section 6.1, for the default)."""

    branching: tuple[int, ...] = key(
        (1, 1, 3, 1, 1, 1, 1, 1), "children per node at each depth", least=1
    )

    def candidates(self) -> Mapping[str, int]:
        return {"branching": max(self.branching)}


def _make(parameters: BranchingKeys, seat: Seat) -> StaticTree:
    return fixed_tree(parameters.branching, parameters.prefill_chunk, seat)


def _tokens(parameters: BranchingKeys, stages: int) -> int:
    return fixed_tree_tokens(parameters.branching)


def _grid(load: Load) -> Sequence[Block]:
    return ({"branching": ((2, 1, 1), (3, 2, 1, 1), (1, 1, 3, 1, 1, 1, 1, 1))},)


SYSTEMS = (
    System(
        name="specinfer",
        year=2023,
        order=1,
        source="SpecInfer, sections 3 and 6.1",
        summary="SpecInfer's tree under PP, one batch",
        parameters=BranchingKeys,
        make=_make,
        tree_tokens=_tokens,
        segment_tokens=_tokens,
        drawn=True,
        grid=_grid,
    ),
)
