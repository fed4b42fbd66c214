"""Links of the simulated world: bandwidth, latency, jitter, and never another order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, get_args

import numpy as np
import pytest

from tests.worlds.changed import changed
from tests.worlds.demo import deployed
from tests.worlds.theory_scenarios import Written
from tests.worlds.timed_pipeline import STAGES, make_deployment, plain, run
from treepipe.core.errors import UserError
from treepipe.core.messages import HEADER_BYTES
from treepipe.physics.timing import JitterKind, LinkTimes
from treepipe.physics.transfers import Port
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import deploy
from treepipe.sim.clock import Clock
from treepipe.sim.link import Claim, Ports, SimulatedLink, Traffic

MS = 125_000
"""Bytes that a link of 1 Gbit/s carries in a millisecond."""


def arrivals(
    link_times: LinkTimes, sends: Sequence[float], sizes: Sequence[int], seed: int = 0
) -> list[tuple[int, float]]:
    """(number, time) of every arrival of messages sent at these times."""
    clock, found = Clock(), list[tuple[int, float]]()
    link: SimulatedLink[int] = SimulatedLink(
        clock, link_times, lambda n: found.append((n, clock.now)), np.random.default_rng(seed)
    )
    for number, (time, size) in enumerate(zip(sends, sizes, strict=True)):
        clock.after(time, lambda _, n=number, s=size: link.send(n, s))  # type: ignore[misc]
    clock.run()
    return found


def test_bandwidth_keeps_the_link_busy_and_latency_does_not() -> None:
    """125,000 bytes take 1 ms at 1 Gbit/s. The third message finds the link free."""
    found = arrivals(LinkTimes(5.0, 1000.0), [0.0, 0.0, 9.0], [MS, 2 * MS, MS])
    assert found == [(0, 6.0), (1, 8.0), (2, 15.0)]


INNER = "links.pairs=[{ends=['pipeline0.stage1','pipeline0.stage2'],bandwidth_mbit_s=9}]"
OUTER = "links.pairs=[{ends=['pipeline0.stage4','draft0'],transfer_ms={1=0.1,900=0.2}}]"


@pytest.mark.parametrize(
    ("settings", "states"),
    [
        ((INNER,), "pipeline0.stage1 sends to pipeline0.stage2"),
        ((OUTER, "schedule.ends=draft"), "pipeline0.stage4 sends to draft0"),
        ((OUTER, "schedule.ends=pipeline"), None),  # ids travel there
        ((INNER, "target.hidden_size=64"), None),
        (("links.default.message_ms=1",), None),
    ],
)
def test_states_of_unknown_size_take_no_link_that_depends_on_it(
    settings: tuple[str, ...], states: str | None
) -> None:
    scenario = Written("pp", *settings).scenario
    if states is None:
        deploy(scenario)
        return
    with pytest.raises(UserError, match=f"key target.hidden_size is missing.*{states}"):
        deploy(scenario)


@pytest.mark.parametrize(
    "link", [LinkTimes(1.0, None, 5.0), LinkTimes(1.0, loss=0.1, retransmit_ms=5.0)]
)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_held_up_never_reorders(link: LinkTimes, seed: int) -> None:
    # Held-up messages become due together; rounding of their delays must not swap them.
    sends = np.cumsum(np.random.default_rng(1000 + seed).exponential(0.7, 500)).tolist()
    found = arrivals(link, sends, [64] * 500, seed)
    assert [number for number, _ in found] == list(range(500))


@pytest.mark.parametrize("kind", get_args(JitterKind))
def test_jitter_has_the_mean_and_spread_of_its_kind(kind: JitterKind) -> None:
    sends = [1000.0 * i for i in range(8000)]
    link = LinkTimes(1.0, None, 4.0, jitter=kind, jitter_cv=0.5)
    found = arrivals(link, sends, [64] * len(sends))
    extra = np.array([time for _, time in found]) - np.array(sends) - 1.0
    mean, cv = {
        "half_normal": (4.0 * np.sqrt(2 / np.pi), np.sqrt(np.pi / 2 - 1)),
        "exponential": (4.0, 1.0),
        "lognormal": (4.0, 0.5),
        "uniform": (4.0, 1 / np.sqrt(3)),
    }[kind]
    assert extra.min() >= 0
    assert extra.mean() == pytest.approx(mean, rel=0.05)
    assert extra.std() / extra.mean() == pytest.approx(cv, rel=0.05)


def test_lost_messages_are_sent_again_behind_a_timeout() -> None:
    """A message takes 1 ms on the wire; k losses cost k timeouts and k more times on the wire."""
    sends = [1000.0 * i for i in range(5000)]
    link = LinkTimes(2.0, 1000.0, loss=0.25, retransmit_ms=30.0)
    found = arrivals(link, sends, [MS] * len(sends))
    lost = (np.array([time for _, time in found]) - np.array(sends) - 3.0) / 31.0
    assert lost == pytest.approx(np.rint(lost))
    assert np.rint(lost).min() == 0
    assert lost.mean() == pytest.approx(0.25 / 0.75, rel=0.1), "geometric"


def many_arrivals(
    times: LinkTimes,
    sends: Sequence[tuple[int, float, int]],
    held: Sequence[str] = (),
    devices: Sequence[tuple[str, str]] = (),
) -> list[tuple[int, float, float]]:
    """(link, begin, end) per message sent as (link, time, size), in the order of their ends.

    Args: ``held``: what each link has to itself; or ``devices``: that each is between.
    """
    clock, found = Clock(), list[tuple[int, float, float]]()
    traffic = Traffic(clock)
    sending, receiving = defaultdict[str, Port](Port), defaultdict[str, Port](Port)
    claims: list[Claim | None] = [Claim(traffic, (name,), False) for name in held]
    ports: list[Ports | None] = [Ports(sending[a], receiving[b]) for a, b in devices]

    def note(link: int, item: None, begin: float, due: float) -> None:
        found.append((link, begin, due))

    links: list[SimulatedLink[None]] = [
        SimulatedLink(
            clock,
            times,
            lambda item: None,
            np.random.default_rng(0),
            claim,
            partial(note, number),
            ports=port,
        )
        for number, (claim, port) in enumerate(zip_longest(claims, ports))
    ]
    for number, time, size in sends:
        clock.after(time, lambda _, n=number, s=size: links[n].send(None, s))  # type: ignore[misc]
    clock.run()
    return sorted(found, key=lambda each: each[2])


def test_links_of_one_medium_take_turns_and_latency_does_not_hold_it() -> None:
    # 1 ms each on a medium that three links share; a fourth has another one to itself.
    sends = [(0, 0.0, MS), (1, 0.0, MS), (2, 0.5, MS), (3, 0.0, MS)]
    found = many_arrivals(LinkTimes(5.0, 1000.0), sends, held=["air", "air", "air", "wire"])
    expected = [(0, 0, 6), (3, 0, 6), (1, 1, 7), (2, 2, 8)]
    assert found == [pytest.approx(each) for each in expected]


def there_and_back(**changes: Any) -> Deployment:
    """A draft and one stage; a row takes 10 ms on a link of 1 Mbit/s, besides 1 ms of latency."""
    deployment = changed(make_deployment(plain, tokens=4), row_bytes=1250 - HEADER_BYTES - 8)
    deployment = changed(deployment, pipelines=(deployment.roles.pipelines[0][:1],))
    return changed(deployment, default=LinkTimes(1.0, 1.0, **changes))


def test_directions_of_a_half_duplex_link_take_turns() -> None:
    deployment = there_and_back(half_duplex=True)
    both = [deployment.held(*ends) for ends in (("draft", "stage1"), ("stage1", "draft"))]
    assert both == [("draft<->stage1",)] * 2
    assert deployment.held("draft", "stage2") == ("draft<->stage2",)
    sends = [(0, 0.0, 125), (1, 0.25, 125)]
    found = many_arrivals(deployment.wiring.default, sends, held=["draft<->stage1"] * 2)
    assert found == [(0, 0, 2), (1, pytest.approx(1.0), pytest.approx(3.0))]


def test_a_medium_is_held_by_all_pairs_that_name_it() -> None:
    air = LinkTimes(1.0, medium="air")
    deployment = changed(there_and_back(), pairs={("draft", "stage1"): air}, default=air)
    for ends in (("draft", "stage1"), ("stage3", "stage4")):
        assert deployment.held(*ends) == ("medium air",)
    central = changed(deployment, central_transfers=True)
    assert central.held("draft", "stage1") == ("draft", "stage1", "medium air")


@pytest.mark.parametrize(
    ("changes", "queues", "shares"),
    [
        ({}, False, False),
        ({"medium": "air"}, True, True),
        ({"half_duplex": True}, True, True),
        ({"half_duplex": True, "central": True}, True, False),  # a device is in one transfer anyway
    ],
)
def test_who_waits_for_transfers(changes: dict[str, Any], queues: bool, shares: bool) -> None:
    central = changes.pop("central", False)
    wiring = changed(there_and_back(**changes), central_transfers=central).wiring
    assert (wiring.queues_transfers, wiring.shares_links) == (queues, shares)


@pytest.mark.parametrize("medium", [None, "air"])
def test_a_span_of_a_transfer_begins_when_it_does(medium: str | None) -> None:
    """What a draft says to four stages leaves it one message behind another, by whatever links."""
    deployment = make_deployment(plain, tokens=4, requests=2)
    deployment = changed(deployment, row_bytes=1250 - HEADER_BYTES - 8)
    deployment = changed(deployment, default=LinkTimes(1.0, 1.0, medium=medium))
    spans = run(deployment, 1.0).spans
    closing = [s for s in spans if s.kind == "transfer" and not s.tokens][:STAGES]
    occupied = HEADER_BYTES * 8e-3
    begins = [span.start_ms - closing[0].start_ms for span in closing]
    assert begins == pytest.approx([i * occupied for i in range(STAGES)])
    assert [s.end_ms - s.start_ms for s in closing] == pytest.approx([1.0 + occupied] * STAGES)


def test_a_device_sends_over_one_link_at_a_time() -> None:
    """b and c get 2 ms each from a; b answers meanwhile, since ports are full duplex."""
    devices = [("a", "b"), ("a", "c"), ("b", "a")]
    sends = [(0, 0.0, 2 * MS), (1, 0.0, 2 * MS), (2, 0.5, MS), (0, 9.0, MS)]
    found = many_arrivals(LinkTimes(5.0, 1000.0), sends, devices=devices)
    assert found == [(2, 0.5, 6.5), (0, 0.0, 7.0), (1, 2.0, 9.0), (0, 9.0, 15.0)]


def test_a_device_receives_over_one_link_at_a_time() -> None:
    """What reaches c while it receives waits in the switch, and keeps no sender busy: a's second
    message leaves at once. A short message behind a long one waits for all of it."""
    devices = [("a", "c"), ("b", "c"), ("a", "d")]
    sends = [(0, 0.0, 4 * MS), (1, 1.0, MS), (1, 1.0, MS), (2, 0.0, MS)]
    found = many_arrivals(LinkTimes(5.0, 1000.0), sends, devices=devices)
    assert found == [(0, 0.0, 9.0), (1, 1.0, 10.0), (2, 4.0, 10.0), (1, 2.0, 11.0)]


def test_a_message_costs_the_sender_time_at_each_of_its_receivers() -> None:
    """A word to 14 stages, at 0.1 ms a message whatever its size."""
    devices = [("draft", f"stage{n}") for n in range(14)]
    sends = [(n, 0.0, 64) for n in range(14)]
    found = many_arrivals(LinkTimes(1.0, message_ms=0.1), sends, devices=devices)
    assert [end for _, _, end in found] == pytest.approx([1.1 + 0.1 * n for n in range(14)])


def test_links_without_a_rate_keep_no_port_busy() -> None:
    devices = [("a", "c"), ("a", "d"), ("b", "c")]
    sends = [(0, 0.0, MS), (1, 0.0, MS), (2, 0.0, MS)]
    found = many_arrivals(LinkTimes(5.0), sends, devices=devices)
    assert [end for _, _, end in found] == [5.0] * 3


def test_pairs_name_profiles_and_roles_of_a_host_have_a_local_link() -> None:
    deployment = deployed(
        'links.pairs=[{ends=["draft0","pipeline0.stage1"],profile="wifi"}]',
        "links.local.latency_ms=0.05",
        'pipelines=[{stages=[{device={},host="box",count=2},{device={}}]}]',
    )
    assert deployment.link("draft0", "pipeline0.stage1").jitter == "exponential"
    assert deployment.held("pipeline0.stage1", "draft0") == ("medium wifi",)
    assert deployment.link("pipeline0.stage1", "pipeline0.stage2").latency_ms == 0.05
    assert deployment.link("pipeline0.stage2", "pipeline0.stage3").latency_ms == 1.0
    assert deployment.roles.is_local("pipeline0.stage1", "pipeline0.stage2")
    assert not deployment.roles.is_local("pipeline0.stage2", "pipeline0.stage3")
