"""Steps that take the most probable nodes of any level (``ours``), beyond SpecPipe and PipeDec.

These feed one level of the tree per step, so a step gives a token at most, and a candidate that was
not among its level's best never comes back. Here the draft makes ``layers_per_step`` passes per
step, each over the most probable nodes that it has not read, and a step feeds the most probable
candidates of any level: several levels below a sure path, and, once the root has moved, siblings
that surer paths had displaced. Where a stage waits for its weights, a pass of a hundred rows takes
as long as one of a single row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from treepipe.core.decoding.layered import Layered, LayeredKeys, layered_system
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, Parameters, ScheduleContext
from treepipe.core.tree import best


@dataclass(frozen=True)
class BestKeys(Parameters):
    """Keys of the steps: ``width`` nodes of each draft pass, and as many rows for each of them."""

    width: int = key(32, "w, most nodes of a layer", least=1)
    children: int = key(16, "c, candidates per node of the deepest layer", least=1)
    layers_per_step: int = key(3, "layers drafted and fed per step", least=1)
    groups: int | tuple[int, ...] = key(
        1, "stages of each group, or the sizes of all groups", least=1
    )

    draft_reuse = True

    def candidates(self) -> Mapping[str, int]:
        return {"children": self.children}

    @property
    def step_tokens(self) -> int:
        return self.width * self.layers_per_step


class BestOfAllLevels(Layered):
    """A request that feeds the best nodes of any level at every step of its pipeline."""

    def _asked(self) -> Sequence[int]:
        """Return the best nodes that the draft has not read, the root alone if it is one."""
        known, scores = self._frontier.candidates, np.asarray(self._flying.tree.scores)
        if known[0] is None:
            return (0,)
        unread = np.asarray([node for node, each in enumerate(known) if each is None], np.intp)
        chosen = best(scores[unread], self._parameters.width)
        return sorted(unread[chosen].tolist())

    def _grow(self) -> None:
        """Append the best candidates: as many as a pass reads while the draft goes on, else all
        that a step takes."""
        tree, known, parameters = self._flying.tree, self._frontier.candidates, self._parameters
        count = parameters.layer_tokens - self._flying.waiting
        if self._layers_left:
            count = min(count, parameters.width)
        read = [(node, *each) for node, each in enumerate(known) if each is not None]
        if count <= 0 or not read:
            return
        nodes = np.asarray([node for node, _, _ in read])
        tokens = np.asarray([drafted.tokens[row] for _, drafted, row in read])
        log_probs = np.asarray([drafted.log_probs[row] for _, drafted, row in read])
        scores = np.asarray(tree.scores)[nodes, None] + log_probs
        above = np.asarray(tree.parents[1:], np.intp)
        taken = np.bincount(above, minlength=len(tree))[nodes, None]
        scores[np.arange(scores.shape[1]) < taken] = -inf  # children of a node come best first
        flat = scores.ravel()
        chosen = best(flat, count)
        chosen = chosen[flat[chosen] > -inf]
        if not len(chosen):
            return
        parents = nodes[chosen // scores.shape[1]]
        picked = tokens.ravel()[chosen].tolist(), parents.tolist()
        self._flying.append_layer(*picked, flat[chosen].tolist())
        self._frontier.grown(parents, flat[chosen])


def _make(parameters: BestKeys, context: ScheduleContext) -> BestOfAllLevels:
    keys = LayeredKeys(
        width=parameters.width,
        children=parameters.children,
        layers_per_step=parameters.layers_per_step,
    )
    made = BestOfAllLevels(context.session, parameters.prefill_chunk, keys)
    made.asks_again = context.independent_levels
    return made


def _tree_tokens(parameters: BestKeys, stages: int) -> int:
    """Count the nodes of a step for every stage, and of those under way."""
    return (stages + 3) * parameters.step_tokens + 1


def _segment_tokens(parameters: BestKeys, stages: int) -> int:
    return parameters.step_tokens


def _grid(load: Load) -> Sequence[Block]:
    """Combine passes that are narrow and many, or wide and few, with PipeDec's groups."""
    groups = [size for size in (1, 2) if size <= min(load.stages)]
    passes = {"width": (16, 32, 64), "children": (16,), "layers_per_step": (1, 2, 3)}
    return ({**passes, "groups": groups},)


SYSTEMS = (
    layered_system(
        name="ours",
        year=2026,
        order=10,
        source="ours",
        summary="the most probable nodes of any level per step",
        parameters=BestKeys,
        make=_make,
        tree_tokens=_tree_tokens,
        segment_tokens=_segment_tokens,
        grid=_grid,
    ),
)
