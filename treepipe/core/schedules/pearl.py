"""Drafting while the target verifies, with the first token verified early (``pearl``).

(PEARL, arXiv 2408.11850, section 3, and its code.) A step is a pass of the target and ``gamma``
tokens drafted meanwhile; it ends when both are done. *Pre-verify*: the pass reads the root alone
and judges the first of the tokens drafted meanwhile. If it holds, *post-verify* follows: the pass
reads all ``gamma`` tokens and judges the second and further ones, and the first of those that are
drafted behind them meanwhile. As long as all hold, a step gives ``gamma`` tokens; at the first that
does not, drafting starts anew below the target's own token, in pre-verify.
"""

from __future__ import annotations

from dataclasses import replace

from treepipe.core.decoding.drafting import ChainDraft
from treepipe.core.decoding.keys import AheadKeys, chain_grid
from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.protocol import Command, Drafted, Returned
from treepipe.core.system import ScheduleContext, System


class VerifiedMeanwhile(TreeDecoding):
    """A request decoded step by step; the tree is a chain, whose fed part the target reads."""

    def __init__(self, context: ScheduleContext, prefill_chunk: int, gamma: int) -> None:
        super().__init__(context.session, prefill_chunk, keeps=context.keeps)
        self._gamma, self._draft = gamma, ChainDraft(drawn=context.drawn)
        self._asked = 0  # tokens that are drafted below the root when the step ends

    def _begin(self, root_token: int) -> list[Command]:
        """Begin in pre-verify."""
        self._draft.restart()
        self._flying.open_round(root_token)
        return self._step()

    def _step(self) -> list[Command]:
        """Feed what waits, and draft ``gamma`` tokens more."""
        rows = self._flying.waiting
        self._asked = rows - 1 + self._gamma
        return [self._flying.feed(rows, None), self._next_pass()]

    def _next_pass(self) -> Command:
        ticket = self._request.ticket()
        return self._pending.ask(self._draft.next_pass(ticket, self._pending))

    def _drafted(self, event: Drafted) -> list[Command]:
        draft = self._draft
        draft.absorb(event)
        if draft.ended:
            return []
        self._flying.append_chain(draft.tokens[-1:])
        return [self._next_pass()] if draft.ahead < self._asked else []

    def _returned(self, event: Returned) -> list[Command]:
        """End a step: the target's tokens are followed into those drafted meanwhile."""
        flying = self._flying
        walk = flying.judged(event)
        if self._draft.ended:  # it begins anew below the verified tokens
            walk = replace(walk, next_node=None)
        commands = flying.commit(walk)
        if walk.next_node is None or self.done:
            flying.record_round()
            if self.done:
                return commands
            word = flying.drop_round(walk, lock_step=False)
            return [word, *commands, *self._begin(walk.next_token)]
        self._draft.used += len(walk.accepted)
        kept = range(walk.next_node, len(flying.tree))
        return [flying.prune(walk, kept, lock_step=False), *commands, *self._step()]


def _make(parameters: AheadKeys, context: ScheduleContext) -> VerifiedMeanwhile:
    return VerifiedMeanwhile(context, parameters.prefill_chunk, parameters.gamma)


def _tree_tokens(parameters: AheadKeys, stages: int) -> int:
    """Count the tokens that the target reads, and those drafted behind them meanwhile."""
    return 2 * parameters.gamma


def _segment_tokens(parameters: AheadKeys, stages: int) -> int:
    return parameters.gamma


SYSTEMS = (
    System(
        name="pearl",
        year=2025,
        order=13,
        source="PEARL, section 3",
        summary="chains drafted while the last one is verified",
        parameters=AheadKeys,
        make=_make,
        tree_tokens=_tree_tokens,
        segment_tokens=_segment_tokens,
        drawn=True,
        chains=True,
        grid=chain_grid,
    ),
)
