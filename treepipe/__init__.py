"""treepipe: plan and run tree speculative decoding over pipelines of devices.

``core`` is pure (the token tree, the schedules' rules); ``sim`` (SimPy) and ``executor`` (real
processes and models) drive it. The public names of the library are here:

>>> from treepipe import Scenario, simulate
>>> hasattr(Scenario, "load"), callable(simulate)
(True, True)

A name is imported at first use, so ``import treepipe`` loads nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from treepipe.version import __version__ as __version__

if TYPE_CHECKING:
    from treepipe.library import (
        calibrate,
        compare,
        plan,
        run,
        simulate,
        sweep,
        validate,
    )
    from treepipe.planner.plan import Plan
    from treepipe.results.result import MetricValue, Result
    from treepipe.results.versus import Comparison
    from treepipe.scenario.scenario import Scenario
    from treepipe.validation.validation import Validation

__all__ = [
    "Comparison",
    "MetricValue",
    "Plan",
    "Result",
    "Scenario",
    "Validation",
    "calibrate",
    "compare",
    "plan",
    "run",
    "simulate",
    "sweep",
    "validate",
]

_ELSEWHERE = {
    "Comparison": "treepipe.results.versus",
    "MetricValue": "treepipe.results.result",
    "Plan": "treepipe.planner.plan",
    "Result": "treepipe.results.result",
    "Scenario": "treepipe.scenario.scenario",
    "Validation": "treepipe.validation.validation",
}
"""Modules of the names that are not in ``library.py``."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_ELSEWHERE.get(name, "treepipe.library")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
