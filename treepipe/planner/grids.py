"""Default grids: which values of a schedule's parameters are tried where a file names none.

A schedule's grid is a list of blocks; a block is the product of its keys' values. So parameters
that only make sense together (a tree and its expansion) are kept together.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from treepipe.core.schedules import systems
from treepipe.core.system import Block, Load
from treepipe.scenario.scenario import Scenario


def default_grid(schedule: str, scenario: Scenario) -> Sequence[Block]:
    """Args: ``scenario``: whose stages and requests the values suit."""
    stages = tuple(sum(s.count for s in pipeline.stages) for pipeline in scenario.pipelines)
    workload = scenario.workload
    load = Load(stages, min(workload.concurrency, workload.requests))
    return systems()[schedule].grid(load)


def batches(schedule: str, scenario: Scenario) -> dict[str, Sequence[Any]]:
    """Values of ``serving.batch`` where the file does not give it: 1 as the papers have it, and
    what fills the stages, if requests can meet there at all."""
    workload = scenario.workload
    alone = workload.arrivals is None and min(workload.concurrency, workload.requests) == 1
    if alone or systems()[schedule].in_lock_step or "batch" in scenario.serving.model_fields_set:
        return {}
    return {"serving.batch": (1, "auto")}


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
