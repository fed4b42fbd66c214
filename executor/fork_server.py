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
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Timer
from typing import Any

from treepipe.core.errors import RunError
from treepipe.executor.frames import Frames
from treepipe.interruption import children_shielded

LIBRARIES = ("treepipe.executor.libraries",)
"""What workers import. A process has one fork server, which imports when it starts and never after:
what starts first has to ask for what all need, or each worker imports it itself, for seconds."""
START_S = 300.0
"""How long the fork server, which may still import, gets to start a process."""
KILLED_S = 10.0
"""How long a process that was killed may take to be gone."""
ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""What a closed terminal or ``timeout`` sends to all processes of a command: the fork server stays
to see the controller's end, as it alone tidies up then."""
PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets when its parent ends."""
FOLDER_PREFIX = "pymp-"
"""Of the folder in which multiprocessing puts the fork server's socket."""


def fork_server(preload: Sequence[str] = LIBRARIES) -> ForkServerContext:
    """A context whose processes are forked from a server that has imported ``preload``.

    The server blocks Ctrl-C and ``ENDINGS`` from its first instruction on, and so do its children
    until ``end_with_fork_server``, which lets ``ENDINGS`` end them.

    Raises:
        RunError: this host has no room for it.
    """
    # It hands its environment on: one thread per worker unless its role says more, and these sleep
    # while they wait, since workers may have more threads than there are cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *preload])
    try:
        resource_tracker.ensure_running()  # before, since it unblocks signals
        with children_shielded(*ENDINGS):
            forkserver.ensure_running()
    except OSError as error:
        raise RunError(f"the fork server cannot be started: {error.strerror}") from None
    return context


def import_ahead() -> None:
    """Let the fork server import while this process does; one that has PyTorch need not hurry."""
    if "torch" not in sys.modules:
        fork_server()


def start(process: BaseProcess) -> None:
    """Start a process of such a context. Raises ``RunError`` if the fork server ends, or does not
    answer within ``START_S``, or if this host has no room for the process."""
    stuck = Timer(START_S, _kill_fork_server)
    stuck.start()
    try:
        process.start()
        return
    except (EOFError, ConnectionError) as error:
        name = type(error).__name__
        fault = f"the fork server, from which {process.name} was to be started, ended ({name})"
    except OSError as error:
        fault = f"{process.name} cannot be started: {error.strerror}"
    finally:
        stuck.cancel()
    raise RunError(fault)  # here, as the other error would keep the start's descriptors open


@dataclass(frozen=True, slots=True)
class WorkerLines:
    """A worker's process, our end of its control line, and that of its pulse."""

    process: BaseProcess
    control: Frames
    look: Connection


def start_worker(
    context: Any, body: Callable[..., object], name: str, *more: object
) -> WorkerLines:
    """Start a process of a context in ``body``, which gets its ends of two lines to us and then
    ``more``. Raises as ``start``."""
    with ExitStack() as ours, ExitStack() as theirs:
        try:
            near, far = socket.socketpair()
            control = ours.enter_context(contextlib.closing(Frames(near)))
            theirs.enter_context(far)
            look, beat = context.Pipe(duplex=False)
            ours.enter_context(look)
            theirs.enter_context(beat)
        except OSError as error:
            raise RunError(f"{name} cannot be started: {error.strerror}") from None
        process = context.Process(target=body, args=(far, beat, *more), name=name, daemon=True)
        start(process)
        ours.pop_all()
        return WorkerLines(process, control, look)


def end_process(process: BaseProcess) -> int:
    """Kill a process if it still runs, and give its descriptors back; returns its exit code.

    A fork server that does not tell of the end of a process that is gone is stopped: it is killed.
    """
    if process.is_alive():
        process.kill()
        process.join(KILLED_S)
    if process.is_alive() and _is_gone(process):
        _kill_fork_server()
        process.join(KILLED_S)
    exit_code = process.exitcode
    if exit_code is None:
        return -signal.SIGKILL
    process.close()
    return exit_code


def _is_gone(process: BaseProcess) -> bool:
    """Whether a process that was killed has ended, and its parent was not told or does not ask."""
    try:
        state = Path(f"/proc/{process.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return True
    return state == b"Z"


def _kill_fork_server() -> None:
    """End a fork server that does not answer, so that whoever waits for it hears of its end."""
    pid = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def end_with_fork_server() -> None:
    """Let this child end with the fork server, and not keep it alive; to be called first."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
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
