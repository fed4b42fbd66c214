"""The law of kernels over quantized weights, against published curves that its fit left out."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from math import exp, log
from pathlib import Path

import numpy as np
import pytest

from treepipe.profiles.kernels import FULL_TILE, KERNELS, READING, REUSE, ROW_SHARE, UNRATED
from treepipe.profiles.library import find_model, shape_of
from treepipe.profiles.schema import Hardware
from treepipe.profiles.service import ServedModel, ServiceTimes

CURVES = Path(__file__).parents[1] / "data" / "kernel_curves.csv"
FLOAT32 = {
    **{"RTX 3090": 35.6, "RTX 4090": 82.6, "RTX 5090": 104.8, "GB10": 31.0, "V100": 14.1},
    **{"Orin Nano": 1.28, "AGX Orin": 5.3, "M2 Ultra": 27.2, "RX 6800": 16.2, "Strix Halo": 14.8},
}
"""Peaks of the devices in TFLOPS, by their makers (RDNA 3.5 without its double issue)."""
PARAMETERS = {
    **{"8B Q4_0": 8.03, "7B Q2_K_M": 6.74, "8B, no head": 7.5, "8B Q2_K_M": 8.03, "7B Q4_1": 6.74},
    **{"Qwen2.5-7B Q8_0 (sequences)": 7.6, "qwen2 7B Q8_0": 7.6, "Qwen3.5-4B Q2_K": 4.2},
    **{"Qwen3.5-4B K-quant": 4.2, "7B Q4_K_S": 6.74, "7B Q4_0": 6.74, "8B Q4_K_M": 8.03},
    **{"32B Q8_0": 32.8, "70B Q4_K_M": 70.6},
}
"""Billions of weights of the models."""
FUSED = ("vLLM Marlin RTN int4", "SGLang Marlin", "SGLang AWQ")
ONE_ROW = {("RTX 4090", "8B Q4_0"): 6.15, ("RTX 4090", "8B Q4_K_S"): 6.2}
"""Milliseconds of one row where no curve has it: of its 4.33 and 4.36 GiB at 75 % of 1,008 GB/s."""
OLD = ("Metal old mat-vec", "CUDA MoE")
"""A kernel that was replaced, and a mixture's curve, which is the law of experts'."""

Curve = tuple[str, str, str]


@cache
def curves() -> dict[Curve, dict[int, float]]:
    found: dict[Curve, dict[int, float]] = defaultdict(dict)
    for row in csv.DictReader(CURVES.read_text(encoding="utf-8").splitlines()):
        key = row["device"].split(" [")[0], row["kernel"], row["model"]
        found[key][int(row["rows"])] = float(row["ms"])
    return {key: each for key, each in found.items() if key[1] not in OLD}


def family(curve: Curve) -> str:
    kernel = curve[1]
    if kernel in FUSED:
        return "fused"
    return next(name for name in ("cuda", "hip", "vulkan", "metal") if name in kernel.lower())


@cache
def few_rows() -> dict[Curve, dict[int, float]]:
    """Growth over one row, up to 8 rows, of mat-vec kernels."""
    return {
        key: {n: ms / each[1] for n, ms in each.items() if 1 < n <= 8}
        for key, each in curves().items()
        if 1 in each and family(key) != "fused"
    }


@cache
def many_rows() -> dict[Curve, dict[int, float]]:
    """Growth over one row of matrix kernels, up to 64 rows, but for the cliffs of 64 rows on HIP,
    where weights are unpacked into memory."""
    found = {}
    for key, each in curves().items():
        fused, one = family(key) == "fused", each.get(1)
        if "MMQ" in key[1]:
            one = ONE_ROW.get((key[0], key[2])) or next(
                other[1] for name, other in curves().items() if name[::2] == key[::2] and 1 in other
            )
        least, most = (2 if fused or "MMQ" in key[1] else 9), 33 if family(key) == "hip" else 65
        growth = {n: ms / one for n, ms in each.items() if one and least <= n < most}
        if growth:
            found[key] = growth
    return found


def vec(share: float, curve: Curve, rows: int) -> float:
    """The law of mat-vec kernels, written here once more."""
    device, _, model = curve
    unpacking = 2 * PARAMETERS[model] / (share * FLOAT32[device]) / curves()[curve][1]
    return max(1 + REUSE * (rows - 1), READING + rows * unpacking)


def share_of(known: Mapping[Curve, Mapping[int, float]]) -> float:
    """The share that fits curves best: least squares of logarithms on a fine grid."""

    def misses(share: float) -> float:
        return sum(
            log(vec(share, key, n) / growth) ** 2
            for key, each in known.items()
            for n, growth in each.items()
        )

    return min((float(each) for each in np.geomspace(0.15, 1.0, 80)), key=misses)


def flat_of(known: Sequence[Mapping[int, float]], per_row: float) -> float:
    """The mean growth of matrix kernels, each curve counted once."""
    logs = [
        np.mean([log(g / (1 + per_row * max(0, n - FULL_TILE))) for n, g in each.items()])
        for each in known
    ]
    return exp(float(np.mean(logs)))


def left_out(name: str) -> list[float]:
    """The errors, as logarithms, at all points of the family's curves: each curve is predicted by
    a fit to the family's others (of a family with one curve: to all others)."""
    errors, kernels = [], KERNELS[name]
    few, many = few_rows(), many_rows()
    for known, law in ((few, "vec"), (many, "mat")):
        own = [key for key in known if name == "any" or family(key) == name]
        for key in own:
            rest = [each for each in own if each != key] or [each for each in known if each != key]
            if law == "vec":
                share = share_of({each: known[each] for each in rest})
                errors += [log(vec(share, key, n) / g) for n, g in known[key].items()]
            else:
                flat = flat_of([known[each] for each in rest], kernels.per_row)
                errors += [
                    log(flat * (1 + kernels.per_row * max(0, n - FULL_TILE)) / g)
                    for n, g in known[key].items()
                ]
    return errors


@pytest.mark.parametrize("name", ["cuda", "hip", "vulkan", "metal", "fused", "any"])
def test_curves_that_were_left_out_lie_within_the_stated_uncertainty(name: str) -> None:
    errors, kernels = np.abs(left_out(name)), KERNELS[name]
    missed = exp(float(np.percentile(errors, 95))) - 1
    assert missed <= kernels.uncertainty
    assert kernels.uncertainty < 1.25 * missed or name == "metal", "not wider than it must be"


@pytest.mark.parametrize("name", ["cuda", "hip", "vulkan", "metal", "fused", "any"])
def test_figures_are_the_fit_to_the_curves(name: str) -> None:
    few, many = (
        {key: each for key, each in known.items() if name in ("any", family(key))}
        for known in (few_rows(), many_rows())
    )
    kernels = KERNELS[name]
    assert not few or share_of(few) == pytest.approx(kernels.share, rel=0.03)
    assert not many or flat_of([*many.values()], kernels.per_row) == pytest.approx(
        kernels.flat, rel=0.03
    )


def test_without_a_float32_peak_a_row_takes_the_typical_share() -> None:
    """The uncertainty of it, too, is of curves that were left out."""
    few = few_rows()

    def missed(share: float, keys: Sequence[Curve]) -> list[float]:
        return [
            log(max(1 + REUSE * (n - 1), READING + share * n) / growth)
            for key in keys
            for n, growth in few[key].items()
        ]

    def fitted(keys: Sequence[Curve]) -> float:
        shares = (float(each) for each in np.linspace(0.02, 0.3, 57))
        return min(shares, key=lambda share: sum(each**2 for each in missed(share, keys)))

    errors = [each for key in few for each in missed(fitted([k for k in few if k != key]), [key])]
    assert fitted([*few]) == pytest.approx(ROW_SHARE, rel=0.1)
    assert exp(float(np.percentile(np.abs(errors), 95))) - 1 <= UNRATED


def service(model: str, dtype: str, **hardware: object) -> tuple[ServiceTimes, ServedModel]:
    made = Hardware.model_validate(hardware)
    served = ServedModel(model, find_model(model, "test"), dtype)  # type: ignore[arg-type]
    return ServiceTimes("test", made, shape_of, []), served


def test_a_roofline_by_hand() -> None:
    """A layer of Llama 3.1 8B in int4 on a V100: 218,112,000 weights of 0.5625 bytes. Beside them
    a row moves 36,864 bytes."""
    roofline = {"tflops": {"float16": 112, "float32": 14.1}, "memory_gb_s": 900}
    times, model = service("llama-3.1-8b", "int4", roofline=roofline, kernels="cuda")
    layer = times.layer(model)[0]
    one = (218_112_000 * 0.5625 + 36_864) / (0.8 * 900e6)
    eight = (218_112_000 * 0.5625 + 8 * 36_864) / (0.8 * 900e6)
    matrices = 2 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336) / 14.1e9
    assert layer[1] == pytest.approx(one, rel=1e-3)
    assert layer[8] == pytest.approx(0.9 * eight + 8 * matrices / 0.44, rel=2e-3)
    assert layer[9] == pytest.approx(1.24 * eight, rel=5e-3), "the matrix kernel takes over"
    assert times.stage(model, 32).doubt == 0.35
    assert times.stage(ServedModel(model.name, model.shape, "float16"), 32).doubt is None


def test_an_import_with_few_points_follows_the_law_between_them() -> None:
    """One layer, one row measured and a prompt: what lies between was a straight line."""
    points = {0: {1: 0.86, 512: 39.0}}
    entry = {"model": "llama-3.1-70b", "dtype": "int4", "ms": points}
    times, model = service("llama-3.1-70b", "int4", layer=[entry], kernels="metal")
    table = times.stage(model, 1)
    assert (table(1), table(512)) == (0.86, 39.0), "what was measured stays"
    assert table(8) == pytest.approx(0.86 * (0.9 + 8 * 0.12))
    assert table(16) == pytest.approx(0.86 * 1.72)
    assert table.guessed(1, 512) == [(2, 511)]
    assert table.doubt == 0.95
