"""Runs whose workers are on other hosts: the same texts, on the loopback and in namespaces."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from tests.worlds.deployments import small_deployment, worker_roles
from tests.worlds.hosts import (
    PORT,
    at,
    free_port,
    namespaces,
    roles_at,
    serving,
    skip_without_namespaces,
)
from tests.worlds.tiny_models import greedy
from treepipe.core.errors import RunError, UserError
from treepipe.core.schedules import systems
from treepipe.executor.controller import Controller
from treepipe.executor.keys import KeyPair
from treepipe.executor.remote import status
from treepipe.executor.session import FROM_COORDINATOR, HowAreYou
from treepipe.results.trace import Trace
from treepipe.scenario.deployment import Deployment, Placed

pytestmark = pytest.mark.processes
SOAK = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"


def assert_lossless(trace: Trace, deployment: Deployment, target: Path) -> None:
    for request, spec in zip(trace.requests, deployment.requests, strict=True):
        assert list(request.tokens) == greedy(target, list(spec.prompt), spec.max_new_tokens)


def test_workers_on_another_host_serve_run_after_run_from_their_own_copies(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    """One process of this host among them; a second coordinator is told to wait its turn. Without
    the copies there is a sentence, and no run."""
    plain = small_deployment("flowspec")
    port = free_port()
    with serving(None, "127.0.0.1", port, None, tmp_path) as address:
        deployment = at(plain, dict.fromkeys(["draft0", *_stages(plain)[1:]], address))
        roles = roles_at(worker_roles(pair, plain, emulate=False), deployment)
        with pytest.raises(UserError, match=rf"^worker {address}: .*; copy the .*: rsync -aL "):
            Controller(roles, deployment).__enter__()
        shutil.copytree(pair[0].parent, tmp_path, dirs_exist_ok=True)
        for _ in range(2):
            with Controller(roles, deployment) as running:
                trace, _ = running.run(deployment)
                assert_lossless(trace, deployment, pair[0])
                assert status(address, None).roles == ("draft0", *_stages(plain)[1:])
                with (
                    pytest.raises(RunError, match=r"refuses: it is at work for another coordin"),
                    Controller(roles, deployment),
                ):
                    pass
            assert status(address, None).roles == ()
        assert status(address, None).sessions == 3
    said = [w for w in trace.warnings if w.startswith(f"times of worker {address} are aligned")]
    assert len(said) == 1


def _stages(deployment: Deployment) -> list[str]:
    return [stage.name for stages in deployment.pipelines for stage in stages]


def test_every_schedule_is_lossless_over_six_hosts(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Namespaces with links of 1 Gbit/s, keys, and this host as the coordinator; a stranger with
    another key is refused."""
    skip_without_namespaces()
    key_file, key = tmp_path / "key", KeyPair.new()
    key.save(key_file)
    names = list(systems()) if SOAK else ["flowspec"]
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(6, 1000))
        addresses = [
            stack.enter_context(serving(name, host, PORT, key, pair[0].parent))
            for name, host in hosts
        ]
        for name in names:
            plain = _two_drafts(small_deployment(name, clients=2))
            places = dict(zip(plain.devices, addresses, strict=True))
            deployment = replace(at(plain, places), key=key_file)
            roles = roles_at(worker_roles(pair, plain, emulate=False), deployment)
            with Controller(roles, deployment) as running:
                trace, _ = running.run(deployment)
            assert_lossless(trace, deployment, pair[0])
        with pytest.raises(RunError, match="does not answer within"):
            status(addresses[0], KeyPair.new(), 1.0)
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            KeyPair.new().enter(stranger)
            stranger.curve_serverkey = key.public.encode()  # knows it, and has not its secret
            stranger.connect(f"tcp://{addresses[0]}")
            stranger.send(FROM_COORDINATOR.encoded(HowAreYou()))
            assert not stranger.poll(500)
            assert status(addresses[0], key).refused >= 1
            stranger.setsockopt(zmq.LINGER, 0)


def _two_drafts(deployment: Deployment) -> Deployment:
    (draft,) = deployment.drafts
    return replace(deployment, drafts=(draft, Placed("draft1", draft.times)))
