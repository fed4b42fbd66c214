"""Power of this machine, idle and busy, as its own sensors tell it; nothing where it has none.

Two sensors are read: NVIDIA's library (NVML) for a GPU, and the INA3221 of a Jetson below ``root``
(sysfs). What clocks and power mode the figures hold for is the owner's to note.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch

from treepipe.profiles.schema import MeasuredPower

STEP_S = 0.05
"""Seconds between readings."""
ROOT = Path("/")


def _ina3221(root: Path) -> tuple[str, Callable[[], float]] | None:
    """Find Jetson's rails: millivolts and milliamperes (Linux, Documentation/hwmon/ina3221.rst).

    ``VDD_IN`` is the module's input; without it the power is the sum of the rails.
    """
    rails: dict[str, tuple[Path, Path]] = {}
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        if not (chip / "name").exists() or _text(chip / "name") != "ina3221":
            continue
        for label in sorted(chip.glob("in*_label")):
            number = label.name.removeprefix("in").removesuffix("_label")
            files = chip / f"in{number}_input", chip / f"curr{number}_input"
            if all(file.exists() for file in files) and _text(label) not in ("", "NC"):
                rails[_text(label)] = files
    if "VDD_IN" in rails:
        rails = {"VDD_IN": rails["VDD_IN"]}
    if not rails:
        return None

    def watts() -> float:
        return sum(float(_text(v)) * float(_text(a)) for v, a in rails.values()) / 1e6

    return f"INA3221: the board's rails {', '.join(rails)}", watts


def _nvml() -> tuple[str, Callable[[], float]] | None:
    """Find the measured GPU in NVIDIA's library (``nvidia-ml-py``); of a Jetson it tells no
    power."""
    try:
        import pynvml as nvml
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        properties = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
        uuid = getattr(properties, "uuid", None)  # none in old versions of torch
        if uuid is not None:  # torch's first GPU need not be the library's
            gpu = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        nvml.nvmlDeviceGetPowerUsage(gpu)
    except nvml.NVMLError:
        return None
    return "NVML: the GPU's board, not its host", lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3


def find_sensor(device: str, root: Path = ROOT) -> tuple[str, Callable[[], float]] | str:
    """Return what the sensor of a device ("cpu", "cuda") covers and the function that reads watts,
    or the reason why there is none."""
    try:
        sensor = (_nvml() if device == "cuda" else None) or _ina3221(root)
    except OSError as error:
        return f"power was not measured: {error.filename} may not be read ({error.strerror})"
    known = "NVML, INA3221" if device == "cuda" else "INA3221"
    return sensor or f"power was not measured: the machine has none of {known} for it"


def measure_power(
    sensor: tuple[str, Callable[[], float]], work: Callable[[], object], seconds: float
) -> MeasuredPower:
    """Measure mean watts for ``seconds`` each: while idle, and during repeated ``work``."""
    covers, read = sensor
    idle = _mean_watts(read, seconds, lambda: time.sleep(STEP_S))
    return MeasuredPower(idle_w=idle, busy_w=_mean_watts(read, seconds, work), sensor=covers)


def _mean_watts(read: Callable[[], float], seconds: float, work: Callable[[], object]) -> float:
    """Repeat ``work`` and return the mean watts meanwhile."""
    start = last = time.perf_counter()
    values = list[float]()
    while last - start < seconds:
        work()
        if (now := time.perf_counter()) - last >= STEP_S:
            values.append(read())
            last = now
    return fmean(values or [read()])


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()
