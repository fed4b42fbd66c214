"""The acceptance for predicting a case: its scenario's own, or calibrated on prompts.

Invariant: no calibration prompt is decoded. Acceptance changes along a text, so a case is predicted
from the beginning of each calibration text, as long as the case's own texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from treepipe.core.errors import UserError
from treepipe.executor.measure.calibration import Texts, record_acceptance
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.prompts import load_texts, tokenize
from treepipe.executor.models.source_settings import SourceSettings
from treepipe.executor.run.launch import Launch
from treepipe.profiles.library import CALIBRATION, HELD_OUT
from treepipe.profiles.pool_file import PoolFile
from treepipe.progress import Progress
from treepipe.scenario.making import READS
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Replay
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.acceptance_pool import acceptance_pool, acceptance_warnings, judges_whole
from treepipe.sim.pool import Pool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A scenario, ready for prediction and run; ``calibrate_on``: calibration prompts, in the
    notation of ``workload.prompts`` (None: see ``calibration_prompts``)."""

    label: str
    scenario: Scenario
    launch: Launch
    calibrate_on: str | None = None

    @property
    def longest(self) -> int:
        """New tokens of the longest request."""
        return max(request.max_new_tokens for request in self.launch.deployment.requests)


@dataclass(frozen=True, slots=True)
class CalibratedAcceptance:
    """A pool, the number of consecutive positions that are drawn together (None: whole texts), the
    target hit ratios, and warnings about its use with the scenario."""

    pool: Pool
    block: int | None = None
    hit_ratio: Mapping[int, float] | None = None
    warnings: Sequence[str] = ()

    def source(self, scenario: Scenario) -> PoolSource:
        whole = judges_whole(scenario, self.pool)
        return PoolSource(self.pool, self.block, 0, self.hit_ratio, whole=whole)


_Pair: TypeAlias = tuple[Path, SourceSettings, str, Path]
"""The target's directory, its draft, the calibration prompts, and their folder."""


def calibrate(cases: Sequence[Prepared], say: Progress) -> dict[str, CalibratedAcceptance]:
    """Find the acceptance of every case by label; equal pairs and prompts are calibrated once.

    Raises ``UserError`` if a case has no acceptance and none can be calibrated.
    """
    groups: dict[_Pair, list[Prepared]] = {}
    found = {}
    for case in cases:
        if _needs_calibration(case):
            groups.setdefault(_pair(case), []).append(case)
        else:
            warnings = acceptance_warnings(case.scenario)
            found[case.label] = CalibratedAcceptance(*acceptance_pool(case.scenario), warnings)
    decoded = {request.prompt for case in cases for request in case.launch.deployment.requests}
    for pair, group in groups.items():
        lengths = {case.longest for case in group}
        recorded = _record(group[0], pair, max(lengths), decoded, say)
        pools = {n: Pool.of(recorded.beginnings(n)) for n in lengths}
        found |= {case.label: CalibratedAcceptance(pools[case.longest]) for case in group}
    return found


def calibration_prompts(prompts: str) -> str:
    """Return the reference calibration prompts of the same kind as ``prompts``.

    >>> calibration_prompts("reference:heldout:code")
    'reference:calibration:code'
    >>> calibration_prompts("my_prompts.json")
    'reference:calibration'
    """
    return prompts.replace(HELD_OUT, CALIBRATION) if prompts.startswith(HELD_OUT) else CALIBRATION


def _needs_calibration(case: Prepared) -> bool:
    if case.calibrate_on is not None:
        return True
    if isinstance(case.scenario.acceptance, Replay):
        raise UserError(
            f"{case.scenario.path}: key acceptance.source = 'replay': a recorded run cannot be "
            f"predicted before it runs; leave the section out, or name a pool or a table"
        )
    return case.scenario.acceptance is None and case.scenario.schedule.system.drafts


def _pair(case: Prepared) -> _Pair:
    """Return the pair to calibrate; raises ``UserError`` if the draft servers' sources differ."""
    scenario, sampling = case.scenario, case.scenario.sampling
    if sampling.rule in READS:  # the simulator derives it from a pool of another rule
        sampling = sampling.model_copy(update={"rule": READS[sampling.rule]})
    found = {
        replace(role.source, sampling=sampling, remembers=False, seed=0)
        for role in case.launch.roles
        if role.kind == "draft"
    }
    if len(found) > 1:
        raise UserError(
            f"{scenario.path}: key acceptance is missing; the draft servers differ, and only equal "
            f"ones are calibrated together"
        )
    prompts = case.calibrate_on or calibration_prompts(scenario.workload.prompts)
    return case.launch.target.directory, found.pop(), prompts, scenario.path.parent


def _record(
    case: Prepared, pair: _Pair, new_tokens: int, decoded: set[tuple[int, ...]], say: Progress
) -> PoolFile:
    directory, settings, name, folder = pair
    target = Checkpoint.open(directory)
    prompts = [p for p in tokenize(target, load_texts(name, folder)) if p not in decoded]
    if not prompts:
        raise UserError(
            f"{case.scenario.path}: all prompts of {name} are decoded, none is left to calibrate"
        )
    limit = target.max_positions
    if settings.whole and settings.model is not None:
        limit = min(limit, Checkpoint.open(settings.model).max_positions)
    too_long = max(map(len, prompts)) + new_tokens
    if too_long > limit:
        raise UserError(
            f"{name}: a calibration prompt with {new_tokens} new tokens takes {too_long} "
            f"positions, the models have {limit}"
        )
    say("calibrating acceptance", len(prompts))
    seed = case.launch.deployment.seed
    texts = Texts(target, prompts, new_tokens, seed=seed, named=name)
    return record_acceptance(settings, texts, partial(say, "", 1))
