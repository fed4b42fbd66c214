"""``treepipe calibrate run``, and the files that each calibration writes.

A wrong request raises an error before PyTorch is loaded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.executor.hosts.remote import ask_all
from treepipe.executor.measure.requests import TEXTS, RunRequest
from treepipe.executor.models.prompts import load_texts
from treepipe.files.outputs import check_outputs, claim_folder, write_file
from treepipe.files.section import Section
from treepipe.files.toml_file import toml_text
from treepipe.progress import Progress
from treepipe.scenario.memory import weights_mib
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import DraftSection, Stage, endpoint

DIGITS = 5
"""Significant digits of a figure, the precision of times."""


def calibrate_run(asked: RunRequest, say: Progress) -> list[Path]:
    """Run a scenario's own workers without emulation, and write their hosts' profiles.

    Returns the profiles' files: ``out``, or one each in the folder ``out`` for several hosts.

    Raises:
        UserError: the scenario is wrong, there are too few prompts, or a file may not be written.
        RunError: a worker failed.
        KeyboardInterrupt: the measurements of whole turns are written.
    """
    scenario = Scenario.load(asked.scenario)
    files = _profile_files(scenario, asked)
    target = scenario_target(asked.scenario_out, scenario, asked.force)
    with claimed([*files.values()], asked.force):
        ask_all(scenario.workers, scenario.key_file)
        from treepipe.executor.measure.in_place import HostSession

        # What sampling costs is the device's, so factors on its times are those of greedy texts.
        plain = scenario.with_(sampling={}, hosts={})
        session = HostSession(asked, plain)
        read = {machine.name: mib for machine, mib in weights_mib(deploy(plain)).items()}
        try:
            session.run(say)
        finally:
            if session.turns:
                for name, measured in session.profiles():
                    mib = read.get(name)
                    profile = measured.model_copy(update={"restart_mib": mib and round(mib, 1)})
                    hardware = profile.origin.hardware
                    heading = f"{hardware} in place, measured by treepipe calibrate run."
                    write_profile(profile, heading, files[name])
    if target is not None:
        named = {name: {"profile": beside(scenario.path, file)} for name, file in files.items()}
        content = scenario.content
        content["hosts"] = {**content.get("hosts", {}), **named}
        heading = f"{scenario.path.name} with hosts by treepipe calibrate run."
        write_file(target, toml_text(content, [heading]), "--scenario-out")
    return list(files.values())


def _profile_files(scenario: Scenario, asked: RunRequest) -> dict[str, Path]:
    """Choose each host's profile file. Raises ``UserError`` if the request is wrong."""
    names = _host_names(scenario)
    count = len(load_texts(asked.prompts, Path(), "--prompts"))
    if count < TEXTS:
        raise UserError(
            f"--prompts {asked.prompts}: holds {count} texts; calibrate run continues {TEXTS}"
        )
    out = asked.out
    if len(names) == 1:
        return {names[0]: out or Path("calibrated-host.toml")}
    if out is not None and out.suffix == ".toml":
        raise UserError(f"--out {out}: must be a folder, of profiles of {', '.join(names)}")
    folder = out or Path("calibrated-hosts")
    return {name: folder / f"{name}.toml" for name in names}


def _host_names(scenario: Scenario) -> list[str]:
    """Collect the hosts' names. Raises ``UserError`` if one is missing or names two machines."""
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


# --- files: claimed before the measurement, and written whole or not at all -----------------------


def claim(out: Path, force: bool) -> None:
    """Raise ``UserError`` if ``--out`` cannot be written; called before measuring."""
    check_outputs({"--out": out}, keep=() if force else ("--out",))


@contextlib.contextmanager
def claimed(files: Sequence[Path], force: bool) -> Iterator[None]:
    """Claim files. The folder of several is made, and removed if nothing was written into it."""
    folder = files[0].parent
    is_new = len(files) > 1 and not folder.exists()
    if len(files) > 1:
        claim_folder(folder, "--out")
    for file in files:
        claim(file, force)
    try:
        yield
    finally:
        if is_new and not any(folder.iterdir()):
            folder.rmdir()


def scenario_target(given: Path | str | None, scenario: Scenario, force: bool) -> Path | None:
    """Return the file of ``--scenario-out``. Raises ``UserError`` if it may not be there."""
    if given is None:
        return None
    path, option = Path(given), "--scenario-out"
    if path.resolve().parent != scenario.path.resolve().parent:
        raise UserError(
            f"{option} {path}: must be in the folder of {scenario.path}, from which the names of "
            f"files in it count"
        )
    check_outputs({option: path}, inputs=[scenario.path], keep=() if force else (option,))
    return path


def beside(scenario: Path, file: Path) -> str:
    """Return a profile's file relative to a scenario's file."""
    return Path(os.path.relpath(file.resolve(), scenario.resolve().parent)).as_posix()


def write_profile(profile: Section, heading: str, out: Path) -> None:
    """Write a profile below a heading; an older file stays until the new one is complete."""
    data = profile.model_dump(exclude_defaults=True)
    # The origin precedes the long tables of times.
    ordered = dict(sorted(data.items(), key=lambda item: item[0] != "origin"))
    write_file(out, toml_text(ordered, [heading], DIGITS), "--out")
