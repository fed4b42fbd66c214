"""The profile library: every file is valid, and its tables hold the measured values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treepipe.errors import UserError
from treepipe.profiles.check import check_file
from treepipe.profiles.fit import (
    FAR_TOLERANCE,
    NEAR,
    TOLERANCE,
    choose_knots,
    errors,
    layer_tables,
    transfer_table,
)
from treepipe.profiles.library import (
    KINDS,
    LIBRARY,
    REFERENCE,
    find_device,
    find_link,
    find_model,
    load_device,
    load_model,
    profile_names,
    shape_of,
)
from treepipe.profiles.schema import DeviceProfile, EmulatedProfile
from treepipe.timing import TimeTable

FILES = sorted(path for kind in KINDS for path in (LIBRARY / kind).glob("*.toml"))

# Milliseconds of one layer's linear operations (or of the output projection) at so many tokens, as
# measured: microsoft/vidur at 7d47513 (A40, A100, H100 in float16) and casys-kaist/LLMServingSim at
# 5daddb2 (the others). These are points of the original tables, most of them no knots of ours.
MEASURED: list[tuple[str, str, str, str, dict[int, float]]] = [
    (
        "a100",
        "layer",
        "llama-2-70b",
        "float16",
        {
            1: 1.118,
            24: 1.161,
            64: 1.174,
            80: 1.369,
            112: 1.382,
            192: 2.0825,
            400: 3.989,
            1024: 8.4845,
            2048: 15.40175,
        },
    ),
    (
        "a100",
        "layer",
        "llama-2-7b",
        "float16",
        {
            1: 0.29,
            24: 0.29,
            64: 0.303,
            80: 0.358,
            112: 0.38,
            192: 0.4975,
            400: 0.943,
            1024: 2.123,
            2048: 4.17075,
        },
    ),
    (
        "a100",
        "layer",
        "llama-3-8b",
        "float16",
        {
            1: 0.303,
            24: 0.327,
            64: 0.351,
            80: 0.391,
            112: 0.4025,
            192: 0.524,
            400: 1.032,
            1024: 2.348,
            2048: 4.49,
        },
    ),
    (
        "a40",
        "layer",
        "llama-2-70b",
        "float16",
        {
            1: 3.228,
            24: 3.234,
            64: 3.413,
            80: 3.4845,
            112: 3.4795,
            192: 4.2515,
            400: 8.926,
            1024: 16.408,
            2048: 31.174,
        },
    ),
    (
        "a40",
        "layer",
        "llama-2-7b",
        "float16",
        {
            1: 0.748,
            24: 0.822,
            64: 0.939,
            80: 0.949,
            112: 0.936,
            192: 1.09,
            400: 2.084,
            1024: 4.277,
            2048: 8.10175,
        },
    ),
    (
        "a6000",
        "layer",
        "llama-3.1-8b",
        "bfloat16",
        {
            1: 0.68583,
            24: 0.71984,
            64: 0.77454,
            80: 0.85223,
            112: 0.83152,
            192: 1.17445,
            400: 2.43325,
            1024: 5.22658,
            2048: 10.30107,
        },
    ),
    (
        "a6000",
        "head",
        "llama-3.1-8b",
        "bfloat16",
        {
            1: 1.40628,
            24: 1.43589,
            64: 1.46562,
            80: 1.4817,
            112: 1.48619,
            192: 2.00822,
            400: 3.96696,
            1024: 9.93613,
            2048: 18.21411,
        },
    ),
    (
        "h100",
        "layer",
        "llama-2-70b",
        "float16",
        {
            1: 0.625,
            24: 0.623,
            64: 0.6335,
            80: 0.653,
            112: 0.646,
            192: 0.824,
            400: 1.41,
            1024: 2.9345,
            2048: 5.33275,
        },
    ),
    (
        "h100",
        "layer",
        "llama-2-7b",
        "float16",
        {
            1: 0.175,
            24: 0.181,
            64: 0.183,
            80: 0.226,
            112: 0.1995,
            192: 0.2315,
            400: 0.3965,
            1024: 0.657,
            2048: 1.26325,
        },
    ),
    (
        "h100",
        "layer",
        "llama-3.1-70b",
        "bfloat16",
        {
            1: 0.64251,
            24: 0.68195,
            64: 0.7084,
            80: 0.72052,
            112: 0.73974,
            192: 0.78935,
            400: 1.39893,
            1024: 2.89359,
            2048: 5.96213,
        },
    ),
    (
        "h100",
        "head",
        "llama-3.1-70b",
        "bfloat16",
        {
            1: 0.7164,
            24: 0.7219,
            64: 0.7221,
            80: 0.72416,
            112: 0.71847,
            192: 0.74557,
            400: 1.19468,
            1024: 2.89795,
            2048: 5.88431,
        },
    ),
    (
        "h100",
        "layer",
        "llama-3.1-8b",
        "bfloat16",
        {
            1: 0.23866,
            24: 0.26788,
            64: 0.27898,
            80: 0.28559,
            112: 0.29793,
            192: 0.32028,
            400: 0.45969,
            1024: 0.84252,
            2048: 1.75245,
        },
    ),
    (
        "h100",
        "head",
        "llama-3.1-8b",
        "bfloat16",
        {
            1: 0.36634,
            24: 0.36696,
            64: 0.37594,
            80: 0.37761,
            112: 0.37223,
            192: 0.38707,
            400: 0.60075,
            1024: 1.43724,
            2048: 2.86625,
        },
    ),
    (
        "rtx-3090",
        "layer",
        "llama-3.1-8b",
        "bfloat16",
        {
            1: 0.64031,
            24: 0.65369,
            64: 0.72155,
            80: 0.97881,
            112: 0.98628,
            192: 1.69428,
            400: 3.63398,
            1024: 7.62235,
            2048: 15.29223,
        },
    ),
    (
        "rtx-3090",
        "head",
        "llama-3.1-8b",
        "bfloat16",
        {
            1: 1.18484,
            24: 1.23915,
            64: 1.25707,
            80: 1.83747,
            112: 1.96513,
            192: 3.63212,
            400: 6.6692,
            1024: 16.34164,
            2048: 29.08897,
        },
    ),
    (
        "rtx-4090",
        "layer",
        "llama-3.1-8b",
        "bfloat16",
        {
            1: 0.47556,
            24: 0.52342,
            64: 0.5427,
            80: 0.55619,
            112: 0.58752,
            192: 0.71006,
            400: 1.30548,
            1024: 2.83959,
            2048: 5.65905,
        },
    ),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_library_files_are_valid(path: Path) -> None:
    kind, _ = check_file(path)
    assert kind == path.parent.name


def test_library_holds_what_it_promises() -> None:
    assert {"a40", "a100", "h100", "rtx-3090", "rtx-4090", "a6000", "l40"} <= set(
        profile_names("devices")
    )
    assert {"jetson-orin-nano-8gb", "jetson-agx-orin"} <= set(profile_names("devices"))
    assert {"ethernet-1g", "ethernet-10g", "wifi", "wan"} <= set(profile_names("links"))


@pytest.mark.parametrize(
    ("device", "part", "model", "dtype", "points"), MEASURED, ids=lambda value: str(value)[:16]
)
def test_tables_hold_the_measured_values(
    device: str, part: str, model: str, dtype: str, points: dict[int, float]
) -> None:
    profile = find_device(device, "test")
    assert isinstance(profile, DeviceProfile)
    entries = {"layer": profile.layer, "head": profile.head}[part]
    (entry,) = (e for e in entries if (e.model, e.dtype) == (model, dtype))
    table = TimeTable(entry.ms[0])
    for tokens, measured in points.items():
        within = TOLERANCE if tokens <= NEAR else FAR_TOLERANCE
        assert table(tokens) == pytest.approx(measured, rel=within)
    assert entry.fit_error is not None
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


tables = st.dictionaries(st.integers(1, 2000), st.floats(0.1, 100.0), min_size=1, max_size=30)


@given(tables)
def test_knots_are_measured_points_and_hold_the_others(points: Mapping[int, float]) -> None:
    knots = choose_knots(points)
    assert knots.items() <= points.items()
    assert {min(points), max(points)} <= set(knots)
    limits = [TOLERANCE if size <= NEAR else FAR_TOLERANCE for size in points]
    assert all(e <= limit + 1e-9 for e, limit in zip(errors(knots, points), limits, strict=True))


@given(st.integers(2, 60), st.floats(0.1, 10.0), st.floats(0.0, 1.0))
def test_a_straight_line_needs_two_knots(count: int, start: float, slope: float) -> None:
    assert len(choose_knots({n: start + slope * n for n in range(1, count + 1)})) == 2


def test_fit_writes_tables_a_profile_can_hold() -> None:
    row = {"device": "x", "model": "llama-2-7b", "dtype": "float16", "source": "me"}
    rows = [
        {**row, "part": "decoder_layer_linear", "tokens": str(n), "milliseconds": str(1 + n // 64)}
        for n in (1, 32, 63, 64, 128)
    ]
    text = layer_tables(rows, "x")
    assert "[[layer]]" in text
    assert "ms.0 = { 1 = 1, 63 = 1, 64 = 2, 128 = 3 }" in text
    with pytest.raises(UserError, match="no such device; there are x"):
        layer_tables(rows, "y")
    sends = [
        {"fabric": "f", "devices_per_node": "1", "bytes": str(n), "milliseconds": str(n / 1e6)}
        for n in (1000, 2000, 4000)
    ]
    assert transfer_table(sends, "f", "1").endswith("transfer_ms = { 1000 = 0.001, 4000 = 0.004 }")
