"""The place where many simulations run: processes of this machine, or a cluster, both by joblib.

A job is a ``delayed`` call of joblib; ``run_jobs`` runs it on the engine of the current context.
"""

from __future__ import annotations

import signal
import socket
import warnings
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from itertools import islice
from multiprocessing import resource_tracker
from typing import Any, Literal

from joblib import Parallel, parallel_config  # type: ignore[import-untyped]
from joblib.externals.loky.backend import (  # type: ignore[import-untyped]
    resource_tracker as tracker_of_joblib,
)
from joblib.parallel import SequentialBackend, get_active_backend  # type: ignore[import-untyped]

from treepipe.core.errors import RunError, UserError
from treepipe.extras import need
from treepipe.interruption import children_shielded
from treepipe.scenario.schema import endpoint

CLUSTERS = ("ray", "dask")
PATIENCE_S = 8.0
"""Time-out of a cluster's first answer."""
ROUNDS = 4
"""Number of jobs per worker that a back end without a stream of results (Ray's) takes at once."""


@contextmanager
def engine(backend: str = "joblib", jobs: int | None = None) -> Iterator[None]:
    """Run jobs on an engine within the context.

    Args:
        backend: "joblib" is processes of this machine, "ray://HOST:PORT" or "dask://HOST:PORT" a
            running cluster.
        jobs: number of jobs at once; None: as many as there are cores.

    Raises:
        UserError: there is no such engine, it is not installed, or the cluster does not answer.
        RunError: the cluster failed.
    """
    name, _, address = backend.partition("://")
    if backend != "joblib" and (name not in CLUSTERS or not address):
        raise UserError(
            f"--backend {backend}: must be joblib, or a running cluster's ray://HOST:PORT or "
            f"dask://HOST:PORT"
        )
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs {jobs}: must be at least 1")
    here: dict[str, Any] = {"backend": "sequential"} if jobs == 1 else {}
    place = nullcontext(here) if backend == "joblib" else _cluster(name, address)
    with place as options, parallel_config(n_jobs=jobs or -1, **options):
        yield


def run_jobs(
    jobs: Iterable[Any], *, ordered: bool = True, together: int | Literal["auto"] = "auto"
) -> Iterator[Any]:
    """Yield the jobs' results when done (if ``ordered``, in order), ``together`` jobs per batch."""
    backend, workers = get_active_backend()
    if isinstance(backend, SequentialBackend):
        yield from (work(*args, **options) for work, args, options in jobs)
        return
    workers = workers or -1
    if not backend.supports_return_generator:
        waiting, most = iter(jobs), ROUNDS * backend.effective_n_jobs(workers)
        while some := list(islice(waiting, most)):
            yield from Parallel(n_jobs=workers, batch_size=together)(some)
        return
    stream = "generator" if ordered else "generator_unordered"
    results = _streamed(jobs, workers, stream, together)
    try:
        yield from islice(results, None)  # else ``yield from`` would close them itself
    finally:
        abandon(results)


def processes() -> int:
    """Return how many jobs run at once."""
    backend, workers = get_active_backend()
    return int(backend.effective_n_jobs(workers or -1))


def start(job: Any) -> Iterator[Any]:
    """Start the engine's processes, each with one such job, and return at once: they are ready when
    the results are there. Without processes of its own the engine does nothing."""
    backend, workers = get_active_backend()
    if processes() == 1 or not backend.supports_return_generator:
        return iter(())
    return _streamed([job] * processes(), workers or -1, "generator_unordered", 1)


def abandon(results: Iterator[Any]) -> None:
    """End the jobs of results that nobody waits for, as after Ctrl-C, without joblib's warning."""
    if isinstance(results, Generator):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            results.close()


def _streamed(
    jobs: Iterable[Any], workers: int, stream: str, together: int | Literal["auto"]
) -> Iterator[Any]:
    with children_shielded(signal.SIGHUP):  # trackers ignore the others once they are loaded
        for tracker in (resource_tracker, tracker_of_joblib):
            tracker.ensure_running()  # started with the others, it would lift the block
    with children_shielded():
        results: Iterator[Any] = Parallel(n_jobs=workers, return_as=stream, batch_size=together)(
            jobs
        )
    return results


@contextmanager
def _cluster(backend: str, address: str) -> Iterator[dict[str, Any]]:
    """Join a cluster; yield joblib's options for it."""
    option = f"--backend {backend}://{address}"
    module = "distributed" if backend == "dask" else "ray"
    try:
        socket.create_connection(endpoint(address), PATIENCE_S).close()  # Ray would try for minutes
        need(backend, [module], option)
        library: Any = import_module(module)
        if backend == "dask":
            joined = library.Client(address, timeout=PATIENCE_S, set_as_default=False)
            options = {"client": joined}
            faults: tuple[Any, ...] = (library.KilledWorker, library.comm.CommClosedError)
        else:
            joined = library.init(address, log_to_driver=False, logging_level="ERROR")
            import_module("ray.util.joblib").register_ray()
            options, faults = {}, (library.exceptions.RayError,)
    except UserError:
        raise
    except Exception as error:  # any reply is possible at that address
        reason = _first_line(error)
        raise UserError(f"{option}: no {backend} cluster answers: {reason}") from None
    with joined:
        try:
            yield {"backend": backend, **options}
        except (ImportError, TimeoutError, *faults) as error:  # its workers may lack treepipe
            raise RunError(f"the {backend} cluster gave up: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
