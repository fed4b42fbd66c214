"""From what the command line asks for to a written profile: one function per kind of profile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from treepipe.errors import UserError
from treepipe.profiles.measure.device import CONTEXTS, TOKENS, DeviceSession, Say
from treepipe.profiles.measure.device_file import device_profile
from treepipe.profiles.measure.profile_file import claim, write_profile
from treepipe.profiles.measure.subject import open_subject
from treepipe.profiles.measure.work import DTYPES, Bench
from treepipe.profiles.shapes import BYTES, DType

DEVICES = ("cpu", "cuda")


def calibrate_device(
    model: str,
    draft: str | None,
    out: Path,
    say: Say,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    threads: int = 1,
    layers: int | None = None,
    tokens: tuple[int, ...] = TOKENS,
    contexts: tuple[int, ...] = CONTEXTS,
    seconds: float = 120.0,
    force: bool = False,
) -> None:
    """Measure this machine and write its device profile; see ``docs/calibration.md``.

    Args:
        model, draft: see ``subject.open_subject``.
        dtype: to compute in; None is float32 on a CPU, float16 on a GPU.
        threads: that the CPU computes with; a worker of the executor has one.

    Raises:
        UserError: something that was asked for is not there, or the file may not be written.
        KeyboardInterrupt: what was measured until then is written.
    """
    _check_device(device)
    claim(out, force)
    name = _dtype(dtype or ("float32" if device == "cpu" else "float16"))
    bench = Bench(device, DTYPES[name], tokens, contexts)
    subject = open_subject(model, draft, layers, bench.dtype, device)
    session = DeviceSession(subject, bench, seconds)

    def save() -> None:
        if session.found.any:
            profile = device_profile(subject, bench, threads, session.withheld, session.found)
            heading = f"{profile.origin.hardware}, measured by treepipe calibrate."
            write_profile(profile, heading, out)

    with _threads(threads):
        session.run(say, save)


def _check_device(device: str) -> None:
    if device not in DEVICES:
        raise UserError(f"--device {device}: must be one of {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"--device cuda: torch {torch.__version__} finds no GPU on this machine; "
            f"--device cpu measures its processor"
        )


def _dtype(name: str) -> DType:
    known = {dtype: dtype for dtype in DTYPES}
    if name in known:
        return known[name]
    hint = "; quantized weights are not measured" if name in BYTES else ""
    raise UserError(f"--dtype {name}: must be one of {', '.join(known)}{hint}")


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def numbers(text: str, option: str, least: int) -> tuple[int, ...]:
    """Ascending whole numbers, separated by commas.

    >>> numbers("1,16,4", "--tokens", 1)
    (1, 4, 16)

    Raises:
        UserError: it is something else.
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < least:
        raise UserError(
            f"{option} {text}: must be whole numbers of at least {least}, separated by commas"
        )
    return tuple(found)
