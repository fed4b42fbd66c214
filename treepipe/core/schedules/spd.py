"""Speculative pipeline decoding (SPD): a chain that grows by one token per step of the pipeline.

(SPD, arXiv 2605.30852, and the code in its repository.) Every stage holds one token. While they
compute, the draft proposes the next one, and the last stage's result judges the oldest: a hit costs
a step, a miss clears the pipeline and costs a step per stage. These are the steps of ``layered.py``
with layers of one node. The draft server projects, evaluates and decides.

SPD's draft is a head that reads states of tokens that are still on their way through the pipeline.
Stages send them with their reports of the step, one state per anchor layer. Other drafts, which the
executor runs, read tokens alone, and drop the states.
"""

from __future__ import annotations

from dataclasses import dataclass

from treepipe.core.decoding.layered import Layered, LayeredKeys, layered_system
from treepipe.core.registry import key
from treepipe.core.system import Ends, Parameters, ScheduleContext, defaults_only

ANCHORS = (0, 1, 3, 6)
"""The anchor layers, in units of a stage's layers (``default_aggr_feature_bound``); the last layer
is one, too, but its state travels with the result."""


@dataclass(frozen=True)
class SpdKeys(Parameters):
    """Keys of SPD; the tree's shape has none."""

    ends: Ends = key("draft", "where embedding, projection, verification and decision are")
    anchors: bool = key(True, "stages send the states of SPD's anchor layers to the draft")

    width = children = layers_per_step = 1
    draft_reuse = True

    @property
    def drafts_ahead(self) -> bool:
        return True

    def reported_states(self, stages: int) -> tuple[int, ...]:
        held = [sum(anchor == stage for anchor in ANCHORS) for stage in range(stages)]
        return tuple(held) if self.anchors else super().reported_states(stages)


def _make(parameters: SpdKeys, context: ScheduleContext) -> Layered:
    layers = LayeredKeys(parameters.prefill_chunk, width=parameters.width, children=1)
    return Layered(context.session, parameters.prefill_chunk, layers, drawn=context.drawn)


def _tree_tokens(parameters: SpdKeys, stages: int) -> int:
    """Count a node for every stage, the root, and those that are drafted or under way."""
    return stages + 4


def _segment_tokens(parameters: SpdKeys, stages: int) -> int:
    return 1


SYSTEMS = (
    layered_system(
        name="spd",
        year=2026,
        order=10,
        source="SPD, arXiv 2605.30852",
        summary="one token per step, in every stage",
        parameters=SpdKeys,
        make=_make,
        tree_tokens=_tree_tokens,
        segment_tokens=_segment_tokens,
        drawn=True,
        chains=True,
        grid=defaults_only,
        closed_form="spd",
    ),
)
