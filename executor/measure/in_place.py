"""Measuring hosts in place: a scenario's own workers on their own devices, without emulation.

Plain decoding (one busy role at a time) and static trees' segments (all busy at once) run in short
turns until the time is up, for half of it with the target's ends at the pipeline, then at the draft
server. Turns are short since a machine's speed drifts: then all schedules meet the same drift.
``host_fit.py`` fits the hosts' terms to the workers' traces. In the end the session kills a worker,
to measure the time of its replacement.
"""

from __future__ import annotations

import datetime
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from treepipe.core.system import Ends
from treepipe.executor.hosts.remote import status
from treepipe.executor.measure.host_fit import Observed, spread_of
from treepipe.executor.measure.requests import TEXTS, RunRequest
from treepipe.executor.models.source_settings import judged_sampling
from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import Launch, prepare, shared_roles
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.processor import Processor, software
from treepipe.profiles.library import REFERENCE_SET
from treepipe.profiles.schema import HostFit, HostProfile, MeasuredOrigin
from treepipe.progress import Progress
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.faults import Injected
from treepipe.scenario.scenario import Scenario

RUNS: Sequence[Mapping[str, object]] = (
    {"name": "pp"},
    {"name": "naive_pp", "tree_size": 24, "tree_depth": 4, "segment_tokens": 8},
    {"name": "naive_pp", "tree_size": 8, "tree_depth": 7, "top_k": 1, "segment_tokens": 4},
)
"""Plain decoding, a broad tree, and a long one, whose draft passes follow each other."""
ENDS: Sequence[Ends] = ("pipeline", "draft")
SCHEDULES = tuple(dict.fromkeys(str(run["name"]) for run in RUNS))
NEW_TOKENS = 48
BUSY = 0.2
"""Processors' worth of other programs' work above which the profile's note warns of them."""


@dataclass(slots=True)
class Host:
    """A host of the scenario, and what was seen of it."""

    roles: Sequence[str]
    processor: Processor
    versions: str
    observed: Observed


@dataclass(slots=True)
class HostSession:
    """The runs so far, and the observations of each host."""

    asked: RunRequest
    scenario: Scenario
    hosts: dict[str, Host] = field(default_factory=dict)
    turns: int = 0
    restarts_ms: list[float] = field(default_factory=list)

    def run(self, say: Progress) -> None:
        """Run all schedules in turns until the time is up, at least once each."""
        say("seconds", round(self.asked.seconds))
        for ends in ENDS:
            launches = [self._launch({**schedule, "ends": ends}) for schedule in RUNS]
            deployments = [launch.deployment for launch in launches]
            self.hosts = self.hosts or _hosts(deployments[0])
            with Controller(shared_roles(launches), deployments[0]) as controller:
                for deployment in deployments:  # a process's first passes take longer
                    controller.run(replace(deployment, requests=deployment.requests[:1]))
                self._take_turns(controller, deployments, say)
                self.restarts_ms.append(restart_ms(controller, deployments[-1]))

    def _take_turns(
        self, controller: Controller, deployments: Sequence[Deployment], say: Progress
    ) -> None:
        """Run one text after another with all schedules until the time is up, at least once."""
        spent, began = 0.0, time.perf_counter()
        for text in itertools.cycle(range(TEXTS)):
            for deployment in deployments:
                asked = replace(deployment, requests=deployment.requests[text : text + 1])
                trace, _ = controller.run(asked)
                for host in self.hosts.values():
                    host.observed.add(trace, asked, host.roles)
            self.turns += 1
            before, spent = spent, time.perf_counter() - began
            say("", round(spent) - round(before))
            if spent >= self.asked.seconds / len(ENDS):
                return

    def _launch(self, schedule: Mapping[str, object]) -> Launch:
        content = self.scenario.content
        content["hosts"] = {}  # drops the terms to be measured
        content["faults"] = {"timeout_ms": self.scenario.faults.timeout_ms}
        sampled = judged_sampling(self.scenario.sampling)  # these schedules have no other rule
        scenario = Scenario.of(content, self.scenario.path).with_(
            schedule=dict(schedule),
            emulate=False,
            runs=1,
            workload={
                "requests": TEXTS,
                "new_tokens": NEW_TOKENS,
                "prompts": prompts_from_anywhere(self.asked.prompts),
            },
            sampling=asdict(sampled),
        )
        return prepare(scenario)

    def profiles(self) -> Iterator[tuple[str, HostProfile]]:
        """Fit the observations so far, host by host."""
        for name, host in self.hosts.items():
            yield name, self._profile(host)

    def _profile(self, host: Host) -> HostProfile:
        found = host.observed.fit()
        spread = {key: _rounded(each) for key, each in found.spread.items() if each}
        if self.restarts_ms and (differ := spread_of(self.restarts_ms)):
            spread["restart_ms"] = _rounded({1: differ})
        note = f"{self.turns} turns of {' and '.join(SCHEDULES)} on {self.asked.prompts}"
        company = statistics.fmean(host.observed.heard or [0.0])
        if company > BUSY:
            note += (
                f"; other programs worked meanwhile, as much as {company:.1f} processors do: "
                f"measure again when the machine is idle"
            )
        origin = MeasuredOrigin(
            source="treepipe calibrate run",
            date=datetime.date.today(),
            hardware=host.processor.described(1),
            versions=host.versions,
            note=note,
        )
        return HostProfile(
            origin=origin,
            **{f"{what}_ms": _rounded(table) for what, table in found.messages.items()},
            look_ms=round(found.look, 4),
            wake_ms=round(found.wake, 4),
            gauge_ms=None if found.gauge is None else round(found.gauge, 4),
            desk_ms=_rounded(found.desk) or {1: 0.0},
            stage_factor=_rounded(found.factors["stage"]),
            draft_factor=_rounded(found.factors["draft"]),
            evaluate_factor=_rounded(found.factors["evaluate"]),
            draft_cold=_rounded(found.cold),
            together=_rounded(found.together),
            processors=host.observed.processors,
            turn_ms=host.processor.turn_ms,
            variation=round(found.variation, 4),
            restart_ms=round(statistics.median(self.restarts_ms), 1) if self.restarts_ms else None,
            iqr=spread,
            fit=HostFit(
                schedules=SCHEDULES,
                prompts=self.asked.prompts,
                pieces=found.pieces,
                company=round(company, 2),
            ),
        )


def prompts_from_anywhere(named: str) -> str:
    """Return the name of prompts in a scenario of any folder."""
    return named if named.startswith(REFERENCE_SET) else str(Path(named).absolute())


def _hosts(deployment: Deployment) -> dict[str, Host]:
    """Query the hosts. Raises ``RunError`` if a host's worker does not answer."""
    key = None if deployment.wiring.key is None else KeyPair.load(deployment.wiring.key)
    placed = {each.name: each for each in deployment.roles.placed}
    found = {}
    for machine in deployment.roles.machines:
        roles = [placed[name] for name in machine.roles]
        threads, worker = max(role.compute.threads for role in roles), roles[0].worker
        if worker is None:
            processor, versions = Processor.here(), software("torch", "transformers", "pyzmq")
        else:
            there = status(worker, key)
            processor, versions = there.processor, there.versions.described
        observed = Observed(max(1, processor.cores // threads))
        found[machine.name] = Host(machine.roles, processor, versions, observed)
    return found


def restart_ms(controller: Controller, deployment: Deployment) -> float:
    """Kill a stage, and return the time until all workers work again (ms)."""
    lost = deployment.roles.pipelines[-1][-1].name
    faults = replace(
        deployment.faults, spares=1, injected=(Injected(lost, "kill", 0.0),), spare_workers=()
    )
    few = replace(deployment, requests=deployment.requests[:1], faults=faults)
    trace, _ = controller.run(few)
    (fault,) = trace.faults
    assert fault.detected_ms is not None  # the controller notices a worker's end
    assert fault.recovered_ms is not None  # the spare replaces it
    return fault.recovered_ms - fault.detected_ms


def _rounded(table: Mapping[int, float]) -> dict[int, float]:
    return {count: float(f"{value:.4g}") for count, value in table.items()}
