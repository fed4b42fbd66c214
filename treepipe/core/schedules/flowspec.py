"""FlowSpec (``flowspec``) and its two baselines, ``naive_pp`` and ``pruned_pp``.

FlowSpec, section 3: whenever a segment is back, walk the verified nodes, commit what is accepted,
prune everywhere, and feed freshly drafted nodes as the next segment. Pruned PP is the same without
expansion. One segment or marker returns per step and one is fed per step, and each step is closed
by a word to all stages. Naive PP decides nothing before all of the tree is back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from treepipe.core.decoding.drafting import Growth, TreeDraft
from treepipe.core.decoding.keys import TREES, SegmentKeys, TreeKeys, scratch_of_tree, tree_grid
from treepipe.core.decoding.tree_schedule import StaticTree, TreeParameters, TreeSchedule
from treepipe.core.protocol import Command
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, ScheduleContext, System


@dataclass(frozen=True, slots=True)
class Expansion:
    """The refill of the pipeline in FlowSpec (section 3.4, appendix A.1 for the defaults).

    Attributes:
        growth: growth of the tree that context-aware expansion drafts at the new root whenever
            tokens were committed (``d_exp`` in it).
        size: number of its best nodes that are taken.
        score_aware: whether to extend the last drafted tree when nothing was committed.
        score_aware_size, score_aware_depth: its new nodes (``L_se``) and further passes (``d_se``).
    """

    growth: Growth
    size: int = 64
    score_aware: bool = False
    score_aware_size: int = 48
    score_aware_depth: int = 1


class Continuous(TreeSchedule):
    """A schedule that evaluates every returned segment at once; ``expansion`` None is Pruned PP."""

    lock_step = True

    def __init__(
        self,
        session: int,
        prefill_chunk: int,
        parameters: TreeParameters,
        parts: int,
        expansion: Expansion | None,
    ) -> None:
        super().__init__(session, prefill_chunk, parameters, parts)
        self._expansion = expansion

    def _decide(self) -> list[Command]:
        flying = self._flying
        walk = flying.walk()
        if walk is None:
            flying.nothing_committed()
            go_on = [flying.announce(None, 0, lock_step=True)] if self.lock_step else []
            return [*go_on, *self._refill([])]
        if walk.next_node is None:
            return self._end_round(walk)
        commands = flying.commit(walk)
        if self.done:
            flying.record_round()
            return commands
        tokens = [*(flying.tree.tokens[node] for node in walk.accepted[1:]), walk.next_token]
        kept = flying.tree.subtree(walk.next_node)
        word = flying.prune(walk, kept, lock_step=self.lock_step)
        return [word, *commands, *self._refill(tokens)]

    def _refill(self, committed: list[int]) -> list[Command]:
        """Expand the tree below ``committed`` tokens if the schedule does, then feed the rest."""
        expansion = self._expansion
        if expansion is not None and committed:
            return self._start_draft(expansion.growth)
        if expansion is not None and expansion.score_aware and not committed:
            assert self._base is not None  # drafted at this very root
            if not self._base.ended:
                return self._extend(self._base, expansion)
        return self._feed_rest()

    def _extend(self, base: TreeDraft, expansion: Expansion) -> list[Command]:
        base.extend(expansion.score_aware_depth)
        self._draft = base
        return [self._next_pass(base)]

    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        self._append_best(draft)
        self._base = draft
        return self._feed_rest()

    def _append_best(self, draft: TreeDraft, path: Sequence[int] = ()) -> None:
        """Append a new draft's best nodes below ``path``, or the best that the last one has got
        since ("the top-L_se nodes ... among the remaining ones", section 3.4)."""
        assert self._expansion is not None  # nothing else drafts within a round
        size, order = self._expansion.size, self._parameters.score_order
        if draft is self._base:
            size, order = self._expansion.score_aware_size, True
        self._flying.append(*draft.best_tree(size, order, path))

    def _feed_rest(self) -> list[Command]:
        """Feed all waiting nodes as one segment (``L_exp = -1``); without any, a marker."""
        return [self._feed(self._flying.waiting)]


@dataclass(frozen=True)
class NaiveKeys(SegmentKeys):
    """Keys of the baseline Naive PP, whose tree the authors' code cuts in plain tree order."""

    score_order: bool = key(False, "score-based segmentation; false: in tree order")


@dataclass(frozen=True)
class RefillKeys(SegmentKeys):
    """Keys of the tree that context-aware expansion drafts."""

    expand_size: int = key(64, "L_exp, nodes of an expansion", least=1)
    expand_depth: int = key(6, "d_exp, passes of an expansion behind catch-up", least=0)

    @property
    def expansion(self) -> Expansion:
        return Expansion(Growth.dynamic(self.top_k, self.expand_depth), self.expand_size)

    @property
    def drafts_ahead(self) -> bool:
        return True


@dataclass(frozen=True)
class ScoreKeys(RefillKeys):
    """Keys of score-aware expansion beside it (section 3.4), as large as in appendix A.1."""

    score_aware: bool = key(False, "expand when nothing was committed")

    @property
    def expansion(self) -> Expansion:
        return replace(super().expansion, score_aware=self.score_aware)


def _naive(parameters: SegmentKeys, context: ScheduleContext) -> StaticTree:
    chunk = parameters.prefill_chunk
    return StaticTree(context.session, chunk, parameters.tree(context), context.stages + 1)


def _pruned(parameters: SegmentKeys, context: ScheduleContext) -> Continuous:
    chunk = parameters.prefill_chunk
    return Continuous(context.session, chunk, parameters.tree(context), context.stages + 1, None)


def _flowspec(parameters: ScoreKeys, context: ScheduleContext) -> Continuous:
    tree, chunk = parameters.tree(context), parameters.prefill_chunk
    return Continuous(context.session, chunk, tree, context.stages + 1, parameters.expansion)


def _tree_tokens(parameters: TreeKeys, stages: int) -> int:
    return parameters.tree_size + 1


def _naive_segment_tokens(parameters: SegmentKeys, stages: int) -> int:
    """Bound a segment's nodes; ``split`` makes the last segments a node longer."""
    return min(parameters.segment_tokens + 1, parameters.tree_size + 1)


def _pruned_segment_tokens(parameters: SegmentKeys, stages: int) -> int:
    """Bound a segment's nodes; the nodes behind a round's first segments leave at once."""
    rest = parameters.tree_size + 1 - (stages + 1) * parameters.segment_tokens
    return max(_naive_segment_tokens(parameters, stages), rest)


def _most_expansion(parameters: RefillKeys, stages: int) -> int:
    """Bound the nodes that a tree gains at once after it was first fed.

    Score-aware expansion takes the best of a draft that grows with every step without a commit, of
    which there are at most as many as segments under way; deeper nodes may displace all others.
    """
    expansion = parameters.expansion
    return expansion.size + (stages + 1) * expansion.score_aware_size * expansion.score_aware


def refilled_tree_tokens(parameters: RefillKeys, stages: int) -> int:
    """Bound a tree's nodes: a round's first tree, and an expansion for every segment under way."""
    return parameters.tree_size + 1 + (stages + 3) * _most_expansion(parameters, stages)


def refilled_segment_tokens(parameters: RefillKeys, stages: int) -> int:
    """Bound a segment's nodes: one of the round's tree, or its waiting nodes and an expansion."""
    rest = parameters.tree_size + 1 - (stages + 1) * parameters.segment_tokens
    whole = max(rest, 0) + _most_expansion(parameters, stages)
    return max(_naive_segment_tokens(parameters, stages), whole)


def refilled_scratch_tokens(parameters: RefillKeys, stages: int) -> int:
    """Bound the draft's scratch nodes: a round's tree or an expansion, and extensions, one per step
    without a commit (few follow each other)."""
    expansion, passes = parameters.expansion, max(parameters.tree_depth, parameters.expand_depth)
    passes += (stages + 1) * expansion.score_aware_depth * expansion.score_aware
    return parameters.top_k * passes


def refilled_grid(load: Load) -> Sequence[Block]:
    """Combine trees with expansions a little smaller, as in the paper's testbed (80 and 64)."""
    return tuple(
        {
            "tree_size": (size,),
            "tree_depth": (depth,),
            "expand_size": (size * 4 // 5,),
            "expand_depth": (2, depth),
            "segment_tokens": (16,),
            "score_aware": (False, True),
        }
        for size, depth in TREES
    )


SYSTEMS = (
    System(
        name="naive_pp",
        year=2025,
        order=4,
        source="FlowSpec, section 4.1",
        summary="FlowSpec's baseline: the tree in segments, decided when all of it is back",
        parameters=NaiveKeys,
        make=_naive,
        tree_tokens=_tree_tokens,
        segment_tokens=_naive_segment_tokens,
        scratch_tokens=scratch_of_tree,
        grid=tree_grid,
    ),
    System(
        name="pruned_pp",
        year=2025,
        order=5,
        source="FlowSpec, section 4.1",
        summary="FlowSpec's baseline: pruned in flight, nothing fed behind",
        parameters=SegmentKeys,
        make=_pruned,
        tree_tokens=_tree_tokens,
        segment_tokens=_pruned_segment_tokens,
        scratch_tokens=scratch_of_tree,
        grid=tree_grid,
    ),
    System(
        name="flowspec",
        year=2025,
        order=6,
        source="FlowSpec, section 3",
        summary="FlowSpec",
        parameters=ScoreKeys,
        make=_flowspec,
        tree_tokens=refilled_tree_tokens,
        segment_tokens=refilled_segment_tokens,
        scratch_tokens=refilled_scratch_tokens,
        grid=refilled_grid,
    ),
)
