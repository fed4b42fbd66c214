"""Power of this machine, idle and busy, as its own sensors tell it; nothing where it has none.

A sensor is a record: how it is found, what it covers, how it is read. Beside it stands the state
that power and times depend on: power mode, clocks, throttling. All of it is read from files below
``root`` (sysfs), or from NVIDIA's library where that is installed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import torch

from treepipe.profiles.schema import Power

STEP_S = 0.05
"""Seconds between readings."""
ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Sensor:
    """A sensor that was found.

    Attributes:
        covers: what it measures.
        read: watts now, or, of a sensor that ``counts``, joules since it was found.
        clocks, slowed: of a device that tells its own, as in ``State``.
    """

    covers: str
    read: Callable[[], float]
    counts: bool = False
    clocks: Callable[[], dict[str, float]] | None = None
    slowed: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True)
class SensorKind:
    """A kind of sensor: ``find`` returns None if the machine has none, and raises ``OSError`` if it
    may not be read. ``devices`` are those whose power it tells."""

    name: str
    devices: tuple[str, ...]
    find: Callable[[Path], Sensor | None]


@dataclass(frozen=True, slots=True)
class State:
    """What power and times depend on.

    Attributes:
        mode: the power mode's name.
        clocks_mhz: by the clock's name.
        slowed: counted times that the device was slowed down; None: the machine does not tell.
    """

    mode: str | None
    clocks_mhz: dict[str, float]
    slowed: int | None


def _ina3221(root: Path) -> Sensor | None:
    """Find Jetson's rails: millivolts and milliamperes (Linux, Documentation/hwmon/ina3221.rst).

    ``VDD_IN`` is the module's input; without it the power is the sum of the rails.
    """
    rails: dict[str, tuple[Path, Path]] = {}
    for chip in _chips(root, "ina3221"):
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
        return sum(_number(volts) * _number(amperes) for volts, amperes in rails.values()) / 1e6

    return Sensor(f"the board's rails {', '.join(rails)}", watts)


def _rapl(root: Path) -> Sensor | None:
    """Find the counters of x86 processors and their memory: microjoules that begin again at 0
    (Linux, Documentation/power/powercap/powercap.rst)."""
    zones = {}
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        name = _text(zone / "name")
        if name.startswith("package") or name == "dram":
            zones[f"{name} of {zone.name}"] = EnergyZone(zone)
    if not zones:
        return None
    covers = f"the processor's {', '.join(zones)}, not the rest of the machine"
    return Sensor(covers, lambda: sum(each.joules() for each in zones.values()), counts=True)


class EnergyZone:
    """Joules of a RAPL zone since its first reading; to be read more often than it overflows."""

    def __init__(self, zone: Path) -> None:
        self._file = zone / "energy_uj"
        self._range = _number(zone / "max_energy_range_uj")
        self._last, self._sum = _number(self._file), 0.0

    def joules(self) -> float:
        now = _number(self._file)
        self._sum += (now - self._last) % (self._range + 1)
        self._last = now
        return self._sum / 1e6


def _nvml(root: Path) -> Sensor | None:
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
    clocks = {"gpu": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    reasons = (
        nvml.nvmlClocksThrottleReasonSwPowerCap
        | nvml.nvmlClocksThrottleReasonHwSlowdown
        | nvml.nvmlClocksThrottleReasonSwThermalSlowdown
    )
    return Sensor(
        "the GPU's board, not its host",
        lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
        clocks=lambda: {
            name: float(nvml.nvmlDeviceGetClockInfo(gpu, kind)) for name, kind in clocks.items()
        },
        slowed=lambda: int(bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & reasons)),
    )


SENSORS = (
    SensorKind("NVML", ("cuda",), _nvml),
    SensorKind("INA3221", ("cuda", "cpu"), _ina3221),
    SensorKind("RAPL", ("cpu",), _rapl),
)
"""All kinds; the first that is found for a device is read."""


def find_sensor(device: str, root: Path = ROOT) -> tuple[str, Sensor] | str:
    """Return the name of the kind of sensor of a device ("cpu", "cuda") with the sensor, or the
    reason why there is none."""
    closed = list[str]()
    for kind in SENSORS:
        try:
            found = kind.find(root) if device in kind.devices else None
        except OSError as error:
            closed.append(f"{kind.name} ({error.strerror}: {error.filename})")
        else:
            if found is not None:
                return kind.name, found
    asked = ", ".join(kind.name for kind in SENSORS if device in kind.devices)
    hint = f"; {', '.join(closed)} may not be read" if closed else ""
    return f"power was not measured: the machine has none of {asked} for it{hint}"


def state(sensor: Sensor | None = None, root: Path = ROOT) -> State:
    """Read what power and times depend on, as far as the machine or the sensor tells it."""
    clocks = sensor.clocks() if sensor and sensor.clocks else dict(_clocks(root))
    slowed = [sensor.slowed()] if sensor and sensor.slowed else list(_slowed(root))
    return State(_mode(root), clocks, sum(slowed) if slowed else None)


def _mode(root: Path) -> str | None:
    """Return the name of Jetson's power mode (nvpmodel), its number if the name is not told."""
    status, names = root / "var/lib/nvpmodel/status", root / "etc/nvpmodel.conf"
    found = re.search(r"pmode:\s*0*(\d+)", _text(status)) if status.exists() else None
    if found is None:
        return None
    model = rf"<\s*POWER_MODEL\s+ID={found[1]}\s+NAME=(\S+)\s*>"
    named = re.search(model, _text(names)) if names.exists() else None
    return named[1] if named else f"number {found[1]}"


def _clocks(root: Path) -> Iterator[tuple[str, float]]:
    """Yield megahertz of Jetson's GPU, and of the processor's fastest core."""
    for device in sorted((root / "sys/class/devfreq").glob("*")):
        if re.search(r"gpu|ga10b|gv11b", device.name) and (device / "cur_freq").exists():
            yield "gpu", _number(device / "cur_freq") / 1e6
    cores = (root / "sys/devices/system/cpu/cpufreq").glob("policy*/scaling_cur_freq")
    megahertz = [_number(core) / 1e3 for core in cores]
    if megahertz:
        yield "cpu", max(megahertz)


def _slowed(root: Path) -> Iterator[int]:
    """Yield counters: Jetson's over-current events, x86 processors' thermal throttling."""
    for chip in _chips(root, "soctherm_oc"):
        yield from (int(_number(file)) for file in chip.glob("oc*_event_cnt"))
    counters = "cpu*/thermal_throttle/package_throttle_count"
    yield from (int(_number(file)) for file in (root / "sys/devices/system/cpu").glob(counters))


def measure_power(
    sensor: tuple[str, Sensor], work: Callable[[], object], seconds: float, root: Path = ROOT
) -> Power:
    """Measure mean watts for ``seconds`` each: while nothing works, and during repeated ``work``,
    when the state is read, too."""
    name, found = sensor
    idle = _mean_watts(found, seconds, lambda: time.sleep(STEP_S))
    before, readings = state(found, root), list[State]()
    busy = _mean_watts(found, seconds, work, lambda: readings.append(state(found, root)))
    slowed = [each.slowed for each in readings if each.slowed is not None]
    # A device that tells whether it is slowed down now has no count from before.
    start = before.slowed if found.slowed is None and before.slowed is not None else 0
    return Power(
        idle_w=idle,
        busy_w=busy,
        sensor=f"{name}: {found.covers}",
        mode=before.mode,
        clocks_mhz={
            clock: median(each.clocks_mhz[clock] for each in readings)
            for clock in readings[0].clocks_mhz
        },
        throttled=max(slowed) > start if slowed else None,
    )


def _mean_watts(
    sensor: Sensor,
    seconds: float,
    work: Callable[[], object],
    note: Callable[[], object] = lambda: None,
) -> float:
    """Repeat ``work`` and return the mean watts meanwhile; ``note`` is called at each reading."""
    start = last = time.perf_counter()
    values = [sensor.read()]
    while last - start < seconds:
        work()
        if (now := time.perf_counter()) - last >= STEP_S:
            values.append(sensor.read())
            note()
            last = now
    if sensor.counts:
        return (values[-1] - values[0]) / (last - start)
    return fmean(values[1:])  # the first is from before


def _chips(root: Path, name: str) -> Iterator[Path]:
    """Yield the hwmon folders of chips of this name."""
    for chip in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        if (chip / "name").exists() and _text(chip / "name") == name:
            yield chip


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8").strip()


def _number(file: Path) -> float:
    return float(_text(file))
