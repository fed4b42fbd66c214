"""Detection of overload: open arrivals compared with the capacity of resources in a run's trace.

A resource (a device, a shared machine, a link, the places for open requests) that is busy for D per
request serves at most 1 / D requests per second, and a system no more than its busiest resource.
The load is rate x D, the largest over resources; from 1 on the queue grows as long as requests come
(the utilization law and the bottleneck's bound of operational analysis: Denning and Buzen, ACM
Computing Surveys 1978). D is taken from the trace, with the batches and rejected nodes of this
load. In a closed loop a client waits for its answer before it asks again, so no queue can grow.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treepipe.core.messages import HEADER_BYTES, ROW_BYTES
from treepipe.core.requests import RequestTrace
from treepipe.results.trace import BUSY, Trace
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.scenario import Scenario

OVERLOADED = "requests arrive faster than they are served"
"""Wording of the overload warning."""
LEAST_GAPS = 8
"""Fewest gaps between a trace's arrivals; with fewer random gaps the rate's error exceeds a third
(1 / sqrt(gaps))."""


@dataclass(frozen=True, slots=True)
class ResourceLoad:
    """Load of the busiest resource, which is busy for ``work_ms`` per request, over its capacity,
    as ``rate_s`` requests per second arrive."""

    at: str
    rate_s: float
    work_ms: float

    @property
    def load(self) -> float:
        return self.rate_s * self.work_ms / 1e3


def overload_warnings(
    scenario: Scenario, deployment: Deployment, traces: Sequence[Trace]
) -> list[str]:
    """Return a warning if requests arrive faster than they are served; empty otherwise."""
    busiest = bottleneck(scenario, deployment, traces)
    if busiest is None or busiest.load < 1:
        return []
    what = (
        f"load {busiest.load:.3g} at {busiest.at} ({busiest.rate_s:.3g} requests/s, "
        f"{busiest.work_ms / 1e3:.3g} s of work each): {OVERLOADED}"
    )
    if deployment.service.admission is None:
        return [f"{what}, so waiting times grow with the length of the run (workload.arrivals)"]
    requests = [request for trace in traces for request in trace.requests]
    refused = sum(request.reason == "refused" for request in requests)
    return [f"{what}, and {refused} of {len(requests)} were refused (serving.admission)"]


def bottleneck(
    scenario: Scenario, deployment: Deployment, traces: Sequence[Trace]
) -> ResourceLoad | None:
    """Find the busiest resource over all runs; None in a closed loop, and if no request was served.

    Args: ``deployment``: deployment of any of the runs.
    """
    rate = _arrival_rate_s(scenario, deployment)
    served = [[request for request in trace.requests if request.emitted] for trace in traces]
    requests = sum(map(len, served))
    if rate is None or not requests:
        return None
    work = Counter[str]()
    for trace, each in zip(traces, served, strict=True):
        work.update(_busy_ms(deployment, trace))
        work.update(_place_ms(deployment, each))
    at, busy_ms = max(work.items(), key=lambda item: item[1], default=("any device", 0.0))
    return ResourceLoad(at, rate, busy_ms / requests)


def _arrival_rate_s(scenario: Scenario, deployment: Deployment) -> float | None:
    """Return the rate of the process, or of a trace by the first turns of its sessions; None if
    these come all at once or are too few for a rate."""
    if scenario.workload.arrivals is not None:
        return scenario.workload.arrivals.rate_per_s
    if scenario.workload.trace is None:
        return None
    requests = deployment.requests
    times = [each.arrival_ms or 0.0 for each in requests if each.after is None]
    gaps, span_ms = len(times) - 1, times[-1] - times[0]
    turns = len(requests) / len(times)
    return 1e3 * turns * gaps / span_ms if gaps >= LEAST_GAPS and span_ms else None


def _busy_ms(deployment: Deployment, trace: Trace) -> dict[str, float]:
    """Return the busy time of each device, shared machine, port and medium, over its capacity."""
    busy, links = defaultdict[str, float](float), defaultdict[str, float](float)
    roles = deployment.roles
    for span in trace.spans:
        if span.kind in BUSY:
            busy[span.device] += span.end_ms - span.start_ms
        elif span.kind == "transfer":
            sender, receiver = span.device.split("->")
            link = deployment.link(sender, receiver)
            # Few bytes are left out: a word's indices, states that a draft reads of accepted rows.
            # A lost message is sent again.
            size = HEADER_BYTES + span.tokens * (roles.flight_row_bytes(sender) + ROW_BYTES)
            occupied = link.load(size).sustained_ms / (1 - link.loss)
            ports = {f"link {span.device}"}
            if not deployment.roles.is_local(sender, receiver):
                ports = {f"sending port of {sender}", f"receiving port of {receiver}"}
            for name in {*ports, *deployment.held(sender, receiver)}:
                links[name] += occupied
    shared = [machine for machine in deployment.roles.machines if len(machine.roles) > 1]
    machines: Mapping[str, float] = {
        f"host {machine.name}": sum(busy[role] for role in machine.roles) / machine.capacity
        for machine in shared
    }
    return {**busy, **links, **machines}


def _place_ms(deployment: Deployment, requests: Sequence[RequestTrace]) -> dict[str, float]:
    """Return how long the places for open requests were taken; empty if places are not limited.

    Requests get a place in the order of asking, so the k-th one waits until all but ``places`` - 1
    of the k - 1 before it are over.
    """
    if deployment.service.limit is None:
        return {}
    places = deployment.service.limit * len(deployment.roles.pipelines)
    in_order = sorted(requests, key=lambda request: request.session)
    ends = sorted(request.finished_ms for request in requests)
    taken = 0.0
    for number, request in enumerate(in_order):
        free_ms = ends[number - places] if number >= places else 0.0
        taken += request.finished_ms - max(request.started_ms, free_ms)
    kind = "place" if places == 1 else "places"
    return {f"the {places} {kind} for open requests": taken / places}
