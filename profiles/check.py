"""Oddities of a valid profile: allowed, but worth a sentence."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

from treepipe.core.errors import UserError
from treepipe.profiles.library import AnyProfile, load_any, shape_of
from treepipe.profiles.schema import (
    AcceptanceProfile,
    Device,
    Hardware,
    HostProfile,
    Link,
    MeasuredTime,
    ModelProfile,
)

FALL = 0.02
"""Relative fall of times below which it counts as noise."""


def check_file(path: Path) -> tuple[str, list[str]]:
    """Return a file's kind and oddities. Raises ``UserError`` if it is not valid."""
    kind, profile = load_any(path)
    return kind, list(_oddities(profile, path))


def _oddities(profile: AnyProfile, path: Path) -> Iterator[str]:
    if isinstance(profile, Hardware):
        for table in ("layer", "head", "embedding", "draft"):
            for index, entry in enumerate(getattr(profile, table)):
                yield from _measured(entry, f"{table}.{index}", path)
        if profile.roofline is None and any(not entry.attention for entry in profile.layer):
            yield "key roofline is missing, so attention cannot be added to the layers' times"
    elif isinstance(profile, Device):
        for key in ("stage_ms", "draft_ms", "evaluate_ms"):
            yield from _falls(getattr(profile, key), f"key {key}", "tokens")
    elif isinstance(profile, ModelProfile):
        yield from (f"key {caveat}" for caveat in profile.caveats.values())
    elif isinstance(profile, HostProfile):
        for key in ("send_ms", "receive_ms"):
            yield from _falls(getattr(profile, key), f"key {key}", "bytes")
    elif isinstance(profile, Link):
        yield from _falls(profile.transfer_ms or {}, "key transfer_ms", "bytes")
    elif isinstance(profile, AcceptanceProfile):
        if profile.pool is not None and not (path.parent / profile.pool).is_file():
            raise UserError(f"{path}: key pool = {profile.pool!r}: there is no such file beside it")
        if profile.pool is None and len(profile.hit_ratio or ()) == 1:
            yield "key hit_ratio has one entry: the share is taken as the same for any k"


def _measured(entry: MeasuredTime, key: str, path: Path) -> Iterator[str]:
    try:
        shape_of(entry)
    except UserError as error:
        raise UserError(f"{path}: key {key}: {error}") from None
    named = f"key {key} ({entry.model}, {entry.dtype})"
    for context, times in sorted(entry.ms.items()):
        yield from _falls(times, f"{named} at context {context}", "tokens")
        if min(times) > 1:
            yield f"{named} at context {context}: less than {min(times)} tokens take its time"
    shared = set.intersection(*(set(times) for times in entry.ms.values()))
    for tokens in sorted(shared):
        by_context = {context: times[tokens] for context, times in entry.ms.items()}
        yield from _falls(by_context, f"{named} over {tokens} tokens", "context")


def _falls(times: Mapping[int, float], where: str, unit: str) -> Iterator[str]:
    """Yield one sentence on the deepest fall."""
    falls = [
        (1.0 - times[after] / times[before], before, after)
        for before, after in itertools.pairwise(sorted(times))
        if times[before] > 0
    ]
    share, before, after = max(falls, default=(0.0, 0, 0))
    if share > FALL:
        yield f"{where}: times fall by {share:.0%} from {before} to {after} {unit}"
