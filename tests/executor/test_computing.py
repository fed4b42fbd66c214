"""Types and processors of roles: texts in 16 bits, states on their way, what is not there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worlds.command_line import Terminal, run_with
from tests.worlds.tiny_models import greedy, parameter_bytes
from treepipe.core.messages import NO_PARENT, Flight, Segment
from treepipe.core.protocol import DraftPass
from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.models import computing
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import DTYPES, DeviceTransfer, fault_of, gpu_fault, use
from treepipe.executor.models.source_settings import SourceSettings
from treepipe.executor.models.sources import open_source
from treepipe.executor.run.launch import prepare
from treepipe.executor.wire.envelope import Gate
from treepipe.executor.wire.mailbox import Inbox, Outbox
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.scenario.deployment import COMPUTED, ONE_CORE, Compute, Computed
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import SamplingSection, SourceSection
from treepipe.testing.random_model import save_random_checkpoint

torch.set_num_threads(1)

PROMPT = [5, 9, 2, 40, 17]
HALVES: tuple[Computed, ...] = ("float16", "bfloat16")
needs_gpu = pytest.mark.skipif(gpu_fault() is not None, reason=f"needs a GPU: {gpu_fault()}")
GPU: list[Any] = [pytest.param("cuda", marks=needs_gpu), "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_checkpoint(tmp_path_factory.mktemp("model"), layers=3, seed=1)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_model_in_16_bits_is_half_as_large_and_nearly_the_same(
    folder: Path, dtype: Computed
) -> None:
    checkpoint = Checkpoint.open(folder)
    full, half = (WholeModel(checkpoint, 64, Compute(dtype=each)) for each in ("float32", dtype))
    assert 2 * parameter_bytes(half.stage) == parameter_bytes(full.stage)
    rows = []
    for model in (full, half):
        model.stage.open(0)
        rows.append(model.read(PROMPT, range(5), None))
    assert rows[1].dtype == DTYPES[dtype]
    away = (rows[0] - rows[1].float()).abs().max() / rows[0].abs().max()
    assert 0 < away < 64 * torch.finfo(DTYPES[dtype]).eps


@pytest.mark.parametrize("kind", GPU)
def test_float32_gives_the_same_text_on_every_processor(folder: Path, kind: Any) -> None:
    model = WholeModel(Checkpoint.open(folder), 64, Compute(kind))
    assert model.greedy(PROMPT, 20) == greedy(folder, PROMPT, 20)


@pytest.mark.parametrize("kind", GPU)
@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize("source", ["model", "eagle", "hybrid"])
def test_every_draft_computes_in_every_type(
    target: Checkpoint, head: Path, kind: Any, dtype: Computed, source: str
) -> None:
    """A pass over a prompt and a tree of two nodes, beside the same in float32 on the CPU; and an
    answer that a verification rule remembers."""
    model = head if source == "eagle" else target.directory
    settings = SourceSettings(SourceSection(source=source), model, SamplingSection(), False, 0)
    states = WholeModel(target, 64)
    states.stage.open(0)
    hidden = states.stage.forward(0, states.ends.embed(PROMPT), range(5), None)
    read = DraftPass(0, (*PROMPT, 3), (), (), True, 4)
    orders = read, DraftPass(0, (), (7, 8), (NO_PARENT, 0), False, 4)
    found = []
    for compute in (ONE_CORE, Compute(kind, dtype=dtype)):
        for remembers in (False, True):
            drafts_with = replace(settings, remembers=remembers)
            draft = open_source(drafts_with, target, target.vocabulary, 64, compute)
            draft.open(1)
            if source == "eagle":
                draft.observe(1, states.ends.features(hidden))  # type: ignore[attr-defined]
            if remembers:
                assert len(draft.draft(1, read).tokens[0]) == 4
            else:
                rows = torch.cat([draft.log_probs(1, order) for order in orders]).cpu()
                assert rows.dtype == torch.float64
                found.append(rows.exp())
    away = (found[0] - found[1]).abs().max()
    assert away < (1e-4 if dtype == "float32" else 0.5)


@pytest.mark.parametrize("dtype", COMPUTED)
def test_states_arrive_as_they_were_sent(dtype: Computed) -> None:
    token = bytes(16)
    states = torch.randn(3, 8).to(DTYPES[dtype])
    segment = Segment(1, 1, 0, 0, 0, (4, 5, 6), (0, 1, 2))
    names = frozenset(["a"]), frozenset(["b"])
    gate = Gate(token, *names, (Flight,), 8, 9, dtype=DTYPES[dtype])
    transport = ZeroMQ()
    inbox = Inbox(transport, 0, "b", gate=gate)
    outbox = Outbox(transport, inbox.address, ("a", "b"), None, token)
    try:
        outbox.send(Flight(0, 0, (segment,)), 0.0, 0, states)
        received = inbox.get()
        assert received is not None
        assert received.hidden is not None
        assert received.hidden.dtype == states.dtype
        assert torch.equal(received.hidden, states)
    finally:
        transport.close()


@pytest.mark.parametrize("kind", GPU)
@pytest.mark.parametrize("dtype", COMPUTED)
def test_a_transfer_carries_rows_of_any_number(kind: Any, dtype: Computed) -> None:
    compute = Compute(kind, dtype=dtype)
    transfer = DeviceTransfer(compute)
    for rows in (4, 1, 9, 9):
        states = torch.randn(rows, 6).to(DTYPES[dtype])
        there = transfer.to_device(states)
        assert there.device.type == kind
        assert torch.equal(transfer.to_host(2 * there), 2 * states)
        transfer.wait()


def test_states_are_copied_once_where_processor_and_gpu_share_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No pinned buffer (which would fail here, where there is no GPU)."""
    monkeypatch.setattr(computing, "shares_memory", lambda index: index == 0)
    transfer = DeviceTransfer(Compute("cuda"))
    transfer._device = "cpu"
    states = torch.randn(3, 4)
    assert torch.equal(transfer.to_host(transfer.to_device(states)), states)
    assert not transfer._buffer.numel()


def test_a_role_that_cannot_replay_graphs_says_so(tmp_path: Path) -> None:
    """As stages whose passes a word may end; whose drafts have graphs all the same."""
    keys = ["drafts.0.device.graphs='auto'", "pipelines.0.stages.0.device.graphs='auto'"]
    path = run_with(tmp_path, "reference", "reference")
    for schedule, told in (("flowspec", 0), ("flowspec_free", 1)):
        cancels = ["schedule.cancels=true"] * told
        scenario = Scenario.load(path, [f"schedule.name='{schedule}'", *cancels, *keys])
        launch = prepare(scenario)
        assert all(role.placed.compute.graphs for role in launch.roles)
        found = [each for each in launch.deployment.warnings if each.startswith("graphs of")]
        assert len(found) == told * len(launch.deployment.roles.pipelines[0])
        assert all("schedule.cancels ends a pass behind any layer" in each for each in found)


def test_what_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fault_of(ONE_CORE) is None
    assert "more than this machine's" in (fault_of(Compute(threads=999)) or "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert fault_of(Compute("cuda", 1)) is None
    assert "index = 2: torch" in (fault_of(Compute("cuda", 2)) or "")
    before = torch.get_num_threads()
    use(Compute(threads=2))
    assert torch.get_num_threads() == 2
    use(Compute(threads=before))


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ("drafts.0.device.kind='cuda' drafts.0.device.index=77", "of draft0 has kind = 'cuda'"),
        ("pipelines.0.stages.0.device.threads=1000", "of pipeline0.stage1 has threads = 1000"),
        ("target.dtype='int4' emulate=false", "key target.dtype = 'int4' cannot be run"),
        ("workload.prompts='texts.json'", "workload.prompts = 'texts.json': prompt 1 is empty"),
    ],
)
def test_a_run_is_refused_before_a_worker_starts(
    terminal: Terminal, settings: str, part: str
) -> None:
    scenario = run_with(terminal.folder, "reference", "reference")
    (terminal.folder / "texts.json").write_text('["a text", ""]')
    choices = [each for setting in settings.split() for each in ("--set", setting)]
    terminal.refuses(part, "run", scenario, "--quiet", *choices)
