"""Files that a calibration writes: claimed before it, and written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.files.outputs import check_outputs, claim_folder, write_file
from treepipe.files.section import Section
from treepipe.files.toml_file import toml_text
from treepipe.scenario.scenario import Scenario

DIGITS = 5
"""Significant digits of a figure, the precision of times."""


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
