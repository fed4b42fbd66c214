"""One pytest test per law of a system."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from treepipe.core.system import System
from treepipe.testing.checking import Tried, run_trial
from treepipe.testing.law import LAWS
from treepipe.testing.subjects import found_system
from treepipe.testing.trials import TRIALS

Test = Callable[[str], None]


@cache
def _tried(system: System, trial: str, examples: int | None, start: int) -> Tried:
    """Try a trial once for all its laws."""
    return run_trial(system, TRIALS[trial], examples, start)


def laws(
    system: str | System, *, examples: int | None = None, start: int = 0
) -> Callable[[Any], Test]:
    """Make of the decorated function one test per law of a system; its body is not run.

    A law fails with its counterexample. Laws of one trial share its cases, so that one that breaks
    hides the others of its trial, which then are skipped.

    Args:
        system: its record, or a name as ``check`` takes it.
        examples: number of cases per trial; None: as many as each trial states.
        start: seed of the cases.
    """
    import pytest

    chosen = found_system(system)

    def test(law: str) -> None:
        trial = TRIALS[LAWS[law].trial]
        if not trial.applies(chosen):
            pytest.skip(trial.unless)
        broken = _tried(chosen, trial.name, examples, start).broken
        if broken is None:
            return
        if broken.law == law or LAWS[broken.law].trial != trial.name:
            pytest.fail(broken.text(), pytrace=False)
        pytest.skip(f"{broken.law} broke first")

    def decorate(function: Any) -> Test:
        test.__name__, test.__doc__ = function.__name__, function.__doc__
        test.__module__, test.__qualname__ = function.__module__, function.__qualname__
        return pytest.mark.parametrize("law", list(LAWS))(test)

    return decorate
