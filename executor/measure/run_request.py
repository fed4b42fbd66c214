"""What ``treepipe calibrate run`` is asked for, and what of it can be wrong.

Law of this file: it loads no PyTorch, so that what is wrong is said at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.executor.prompts import load_texts
from treepipe.profiles.library import REFERENCE_SET
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import DraftSection, Stage, endpoint

REQUESTS = 4
"""Texts that are continued in each turn."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is to be run.

    Attributes:
        scenario: a scenario's file; its workers are measured, whatever its schedule is.
        prompts: that are continued; others than the runs that are to be predicted.
        seconds: time to spend at most, once the workers have started.
        scenario_out: where to write the scenario with these hosts' profiles; None is nowhere.
    """

    scenario: str
    prompts: str = "reference:calibration"
    seconds: float = 60.0
    scenario_out: Path | str | None = None

    @property
    def place(self) -> str:
        """Give the prompts as a scenario in any folder names them."""
        is_set = self.prompts.startswith(REFERENCE_SET)
        return self.prompts if is_set else str(Path(self.prompts).absolute())

    def load(self) -> Scenario:
        """Give the scenario.

        Raises:
            UserError: it is wrong, a role names no host, or there are too few prompts.
        """
        scenario = Scenario.load(self.scenario)
        hosts(scenario)
        count = len(load_texts(self.prompts, Path(), "--prompts"))
        if count < REQUESTS:
            raise UserError(
                f"--prompts {self.prompts}: holds {count} texts; calibrate run continues {REQUESTS}"
            )
        return scenario


def hosts(scenario: Scenario) -> list[str]:
    """Give the names of the hosts that the scenario's roles are on.

    Raises:
        UserError: a role names none, or two addresses have one name.
    """
    workers: dict[str, str | None] = {}
    roles: list[DraftSection | Stage] = [*scenario.drafts]
    roles += [stage for pipeline in scenario.pipelines for stage in pipeline.stages]
    for role in roles:
        if role.host is None:
            raise UserError(
                f"{scenario.path}: calibrate run measures hosts by name, so each draft server and "
                f"stage must have a key host"
            )
        address = None if role.worker is None else endpoint(role.worker)[0]
        if workers.setdefault(role.host, address) != address:
            raise UserError(
                f"{scenario.path}: host = {role.host!r} is the name of two machines: "
                f"{workers[role.host] or 'this one'} and {address or 'this one'}"
            )
    return list(workers)


def profile_files(scenario: Scenario, out: Path | None) -> dict[str, Path]:
    """Give each host's file: ``out``, or one in the folder ``out`` if there are several.

    Raises:
        UserError: as ``hosts``, or ``out`` is no name for a folder.
    """
    names = hosts(scenario)
    if len(names) == 1:
        return {names[0]: out or Path("calibrated-host.toml")}
    if out is not None and out.suffix == ".toml":
        raise UserError(f"--out {out}: must be a folder, of profiles of {', '.join(names)}")
    return {name: (out or Path("calibrated-hosts")) / f"{name}.toml" for name in names}
