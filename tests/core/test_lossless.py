"""Random tiny models, cut anywhere, under every schedule and any order of messages, against
``generate()``: the desks, the stages' real layers and caches, and a real draft, without time.

The stages check their masks on the way (causality: committed, ancestors, self, nothing else).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.worlds.any_section import sections
from tests.worlds.causal import CausalStage
from tests.worlds.examples import THOROUGH, examples
from tests.worlds.tiny_models import greedy, save_block_head, save_head
from treepipe.core.messages import Beat, Message, Segment
from treepipe.core.protocol import Drafted, DraftPass, Started
from treepipe.core.schedules import systems
from treepipe.core.stage import Prune
from treepipe.core.stage_desk import Move, Place
from treepipe.core.words import NodeNotes
from treepipe.executor.models.block import BlockDraft
from treepipe.executor.models.block_head import load_block_head
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_model import LanguageModelDraft
from treepipe.executor.models.draft_source import DraftSource
from treepipe.executor.models.eagle import EagleDraft
from treepipe.executor.models.stage_model import Part, StageModel, TargetEnds
from treepipe.scenario.schema import ScheduleSection
from treepipe.testing.hashed_lm import Choose, any_order
from treepipe.testing.pipeline import TimelessPipeline
from treepipe.testing.random_model import CONFIGS, VOCABULARY, save_random_checkpoint
from treepipe.testing.timeless_world import Sharing, TimelessRequest, TimelessWorld
from treepipe.testing.trials.decoding import least_room

torch.set_num_threads(1)

SCHEDULES: tuple[str, ...] = tuple(systems())
LAYERED = [system.name for system in systems().values() if system.in_lock_step]
LAYERS, CAPACITY, WANTED = (2, 3, 6), 400, 10
FEW = SCHEDULES if THOROUGH else ("flowspec",)
"""Schedules under which every family of models is tried: a usual run takes the one whose stages
prune, and whose later segments hang below nodes that are cached."""
DRAFTS = ("draft20", "draft21")
PROMPTS = [[(7 * i + 3 * n) % VOCABULARY for i in range(4 + 9 * n)] for n in range(9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for layers in LAYERS:
        save_random_checkpoint(folder / f"target{layers}", layers=layers, seed=layers)
    for seed, draft in enumerate(DRAFTS, start=20):
        save_random_checkpoint(folder / draft, layers=1, seed=seed)
    target = Checkpoint.open(folder / f"target{LAYERS[0]}")
    save_head(folder / "head", target)
    for places in (2, 5):
        save_block_head(
            folder / f"block{places}", target, layers=(target.layers - 1,), places=places
        )
    return folder


@functools.cache
def expected(directory: Path, prompt: tuple[int, ...]) -> list[int]:
    return greedy(directory, list(prompt), WANTED)


class ModelPipeline(TimelessPipeline):
    """A pipeline with real layers in its stages."""

    def __init__(
        self, target: Path, cuts: list[int], batch: int, prompts: Place, graphs: bool
    ) -> None:
        """Args: ``cuts``: layers of each stage; ``graphs``: passes run in buckets."""
        super().__init__(len(cuts), batch=batch, prompts=prompts)
        checkpoint, first = Checkpoint.open(target), 0
        self.models = []
        for count in cuts:
            layers = range(first, first + count)
            self.models.append(CausalStage(checkpoint, layers, CAPACITY, graphs=graphs))
            first += count
        self._ends = TargetEnds(checkpoint)
        self.features: dict[tuple[int, int], torch.Tensor] = {}
        self._hidden: dict[tuple[int, int, int], torch.Tensor] = {}

    def opened(self, n: int, session: int) -> None:
        super().opened(n, session)
        self.models[n].open(session)

    def closed(self, n: int, session: int) -> None:
        super().closed(n, session)
        self.models[n].close(session)

    def pruned(self, n: int, action: Prune) -> None:
        self.models[n].cache(action.session).prune(action.keep, action.accepted)

    def compute(self, n: int, move: Move) -> None:
        parts = []
        for segment, rows in zip(move.flight.segments, move.rows, strict=True):
            states = self._states(n, segment, rows)
            if segment.tokens:
                parents = None if segment.committed else segment.parents
                parts.append(Part(segment.session, states, segment.positions, parents))
        results = iter(self.models[n].forward_batch(parts) if parts else [])
        for segment in move.flight.segments:
            states = next(results) if segment.tokens else torch.empty(0)
            self._hidden[n + 1, segment.session, segment.ticket] = states
            if n + 1 == len(self.models) and segment.tokens:
                last = states[-1:] if segment.committed else states
                self.features[segment.session, segment.ticket] = self._ends.features(states)
                self.answers[segment.session, segment.ticket] = self._ends.next_tokens(last)

    def _states(self, n: int, segment: Segment, rows: tuple[int, ...] | None) -> torch.Tensor:
        """What a stage reads: embeddings, or what is left of what the stage before it has sent."""
        if n == 0:
            return self._ends.embed(segment.tokens)
        arrived = self._hidden.pop((n, segment.session, segment.ticket))
        return arrived if rows is None else arrived[list(rows)]


class ModelWorld(TimelessWorld):
    """The world without time, with real layers in its stages and a real draft, which is shown the
    target's states if it reads them."""

    def __init__(
        self,
        target: Path,
        source: DraftSource,
        cuts: list[int],
        choose: Choose,
        sharing: Sharing,
        graphs: bool,
    ) -> None:
        self._pipeline = ModelPipeline(target, cuts, sharing.batch, sharing.prompts, graphs)
        super().__init__([len(cuts)], _nothing, _nothing, choose, sharing)
        self._source = source
        self._observe = getattr(source, "observe", lambda session, features: None)
        self._notes: dict[int, NodeNotes[torch.Tensor]] = {}

    @property
    def models(self) -> list[StageModel]:
        return self._pipeline.models

    def new_pipeline(self, stages: int) -> TimelessPipeline:
        return self._pipeline

    def entered(self, session: int, request: TimelessRequest) -> None:
        super().entered(session, request)
        self._source.open(session)
        self._notes[session] = NodeNotes()

    def _end(self, number: int) -> None:
        flight = self.servers[number].flight
        for segment in flight.segments if flight is not None else ():
            states = self._pipeline.features.pop((segment.session, segment.ticket), None)
            if states is None or self.requests[segment.session].reason is not None:
                continue
            if segment.committed:
                self._observe(segment.session, states)
            else:
                self._notes[segment.session].write(segment, list(states))
        super()._end(number)

    def post(self, pipeline: int, message: Message, draft: int) -> None:
        for word in message.words if isinstance(message, Beat) else ():
            accepted = self._notes[word.session].announce(word)
            if accepted:
                self._observe(word.session, torch.stack(accepted))
        super().post(pipeline, message, draft)

    def answer(self, session: int, order: DraftPass, paths: list[list[int]]) -> Drafted:
        return self._source.draft(session, order)


def _nothing(path: list[int]) -> Any:
    raise AssertionError("the models answer here")


@dataclass(frozen=True)
class Drawn:
    """A schedule's keys, and how requests share a pipeline that is cut anywhere.

    Attributes:
        crowded: all requests share room for the longest, in pages.
        least: a draft proposes only what it finds at least so probable.
        graphs: stages' passes run in buckets.
    """

    section: dict[str, Any]
    layers: int
    requests: int
    batch: int
    prompts: Place
    crowded: bool
    least: float
    graphs: bool
    random: Any
    seed: int


drawn = st.builds(
    Drawn,
    section=sections,
    layers=st.sampled_from(LAYERS),
    requests=st.integers(1, len(PROMPTS)),
    batch=st.sampled_from([1, 2, 4, 8]),
    prompts=st.sampled_from(["first", "last"]),
    crowded=st.booleans(),
    least=st.sampled_from([0.0, 0.1, 0.4]),
    graphs=st.booleans(),
    random=st.randoms(use_true_random=False),
    seed=st.integers(0, 2**32),
)


def model_draft(folder: Path, draft: str = DRAFTS[0]) -> LanguageModelDraft:
    return LanguageModelDraft(Checkpoint.open(folder / draft), CAPACITY)


@pytest.mark.parametrize("name", SCHEDULES)
@examples(16, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn, st.sampled_from(DRAFTS))
def test_text_equals_generate(folder: Path, name: str, case: Drawn, draft: str) -> None:
    """Alone, in passes that requests share, and where requests are preempted for want of room."""
    decode(folder / f"target{case.layers}", model_draft(folder, draft), name, case)


@functools.cache
def of_family(folder: Path, architecture: str, layers: int) -> Path:
    return save_random_checkpoint(
        folder / f"{architecture}{layers}", architecture=architecture, layers=layers, seed=1
    )


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("architecture", [each for each in CONFIGS if each != "llama"])
@examples(8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn)
def test_text_of_every_family_equals_generate(
    folder: Path, architecture: str, name: str, case: Drawn
) -> None:
    """With windows that are shorter than most prompts, where a family has any."""
    case = replace(case, requests=min(case.requests, 3))
    decode(of_family(folder, architecture, case.layers), model_draft(folder), name, case)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("name", LAYERED)
@examples(16, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn)
def test_text_equals_generate_with_a_head(
    folder: Path, name: str, reuse: bool, case: Drawn
) -> None:
    """A head's own state at a node is what it reads for the node's children, also where the whole
    tree is run again in one pass."""
    target = Checkpoint.open(folder / f"target{case.layers}")
    source = EagleDraft(folder / "head", target, CAPACITY)
    case = replace(case, section={**case.section, "draft_reuse": reuse})
    decode(target.directory, source, name, case, reads_states=True)


@pytest.mark.parametrize("name", SCHEDULES)
@examples(10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn, st.sampled_from((2, 5)))
def test_text_equals_generate_with_a_block_draft(
    folder: Path, name: str, case: Drawn, places: int
) -> None:
    """Trees end where the block does, at one or four levels; the states before its first token have
    been observed whenever it makes one (or it would read those of other positions)."""
    target = Checkpoint.open(folder / f"target{case.layers}")
    head = load_block_head(folder / f"block{places}", target)
    source, of_block = BlockDraft(head, TargetEnds(target), CAPACITY), {"independent_levels": True}
    decode(target.directory, source, name, case, places - 1, reads_states=True, **of_block)


def decode(
    target: Path, source: DraftSource, name: str, case: Drawn, levels: int = 0, **of_draft: bool
) -> None:
    """Run the requests at once, and check their texts; ``levels``: those of a block draft."""
    layers, random = case.layers, case.random
    bounds = sorted(random.sample(range(1, layers), random.randrange(layers)))
    cuts = [b - a for a, b in zip([0, *bounds], [*bounds, layers], strict=True)]
    chosen, stages = ScheduleSection.model_validate({"name": name, **case.section}), len(cuts)
    factory, prompts = chosen.choose(**of_draft), PROMPTS[: case.requests]
    room = None
    if case.crowded:
        longest = max(map(len, prompts)) + WANTED
        room = least_room(chosen.system, chosen.parameters, stages, longest)
    sharing = Sharing(
        batch=case.batch,
        prompts=case.prompts,
        room=room,
        least=case.least,
        block=levels,
        round_ms=lambda rows: 1.0 + rows,
    )
    world = ModelWorld(target, source, cuts, any_order(case.seed), sharing, case.graphs)
    world.new_schedule = lambda session: factory(session, stages)
    for session, prompt in enumerate(prompts, start=1):
        world.open(session, factory(session, stages), Started(tuple(prompt), WANTED))
    world.run()
    for session, prompt in enumerate(prompts, start=1):
        assert world.text(session) == expected(target, tuple(prompt))
    assert all(model.sessions == 0 for model in world.models)
    world.assert_freed()
