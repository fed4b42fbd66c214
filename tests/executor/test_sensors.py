"""Power and the state it depends on, from recorded trees of sensors."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from treepipe.executor.measure.sensors import Sensor, State, find_sensor, measure_power, state

NANO = {
    "sys/class/hwmon/hwmon0/name": "nct1008",
    "sys/class/hwmon/hwmon0/in1_label": "VDD_IN",
    "sys/class/hwmon/hwmon1/name": "ina3221",
    "sys/class/hwmon/hwmon1/in1_label": "VDD_IN",
    "sys/class/hwmon/hwmon1/in1_input": "4984",
    "sys/class/hwmon/hwmon1/curr1_input": "1856",
    "sys/class/hwmon/hwmon1/in2_label": "VDD_CPU_GPU_CV",
    "sys/class/hwmon/hwmon1/in2_input": "4984",
    "sys/class/hwmon/hwmon1/curr2_input": "360",
    "sys/class/hwmon/hwmon3/name": "soctherm_oc",
    "sys/class/hwmon/hwmon3/oc1_event_cnt": "1",
    "sys/class/hwmon/hwmon3/oc3_event_cnt": "2",
    "sys/class/devfreq/17000000.gpu/cur_freq": "624750000",
    "sys/class/devfreq/15340000.vic/cur_freq": "115200000",
    "sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq": "1510400",
    "sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq": "729600",
    "var/lib/nvpmodel/status": "pmode:0001",
    "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=15W >\nX 1\n< POWER_MODEL ID=1 NAME=25W >\n",
}
AGX = {
    "sys/class/hwmon/hwmon3/name": "ina3221",
    "sys/class/hwmon/hwmon3/in1_label": "VDD_GPU_SOC",
    "sys/class/hwmon/hwmon3/in1_input": "843",
    "sys/class/hwmon/hwmon3/curr1_input": "6170",
    "sys/class/hwmon/hwmon3/in3_label": "VIN_SYS_5V0",
    "sys/class/hwmon/hwmon3/in3_input": "4968",
    "sys/class/hwmon/hwmon3/curr3_input": "953",
    "sys/class/hwmon/hwmon3/in7_label": "sum of shunt voltages",
    "sys/class/hwmon/hwmon4/name": "ina3221",
    "sys/class/hwmon/hwmon4/in1_label": "NC",
    "sys/class/hwmon/hwmon4/in1_input": "0",
    "sys/class/hwmon/hwmon4/curr1_input": "0",
    "sys/class/hwmon/hwmon4/in2_label": "VDDQ_VDD2_1V8AO",
    "sys/class/hwmon/hwmon4/in2_input": "1800",
    "sys/class/hwmon/hwmon4/curr2_input": "341",
}
SERVER = {
    "sys/class/powercap/intel-rapl:0/name": "package-0",
    "sys/class/powercap/intel-rapl:0/energy_uj": "262143328000",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "262143328850",
    "sys/class/powercap/intel-rapl:0:0/name": "core",
    "sys/class/powercap/intel-rapl:0:0/energy_uj": "1",
    "sys/class/powercap/intel-rapl:0:0/max_energy_range_uj": "262143328850",
    "sys/class/powercap/intel-rapl:0:1/name": "dram",
    "sys/class/powercap/intel-rapl:0:1/energy_uj": "1000000",
    "sys/class/powercap/intel-rapl:0:1/max_energy_range_uj": "65712999613",
    "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count": "4",
}


def planted(root: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def found(device: str, root: Path) -> tuple[str, Sensor]:
    sensor = find_sensor(device, root)
    assert not isinstance(sensor, str), sensor
    return sensor


def add(file: Path, amount: int) -> None:
    file.write_text(str(int(file.read_text()) + amount))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_board_s_input_is_its_power(device: str, tmp_path: Path) -> None:
    name, sensor = found(device, planted(tmp_path, NANO))
    assert (name, sensor.covers) == ("INA3221", "the board's rails VDD_IN")
    assert sensor.read() == pytest.approx(4.984 * 1.856)
    assert state(sensor, tmp_path) == State("25W", {"gpu": 624.75, "cpu": 1510.4}, 3)


def test_without_an_input_a_board_s_rails_are_added_up(tmp_path: Path) -> None:
    _, sensor = found("cuda", planted(tmp_path, AGX))
    assert sensor.covers == "the board's rails VDD_GPU_SOC, VIN_SYS_5V0, VDDQ_VDD2_1V8AO"
    assert sensor.read() == pytest.approx(0.843 * 6.170 + 4.968 * 0.953 + 1.8 * 0.341)
    assert state(sensor, tmp_path) == State(None, {}, None)


def test_counters_of_energy_run_over(tmp_path: Path) -> None:
    """Packages and memory count, parts of a package do not."""
    root = planted(tmp_path, SERVER)
    name, sensor = found("cpu", root)
    assert name == "RAPL"
    assert "package-0 of intel-rapl:0, dram of intel-rapl:0:1, not the rest" in sensor.covers
    zone = root / "sys/class/powercap"
    (zone / "intel-rapl:0/energy_uj").write_text("2999149")  # 851 to the end, and from 0 on
    add(zone / "intel-rapl:0:1/energy_uj", 500_000)
    assert sensor.read() == pytest.approx(3.5)
    assert isinstance(find_sensor("cuda", root), str)


def test_power_is_measured_idle_and_busy(tmp_path: Path) -> None:
    """Work draws a further ampere, and the board is slowed down once meanwhile."""
    root = planted(tmp_path, NANO)
    amperes, events = (
        root / "sys/class/hwmon" / each for each in ("hwmon1/curr1_input", "hwmon3/oc1_event_cnt")
    )
    works = list[int]()

    def work() -> None:
        if not works:
            add(amperes, 1000)
            add(events, 1)
        works.append(1)

    power = measure_power(found("cuda", root), work, 0.12, root)
    assert power.idle_w == pytest.approx(4.984 * 1.856)
    assert power.busy_w == pytest.approx(4.984 * 2.856)
    assert (power.mode, power.throttled) == ("25W", True)
    assert power.clocks_mhz == {"gpu": 624.75, "cpu": 1510.4}
    assert power.sensor == "INA3221: the board's rails VDD_IN"


def test_a_counter_s_power_is_its_joules_over_time(tmp_path: Path) -> None:
    root = planted(tmp_path, SERVER)
    energy, spent = root / "sys/class/powercap/intel-rapl:0:1/energy_uj", list[int]()

    def work() -> None:
        if not spent:
            add(energy, 6_000_000)
        spent.append(1)

    power = measure_power(found("cpu", root), work, 0.12, root)
    assert power.idle_w == 0
    assert 6 / 0.25 < power.busy_w <= 6 / 0.12
    assert (power.mode, power.throttled) == (None, False)


def test_what_a_machine_does_not_tell_is_said(tmp_path: Path) -> None:
    asked = "power was not measured: the machine has none of"
    assert find_sensor("cpu", tmp_path) == f"{asked} INA3221, RAPL for it"
    zone = tmp_path / "sys/class/powercap/intel-rapl:0"
    planted(tmp_path, {"sys/class/powercap/intel-rapl:0/name": "package-0"})
    (zone / "energy_uj").mkdir()  # not to be read, whoever reads it
    (zone / "max_energy_range_uj").write_text("9")
    reason = find_sensor("cpu", tmp_path)
    assert isinstance(reason, str)
    assert reason.startswith(f"{asked} INA3221, RAPL for it; RAPL (Is a directory: ")


def test_a_gpu_tells_its_own_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's calls as nvidia-ml-py names them, of which no GPU is here."""
    library = SimpleNamespace(
        NVMLError=RuntimeError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2,
        nvmlClocksThrottleReasonSwPowerCap=4, nvmlClocksThrottleReasonHwSlowdown=8,
        nvmlClocksThrottleReasonSwThermalSlowdown=32,
        nvmlInit=lambda: None, nvmlDeviceGetHandleByIndex=lambda index: ("gpu", index),
        nvmlDeviceGetPowerUsage=lambda gpu: 71_250,
        nvmlDeviceGetClockInfo=lambda gpu, kind: {1: 1980, 2: 2619}[kind],
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda gpu: 1 + 4,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", library)
    power = measure_power(found("cuda", tmp_path), lambda: None, 0.06, tmp_path)
    assert (power.idle_w, power.busy_w, power.throttled) == (71.25, 71.25, True)
    assert power.clocks_mhz == {"gpu": 1980, "memory": 2619}
    library.nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: 1  # idle
    assert measure_power(found("cuda", tmp_path), int, 0.06, tmp_path).throttled is False
