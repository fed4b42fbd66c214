"""Devices that people own: published rates of generation lie within their profiles' uncertainty."""

from __future__ import annotations

import csv
from math import log, log1p
from pathlib import Path
from statistics import median

from treepipe.profiles.library import LIBRARY, find_model, load_device, profile_names, shape_of
from treepipe.profiles.schema import DeviceProfile
from treepipe.profiles.service import ServedModel, ServiceTimes

RATES = Path(__file__).parents[1] / "data" / "decoding_rates.csv"
DEVICES = {
    **{"M1 7c": "apple-m1", "M1 Max 32c": "apple-m1-max", "Apple M1 Max": "apple-m1-max"},
    **{"M1 Ultra 48c": "apple-m1-ultra", "M1 Ultra 64c": "apple-m1-ultra"},
    **{"M2 Max 30c": "apple-m2-max", "M2 Ultra 76c": "apple-m2-ultra"},
    **{
        "M3 Max 40c": "apple-m3-max",
        "M3 Ultra": "apple-m3-ultra",
        "M3 Ultra 80c": "apple-m3-ultra",
    },
    **{"Apple M4 Pro": "apple-m4-pro", "Apple M4 10c": "apple-m4", "GB10": "gb10"},
    **{"RTX 2080 Ti": "rtx-2080-ti", "RTX 3060 12GB": "rtx-3060", "RTX 4070 Ti": "rtx-4070-ti"},
    **{"RTX 5090": "rtx-5090", "RTX 5090 [?device]": "rtx-5090", "V100 PCIe": "v100"},
    **{"RTX A4000 (Pi CM5 host)": "rtx-a4000", "P40": "tesla-p40", "Arc B580": "arc-b580"},
    **{"Raspberry Pi 5": "raspberry-pi-5", "Raspberry Pi 5 16GB": "raspberry-pi-5"},
    **{"RX 9070 XT": "rx-9070"},
}
MODELS = {
    **{"Llama-3 8B": "llama-3.1-8b", "Llama-3.1 8B": "llama-3.1-8b", "Llama 8B": "llama-3.1-8b"},
    **{"Llama-3 70B": "llama-3.1-70b", "Llama-3.3 70B": "llama-3.3-70b", "Qwen3 14B": "qwen-3-14b"},
    **{"Llama-2 7B": "llama-2-7b", "Llama 7B": "llama-2-7b", "Qwen3 32B": "qwen-3-32b"},
    **{"DeepSeek-R1-Qwen 14B": "qwen-2.5-14b", "Qwen2.5-Coder 7B": "qwen-2.5-7b"},
    **{"Gemma-3 27B": "gemma-3-27b", "TinyLlama 1.1B": "tinyllama-1.1b", "Qwen3 8B": "qwen-3-8b"},
    **{"Qwen2 1.5B": "qwen-2.5-1.5b", "Llama-3.2 3B": "llama-3.2-3b"},
    "Qwen3-Coder 30B-A3B": "qwen-3-30b-a3b",
}
"""Without gpt-oss, whose GGUF keeps in 8 bits what its ``config.json`` leaves in 16 (its rates are
predicted 30 % too low)."""


def device_of(row: dict[str, str]) -> str | None:
    name, backend = row["device"], row["engine_backend"]
    if name in ("Strix Halo", "RX 7900 XTX"):
        rocm = "HIP" in backend or "ROCm" in backend
        if name == "RX 7900 XTX":
            return None if rocm else "rx-7900-xtx"
        return "strix-halo-rocm" if rocm else "strix-halo"
    return DEVICES.get(name)


def error(row: dict[str, str], device: str) -> float:
    """Predicted over measured time of a token, as a logarithm."""
    profile = load_device(LIBRARY / "devices" / f"{device}.toml")
    assert isinstance(profile, DeviceProfile)
    dtype = {"F16": "float16", "Q8_0": "int8"}.get(row["quant"], "int4")
    model = find_model(MODELS[row["model"]], "test")
    served = ServedModel(MODELS[row["model"]], model, dtype)  # type: ignore[arg-type]
    token = ServiceTimes(device, profile, shape_of, []).draft(served)
    return log(token(1) * float(row["tg_tok_s"]) / 1e3)


def rows() -> list[tuple[dict[str, str], str]]:
    found = csv.DictReader(RATES.read_text(encoding="utf-8").splitlines())
    pairs = [(row, device_of(row)) for row in found if row["model"] in MODELS]
    return [(row, device) for row, device in pairs if device is not None]


def test_published_rates_lie_within_the_stated_uncertainty() -> None:
    errors = {
        (device, row["model"], row["quant"], row["engine_backend"]): error(row, device)
        for row, device in rows()
    }
    stated = {
        name: load_device(LIBRARY / "devices" / f"{name}.toml").origin.uncertainty or 0.0
        for name, *_ in errors
    }
    outside = [key for key, missed in errors.items() if abs(missed) > log1p(stated[key[0]])]
    assert len(errors) > 45
    assert len(outside) <= 0.05 * len(errors), outside
    assert median(map(abs, errors.values())) < log1p(0.08)


def test_what_people_own_is_there() -> None:
    """And nothing in the library is without a source, a family of kernels and an uncertainty."""
    assert len({*DEVICES.values()} & {*profile_names("devices")}) >= 18
    for name in {*DEVICES.values()}:
        profile = load_device(LIBRARY / "devices" / f"{name}.toml")
        assert isinstance(profile, DeviceProfile)
        assert profile.origin.uncertainty
        assert profile.roofline is not None
        assert "float32" in profile.roofline.tflops
