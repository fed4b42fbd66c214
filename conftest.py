"""Settings of all tests: a property may take as long as it takes on a busy machine, and what needs
the extra 'executor' is skipped where that is not installed."""

from __future__ import annotations

import sys
from collections.abc import Generator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

import pytest
from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

EXECUTOR = ("safetensors", "tokenizers", "torch", "transformers", "zmq")


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
