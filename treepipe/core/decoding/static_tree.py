"""One static tree per round, decided when all of it is back.

``naive_pp`` (FlowSpec's baseline, section 4.1): the EAGLE-2 tree is cut into one segment more than
there are stages; they flow through the pipeline one behind another, in plain tree order in the
authors' code. With one part it is a tree verified in one batch: ``eagle`` (EAGLE-2 tree under PP),
``specinfer`` (fixed branching), ``chain`` (no branching), and each session of ``starsd``.
"""

from __future__ import annotations

from dataclasses import replace

from treepipe.core.decoding.tree_schedule import TreeSchedule
from treepipe.core.protocol import Command


class StaticTree(TreeSchedule):
    """A schedule that evaluates once per round; the stages run free within it."""

    def _decide(self) -> list[Command]:
        flying = self._flying
        if flying.waiting and len(flying.outstanding) < self._parts:
            flying.nothing_committed()
            return [self._feed(min(self._parameters.segment, flying.waiting))]
        if flying.outstanding:
            flying.nothing_committed()
            return []
        walk = flying.walk()
        assert walk is not None  # the root came back, so at least it is verified
        if self._parameters.cut:
            flying.shortened()
            walk = replace(walk, next_node=None)  # it was drafted, but did not travel
        return self._end_round(walk)
