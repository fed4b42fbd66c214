"""The process that worker processes are forked from; Ctrl-C does not reach it or its children.

Law of this file: it starts processes and knows nothing of what they do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext


def fork_server(preload: Sequence[str]) -> ForkServerContext:
    """Start the fork server, unless it runs, and return the context to start processes in.

    A terminal sends Ctrl-C to all its processes at once. The fork server ignores it only after it
    has imported the modules below, which takes seconds with torch, and a forked process only when
    its own code says so; until then either would answer with a traceback. Blocked signals are
    handed on to children, so this one is blocked here while the server is started.

    Args:
        preload: modules that it imports once, for all its children.
    """
    # It hands its environment on: one thread per worker.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    resource_tracker.ensure_running()  # else the server starts it, which would lift the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context
