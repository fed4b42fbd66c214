"""FlowSpec (``flowspec``) and its two baselines, ``naive_pp`` and ``pruned_pp``.

FlowSpec, section 3: whenever a segment is back, walk the verified nodes, commit what is accepted,
prune everywhere, and feed freshly drafted nodes as the next segment. Pruned PP is the same without
expansion. One segment or marker returns per step and one is fed per step, and each step is closed
by a word to all stages. Naive PP decides nothing before all of the tree is back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from treepipe.core.decoding.drafting import Growth, TreeDraft
from treepipe.core.decoding.keys import TREES, SegmentKeys, TreeKeys, scratch_of_tree, tree_grid
from treepipe.core.decoding.static_tree import StaticTree
from treepipe.core.decoding.tree_schedule import TreeParameters, TreeSchedule
from treepipe.core.protocol import Command, Returned
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, Seat, System


@dataclass(frozen=True, slots=True)
class Expansion:
    """How FlowSpec refills the pipeline (section 3.4, appendix A.1 for the defaults).

    Attributes:
        growth: how the tree grows that context-aware expansion drafts at the new root whenever
            tokens were committed (``d_exp`` in it).
        size: how many of its best nodes are taken.
        context_aware: do so.
        score_aware: also extend the last drafted tree when nothing was committed.
        score_aware_size, score_aware_depth: new nodes and further passes of that.
    """

    growth: Growth
    size: int = 64
    context_aware: bool = True
    score_aware: bool = False
    score_aware_size: int = 48
    score_aware_depth: int = 1


class Continuous(TreeSchedule):
    """Evaluates every returned segment at once; ``expansion`` None is Pruned PP."""

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
        self._base: TreeDraft | None = None
        self._base_size = parameters.size
        self._extending = False
        self._steps = 0

    def _step_of(self, index: int) -> int | None:
        return index

    def _drafted_round(self, draft: TreeDraft) -> None:
        self._base, self._base_size = draft, self._parameters.size
        self._steps = self._parts

    def _on_returned(self, event: Returned) -> list[Command]:
        flying = self._flying
        walk = flying.walk()
        if walk is None:
            flying.nothing_committed()
            word = flying.announce(None, 0, lock_step=True)
            return [word, *self._refill(committed=False)]
        if walk.next_node is None:
            return self._end_round(walk, lock_step=True)
        commands = flying.commit(walk)
        if self.done:
            flying.record_round()
            return commands
        word = flying.prune(walk, flying.tree.subtree(walk.next_node), lock_step=True)
        return [word, *commands, *self._refill(committed=True)]

    def _refill(self, *, committed: bool) -> list[Command]:
        """Expand the tree if the schedule does, then feed what has not been fed."""
        expansion = self._expansion
        if expansion is not None and committed and expansion.context_aware:
            self._extending = False
            return self._start_draft(expansion.growth)
        if expansion is not None and expansion.score_aware and not committed:
            assert self._base is not None  # drafted at this very root, with context-aware expansion
            if self._base.ended:
                return self._feed_rest()
            self._extending = True
            self._base.extend(expansion.score_aware_depth)
            self._draft = self._base
            return [self._next_pass(self._draft)]
        return self._feed_rest()

    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        expansion = self._expansion
        assert expansion is not None  # nothing else drafts within a round
        if self._extending:
            self._base_size += expansion.score_aware_size
            self._flying.append(*draft.best_tree(self._base_size, score_order=True))
        else:
            self._base, self._base_size = draft, expansion.size
            tree = draft.best_tree(expansion.size, self._parameters.score_order)
            self._flying.append(*tree)
        return self._feed_rest()

    def _feed_rest(self) -> list[Command]:
        """Everything that waits as one segment (``L_exp = -1``); a marker if nothing does."""
        feed = self._feed(self._flying.waiting, self._steps)
        self._steps += 1
        return [feed]


@dataclass(frozen=True)
class NaiveKeys(SegmentKeys):
    """The authors' code cuts this baseline's tree in plain tree order."""

    score_order: bool = key(False, "score-based segmentation; false: in tree order")


@dataclass(frozen=True)
class RefillKeys(SegmentKeys):
    """The tree that context-aware expansion drafts."""

    expand_size: int = key(64, "L_exp, nodes of an expansion", least=1)
    expand_depth: int = key(6, "d_exp, passes of an expansion behind catch-up", least=0)

    @property
    def expansion(self) -> Expansion:
        """The expansion that is context-aware only."""
        return Expansion(Growth.dynamic(self.top_k, self.expand_depth), self.expand_size)


@dataclass(frozen=True)
class ScoreKeys(RefillKeys):
    """Score-aware expansion beside it (section 3.4, appendix A.1)."""

    score_aware: bool = key(False, "expand when nothing was committed")
    score_aware_size: int = key(48, "L_se, nodes of a score-aware expansion", least=1)
    score_aware_depth: int = key(1, "d_se, passes of a score-aware expansion", least=1)

    def overruled(self) -> Mapping[str, str]:
        scored = ("score_aware_size", "score_aware_depth")
        return {} if self.score_aware else dict.fromkeys(scored, "score_aware = false")

    @property
    def expansion(self) -> Expansion:
        """The expansion that these keys describe."""
        return replace(
            super().expansion,
            score_aware=self.score_aware,
            score_aware_size=self.score_aware_size,
            score_aware_depth=self.score_aware_depth,
        )


@dataclass(frozen=True)
class FlowSpecKeys(ScoreKeys):
    """Both expansions (sections 3.3 and 3.4, appendix A.1)."""

    context_aware: bool = key(True, "expand when tokens were committed")

    def check(self) -> None:
        # Without context-aware expansion no tree is drafted at the roots behind a round's first.
        if self.score_aware and not self.context_aware:
            raise ValueError(
                "score_aware = true needs context_aware = true: a tree is extended only while its "
                "root is the one that it was drafted at"
            )

    def overruled(self) -> Mapping[str, str]:
        unused = () if self.context_aware else ("expand_size", "expand_depth")
        return {**super().overruled(), **dict.fromkeys(unused, "context_aware = false")}

    @property
    def expansion(self) -> Expansion:
        """The expansion that these keys describe."""
        return replace(super().expansion, context_aware=self.context_aware)


def _naive(parameters: SegmentKeys, seat: Seat) -> StaticTree:
    chunk = parameters.prefill_chunk
    return StaticTree(seat.session, chunk, parameters.tree, seat.stages + 1)


def _pruned(parameters: SegmentKeys, seat: Seat) -> Continuous:
    chunk = parameters.prefill_chunk
    return Continuous(seat.session, chunk, parameters.tree, seat.stages + 1, None)


def _flowspec(parameters: FlowSpecKeys, seat: Seat) -> Continuous:
    tree, chunk = parameters.tree, parameters.prefill_chunk
    return Continuous(seat.session, chunk, tree, seat.stages + 1, parameters.expansion)


def _tree_tokens(parameters: TreeKeys, stages: int) -> int:
    return parameters.tree_size + 1


def _naive_segment_tokens(parameters: SegmentKeys, stages: int) -> int:
    """``split`` makes the last segments a node longer."""
    return min(parameters.segment_tokens + 1, parameters.tree_size + 1)


def _pruned_segment_tokens(parameters: SegmentKeys, stages: int) -> int:
    """What waits behind a round's first segments goes out at once."""
    rest = parameters.tree_size + 1 - (stages + 1) * parameters.segment_tokens
    return max(_naive_segment_tokens(parameters, stages), rest)


def _most_expansion(parameters: RefillKeys, stages: int) -> int:
    """Most nodes that a tree gains at once after it was first fed.

    Score-aware expansion takes the best of a draft that grows with every step without a commit, of
    which there are at most as many as segments under way; deeper nodes may displace all others.
    """
    expansion = parameters.expansion
    if not expansion.context_aware:
        return 0
    return expansion.size + (stages + 1) * expansion.score_aware_size * expansion.score_aware


def refilled_tree_tokens(parameters: RefillKeys, stages: int) -> int:
    """What a round begins with, and an expansion for every segment under way."""
    return parameters.tree_size + 1 + (stages + 3) * _most_expansion(parameters, stages)


def refilled_segment_tokens(parameters: RefillKeys, stages: int) -> int:
    """A segment of the round's tree, or what waits of it and an expansion."""
    rest = parameters.tree_size + 1 - (stages + 1) * parameters.segment_tokens
    whole = max(rest, 0) + _most_expansion(parameters, stages)
    return max(_naive_segment_tokens(parameters, stages), whole)


def refilled_scratch_tokens(parameters: RefillKeys, stages: int) -> int:
    """A round's tree or an expansion, and extensions: one per step without a commit, of which
    few follow each other."""
    expansion, passes = parameters.expansion, parameters.tree_depth
    if expansion.context_aware:
        passes = max(passes, parameters.expand_depth)
        passes += (stages + 1) * expansion.score_aware_depth * expansion.score_aware
    return parameters.top_k * passes


def refilled_grid(load: Load) -> Sequence[Block]:
    """The expansion is a little smaller than the tree, as in the paper's testbed (80 and 64)."""
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
        parameters=FlowSpecKeys,
        make=_flowspec,
        tree_tokens=refilled_tree_tokens,
        segment_tokens=refilled_segment_tokens,
        scratch_tokens=refilled_scratch_tokens,
        grid=refilled_grid,
    ),
)
