"""Drafts by layers against dense computation, and drafts of every kind in real runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.changed import changed
from tests.worlds.deployments import small_deployment
from tests.worlds.examples import examples
from tests.worlds.local_workers import LocalRun, drafting_roles
from tests.worlds.real_runs import assert_greedy
from tests.worlds.tiny_models import save_block_head, save_head
from treepipe.core.captures import NORMED
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.core.requests import LIVES
from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.draft_memory import stream
from treepipe.executor.models.draft_model import LanguageModelDraft
from treepipe.executor.models.eagle import EagleDraft
from treepipe.executor.models.eagle_head import load_head
from treepipe.executor.models.packed import LEAST_BYTES, PackedLinear, can_pack
from treepipe.executor.models.stage_model import TargetEnds
from treepipe.executor.run.controller import Controller
from treepipe.executor.wire.role import RoleSettings
from treepipe.scenario.deployment import ONE_CORE
from treepipe.testing.random_model import VOCABULARY, save_random_checkpoint

TEXT = (3, 9, 27, 20, 60, 58, 52, 34)
READ = 5
"""So many tokens of the text are read in the first pass, the last one as the root."""


def features_of(count: int, width: int = 32) -> torch.Tensor:
    """Stand-ins for the target's states."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn((len(TEXT), width), generator=generator)[:count]


def dense(
    head: Path, target: Checkpoint, text: Sequence[int], true: torch.Tensor, path: Sequence[int]
) -> torch.Tensor:
    """Log probabilities behind ``path``, everything computed again for every token of it.

    ``true`` are the states of all of the text but its last token; the precision is theirs.
    """
    model, _ = load_head(head, target, true.dtype)
    ends = TargetEnds(target, true.dtype)
    given = true
    for count in range(len(path) + 1):
        tokens = [*text[1:], *path[:count]]
        inputs = torch.cat((ends.embed(tokens), given), -1)[None]
        rotary = model.rotary(inputs, torch.arange(len(tokens))[None])
        mask = torch.ones((len(tokens), len(tokens)), dtype=torch.bool).tril()[None, None]
        states = model(inputs, attention_mask=mask, position_embeddings=rotary)[0]
        given = torch.cat((given, states[-1:]))
    return ends.project(given[-1:]).double().log_softmax(-1)[0]


def _assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)


def test_tree_passes_of_a_wide_head_equal_dense_computation(tmp_path: Path) -> None:
    """As published heads are: x86 processors keep their layers packed."""
    width = 1024
    folder = save_random_checkpoint(tmp_path / "target", layers=1, width=width, seed=1)
    target = Checkpoint.open(folder)
    head = save_head(tmp_path / "head", target)
    draft = EagleDraft(head, target, 64)
    if can_pack(torch.empty(LEAST_BYTES)):
        assert type(load_head(head, target)[0].fc) is PackedLinear
    draft.open(1)
    draft.observe(1, features_of(READ - 1, width))
    rows = [draft.log_probs(1, DraftPass(1, TEXT[:READ], (), (), True, 4))]
    rows.append(draft.log_probs(1, DraftPass(2, (), (8, 9), (NO_PARENT, NO_PARENT), False, 4)))
    rows.append(draft.log_probs(1, DraftPass(3, (), (4, 5, 6), (0, 1, 1), False, 4)))
    true = features_of(READ - 1, width)
    for found, path in zip(torch.cat(rows), [(), (8,), (9,), (8, 4), (9, 5), (9, 6)], strict=True):
        _assert_close(found, dense(head, target, TEXT[:READ], true, path))


class Reader:
    """One session of a draft, as its passes leave it.

    Attributes:
        text: committed tokens; of the first ``known`` but the last the target's states are known.
        nodes: token path below the text of each scratch node.
    """

    def __init__(self, session: int, holds: bool) -> None:
        """Args: ``holds``: a pass over committed tokens goes on behind the nodes that hold some."""
        generator = torch.Generator().manual_seed(session)
        self.features = torch.randn((VOCABULARY, 32), generator=generator, dtype=torch.float64)
        self.text, self.known, self.nodes = list[int](), 0, list[tuple[int, ...]]()
        self._fresh = iter(torch.randperm(VOCABULARY, generator=generator).tolist())
        self._holds = holds

    def order(self, draw: Callable[..., Any]) -> DraftPass:
        """A pass behind an accepted path, over committed tokens or new nodes; a parent may be a
        node of the same pass."""
        tokens = tuple(islice(self._fresh, draw(st.integers(2, 6))))
        end, nodes = draw(st.sampled_from([(), *self.nodes])), self.nodes
        keep = [i for i, path in enumerate(nodes) if path[: len(end)] == end[: len(path)]]
        if not self.text or draw(st.booleans()):
            self.text, self.nodes = [*self.text, *end, *tokens], []
            self.known = len(self.text)
            held = keep[: len(end)] if self._holds else ()
            return DraftPass.over_committed(1, (*end, *tokens), 4, tuple(held))
        self.text += end
        self.nodes = [nodes[i][len(end) :] for i in keep[len(end) :]]
        parents = []
        for token in tokens:
            parents.append(draw(st.integers(NO_PARENT, len(self.nodes) - 1)))
            above = () if parents[-1] == NO_PARENT else self.nodes[parents[-1]]
            self.nodes.append((*above, token))
        return DraftPass(1, (), tokens, tuple(parents), False, 4, tuple(keep), len(end))


@pytest.mark.parametrize("kind", ["eagle", "model"])
@examples(80)
@given(st.data())
def test_sessions_of_a_batch_are_answered_as_by_dense_computation(
    target: Checkpoint, head: Path, kind: str, data: st.DataObject
) -> None:
    """They differ in what they have read, in rows, in levels, and in which passes they run. (A
    random head amplifies rounding from level to level, hence the precision.)"""
    graphs = data.draw(st.booleans())
    draft: EagleDraft | LanguageModelDraft = LanguageModelDraft(target, 64, graphs=graphs)
    whole = WholeModel(target, 64)
    if kind == "eagle":
        draft = EagleDraft(head, target, 64, torch.float64, graphs=graphs)
    sessions = range(1, data.draw(st.integers(2, 4)) + 1)
    readers = {session: Reader(session, holds=kind == "model") for session in sessions}
    for session in sessions:
        draft.open(session)
    for _ in range(data.draw(st.integers(2, 5))):
        passes = []
        for session in data.draw(st.lists(st.sampled_from(sessions), min_size=2, unique=True)):
            reader = readers[session]
            known, order = reader.known, reader.order(data.draw)
            passes.append((session, order))
            if isinstance(draft, EagleDraft):
                draft.observe(session, reader.features[max(known - 1, 0) : reader.known - 1])
        for found, (session, order) in zip(draft.log_probs_batch(passes), passes, strict=True):
            reader = readers[session]
            text, guessed = reader.text[: reader.known], reader.text[reader.known :]
            true = reader.features[: reader.known - 1]
            for row, path in zip(found, reader.nodes[-len(order.tokens) :] or [()], strict=True):
                if kind == "eagle":
                    expected = dense(head, target, text, true, [*guessed, *path])
                else:
                    tokens = [*reader.text, *path]
                    whole.stage.open(0)
                    logits = whole.read(tokens, range(len(tokens)), None)[-1]
                    expected = logits.double().log_softmax(-1)
                _assert_close(row, expected)
            if isinstance(draft, LanguageModelDraft):
                assert draft.cache(session).length == len(reader.text) + len(reader.nodes)


# --- in runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    ("kind", "name"),
    [("ngram", "flowspec"), ("hybrid", "specpipe"), ("eagle", "specpipe_db")],
)
def test_text_is_greedy_whatever_drafts(
    target: Checkpoint, head: Path, kind: str, name: str, graphs: bool
) -> None:
    deployment = small_deployment(name, clients=3, captured=(NORMED,) * (kind == "eagle"))
    model = head if kind == "eagle" else target.directory
    roles = drafting_roles(target, model, deployment, kind)
    LocalRun(computing(roles, graphs)).assert_greedy(target.directory)


def computing(roles: list[RoleSettings], graphs: bool) -> list[RoleSettings]:
    """The roles with passes in buckets, or with exact ones."""
    compute = replace(ONE_CORE, graphs=graphs)
    return [replace(each, placed=replace(each.placed, compute=compute)) for each in roles]


@pytest.mark.parametrize("graphs", [False, True])
def test_text_is_greedy_with_a_block_draft_that_reads_two_layers(
    target: Checkpoint, tmp_path: Path, graphs: bool
) -> None:
    """Their states travel along the pipeline, which has the ends."""
    folder = save_block_head(tmp_path, target, layers=(1, target.layers - 1))
    deployment = small_deployment("specinfer", clients=2, captured=(2, NORMED), blocks=True)
    roles = drafting_roles(target, folder, deployment, "block", block=5)
    LocalRun(roles).assert_greedy(target.directory)


@pytest.mark.processes
def test_passes_in_vain_leave_the_text_as_it_is(target: Checkpoint, head: Path) -> None:
    """The way back takes over 20 ms, so an idle draft runs several of them per round, if the host
    keeps up."""
    deployment = changed(small_deployment("chain", captured=(NORMED,)), warm_up_ms=3.0)
    with Controller(drafting_roles(target, head, deployment, "eagle"), deployment) as running:
        trace, _ = running.run(deployment)
    assert_greedy(trace, deployment, target.directory)
    vain = [s for s in trace.spans if s.device == "draft0" and s.kind == "draft" and not s.session]
    assert vain
    ended = sorted(s.end_ms for s in trace.spans if s.device == "draft0")
    for span in vain:
        before = max((end for end in ended if end <= span.start_ms), default=-3.0)
        assert span.start_ms - before > 2.9, "only behind an idle gap"


def test_a_session_that_begins_again_draws_other_numbers() -> None:
    """A first one draws what it always drew; no stream is another one's (trailing zeros of a seed
    are lost on NumPy, so a number's place matters)."""
    drawn = {
        int(np.random.default_rng(stream(3, number + again * LIVES, concern)).integers(2**63))
        for number in range(6)
        for again in range(4)
        for concern in (0, 1)
    }
    assert len(drawn) == 6 * 4 * 2
    first = np.random.default_rng([3, 5, 1]).integers(2**63)
    assert np.random.default_rng(stream(3, 5, 1)).integers(2**63) == first
