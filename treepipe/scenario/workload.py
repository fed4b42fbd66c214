"""The requests of a workload: lengths and arrival times, drawn or read from a trace.

Invariant: the same seed gives the same requests for every schedule and in both worlds. Arrival
times, prompt lengths and output lengths each have their own stream of random numbers, so changing
one leaves the others unchanged, and a longer workload begins with the same requests.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from treepipe.core.errors import UserError
from treepipe.profiles.workloads import Asked, WorkloadTrace, read_workload
from treepipe.scenario.deployment import RequestSpec
from treepipe.scenario.distributions import draw_lengths
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import Replay, Workload

MANY_TOKENS = 5_000_000
"""Simulated tokens beyond which a command warns that it will take long."""
MOST_TOKENS = 50_000_000
"""Most tokens of a run's prompts and texts together; a larger trace would fill the memory."""
TOKENS_PER_S = 10_000
"""Order of magnitude of a simulation's tokens per second on one core (``docs/figures.md``)."""


def run_seeds(seed: int, runs: int) -> list[int]:
    """Return one seed per run; the seeds are independent of each other."""
    children = np.random.SeedSequence(seed).spawn(runs)
    return [int(child.generate_state(1, np.uint64)[0]) for child in children]


def draw_requests(scenario: Scenario, seed: int) -> tuple[RequestSpec, ...]:
    """Draw the requests of a run of this seed; each prompt consists of token 0 only.

    Raises ``UserError``: the trace is wrong, or the requests are too large for memory.
    """
    workload, arrivals = scenario.workload, scenario.workload.arrivals
    if workload.trace is not None:
        asked_for = _traced(workload, workload.trace, scenario.path).requests
        return tuple(request_of(each, workload.rate_scale) for each in asked_for)
    lengths, wanted = _lengths(workload, scenario.path, seed)
    asked: list[float | None] = [None] * workload.requests
    if arrivals is not None:
        at_ms = arrivals.times_ms(_streams(seed)[0], workload.requests)
        if not np.isfinite(at_ms).all():
            raise UserError(
                f"{scenario.path}: key workload.arrivals.rate_per_s = {arrivals.rate_per_s:g} is "
                f"so small that requests never arrive"
            )
        asked = at_ms.tolist()
    return tuple(
        RequestSpec((0,) * length, new_tokens, arrival_ms=at)
        for length, new_tokens, at in zip(lengths, wanted, asked, strict=True)
    )


def _streams(seed: int) -> list[np.random.Generator]:
    """Return the random streams of arrival times, prompt lengths and output lengths."""
    streams = np.random.SeedSequence([seed, *b"workload"]).spawn(3)
    return [np.random.default_rng(stream) for stream in streams]


def _lengths(workload: Workload, path: Path, seed: int) -> tuple[list[int], list[int]]:
    """Return the tokens of each prompt and each text; ``UserError`` if they exceed any memory."""
    _, prompts, texts = _streams(seed)
    lengths = draw_lengths(workload.prompt_tokens, prompts, workload.requests)
    wanted = draw_lengths(workload.new_tokens, texts, workload.requests)
    _check_tokens(sum(lengths) + sum(wanted), path)
    return lengths, wanted


def _check_tokens(tokens: int, path: Path) -> None:
    if tokens > MOST_TOKENS:
        raise UserError(
            f"{path}: key workload: the requests of a run have {tokens:,} tokens (requests, "
            f"prompt_tokens, new_tokens, window_s); there may be {MOST_TOKENS:,}"
        )


def _traced(workload: Workload, file: str, path: Path) -> WorkloadTrace:
    """Return the part of the trace that the workload asks for."""
    trace, window = read_workload(path.parent / file, "key workload.trace"), workload.window_s
    if window is not None:
        trace = trace.window(*(window if isinstance(window, tuple) else (0.0, window)))
        if not trace.requests:
            raise UserError(f"{path}: key workload.window_s: {file} has no request in it")
    requests = trace.requests
    if "requests" in workload.model_fields_set:
        if workload.requests > len(requests):
            raise UserError(
                f"{path}: key workload.requests = {workload.requests}, but {file} holds "
                f"{len(requests)} requests"
            )
        requests = requests[: workload.requests]
    if (workload.warmup_requests or 0) >= len(requests):
        raise UserError(
            f"{path}: key workload.warmup_requests = {workload.warmup_requests} leaves nothing of "
            f"the {len(requests)} requests of {file}"
        )
    _check_tokens(sum(each.prompt_tokens + each.new_tokens for each in requests), path)
    return replace(trace, requests=requests)


def request_of(asked: Asked, rate_scale: float = 1.0) -> RequestSpec:
    """Make a trace's request; a turn with a delay has no time of its own."""
    at_ms = 0.0 if asked.delay_s is not None else 1e3 * asked.at_s / rate_scale
    return RequestSpec(
        (0,) * asked.prompt_tokens,
        asked.new_tokens,
        arrival_ms=at_ms,
        after=asked.after,
        delay_ms=1e3 * (asked.delay_s or 0.0),
        known=asked.known,
    )


def trace_warnings(scenario: Scenario, *, run: bool = False) -> list[str]:
    """Return what the trace leaves out, and what the world assumes of it."""
    file = scenario.workload.trace
    if file is None:
        return []
    trace, found = _traced(scenario.workload, file, scenario.path), list[str]()
    if trace.failed:
        found.append(f"{file}: {trace.failed} failed requests are left out")
    if run:
        return [
            *found,
            f"prompts are those of workload.prompts, with their lengths; lengths and shared "
            f"prefixes of prompts in {file} are for the simulator",
        ]
    if known := sum(each.known for each in trace.requests):
        whole = sum(each.prompt_tokens for each in trace.requests)
        found.append(
            f"{file}: {known / whole:.1%} of prompt tokens are prefixes that earlier "
            f"requests brought: stages do not compute them again, as if every pipeline kept them "
            f"all; drafts read prompts whole, and each request holds its whole prompt in the cache"
        )
    return found


def effort_warnings(scenario: Scenario) -> list[str]:
    """Return a warning if a simulation will take long; empty otherwise.

    Raises ``UserError`` as ``draw_requests`` does.
    """
    if isinstance(scenario.acceptance, Replay):
        return []  # it takes as long as the recorded run
    workload = scenario.workload
    if workload.trace is not None:
        asked_for = _traced(workload, workload.trace, scenario.path).requests
        wanted = [each.new_tokens for each in asked_for]
    else:
        _, wanted = _lengths(workload, scenario.path, run_seeds(scenario.seed, 1)[0])
    tokens = scenario.runs * sum(wanted)
    if tokens <= MANY_TOKENS:
        return []
    return [
        f"{tokens / 1e6:.3g} million tokens are to be simulated (workload.requests, "
        f"workload.new_tokens, runs): at {TOKENS_PER_S:,} tokens/s, which trees halve or worse, "
        f"that takes {tokens / TOKENS_PER_S / 60:.0f} minutes"
    ]
