"""One static tree per round, decided when all of it is back.

``naive_pp`` (FlowSpec's baseline, section 4.1): the EAGLE-2 tree is cut into one segment more than
there are stages; they flow through the pipeline one behind another, in plain tree order in the
authors' code. With one part it is a static tree verified in one batch (EAGLE under PP).
"""

from __future__ import annotations

from treepipe.protocol import Command, Returned
from treepipe.schedules.drafting import TreeDraft
from treepipe.schedules.tree_schedule import TreeSchedule


class StaticTree(TreeSchedule):
    """Evaluates once per round; the stages run free within it."""

    def _step_of(self, index: int) -> int | None:
        return None

    def _on_returned(self, event: Returned) -> list[Command]:
        if self._fed < len(self._tree) and len(self._outstanding) < self._parts:
            self._per_step.append(0)
            count = min(self._parameters.segment, len(self._tree) - self._fed)
            return [self._feed(count, self._parts)]
        if self._outstanding:
            self._per_step.append(0)
            return []
        walk = self._walk()
        assert walk is not None  # the root came back, so at least it is verified
        return self._end_round(walk, lock_step=False)

    def _on_draft_complete(self, draft: TreeDraft) -> list[Command]:
        raise AssertionError("a static tree is not drafted again within a round")
