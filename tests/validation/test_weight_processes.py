"""Runs of a heavier pair and in 16 bits, beside plain decoding of the same weight and type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from treepipe.executor.models.computing import gpu_fault
from treepipe.executor.models.widening import write_wider
from treepipe.library import silent
from treepipe.profiles.library import REFERENCE
from treepipe.scenario.scenario import Scenario
from treepipe.validation.comparison import Case, compared
from treepipe.validation.judgement import Agreement

pytestmark = pytest.mark.processes

TABLES = {"stage_ms": {1: 1.0}, "draft_ms": {1: 1.0}}
HALF = {"target.dtype": "bfloat16", "drafts.0.model.dtype": "bfloat16"}
WIDE = {"target.checkpoint": "target-24", "drafts.0.model.checkpoint": "draft-4"}
ENDS = {"schedule.ends": "draft", "schedule.prefill_chunk": 16}
EAGLE = {"drafts.0.source": "eagle", "drafts.0.head": "reference"}
GPU = {"drafts.0.device.kind": "cuda", "pipelines.0.stages.0.device.kind": "cuda"}
CASES: dict[str, dict[str, Any]] = {
    "wide": {"schedule.name": "flowspec", **WIDE},
    "half": {"schedule.name": "eagle", **HALF, **EAGLE, "target.checkpoint": "target-2"},
    "cpu": {"schedule.name": "flowspec"},
    "gpu": {"schedule.name": "flowspec", **GPU},
    "half gpu": {"schedule.name": "specpipe", **GPU, **HALF},
    "half, plain": {"schedule.name": "pp", **ENDS, **HALF},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the bundled models at other widths."""
    made = tmp_path_factory.mktemp("wide")
    for role, times in (("target", 24), ("target", 2), ("draft", 4)):
        write_wider(REFERENCE / role, times, made / f"{role}-{times}")
    return made


def case(label: str, folder: Path = Path()) -> Case:
    content = {
        "name": label,
        "emulate": False,
        "target": {"checkpoint": "reference"},
        "drafts": [{"device": TABLES, "model": {"checkpoint": "reference"}}],
        "pipelines": [{"stages": [{"device": TABLES, "count": 2}]}],
        "schedule": {"name": "pp"},
        "acceptance": {"source": "bernoulli", "beta": 0.7},
        "workload": {"requests": 2, "new_tokens": 10},
    }
    return Case(label, Scenario.of(content, folder / "scenario.toml").with_(**CASES[label]))


def test_runs_of_any_weight_and_type_keep_plain_decodings_text(folder: Path) -> None:
    rows = compared([case(label, folder) for label in ("wide", "half", "half, plain")], silent)
    for label, row in rows.items():
        assert row.lossless, f"{label}: {row.agreement}"
        warned = any("sums of 16 bits depend on" in warning for warning in row.warnings)
        assert warned == label.startswith("half")
    assert rows["wide"].agreement == Agreement("float32", 2, 2, 20, 20, None, True)
    # Plain decoding in the same chunks, a row at a time: the same sums, the same text.
    assert rows["half, plain"].agreement == Agreement("bfloat16", 2, 2, 20, 20, None, True)
    passes = {
        label: [s.end_ms - s.start_ms for s in row.execution.spans if s.kind == "compute"]
        for label, row in rows.items()
    }
    assert min(passes["wide"]) > 1.5 * min(passes["half, plain"])


@pytest.mark.skipif(gpu_fault() is not None, reason=f"needs a GPU: {gpu_fault()}")
def test_a_run_on_a_gpu_keeps_the_text_and_in_float32_the_cpus() -> None:
    rows = compared([case(label) for label in ("cpu", "gpu", "half gpu")], silent)
    assert all(row.lossless for row in rows.values()), rows["half gpu"].agreement
    texts = {label: [each.tokens for each in row.execution.requests] for label, row in rows.items()}
    assert texts["gpu"] == texts["cpu"]
