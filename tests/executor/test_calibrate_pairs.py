"""Links of all pairs of a scenario's hosts: which they are, what is refused, who is let in."""

from __future__ import annotations

import datetime
import os
import threading
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.command_line import assert_sentence, call
from treepipe.core.errors import RunError, UserError
from treepipe.core.messages import Close
from treepipe.executor import remote
from treepipe.executor.clock import now_ms
from treepipe.executor.control import ANSWERS, ORDERS, LinkEnd, Measure, RoundTrips
from treepipe.executor.keys import KeyPair
from treepipe.executor.measure import calibrate, link
from treepipe.executor.measure.link import link_profile, round_trips
from treepipe.executor.measure.pairs import (
    HostPair,
    PairsSession,
    host_pairs,
    pair_sections,
    with_pairs,
)
from treepipe.executor.measure.peer import SIZES, WIDTH, End, serve
from treepipe.executor.transport import LOOPBACK, TOKEN_BYTES, Outbox, Ping
from treepipe.files.toml_file import read_toml
from treepipe.profiles.schema import LinkProfile, MeasuredOrigin
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario

A, B, C = "10.0.0.1:5600", "10.0.0.2:5600", "10.0.0.3:5600"
STAGES = tuple(f"pipeline0.stage{number}" for number in (1, 2, 3))
TEXT = """
name = "hosts"
[target]
layers = 6
hidden_size = 64
[[drafts]]
device = "emulated-20ms"
{draft}
[[pipelines]]
stages = [
  {{ device = "emulated-20ms"{0} }},
  {{ device = "emulated-20ms"{1} }},
  {{ device = "emulated-20ms"{2} }},
]
[links]
default = {{ latency_ms = 7.0, medium = "air" }}
pairs = [
  {{ ends = ["draft0", "pipeline0.stage2"], latency_ms = 8.0, duplex = "half" }},
  {{ ends = ["pipeline0.stage2", "pipeline0.stage3"], latency_ms = 9.0, one_way = true }},
]
[schedule]
name = "flowspec"
tree_size = 8
[acceptance]
source = "bernoulli"
beta = 0.7
"""


def scenario_at(folder: Path, *workers: str | None) -> Path:
    """A file whose draft and three stages are at these workers."""
    draft, *stages = workers
    said = [f', worker = "{each}"' if each else "" for each in stages]
    path = folder / "hosts.toml"
    path.write_text(TEXT.format(*said, draft=f'worker = "{draft}"' if draft else ""))
    return path


# --- which pairs there are -----------------------------------------------------------------------


def test_hosts_whose_roles_send_to_each_other_are_a_pair_once(tmp_path: Path) -> None:
    """Two stages on one host: no link between them, and one from the draft to both."""
    assert host_pairs(resolve(Scenario.load(scenario_at(tmp_path, A, B, B, C)))) == [
        HostPair((A, B), (("draft0", STAGES[0]), ("draft0", STAGES[1]))),
        HostPair((A, C), (("draft0", STAGES[2]),)),
        HostPair((B, C), ((STAGES[1], STAGES[2]),)),
    ]


def test_the_coordinators_own_host_is_one_of_them(tmp_path: Path) -> None:
    scenario = Scenario.load(scenario_at(tmp_path, None, None, A, None))
    (found,) = host_pairs(resolve(scenario))
    assert found.hosts == (None, A)
    assert found.roles == (("draft0", STAGES[1]), STAGES[:2], STAGES[1:])
    assert str(found) == f"this host to {A}"
    assert found.file == f"draft0-{STAGES[1]}.toml"


def test_a_spare_is_measured_to_every_host_and_to_other_spares(tmp_path: Path) -> None:
    """It may take any role's place, so its peers may be anywhere; and two may be at work."""
    spares, file = ("10.0.0.8:5600", "10.0.0.9:5600"), scenario_at(tmp_path, None, A, A, B)
    before = resolve(Scenario.load(file, [f"faults.spares={list(spares)}"]))
    others = [(None, ("draft0",)), (A, STAGES[:2]), (B, STAGES[2:])]
    found = host_pairs(before)[len(host_pairs(resolve(Scenario.load(file)))) :]
    assert found == [
        *(
            HostPair((spare, host), tuple((spare, role) for role in roles))
            for spare in spares
            for host, roles in others
        ),
        HostPair(spares, (spares,)),
    ]
    assert found[0].file == "10.0.0.8-5600-draft0.toml"


def test_a_spare_has_its_own_links_where_they_are_described(tmp_path: Path) -> None:
    spares, file = ("10.0.0.8:5600", "10.0.0.9:5600"), scenario_at(tmp_path, None, A, A, B)
    scenario = Scenario.load(file, [f"faults.spares={list(spares)}"])
    before, files = resolve(scenario), dict[HostPair, Path]()
    for number, pair in enumerate(host_pairs(before)):
        files[pair] = tmp_path / f"link{number}.toml"
        files[pair].write_text(
            f"latency_ms = {100 + number}\n"
            '[origin]\nsource = "a test"\ndate = 2026-01-01\nhardware = "-"\nversions = "-"\n'
        )
    latency = {frozenset(pair.hosts): 100 + number for number, pair in enumerate(files)}
    measured = Scenario.of(with_pairs(scenario, pair_sections(before, files)), scenario.path)
    after = resolve(measured).at_spare(STAGES[0], spares[0]).at_spare(STAGES[2], spares[1])
    hosts = dict(zip(("draft0", *STAGES), (None, spares[0], A, spares[1]), strict=True))
    for sender, receiver in after.connections:
        both = frozenset((hosts[sender], hosts[receiver]))
        assert after.link(sender, receiver).latency_ms == latency[both]


@given(st.lists(st.sampled_from((A, B, C, None)), min_size=4, max_size=4))
def test_every_message_between_hosts_has_the_measured_link_and_no_other_one(
    tmp_path_factory: pytest.TempPathFactory, workers: list[str | None]
) -> None:
    """Wherever the roles are; what was not measured of a link stays as the scenario says it."""
    folder = tmp_path_factory.getbasetemp()
    scenario = Scenario.load(scenario_at(folder, *workers))
    before = resolve(scenario)
    places = {placed.name: placed.worker for placed in before.placed}
    if len(set(workers)) == 1:
        with pytest.raises(UserError, match="all roles are on one host"):
            host_pairs(before)
        return
    files = {}
    for number, pair in enumerate(host_pairs(before)):
        files[pair] = folder / f"link{number}.toml"
        files[pair].write_text(
            f"latency_ms = {100 + number}\n"
            '[origin]\nsource = "a test"\ndate = 2026-01-01\nhardware = "-"\nversions = "-"\n'
        )
    after = resolve(Scenario.of(with_pairs(scenario, pair_sections(before, files)), scenario.path))
    latencies = set()
    for ends in before.connections:
        was, now = before.link(*ends), after.link(*ends)
        if places[ends[0]] == places[ends[1]]:
            assert now == was
        else:
            latencies.add(now.latency_ms)
            assert now.latency_ms >= 100.0
            assert (now.half_duplex, now.medium) == (was.half_duplex, was.medium)
            assert after.link(*ends[::-1]).latency_ms == now.latency_ms
    assert len(latencies) == len(files), "a profile for each pair of hosts"


def test_names_of_profiles_count_from_the_scenarios_folder(tmp_path: Path) -> None:
    deployment = resolve(Scenario.load(scenario_at(tmp_path, A, B, B, B)))
    (pair,) = host_pairs(deployment)
    sections = pair_sections(deployment, {pair: tmp_path / "links" / pair.file})
    assert {section["profile"] for section in sections} == {f"links/draft0-{STAGES[0]}.toml"}


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("hosts.toml", "--peer", A), f"--peer {A}: a scenario names the hosts itself"),
        (("--together",), "--together: is for a scenario's links, and no scenario is given"),
        (("--scenario-out", "x.toml"), "--scenario-out: is for a scenario's links, and no scen"),
        (("one.toml",), "one.toml: all roles are on one host, so that there is no link to measure"),
        (("none.toml",), "none.toml: there is no such file"),
        (("hosts.toml", "--scenario-out", "hosts.toml"), "is a file that this command reads"),
        (("hosts.toml", "--scenario-out", "/tmp/x.toml"), "/tmp/x.toml: must be in the folder of"),
        (("hosts.toml", "--scenario-out", "one.toml"), "one.toml: there is such a file already"),
        (("hosts.toml", "--out", "one.toml"), "--out one.toml: is a file, not a folder"),
        (("hosts.toml", "--out", "old"), "links.toml: there is such a file already; --force"),
        (("hosts.toml",), f"worker '{A}' needs key run.key, the file of the key"),
        (("inner.toml",), "is on this host's loopback, which worker"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: tuple[str, ...],
    part: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    scenario_at(tmp_path, "127.0.0.1:5600", A, B, C).rename("inner.toml")
    scenario_at(tmp_path, A, A, A, A).rename("one.toml")
    scenario_at(tmp_path, A, B, B, C)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "links.toml").touch()
    assert call(monkeypatch, "calibrate", "links", *arguments) == 2
    assert_sentence(capsys.readouterr().err, part)
    assert not list(tmp_path.glob("**/draft0*"))


def test_a_host_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whose host refuses connections is not waited for as one that may only be slow."""
    monkeypatch.setattr(remote, "LOOK_S", 0.05)
    path, out = scenario_at(tmp_path, "127.0.0.1:1", None, None, None), tmp_path / "links"
    assert call(monkeypatch, "calibrate", "links", path, "--out", out, "--quiet") == 1
    assert_sentence(capsys.readouterr().err, "worker 127.0.0.1:1 does not answer: its host refuses")
    assert not list(out.iterdir())


class _Met:
    """Hosts that are there."""

    def __init__(self, roles: object, *, others: list[str]) -> None:
        assert not roles
        assert set(others) == {A, B, C}

    def meet(self, key: Path | None) -> None:
        """All of them answer."""

    def close(self) -> None:
        """Nothing was opened."""


PROFILE = LinkProfile(
    latency_ms=1.5,
    bandwidth_mbit_s=900.0,
    origin=MeasuredOrigin(
        source="a test", date=datetime.date(2026, 1, 1), hardware="-", versions="-"
    ),
)


@pytest.mark.parametrize(("together", "kept"), [(False, 1), (True, 0)])
def test_what_was_measured_before_a_host_was_lost_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    together: bool,
    kept: int,
) -> None:
    """One after another the first link is; of links that are measured together there is none."""
    asked = []

    def measure(
        session: PairsSession, pairs: list[HostPair], seconds: float
    ) -> list[tuple[HostPair, LinkProfile]]:
        asked.append((pairs, seconds))
        if len(asked) == 1 + kept:
            raise RunError("worker is lost")
        return [(pair, PROFILE) for pair in pairs]

    monkeypatch.setattr(calibrate, "Fleet", _Met)
    monkeypatch.setattr(PairsSession, "measure", measure)
    path, out = scenario_at(tmp_path, A, B, B, C), tmp_path / "links"
    made = tmp_path / "made.toml"
    command = ("calibrate", "links", path, "--out", out, "--scenario-out", made, "--seconds", 2)
    more = ("--together",) if together else ()
    assert call(monkeypatch, *command, *more, "--quiet") == 1
    assert_sentence(capsys.readouterr().err, "worker is lost")
    assert [seconds for _, seconds in asked] == [2.0] * len(asked)
    assert [len(pairs) for pairs, _ in asked] == ([3] if together else [1, 1])
    assert not made.exists()
    assert len(list(out.glob("draft0*"))) == kept
    assert (out / "links.toml").exists() == bool(kept)
    if kept:
        table = (out / "links.toml").read_text()
        assert f"# {A} to {B}: 1.5 ms, jitter 0 ms, 0 ms a message, 900 Mbit/s\n" in table
        pairs = read_toml(out / "links.toml")["links"]["pairs"]
        assert [pair["ends"] for pair in pairs] == [["draft0", stage] for stage in STAGES[:2]]


# --- the two ends --------------------------------------------------------------------------------


def ends(key: KeyPair | None = None) -> tuple[LinkEnd, LinkEnd]:
    token = bytes(range(TOKEN_BYTES))
    return (
        LinkEnd("near", "far", 0, 2_000.0, token, key),
        LinkEnd("far", "near", 0, 2_000.0, token, key),
    )


def test_two_ends_with_a_key_time_every_size() -> None:
    """In one process, as two hosts do it; what was timed travels as it is, and is a link."""
    host = "127.0.0.2"  # no loopback by name, so over TCP
    near_end, far_end = ends(KeyPair.new())
    readable, writable = os.pipe()
    with (
        closing(End(host, 0, "test", near_end)) as near,
        closing(End(host, 0, "test", far_end)) as far,
    ):
        near.ways, far.ways = {"far": far.inbox.address}, {"near": near.inbox.address}
        far.inbox.watch(readable)
        answering = threading.Thread(target=serve, args=(far,))
        answering.start()
        try:
            found = round_trips(near, "far", Measure("link", 0.05, 0.0))
        finally:
            os.write(writable, b"!")
            answering.join()
        assert not far.inbox.dropped
        keyless = Outbox(near._context, near.inbox.address, ("far", "near"), None, near_end.token)
        keyless.send(Ping("answer"), 0.0, 0)
        assert near.inbox.get(now_ms() + 200) is None
        assert not near.inbox.dropped, "of a stranger nothing was read"
        keyless.close()
    os.close(readable)
    os.close(writable)
    assert ANSWERS.decoded(ANSWERS.encoded(found)) == found
    samples = {(kind, size): taken for kind, size, taken in found.samples}
    assert {size for kind, size in samples if kind == "trip"} == {0, *SIZES}
    profile = link_profile(samples, "here", found.seconds, found.versions, "; beside others")
    assert profile is not None
    assert 0 < profile.latency_ms + profile.message_ms + profile.jitter_ms < 100
    assert profile.measured_to_bytes == SIZES[-1]
    assert str(profile.origin.note).endswith("; beside others")


def test_an_end_listens_to_the_other_one_alone() -> None:
    near_end, far_end = ends()
    ask, row = Ping("answer"), torch.zeros(1, WIDTH)
    with closing(End(LOOPBACK, 0, "test", far_end)) as far:
        context, way = far._context, far.inbox.address
        senders = [
            (Outbox(context, way, ("near", "far"), None, bytes(TOKEN_BYTES)), ask, row),
            (Outbox(context, way, ("other", "far"), None, near_end.token), ask, row),
            (Outbox(context, way, ("near", "far"), None, near_end.token), Close(1), None),
            (Outbox(context, way, ("near", "far"), None, near_end.token), ask, row[:, 1:]),
            (Outbox(context, way, ("near", "far"), None, near_end.token), ask, row),
        ]
        for outbox, body, hidden in senders:
            outbox.send(body, 0.0, 0, hidden)
        received = far.inbox.get(now_ms() + 10_000)
        assert received is not None
        assert received.envelope.body == ask
        assert far.inbox.get(now_ms() + 200) is None
        assert sum(far.inbox.dropped.values()) == len(senders) - 1
        too_large = torch.zeros(4 * SIZES[-1] // (4 * WIDTH), WIDTH)
        senders[-1][0].send(ask, 0.0, 0, too_large)  # its connection is cut
        assert far.inbox.get(now_ms() + 300) is None
        assert far.inbox.count == 1
        for outbox, _, _ in senders:
            outbox.close()


def test_ends_that_do_not_hear_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_MS", 100.0)
    near_end, _ = ends()
    with closing(End(LOOPBACK, 0, "test", near_end)) as near:
        near.ways = {"far": "tcp://127.0.0.1:1"}
        sentence = rf"^link {A} to {B}: no answer within 0.1 s; can the two hosts reach each other"
        with pytest.raises(UserError, match=sentence):
            round_trips(near, "far", Measure(f"link {A} to {B}", 1.0, 0.01))


def test_orders_of_a_link_travel_and_show_no_secret() -> None:
    key = KeyPair.new()
    for order in (*ends(key), Measure("link", 1.0, 0.0)):
        assert ORDERS.decoded(ORDERS.encoded(order)) == order
        assert not any(each in repr(order) for each in (key.public, key.secret, "x01"))
    found = RoundTrips((("trip", 0, [0.1]), ("burst", 32, [])), 1.0, "here", "versions")
    assert ANSWERS.decoded(ANSWERS.encoded(found)) == found
