"""Runs whose workers are on other hosts: the same texts, on the loopback and in namespaces."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.worlds.changed import changed
from tests.worlds.deployments import TIMES, small_deployment, worker_roles
from tests.worlds.examples import THOROUGH
from tests.worlds.hosts import PORT, at, namespaces, roles_at, serving, skip_without_namespaces
from tests.worlds.real_runs import assert_greedy
from treepipe.core.errors import RunError, UserError
from treepipe.core.schedules import systems
from treepipe.executor.controller import Controller
from treepipe.executor.remote import status
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
    with serving(tmp_path) as host:
        deployment = at(plain, dict.fromkeys(away, host.address))
        roles = roles_at(worker_roles(pair, plain, emulate=False), deployment)
        with pytest.raises(
            UserError, match=rf"^worker {host.address}: .*; copy the .*: rsync -aL "
        ):
            Controller(roles, deployment).__enter__()
        shutil.copytree(pair[0].parent, tmp_path, dirs_exist_ok=True)
        for _ in range(2):
            with Controller(roles, deployment) as running:
                trace, _ = running.run(deployment)
                assert_greedy(trace, deployment, pair[0])
                assert host.roles() == away
                with (
                    pytest.raises(RunError, match=r"refuses: it is at work for another coordin"),
                    Controller(roles, deployment),
                ):
                    pass
            assert host.roles() == ()
        assert status(host.address, None).sessions == 3
    aligned = f"times of worker {host.address} are aligned"
    said = [each for each in trace.warnings if each.startswith(aligned)]
    assert len(said) == 1


def test_every_schedule_is_lossless_over_six_hosts(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Namespaces with links of 1 Gbit/s, keys, and this host as the coordinator."""
    skip_without_namespaces()
    key_file, key = tmp_path / "key", KeyPair.new()
    key.save(key_file)
    names = list(systems()) if THOROUGH else ["flowspec"]
    with ExitStack() as stack:
        hosts = stack.enter_context(namespaces(6, 1000))
        addresses = [
            stack.enter_context(
                serving(pair[0].parent, namespace=name, host=host, port=PORT, key=key)
            ).address
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
