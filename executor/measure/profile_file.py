"""Writing a profile as TOML: never over another file unasked, and whole or not at all.

What it says is in ``device_file.py``, ``link.py`` and ``acceptance.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from treepipe.files.outputs import check_outputs, claim_folder, write_file
from treepipe.files.section import Section
from treepipe.files.toml_file import toml_text

DIGITS = 5
"""Of a figure; times are not known better."""


def claim(out: Path, force: bool) -> None:
    """Raises ``UserError`` if ``--out`` may not or cannot be written; asked before measuring."""
    check_outputs({"--out": out}, keep=() if force else ("--out",))


def claim_profiles(files: Mapping[str, Path], force: bool) -> None:
    """The same of several, in the folder that they are in; of one, which is ``--out`` itself."""
    if len(files) > 1:
        claim_folder(next(iter(files.values())).parent, "--out")
    for file in files.values():
        claim(file, force)


def beside(scenario: Path, file: Path) -> str:
    """A profile's file, as a scenario's file names it."""
    return Path(os.path.relpath(file.resolve(), scenario.resolve().parent)).as_posix()


def write_profile(profile: Section, heading: str, out: Path) -> None:
    """Write a profile; what was there before stays until the new one is complete.

    Args:
        heading: one line about the file.
    """
    data = profile.model_dump(exclude_defaults=True)
    # Where it comes from stands before the long tables of what is measured.
    ordered = dict(sorted(data.items(), key=lambda item: item[0] != "origin"))
    write_file(out, toml_text(ordered, [heading], DIGITS), "--out")
