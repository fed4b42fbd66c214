"""The terms of a host are found in runs that were simulated with known ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.worlds.theory_scenarios import Written
from treepipe.core.messages import HEADER_BYTES
from treepipe.executor.measure.host_fit import (
    Concurrency,
    FittedHost,
    Moments,
    Observed,
    Piece,
    _between,
)
from treepipe.executor.measure.in_place import RUNS
from treepipe.physics.timing import Factor, TimeTable
from treepipe.results.trace import Kind, Span, Trace
from treepipe.scenario.resolve import deploy

WIDTH = 100
ROW = 4 * WIDTH + 8
TRUE = f"""
wake_ms = 0.3
send_ms = {{ {HEADER_BYTES} = 0.2, {HEADER_BYTES + 10 * ROW} = 0.7 }}
receive_ms = {{ {HEADER_BYTES} = 0.1, {HEADER_BYTES + 10 * ROW} = 0.4 }}
desk_ms = {{ 1 = 0.25 }}
stage_factor = {{ 1 = 1.5, 8 = 1.2 }}
draft_factor = {{ 1 = 1.1 }}
draft_cold = {{ 1 = 1.8, 2 = 1.3, 3 = 1.1, 4 = 1.0 }}
together = {{ 1 = 1.0, 2 = 1.6, 3 = 2.4 }}
variation = 0.05
[origin]
source = "made up"
date = 2026-11-22
hardware = "none"
versions = "none"
"""
BACK = TRUE.replace("wake_ms = 0.3", "wake_ms = 0.9").replace("1.5, 8 = 1.2", "0.8, 8 = 0.6")
HOSTS = {"front": TRUE, "back": BACK}
TWO = (
    f"target={{layers=8,hidden_size={WIDTH}}}",
    'drafts=[{host="front",device={draft_ms={1=2.0,16=3.0}}}]',
    "pipelines=[{stages=["
    '{host="front",device={stage_ms={1=5.0,16=9.0}},count=2},'
    '{host="back",device={stage_ms={1=7.0,16=8.0}},count=2}]}]',
    "links={default={latency_ms=4.0},local={latency_ms=0.0}}",
    "workload={prompt_tokens=4,new_tokens=60,requests=4}",
    "emulate=false",
    'acceptance={source="hit_ratio",table={1=0.6,8=0.9}}',
)


def as_noted_by_workers(trace: Trace) -> Trace:
    """A worker notes a message when it is packed, and when it is unpacked: not when it travels. It
    was woken from when the message's packing began."""

    def of(kind: Kind) -> dict[str, Iterator[Span]]:
        kept = [span for span in trace.spans if span.kind == kind]
        return {n: iter([span for span in kept if span.device == n]) for n in trace.devices}

    packed, read = of("send"), of("receive")
    begun: dict[float, float] = {}
    spans = []
    for span in trace.spans:
        if span.kind == "transfer":
            sender, receiver = span.device.split("->")
            before, after = next(packed[sender]), next(read[receiver], None)
            begun[round(span.end_ms, 6)] = before.start_ms
            if after is None:
                continue
            span = replace(span, start_ms=before.start_ms, end_ms=after.end_ms)
        spans.append(span)
    woken = {span: begun.get(round(span.start_ms, 6)) for span in spans if span.kind == "wake"}
    return replace(
        trace,
        spans=[
            span if (start := woken.get(span)) is None else replace(span, start_ms=start)
            for span in spans
        ],
    )


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FittedHost]:
    folder = tmp_path_factory.mktemp("hosts")
    for host, text in HOSTS.items():
        (folder / f"{host}.toml").write_text(text)
    named = [f'hosts.{host}.profile="./{host}.toml"' for host in HOSTS]
    found = {host: Observed() for host in HOSTS}
    for schedule in RUNS:
        settings = [f"schedule.{key}={value}" for key, value in schedule.items()]
        deployment = deploy(Written("pp", *TWO, *settings).scenario)
        (trace,) = Written("pp", *TWO, *settings, *named, folder=folder).simulated()
        for machine in deployment.roles.machines:
            found[machine.name].add(as_noted_by_workers(trace), deployment, machine.roles)
    return {host: observed.fit() for host, observed in found.items()}


@pytest.fixture
def fit(fits: dict[str, FittedHost]) -> FittedHost:
    return fits["front"]


def test_draft_passes_behind_a_wait_are_told_from_those_behind_others(fit: FittedHost) -> None:
    assert [fit.cold[place] for place in (1, 2, 3, 4)] == pytest.approx(
        [1.8, 1.3, 1.1, 1.0], rel=0.03
    )
    assert fit.cold[5] == 1, "they are over the last one's"


def test_passes_behind_a_wait_do_not_tell_the_time_of_later_ones_with_other_rows() -> None:
    """A cold pass costs about a fixed time more, whatever its rows: 4 rows are seen only there, 1
    and 10 behind other passes, too."""
    table = TimeTable({1: 0.5, 4: 0.8, 10: 1.2})
    observed = Observed(tables={"draft draft0": table})

    def see(rows: int, place: int, more_ms: float = 0.0) -> None:
        alone = np.array([table(rows) + more_ms])
        observed.passes += [Piece("draft draft0", rows, alone, place)] * 10

    for place in (2, 3, 4, 5):
        see(1, place)
        see(10, place)
    see(1, 1, 0.5)
    see(4, 1, 0.4)
    fit = observed.fit()
    assert Factor(fit.factors["draft"])(4) == pytest.approx(1.0, rel=0.02)
    assert fit.cold[1] == pytest.approx((2.0 + 1.5) / 2, rel=0.02), "in the mean over the rows"


def test_time_that_is_lost_in_rare_long_pieces_is_not_left_out() -> None:
    """By hand: 200 passes of 1 ms by the table, of which 3 took 21 ms: 260 ms in all. The factors'
    shape over rows does not follow them, their level does."""
    observed = Observed(tables={"stage s": TimeTable({1: 1.0})})
    for rows in (1, 8):
        for number in range(100):
            took = 21.0 if rows == 8 and number % 40 == 0 else 1.0
            observed.passes.append(Piece("stage s", rows, np.array([took])))
    factors = observed.fit().factors["stage"]
    assert factors[1] == factors[8] == pytest.approx(1.3)


def test_messages_by_their_bytes(fit: FittedHost) -> None:
    for what, base, slope in (("send", 0.2, 0.05), ("receive", 0.1, 0.03)):
        for size, found in fit.messages[what].items():
            expected = base + slope * (size - HEADER_BYTES) / ROW
            assert found == pytest.approx(expected, rel=0.06), (what, size)


def test_the_first_of_messages_read_together_takes_longer() -> None:
    """0.5 ms, where those behind it take 0.1 and 0.2 by their bytes; without any behind it the
    line has all of it."""
    first = [Piece("receive", 150, np.array([0.5]), 1)] * 9
    later = [Piece("receive", size, np.array([size / 1000]), 2) for size in (100, 200)] * 5
    fit = Observed(messages=[*first, *later]).fit()
    assert fit.messages["receive"] == {100: pytest.approx(0.1), 200: pytest.approx(0.2)}
    assert fit.look == pytest.approx(0.35)
    alone = Observed(messages=first).fit()
    assert (alone.look, alone.messages["receive"]) == (0.0, {150: pytest.approx(0.5)})


def test_small_work_belongs_to_what_follows_it() -> None:
    """By hand: two polls and a rule before a wait, one rule before a pass, one before a message. Of
    a draft server only polls are small work; its rules have a term of their own."""
    spans = [
        Span("s", kind, start, end, 0, rows)
        for kind, start, end, rows in (
            ("desk", 0.0, 0.1, 0),
            ("receive", 0.1, 0.2, 0),
            ("receive", 0.2, 0.3, 0),
            ("wait", 0.3, 5.0, 0),
            ("wake", 5.0, 5.2, 0),
            ("desk", 5.2, 5.25, 0),
            ("receive", 5.25, 5.35, 0),
            ("desk", 5.35, 5.45, 0),
            ("mask", 5.45, 5.5, 0),
            ("compute", 5.5, 9.0, 4),
        )
    ]
    heard = Moments([(5.34, 100)])
    small = [(event, round(span.length_ms, 6)) for event, span in _between(spans, heard, False)]
    assert small == [*[("wait", 0.1)] * 3, ("receive", 0.05), ("stage", 0.1)]
    assert [event for event, _ in _between(spans, heard, True)] == ["wait", "wait"]


def test_a_role_without_a_processor_is_not_at_work() -> None:
    """Three roles are busy for 30 ms on two processors, so each has one for 20 ms."""
    busy = [[Span(role, "compute", 0.0, 30.0 + 10 * n, 0, 1)] for n, role in enumerate("abc")]
    assert Concurrency(busy, 2).of(0.0, 30.0) == pytest.approx([0.0, 20.0])
    assert Concurrency(busy, 2).of(20.0, 50.0) == pytest.approx([10.0, 10.0 + 20 / 3])
    assert Concurrency(busy).of(20.0, 50.0) == pytest.approx([10.0, 10.0, 10.0])
    assert not Concurrency(busy, 2).leaves_room(39.0)
    assert Concurrency(busy, 2).leaves_room(41.0)


def test_without_any_run_there_is_no_term() -> None:
    nothing = Observed().fit()
    assert nothing.together == {1: 1.0}
    assert not nothing.pieces


def test_each_host_has_its_own_terms(fits: dict[str, FittedHost]) -> None:
    """Of the time that a message takes from one host to another, neither counts any as its own."""
    for host, wake, first, eighth in (("front", 0.3, 1.5, 1.2), ("back", 0.9, 0.8, 0.6)):
        fit = fits[host]
        assert fit.wake == pytest.approx(wake, rel=0.06)
        for rows, factor in fit.factors["stage"].items():
            assert factor == pytest.approx(np.interp(rows, (1, 8), (first, eighth)), rel=0.03), host
        assert fit.variation == pytest.approx(0.05, rel=0.25)
        assert list(fit.desk.values()) == pytest.approx([0.25] * len(fit.desk), rel=0.1)
        assert fit.together[2] == pytest.approx(1.6, rel=0.1)
        drafts = list(fit.factors["draft"].values())
        assert drafts == [pytest.approx(1.1, rel=0.04)] * len(drafts)
        assert bool(drafts) == (host == "front")
        assert set(fit.messages) == {"send", "receive"}
    assert fits["front"].together == {
        1: 1.0,
        2: pytest.approx(1.6, rel=0.04),
        3: pytest.approx(2.4, rel=0.15),  # three are rare
    }
