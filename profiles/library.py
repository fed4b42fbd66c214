"""Finding profiles: by name in this folder (``<kind>/<name>.toml``), or any file by its path."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from treepipe.core.errors import UserError
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
    HostProfile,
    Link,
    LinkProfile,
    MeasuredTime,
    ModelProfile,
    device_kind,
    given_keys,
)
from treepipe.profiles.shapes import Shape

AnyProfile: TypeAlias = (
    DeviceProfile | EmulatedProfile | LinkProfile | ModelProfile | AcceptanceProfile | HostProfile
)

Loaded = TypeVar("Loaded")

LIBRARY = Path(__file__).parent
REFERENCE = LIBRARY.parent / "executor" / "reference"
"""The bundled checkpoints."""
REFERENCE_SET = "reference:"
"""The beginning of the names of bundled prompts."""
KINDS = ("devices", "links", "models", "acceptance", "hosts")
_RATES = {"bandwidth_mbit_s", "transfer_ms"}
"""Two ways to say the same of a link."""


def profile_names(kind: str) -> list[str]:
    """Names of all profiles of a kind, one of ``KINDS``."""
    return sorted(path.stem for path in (LIBRARY / kind).glob("*.toml"))


def profile_path(kind: str, name: str, asked_by: str, base: Path = Path()) -> Path:
    """The file that a name means: one of the library, or a path.

    Args:
        asked_by: start of the error's sentence, naming file and key.
        base: relative paths count from here (the scenario's folder).

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
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names) or 'none'}"
    raise UserError(f"{asked_by} = {name!r}: there is no such profile in {kind}; {hint}")


def is_path(name: str) -> bool:
    """Whether a name is meant as a file rather than a profile of the library."""
    return "/" in name or "\\" in name or name.endswith((".toml", ".json"))


def find_device(name: str, asked_by: str, base: Path = Path()) -> Device | Hardware:
    """Raises ``UserError`` if there is none of that name, or it is not valid."""
    return load_device(profile_path("devices", name, asked_by, base))


def find_link(name: str, asked_by: str, base: Path = Path()) -> LinkProfile:
    """Raises ``UserError`` as ``find_device`` does."""
    return load_link(profile_path("links", name, asked_by, base))


def profile_name(section: AnyDevice | AnyLink) -> str | None:
    """The profile that a device or link names, whatever keys stand beside it; None for a table."""
    if isinstance(section, ExtendedDevice | ExtendedLink):
        return section.profile
    return section if isinstance(section, str) else None


def resolve_device(device: AnyDevice, asked_by: str, base: Path = Path()) -> Device | Hardware:
    """What a scenario writes for a device: a table as it is, a profile with the keys beside it.

    A key given beside ``profile`` replaces the profile's as a whole.

    Raises:
        UserError: as ``find_device``, or a key is none of this profile's way to say times.
    """
    if isinstance(device, str):
        return find_device(device, asked_by, base)
    if not isinstance(device, ExtendedDevice):
        return device
    profile = find_device(device.profile, f"{asked_by}.profile", base)
    given = given_keys(device)
    foreign = sorted(set(given) - set(type(profile).model_fields))
    if foreign:
        says = "what a layer costs" if isinstance(profile, Hardware) else "a whole role's times"
        raise UserError(
            f"{asked_by}.{foreign[0]} cannot stand beside profile = {device.profile!r}, which "
            f"says {says}"
        )
    return validated(type(profile), {**given_keys(profile), **given}, asked_by)


def resolve_link(link: AnyLink, asked_by: str, base: Path = Path()) -> Link:
    """What a scenario writes for a link, as ``resolve_device`` does for a device.

    A rate that is given (``bandwidth_mbit_s`` or ``transfer_ms``) replaces the profile's, however
    that is said, and a family of jitter replaces the profile's with its ``jitter_cv``.
    """
    if isinstance(link, str):
        return find_link(link, asked_by, base)
    if not isinstance(link, ExtendedLink):
        return link
    own, given = given_keys(find_link(link.profile, f"{asked_by}.profile", base)), given_keys(link)
    replaced = set(given)
    if replaced & _RATES:
        replaced |= _RATES
    if "jitter" in replaced:
        replaced.add("jitter_cv")
    kept = {key: value for key, value in own.items() if key not in replaced}
    return validated(LinkProfile, {**kept, **given}, asked_by)


def find_model(name: str, asked_by: str, base: Path = Path()) -> ModelProfile:
    """A profile, or what a ``config.json`` says; raises ``UserError`` as ``find_device`` does."""
    return load_model(profile_path("models", name, asked_by, base))


def find_acceptance(
    name: str, asked_by: str, base: Path = Path()
) -> tuple[AcceptanceProfile, Path]:
    """Recorded acceptance and its file; raises ``UserError`` as ``find_device`` does."""
    path = profile_path("acceptance", name, asked_by, base)
    return validated(AcceptanceProfile, read_toml(path), path), path


def find_host(name: str, asked_by: str, base: Path = Path()) -> HostProfile:
    """Raises ``UserError`` as ``find_device`` does."""
    return load_host(profile_path("hosts", name, asked_by, base))


def remembered(load: Callable[[Path], Loaded]) -> Callable[[Path], Loaded]:
    """The same, but a file that has not changed is read once: a search asks for the same profiles
    with every candidate."""

    @lru_cache
    def unchanged(path: Path, modified_ns: int, size: int) -> Loaded:
        return load(path)

    @wraps(load)
    def loaded(path: Path) -> Loaded:
        try:
            stat = path.stat()
        except OSError:
            return load(path)  # which says what is wrong
        return unchanged(path, stat.st_mtime_ns, stat.st_size)

    return loaded


@remembered
def load_link(path: Path) -> LinkProfile:
    """Raises ``UserError`` if the file is not valid."""
    return validated(LinkProfile, read_toml(path), path)


@remembered
def load_host(path: Path) -> HostProfile:
    """Raises ``UserError`` if the file is not valid."""
    return validated(HostProfile, read_toml(path), path)


@remembered
def load_device(path: Path) -> DeviceProfile | EmulatedProfile:
    """Raises ``UserError`` if the file is not valid."""
    data = read_toml(path)
    if device_kind(data) == "device-hardware":
        return validated(DeviceProfile, data, path)
    return validated(EmulatedProfile, data, path)


@remembered
def load_model(path: Path) -> ModelProfile:
    """Raises ``UserError`` if the file is not valid."""
    if path.suffix == ".json":
        return read_config(path)
    return validated(ModelProfile, read_toml(path), path)


def load_any(path: Path) -> tuple[str, AnyProfile]:
    """The kind of a file, told by its keys, and the profile in it. Raises ``UserError``."""
    if path.suffix == ".json":
        return "models", load_model(path)
    data = read_toml(path)
    kind = _kind(data, path)
    if kind == "devices":
        return kind, load_device(path)
    if kind == "links":
        return kind, load_link(path)
    if kind == "models":
        return kind, load_model(path)
    if kind == "hosts":
        return kind, load_host(path)
    return kind, validated(AcceptanceProfile, data, path)


def checkpoint_directory(name: str, role: str, base: Path) -> Path:
    """The directory a scenario names; "reference" is the bundled one of that role.

    Args:
        role: "target", "draft" or "eagle".
        base: relative names count from here (the scenario's folder).
    """
    return REFERENCE / role if name == "reference" else base / name


def shape_of(entry: MeasuredTime) -> Shape:
    """Sizes of the model that was measured. Raises ``UserError`` if nothing tells them."""
    if entry.shape is not None:
        return entry.shape
    return find_model(entry.model, "a measured table without a shape has model")


def _kind(data: Mapping[str, Any], path: Path) -> str:
    """The kind of profile whose keys the file's are, or are most like."""
    fields: dict[str, set[str]] = {
        "devices": {*DeviceProfile.model_fields, *EmulatedProfile.model_fields},
        "links": set(LinkProfile.model_fields),
        "models": set(ModelProfile.model_fields),
        "acceptance": set(AcceptanceProfile.model_fields),
        "hosts": set(HostProfile.model_fields),
    }
    keys = [key for key in data if key != "origin"]
    likeness = {
        kind: sum(
            1.0 if key in names else 0.5 * bool(difflib.get_close_matches(key, names, 1))
            for key in keys
        )
        for kind, names in fields.items()
    }
    kind = max(likeness, key=lambda kind: (likeness[kind], kind == path.parent.name))
    if not likeness[kind]:
        raise UserError(f"{path}: holds no key of a profile; kinds are {', '.join(KINDS)}")
    return kind
