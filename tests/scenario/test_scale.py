"""What-if factors: what each of them multiplies, by hand, and that none is on nothing."""

from __future__ import annotations

import pytest

from tests.worlds.theory_scenarios import Written
from tests.worlds.timed_pipeline import gaps
from treepipe.scenario.resolve import deploy
from treepipe.sim.acceptance_pool import acceptance_pool

PLAIN = (
    "target={layers=8,hidden_size=64}",
    "drafts=[{device={draft_ms={1=4.0}}}]",
    'pipelines=[{stages=[{device="emulated-20ms"},{device={stage_ms={1=10.0,9=50.0}}}]}]',
    'links={default="ethernet-1g",pairs=[{ends=["draft0","pipeline0.stage1"],latency_ms=3.0}]}',
)


def token_ms(*settings: str) -> float:
    """The time between tokens of plain decoding: all stages and links, one after another."""
    (trace,) = Written("pp", *PLAIN, "workload.new_tokens=3", *settings).simulated()
    return gaps(trace.requests[0])[-1]


@pytest.mark.parametrize(
    ("setting", "added"),
    [
        ("scale.stages=1.5", 0.5 * (20 + 10)),
        ("scale.devices={emulated-20ms=0.5}", -0.5 * 20),
        ("scale.drafts=3", 0.0),
        ('scale.roles={"pipeline0.stage2"=1.5}', 0.5 * 10),
        ('scale={stages=2,roles={"pipeline0.stage2"=1.5,draft0=9}}', 20 + 2.0 * 10),
    ],
)
def test_times_of_devices(setting: str, added: float) -> None:
    assert token_ms(setting) - token_ms() == pytest.approx(added)


def test_links_by_their_delay_their_rate_and_their_name() -> None:
    plain = deploy(Written("pp", *PLAIN).scenario)

    def link(setting: str, size: int, ends: tuple[str, str] | None = None) -> float:
        deployment = deploy(Written("pp", *PLAIN, setting).scenario)
        return (deployment.wiring.pairs[ends] if ends else deployment.wiring.default).mean_ms(size)

    delay, wire = plain.wiring.default.mean_ms(0), plain.wiring.default.mean_ms(10**6)
    assert link("scale.latency=2", 0) == pytest.approx(2 * delay)
    assert link("scale.bandwidth=4", 10**6) - delay == pytest.approx((wire - delay) / 4)
    assert link("scale.links={ethernet-1g=3}", 10**6) == pytest.approx(3 * wire)
    pair = ("draft0", "pipeline0.stage1")
    assert link("scale.links={ethernet-1g=3}", 0, pair) == pytest.approx(3.0)
    assert link("scale.latency=3", 0, pair) == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("acceptance", "hit"),
    [
        ('{source="bernoulli",beta=0.8}', 0.8),
        ('{source="hit_ratio",table={1=0.7,4=0.9}}', 0.7),
        ('{source="profile",name="llama-3.1-8b-for-llama-3.1-70b"}', 0.81),
    ],
)
def test_misses_of_every_acceptance(acceptance: str, hit: float) -> None:
    written = Written("chain", f"acceptance={acceptance}", "scale.misses=1.5")
    pool, _, hits = acceptance_pool(written.scenario)
    assert (hits or {1: pool.hit_ratio(1)})[1] == pytest.approx(1 - 1.5 * (1 - hit), abs=0.01)
    if hits is not None:  # drawn so that it is reached
        assert 1 not in hits or hits[8] == pytest.approx(1 - 1.5 * 0.01)


def test_the_recorded_pool_itself_is_drawn_to_miss_more() -> None:
    reference = 'acceptance={source="profile",name="reference"}'
    plain = Written("chain", reference).scenario
    (pool, _, none), (_, _, hits) = map(
        acceptance_pool, (plain, plain.with_(scale={"misses": 1.2}))
    )
    assert none is None
    assert hits == {1: pytest.approx(1 - 1.2 * (1 - pool.hit_ratio(1)))}
