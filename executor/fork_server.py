"""The process that worker processes are forked from; Ctrl-C does not reach it or its children.

Law of this file: it starts processes and knows nothing of what they do.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext

from treepipe.interruption import children_shielded


def fork_server(preload: Sequence[str]) -> ForkServerContext:
    """Start the fork server, unless it runs, and return the context to start processes in.

    Args:
        preload: modules that it imports once, for all its children.
    """
    # It hands its environment on: one thread per worker.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    resource_tracker.ensure_running()  # started by the server, it would lift the block
    with children_shielded():
        forkserver.ensure_running()
    return context
