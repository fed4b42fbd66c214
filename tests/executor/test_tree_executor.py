"""Tree attention and pruned caches hold the laws of ``tree_executor.py``; wrong ones are found."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import treepipe.testing
from tests.worlds.examples import THOROUGH, share_of
from treepipe.core.errors import UserError
from treepipe.core.messages import NO_PARENT
from treepipe.testing.adapters import ADAPTERS, MaskedModel, Stages, adapted
from treepipe.testing.checking import run_trial
from treepipe.testing.random_model import CONFIGS, save_random_checkpoint
from treepipe.testing.tree_executor import TREE_TRIALS, Logits, TreeExecutor

ENGINES = [("transformers", "llama"), *product(("ours", "in buckets"), CONFIGS)]


class InBuckets(Stages):
    """Passes in buckets of rows and context, as graphs are captured of."""

    graphs = True


@functools.cache
def engine(name: str, architecture: str) -> TreeExecutor:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ADAPTERS, "in buckets", InBuckets)
        return adapted(name, architecture)


def now(name: str, architecture: str, trial: str) -> bool:
    """A usual run tries each family's model in every trial, by turns with exact passes and in
    buckets."""
    turn = [*CONFIGS].index(architecture) + [*TREE_TRIALS].index(trial)
    return THOROUGH or name == "transformers" or (name == "ours") == (turn % 2 == 0)


@pytest.mark.parametrize(
    ("name", "architecture", "trial"),
    [(*of, trial) for of, trial in product(ENGINES, TREE_TRIALS) if now(*of, trial)],
)
def test_an_engine_holds_the_laws(name: str, architecture: str, trial: str) -> None:
    """Ours with models of every family."""
    tried = TREE_TRIALS[trial]
    found = run_trial(engine(name, architecture), tried, share_of(tried.examples))
    assert found.broken is None, found.broken.text()


class SeesSiblings(MaskedModel):
    """A row attends to all nodes of the tree, as in causal attention over the flattened tree."""

    def _seen(self, session: int, row: int, parent: int | None) -> list[int]:
        seen = super()._seen(session, row, parent)
        return [*range(max(seen) + 1)]


class CountsRows(MaskedModel):
    """Positions count the rows instead of the depths."""

    def forward(self, session: int, tokens: Any, positions: Any, parents: Any) -> Logits:
        first = self.committed[session] + len(self.ancestors[session])
        return super().forward(session, tokens, range(first, first + len(tokens)), parents)


class ParentOffByOne(MaskedModel):
    """A row hangs at the node before its parent."""

    def _seen(self, session: int, row: int, parent: int | None) -> list[int]:
        return super()._seen(session, row, None if parent is None else max(parent - 1, NO_PARENT))


class KeepsTheFirst(MaskedModel):
    """A prune keeps as many entries as it should, but the first ones."""

    def prune(self, session: int, keep: Sequence[int], accepted: int) -> None:
        whole = self.caches[session].layers
        before = [(layer.keys, layer.values) for layer in whole]
        super().prune(session, keep, accepted)
        for layer, (keys, values) in zip(whole, before, strict=True):
            count = layer.keys.shape[2]
            layer.keys, layer.values = keys[:, :, :count], values[:, :, :count]


class ForgetsTheAccepted(MaskedModel):
    """Accepted nodes leave the tree and do not become committed, so that later rows miss them."""

    def prune(self, session: int, keep: Sequence[int], accepted: int) -> None:
        super().prune(session, keep[accepted:], 0)


class SecondRollback(MaskedModel):
    """From the second prune on it keeps entries of one place further up (llama.cpp 22746)."""

    prunes = 0

    def prune(self, session: int, keep: Sequence[int], accepted: int) -> None:
        whole, self.prunes = self.caches[session].layers, self.prunes + 1
        before = [(layer.keys, layer.values) for layer in whole]
        super().prune(session, keep, accepted)
        for layer, (keys, values) in zip(whole, before, strict=True):
            if self.prunes > 1:
                count = layer.keys.shape[2] - 1
                layer.keys[:, :, 1:], layer.values[:, :, 1:] = (
                    keys[:, :, :count],
                    values[:, :, :count],
                )


class OneCache(MaskedModel):
    """All sessions share the first one's cache."""

    def open(self, session: int) -> None:
        super().open(session)
        first = min(self.caches)
        for kept in (self.caches, self.committed, self.ancestors):
            kept[session] = kept[first]


class KeepsTheOld(MaskedModel):
    """A session that begins again finds its former entries."""

    def close(self, session: int) -> None:
        pass

    def open(self, session: int) -> None:
        if session not in self.caches:
            super().open(session)


class Fails(MaskedModel):
    """Prunes are not implemented."""

    def prune(self, session: int, keep: Sequence[int], accepted: int) -> None:
        raise NotImplementedError("compaction on this device")


@pytest.mark.parametrize(
    ("wrong", "trial", "laws"),
    [
        (SeesSiblings, "growing", {"tree_attention"}),
        (CountsRows, "growing", {"tree_attention"}),
        (ParentOffByOne, "growing", {"tree_attention"}),
        (KeepsTheFirst, "pruned", {"compaction"}),
        (ForgetsTheAccepted, "pruned", {"compaction"}),
        (SecondRollback, "pruned", {"compaction", "committed", "tree_attention"}),
        (SecondRollback, "decoding", {"near_argmax"}),
        (KeepsTheFirst, "decoding", {"near_argmax"}),
        (OneCache, "sessions", {"sessions"}),
        (KeepsTheOld, "sessions", {"sessions", "protocol"}),
        (Fails, "pruned", {"protocol"}),
    ],
)
def test_a_wrong_engine_is_found_with_a_small_story(
    tmp_path: Path, wrong: type[MaskedModel], trial: str, laws: set[str]
) -> None:
    save_random_checkpoint(tmp_path, layers=1)
    found = run_trial(wrong(tmp_path), TREE_TRIALS[trial])
    assert found.broken is not None
    assert found.broken.law in laws
    assert len(found.broken.story.steps) <= 8


def test_an_engine_of_a_file_is_tried(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from treepipe.testing.adapters import adapted\n"
        "def make():\n    return adapted('ours')\n"
        "def fails():\n    raise OSError('no device')\n"
    )
    found = treepipe.testing.check_executor(f"{file}:make", ["committed"], examples=2)
    assert [each.verdict for each in found] == ["holds"]
    for name, part in (("", "name a function"), (":none", "name a function"), (":fails", "no dev")):
        with pytest.raises(UserError, match=part):
            treepipe.testing.check_executor(f"{file}{name}")
    with pytest.raises(UserError, match="there is no executor 'mine'; there are ours, transf"):
        treepipe.testing.check_executor("mine")
