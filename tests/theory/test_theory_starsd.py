"""StarSD's equations against the simulator, turn by turn: constant times, so exactly."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from tests.worlds.theory_scenarios import EXACTLY, Written, targets_of
from treepipe.core.draft_work import Turn
from treepipe.results.estimates import summarize
from treepipe.results.steady import steady
from treepipe.results.trace import Trace
from treepipe.sim.theory.starsd import Cycle
from treepipe.sim.theory.tokens import accepted, committed

SERVICE_MS, GAMMA = 12.0, 4


def whole_iterations(trace: Trace, targets: int, count: int = 5) -> list[Turn]:
    """So many of the steady state, and the turn that follows them; not the very last ones, since
    a request's last turn drafts nothing."""
    turns = [turn for turn in steady(trace).turns if turn.pipeline is not None]
    first = len(turns) - (count + 2) * targets
    assert first > 2 * targets
    return turns[first : first + count * targets + 1]


def draft_idle_ms(turns: list[Turn]) -> float:
    return sum(b.started_ms - a.ended_ms for a, b in itertools.pairwise(turns))


def waits_ms(trace: Trace, turns: list[Turn]) -> list[float]:
    """From the delivery to the service. A turn's own ``arrived_ms`` is when the server looks up,
    which it does between two draft passes."""
    arrived: dict[int, list[float]] = {}
    for span in trace.spans:
        if span.kind == "transfer" and span.device.endswith("->draft0"):
            arrived.setdefault(int(span.device[len("pipeline")]), []).append(span.end_ms)
    found = []
    for turn in turns:
        last = max(at for at in arrived[turn.pipeline] if at <= turn.started_ms + EXACTLY)
        assert last <= turn.arrived_ms + EXACTLY
        found.append(turn.started_ms - last)
    return found


@pytest.mark.parametrize("beta", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("back_ms", [5.0, 30.0, 36.0])
@pytest.mark.parametrize("targets", [1, 2, 3, 4, 5, 6])
def test_iteration_idle_wait_and_load(
    tmp_path: Path, targets: int, back_ms: float, beta: float
) -> None:
    """Eq. 7-10 hold whatever is accepted: a round's times do not depend on it."""
    written = Written(tmp_path, "starsd", *targets_of(targets, back_ms, f"acceptance.beta={beta}"))
    (trace,) = written.simulated()
    turns = whole_iterations(trace, targets)
    cycle = Cycle(back_ms, SERVICE_MS, committed(beta, GAMMA))
    iteration = (turns[-1].started_ms - turns[0].started_ms) / 5
    assert iteration == pytest.approx(cycle.iteration_ms(targets), rel=EXACTLY)
    idle = draft_idle_ms(turns) / 5
    assert idle == pytest.approx(cycle.idle_ms(targets), rel=EXACTLY, abs=EXACTLY)
    assert (idle < EXACTLY) == (cycle.back_ms <= (targets - 1) * cycle.service_ms), "eq. 7"
    waits = waits_ms(trace, turns)
    assert waits == pytest.approx([cycle.wait_ms(targets)] * len(turns), rel=EXACTLY, abs=EXACTLY)
    busy = sum(turn.ended_ms - turn.started_ms for turn in turns[:-1]) / 5
    assert busy / iteration == pytest.approx(cycle.load(targets), rel=EXACTLY)
    assert 5e3 * targets / (turns[-1].started_ms - turns[0].started_ms) == pytest.approx(
        cycle.draft_rounds(targets), rel=EXACTLY
    )


@pytest.mark.parametrize("back_ms", [5.0, 12.0, 24.0, 24.6, 40.0])
def test_saturation_begins_at_n_full(tmp_path: Path, back_ms: float) -> None:
    """Eq. 12, whole multiples of S included."""
    n_full = Cycle(back_ms, SERVICE_MS, 1.0).n_full
    assert n_full == math.ceil(back_ms / SERVICE_MS) + 1
    idle = {}
    for targets in (n_full - 1, n_full):
        (trace,) = Written(tmp_path, "starsd", *targets_of(targets, back_ms)).simulated()
        idle[targets] = draft_idle_ms(whole_iterations(trace, targets))
    assert idle[n_full] == pytest.approx(0.0, abs=EXACTLY)
    assert idle[n_full - 1] > 0.1


@pytest.mark.long
@pytest.mark.parametrize("targets", [2, 5])
def test_all_metrics_of_a_saturated_and_an_idle_draft(tmp_path: Path, targets: int) -> None:
    """With everything accepted every figure is constant. Windows begin and end with a turn, so
    rates over them are those of whole iterations only up to one turn in hundreds. (The metric of
    waiting begins when the server looks up: up to a draft pass late.)"""
    settings = ("acceptance.beta=1", "workload.new_tokens=2001")
    written = Written(tmp_path, "starsd", *targets_of(targets, 30.0, *settings))
    expected = written.expected()
    metrics, shares = summarize([steady(trace) for trace in written.simulated()])
    late = metrics["draft_wait_ms"].mean - expected.metrics["draft_wait_ms"]
    assert -3.1 < late < 0.1
    for name in expected.metrics.keys() - {"draft_wait_ms"}:
        value = expected.metrics[name]
        assert metrics[name].mean == pytest.approx(value, rel=5e-3, abs=1e-6), name
    for name, share in expected.utilization.items():
        assert shares[name].mean == pytest.approx(share, rel=5e-3), name


def test_terms_are_the_papers(tmp_path: Path) -> None:
    terms = Written(tmp_path, "starsd", *targets_of(4, 30.0)).expected().terms
    assert terms["service_ms"] == SERVICE_MS
    assert terms["return_ms"] == 30.0
    assert terms["n_full"] == 4
    assert terms["accepted_tokens"] == pytest.approx(accepted(0.7, GAMMA), rel=EXACTLY)
    # A target alone needs 30 ms per token; with c tokens per round of N * 12 ms it is as fast up
    # to N = 30 c / 12.
    assert terms["n_max"] == math.floor(30.0 * committed(0.7, GAMMA) / SERVICE_MS)


@pytest.mark.long
def test_expected_tokens_of_a_round_lie_in_the_simulated_interval(tmp_path: Path) -> None:
    """Eq. 3 counts the accepted tokens; the target's own one comes on top."""
    settings = ("workload.new_tokens=500", "runs=10")
    written = Written(tmp_path, "starsd", *targets_of(3, 30.0, *settings))
    metrics, _ = summarize(written.simulated())
    found = metrics["tokens_per_round"]
    assert found.low is not None
    assert found.high is not None
    assert found.low < 1 + accepted(0.7, GAMMA) < found.high
    assert found.high - found.low < 0.1


# --- where the targets' verification is ----------------------------------------------------------

VERIFY = "evaluate_ms = { 1 = 1.1 }, decide_ms = 2.0"


def verified(folder: Path, ends: str, targets: int, *settings: str) -> Written:
    """Targets of 40 ms, the same work of verification at either place, links of 1 ms."""
    return Written(
        folder,
        "starsd",
        *targets_of(targets, 40.0),
        f"drafts=[{{ device = {{ draft_ms = {{ 1 = 3.0 }}, {VERIFY} }} }}]",
        f"pipelines=[{{ count = {targets}, stages = [{{ device = {{ stage_ms = {{ 1 = 40.0 }}, "
        f"{VERIFY} }} }}] }}]",
        "links.default={ latency_ms = 1.0 }",
        f"schedule.ends={ends}",
        *settings,
    )


def test_times_of_verification_where_nothing_is_verified_are_warned_of(tmp_path: Path) -> None:
    for ends, key in (("draft", "pipelines.0.stages.0.device"), ("pipeline", "drafts.0.device")):
        warnings = verified(tmp_path, ends, 1).expected().warnings
        (warned,) = [each for each in warnings if "no effect" in each]
        assert warned.startswith(
            f"keys {key}.decide_ms, {key}.evaluate_ms have no effect: they are"
        )


@pytest.mark.parametrize(("ends", "service_ms"), [("draft", 15.1), ("pipeline", 12.0)])
def test_verification_at_the_targets_leaves_the_draft_room_for_more_of_them(
    tmp_path: Path, ends: str, service_ms: float
) -> None:
    """By hand: 4 passes of 3 ms, with or without 3.1 ms; a round takes 57.1 ms at either place."""
    four = verified(tmp_path, ends, 4).expected()
    assert four.terms["n_full"] == math.ceil(57.1 / service_ms)
    assert four.utilization["draft0"] == pytest.approx(min(1.0, 4 * service_ms / 57.1))
    written = verified(tmp_path, ends, 6)
    (trace,) = written.simulated()
    turns = whole_iterations(trace, 6)
    assert turns[-1].started_ms - turns[0].started_ms == pytest.approx(5 * 6 * service_ms)


def test_token_ids_travel_instead_of_states(tmp_path: Path) -> None:
    """5 rows of 4,096 float32 over 100 Mbit/s take 6.6 ms each way; ids take 0.01 ms."""
    settings = ("target.hidden_size=4096", "links.default.bandwidth_mbit_s=100")
    rates = {}
    for ends in ("draft", "pipeline"):
        (ideal,) = verified(tmp_path, ends, 2).simulated()
        (trace,) = verified(tmp_path, ends, 2, *settings).simulated()
        rates[ends] = trace.requests[-1].finished_ms / ideal.requests[-1].finished_ms
    assert rates["pipeline"] == pytest.approx(1.0, abs=0.005)
    assert rates["draft"] > 1.1
