"""Runs whose workers are on other hosts: the same texts, on the loopback and in namespaces."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from tests.worlds.changed import changed
from tests.worlds.deployments import TIMES, small_deployment, worker_roles
from tests.worlds.examples import THOROUGH
from tests.worlds.hosts import (
    PORT,
    at,
    free_port,
    namespaces,
    roles_at,
    serving,
    skip_without_namespaces,
)
from tests.worlds.real_runs import assert_greedy
from treepipe.core.errors import RunError, UserError
from treepipe.core.schedules import systems
from treepipe.executor.controller import Controller
from treepipe.executor.remote import status
from treepipe.executor.session import FROM_COORDINATOR, HowAreYou
from treepipe.executor.transport import KeyPair
from treepipe.scenario.deployment import Placed

pytestmark = pytest.mark.processes


def test_workers_on_another_host_serve_run_after_run_from_their_own_copies(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """One process of this host among them; a second coordinator is told to wait its turn. Without
    the copies there is a sentence, and no run."""
    plain = small_deployment("flowspec")
    away = "draft0", *(f"pipeline0.stage{n}" for n in (2, 3, 4))
    with serving(None, "127.0.0.1", free_port(), None, tmp_path) as address:
        deployment = at(plain, dict.fromkeys(away, address))
        roles = roles_at(worker_roles(pair, plain, emulate=False), deployment)
        with pytest.raises(UserError, match=rf"^worker {address}: .*; copy the .*: rsync -aL "):
            Controller(roles, deployment).__enter__()
        shutil.copytree(pair[0].parent, tmp_path, dirs_exist_ok=True)
        for _ in range(2):
            with Controller(roles, deployment) as running:
                trace, _ = running.run(deployment)
                assert_greedy(trace, deployment, pair[0])
                assert status(address, None).roles == away
                with (
                    pytest.raises(RunError, match=r"refuses: it is at work for another coordin"),
                    Controller(roles, deployment),
                ):
                    pass
            assert status(address, None).roles == ()
        assert status(address, None).sessions == 3
    said = [w for w in trace.warnings if w.startswith(f"times of worker {address} are aligned")]
    assert len(said) == 1


def test_every_schedule_is_lossless_over_six_hosts(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Namespaces with links of 1 Gbit/s, keys, and this host as the coordinator; a stranger with
    another key is refused."""
    skip_without_namespaces()
    key_file, key = tmp_path / "key", KeyPair.new()
    key.save(key_file)
    names = list(systems()) if THOROUGH else ["flowspec"]
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(6, 1000))
        addresses = [
            stack.enter_context(serving(name, host, PORT, key, pair[0].parent))
            for name, host in hosts
        ]
        for name in names:
            plain = small_deployment(name, clients=2)
            plain = changed(plain, drafts=(*plain.roles.drafts, Placed("draft1", TIMES)))
            places = dict(zip(plain.roles.devices, addresses, strict=True))
            deployment = changed(at(plain, places), key=key_file)
            roles = roles_at(worker_roles(pair, plain, emulate=False), deployment)
            with Controller(roles, deployment) as running:
                trace, _ = running.run(deployment)
            assert_greedy(trace, deployment, pair[0])
        with pytest.raises(RunError, match="does not answer within"):
            status(addresses[0], KeyPair.new(), 1.0)
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            other = KeyPair.new()
            stranger.curve_publickey = other.public.encode()
            stranger.curve_secretkey = other.secret.encode()
            stranger.curve_serverkey = key.public.encode()  # knows it, and has not its secret
            stranger.connect(f"tcp://{addresses[0]}")
            stranger.send(FROM_COORDINATOR.encoded(HowAreYou()))
            assert not stranger.poll(500)
            assert status(addresses[0], key).refused >= 1
            stranger.setsockopt(zmq.LINGER, 0)
