"""One tree layer per step of a pipeline in lock-step: the common part of PipeDec and SpecPipe.

(PipeDec, section 3; SpecPipe, section 3.) Every group of stages holds one layer; while they
compute, the draft proposes candidates below the deepest one. When the root's layer has passed, the
target's next token is known: a hit keeps its subtree everywhere, the draft's candidates included, a
miss clears all and the token becomes the root of a new tree. Then the tree is extended by the best
remaining candidates, and the first group takes them as its next layer. Each request that shares the
steps with others (SpecPipe-DB) has such a machine of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

from treepipe.core.decoding.frontier import Frontier
from treepipe.core.decoding.in_flight import Walk
from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.errors import ProtocolError
from treepipe.core.protocol import Command, Drafted, DraftPass, Feed, Returned, Started, Stepped
from treepipe.core.registry import key
from treepipe.core.system import Block, Parameters, ScheduleContext, System
from treepipe.core.tree import best


@dataclass(frozen=True)
class LayeredKeys(Parameters):
    """The layers (SpecPipe, section 4.1, for the width; both papers leave ``children`` open).

    Attributes:
        draft_reuse: the draft keeps its computation for surviving nodes, as in the papers; False:
            it runs the whole tree again for every layer, below the context it had when the round
            began, and a layer is chosen before the prune of the step in which it was drafted (the
            public code of FlowSpec, where PipeDec is a baseline).
    """

    width: int = key(16, "w, most nodes of a layer", least=1)
    children: int = key(16, "c, candidates per node of the deepest layer", least=1)
    layers_per_step: int = key(1, "layers drafted and fed per step", least=1)
    groups: int | tuple[int, ...] = key(
        1, "stages of each group, or the sizes of all groups", least=1
    )
    overlapped_pruning: bool = key(True, "stages prune while results travel; false: before")
    draft_reuse: bool = key(True, "the draft keeps its cache between layers")
    central_transfers: bool = key(False, "one transfer per device at a time")
    parallel_prefill: bool = key(
        False, "the draft reads the prompt while the target does; false: afterwards"
    )

    def candidates(self) -> Mapping[str, int]:
        return {"children": self.children}

    @property
    def drafts_ahead(self) -> bool:
        return True

    def frontier(self) -> Frontier:
        return Frontier()

    @property
    def layer_tokens(self) -> int:
        """Maximum number of nodes that are fed in one step."""
        return self.width * self.layers_per_step


LAYERS = ((1, 1), (4, 4), (8, 8), (16, 8), (32, 16), (64, 16))
"""Width and children that a planner tries: a chain, PipeDec's 32 x 16 and SpecPipe's 64 too."""


def _make(parameters: LayeredKeys, context: ScheduleContext) -> Layered:
    """Make a request's schedule; a draft that reads the target's states has to wait for them."""
    parallel = parameters.parallel_prefill and not context.reads_states
    made = Layered(context.session, parameters.prefill_chunk, parameters, parallel=parallel)
    made.asks_again = context.independent_levels
    return made


def _one_request(parameters: LayeredKeys) -> int:
    return 1


def _tree_tokens(parameters: LayeredKeys, stages: int) -> int:
    """Count the nodes of a step's layers for every stage, and of those under way."""
    return (stages + 3) * parameters.layer_tokens + 1


def _segment_tokens(parameters: LayeredKeys, stages: int) -> int:
    return parameters.layer_tokens


def layered_scratch_tokens(parameters: LayeredKeys, stages: int) -> int:
    """Count the tree's nodes; without reuse add the path from where the round began."""
    return _tree_tokens(parameters, stages) * (1 if parameters.draft_reuse else 2)


def layered_grid(further: Block) -> Sequence[Block]:
    """Combine each width with ``further`` values of other keys."""
    return tuple({"width": (w,), "children": (c,), **further} for w, c in LAYERS)


class Layered(TreeDecoding):
    """A request that feeds a layer at every step of its pipeline.

    Attributes:
        asks_again: a draft that had no candidate may have some once the root has moved.
    """

    asks_again = False

    def __init__(
        self,
        session: int,
        prefill_chunk: int,
        parameters: LayeredKeys,
        *,
        parallel: bool = False,
        drawn: bool = False,
    ) -> None:
        """Make a request's schedule.

        Args:
            parallel: the draft reads the prompt with the target.
            drawn: candidates are draws, which layers of one node allow.
        """
        super().__init__(session, prefill_chunk)
        self._parallel, self._drawn = parallel, drawn
        self._chunks: deque[int] = deque()
        self._parameters = parameters
        self._frontier = parameters.frontier()
        self._decoding = self._reading = False
        self._layers_left = 0

    @property
    def in_step(self) -> bool:
        """Whether it takes part in steps: from the first token on (prompts come before)."""
        return self._decoding and not self.done

    @property
    def listens(self) -> bool:
        """Whether the prompt is being read: the draft's passes over it belong to no step."""
        return not self._decoding

    def _start(self, event: Started) -> list[Command]:
        commands = super()._start(event)
        if self._parallel:
            feeds = [command for command in commands if isinstance(command, Feed)]
            self._chunks.extend(len(feed.segment.tokens) for feed in feeds)
            commands += self._read_prompt()
        return commands

    def _read_prompt(self) -> list[Command]:
        """Read the next chunk, as long as the target's, without candidates."""
        if not self._chunks:
            return self._draft() if self._decoding else []
        chunk = tuple(self._pending.unread[: self._chunks.popleft()])
        self._reading = True
        return [self._pending.ask(DraftPass(self._request.ticket(), chunk, (), (), True, 0))]

    def _begin(self, root_token: int) -> list[Command]:
        self._decoding = True
        self._new_tree(root_token)
        return [] if self._pending.under_way else self._draft()

    def _returned(self, event: Returned) -> list[Command]:
        raise ProtocolError("segments of a pipeline in lock-step come back with its step")

    # --- a step ----------------------------------------------------------------------------------

    def _stepped(self, event: Stepped) -> list[Command]:
        """Evaluate the returned segment, prune and extend the tree, feed a layer, and draft.

        In this order: "performing the update after pruning can increase the number of valid nodes
        in the tree" (PipeDec, section 3.3.4), and a level is at hand at every step (SpecPipe,
        section 3.3.1).
        """
        if not self.in_step:
            raise ProtocolError("the request does not take part in the pipeline's steps")
        if self._pending.under_way and self._flying.opened:
            raise ProtocolError("a step ends after the draft's layer is there")
        commands = self._evaluate(event.returned) if event.returned is not None else []
        if self.done:
            return commands
        if self._flying.opened:  # a new round's root is fed alone
            if event.returned is None:
                self._flying.nothing_committed()
            if self._parameters.draft_reuse:
                self._grow()
        if self._flying.waiting:
            commands.append(self._flying.feed(self._flying.waiting, None))
        if not self._pending.under_way:
            commands += self._draft()
        return commands

    def _evaluate(self, event: Returned) -> list[Command]:
        flying = self._flying
        if not flying.take(event):
            return []
        flying.verify(event)
        walk = flying.walk()
        if walk is None:
            flying.nothing_committed()
            return []
        commands = flying.commit(walk)
        if self.done:
            flying.record_round()
            return commands
        if walk.next_node is None:
            return [self._miss(walk), *commands]
        kept = flying.tree.subtree(walk.next_node)
        self._frontier.prune(walk.accepted, kept, flying.tree)
        if self.asks_again:
            self._frontier.ask_again()
        return [flying.prune(walk, kept, lock_step=False), *commands]

    def _miss(self, walk: Walk) -> Command:
        """Keep only the accepted nodes; the emptied segments travel on as markers."""
        self._flying.record_round()
        word = self._flying.announce(walk.accepted, len(walk.accepted), lock_step=False)
        self._new_tree(walk.next_token)
        return word

    def _new_tree(self, root_token: int) -> None:
        self._flying.open_round(root_token)
        self._frontier = self._parameters.frontier()

    # --- drafting --------------------------------------------------------------------------------

    def _draft(self) -> list[Command]:
        self._layers_left = self._parameters.layers_per_step
        return self._next_layer()

    def _next_layer(self) -> list[Command]:
        """Ask the draft about the deepest layer, unless its candidates are known."""
        deepest = self._deepest_layer()
        if self._layers_left and self._is_asked(deepest):
            return [self._pending.ask(self._pass(deepest))]
        return []

    def _is_asked(self, layer: range) -> bool:
        """Whether to ask the draft about a layer: without reuse all except a root alone."""
        if self._frontier.candidates[layer.start] is None:
            return True
        return not self._parameters.draft_reuse and bool(layer.start or self._frontier.moved)

    def _deepest_layer(self) -> range:
        depths = self._flying.tree.depths
        return range(bisect_left(depths, depths[-1]), len(depths))

    def _pass(self, layer: range) -> DraftPass:
        ticket, drawn = self._request.ticket(), self._drawn
        frontier, flying, top_k = self._frontier, self._flying, self._parameters.children
        if not frontier.root_read and (self._parameters.draft_reuse or not frontier.moved):
            frontier.root_read = True
            unread = tuple(self._pending.unread)
            return DraftPass(ticket, unread, (), (), True, top_k, drawn=drawn)
        if self._parameters.draft_reuse:
            keep, accepted = frontier.take_prune()
            tokens, parents = frontier.extend(flying.tree, layer)
            return DraftPass(ticket, (), tokens, parents, False, top_k, keep, accepted, drawn)
        tokens, parents = frontier.whole(flying.tree, layer)
        return DraftPass(ticket, (), tokens, parents, True, top_k)

    def _drafted(self, event: Drafted) -> list[Command]:
        if self._reading:
            self._reading = False
            return self._read_prompt()
        self._frontier.answer(self._deepest_layer(), event)
        self._layers_left -= 1
        if self._layers_left or not self._parameters.draft_reuse:
            self._grow()
        return self._next_layer()

    def _grow(self) -> None:
        """Append the ``width`` best candidates, if any, as the next layer."""
        tree, layer = self._flying.tree, self._deepest_layer()
        if self._frontier.candidates[layer.start] is None:
            return
        tokens, log_probs = self._frontier.offers(layer)
        scores = self._frontier.scores(tree, layer)[:, None] + log_probs
        flat = scores.ravel()
        chosen = best(flat, self._parameters.width)
        chosen = chosen[flat[chosen] > -inf]
        if not len(chosen):
            return
        parents = chosen // scores.shape[1]
        picked = tokens.ravel()[chosen].tolist(), (layer.start + parents).tolist()
        self._flying.append_layer(*picked, flat[chosen].tolist())
        self._frontier.grown(parents, flat[chosen])


layered_system = partial(
    System,
    make=_make,
    tree_tokens=_tree_tokens,
    segment_tokens=_segment_tokens,
    in_lock_step=True,
    places=_one_request,
)
"""The record of a system whose requests have a pipeline's steps to themselves."""
