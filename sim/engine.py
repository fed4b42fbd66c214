"""Where many simulations are worked out: the cores of this machine, or a cluster of Ray or Dask.

Law of this file: it knows jobs (joblib's ``delayed`` calls), not what they are about. Whoever has
many simulations hands them to ``carried_out``; inside of ``engine`` they go where that says.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from typing import Any, Literal, TypeAlias, get_args

from joblib import Parallel, parallel_config  # type: ignore[import-untyped]
from joblib.externals.loky.backend import resource_tracker  # type: ignore[import-untyped]
from joblib.parallel import SequentialBackend, get_active_backend  # type: ignore[import-untyped]

from treepipe.core.errors import RunError, UserError
from treepipe.interruption import children_shielded
from treepipe.scenario.schema import endpoint

Backend: TypeAlias = Literal["joblib", "ray", "dask"]
PATIENCE_S = 8.0
"""A cluster that has not answered by then is not there."""
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it would tell its makers
    "RAY_NUM_REDIS_GET_RETRIES": "5",  # so often, a second apart, it looks for its cluster
}
"""Read when it is loaded; the environment's own go first."""
ROUNDS = 4
"""Jobs per worker that an engine without a stream of outcomes (Ray) takes at once."""


@contextmanager
def engine(
    backend: str = "joblib", jobs: int | None = None, address: str | None = None
) -> Iterator[None]:
    """Have jobs carried out there while the context lasts.

    Args:
        backend: "joblib" is processes of this machine.
        jobs: at once; None: as many as there are cores.
        address: of an existing cluster, HOST:PORT; None: one of this machine, that ends with it.

    Raises:
        UserError: there is no such engine, it is not installed, or the cluster does not answer.
    """
    if backend not in get_args(Backend):
        raise UserError(f"--backend {backend}: there are {', '.join(get_args(Backend))}")
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs {jobs}: must be at least 1")
    if backend == "joblib":
        if address is not None:
            raise UserError(f"--address {address}: is a cluster's; add --backend ray or dask")
        only = {"backend": "sequential"} if jobs == 1 else {}
        with parallel_config(n_jobs=jobs or -1, **only):
            yield
        return
    if address is not None:
        _check_reachable(address, backend)
    with (_ray if backend == "ray" else _dask)(jobs, address):
        yield


def carried_out(
    jobs: Iterable[Any], *, ordered: bool = True, together: int | Literal["auto"] = "auto"
) -> Iterator[Any]:
    """The outcomes of jobs, each as soon as it and those before it are there.

    Args:
        ordered: False: as soon as it is there itself.
        together: so many jobs are sent to a worker at once.
    """
    backend, workers = get_active_backend()
    if isinstance(backend, SequentialBackend):
        for work, args, options in jobs:
            yield work(*args, **options)
        return
    workers = workers or -1
    if not backend.supports_return_generator:
        with Parallel(n_jobs=workers, batch_size=together) as parallel:
            waiting, most = iter(jobs), ROUNDS * backend.effective_n_jobs(workers)
            while some := list(islice(waiting, most)):
                yield from parallel(some)
        return
    resource_tracker.ensure_running()  # started with the others, it would lift the block
    stream = "generator" if ordered else "generator_unordered"
    with children_shielded():
        outcomes = Parallel(n_jobs=workers, return_as=stream, batch_size=together)(jobs)
    yield from outcomes


def at_once() -> int:
    """How many jobs the engine around carries out at a time."""
    backend, workers = get_active_backend()
    return int(backend.effective_n_jobs(workers or -1))


def _check_reachable(address: str, backend: str) -> None:
    """Raises ``UserError`` if nothing listens there; the libraries would try for minutes."""
    name = f"--address {address}"
    try:
        host, port = endpoint(address.rpartition("//")[2])
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    try:
        socket.create_connection((host, port), PATIENCE_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"{name}: no {backend} cluster can be reached there: {reason}") from None


def _library(module: str, backend: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        raise UserError(
            f"--backend {backend} needs the extra {backend!r} ({missing.name} is not installed): "
            f"pip install 'treepipe[{backend}]'"
        ) from None


@contextmanager
def _ray(jobs: int | None, address: str | None) -> Iterator[None]:
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray = _library("ray", "ray")
    address = address or os.environ.get("RAY_ADDRESS")
    begun = not ray.is_initialized()
    if begun:
        try:
            with children_shielded():
                ray.init(
                    address or "local",  # else Ray joins whatever cluster was begun here before
                    num_cpus=jobs if address is None else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    include_dashboard=None if address else False,
                )
        except (OSError, RuntimeError, ValueError) as error:
            raise _no_cluster("ray", address, error) from None
    try:
        _library("ray.util.joblib", "ray").register_ray()
        config = parallel_config(backend="ray", n_jobs=jobs or -1)
        with config, _lost("ray", (ImportError, ray.exceptions.RayError)):
            yield
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _dask(jobs: int | None, address: str | None) -> Iterator[None]:
    distributed = _library("distributed", "dask")
    if address is not None:
        where = address if "//" in address else f"tcp://{address}"
        options: dict[str, Any] = {"address": where}
    else:
        options = {
            "n_workers": jobs or os.cpu_count(),
            "threads_per_worker": 1,
            "dashboard_address": ":0",  # any port
        }
    try:
        with children_shielded():
            client = distributed.Client(timeout=PATIENCE_S, set_as_default=False, **options)
    except Exception as error:  # whatever answers there may say anything
        raise _no_cluster("dask", address, error) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=PATIENCE_S)
        except (OSError, TimeoutError):
            raise UserError(f"--address {address}: the dask cluster has no worker") from None
        faults = (ImportError, distributed.KilledWorker, distributed.comm.CommClosedError)
        config = parallel_config(backend="dask", client=client, n_jobs=jobs or -1)
        with config, _lost("dask", faults):
            yield


def _no_cluster(backend: str, address: str | None, error: Exception) -> UserError:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    where = f"--backend {backend}" if address is None else f"--address {address}"
    return UserError(f"{where}: no {backend} cluster answers there: {reason}")


@contextmanager
def _lost(name: str, faults: tuple[type[Exception], ...]) -> Iterator[None]:
    """A cluster that goes away, or whose workers lack treepipe, is a failed run."""
    try:
        yield
    except faults as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise RunError(f"the {name} cluster gave up: {reason}") from error
