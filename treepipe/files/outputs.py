"""Files that a command writes: checked before the work, put in place whole after it.

This file knows paths and options, not contents. A command first calls ``check_outputs`` (and
``claim_folder``); ``write_file`` writes everything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from treepipe.core.errors import RunError, UserError

STANDARD_OUTPUT = "-"
REPORT, REPORT_PAGE = "--report", "index.html"
"""The option for a folder with a page, and the page's file name."""
SHOWN = 3
"""Most files that a sentence names."""

_written: list[Path] = []


class WriteError(RunError):
    """A file could not be written after the work."""


class Failures:
    """A context manager that collects failures and raises them all at the end.

    A file that cannot be written must not prevent the other files or the table on the terminal.
    """

    def __init__(self) -> None:
        self._sentences: list[str] = []

    def attempt(self, action: Callable[..., object], *arguments: Any, **options: Any) -> None:
        """Call the action; a ``RunError`` is collected until the end."""
        try:
            action(*arguments, **options)
        except RunError as error:
            self._sentences.append(str(error))

    def __enter__(self) -> Failures:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not self._sentences or not (error is None or isinstance(error, RunError)):
            return
        last = [] if error is None else [str(error)]
        raise RunError("; ".join([*self._sentences, *last])) from None


def check_outputs(
    files: Mapping[str, Path | str | None],
    *,
    inputs: Collection[Path | None] = (),
    keep: Collection[str] = (),
) -> None:
    """Refuse, before the work, outputs that could not be written after it.

    Args:
        files: files by option; None: not requested; ``--json -``: standard output. The folder of
            ``--report`` is made.
        inputs: files that the command reads, which must not be overwritten.
        keep: options whose file must not exist yet (they have a ``--force``).

    Raises:
        UserError: a folder is missing, a file cannot be written, must stay or is named twice, or a
            picture's format is unknown.
    """
    if (report := files.get(REPORT)) is not None:
        claim_folder(Path(report), REPORT)  # first, so that no file takes its name
    taken: dict[str, str] = {}
    read = {os.path.realpath(path) for path in inputs if path is not None}
    for option, given in files.items():
        if given is None or (option == "--json" and given == STANDARD_OUTPUT):
            continue
        path, name = Path(given), f"{option} {given}"
        if str(path) == STANDARD_OUTPUT:
            raise UserError(f"{name}: only --json can be written to standard output")
        if option == "--plot":
            _check_format(path, name)
        if option == REPORT:
            path, name = path / REPORT_PAGE, f"{option} {path / REPORT_PAGE}"
        place = os.path.realpath(path)
        if place in read:
            raise UserError(f"{name}: is a file that this command reads; name another one")
        _check_file(path, name, new=option in keep)
        if place in taken and (path.is_file() or not path.exists()):
            raise UserError(f"{name}: {taken[place]} is the same file; each needs its own")
        taken[place] = option


def claim_folder(path: Path, option: str) -> None:
    """Make a folder for results. Raises ``UserError`` if it cannot be made or written to."""
    name = f"{option} {path}"
    if path.exists() and not path.is_dir():
        raise UserError(f"{name}: is a file, not a folder")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{name}: cannot be made: {error.strerror}") from None
    try:
        _try_folder(path)
    except OSError as error:
        raise UserError(f"{name}: cannot be written to: {error.strerror}") from None


def claim_results(out: Path, mark: str, what: str) -> None:
    """Make the folder of ``--out``. Raises ``UserError`` if it holds something else.

    Args:
        mark: the file that marks an earlier result of the same kind.
        what: name of that kind, for the error's sentence.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / mark).exists():
        raise UserError(
            f"--out {out}: the folder holds something else than an earlier {what}; "
            f"name an empty or a new one"
        )
    claim_folder(out, "--out")


def cache_folder() -> Path:
    """Return the folder of caches (in ``XDG_CACHE_HOME``), which may be deleted at any time."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "treepipe"


def write_file(path: Path, content: str | bytes, option: str = "") -> None:
    """Write a whole file; an earlier one stays in place until the new one is complete.

    Args:
        option: the option that asked for the file, for the error's sentence.

    Raises ``WriteError``: it cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        _place(path, data)
    except OSError as error:
        label = f"{option} {path}".strip()
        raise WriteError(f"{label}: cannot be written: {error.strerror}") from None
    _written.append(path)


def write_standard_output(text: str, option: str) -> None:
    """Write to standard output; a closed pipe stays a ``BrokenPipeError``."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_standard_output()
        raise WriteError(f"{option} -: cannot be written: {error.strerror}") from None


def drop_standard_output() -> None:
    """Drop unwritten standard output, so that the process does not retry it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):  # there may be no file behind it
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def forget_written() -> None:
    """Forget the files written by an earlier command."""
    _written.clear()


def what_is_kept() -> str:
    """Describe what an interrupted command leaves behind, as the end of a sentence."""
    names = list(dict.fromkeys(str(path) for path in _written if path.exists()))
    if not names:
        return "nothing was written"
    more = [] if len(names) <= SHOWN else [f"{len(names) - SHOWN} more"]
    verb = "holds" if len(names) == 1 else "hold"
    return f"{', '.join([*names[:SHOWN], *more])} {verb} what was done until then"


def _check_format(path: Path, name: str) -> None:
    from matplotlib.figure import Figure

    known = sorted(Figure().canvas.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise UserError(f"{name}: a picture's name ends in one of .{', .'.join(known)}")


def _check_file(path: Path, name: str, *, new: bool) -> None:
    place = Path(os.path.realpath(path))
    try:
        if path.is_dir():
            raise UserError(f"{name}: is a folder, not a file")
        if not place.parent.is_dir():
            raise UserError(f"{name}: there is no folder {path.parent}")
        try:
            place.stat()  # unlike ``exists``, it refuses too long a name on every Python version
        except FileNotFoundError:
            _try_folder(place.parent)
            return
        if new:
            raise UserError(f"{name}: there is such a file already; --force overwrites it")
        if not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"{name}: cannot be written: {error.strerror}") from None


def _try_folder(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder):
        pass


def _place(path: Path, data: bytes) -> None:
    target = Path(os.path.realpath(path))  # a link stays a link
    is_device = not path.is_file() or Path("/dev") in path.absolute().parents
    if path.exists() and (is_device or not os.access(target.parent, os.W_OK)):
        path.write_bytes(data)
        return
    draft = target.with_name(f".treepipe-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        draft.write_bytes(data)
        if target.exists():
            shutil.copymode(target, draft)
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
