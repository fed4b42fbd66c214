"""Default grids: which values of a schedule's parameters are tried where a file names none.

A schedule's grid is a list of blocks; a block is the product of its keys' values. So parameters
that only make sense together (a tree and its expansion) are kept together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from treepipe.scenario.schema import Scenario, ScheduleName

Block: TypeAlias = Mapping[str, Sequence[Any]]
TREES = ((20, 4), (48, 5), (80, 6))
"""Nodes and depth; the last one is FlowSpec's (section 5)."""
LAYERS = ((1, 1), (4, 4), (8, 8), (16, 8), (32, 16), (64, 16))
"""Width and children: a chain, PipeDec's 32 x 16 and SpecPipe's 64 among them."""


def default_grid(schedule: ScheduleName, scenario: Scenario) -> tuple[Block, ...]:
    """Args: ``scenario``: whose stages and requests the values suit."""
    if schedule == "pp":
        return ({},)
    if schedule in ("chain", "dsd", "starsd"):
        chains: Block = {"gamma": (1, 2, 3, 4, 6, 8)}
        trees: Block = {"branching": ((2, 2, 1, 1), (4, 2, 1, 1))}
        return (chains, trees) if schedule == "starsd" else (chains,)
    if schedule == "specinfer":
        return ({"branching": ((2, 1, 1), (3, 2, 1, 1), (1, 1, 3, 1, 1, 1, 1, 1))},)
    if schedule in ("eagle", "naive_pp", "pruned_pp"):
        return tuple({"tree_size": (size,), "tree_depth": (depth,)} for size, depth in TREES)
    if schedule in ("flowspec", "flowspec_free"):
        return tuple(_flowspec(size, depth) for size, depth in TREES)
    return tuple(_layers(schedule, scenario))


def settings_of(blocks: Sequence[Block], instead: Block) -> list[dict[str, Any]]:
    """All combinations, each once.

    Args:
        instead: values that replace a key's in the blocks that have it; a key that none has is
            added to all.

    >>> settings_of([{"a": (1, 2)}, {"a": (3,), "b": (4,)}], {"a": (5,), "c": (6,)})
    [{'a': 5, 'c': 6}, {'a': 5, 'b': 4, 'c': 6}]
    """
    known = {key for block in blocks for key in block}
    found: list[dict[str, Any]] = []
    for block in blocks:
        taken = {key: values for key, values in instead.items() if key in block or key not in known}
        whole = {**block, **taken}
        for values in itertools.product(*whole.values()):
            settings = dict(zip(whole, values, strict=True))
            if settings not in found:
                found.append(settings)
    return found


def _flowspec(size: int, depth: int) -> Block:
    """The expansion is a little smaller than the tree, as in the paper's testbed (80 and 64)."""
    return {
        "tree_size": (size,),
        "tree_depth": (depth,),
        "expand_size": (size * 4 // 5,),
        "expand_depth": (2, depth),
        "segment_tokens": (16,),
    }


def _layers(schedule: ScheduleName, scenario: Scenario) -> Iterator[Block]:
    """PipeDec is the one with groups and a central scheduler (its section 3)."""
    groups = [
        size
        for size in (1, 2)
        if all(sum(s.count for s in p.stages) % size == 0 for p in scenario.pipelines)
    ]
    further: dict[str, Sequence[Any]] = {}
    if schedule == "pipedec":
        further = {"group_size": groups, "central_transfers": (True,)}
    if schedule == "specpipe_db":
        asked = min(scenario.workload.concurrency, scenario.workload.requests)
        further = {"batch": sorted({max(1, asked // 2), asked})}
    for width, children in LAYERS:
        yield {"width": (width,), "children": (children,), **further}
