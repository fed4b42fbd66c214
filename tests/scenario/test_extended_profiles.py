"""A device's or a link's profile with other keys beside it; who shares a host; pairs of links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worlds.demo import demo, deployed
from treepipe.files.toml_file import toml_text
from treepipe.planner.candidates import find_candidates
from treepipe.planner.cluster import Cluster
from treepipe.profiles.library import LIBRARY, find_device, find_link, resolve_device, resolve_link
from treepipe.profiles.schema import DeviceProfile, ExtendedDevice, ExtendedLink
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scale import Estimated
from treepipe.scenario.scenario import Scenario

STUDIES = LIBRARY.parent / "studies"
JETSONS = STUDIES / "clusters" / "five-jetsons.toml"


def times(deployment: Deployment) -> list[tuple[float, ...]]:
    """Of every role, at a few sizes."""
    found = []
    for each in (placed.times for placed in deployment.roles.placed):
        tables = [table(n) for table in (each.stage, each.draft, each.evaluate) for n in (1, 80)]
        found.append((*tables, each.decide, each.prune))
    return found


def device(**keys: Any) -> Any:
    return resolve_device(ExtendedDevice.model_validate(keys), "key device")


def link(**keys: Any) -> Any:
    return resolve_link(ExtendedLink.model_validate(keys), "key link")


def test_a_device_keeps_its_profile_and_gets_the_keys_beside_it() -> None:
    profile = find_device("rtx-3090", "test")
    found = device(profile="rtx-3090", price_usd_per_hour=0.25, decide_ms=1.5)
    assert isinstance(profile, DeviceProfile)
    assert isinstance(found, DeviceProfile)
    assert (found.price_usd_per_hour, found.decide_ms) == (0.25, 1.5)
    changed = {"price_usd_per_hour", "decide_ms"}
    assert found.model_dump(exclude=changed) == profile.model_dump(exclude=changed)


@pytest.mark.parametrize(
    "setting",
    [
        'drafts=[{device={profile="emulated-20ms",price_usd_per_hour=0.25}}]',
        "drafts.0.device.price_usd_per_hour=0.25",
    ],
)
def test_a_draft_and_a_stage_take_a_price(setting: str) -> None:
    stage = "pipelines.0.stages.0.device.price_usd_per_hour=0.5"
    deployment, usual = deployed(setting, stage), deployed()
    assert [machine.usd_per_hour for machine in deployment.roles.machines] == [0.25, *[0.5] * 4]
    assert times(deployment) == times(usual), "the profile's times stay"
    assert not any(machine.usd_per_hour for machine in usual.roles.machines)


def test_warnings_of_a_profile_stay_and_come_once() -> None:
    stages = [
        f"{{device={{profile='jetson-agx-orin',price_usd_per_hour={price}}}}}" for price in (1, 2)
    ]
    overrides = ["target={profile='llama-3.2-1b'}", f"pipelines=[{{stages=[{','.join(stages)}]}}]"]
    named = deployed(overrides[0], "pipelines=[{stages=[{device='jetson-agx-orin',count=2}]}]")
    deployment = deployed(*overrides)
    assert dict(deployment.estimates) == {Estimated("device", "jetson-agx-orin"): 0.4}
    more = "usd_per_million_tokens is left out: no key price_usd_per_hour for draft0"
    assert deployment.warnings == (*named.warnings, more)


def test_a_link_keeps_its_profile_and_gets_the_keys_beside_it() -> None:
    profile = find_link("wifi", "test")
    found = link(profile="wifi", latency_ms=9.0)
    assert found.latency_ms == 9.0
    assert found.model_dump(exclude={"latency_ms"}) == profile.model_dump(exclude={"latency_ms"})


def test_links_by_default_within_a_host_and_of_pairs() -> None:
    deployment = deployed(
        "links.default.bandwidth_mbit_s=94",
        'links.local={profile="emulated-1ms",latency_ms=0.5}',
        'links.pairs=[{ends=["pipeline0.stage1","pipeline0.stage2"],profile="wan",latency_ms=70}]',
    )
    assert deployment.wiring.default.latency_ms == find_link("emulated-1ms", "test").latency_ms
    assert deployment.wiring.default.bandwidth_mbit_s == 94
    assert deployment.wiring.local.latency_ms == 0.5
    pair = deployment.wiring.pairs["pipeline0.stage2", "pipeline0.stage1"]
    wan = find_link("wan", "test")
    assert (pair.latency_ms, pair.bandwidth_mbit_s) == (70, wan.bandwidth_mbit_s)


def test_a_rate_replaces_the_profiles_however_that_is_said() -> None:
    assert find_link("a100-dgx-nvlink", "test").transfer_ms is not None
    found = link(profile="a100-dgx-nvlink", bandwidth_mbit_s=100)
    assert (found.bandwidth_mbit_s, found.transfer_ms) == (100, None)
    found = link(profile="wan", transfer_ms={1: 2.0})
    assert (found.bandwidth_mbit_s, found.transfer_ms) == (None, {1: 2.0})


def test_a_rate_replaces_the_profiles_burst(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    bucket = "burst_kib = 32\npeak_mbit_s = 1000\n"
    own.write_text(bucket + (LIBRARY / "links" / "wan.toml").read_text())
    assert link(profile=str(own), latency_ms=1.0).burst_kib == 32
    assert link(profile=str(own), burst_kib=8).times.burst_bytes == 8192
    found = link(profile=str(own), bandwidth_mbit_s=2000)
    assert (found.burst_kib, found.peak_mbit_s) == (0.0, None)


def test_a_family_of_jitter_replaces_the_profiles_spread(tmp_path: Path) -> None:
    text = (LIBRARY / "links" / "wan.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("jitter")]
    jitter = 'jitter_ms = 2.0\njitter = "lognormal"\njitter_cv = 0.5'
    own = tmp_path / "own.toml"
    own.write_text("\n".join([jitter, *lines]))
    assert link(profile=str(own), jitter_cv=0.7).jitter_cv == 0.7
    found = link(profile=str(own), jitter="uniform")
    assert (found.jitter, found.jitter_ms, found.jitter_cv) == ("uniform", 2.0, 1.0)


def test_a_scenario_survives_being_written_with_the_given_keys_only() -> None:
    """As points of studies travel to other processes."""
    pair = 'links.pairs=[{ends=["draft0","pipeline0.stage1"],profile="wan",latency_ms=7}]'
    scenario = demo("drafts.0.device.decide_ms=0.7", "links.default.latency_ms=3", pair)
    again = Scenario.model_validate_json(scenario.model_dump_json(exclude_unset=True))
    assert deploy(again).wiring.pairs == deploy(scenario).wiring.pairs
    assert times(deploy(again)) == times(deploy(scenario))


def test_a_cluster_and_its_best_plan_keep_them(tmp_path: Path) -> None:
    settings = [
        "drafts.0.device.price_usd_per_hour=0.1",
        "pipelines.0.stages.0.device.price_usd_per_hour=0.2",
        "search.limits.price_usd_per_hour=0.9",
        'search.grid={"links.default.bandwidth_mbit_s"=[100,900]}',
        'search.schedules=["pp"]',
    ]
    found, refused = find_candidates(Cluster.load(JETSONS, settings))
    assert not refused
    links = [candidate.scenario.content["links"]["default"] for candidate in found]
    assert links == [{"profile": "ethernet-1g", "bandwidth_mbit_s": n} for n in (100, 900)]
    (tmp_path / "best.toml").write_text(toml_text(found[0].scenario.content))
    machines = deploy(Scenario.load(tmp_path / "best.toml")).roles.machines
    assert sum(machine.usd_per_hour or 0 for machine in machines) == pytest.approx(0.9)
