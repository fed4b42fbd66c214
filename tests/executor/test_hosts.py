"""What hosts of a run say to each other: records, keys, models, clocks; in memory."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.command_line import ROOT, Terminal
from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.examples import examples
from tests.worlds.hosts import at, free_port
from tests.worlds.network import Channel, Network, Transport, in_memory
from treepipe.core.errors import RunError, UserError
from treepipe.core.messages import Flight, Segment
from treepipe.core.schedules import systems
from treepipe.executor.hosts.daemon import Daemon
from treepipe.executor.hosts.processes import Processes
from treepipe.executor.hosts.remote import (
    Attendance,
    RemoteHost,
    connection,
    status,
    statuses,
)
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.copies import NeededCheckpoint, digest_of
from treepipe.executor.run.draft_worker import DraftWorker
from treepipe.executor.run.fleet import Clocks, Fleet
from treepipe.executor.run.lines import Lines
from treepipe.executor.wire import records
from treepipe.executor.wire.clock import Offset, Reading, now_ms
from treepipe.executor.wire.codec import BrokenRecordError
from treepipe.executor.wire.envelope import TOKEN_BYTES, Gate
from treepipe.executor.wire.keys import KeyPair
from treepipe.executor.wire.mailbox import Inbox, Outbox
from treepipe.executor.wire.processor import Versions
from treepipe.executor.wire.records import CODEC, TABLE, Become, Connect, LinkEnd, Open, Post
from treepipe.executor.wire.transport import ZeroMQ
from treepipe.physics.timing import LinkTimes, ServiceTable, TimeTable
from treepipe.profiles.library import REFERENCE
from treepipe.results.trace import Span
from treepipe.scenario.deployment import Placed
from treepipe.scenario.resolve import resolve
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import SourceSection
from treepipe.scenario.unread import unread_warnings
from treepipe.testing.random_model import save_random_checkpoint

SCENARIO = Scenario.load(ROOT / "studies" / "scenarios" / "demo.toml")
NAMED, FAR = "127.0.0.1:5601", "10.0.0.7:5600"
SPARES = "127.0.0.1:1", "127.0.0.1:2"

# --- records -------------------------------------------------------------------------------------


def test_a_role_travels_without_the_prompts(pair: tuple[Path, Path]) -> None:
    role = worker_roles(pair, small_deployment("pp"))[1]
    assert all(request.prompt for request in role.deployment.requests)
    assert not any(request.prompt for request in role.travelling.deployment.requests)


points = st.dictionaries(st.integers(1, 99), st.floats(0, 9), min_size=1)
by_context = st.dictionaries(st.integers(0, 99), points, min_size=1)
NOWHERE = Path("t"), Path("d")
deployments = st.sampled_from(sorted(systems())).map(small_deployment)
for kind, values in {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    range: st.builds(range, st.integers(0, 99), st.integers(0, 99)),
    Path: st.just(Path("/models/target")),
    KeyPair: st.builds(KeyPair.new),
    TimeTable: points.map(TimeTable) | st.builds(ServiceTable, by_context, st.floats(0, 9)),
}.items():
    st.register_type_strategy(kind, values)
OWN: dict[type, st.SearchStrategy[Any]] = {
    Become: st.builds(
        lambda each, placed: Become(
            replace(worker_roles(NOWHERE, each)[1].travelling, placed=placed)
        ),
        deployments,
        st.from_type(Placed),
    ),
    Connect: st.builds(
        Connect,
        st.dictionaries(st.text(), st.text()),
        st.dictionaries(st.text(), st.from_type(LinkTimes)),
    ),
    Open: st.builds(Open, new_schedule=deployments.map(lambda each: each.service.new_schedule)),
}
"""Records of which hypothesis cannot make every value by its type."""


def _told(table: TimeTable) -> dict[str, Any]:
    """What a table is made of, without the times that it keeps as they are asked for."""
    return {name: value for name, value in vars(table).items() if name != "_found"}


@pytest.mark.parametrize("kind", dict.fromkeys(rule.kind for rule in TABLE))
@examples(24)
@given(st.data())
def test_every_record_travels_as_it_is(kind: type, data: st.DataObject) -> None:
    record = data.draw(OWN.get(kind, st.from_type(kind)))
    found = CODEC.decoded(CODEC.encoded(record))
    assert type(found) is kind
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimeTable, "__eq__", lambda one, other: _told(one) == _told(other))
        assert found == record


@given(st.binary(max_size=300))
def test_noise_is_no_record(data: bytes) -> None:
    with suppress(BrokenRecordError):
        found = CODEC.decoded(data)
        assert CODEC.encoded(CODEC.decoded(CODEC.encoded(found))) == CODEC.encoded(found)


@given(st.data())
def test_a_changed_role_is_a_role_or_refused(data: st.DataObject) -> None:
    """Whatever bytes are changed, it is decoded or ``BrokenRecordError``, nothing else."""
    deployment = small_deployment("flowspec")
    whole = bytearray(CODEC.encoded(Become(worker_roles(NOWHERE, deployment)[0])))
    for _ in range(3):
        whole[data.draw(st.integers(1, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BrokenRecordError):
        assert isinstance(CODEC.decoded(bytes(whole)), Become)


def test_secrets_are_not_shown(pair: tuple[Path, Path]) -> None:
    key, token = KeyPair.new(), b"secret token"
    role = replace(worker_roles(pair, small_deployment("pp"))[0], token=token)
    post, hello = Post("draft0", "", 1.0, token, key), records.Hello(Versions.here(), token)
    shown = repr((role, key, LinkEnd("near", "far", 0, token), post, hello))
    assert not any(each in shown for each in (key.public, key.secret, "secret"))


# --- keys ----------------------------------------------------------------------------------------


def test_a_key_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    file, key = tmp_path / "key", KeyPair.new()
    key.save(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert KeyPair.load(file) == key
    file.chmod(0o644)
    with pytest.raises(UserError, match=r"others can read this key; chmod 600 "):
        KeyPair.load(file)
    file.chmod(0o600)
    file.write_text(file.read_text().replace(key.secret, KeyPair.new().secret))
    with pytest.raises(UserError, match="is no key file; treepipe worker --make-key") as error:
        KeyPair.load(file)
    assert key.public not in str(error.value)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        KeyPair.load(tmp_path / "none")


FLIGHT = Flight(0, 0, (Segment(1, 7, 0, 0, 0, (3, 4), (0, 1)),))


def turn_to(address: str, key: KeyPair, channel: Any) -> None:
    """Connect a stranger's channel to who holds this key: it knows the public one alone."""
    channel._socket.disconnect(channel.address)
    channel._socket.curve_serverkey = key.public.encode()
    channel._socket.connect(address)


def test_only_who_holds_the_key_comes_in() -> None:
    key, token = KeyPair.new(), bytes(TOKEN_BYTES)
    gate = Gate(token, frozenset("a"), frozenset("b"), (Flight,), 8, 300)
    with ExitStack() as opened:

        def transport(key: KeyPair | None) -> ZeroMQ:
            return opened.enter_context(closing(ZeroMQ(key)))

        def send(sender: ZeroMQ, address: str) -> Outbox:
            outbox = Outbox(sender, address, ("a", "b"), None, token)
            outbox.send(FLIGHT, now_ms(), 0, torch.zeros(2, 8))
            return outbox

        ours, sent = transport(key), list[Any]()
        inbox = Inbox(ours, 0, "b", "127.0.0.2", gate=gate)
        for stranger in (None, KeyPair.new()):
            sent.append(send(transport(stranger), inbox.address))
        sent.append(send(transport(KeyPair.new()), "tcp://127.0.0.2:9"))
        turn_to(inbox.address, key, sent[-1]._channel)
        assert inbox.get(now_ms() + 300) is None
        assert ours.refused >= 1
        sent.append(send(ours, inbox.address))
        assert inbox.get(now_ms() + 10_000) is not None
        assert (inbox.count, inbox.dropped) == (1, {}), "of strangers nothing was read"


@contextmanager
def serving_here(port: int = 0, key: KeyPair | None = None) -> Iterator[str]:
    """The address of a daemon that serves in a thread of this process."""
    over = threading.Event()
    with (
        closing(Daemon("127.0.0.1", port or free_port(), key, None)) as daemon,
        ThreadPoolExecutor() as pool,
    ):

        def serve() -> None:
            while not over.is_set():
                daemon.step(0.05)

        pool.submit(serve)
        try:
            yield daemon.address
        finally:
            over.set()


def test_a_daemon_answers_who_holds_its_key_alone() -> None:
    key, other = KeyPair.new(), ZeroMQ(KeyPair.new())
    with serving_here(key=key) as address, closing(other):
        stranger = connection(other, NAMED)
        turn_to(f"tcp://{address}", key, stranger)
        stranger.send(CODEC.encoded(records.HowAreYou()))
        stranger.poll(500)
        assert stranger.receive() is None
        assert status(address, key).refused >= 1


# --- the daemon ----------------------------------------------------------------------------------


class _Workers(Processes):
    """Processes of a daemon that a test starts and ends: numbers by name."""

    def __init__(self) -> None:
        super().__init__()
        self.pids, self.over = dict[str, int](), dict[str, int]()

    def __iter__(self) -> Iterator[str]:
        return iter([*self.pids])

    def start(self, post: Post) -> None:
        self.pids[post.name] = 2**22 + 1

    def pid(self, name: str) -> int | None:
        return self.pids.get(name)

    def kill(self, name: str) -> None:
        if self.pids.pop(name, None) is not None:
            self.over[name] = -9

    def ended(self) -> list[tuple[str, int | None]]:
        over, self.over = self.over, {}
        return [*over.items()]

    def end(self) -> list[tuple[str, int | None]]:
        for name in self:
            self.kill(name)
        return self.ended()


class _World(Daemon):
    """A daemon of which a test has the time, the answers, and the processes."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", free_port(), None, None)
        self.ms, self.answers, self.workers = now_ms(), list[Any](), _Workers()
        self._workers = self.workers
        self._descriptors = SimpleNamespace(all_of_them=nullcontext)  # type: ignore[assignment]

    def _send(self, receiver: bytes, record: Any) -> None:
        self.answers.append((receiver, record))

    def hears(self, sender: bytes, record: object) -> Any:
        """Its answer, None if there is none."""
        self.answers.clear()
        self.take(sender, [CODEC.encoded(record)])
        return self.answers[0][1] if self.answers else None

    def told(self) -> list[Any]:
        """What it says by itself when it looks at what is there."""
        self.answers.clear()
        self.step(0.0)
        return [record for _, record in self.answers]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[_World]:
    made = _World()
    monkeypatch.setattr("treepipe.executor.hosts.daemon.now_ms", lambda: made.ms)
    yield made
    made.close()


SESSION = bytes(16)
HELLO = records.Hello(Versions.here(), SESSION)
DRAFT = Post("draft0", "tcp://127.0.0.1:1", 1_000.0, bytes(16))


def test_a_daemon_has_one_session_at_a_time(daemon: _World) -> None:
    """Its coordinator's thread, on another connection, knows its name; nobody else does."""
    assert isinstance(daemon.hears(b"one", HELLO), records.Welcome)
    assert isinstance(daemon.hears(b"one", HELLO), records.Welcome), "it came twice"
    assert daemon.hears(b"two", HELLO) == records.Declined("it is at work for another coordinator")
    assert daemon.hears(b"two", records.Start(DRAFT)) is None, "nobody's order"
    assert daemon.hears(b"two", records.Alive(bytes(15), 1.0)) is None
    assert isinstance(daemon.hears(b"a thread", records.Alive(SESSION, 1.0)), records.TimeIs)
    status = daemon.hears(b"three", records.HowAreYou())
    assert (status.sessions, status.roles, status.dropped) == (1, (), 2)
    daemon.ms += 6_000
    assert daemon.told() == [records.Declined("its coordinator was silent for 5 s")]
    assert daemon.hears(b"one", records.Leave()) is None, "it came late"
    assert isinstance(daemon.hears(b"two", HELLO), records.Welcome)


def test_a_daemon_reports_the_end_of_each_process_once(daemon: _World) -> None:
    daemon.hears(b"one", HELLO)
    for _ in range(2):
        daemon.hears(b"one", records.Start(DRAFT))
        daemon.hears(b"one", records.EndProcess("draft0"))
        assert daemon.hears(b"one", records.EndProcess("draft0")) is None
        assert daemon.told() == [records.Ended("draft0", -9)]
    daemon.hears(b"one", records.Start(DRAFT))
    daemon.hears(b"one", records.Leave())
    assert [record for _, record in daemon.answers] == [
        records.Ended("draft0", -9),
        records.Declined("its coordinator left"),
    ]
    assert not daemon.workers.pids


def test_a_daemon_starts_no_second_process_of_a_name(daemon: _World) -> None:
    """Nor one with a strange name; the session is over."""
    for name in ("draft0", "../draft0"):
        daemon.hears(b"one", HELLO)
        daemon.hears(b"one", records.Start(DRAFT))
        daemon.hears(b"one", records.Start(replace(DRAFT, name=name)))
        said = records.Declined(f"it starts no process {name!r} in this session")
        assert daemon.answers[-1] == (b"one", said)
        assert not daemon.workers.pids


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells of threads")
def test_a_daemon_speaks_for_a_process_that_waits_for_a_processor(daemon: _World) -> None:
    """This one, which runs; one that is over is left to itself."""
    daemon.hears(b"one", HELLO)
    daemon.workers.pids |= {"draft0": os.getpid(), "pipeline0.stage1": 2**22 + 1}
    for _ in range(2):
        daemon.ms += 501
        assert daemon.told() == [records.Starved(("draft0",))]
        assert daemon.told() == []


def test_a_daemon_without_descriptors_ends_the_session(
    daemon: _World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many connections of strangers as it may hold take all of them."""
    daemon.hears(b"one", HELLO)

    def none_left(post: Post) -> None:
        raise RunError("draft0 cannot be started: Too many open files")

    monkeypatch.setattr(daemon.workers, "start", none_left)
    found = daemon.hears(b"one", records.Start(DRAFT))
    assert found == records.Declined("draft0 cannot be started: Too many open files")
    assert isinstance(daemon.hears(b"two", records.HowAreYou()), records.Status)


def test_other_versions_are_refused_naming_both_sides(daemon: _World) -> None:
    ours = HELLO.versions
    refused = daemon.hears(b"one", records.Hello(replace(ours, treepipe="9.9"), SESSION))
    sides = (
        f"treepipe {ours.treepipe} (protocol {ours.protocol})",
        f"9.9 (protocol {ours.protocol})",
    )
    assert refused.sentence == f"it has {sides[0]}, this coordinator {sides[1]}"


def test_noise_is_logged_now_and_then_and_without_a_word_of_it(
    daemon: _World, caplog: pytest.LogCaptureFixture
) -> None:
    order = CODEC.encoded(records.HowAreYou())
    for frames in [[b"a secret"], [], [order, order], [order[:1] + b"a secret"]] * 25:
        daemon.take(b"one", frames)
    assert (daemon._dropped, daemon.answers) == (100, [])
    numbers = [int(found) for found in re.findall(r"message (\d+)", caplog.text)]
    assert numbers == [1, 2, 4, 8, 16, 32, 64]
    assert "secret" not in caplog.text


# --- the hosts of a run --------------------------------------------------------------------------


class _Daemon(Channel):
    """The other end of a session: what a daemon hears and says, in memory."""

    def __init__(self) -> None:
        super().__init__(Network(), "")

    def send(self, *frames: Any) -> None:
        """Answer as a daemon does."""
        match CODEC.decoded(frames[0]):
            case records.Hello():
                self.says(records.Welcome())
            case records.Alive(_, sent_ms):
                self.says(records.TimeIs(sent_ms, 1_000.0 + now_ms()))

    def says(self, record: object) -> None:
        self.came.append([CODEC.encoded(record)])


class _Host(RemoteHost):
    """A host that has not answered for some time."""

    def __init__(self, silent_ms: float = 0.0) -> None:
        self.daemon = _Daemon()
        transport: Any = SimpleNamespace(connect=lambda *_, **__: self.daemon)
        super().__init__(transport, NAMED)
        self.read()
        assert self.is_open
        self.heard_ms -= silent_ms


def test_a_session_opens_with_readings_of_the_clock() -> None:
    host = _Host()
    assert host.clock.at(now_ms())[0] == pytest.approx(1_000.0, abs=50.0)
    assert host.answers(2_000.0)
    host.daemon.says(records.Declined("its worker was ended"))
    host.read()
    assert not host.answers(2_000.0)
    host.read()
    assert not host.is_open, "a session that is over is not opened again"


def test_the_ends_of_processes_over_there_are_told_once() -> None:
    """With exit codes, or without where the session ended; names that nobody started are not."""
    host = _Host()
    for name in ("draft0", "pipeline0.stage1"):
        host.start(replace(DRAFT, name=name))
    for record in (
        records.Ended("draft0", 3),
        records.Ended("nobody", 0),
        records.TimeIs(1.0, 2.0),
    ):
        host.daemon.says(record)
    host.daemon.says(records.Ended("draft0", 3))
    assert host.ended() == [("draft0", 3)]
    host.daemon.says(records.Declined("its coordinator left"))
    assert host.ended() == [("pipeline0.stage1", None)]
    assert host.why == f"worker {NAMED} ended the session, since its coordinator left"
    assert [*host] == []


def test_an_address_that_cannot_be_connected_to_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"^worker \.\.:5600: Invalid argument$"):
        status("..:5600", None)


def test_hosts_that_refuse_are_told_within_two_seconds() -> None:
    """All at once, while another one answers."""
    with serving_here() as address:
        closed = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        begun = time.monotonic()
        found, faults = statuses([address, *closed], None, 5.0)
        assert time.monotonic() - begun < 2.0
    assert found.keys() == {address}
    assert faults.keys() == {*closed}
    assert all("its host refuses connections" in str(fault) for fault in faults.values())


def fleet_at(pair: tuple[Path, Path], places: dict[str, str], *spares: str) -> Fleet:
    """The hosts of a run whose roles are at these places, the others here."""
    roles = worker_roles(pair, at(small_deployment("pp"), places))
    return Fleet([r.placed.worker for r in roles if r.placed.worker is not None], spares)


@pytest.mark.parametrize(("places", "spares"), [({"pipeline0.stage1": FAR}, ()), ({}, (FAR,))])
def test_a_host_beyond_the_loopback_opens_the_run(
    pair: tuple[Path, Path], places: dict[str, str], spares: tuple[str, ...]
) -> None:
    """A role's, or a spare: messages are encrypted, and every host listens to all networks."""
    fleet = fleet_at(pair, places, *spares)
    with pytest.raises(UserError, match=rf"'{FAR}' needs key run.key, the file of the key"):
        fleet.meet(None)
    assert fleet.new_key() is not None
    assert fleet.listens_on(None) == "0.0.0.0"
    assert fleet.way("tcp://0.0.0.0:77", None) == "tcp://127.0.0.1:77"
    assert fleet_at(pair, {}).new_key() is None


def test_a_spare_takes_a_place_if_it_answers(pair: tuple[Path, Path]) -> None:
    fleet = fleet_at(pair, {"pipeline0.stage1": NAMED}, *SPARES, SPARES[1])
    fleet._transport = Transport(Network())  # type: ignore[assignment]
    fleet._attendance = create_autospec(Attendance, instance=True)  # type: ignore[assignment]
    fleet._hosts = dict(zip(SPARES, (_Host(9_000.0), _Host(0.0)), strict=True))
    assert fleet.spares(2_000.0, [NAMED]) == [SPARES[1]] * 2
    fleet.take(SPARES[1])
    fleet._hosts[SPARES[1]].daemon.says(records.Declined("its coordinator left"))
    fleet._hosts[SPARES[1]].read()
    assert fleet.spares(2_000.0, [SPARES[1]]) == [], "one place of two is left, and nobody there"
    assert fleet._sought
    fleet.close()
    assert not fleet._sought


def test_a_spare_that_is_there_only_later_is_found(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is silent when a run meets its hosts, and is told of until it answers."""
    monkeypatch.setattr("treepipe.executor.run.fleet.SPARE_S", 0.2)
    monkeypatch.setattr("treepipe.executor.hosts.remote.LOOK_S", 0.05)
    port = free_port()
    address = f"127.0.0.1:{port}"
    with closing(fleet_at(pair, {}, address)) as fleet:
        fleet.meet(None)
        assert fleet.spares(2_000.0, []) == []
        (warning,) = fleet.run_ends(0.0, {}).warnings
        assert warning == f"worker {address} does not answer; it is a spare as soon as it does"
        with serving_here(port):
            until = now_ms() + 30_000
            while not (found := fleet.spares(2_000.0, [])):
                assert now_ms() < until
                time.sleep(0.02)
            assert found == [address]
            assert not fleet.run_ends(0.0, {}).warnings


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what Linux lists")
def test_a_host_that_is_given_up_keeps_no_descriptor(pair: tuple[Path, Path]) -> None:
    """Its connection and that of the thread are closed, and the daemon hears that we left."""

    def count() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    with serving_here() as address, closing(fleet_at(pair, {}, address)) as fleet:
        fleet.meet(None)
        counts = list[int]()
        for _ in range(6):
            until = now_ms() + 20_000
            while not fleet.spares(2_000.0, []):
                assert now_ms() < until
                time.sleep(0.01)
            counts.append(count())
            fleet.seek([address])
        until = now_ms() + 20_000
        while (now := count()) > counts[0]:
            assert now_ms() < until, f"{now} descriptors, {counts} before"
            time.sleep(0.01)


@pytest.mark.parametrize("ended", [True, False])
def test_workers_of_a_host_that_does_not_confirm_their_end_are_named(
    pair: tuple[Path, Path], ended: bool
) -> None:
    """Its processes are over if it said so; else nobody would start another one there."""
    names = "pipeline0.stage1", "pipeline0.stage2"
    with in_memory(Network()):
        lines, host = Lines(1_000.0, {}), _Host(9_000.0)
        lines.open()
        for name in names:
            lines.start(name, host, "memory")
        for name in names if ended else ():
            host.daemon.says(records.Ended(name, 0))
        assert lines.end(2_000.0) == ([] if ended else [*names])


def test_an_offset_is_as_sure_as_the_quickest_answer() -> None:
    """Whatever the two ways take, the truth is within the uncertainty."""
    rng, offset, truth = np.random.default_rng(5), Offset(), 123_456.0
    for at_ms in range(0, 30_000, 500):
        there, back = rng.exponential(0.2, 2)
        offset.note(Reading(at_ms, at_ms + there + truth, at_ms + there + back))
        ahead, unsure = offset.at(at_ms)
        assert abs(ahead - truth) <= unsure
    assert offset.at(30_000)[1] < 0.5


def test_spans_of_a_clock_that_drifts_are_aligned() -> None:
    clocks = Clocks(1_000.0, 11_000.0, {"draft0": 2.0})
    span = Span("draft0", "draft", 6_001.0, 11_002.0, 1)
    found = clocks.aligned("draft0", span)
    assert found.start_ms == pytest.approx(6_000.0, abs=1e-2)
    assert found.end_ms == pytest.approx(11_000.0, abs=1e-2)
    assert clocks.aligned("pipeline0.stage1", span) == span


# --- models --------------------------------------------------------------------------------------


def refused(needed: NeededCheckpoint, models: Path | None) -> str:
    """The sentence in which a worker refuses a checkpoint."""
    with pytest.raises(UserError) as error:
        needed.copy(models, FAR)
    return str(error.value)


def test_a_worker_finds_its_copy_by_name(target: Checkpoint, tmp_path: Path) -> None:
    """One that is bundled needs no folder, nor is one of its name in a folder mistaken for it."""
    needed = NeededCheckpoint.of(target.directory)
    here = shutil.copytree(target.directory, tmp_path / target.directory.name)
    assert needed.copy(tmp_path, FAR) == here
    bundled = NeededCheckpoint.of(REFERENCE / "draft")
    assert bundled.copy(None, FAR) == REFERENCE / "draft"
    own = save_random_checkpoint(tmp_path / "draft", layers=1, seed=3)
    assert NeededCheckpoint.of(own).copy(tmp_path, FAR) == own
    assert bundled.copy(tmp_path, FAR) == REFERENCE / "draft"


def test_a_copy_that_is_not_the_same_is_refused_with_the_command(tmp_path: Path) -> None:
    """It is not there, is another one, lacks a file, or there is no folder at all."""
    ours = save_random_checkpoint(tmp_path / "a b" / "model", layers=2, seed=1)
    needed, models = NeededCheckpoint.of(ours), tmp_path / "there"
    here, command = models / "model", f"copy the coordinator's: rsync -aL '{ours}/' 10.0.0.7:"
    assert refused(needed, models) == (
        f"worker {FAR}: {here}: holds no config.json; {command}{here}/"
    )
    save_random_checkpoint(here, layers=2, seed=3)
    assert refused(needed, models) == (
        f"worker {FAR}: {here} holds another checkpoint than the coordinator has; {command}{here}/"
    )
    (here / "model.safetensors").unlink()
    assert refused(needed, models).startswith(f"worker {FAR}: {here}: holds neither model.safe")
    assert refused(needed, None) == (
        f"worker {FAR}: it has no folder of checkpoints (--models FOLDER); {command}FOLDER/model/"
    )


@pytest.mark.parametrize("changed", ["config.json", "model.safetensors"])
def test_a_digest_is_remembered_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    """Also where its size is the same and its time of change was set back, as ``cp -p`` does."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = save_random_checkpoint(tmp_path / "model", layers=1, seed=3)
    found = digest_of(folder)
    (memory,) = (tmp_path / "cache").rglob("digests/*")
    memory.write_text("0" * 64)
    assert digest_of(folder) == "0" * 64, "no file was read"
    memory.write_text("0" * 63)
    assert digest_of(folder) == found, "whoever wrote it was interrupted"
    file = folder / changed
    before, data = file.stat(), bytearray(file.read_bytes())
    data[-1] ^= 1
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files is coarse
        file.write_bytes(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_of(folder) != found


@pytest.mark.parametrize("name", ["..", "a/..", "/"])
def test_a_needed_checkpoint_names_a_folder(name: str) -> None:
    """Nothing beside a worker's folder of models is looked at."""
    with pytest.raises(ValueError, match="has a name"):
        NeededCheckpoint(Path(name), "")


@pytest.mark.parametrize("kind", ["model", "eagle", "ngram"])
@pytest.mark.parametrize("ends", ["draft", "pipeline"])
def test_a_role_needs_what_it_reads(pair: tuple[Path, Path], ends: Any, kind: str) -> None:
    """A draft server reads the target where it takes the target's tokens, or for a head."""
    deployment = small_deployment("flowspec", ends=ends)
    draft, stage = worker_roles(pair, deployment)[:2]
    model = None if kind == "ngram" else draft.source.model
    source = replace(draft.source, section=SourceSection(source=kind), model=model)
    draft = replace(draft, source=source)
    reads = [pair[0]] * (ends == "draft" or kind == "eagle") + [pair[1]] * (kind != "ngram")
    assert [*draft.models] == reads
    assert [*stage.models] == [pair[0]]
    assert draft.as_switch().models == ()
    copied = draft.with_copies([Path("here") / each.name for each in reads])
    assert [*copied.models] == [Path("here") / r.name for r in reads]


def test_a_draft_server_that_does_not_read_the_target_does_without_it(
    pair: tuple[Path, Path],
) -> None:
    nowhere = pair[0] / "nowhere", pair[1]
    role = worker_roles(nowhere, small_deployment("flowspec", ends="pipeline"))[0]
    station: Any = SimpleNamespace(settings=role)
    assert DraftWorker(station).open_sessions == 0


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("", "takes one of --listen, --make-key and --status"),
        (f"--status {NAMED} --listen {NAMED}", "takes one of --listen, --make-key and --status"),
        ("--make-key k --models .", "treepipe worker --make-key takes no --models"),
        (f"--status {NAMED} --models .", "treepipe worker --status takes no --models"),
        ("--status here", "--status here: must be HOST:PORT, e.g. 192.168.1.20:5555"),
        (f"--listen {NAMED} --models none", "--models none: there is no such folder"),
        ("--listen 10.0.0.7:80", "others can reach this address, so it needs --key FILE"),
    ],
)
def test_a_worker_that_cannot_be_is_refused(
    terminal: Terminal, arguments: str, sentence: str
) -> None:
    terminal.refuses(sentence, "worker", *arguments.split())


def test_a_key_is_made_once(terminal: Terminal) -> None:
    said = terminal.succeeds("worker", "--make-key", "cluster.key")
    key = KeyPair.load(Path("cluster.key"))
    assert not any(part in said for part in (key.public, key.secret))
    terminal.refuses("exists; a key is not overwritten", "worker", "--make-key", "cluster.key")


@pytest.mark.parametrize("address", ["board", "10.0.0.7", "10.0.0.7:0", "a b:80", "tcp://h:80"])
def test_an_address_of_a_worker_is_host_and_port(address: str) -> None:
    with pytest.raises(UserError, match=r"is no HOST:PORT, e\.g\. 192\.168\.1\.21:5600"):
        SCENARIO.with_(**{"drafts.0.worker": address})


@pytest.mark.parametrize("workers", [{}, {"drafts.0.worker": NAMED}, {"faults.spares": [NAMED]}])
def test_a_key_without_workers_is_warned_of(workers: dict[str, Any]) -> None:
    keyed = SCENARIO.with_(**{"run.key": "k", **workers})
    said = unread_warnings(keyed, resolve(keyed), run=True)
    assert any("key run.key has no effect" in each for each in said) == (not workers)
