"""Passes in buckets equal exact ones, for all families, batches and trees; buckets share nothing.

A GPU's capture is imitated twice: by the twin that workers have on a CPU, and by a record of one
pass's operations, which are run again on what the buffers hold then (``Recorded``).
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from tests.worlds.examples import examples
from treepipe.core.messages import NO_PARENT
from treepipe.executor.models import static_pass
from treepipe.executor.models.cache import TreeCache
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.families import FAMILIES
from treepipe.executor.models.replay import Forward
from treepipe.executor.models.stage_model import Part, StageModel
from treepipe.executor.models.static_pass import (
    MOST_ROWS,
    StaticPasses,
    bucket,
    buckets,
    capture,
    graphs_bytes,
)
from treepipe.testing.random_model import CONFIGS, save_random_checkpoint

torch.set_num_threads(1)
LAYERS, CAPACITY, SESSIONS = 2, 150, 3
ROUTED = ("mixtral", "qwen3_moe", "gpt_oss")
"""Families whose rows choose experts."""
READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::item"}
"""Operations by which the host reads what a device computed, which no capture survives."""


class Recorded(TorchDispatchMode):
    """The operations of one pass with the numbers that Python gave them, run again at each call."""

    size_bytes = 0

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        forward()
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        with self:
            self._result = forward()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        found = func(*args, **kwargs or {})
        self.steps.append((func, args, kwargs or {}, found))
        return found

    @property
    def reads(self) -> set[str]:
        return {func._schema.name for func, *_ in self.steps} & READS

    def __call__(self) -> torch.Tensor:
        made: dict[int, torch.Tensor] = {}

        def now(tensor: torch.Tensor) -> torch.Tensor:
            return made.get(id(tensor), tensor)

        for func, args, kwargs, found in self.steps:
            given = tree_map_only(torch.Tensor, now, (args, kwargs))
            again = func(*given[0], **given[1])
            pairs = zip(tree_flatten(found)[0], tree_flatten(again)[0], strict=True)
            made |= {id(old): new for old, new in pairs if isinstance(old, torch.Tensor)}
        return made[id(self._result)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@functools.cache
def opened(folder: Path, family: str) -> Checkpoint:
    made = save_random_checkpoint(folder / family, architecture=family, layers=LAYERS, seed=1)
    return Checkpoint.open(made)


@dataclass
class Twice:
    """The same sessions in a model of exact passes and in one of passes in buckets.

    Attributes:
        trees: parents of each session's nodes.
    """

    folder: Path
    family: str
    kept: tuple[int, ...] = ()
    trees: dict[int, list[int]] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        checkpoint = opened(self.folder, self.family)
        self.exact, self.bucketed = (
            StageModel(checkpoint, range(LAYERS), CAPACITY, captured=self.kept, graphs=graphs)
            for graphs in (False, True)
        )
        self.width = checkpoint.hidden_size

    @property
    def passes(self) -> StaticPasses:
        assert self.bucketed.static is not None
        return self.bucketed.static

    def open(self, session: int) -> None:
        for model in (self.exact, self.bucketed):
            model.open(session)
        self.trees[session] = []

    def close(self, session: int) -> None:
        for model in (self.exact, self.bucketed):
            model.close(session)
        del self.trees[session]

    def compute(self, passes: dict[int, list[int] | int]) -> None:
        """Run a batch: a number of committed rows, or parents of nodes, by session."""
        parts, self.count = list[Part](), self.count + 1
        for session, rows in passes.items():
            cache = self.exact.cache(session)
            if isinstance(rows, int):
                positions, parents = [cache.length + row for row in range(rows)], None
            else:
                parents, depths = rows, list[int]()
                for above in [*self.trees[session], *parents]:
                    depths.append(0 if above == NO_PARENT else 1 + depths[above])
                positions = [cache.committed + each for each in depths[len(self.trees[session]) :]]
                self.trees[session] += parents
            random = torch.Generator().manual_seed(97 * self.count + session)
            hidden = torch.randn((len(positions), self.width), generator=random)
            parts.append(Part(session, hidden, positions, parents))
        self.spoil()
        exact = torch.cat(self.exact.forward_batch(parts))
        found = torch.cat(self.bucketed.forward_batch(parts))
        assert (found - exact).abs().max() <= 1e-5 * max(1.0, float(exact.abs().max()))

    def spoil(self) -> None:
        """Make everything no number that is no entry of an open session, and all old inputs."""
        passes = self.passes
        dead = torch.ones(passes._store.shape[3], dtype=torch.bool)
        for session in self.trees:
            cache = self.bucketed.cache(session)
            dead[cache.start : cache.start + cache.length] = False
        passes._store[:, :, :, dead] = torch.nan
        with torch.inference_mode():
            for each in passes._buckets.values():
                each.states.fill_(torch.nan)

    def prune(self, session: int, node: int) -> None:
        """Keep a node's subtree; its ancestors are accepted."""
        tree = self.trees[session]

        def above(node: int) -> list[int]:
            return [] if node == NO_PARENT else [*above(tree[node]), node]

        path = above(node)[:-1]
        keep = [*path, *(each for each in range(node, len(tree)) if node in above(each))]
        for model in (self.exact, self.bucketed):
            model.cache(session).prune(keep, len(path))
        self.trees[session] = [*self.exact.cache(session).parents]


def play(twice: Twice, draw: Callable[[Any], Any], steps: int) -> None:
    """Let sessions come and go, batches of rows of them be computed, and words be applied."""
    for _ in range(steps):
        session = draw(st.integers(0, SESSIONS - 1))
        if session not in twice.trees:
            twice.open(session)
            twice.compute({session: draw(st.integers(1, 40))})
        elif twice.trees[session] and draw(st.booleans()):
            twice.prune(session, draw(st.integers(0, len(twice.trees[session]) - 1)))
        elif draw(st.integers(0, 5)) == 0:
            twice.close(session)
        else:
            others = draw(st.sets(st.sampled_from(sorted(twice.trees))))
            passes: dict[int, list[int] | int] = {}
            for each in {session, *others}:
                nodes, room = len(twice.trees[each]), CAPACITY - twice.exact.cache(each).length
                rows = draw(st.integers(1, 20))
                if rows > room:
                    continue
                if nodes or draw(st.integers(0, 3)):
                    grown = [st.integers(NO_PARENT, nodes + row - 1) for row in range(rows)]
                    passes[each] = list(draw(st.tuples(*grown)))
                else:
                    passes[each] = rows
            if passes:
                twice.compute(passes)


@pytest.mark.parametrize("family", CONFIGS)
@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_pass_in_buckets_is_the_exact_pass(folder: Path, family: str, data: Any) -> None:
    """In float32 to 1e-5, under pruning and in batches; nothing that was there before is read."""
    play(Twice(folder, family, (0, 1)), data.draw, 8)


@pytest.mark.parametrize("family", [each for each in CONFIGS if each not in ROUTED])
@examples(16, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_recorded_pass_is_the_exact_pass_of_whatever_the_buffers_hold(
    folder: Path, family: str, data: Any
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_pass, "replay_on", lambda _: Recorded)
        play(Twice(folder, family), data.draw, 8)


@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_that_cannot_be_captured_says_so(folder: Path, family: str) -> None:
    """Because the host reads what was computed; on a GPU it then runs eagerly."""
    records = list[Recorded]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_pass, "replay_on", lambda _: lambda each: kept(Recorded(each)))

        def kept(made: Recorded) -> Recorded:
            records.append(made)
            return made

        twice = Twice(folder, family)
        twice.open(0)
        twice.compute({0: 5})
    (record,) = records
    named = FAMILIES[opened(folder, family).architecture]
    assert bool(record.reads) == named.routes == (family in ROUTED)
    assert (named.uncaptured("cuda:0") is not None) == named.routes
    assert named.uncaptured("cpu") is None


def test_a_bucket_is_made_once_and_anew_when_the_caches_have_grown(folder: Path) -> None:
    twice = Twice(folder, "llama")
    twice.open(0)
    for rows in (5, 6, 8):
        twice.compute({0: rows})
    assert list(twice.passes._buckets) == [(8, 64)]
    twice.open(1)
    twice.compute({0: 2, 1: 60})
    assert list(twice.passes._buckets) == [(64, 96)]
    grown = twice.passes._store.shape[3]
    twice.close(1)
    twice.open(2)
    assert twice.passes._store.shape[3] == grown, "a closed cache's place is taken again"


def test_what_is_captured_ahead_serves_the_run(folder: Path) -> None:
    """Caches of two sessions and every bucket of a session; then none is made any more."""
    gc.collect()  # of other tests
    before = graphs_bytes()
    twice = Twice(folder, "gemma3_text")
    capture(2, 10)
    ahead = {(rows, entries) for rows in (1, 2, 4, 8, 16) for entries in (64, 96, 128, 192)}
    assert set(twice.passes._buckets) == ahead
    made = {key: each.replay for key, each in twice.passes._buckets.items()}
    assert graphs_bytes() - before >= sum(each.size_bytes for each in made.values() if each)
    for session in (4, 7):
        twice.open(session)
        twice.compute({session: 7})
        twice.compute({session: [NO_PARENT, 0, 0]})
    assert {key: each.replay for key, each in twice.passes._buckets.items()} == made


def test_a_result_stays_when_the_next_pass_is_computed(folder: Path) -> None:
    twice = Twice(folder, "llama")
    twice.open(0)
    given, positions = torch.randn(2, twice.width), [0, 1]
    first = twice.bucketed.forward(0, given, positions, None)
    copy = first.clone()
    twice.bucketed.forward(0, torch.randn(2, twice.width), [2, 3], None)
    assert torch.equal(first, copy)


def test_a_pass_of_more_rows_than_the_largest_bucket_is_eager(folder: Path) -> None:
    checkpoint = opened(folder, "llama")
    models = [StageModel(checkpoint, range(LAYERS), 400, graphs=g) for g in (False, True)]
    hidden = torch.randn(MOST_ROWS + 1, checkpoint.hidden_size)
    found = []
    for model in models:
        model.open(0)
        model.forward(0, hidden, range(len(hidden)), None)
        found.append(model.forward(0, hidden[:3], [257, 258, 258], [NO_PARENT, 0, 0]))
    assert models[1].static is not None
    assert list(models[1].static._buckets) == [(4, 384)]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-4)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_a_bucket_holds_what_it_is_for_and_little_more(count: int, least: int) -> None:
    size = bucket(count, least)
    assert max(count, least) <= size <= max(2 * max(count, least), 1)
    assert bucket(size) == size
    assert [*buckets(size)][-1] == size
    assert all(bucket(each) == each for each in buckets(count))


def test_a_node_before_its_parent_is_refused() -> None:
    cache = TreeCache(1, 1, 2, 8, torch.float32)
    cache.reserve(2, [1, NO_PARENT])
    with pytest.raises(ValueError, match="before its parent"):
        cache.preorder()
