"""The profile library: every file is valid, and its tables hold the measured values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treepipe.physics.timing import TimeTable
from treepipe.profiles.library import (
    KINDS,
    LIBRARY,
    REFERENCE,
    check_file,
    find_device,
    find_link,
    find_model,
    load_device,
    load_model,
    profile_names,
    shape_of,
)
from treepipe.profiles.schema import DeviceProfile, EmulatedProfile
from treepipe.profiles.service import ServedModel, ServiceTimes

TOLERANCE, FAR_TOLERANCE = 0.02, 0.05
"""Largest relative error of a table between its points, at what was measured there."""
NEAR = 256
"""Tokens up to which the first of these holds."""
FILES = sorted(path for kind in KINDS for path in (LIBRARY / kind).glob("*.toml"))

MEASURED = json.loads((Path(__file__).parents[1] / "data" / "measured_times.json").read_text())[
    "measured"
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_library_files_are_valid(path: Path) -> None:
    kind, _ = check_file(path)
    assert kind == path.parent.name


@pytest.mark.parametrize(
    "row", MEASURED, ids=lambda row: f"{row['device']}-{row['part']}-{row['model']}"
)
def test_tables_hold_the_measured_values(row: dict[str, Any]) -> None:
    profile = find_device(row["device"], "test")
    assert isinstance(profile, DeviceProfile)
    entries = {"layer": profile.layer, "head": profile.head}[row["part"]]
    (entry,) = (e for e in entries if (e.model, e.dtype) == (row["model"], row["dtype"]))
    table = TimeTable(entry.ms[0])
    for tokens, measured in ((int(tokens), ms) for tokens, ms in row["ms"].items()):
        within = TOLERANCE if tokens <= NEAR else FAR_TOLERANCE
        assert table(tokens) == pytest.approx(measured, rel=within)
    assert entry.fit_error.median <= TOLERANCE
    assert entry.fit_error.max <= FAR_TOLERANCE


def test_steps_of_a_device_stay_steps() -> None:
    def step(device: str, model: str) -> float:
        profile = find_device(device, "test")
        assert isinstance(profile, DeviceProfile)
        table = TimeTable(next(e for e in profile.layer if e.model == model).ms[0])
        return table(72) / table(64)

    assert step("rtx-3090", "llama-3.1-8b") > 1.5  # 0.72155 -> 1.11234 ms
    assert step("a100", "llama-2-70b") > 1.15  # 1.174 -> 1.356 ms
    assert step("h100", "llama-2-70b") < 1.04  # 0.6335 -> 0.654 ms


@pytest.mark.parametrize("name", profile_names("devices"))
def test_estimates_are_marked(name: str) -> None:
    profile = load_device(LIBRARY / "devices" / f"{name}.toml")
    if isinstance(profile, EmulatedProfile):
        return
    assert profile.origin.estimate == (not profile.layer)
    assert profile.memory_mib is not None
    for entry in (*profile.layer, *profile.head):
        assert shape_of(entry).layers > 1


# Parameters as the models' own cards count them (embeddings included), to three digits.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-2-7b", 6.74),
        ("llama-2-13b", 13.0),
        ("llama-2-70b", 69.0),
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.6),
        ("llama-3.2-1b", 1.24),
        ("llama-3.2-3b", 3.21),
        ("vicuna-7b", 6.74),
        ("vicuna-13b", 13.0),
        ("qwen-2.5-0.5b", 0.494),
        ("qwen-2.5-1.5b", 1.54),
        ("qwen-2.5-3b", 3.09),
        ("qwen-2.5-7b", 7.62),
        ("qwen-2.5-14b", 14.8),
        ("qwen-2.5-32b", 32.8),
        ("qwen-2.5-72b", 72.7),
        ("qwen-3-0.6b", 0.596),
        ("qwen-3-1.7b", 1.72),
        ("qwen-3-4b", 4.02),
        ("qwen-3-8b", 8.19),
        ("qwen-3-14b", 14.8),
        ("qwen-3-32b", 32.8),
        ("qwen-3-30b-a3b", 30.5),
        ("mixtral-8x7b", 46.7),
        ("gpt-oss-20b", 20.9),
    ],
)
def test_model_sizes_give_the_published_parameters(name: str, billions: float) -> None:
    assert find_model(name, "test").parameters / 1e9 == pytest.approx(billions, rel=5e-3)


def test_bytes_follow_from_sizes() -> None:
    model = find_model("llama-2-70b", "test")
    assert model.kv_bytes("float16") == 2 * 8 * 128 * 2
    assert model.kv_bytes("int4") == model.kv_bytes("float16")
    assert model.layer_bytes("float32") == 2 * model.layer_bytes("bfloat16")
    assert model.row_bytes("float16") == 16_384
    head = find_model("eagle-vicuna-7b", "test")
    assert head.parameters == head.layer_parameters + 2 * 4096**2


def test_reference_config_is_a_model_profile() -> None:
    model = load_model(REFERENCE / "target" / "config.json")
    assert (model.layers, model.hidden_size, model.head_dim, model.tied) == (8, 192, 32, True)
    assert model.parameters == 3_935_424  # executor/reference/metrics.json
    assert find_model(str(REFERENCE / "target"), "test") == model


def test_links_by_measured_bytes() -> None:
    link = find_link("a100-dgx-nvlink", "test")
    assert link.transfer_ms is not None
    # vidur: 542,720 bytes took 0.01767 ms, 4,423,680 bytes 0.027 ms.
    assert TimeTable(link.transfer_ms)(542_720) == pytest.approx(0.01767, rel=TOLERANCE)
    assert TimeTable(link.transfer_ms)(4_423_680) == pytest.approx(0.027, rel=FAR_TOLERANCE)


@pytest.mark.parametrize(("draft", "ms"), [("llama-3.1-8b", 67.0), ("llama-3.2-1b", 17.0)])
def test_a_draft_takes_what_was_measured_of_it(draft: str, ms: float) -> None:
    """SpecPipe's drafts on an L40; the roofline alone says a third of it, and a fifth."""
    l40, shape = find_device("l40", "test"), find_model(draft, "test")
    assert isinstance(l40, DeviceProfile)
    served = ServedModel(draft, shape, shape.dtype)
    assert ServiceTimes("l40", l40, shape_of, []).draft(served)(1) == ms
    alone = ServiceTimes("l40", l40.model_copy(update={"draft": ()}), shape_of, [])
    assert alone.draft(served)(1) < ms / 2
