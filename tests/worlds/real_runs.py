"""Runs of small deployments in real processes, and the text that each of them must give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.worlds.deployments import PROMPT, worker_roles
from tests.worlds.tiny_models import greedy
from treepipe.executor.run.controller import Controller
from treepipe.results.metrics import run_metrics
from treepipe.results.recording import Recording
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, RequestSpec

SHORT, LONG = RequestSpec(PROMPT[:20], 12), RequestSpec(PROMPT[:9], 60)
"""The first is over while another one has some tokens and wants many more."""
TIMEOUT_MS = 1000.0
"""A worker's silence until it is lost; half of the default, so that nobody waits for long."""


def controller_of(pair: tuple[Path, Path], deployment: Deployment, **roles: object) -> Controller:
    """A controller of the deployment's workers; ``roles`` are changes of their settings."""
    return Controller(worker_roles(pair, deployment, **roles), deployment)  # type: ignore[arg-type]


def run_once(
    pair: tuple[Path, Path], deployment: Deployment, **roles: object
) -> tuple[Trace, Recording]:
    """Run the deployment on workers of its own."""
    with controller_of(pair, deployment, **roles) as running:
        return running.run(deployment)


def assert_greedy(trace: Trace, deployment: Deployment, target: Path) -> None:
    """Every request has the text that ``generate()`` of the whole model gives, each token once."""
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(target, list(spec.prompt), spec.max_new_tokens)
        assert sum(count for _, count in request.emitted) == len(request.tokens)
        assert request.reason == "length"


def assert_no_faster(trace: Trace, replay: Trace) -> None:
    """Emulated work takes at least its profile's time. How much longer a run takes than that is
    the host's affair: a busy one has no upper bound."""
    found = [run_metrics(each)["time_between_tokens_ms"] for each in (replay, trace)]
    assert found[0] < 1.05 * found[1]


def one_by_one(*actions: Callable[[], object]) -> Callable[[], None]:
    """The progress of a run: after each request the next of these actions, as far as they go."""
    left = iter(actions)

    def act() -> None:
        for action in left:
            action()
            return

    return act
