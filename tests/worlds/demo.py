"""The demo's scenario with other settings, and an acceptance to simulate it with; for tests."""

from __future__ import annotations

from pathlib import Path

from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import hit_ratio_pool
from treepipe.sim.world import simulate

SCENARIOS = Path(__file__).parents[2] / "studies" / "scenarios"
POOL = PoolSource(hit_ratio_pool({1: 0.7, 4: 0.9}), 1, 0)


def demo(*settings: str, name: str = "demo") -> Scenario:
    """A shipped scenario, changed by settings as on the command line."""
    return Scenario.load(SCENARIOS / f"{name}.toml", settings)


def deployed(*settings: str) -> Deployment:
    """The demo's deployment."""
    return deploy(demo(*settings))


def simulated(deployment: Deployment) -> Trace:
    """The run in which the draft is right for 7 of 10 tokens."""
    return simulate(deployment, POOL)
