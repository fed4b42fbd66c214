"""SpecInfer's tree under a pipeline, in one batch: a fixed number of children at each depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from treepipe.core.decoding.drafting import TreeDraft
from treepipe.core.decoding.in_flight import Walk
from treepipe.core.decoding.keys import fixed_tree, fixed_tree_tokens
from treepipe.core.decoding.tree_schedule import StaticTree
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import Command, Drafted, DraftPass
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, Parameters, ScheduleContext, System


@dataclass(slots=True)
class _Guess:
    """A path of the tree in the pipeline that the target may accept.

    Attributes:
        path: tokens of the likeliest path below the root; the draft has read them.
        draft: draft of the tree below the guessed token behind the path; None until that is known.
    """

    path: tuple[int, ...]
    draft: TreeDraft | None = None

    def holds(self, accepted: tuple[int, ...]) -> bool:
        """Whether the committed tokens of the round, the next root last, match the guess."""
        return self.draft is not None and accepted == (*self.path, self.draft.tokens[0])


class DraftedAhead(StaticTree):
    """A static tree in one batch, whose successor is drafted while it is verified.

    The draft goes on below the tree's likeliest path and its own guess of the token behind it. If
    exactly that comes true the next tree is there already, or under way; else it is drafted anew,
    as without a guess. The guess affects only the times of draft passes.
    """

    _guess: _Guess | None = None
    _held = False  # the guess on which the tree was drafted that opens the next round

    @property
    def listens(self) -> bool:
        """Whether a guess holds: a returned tree then ends a useless draft."""
        return self._guess is not None

    def _open_round(self, draft: TreeDraft) -> list[Command]:
        return super()._open_round(draft) + self._go_on(draft)

    def _go_on(self, draft: TreeDraft) -> list[Command]:
        """Read the end of the likeliest path, to guess the token behind it."""
        *above, leaf = draft.likeliest()
        path = tuple([draft.tokens[node] for node in (*above, leaf)][1:])
        if not above or len(path) + 1 >= self._request.wanted:
            return []
        self._guess = _Guess(path)
        kept = draft.kept_scratch(above[1:])
        parent = len(path) - 2 if above[1:] else NO_PARENT
        ticket, drawn = self._request.ticket(), draft.growth.drawn
        order = DraftPass(
            ticket, (), path[-1:], (parent,), False, 1, kept, draft.behind, drawn=drawn
        )
        return [self._pending.ask(order)]

    def _drafted(self, event: Drafted) -> list[Command]:
        guess = self._guess
        if guess is None:
            return super()._drafted(event)
        if guess.draft is None:
            if event.log_probs[0][0] == -inf:
                return []  # without a guess
            token, growth = int(event.tokens[0][0]), self._parameters.growth
            guess.draft = TreeDraft(token, (), growth, len(guess.path) + 1)
        else:
            guess.draft.absorb(event)
        return [] if guess.draft.complete else [self._next_pass(guess.draft)]

    def _end_round(self, walk: Walk) -> list[Command]:
        accepted = [self._flying.tree.tokens[node] for node in walk.accepted[1:]]
        guess = self._guess
        self._held = guess is not None and guess.holds((*accepted, walk.next_token))
        return super()._end_round(walk)

    def _begin(self, root_token: int) -> list[Command]:
        guess, self._guess = self._guess, None
        if guess is None or guess.draft is None or not self._held:
            return super()._begin(root_token)
        self._held = False
        self._flying.open_round(root_token)
        if guess.draft.complete:
            return self._open_round(guess.draft)
        self._draft = guess.draft
        return []


@dataclass(frozen=True)
class BranchingKeys(Parameters):
    """Keys of the tree (SpecInfer, section 6.1, for the default), and the time of its draft
    (SpecPipe, section 4.1: asynchronously, its baseline, too)."""

    branching: tuple[int, ...] = key(
        (1, 1, 3, 1, 1, 1, 1, 1), "children per node at each depth", least=1
    )
    draft_ahead: bool = key(False, "draft the next tree meanwhile, below the likeliest path")

    def candidates(self) -> Mapping[str, int]:
        return {"branching": max(self.branching)}

    @property
    def drafts_ahead(self) -> bool:
        return self.draft_ahead


def _make(parameters: BranchingKeys, context: ScheduleContext) -> StaticTree:
    kind = DraftedAhead if parameters.draft_ahead else StaticTree
    return fixed_tree(parameters.branching, parameters.prefill_chunk, context, kind)


def _tokens(parameters: BranchingKeys, stages: int) -> int:
    return fixed_tree_tokens(parameters.branching)


def _scratch(parameters: BranchingKeys, stages: int) -> int:
    """Bound the scratch nodes: a tree, and the path and the guess that it is drafted ahead of."""
    path = len(parameters.branching) if parameters.draft_ahead else 0
    return _tokens(parameters, stages) + path


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
        scratch_tokens=_scratch,
        drawn=True,
        grid=_grid,
    ),
)
