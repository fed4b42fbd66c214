"""The pool that simulations and closed forms draw from, by the acceptance of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.core.verification import DRAWN
from treepipe.scenario.making import (
    depth_warnings,
    making_warnings,
    share_warnings,
    stated_warnings,
)
from treepipe.scenario.scale import scaled_hits
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import HIT_RATIOS, PoolSection, Replay
from treepipe.sim.blocks import block_length
from treepipe.sim.made_pools import bernoulli_pool, hit_ratio_pool
from treepipe.sim.pool import Pool

MADE_BLOCK = 1
"""Block length of made pools, whose positions are independent."""


@lru_cache(maxsize=2)
def _recorded_pool(
    file: Path, written_ns: int, depth_loss: float, sharpness: float, off_path: float | None
) -> Pool:
    """Read a pool once for all points of a study, as long as its file stays the same."""
    return Pool.load(file, depth_loss).sharpened(sharpness, off_path)


def acceptance_pool(scenario: Scenario) -> tuple[Pool, int | None, Mapping[int, float] | None]:
    """Return the pool that positions are drawn from (not of a replay), the length of blocks (None:
    whole texts), and the hit ratios that the blocks are tilted to."""
    acceptance = scenario.acceptance
    assert not isinstance(acceptance, Replay)
    if isinstance(acceptance, PoolSection):
        file = scenario.path.parent / acceptance.file
        written_ns = file.stat().st_mtime_ns if file.is_file() else 0
        sharpness, off_path = acceptance.sharpness, acceptance.off_path_sharpness
        pool = _recorded_pool(file, written_ns, acceptance.depth_loss, sharpness, off_path)
        hits = acceptance.hit_ratio
        if scenario.scale.misses != 1:
            scaled = scaled_hits(scenario, hits or {1: pool.hit_ratio(1)})
            hits = {k: share for k, (share,) in scaled.items()}
        return pool, acceptance.block or (block_length(pool) if hits else None), hits
    if isinstance(acceptance, HIT_RATIOS):
        return hit_ratio_pool(scaled_hits(scenario, acceptance.table)), MADE_BLOCK, None
    beta = 1.0 if acceptance is None else scaled_hits(scenario, {1: acceptance.beta})[1][0]
    return bernoulli_pool(beta), MADE_BLOCK, None


def judges_whole(scenario: Scenario, pool: Pool) -> bool:
    """Return whether chains are judged at once, by ratios that the pool records."""
    return scenario.sampling.rule == "block" and pool.log_ratios is not None


def acceptance_warnings(scenario: Scenario) -> list[str]:
    """Return warnings of how the acceptance fits the scenario's sampling and drafts.

    Raises:
        UserError: it does not fit.
    """
    return [*_fitting_warnings(scenario), *_guess_warnings(scenario)]


def _guess_warnings(scenario: Scenario) -> list[str]:
    """Warn of guesses besides a drawn chain, which no acceptance of drawn candidates tells of."""
    system, children = scenario.schedule.system, scenario.schedule.parameters.candidates()
    if scenario.sampling.rule not in DRAWN or not (system.chains and children):
        return []
    return [
        f"sampling.rule = {scenario.sampling.rule!r}: acceptance has ranks of drawn candidates, "
        f"but {', '.join(children)} asks for the most probable ones: how often {system.name} "
        f"guesses right is an estimate"
    ]


def _fitting_warnings(scenario: Scenario) -> list[str]:
    acceptance = scenario.acceptance
    if scenario.schedule.parameters.lookup and not isinstance(acceptance, Replay):
        raise UserError(
            f"{scenario.path}: key schedule.lookup: only a recorded run has the tokens that prompt "
            f"lookup looks for (acceptance.source = 'replay')"
        )
    if isinstance(acceptance, PoolSection) and scenario.schedule.system.drafts:
        pool = acceptance_pool(scenario)[0]
        found = [] if pool.made is None else making_warnings(scenario, pool.made)
        if scenario.sampling.rule == "block" and pool.log_ratios is None:
            found.append(
                "sampling.rule = 'block': the pool has no log_ratios, so tokens are judged one by "
                "one, which accepts as many or fewer: the prediction is no faster than the rule"
            )
        return found
    if not scenario.schedule.system.drafts or isinstance(acceptance, Replay):
        return []
    return [*stated_warnings(scenario), *share_warnings(scenario), *depth_warnings(scenario)]
