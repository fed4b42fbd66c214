"""Settings of all tests: which are laws, which take long and which start processes, how many
examples a property is tried on, and that what needs the extra 'executor' is skipped where that is
not installed."""

from __future__ import annotations

import _posixsubprocess
import gc
import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Generator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

import joblib
import matplotlib.font_manager  # noqa: F401  (its first import may ask a process for fonts)
import pytest
from hypothesis import settings
from joblib.externals.loky.backend import resource_tracker

gc.disable()  # until all is imported, see pytest_collection_finish

# A property may take as long as it takes on a busy machine. See also tests/worlds/examples.py.
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

EXECUTOR = ("msgspec", "safetensors", "tokenizers", "torch", "transformers", "zmq")


class MissingExecutor(MetaPathFinder):
    """Skips the test or the file that imports a library of the extra which is not installed.

    Processes of their own do not have it: that planning imports none of them is checked there.
    """

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        if fullname in EXECUTOR:
            reason = f"needs the extra 'executor' ({fullname} is not installed)"
            pytest.skip(reason, allow_module_level=True)
        return None


sys.meta_path.append(MissingExecutor())  # the last: asked for what no other has found


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Forget a file that was skipped half-way through: another may import it, too."""
    report = yield
    if report.skipped and isinstance(collector, pytest.File):
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) == str(collector.path):
                del sys.modules[name]
    return report


def pytest_collection_finish() -> None:
    """Look for garbage among what tests make alone: the million objects that imports leave stay."""
    gc.freeze()
    gc.enable()


# --- laws and processes --------------------------------------------------------------------------

STARTS: tuple[tuple[object, str], ...] = (
    (subprocess.Popen, "__init__"),
    (multiprocessing.process.BaseProcess, "start"),
    (_posixsubprocess, "fork_exec"),
    (os, "fork"),
    (os, "posix_spawn"),
    (os, "system"),
)
"""Every way in which Python starts a process."""


STARTING = ("treepipe.library.run", "treepipe.library.validate")
"""Docstrings whose examples start processes; only functions can be marked by hand."""


def _no_process(*_: object, **__: object) -> None:
    pytest.fail("a test in memory starts no process: mark it `processes`")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as a law every test that is not marked ``long`` or ``processes``: each is one of the
    three."""
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.name in STARTING:
            item.add_marker("processes")
        if item.get_closest_marker("laws"):
            raise pytest.UsageError(f"{item.nodeid}: `laws` is set here, only the others by hand")
        if not (item.get_closest_marker("processes") or item.get_closest_marker("long")):
            item.add_marker("laws")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test in memory that starts a process, its fixtures included.

    Points of a study are simulated one after another, in this process: starting others takes longer
    than a test's few points. ``tests/sim/test_points.py`` tries the others.
    """
    with pytest.MonkeyPatch.context() as patch, joblib.parallel_config(backend="sequential"):
        if not item.get_closest_marker("processes"):
            patch.setattr(resource_tracker, "ensure_running", lambda: None)
            for owner, name in STARTS:
                patch.setattr(owner, name, _no_process)
        return (yield)
