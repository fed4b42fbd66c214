"""Links of all pairs of a scenario's hosts: which they are, what is kept, who is let in."""

from __future__ import annotations

import datetime
import itertools
import os
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from unittest.mock import create_autospec

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.command_line import Terminal
from tests.worlds.placed import STAGES, A, B, C, scenario_at
from treepipe.core.errors import RunError, UserError
from treepipe.core.messages import Close
from treepipe.executor.hosts import remote
from treepipe.executor.measure import calibrate, link
from treepipe.executor.measure.link import (
    SIZES,
    WIDTH,
    End,
    link_profile,
    round_trips,
    serve,
)
from treepipe.executor.measure.pairs import (
    HostPair,
    PairsSession,
    host_pairs,
    pair_sections,
    with_pairs,
)
from treepipe.executor.measure.run import write_profile
from treepipe.executor.wire.addresses import LOOPBACK
from treepipe.executor.wire.clock import now_ms
from treepipe.executor.wire.envelope import TOKEN_BYTES, Ping
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.mailbox import Outbox
from treepipe.executor.wire.records import CODEC, LinkEnd, Measure
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.files.toml_file import read_toml
from treepipe.profiles.schema import LinkProfile, MeasuredOrigin
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario

SPARES = ("10.0.0.8:5600", "10.0.0.9:5600")
ORIGIN = MeasuredOrigin(source="a test", date=datetime.date(2026, 1, 1), hardware="-", versions="-")


def link_files(folder: Path, pairs: list[HostPair]) -> dict[HostPair, Path]:
    """A profile for each pair, the first of a latency of 100 ms, and each next one of 1 ms more."""
    files = {pair: folder / f"link{number}.toml" for number, pair in enumerate(pairs)}
    for latency_ms, file in enumerate(files.values(), start=100):
        write_profile(LinkProfile(latency_ms=latency_ms, origin=ORIGIN), "a test", file)
    return files


# --- which pairs there are -----------------------------------------------------------------------


def test_a_pair_is_told_by_its_hosts_and_its_file_by_their_roles(tmp_path: Path) -> None:
    """The coordinator's own host is one of them; files count from the scenario's folder."""
    deployment = resolve(Scenario.load(scenario_at(tmp_path, None, None, A, None)))
    (found,) = host_pairs(deployment)
    assert found == HostPair((None, A), (("draft0", STAGES[1]), STAGES[:2], STAGES[1:]))
    assert str(found) == f"this host to {A}"
    sections = pair_sections(deployment, {found: tmp_path / "links" / found.file})
    assert {section["profile"] for section in sections} == {f"links/draft0-{STAGES[1]}.toml"}


HOST = st.sampled_from((A, B, C, None))


@given(st.tuples(HOST, HOST, HOST, HOST), st.lists(st.sampled_from(SPARES), unique=True))
def test_every_message_between_hosts_has_the_measured_link_and_no_other_one(
    tmp_path_factory: pytest.TempPathFactory, workers: tuple[str | None, ...], spares: list[str]
) -> None:
    """Wherever the roles are, and if spares take them; a spare has a link to every host and to
    other spares. What was not measured of a link stays as the scenario says it."""
    file = scenario_at(tmp_path_factory.getbasetemp(), *workers)
    scenario = Scenario.load(file, [f"faults.spares={spares}"] if spares else [])
    before, places = resolve(scenario), dict(zip(("draft0", *STAGES), workers, strict=True))
    if len({*workers, *spares}) == 1:
        with pytest.raises(UserError, match="all roles are on one host"):
            host_pairs(before)
        return
    files = link_files(file.parent, host_pairs(before))
    hosts = [frozenset(pair.hosts) for pair in files]
    away = {*itertools.product(spares, workers), *itertools.combinations(spares, 2)}
    connected = {
        (places[sender], places[receiver]) for sender, receiver in before.roles.connections
    }
    assert Counter(hosts) == {frozenset(ends): 1 for ends in away | connected if len({*ends}) > 1}
    after = resolve(Scenario.of(with_pairs(scenario, pair_sections(before, files)), file))
    for role, spare in zip(STAGES[::2], spares, strict=False):
        after, places[role] = after.at_spare(role, spare), spare
    for ends in before.roles.connections:
        was, now, both = before.link(*ends), after.link(*ends), frozenset(map(places.get, ends))
        if len(both) == 1:
            assert now == was
            continue
        assert now.latency_ms == 100 + hosts.index(both)
        if not both & {*spares}:
            assert (now.half_duplex, now.medium) == (was.half_duplex, was.medium)


# --- hosts that are lost -------------------------------------------------------------------------


def test_a_host_that_is_not_there_is_named(terminal: Terminal) -> None:
    """Whose host refuses connections is not waited for as one that may only be slow."""
    terminal.monkeypatch.setattr(remote, "LOOK_S", 0.05)
    path = scenario_at(terminal.folder, "127.0.0.1:1", None, None, None)
    sentence = "worker 127.0.0.1:1 does not answer: its host refuses"
    command = ("calibrate", "links", path, "--out", "links", "--quiet")
    terminal.fails(sentence, *command, code=1)
    assert not (terminal.folder / "links").exists()


@pytest.mark.parametrize("command", [("run",), ("validate",), ("calibrate", "run")], ids=" ".join)
def test_all_workers_are_asked_before_anything_is_loaded(
    command: tuple[str, ...], terminal: Terminal
) -> None:
    terminal.monkeypatch.setattr(remote, "LOOK_S", 0.05)
    terminal.monkeypatch.setattr("treepipe.executor.run.launch.prepare", None)
    path = scenario_at(terminal.folder, "127.0.0.1:1", *3 * ["127.0.0.1:2"])
    text = path.read_text().replace("{ device", '{ host = "far", device')
    path.write_text(text.replace("[[drafts]]", '[[drafts]]\nhost = "near"'))
    begun = time.monotonic()
    terminal.fails("nor does 127.0.0.1:2", *command, path, code=1)
    assert time.monotonic() - begun < remote.ASK_S, "both at once"


PROFILE = LinkProfile(latency_ms=1.5, bandwidth_mbit_s=900.0, origin=ORIGIN)


def test_what_was_measured_before_a_host_was_lost_is_kept(terminal: Terminal) -> None:
    asked = []

    def measure(session: PairsSession, pair: HostPair, seconds: float) -> LinkProfile:
        asked.append(seconds)
        if len(asked) == 2:
            raise RunError("worker is lost")
        return PROFILE

    fleet = create_autospec(calibrate.Fleet)
    terminal.monkeypatch.setattr(calibrate, "Fleet", fleet)
    terminal.monkeypatch.setattr(PairsSession, "measure", measure)
    path, out = scenario_at(terminal.folder, A, B, B, C), terminal.folder / "links"
    command = ("calibrate", "links", path, "--out", out, "--scenario-out", "made.toml", "--quiet")
    terminal.fails("worker is lost", *command, "--seconds", 2, code=1)
    assert set(fleet.call_args.args[0]) == {A, B, C}
    assert asked == [2.0, 2.0]
    assert not (terminal.folder / "made.toml").exists()
    assert len(list(out.glob("draft0*"))) == 1
    table = (out / "links.toml").read_text()
    assert f"# {A} to {B}: 1.5 ms, jitter 0 ms, 0 ms a message, 900 Mbit/s\n" in table
    pairs = read_toml(out / "links.toml")["links"]["pairs"]
    assert [pair["ends"] for pair in pairs] == [["draft0", stage] for stage in STAGES[:2]]


# --- the two ends --------------------------------------------------------------------------------


TOKEN = bytes(range(TOKEN_BYTES))
NEAR, FAR = LinkEnd("near", "far", 0, TOKEN), LinkEnd("far", "near", 0, TOKEN)


def test_two_ends_with_a_key_time_every_size() -> None:
    """In one process, as two hosts do it; what was timed travels as it is, and is a link."""
    host = "127.0.0.2"  # no loopback by name, so over TCP
    readable, writable = os.pipe()
    with closing(ZeroMQ(KeyPair.new())) as transport:
        near, far = End(transport, host, NEAR), End(transport, host, FAR)
        near.connect(far.inbox.address)
        far.connect(near.inbox.address)
        far.inbox.watch(readable)
        answering = threading.Thread(target=serve, args=(far,))
        answering.start()
        try:
            found = round_trips(near, Measure("link", 0.05))
        finally:
            os.write(writable, b"!")
            answering.join()
        assert not far.inbox.dropped
        stranger = ZeroMQ()
        keyless = Outbox(stranger, near.inbox.address, ("far", "near"), None, TOKEN)
        keyless.send(Ping("answer"), 0.0, 0)
        assert near.inbox.get(now_ms() + 200) is None
        assert not near.inbox.dropped, "of a stranger nothing was read"
        stranger.close()
    os.close(readable)
    os.close(writable)
    assert CODEC.decoded(CODEC.encoded(found)) == found
    samples = {(kind, size): taken for kind, size, taken in found.samples}
    assert {size for kind, size in samples if kind == "trip"} == {0, *SIZES}
    profile = link_profile(samples, "here", found.seconds, found.versions)
    assert profile is not None
    assert 0 < profile.latency_ms + profile.message_ms + profile.jitter_ms < 1e3
    assert profile.measured_to_bytes == SIZES[-1]


def test_an_end_listens_to_the_other_one_alone() -> None:
    ask, row = Ping("answer"), torch.zeros(1, WIDTH)
    with closing(ZeroMQ()) as transport:
        far = End(transport, LOOPBACK, FAR)
        way = far.inbox.address
        token, names = TOKEN, ("near", "far")
        messages = [
            (names, bytes(TOKEN_BYTES), ask, row),
            (("other", "far"), token, ask, row),
            (names, token, Close(1), None),
            (names, token, ask, row[:, 1:]),
            (names, token, ask, row),
        ]
        senders = [Outbox(transport, way, ends, None, token) for ends, token, *_ in messages]
        for outbox, (_, _, body, hidden) in zip(senders, messages, strict=True):
            outbox.send(body, 0.0, 0, hidden)
        received = far.inbox.get(now_ms() + 10_000)
        assert received is not None
        assert received.envelope.body == ask
        assert far.inbox.get(now_ms() + 200) is None
        assert sum(far.inbox.dropped.values()) == len(senders) - 1
        too_large = torch.zeros(4 * SIZES[-1] // (4 * WIDTH), WIDTH)
        senders[-1].send(ask, 0.0, 0, too_large)  # its connection is cut
        assert far.inbox.get(now_ms() + 300) is None
        assert far.inbox.count == 1
        for outbox in senders:
            outbox.close()


def test_ends_that_do_not_hear_each_other_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_MS", 100.0)
    with closing(ZeroMQ()) as transport:
        near = End(transport, LOOPBACK, NEAR)
        near.connect("tcp://127.0.0.1:1")
        sentence = rf"^link {A} to {B}: no answer within 0.1 s; can the two hosts reach each other"
        with pytest.raises(UserError, match=sentence):
            round_trips(near, Measure(f"link {A} to {B}", 1.0))
