"""What ``treepipe calibrate run`` is asked for, and what of it can be wrong.

Law of this file: it loads no PyTorch, so that what is wrong is said at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.executor.prompts import REFERENCE_SET, load_texts
from treepipe.scenario.scenario import Scenario

REQUESTS = 4
"""Texts that are continued in each turn."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is to be run.

    Attributes:
        scenario: a scenario's file; its workers are measured, whatever its schedule is.
        prompts: that are continued; others than the runs that are to be predicted.
        seconds: time to spend at most, once the workers have started.
    """

    scenario: str
    prompts: str = "reference:calibration"
    seconds: float = 60.0

    @property
    def place(self) -> str:
        """Give the prompts as a scenario in any folder names them."""
        is_set = self.prompts.startswith(REFERENCE_SET)
        return self.prompts if is_set else str(Path(self.prompts).absolute())

    def load(self) -> Scenario:
        """Give the scenario.

        Raises:
            UserError: it is wrong, its roles are not all on one host, or there are too few prompts.
        """
        scenario = Scenario.load(self.scenario)
        hosts = {draft.host for draft in scenario.drafts}
        hosts |= {stage.host for pipeline in scenario.pipelines for stage in pipeline.stages}
        if len(hosts) != 1 or None in hosts:
            named = ", ".join(sorted(str(host) for host in hosts if host is not None)) or "none"
            raise UserError(
                f"{scenario.path}: calibrate run measures one host, on which all draft servers and "
                f"stages are (key host of each); named are {named}"
            )
        count = len(load_texts(self.prompts, Path(), "--prompts"))
        if count < REQUESTS:
            raise UserError(
                f"--prompts {self.prompts}: holds {count} texts; calibrate run continues {REQUESTS}"
            )
        return scenario
