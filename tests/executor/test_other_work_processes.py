"""What other programs do beside a run, as this host counts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from treepipe.executor.wire.processor import OtherWork

pytestmark = pytest.mark.processes


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="only Linux counts all work")
def test_a_program_counts_unless_it_is_ours() -> None:
    """The same time, watched with and without it; whatever else runs counts in both, and this
    process's own work in neither."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        process, start = psutil.Process(child.pid), time.monotonic()
        strange, own = OtherWork([]), OtherWork([child.pid])
        before = process.cpu_times()
        while (used := process.cpu_times().user - before.user) < 0.3:
            pass
        seen, between = strange.processors(), time.monotonic()
        rest, end = own.processors(), time.monotonic()
        child.kill()
    assert seen is not None
    assert rest is not None
    unsure = 0.05 + (end - between) * (os.cpu_count() or 1)
    assert seen * (between - start) - rest * (end - start) == pytest.approx(used, abs=unsure)
