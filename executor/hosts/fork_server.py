"""The process that workers are forked from (multiprocessing's fork server), and its end.

Invariant: when the controller ends, for any reason, so do fork server and workers (even stopped
ones), and the folder of the fork server's socket is removed. Multiprocessing lets every worker keep
the fork server alive, which a stopped worker would do forever. ``end_with_fork_server`` undoes
that, and makes the system kill the worker when the fork server ends. The fork server imports this
module first; its atexit hook removes the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from treepipe.core.errors import RunError
from treepipe.interruption import children_shielded

LIBRARIES = ("treepipe.executor.models.libraries",)
"""The imports of workers; a process has one fork server, which imports only when it starts."""
START_S = 300.0
"""Limit of the start of a process, during which the fork server may still import."""
ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Signals of a closed terminal or ``timeout`` to all processes of a command. The fork server
ignores them, since it alone removes the controller's leftovers."""
PR_SET_PDEATHSIG = 1
"""The option of prctl(2) for a signal at the parent's end."""
FOLDER_PREFIX = "pymp-"
"""Prefix of multiprocessing's folder for the fork server's socket."""


def fork_server(preload: Sequence[str] = LIBRARIES) -> ForkServerContext:
    """Return a context whose processes are forked from a server that has imported ``preload``.

    The server blocks Ctrl-C and ``ENDINGS`` from its first instruction on, and so do its children
    until ``end_with_fork_server``, which lets ``ENDINGS`` end them.

    Raises:
        RunError: this host has no room for it.
    """
    # Workers have one thread unless their role has more; waiting threads sleep, since there may
    # be more of them than cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *preload])
    try:
        with children_shielded(signal.SIGHUP):  # the tracker ignores the others
            resource_tracker.ensure_running()  # first, since it unblocks signals
        with children_shielded(*ENDINGS):
            forkserver.ensure_running()
    except OSError as error:
        raise RunError(f"the fork server cannot be started: {error.strerror}") from None
    return context


def import_ahead() -> None:
    """Let the fork server import while this process does, unless PyTorch is imported."""
    if "torch" not in sys.modules:
        fork_server()


_MAIN = threading.Lock()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Leave the main module out of what multiprocessing has a child import. Workers need nothing of
    it, and a script without ``if __name__ == "__main__":`` would begin all over again in each."""
    main = vars(sys.modules["__main__"])
    names = "__spec__", "__file__"
    known: dict[str, Any] = {name: main[name] for name in names if name in main}
    main["__spec__"] = None
    main.pop("__file__", None)
    try:
        yield
    finally:
        main.update(known)


def start(process: BaseProcess) -> None:
    """Start a process of such a context. Raises ``RunError`` if the fork server ends, or does not
    answer within ``START_S``, or if this host has no room for the process."""
    stuck = threading.Timer(START_S, kill_fork_server)
    stuck.start()
    try:
        with _MAIN, _without_main():
            process.start()
        return
    except (EOFError, ConnectionError) as error:
        name = type(error).__name__
        fault = f"the fork server, from which {process.name} was to be started, ended ({name})"
    except OSError as error:
        fault = f"{process.name} cannot be started: {error.strerror}"
    finally:
        stuck.cancel()
    raise RunError(fault)  # outside, since the other error holds the start's descriptors open


def state_of(file: Path) -> bytes:
    """Read the state in a file ``stat`` of /proc: b"R" for running; empty without such a file."""
    try:
        return file.read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return b""


def starves(process: int) -> bool:
    """Whether a thread of this host's process is ready to run."""
    try:
        threads = [*Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return False
    return any(state_of(each / "stat") == b"R" for each in threads)


def kill_fork_server() -> None:
    """Kill a fork server that does not answer, and wait until it has ended.

    A server that is still ending would pass for a running one: the next start would replace it
    later, by one that does not block Ctrl-C.
    """
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            if hasattr(os, "waitid"):  # macOS has it since Python 3.13
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # multiprocessing reaps it


def end_with_fork_server() -> None:
    """Make this child end with the fork server, and not keep it alive; must be called first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # These attributes are not documented by multiprocessing.
    server = getattr(forkserver, "_forkserver", None)
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None  # type: ignore[union-attr]


@atexit.register
def _remove_socket_folder() -> None:
    """Remove the folder in the fork server, since a killed controller does not."""
    server = getattr(forkserver, "_forkserver", None)
    address = getattr(server, "_forkserver_address", None)
    if not isinstance(address, str) or getattr(server, "_forkserver_pid", None) is not None:
        return  # this process is no fork server
    socket = Path(address)
    if socket.parent.name.startswith(FOLDER_PREFIX):
        with contextlib.suppress(OSError):  # the folder may hold other files
            for each in socket.parent.glob("listener-*"):  # one per earlier fork server
                each.unlink()
            socket.parent.rmdir()
    os._exit(0)  # taking the imported libraries down would last seconds, and changes nothing
