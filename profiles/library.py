"""Finding profiles: by name in this folder (``<kind>/<name>.toml``), or any file by its path."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from treepipe.core.errors import UserError
from treepipe.files.reading import suggestion
from treepipe.files.section import Section
from treepipe.files.toml_file import read_toml, validated
from treepipe.profiles.model_config import read_config
from treepipe.profiles.schema import (
    AcceptanceProfile,
    AnyDevice,
    AnyLink,
    Device,
    DeviceProfile,
    EmulatedProfile,
    ExtendedDevice,
    ExtendedLink,
    Hardware,
    HopProfile,
    HostProfile,
    Link,
    LinkProfile,
    MeasuredTime,
    ModelProfile,
    Peaks,
    device_kind,
    given_keys,
)
from treepipe.profiles.shapes import Shape

AnyProfile: TypeAlias = (
    DeviceProfile
    | EmulatedProfile
    | LinkProfile
    | ModelProfile
    | AcceptanceProfile
    | HostProfile
    | HopProfile
)

Loaded = TypeVar("Loaded")
Profile = TypeVar("Profile", bound=Section)

LIBRARY = Path(__file__).parent
REFERENCE = LIBRARY.parent / "executor" / "reference"
"""Folder of the bundled checkpoints."""
REFERENCE_SET = "reference:"
"""Prefix of the names of bundled prompts."""
CALIBRATION, HELD_OUT = f"{REFERENCE_SET}calibration", f"{REFERENCE_SET}heldout"
"""Bundled prompts for calibration, and others, that runs decode."""
_RATES = {"bandwidth_mbit_s", "transfer_ms"}
"""The two keys that state a link's rate."""


def profile_names(kind: str) -> list[str]:
    """Names of all profiles of a kind, one of ``KINDS``."""
    return sorted(path.stem for path in (LIBRARY / kind).glob("*.toml"))


def profile_path(kind: str, name: str, asked_by: str, base: Path = Path()) -> Path:
    """Find the file of a name: a profile of the library, or a path.

    Args:
        asked_by: start of the error's sentence, naming file and key.
        base: folder that relative paths count from (the scenario's).

    Raises:
        UserError: there is no such profile.
    """
    path = base / name
    if not is_path(name):
        bundled = LIBRARY / kind / f"{name}.toml"
        if bundled.is_file():
            return bundled
    else:
        if kind == "models" and path.is_dir():
            path = path / "config.json"
        if path.is_file():
            return path
        raise UserError(f"{asked_by} = {name!r}: there is no file {path}")
    if kind == "models" and (path / "config.json").is_file():
        return path / "config.json"
    names = profile_names(kind)
    hint = suggestion(name, names)
    raise UserError(f"{asked_by} = {name!r}: there is no such profile in {kind}; {hint}")


def is_path(name: str) -> bool:
    """Whether a name is a path rather than a profile of the library."""
    return "/" in name or "\\" in name or name.endswith((".toml", ".json"))


def find_device(name: str, asked_by: str, base: Path = Path()) -> Device | Hardware:
    """Load a device profile. Raises ``UserError`` if it does not exist or is not valid."""
    return load_device(profile_path("devices", name, asked_by, base))


def link_parts(name: str, base: Path = Path()) -> tuple[str, str | None]:
    """Return the link and the engine of a name: ``LINK+ENGINE``, or a link alone."""
    link, _, engine = name.rpartition("+")
    return (link, engine) if link and not (base / name).is_file() else (name, None)


def find_link(name: str, asked_by: str, base: Path = Path()) -> LinkProfile:
    """Load a link profile, or as an engine's messages take it. Raises as ``find_device``."""
    only, engine = link_parts(name, base)
    link = load_link(profile_path("links", only, asked_by, base))
    if engine is None:
        return link
    hop = load_hop(profile_path("hops", engine, asked_by, base))
    shares = [each.origin.uncertainty for each in (link, hop) if each.origin.uncertainty]
    origin = link.origin.model_copy(update={"uncertainty": max(shares, default=None)})
    return validated(
        LinkProfile, {**given_keys(link), **hop.over(link), "origin": origin}, asked_by
    )


def profile_name(section: AnyDevice | AnyLink) -> str | None:
    """Name of a device's or link's profile, alone or with overriding keys; None for a table."""
    if isinstance(section, ExtendedDevice | ExtendedLink):
        return section.profile
    return section if isinstance(section, str) else None


def resolve_device(device: AnyDevice, asked_by: str, base: Path = Path()) -> Device | Hardware:
    """Resolve a scenario's device: a table stays, a key beside ``profile`` replaces the profile's.

    Raises:
        UserError: as ``find_device``, or a key belongs to another way to state times.
    """
    if isinstance(device, str):
        return find_device(device, asked_by, base)
    if not isinstance(device, ExtendedDevice):
        return device.hardware if isinstance(device, Peaks) else device
    profile = find_device(device.profile, f"{asked_by}.profile", base)
    given = device.model_dump(exclude={"profile"}, exclude_unset=True)
    foreign = sorted(set(given) - set(type(profile).model_fields))
    if foreign:
        says = "what a layer costs" if isinstance(profile, Hardware) else "a whole role's times"
        raise UserError(
            f"{asked_by}.{foreign[0]} cannot stand beside profile = {device.profile!r}, which "
            f"says {says}"
        )
    return validated(type(profile), {**given_keys(profile), **given}, asked_by)


def resolve_link(link: AnyLink, asked_by: str, base: Path = Path()) -> Link:
    """Resolve a scenario's link as ``resolve_device`` does a device.

    A given rate (``bandwidth_mbit_s`` or ``transfer_ms``) replaces the profile's in either form,
    with its burst and peak, and a given ``jitter`` also replaces the profile's ``jitter_cv``.
    """
    if isinstance(link, str):
        return find_link(link, asked_by, base)
    if not isinstance(link, ExtendedLink):
        return link
    own, given = given_keys(find_link(link.profile, f"{asked_by}.profile", base)), given_keys(link)
    replaced = set(given)
    if replaced & _RATES:
        replaced |= _RATES | {"burst_kib", "peak_mbit_s"}
    if "jitter" in replaced:
        replaced.add("jitter_cv")
    kept = {key: value for key, value in own.items() if key not in replaced}
    return validated(LinkProfile, {**kept, **given}, asked_by)


def find_model(name: str, asked_by: str, base: Path = Path()) -> ModelProfile:
    """Load a model profile or a ``config.json``. Raises as ``find_device``."""
    return load_model(profile_path("models", name, asked_by, base))


def find_acceptance(
    name: str, asked_by: str, base: Path = Path()
) -> tuple[AcceptanceProfile, Path]:
    """Load an acceptance profile; return it with its file. Raises as ``find_device``."""
    path = profile_path("acceptance", name, asked_by, base)
    return load_acceptance(path), path


def find_host(name: str, asked_by: str, base: Path = Path()) -> HostProfile:
    """Load a host profile. Raises as ``find_device``."""
    return load_host(profile_path("hosts", name, asked_by, base))


def remembered(load: Callable[[Path], Loaded]) -> Callable[[Path], Loaded]:
    """Cache ``load`` by path, mtime and size; a search loads each profile many times."""

    @lru_cache
    def unchanged(path: Path, modified_ns: int, size: int) -> Loaded:
        return load(path)

    @wraps(load)
    def loaded(path: Path) -> Loaded:
        try:
            stat = path.stat()
        except OSError:
            return load(path)  # which raises the error
        return unchanged(path, stat.st_mtime_ns, stat.st_size)

    return loaded


def loader(profile: type[Profile]) -> Callable[[Path], Profile]:
    """Make a function that loads a file. It raises ``UserError`` if the file is not valid."""
    return remembered(lambda path: validated(profile, read_toml(path), path))


load_link = loader(LinkProfile)
load_host = loader(HostProfile)
load_hop = loader(HopProfile)
load_acceptance = loader(AcceptanceProfile)


@remembered
def load_device(path: Path) -> DeviceProfile | EmulatedProfile:
    """Load a device profile. Raises ``UserError`` if the file is not valid."""
    data = read_toml(path)
    if device_kind(data) == "device-hardware":
        return validated(DeviceProfile, data, path)
    return validated(EmulatedProfile, data, path)


@remembered
def load_model(path: Path) -> ModelProfile:
    """Load a model profile. Raises ``UserError`` if the file is not valid."""
    if path.suffix == ".json":
        return read_config(path)
    return validated(ModelProfile, read_toml(path), path)


LOADERS: dict[str, Callable[[Path], AnyProfile]] = {
    "devices": load_device,
    "links": load_link,
    "models": load_model,
    "acceptance": load_acceptance,
    "hosts": load_host,
    "hops": load_hop,
}
"""Loaders by the library's folders, one per kind of profile."""
KINDS = tuple(LOADERS)
_KEYS: dict[str, set[str]] = {
    "devices": {*DeviceProfile.model_fields, *EmulatedProfile.model_fields},
    "links": set(LinkProfile.model_fields),
    "models": set(ModelProfile.model_fields),
    "acceptance": set(AcceptanceProfile.model_fields),
    "hosts": set(HostProfile.model_fields),
    "hops": set(HopProfile.model_fields),
}


def load_any(path: Path) -> tuple[str, AnyProfile]:
    """Return the kind of a file, detected by its keys, and its profile. Raises ``UserError``."""
    kind = "models" if path.suffix == ".json" else _kind(read_toml(path), path)
    return kind, LOADERS[kind](path)


def checkpoint_directory(name: str, role: str, base: Path) -> Path:
    """Directory that a scenario in folder ``base`` names, or the role's bundled one."""
    return REFERENCE / role if name == "reference" else base / name


def shape_of(entry: MeasuredTime) -> Shape:
    """Sizes of the measured model. Raises ``UserError`` if they are unknown."""
    if entry.shape is not None:
        return entry.shape
    return find_model(entry.model, "a measured table without a shape has model")


def _kind(data: Mapping[str, Any], path: Path) -> str:
    """Kind of profile whose keys are most like the file's."""
    keys = [key for key in data if key != "origin"]
    likeness = {
        kind: sum(
            1.0 if key in names else 0.5 * bool(difflib.get_close_matches(key, names, 1))
            for key in keys
        )
        for kind, names in _KEYS.items()
    }
    kind = max(likeness, key=lambda kind: (likeness[kind], kind == path.parent.name))
    if not likeness[kind]:
        raise UserError(f"{path}: holds no key of a profile; kinds are {', '.join(KINDS)}")
    return kind


# --- oddities: allowed, but worth a sentence ------------------------------------------------------

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
