"""Folders: those for results, and the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.files.outputs import claim_folder


def claim(out: Path, mark: str, what: str) -> None:
    """Make the folder of ``--out``; raises ``UserError`` if it is not ours to write to.

    Args:
        mark: the file by which an earlier result of the same kind is known.
        what: that kind, for the error's sentence.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / mark).exists():
        raise UserError(
            f"--out {out}: the folder holds something else than an earlier {what}; "
            f"name an empty or a new one"
        )
    claim_folder(out, "--out")


def cache_folder() -> Path:
    """The folder of what is remembered (in ``XDG_CACHE_HOME``); it may be deleted at any time."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "treepipe"
