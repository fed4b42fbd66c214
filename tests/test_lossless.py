"""Random tiny models, cut anywhere, under every schedule and any order of messages, against
``generate()``: the desks, the stages' real layers and caches, and a real draft, without time.

The stages check their masks on the way (causality: committed, ancestors, self, nothing else).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hashed_lm import Choose, any_order
from tests.pipeline import Pipeline
from tests.test_all_schedules import sections
from tests.timeless_world import TimelessWorld
from tests.tiny_models import VOCABULARY, greedy, save_random_checkpoint
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.draft_model import LanguageModelDraft
from treepipe.executor.stage_model import Part, StageModel, TargetEnds
from treepipe.messages import Segment
from treepipe.protocol import Drafted, DraftPass, Schedule, Started
from treepipe.scenario import SamplingSection, ScheduleName, ScheduleSection
from treepipe.schedule_factory import ScheduleFactory
from treepipe.stage import Prune
from treepipe.stage_desk import Move

SCHEDULES: tuple[str, ...] = get_args(ScheduleName)
LAYERS, CAPACITY, WANTED = (2, 3, 6), 400, 10
PROMPTS = [[(7 * i + 3 * n) % VOCABULARY for i in range(4 + 9 * n)] for n in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for layers in LAYERS:
        save_random_checkpoint(folder / f"target{layers}", layers=layers, seed=layers)
    for seed in (20, 21):
        save_random_checkpoint(folder / f"draft{seed}", layers=1, seed=seed)
    return folder


@functools.cache
def expected(directory: Path, prompt: tuple[int, ...]) -> list[int]:
    return greedy(directory, list(prompt), WANTED)


class ModelPipeline(Pipeline):
    """A pipeline with real layers in its stages."""

    def __init__(self, target: Path, cuts: list[int]) -> None:
        """Args: ``cuts``: layers of each stage."""
        super().__init__(len(cuts))
        checkpoint, first = Checkpoint.open(target), 0
        self.models = []
        for count in cuts:
            self.models.append(StageModel(checkpoint, range(first, first + count), CAPACITY))
            self.models[-1].check_causality = True
            first += count
        self._ends = TargetEnds(checkpoint)
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
                self.answers[segment.session, segment.ticket] = self._ends.next_tokens(last)

    def _states(self, n: int, segment: Segment, rows: tuple[int, ...] | None) -> torch.Tensor:
        """What a stage reads: embeddings, or what is left of what the stage before it has sent."""
        if n == 0:
            return self._ends.embed(segment.tokens)
        arrived = self._hidden.pop((n, segment.session, segment.ticket))
        return arrived if rows is None else arrived[list(rows)]


class ModelWorld(TimelessWorld):
    """The world without time, with real layers in its stages and a real draft."""

    def __init__(self, target: Path, draft: Path, cuts: list[int], choose: Choose) -> None:
        self._pipeline = ModelPipeline(target, cuts)
        super().__init__([len(cuts)], _nothing, _nothing, choose)
        self._source = LanguageModelDraft(Checkpoint.open(draft), CAPACITY)

    @property
    def models(self) -> list[StageModel]:
        return self._pipeline.models

    def new_pipeline(self, stages: int, group_size: int, drafts: int) -> Pipeline:
        return self._pipeline

    def open(
        self, session: int, schedule: Schedule, started: Started, pipeline: int = 0, draft: int = 0
    ) -> None:
        super().open(session, schedule, started, pipeline, draft)
        self._source.open(session)

    def answer(self, session: int, order: DraftPass, paths: list[list[int]]) -> Drafted:
        return self._source.draft(session, order)


def _nothing(path: list[int]) -> Any:
    raise AssertionError("the models answer here")


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sections,
    st.sampled_from(LAYERS),
    st.sampled_from([20, 21]),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
    st.integers(0, 2**32),
)
def test_text_equals_generate(
    folder: Path,
    name: str,
    section: dict[str, Any],
    layers: int,
    draft: int,
    requests: int,
    random: Any,
    seed: int,
) -> None:
    bounds = sorted(random.sample(range(1, layers), random.randrange(layers)))
    cuts = [b - a for a, b in zip([0, *bounds], [*bounds, layers], strict=True)]
    target = folder / f"target{layers}"
    world = ModelWorld(target, folder / f"draft{draft}", cuts, any_order(seed))
    factory = ScheduleFactory(
        ScheduleSection.model_validate({"name": name, **section}), SamplingSection()
    )
    for session in range(1, requests + 1):
        schedule = factory(session, len(cuts), lambda: world.desk.waiting)
        world.open(session, schedule, Started(tuple(PROMPTS[session - 1]), WANTED))
    world.run()
    for session in range(1, requests + 1):
        assert world.text(session) == expected(target, tuple(PROMPTS[session - 1]))
    assert all(model.sessions == 0 for model in world.models)
    world.assert_freed()
