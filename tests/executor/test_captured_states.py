"""Captured states: what reaches a draft is what a dense model computes, and what it weighs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.worlds.changed import changed
from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.local_workers import LocalRun
from treepipe.core.captures import NORMED
from treepipe.core.errors import UserError
from treepipe.core.messages import HEADER_BYTES, ROW_BYTES, Flight, Through, Verified
from treepipe.core.system import Ends
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.run.draft_worker import DraftWorker
from treepipe.scenario.deployment import Roles
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario

CAPTURED = (0, 1, 2, 2, 4, NORMED)
"""The embedding, a cut between stages (twice), a place beside it, and both ends of the top."""


def dense_states(target: Checkpoint, text: list[int]) -> torch.Tensor:
    """[tokens, captured hidden] by transformers, whose last hidden states are behind the norm."""
    model: Any = AutoModelForCausalLM.from_pretrained(target.directory, dtype=torch.float32)
    last: list[torch.Tensor] = []
    model.model.layers[-1].register_forward_hook(lambda *call: last.append(call[-1]))
    with torch.inference_mode():
        found = model.eval()(torch.tensor([text]), output_hidden_states=True).hidden_states
    at = {NORMED: found[-1], target.layers: last[0]}
    return torch.cat([at.get(each, found[min(each, 4)])[0] for each in CAPTURED], -1)


@pytest.mark.parametrize("ends", ["draft", "pipeline"])
@pytest.mark.parametrize("name", ["flowspec", "pipedec", "spd", "chain"])
def test_a_draft_reads_the_states_of_exactly_the_committed_text(
    target: Checkpoint, name: str, ends: Ends
) -> None:
    deployment = changed(
        small_deployment(name, clients=3, pipelines=2, ends=ends, captured=CAPTURED),
        row_bytes=4 * target.hidden_size,
        reported_states=((2, 0),) * 2 if name == "spd" else (),
    )
    roles = worker_roles((target.directory, target.directory), deployment)
    seen: dict[int, list[torch.Tensor]] = {}

    def listen(draft: DraftWorker) -> None:
        draft._observe = lambda session, states: seen.setdefault(session, []).append(states)

    kept = [role for role in roles if role.pipeline in (None, 0)]
    run = LocalRun(kept, listen)
    run.assert_greedy(target.directory)
    for number, (spec, text) in enumerate(zip(deployment.requests, run.texts, strict=True), 1):
        prompt = list(spec.prompt)
        states = torch.cat(seen[number])
        assert len(states) >= len(prompt)
        expected = dense_states(target, [*prompt, *text])[: len(states)]
        assert torch.allclose(states, expected, atol=2e-3)
    _assert_sizes(run, deployment.roles)


def _assert_sizes(run: LocalRun, roles: Roles) -> None:
    """What a message weighs in both worlds is what its sender hands over; a report of SPD's has
    anchors' states alone."""
    for name, station in run.stations.items():
        for message, hidden in station.sent:
            if isinstance(message, Flight | Verified | Through):
                states = 0 if hidden is None else hidden.numel() * hidden.element_size()
                expected = HEADER_BYTES + message.rows * ROW_BYTES + states
                assert roles.size_bytes(name, message) == expected
            if isinstance(message, Through):
                assert states == message.state_rows * roles.row_bytes


def test_two_drafts_read_the_same_states_or_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    content = """
        name = "two"
        links = { default = { latency_ms = 1, bandwidth_mbit_s = 100 } }
        target = { layers = 8, hidden_size = 64 }
        drafts = [
            { source = "eagle3", device = { draft_ms = { 1 = 1.0 } } },
            { source = "eagle", device = { draft_ms = { 1 = 1.0 } } },
        ]
        pipelines = [{ stages = [{ device = { stage_ms = { 1 = 1.0 } }, count = 2 }] }]
        schedule = { name = "chain" }
        acceptance = { source = "bernoulli", beta = 0.5 }
        workload = { requests = 1, prompt_tokens = 5, new_tokens = 5 }
    """
    path.write_text(content)
    one = resolve(Scenario.load(path, ["drafts.1.source=eagle3"])).roles
    assert one.captured == (2, 4, 5)
    assert one.sent_states("pipeline0.stage1") == 2, "its own output, and 2; 4 is the next one's"
    assert one.sent_states("pipeline0.stage2") == 3, "a chain's pipeline has the target's ends"
    for settings, part in (
        ((), r"keys drafts.0 and drafts.1 read different states of the target: \(2, 4, 5\) and"),
        (("drafts.1.capture='1,9'", "drafts.1.source=eagle3"), r"drafts.1.capture = '1,9': the t"),
    ):
        with pytest.raises(UserError, match=part):
            resolve(Scenario.load(path, settings))
