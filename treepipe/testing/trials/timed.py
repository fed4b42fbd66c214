"""Trials in the simulator, whose times are drawn: agreement of the two worlds, and closed forms."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import strategies as st

from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.requests import numbered
from treepipe.core.schedules import systems
from treepipe.core.scratch import Scratch
from treepipe.core.system import ScheduleContext, System
from treepipe.physics.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.results.metrics import run_metrics
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, Placed, RequestSpec, Roles, Service, Wiring
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sim.theory.closed_form import FORMS, closed_form
from treepipe.sim.world import simulate
from treepipe.testing.case import Trial, TrialCase
from treepipe.testing.hashed_lm import DRAFTS, Logits, greedy
from treepipe.testing.law import hold
from treepipe.testing.strategies import requests
from treepipe.testing.timeless_world import Sharing, candidates
from treepipe.testing.trials.decoding import (
    Requested,
    decode,
    drawn_parameters,
    drawn_partition,
    prompt_of,
)

BEYOND = 40
"""Tokens of the text that a draft may ask for beyond its end."""
TIMES_MS = st.sampled_from([0.1, 1.0, 7.0, 40.0])
SHORT_MS = st.sampled_from([0.0, 0.5, 12.0])


class HashedOracle:
    """The models of ``hashed_lm.py`` as a simulation's draft and target."""

    whole = False

    def __init__(self, draft: Logits, prompt: tuple[int, ...], wanted: int) -> None:
        self._draft, self._scratch = draft, Scratch[None]()
        self._text = [*prompt, *greedy(list(prompt), wanted + BEYOND)]
        self._prompt = len(prompt)

    def truth(self, index: int) -> int:
        return self._text[self._prompt + index]

    def rewrite(self, index: int, token: int) -> None:
        raise AssertionError("only lossy rules rewrite a text")

    def kept(self, first: int, index: int) -> bool:
        raise AssertionError("greedy texts are judged token by token")

    def draft(self, order: DraftPass) -> Drafted:
        asked = self._scratch.follow(order).asked
        read = self._text[: self._scratch.read]
        return candidates(self._draft, order, [[*read, *path] for path in asked])


class HashedSource:
    """Oracles of all requests of a case."""

    def __init__(self, draft: Logits, asked: Requested) -> None:
        self._draft, self._asked = draft, asked

    def open(self, session: int, prompt_tokens: int, levels: int = 0) -> HashedOracle:
        number = numbered(session)[1]
        length, wanted, _ = self._asked[number - 1]
        return HashedOracle(self._draft, prompt_of(number, length), wanted)


def two_worlds(system: System, case: TrialCase) -> None:
    """The same requests without time and simulated, with any times of stages, links and pruning."""
    requested = case.draw("requests", requests(1, 3))
    stages, together = drawn_partition(system, case)
    parameters = drawn_parameters(system, case, together)
    decode(system, parameters, case, requested, stages, sharing=Sharing(together))
    per_role = st.lists(TIMES_MS, min_size=stages + 1, max_size=stages + 1)
    stage_ms, prune_ms = case.draw("times_ms", per_role), case.draw("prune_ms", SHORT_MS)
    devices = [
        DeviceTimes(TimeTable({1: ms}), TimeTable({1: ms}), TimeTable({1: 0.5}), 0.5, prune_ms)
        for ms in stage_ms
    ]
    layers = [range(2 * n, 2 * n + 2) for n in range(stages)]
    placed = tuple(
        Placed(f"stage{n}", *each)
        for n, each in enumerate(zip(devices[1:], layers, strict=True), start=1)
    )
    deployment = Deployment(
        "trial",
        Roles((Placed("draft0", devices[0]),), (placed,), ends=parameters.ends),
        Wiring(LinkTimes(case.draw("link_ms", SHORT_MS))),
        Service(
            lambda session, count: system.make(parameters, ScheduleContext(session, count)),
            groups=together,
            overlapped_pruning=parameters.overlapped_pruning,
            cancels=parameters.cancels,
            clients=len(requested),
            limit=system.places(parameters),
        ),
        requests=tuple(
            RequestSpec(prompt_of(session, length), wanted, ends)
            for session, (length, wanted, ends) in enumerate(requested, start=1)
        ),
    )
    source: Any = HashedSource(DRAFTS[case.values["draft"]], requested)
    check_run(simulate(deployment, source), requested)


def check_run(trace: Trace, requested: Requested) -> None:
    """Hold the texts, and the order of each request's times, of a simulated run."""
    hold(len(trace.requests) == len(requested), "worlds", "a simulated request does not end")
    for request in trace.requests:
        session = numbered(request.session)[1]
        length, wanted, ends = requested[session - 1]
        expected = greedy(list(prompt_of(session, length)), wanted, ends)
        found = [*request.tokens]
        hold(found == expected, "worlds", f"simulated, request {session} says {found}")
        times = [request.started_ms, *[at for at, _ in request.emitted], request.finished_ms]
        hold(times == sorted(times), "worlds", f"request {session} emits before it may")
    for span in trace.spans:
        hold(0 <= span.start_ms <= span.end_ms, "worlds", f"{span.device} ends before it begins")
    for device in {span.device for span in trace.spans if "->" not in span.device}:
        own = sorted((s.start_ms, s.end_ms) for s in trace.spans if s.device == device)
        alone = all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(own))
        hold(alone, "worlds", f"{device} does two things at once")


# --- closed forms --------------------------------------------------------------------------------

RELATIVE = 1e-9


def formula(system: System, case: TrialCase) -> None:
    """Constant times and one client; nothing or everything is accepted."""
    shared = FORMS[str(system.closed_form)].targets
    targets = case.draw("targets", st.integers(1, 3)) if shared else 1
    stages = 1 if shared else case.draw("stages", st.integers(1, 4))
    ms = {name: case.draw(name, TIMES_MS) for name in ("stage_ms", "draft_ms")}
    beta = case.draw("beta", st.sampled_from([0, 1]))
    # The form of the central scheduler is for equal stages and groups.
    free = {"central_transfers": False} if "central_transfers" in system.keys else {}
    scenario = Scenario.of(
        {
            "name": "trial",
            "target": {"layers": 8},
            "drafts": [{"device": {"draft_ms": {1: ms["draft_ms"]}}}],
            "pipelines": [
                {
                    "count": targets,
                    "stages": [{"count": stages, "device": {"stage_ms": {1: ms["stage_ms"]}}}],
                }
            ],
            "links": {"default": {"latency_ms": case.draw("link_ms", SHORT_MS)}},
            "schedule": {"name": system.name, **free},
            "acceptance": {"source": "bernoulli", "beta": beta},
            "workload": {
                "prompt_tokens": case.draw("prompt_tokens", st.integers(1, 60)),
                "new_tokens": case.draw("new_tokens", st.integers(2, 40)),
                "requests": targets,
                "concurrency": targets,
            },
        }
    )
    expected = closed_form(scenario)
    if expected.warnings:
        return  # an assumption of the formulas is bent
    (trace,) = predict(scenario)
    found = run_metrics(trace)
    for name, value in expected.metrics.items():
        same = np.isclose(found[name], value, rtol=RELATIVE, atol=RELATIVE)
        hold(same, "closed_form", f"{name}: simulated {found[name]:.9g}, by formula {value:.9g}")


TRIALS = (
    Trial("worlds", two_worlds, 30),
    Trial(
        "closed_form",
        formula,
        20,
        lambda each: each.closed_form is not None and systems().get(each.name) is each,
        "its record names no closed form",
    ),
)
