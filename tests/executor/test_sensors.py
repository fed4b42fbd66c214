"""Power, from recorded trees of sensors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from treepipe.executor.measure.sensors import find_sensor, measure_power

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


def planted(root: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


def found(device: str, root: Path) -> tuple[str, Callable[[], float]]:
    sensor = find_sensor(device, root)
    assert not isinstance(sensor, str), sensor
    return sensor


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_board_s_input_is_its_power(device: str, tmp_path: Path) -> None:
    covers, watts = found(device, planted(tmp_path, NANO))
    assert covers == "INA3221: the board's rails VDD_IN"
    assert watts() == pytest.approx(4.984 * 1.856)


def test_without_an_input_a_board_s_rails_are_added_up(tmp_path: Path) -> None:
    covers, watts = found("cuda", planted(tmp_path, AGX))
    assert covers == "INA3221: the board's rails VDD_GPU_SOC, VIN_SYS_5V0, VDDQ_VDD2_1V8AO"
    assert watts() == pytest.approx(0.843 * 6.170 + 4.968 * 0.953 + 1.8 * 0.341)


def test_power_is_measured_idle_and_busy(tmp_path: Path) -> None:
    """Work draws a further ampere."""
    root = planted(tmp_path, NANO)
    amperes, works = root / "sys/class/hwmon/hwmon1/curr1_input", list[int]()

    def work() -> None:
        if not works:
            amperes.write_text(str(int(amperes.read_text()) + 1000))
        works.append(1)

    power = measure_power(found("cuda", root), work, 0.12)
    assert power.idle_w == pytest.approx(4.984 * 1.856)
    assert power.busy_w == pytest.approx(4.984 * 2.856)
    assert power.sensor == "INA3221: the board's rails VDD_IN"


def test_what_a_machine_does_not_tell_is_said(tmp_path: Path) -> None:
    missing = "power was not measured: the machine has none of"
    assert find_sensor("cpu", tmp_path) == f"{missing} INA3221 for it"
    planted(tmp_path, {"sys/class/hwmon/hwmon0/name": "ina3221"})
    (tmp_path / "sys/class/hwmon/hwmon0/in1_label").mkdir()  # not to be read, whoever reads it
    for kind in ("in1_input", "curr1_input"):
        (tmp_path / "sys/class/hwmon/hwmon0" / kind).write_text("1")
    reason = find_sensor("cpu", tmp_path)
    assert isinstance(reason, str)
    assert reason.endswith("in1_label may not be read (Is a directory)")


def test_a_gpu_tells_its_own_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's calls as nvidia-ml-py names them, of which no GPU is here."""
    library = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: ("gpu", index),
        nvmlDeviceGetPowerUsage=lambda gpu: 71_250,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    power = measure_power(found("cuda", tmp_path), lambda: None, 0.06)
    assert (power.idle_w, power.busy_w) == (71.25, 71.25)
