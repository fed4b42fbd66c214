"""Rows that nobody measured: what is known of a table, and what its uncertainty may do to it."""

from __future__ import annotations

from math import ceil, inf

from hypothesis import given
from hypothesis import strategies as some

from treepipe.physics.timing import ServiceTable, TimeTable, Unknown
from treepipe.profiles.library import LIBRARY, find_model, load_device, shape_of
from treepipe.profiles.schema import DeviceProfile
from treepipe.profiles.service import ServedModel, ServiceTimes

POINTS = some.dictionaries(
    some.integers(1, 300), some.floats(0.1, 1e3), min_size=1, max_size=6
).map(lambda points: dict(zip(sorted(points), sorted(points.values()), strict=True)))
"""Tables whose times rise with the rows, as those of kernels mostly do."""


def test_a_table_knows_its_points_and_what_lies_between_near_ones() -> None:
    assert TimeTable({1: 22.6}).unknown == ((1, inf),)
    assert TimeTable({1: 20.0, 64: 20.8, 128: 34.0}).unknown == ((128, inf),)
    assert TimeTable({1: 69.4, 512: 3154.0}).unknown == ((1, 512), (512, inf))
    assert TimeTable({16: 20.0, 64: 30.0}).guessed(1, 100) == [(1, 15), (65, 100)]
    assert TimeTable({1: 20.0, 256: 20.0}).unknown == ((256, inf),), "stated to be flat"
    assert TimeTable({1: 0.0}).unknown == ()
    assert TimeTable({1: 20.0, 16: 30.0}, ((1, inf),)).scaled(2.0).guessed(1, 8) == [(2, 8)]


def test_growth_by_hand() -> None:
    """A pass over rows is at least one over the known rows, and at most as many of them."""
    grown = TimeTable({1: 20.0}).grown(2.5)
    assert [grown(rows) for rows in (1, 2, 3, 4, 64)] == [20, 40, 50, 50, 50]
    assert TimeTable({1: 20.0}).grown(0.4)(64) == 20.0
    below = TimeTable({8: 40.0, 16: 50.0}).grown(2.0)
    assert [below(rows) for rows in (1, 4, 8, 16)] == [20, 20, 40, 50]
    flat = ServiceTable({0: {1: 10.0, 8: 10.0}, 1000: {1: 12.0, 8: 12.0}}).grown(3.0)
    assert (flat(8), flat(8, 1000), flat(9), flat(9, 1000)) == (10, 12, 20, 24)


@given(POINTS, some.floats(0.1, 8.0), some.integers(1, 1000))
def test_growth_keeps_what_is_known_and_its_bounds(
    points: dict[int, float], factor: float, rows: int
) -> None:
    table = TimeTable(points)
    grown = table.grown(factor)
    for known, ms in points.items():
        assert abs(grown(known) - ms) < 1e-9 * ms
    if rows > max(points):
        last = max(points)
        assert grown(rows) >= points[last] * (1 - 1e-9)
        most = max(table(rows), ceil(rows / last) * points[last])
        assert grown(rows) <= max(most, factor * table(rows)) * (1 + 1e-9)


def unknown(device: str, dtype: str) -> Unknown:
    profile = load_device(LIBRARY / "devices" / f"{device}.toml")
    assert isinstance(profile, DeviceProfile)
    model = ServedModel("llama-3.1-8b", find_model("llama-3.1-8b", "test"), dtype)  # type: ignore[arg-type]
    return ServiceTimes(device, profile, shape_of, []).stage(model, 4).unknown


def test_quantized_weights_are_known_where_they_were_measured() -> None:
    assert unknown("rtx-4090", "bfloat16") == ((2048, inf),)
    assert unknown("rtx-4090", "int4") == unknown("l40", "int4") == ((1, inf),)
    assert unknown("l40", "float16") == ()


def test_weights_of_other_bytes_do_not_step_where_measured_kernels_do() -> None:
    """Twice the rows never take more than twice the time, as those of the measured type did where
    its own kernels bend (from 64 rows to 128: 2.23 times)."""
    profile = load_device(LIBRARY / "devices" / "rtx-4090.toml")
    assert isinstance(profile, DeviceProfile)
    model = ServedModel("llama-3.1-70b", find_model("llama-3.1-70b", "test"), "int4")
    service = ServiceTimes("rtx-4090", profile, shape_of, [])
    stage = service.stage(model, 80)
    for rows in (8, 16, 32, 64, 128, 256):
        assert stage(2 * rows) < 2.01 * stage(rows)
    assert service.uncertainty == 1.0
