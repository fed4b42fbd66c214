"""Speculation in the pipelines of serving engines: chains in a bounded number of flights.

(SGLang, pull requests 30775 and 40499; vLLM, pull requests 46994 and 50514.) The draft works on the
last stage's device, since the next round's tokens must be there before the first stage can start:
a scenario puts both on one host. The pipeline holds a flight per microbatch slot; requests whose
round is ready wait for a free slot, and leave together. A draft server on each stage's device gives
every request a draft of its own (SGLang, pull request 38702).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.core.decoding.keys import CutChainKeys, chain_grid, fixed_tree, fixed_tree_tokens
from treepipe.core.decoding.static_tree import StaticTree
from treepipe.core.messages import Feedback
from treepipe.core.protocol import Command
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, ScheduleContext, System


@dataclass(frozen=True)
class EngineKeys(CutChainKeys):
    """Keys of an engine's pipeline; the defaults are SGLang's."""

    gamma: int = key(3, "tokens of a chain; StarSD's depth d", least=1)
    receives_first: bool = key(
        True, "stages receive a result before they launch a pass, so that a slot stays empty"
    )
    feedback: Feedback = key("ring", "words go from stage to stage, or from the draft to each")
    drafts_first: bool = key(False, "a request's first round has drafted tokens, too")

    def flights(self, stages: int) -> int:
        """Return the maximum number of flights in the pipeline: one per stage, and one less in the
        exchange order that caps utilization at (stages - 1) / stages (SGLang, 40499)."""
        return max(1, stages - self.receives_first)


class EngineChain(StaticTree):
    """A chain per round; the first round may be the root alone.

    SGLang's first round holds rejected dummies instead of drafted tokens; they are left out.
    """

    drafts_first = True

    def _begin(self, root_token: int) -> list[Command]:
        if self.drafts_first:
            return super()._begin(root_token)
        self.drafts_first = True
        self._flying.open_round(root_token)
        return [self._feed(1)]


def _make(parameters: EngineKeys, context: ScheduleContext) -> StaticTree:
    chain = (1,) * parameters.gamma
    made = fixed_tree(chain, parameters.prefill_chunk, context, EngineChain, cut=parameters.cut)
    assert isinstance(made, EngineChain)
    made.drafts_first = parameters.drafts_first
    return made


def _tokens(parameters: EngineKeys, stages: int) -> int:
    return fixed_tree_tokens((1,) * parameters.gamma)


def _grid(load: Load) -> Sequence[Block]:
    engines: Mapping[str, Sequence[object]] = {
        "feedback": ("broadcast",),
        "receives_first": (False,),
        "drafts_first": (True,),
    }
    return tuple({**block, **engines} for block in chain_grid(load))


SYSTEMS = (
    System(
        name="engine_pp",
        year=2026,
        order=3,
        source="SGLang, pull request 30775; vLLM, pull request 46994",
        summary="chains in an engine's microbatch slots",
        parameters=EngineKeys,
        make=_make,
        tree_tokens=_tokens,
        segment_tokens=_tokens,
        drawn=True,
        chains=True,
        flights=EngineKeys.flights,
        grid=_grid,
    ),
)
