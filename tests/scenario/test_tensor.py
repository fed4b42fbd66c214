"""Stages whose layers several equal devices share: times, exchanges and memory by hand."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from treepipe.core.errors import UserError
from treepipe.executor.run.launch import prepare
from treepipe.files.toml_file import toml_text
from treepipe.profiles.library import find_model
from treepipe.scenario.memory import memory_needs
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sim.theory.closed_form import closed_form

MODEL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "vocabulary": 1000,
    "origin": {"source": "made up", "date": "2026-11-27"},
}
SLOW: dict[str, Any] = {
    "roofline": {"tflops": {"float16": 1.0}, "memory_gb_s": 0.001, "memory_efficiency": 1.0}
}
"""A device that moves 1,000 bytes in a millisecond, and computes in no time."""
LINK = {"latency_ms": 1.0, "bandwidth_mbit_s": 1.0}
"""125 bytes in a millisecond."""


def scenario(folder: Path, tensor: int, **more: Any) -> Scenario:
    (folder / "model.toml").write_text(toml_text(MODEL).replace('"2026-11-27"', "2026-11-27"))
    content = {
        "name": "shared",
        "target": {"profile": "./model.toml"},
        "drafts": [{"host": "box"}],
        "pipelines": [{"stages": [{"device": SLOW, "tensor": tensor, "host": "box"}]}],
        "links": {"default": LINK},
        "schedule": {"name": "pp"},
        "workload": {"prompt_tokens": 1, "new_tokens": 4},
    }
    return Scenario.of({**content, **more}, folder / "s.toml")


def layers_ms(devices: int, keys: int) -> float:
    """Two layers of one row before so many keys, on one of the devices: its heads, its share of the
    MLP and the whole norms, in 16 bits; the row in and out, and keys and values of its heads."""
    heads, kv_heads, inner = 4 // devices, max(1, 2 // devices), 128 // devices
    weights = 64 * 2 * (heads + kv_heads) * 16 + 3 * 64 * inner + 2 * 64
    return 2 * (2 * weights + 2 * (64 + inner) * 2 + keys * 2 * kv_heads * 16 * 2) / 1000


def ends_ms(devices: int) -> float:
    """A row's logits on one device, and those of the others on their way to it."""
    own = 1000 // devices
    gathered = 1 + (devices - 1) * 2 * own / 125 if devices > 1 else 0
    return 2 * (64 * own + 64 + own) / 1000 + gathered


EXCHANGES = {1: 0.0, 2: 1 + 128 / 125, 4: min(1 + 3 * 128 / 125, 6 * (1 + 32 / 125))}
"""An all-reduce of a row of 128 bytes: at once to all others, or Nths around the ring."""


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_timeline_by_hand(devices: int, tmp_path: Path) -> None:
    (trace,) = predict(scenario(tmp_path, devices))
    times = [at for at, _ in trace.requests[0].emitted]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    reduced = 4 * EXCHANGES[devices]
    by_hand = [layers_ms(devices, keys) + reduced + ends_ms(devices) for keys in (2, 3, 4)]
    assert gaps == pytest.approx(by_hand, rel=1e-6)


def test_the_closed_form_of_plain_decoding(tmp_path: Path) -> None:
    """It takes times without context: each row before itself alone."""
    found = closed_form(scenario(tmp_path, 2)).metrics["time_between_tokens_ms"]
    assert found == pytest.approx(layers_ms(2, 1) + 4 * EXCHANGES[2] + ends_ms(2), rel=1e-6)


def test_more_rows_go_around_the_ring(tmp_path: Path) -> None:
    """Of 100 rows four devices send less in Nths: six messages of 3,200 bytes for one of 38,400."""
    found, alone = (
        resolve(scenario(tmp_path, devices, **more)).roles.pipelines[0][0].times.stage(64)
        for devices, more in ((4, {}), (4, {"links": {"default": {"latency_ms": 0.0}}}))
    )
    assert found - alone == pytest.approx(4 * 6 * (1 + 64 * 128 / 4 / 125))


def test_the_pair_of_a_stage_with_itself_is_the_link_between_its_devices(tmp_path: Path) -> None:
    both = ["pipeline0.stage1", "pipeline0.stage1"]
    inside = {"ends": both, "latency_ms": 0.5}
    links = {"default": LINK, "pairs": [inside]}
    faster, usual = (
        resolve(scenario(tmp_path, 2, links=each)).roles.pipelines[0][0].times.stage(1)
        for each in (links, {"default": LINK})
    )
    assert usual - faster == pytest.approx(4 * (EXCHANGES[2] - 0.5))
    with pytest.raises(UserError, match="no link to itself"):
        resolve(scenario(tmp_path, 1, links=links))
    slow = scenario(tmp_path, 2, links=links).with_(**{"scale.latency": 3.0})
    assert resolve(slow).roles.pipelines[0][0].times.stage(1) - faster == pytest.approx(4 * 1.0)


def test_each_device_holds_its_part(tmp_path: Path) -> None:
    """Weights, caches, and the ends of the vocabulary; no device has less than a head."""

    def needs(devices: int) -> Any:
        made = scenario(tmp_path, devices)
        return memory_needs(resolve(made).asked(()))[0]

    one, two, four = map(needs, (1, 2, 4))
    assert two.ends == pytest.approx(one.ends / 2)
    assert two.weights == pytest.approx(2 * 2 * (2 * 64 * 144 + 128) / 2**20 + 0 * one.weights)
    assert four.weights > one.weights / 4
    model = find_model("deepseek-v3", "test")
    assert model.shared(8).cached == model.cached, "a latent cache is read by all heads"
    assert find_model("gpt-oss-20b", "test").shared(2).cached == 512


def test_a_group_takes_the_power_and_the_price_of_all_its_devices(tmp_path: Path) -> None:
    device = {**SLOW, "price_usd_per_hour": 2.0, "power": {"idle_w": 1.0, "busy_w": 5.0}}
    stages = [{"device": device, "tensor": 2}]
    made = resolve(scenario(tmp_path, 2, pipelines=[{"stages": stages}]))
    machine = made.roles.machine("pipeline0.stage1")
    assert (machine.usd_per_hour, machine.power_w) == (4.0, (2.0, 10.0))


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path: Path) -> None:
    whole = [{"stages": [{"device": {"stage_ms": {1: 5.0}}, "tensor": 2}]}]
    with pytest.raises(UserError, match=r"stages\.0\.tensor = 2 needs a device that says what"):
        resolve(scenario(tmp_path, 2, pipelines=whole))
    with pytest.raises(UserError, match=r"tensor cannot be run: a worker computes whole"):
        prepare(scenario(tmp_path, 2))
