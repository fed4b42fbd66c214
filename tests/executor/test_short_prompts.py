"""Prompts of one token: there is no state before it, and nothing else to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worlds.any_section import SCHEDULES
from tests.worlds.changed import changed
from tests.worlds.deployments import small_deployment
from tests.worlds.eagle3_heads import DIALECTS, save_eagle3
from tests.worlds.examples import THOROUGH
from tests.worlds.local_workers import LocalRun, drafting_roles
from tests.worlds.tiny_models import save_block_head
from treepipe.core.captures import NORMED
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle import EagleDraft
from treepipe.executor.models.eagle3 import Eagle3Draft
from treepipe.executor.models.offsets import head_settings
from treepipe.scenario.deployment import RequestSpec

SOURCES = ("model", "eagle", "eagle3", "block", "ngram", "hybrid")
CASES = [
    (name, source)
    for place, name in enumerate(SCHEDULES)
    for turn, source in enumerate(SOURCES)
    if THOROUGH or (place - turn) % 3 == 0
]
"""A usual run has each system with two sources, and each source with a third of the systems."""


@pytest.mark.parametrize(("name", "source"), CASES)
def test_a_prompt_of_one_token_has_the_targets_text(
    target: Checkpoint, head: Path, tmp_path: Path, name: str, source: str
) -> None:
    model, captured, keys = target.directory, tuple[int, ...](), dict[str, Any]()
    if source == "eagle":
        model, captured = head, (NORMED,)
    elif source == "eagle3":
        model = save_eagle3(tmp_path / "head", target, "speculators")
        captured = head_settings(model, "drafts.source=eagle3").captured(target.layers)
    elif source == "block":
        model = save_block_head(tmp_path, target, layers=(1, target.layers - 1))
        captured, keys = (2, NORMED), {"block": 5}
    made = small_deployment(name, captured=captured, blocks=source == "block")
    requests = (RequestSpec((5,), 5),)
    deployment = changed(made, requests=requests, row_bytes=4 * target.hidden_size)
    run = LocalRun(drafting_roles(target, model, deployment, source, **keys))
    run.assert_greedy(target.directory)


@pytest.mark.parametrize("dialect", ["", *DIALECTS])
def test_behind_a_prompt_of_one_token_a_head_reads_the_targets_state(
    target: Checkpoint, head: Path, tmp_path: Path, dialect: str
) -> None:
    """A node behind it is answered for as if it were committed, too, from that same state."""
    if dialect:
        folder = save_eagle3(tmp_path / "head", target, dialect)
        draft: EagleDraft = Eagle3Draft(folder, target, 64)
        inputs = draft._head.inputs
    else:
        draft, inputs = EagleDraft(head, target, 64), 1
    state = torch.randn((1, inputs * target.hidden_size))
    for session in (1, 2):
        draft.open(session)
        draft.observe(session, state)
    draft.log_probs(1, DraftPass(1, (5,), (), (), True, 0))
    found = draft.log_probs(1, DraftPass(2, (), (8, 9), (NO_PARENT, 0), False, 4))
    expected = draft.log_probs(2, DraftPass(1, (5, 8), (), (), True, 4))
    torch.testing.assert_close(found[:1], expected, rtol=1e-5, atol=1e-3)
