"""The process that workers are forked from (multiprocessing's fork server), and how it ends.

Law of this file: when the controller is gone, however it went, so are fork server, workers (stopped
ones, too) and the folder of the fork server's socket. Multiprocessing lets every worker keep the
fork server alive, which a stopped worker would do for ever; ``end_with_fork_server`` undoes that,
and has the system kill the worker when the fork server ends.

The fork server imports this module first. Its own atexit hook removes the folder.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from treepipe.core.errors import RunError
from treepipe.interruption import children_shielded

WORKERS_MODULES = ("treepipe.executor.libraries",)
"""What workers import. A process has one fork server, which imports when it starts and never after:
what starts first has to ask for what all need, or each worker imports it itself, for seconds."""
PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""
FOLDER_PREFIX = "pymp-"
"""Of the folder in which multiprocessing puts the fork server's socket."""


def fork_server(preload: Sequence[str] = WORKERS_MODULES) -> ForkServerContext:
    """A context whose processes are forked from a server that has imported ``preload``.

    The server blocks Ctrl-C from its first instruction on, and so do its children: who started
    them ends them.
    """
    # It hands its environment on: one thread per worker unless its role says more, and these sleep
    # while they wait, since workers may have more threads than there are cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *preload])
    resource_tracker.ensure_running()  # before, since it unblocks Ctrl-C
    with children_shielded():
        forkserver.ensure_running()
    return context


def import_ahead() -> None:
    """Let the fork server import while this process does; one that has PyTorch need not hurry."""
    if "torch" not in sys.modules:
        fork_server()


def start(process: BaseProcess) -> None:
    """Start a process of such a context. Raises ``RunError`` if the fork server is gone."""
    try:
        process.start()
    except (EOFError, ConnectionError) as error:
        raise RunError(
            f"the fork server, from which {process.name} was to be started, ended "
            f"({type(error).__name__})"
        ) from None


def end_with_fork_server() -> None:
    """Let this child end with the fork server, and not keep it alive; to be called first."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Attributes that multiprocessing does not document; without them all is as it was.
    server = getattr(forkserver, "_forkserver", None)
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None  # type: ignore[union-attr]


@atexit.register
def _remove_socket_folder() -> None:
    """Tidy up in the fork server; where the controller was killed, nobody else does it."""
    server = getattr(forkserver, "_forkserver", None)
    address = getattr(server, "_forkserver_address", None)
    if not isinstance(address, str) or getattr(server, "_forkserver_pid", None) is not None:
        return  # a process that starts one, or knows of none
    socket = Path(address)
    if socket.parent.name.startswith(FOLDER_PREFIX):
        with contextlib.suppress(OSError):  # others may have something in there
            for each in socket.parent.glob("listener-*"):  # one per fork server there was
                each.unlink()
            socket.parent.rmdir()
    os._exit(0)  # taking the imported libraries down would last seconds, and changes nothing
