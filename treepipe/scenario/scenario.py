"""The whole scenario: read from a file or built from values, and changed copies of it.

``schema.py`` defines its sections; ``resolve.py`` derives a deployment from it.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr

from treepipe.core.errors import UserError
from treepipe.files.section import ReadIf, Section, Seed, Several
from treepipe.files.toml_file import (
    MOST_PARTS,
    copied,
    read_toml,
    toml_text,
    toml_value,
    validated,
)
from treepipe.profiles.library import find_acceptance
from treepipe.scenario.faults import FaultsSection
from treepipe.scenario.schema import (
    Acceptance,
    DraftSection,
    HostSection,
    Links,
    Model,
    Pipeline,
    RunSection,
    SamplingSection,
    ScaleSection,
    ScheduleSection,
    ServingSection,
    Workload,
)

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self


OTHER_FILES = {
    "search": "a cluster file (it has a table [search]); treepipe plan takes it, and writes its "
    "best plan as a scenario",
    "sweep": "a sweep file (it has a table [sweep]); treepipe sweep takes it, and simulates all "
    "scenarios that it describes",
}
"""Kinds of other files by the table that marks them, with their purpose."""

_VALID = dict[tuple[type, str, str], Any]()
"""Values of the newest scenarios' keys by the text of what was given, since variants of a scenario
have most of them in common. They do not change."""
MOST_VALID = 1000


class Scenario(Section):
    """The description that both worlds read: a scenario file, or the same built from values.

    >>> scenario = Scenario.of({
    ...     "name": "four stages",
    ...     "target": {"layers": 8},
    ...     "pipelines": [{"stages": [{"device": "emulated-20ms", "count": 4}]}],
    ...     "schedule": {"name": "flowspec", "tree_size": 40},
    ...     "acceptance": {"source": "profile", "name": "reference"},
    ... })
    >>> scenario.with_(**{"schedule.tree_size": 20, "runs": 3}).schedule.parameters.tree_size
    20
    """

    _path: Path = PrivateAttr(Path("scenario"))
    _content: dict[str, Any] = PrivateAttr(default_factory=dict)

    name: str = Field(description="shown in results")
    seed: Seed = Field(0, description="root of all random streams")
    runs: Annotated[Several, ReadIf("drawn")] = Field(1, description="independent repetitions")
    emulate: Annotated[bool | Literal["devices"], ReadIf("imposed")] = Field(
        True,
        description="pad execution to the devices' and links' profiles; `\"devices\"`: to the "
        "devices' alone, over the network as it is",
    )
    base_port: Annotated[int, Field(ge=0, le=65000), ReadIf("run")] = Field(
        0,
        description="first TCP port of the draft servers, then of the stages, then, with other "
        "hosts, of the coordinator; 0: none (Linux; else any free ones)",
    )
    target: Model = Field(description="the model that is decoded")
    drafts: Annotated[tuple[DraftSection, ...], Field(min_length=1)] = Field(
        (DraftSection(),), description="the draft servers; default: one"
    )
    pipelines: Annotated[tuple[Pipeline, ...], Field(min_length=1)] = Field(
        description="the pipelines of the target's stages"
    )
    hosts: dict[str, HostSection] = Field({}, description="machines that roles share, by name")
    links: Links = Field(Links(), description="how long messages between the roles take")
    schedule: ScheduleSection = Field(description="the system, and its parameters")
    acceptance: Annotated[Acceptance | None, ReadIf("simulation"), ReadIf("drafted")] = Field(
        None, description="how often the draft is right, for a prediction"
    )
    sampling: SamplingSection = Field(SamplingSection(), description="how tokens are chosen")
    serving: ServingSection = Field(
        ServingSection(), description="how requests share draft servers and pipelines"
    )
    workload: Workload = Field(Workload(), description="the requests, and when they come")
    scale: ScaleSection = Field(ScaleSection(), description="what-if factors on inputs")
    run: RunSection = Field(RunSection(), description="how a run reaches its workers")
    faults: Annotated[FaultsSection, ReadIf("failing")] = Field(
        FaultsSection(), description="workers that fail; [[faults]] is short for [[faults.inject]]"
    )

    @classmethod
    def load(cls, path: Path | str, settings: Sequence[str] = ()) -> Self:
        """Read a file; ``settings`` are ``dotted.key=value`` with TOML values, as ``--set`` takes.

        Raises ``UserError``: names the file and the key.
        """
        path = Path(path)
        data = read_toml(path)
        refuse_other_files(data, path, *OTHER_FILES)
        for setting in settings:
            override_key(data, setting)
        return cls.of(data, path)

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path | str = Path("scenario")) -> Self:
        """Build the scenario that a file's content states.

        Args:
            path: file that this content stands for: errors name it, and file names in the content
                are relative to its folder.

        Raises ``UserError``: names ``path`` and the key.
        """
        path, data = Path(path), copied(dict(content))
        resolved = dict(data)
        if isinstance(faults := data.get("faults"), list | tuple):
            resolved["faults"] = {"inject": faults}  # what the list is short for
        take_acceptance(resolved, path)
        texts = {key: (cls, key, repr(value)) for key, value in resolved.items()}
        known = {key: _VALID[text] for key, text in texts.items() if text in _VALID}
        made = validated(cls, {**resolved, **known}, path)
        if len(_VALID) > MOST_VALID:
            _VALID.clear()
        _VALID.update({text: getattr(made, key) for key, text in texts.items()})
        made._path, made._content = path, data
        return made

    @property
    def path(self) -> Path:
        """Path of the scenario's file, for errors; file names are relative to its folder."""
        return self._path

    @property
    def content(self) -> dict[str, Any]:
        """The content of its file: the given keys, unchanged."""
        own: dict[str, Any] = copied(self._content)
        return own

    @property
    def workers(self) -> list[str]:
        """Addresses of the workers on other hosts that a run needs, each once."""
        named = [draft.worker for draft in self.drafts]
        named += [stage.worker for pipeline in self.pipelines for stage in pipeline.stages]
        return [*dict.fromkeys(worker for worker in named if worker is not None)]

    @property
    def key_file(self) -> Path | None:
        """Path of the key of these workers."""
        return None if self.run.key is None else self.path.parent / self.run.key

    def said(self, keys: Mapping[str, Any]) -> str:
        """Return a text of what is given at these keys; a value other than True: keys inside."""
        return self.model_dump_json(include={**keys}, exclude_unset=True)

    def with_(self, **changes: Any) -> Self:
        """Return a copy with other values by dotted key: ``with_(**{"schedule.tree_size": 40})``.

        Raises ``UserError``: names the file and the key.
        """
        data = self.content
        for key, value in changes.items():
            assign_key(data, key, copied(value), key)
        return type(self).of(data, self._path)

    def _repr_html_(self) -> str:
        """Return its devices, what binds them, and its file for notebooks."""
        screen = resolve_name("treepipe.results.described:scenario_screen")  # a room above
        text = html.escape(toml_text(self.content))
        return (
            f"{screen(self).html()}<details><summary>The file</summary><pre>{text}</pre></details>"
        )

    def number_at(self, key: str) -> float | None:
        """Return the number at a dotted key, defaults included; None if the key holds no number.

        A key for whole numbers has an ``int``, any other a ``float``.
        """
        place: Any = self.model_dump()
        try:
            for name in key.split("."):
                place = place[int(name) if isinstance(place, (list, tuple)) else name]
        except (LookupError, TypeError, ValueError):
            return None
        number = isinstance(place, (int, float)) and not isinstance(place, bool)
        return place if number else None


def refuse_other_files(data: Mapping[str, Any], path: Path, *tables: str) -> None:
    """Raise ``UserError`` if a file's content has a table that makes it another kind of file."""
    for table in tables:
        if table in data:
            raise UserError(f"{path}: is {OTHER_FILES[table]}")


def take_acceptance(data: dict[str, Any], path: Path) -> None:
    """Replace ``source = "profile"`` by the profile's content, a hit-ratio table or a pool, and the
    keys that stand beside its name."""
    section = data.get("acceptance")
    if not isinstance(section, dict) or section.get("source") != "profile":
        return
    name = section.get("name")
    beside = {key: value for key, value in section.items() if key not in ("source", "name")}
    if not isinstance(name, str):
        raise UserError(f"{path}: key acceptance.name is missing: the name of a profile")
    if given := {"file", "table"} & set(beside):
        raise UserError(
            f"{path}: key acceptance.{min(given)} has no place beside acceptance.name, whose "
            f"profile holds the recording or the table"
        )
    profile, file = find_acceptance(name, f"{path}: key acceptance.name", path.parent)
    if profile.pool is not None:
        pool = str((file.parent / profile.pool).resolve())
        data["acceptance"] = {
            "source": "pool",
            "file": pool,
            "block": profile.block,
            "hit_ratio": profile.hit_ratio,
        }
    else:
        data["acceptance"] = {"source": "hit_ratio", "table": profile.hit_ratio}
    if profile.origin.uncertainty is not None:
        data["acceptance"]["uncertainty"] = profile.origin.uncertainty
    data["acceptance"] |= beside


def override_key(data: dict[str, Any], text: str) -> None:
    """Change one key, written as for the command line's ``--set``; ``UserError`` if it is wrong."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"setting {text!r}: must look like key=value, e.g. schedule.tree_size=40")
    assign_key(data, key.strip(), toml_value(value), text)


def assign_key(data: dict[str, Any], key: str, value: Any, text: str) -> None:
    """Change a dotted key of a file's content.

    Where a device or link is a profile's name, a key inside it turns the name into a table with
    ``profile`` and that key.

    Args:
        text: the setting as the user wrote it, for errors.
    """
    *parents, last = names = key.split(".")
    if len(names) > MOST_PARTS:
        raise UserError(f"setting {text[:40]!r}…: its key has more than {MOST_PARTS} parts")
    listed = names[0] == "faults" and isinstance(data.get("faults"), list)
    if listed and parents and not names[1].isdigit():
        data["faults"] = {"inject": data["faults"]}  # what the list is short for
    place: Any = data
    for index, name in enumerate(parents):
        above = place
        step: Any = int(name) if isinstance(place, list) and name.isdigit() else name
        try:
            place = above[step] if isinstance(above, list) else above.setdefault(step, {})
        except (TypeError, IndexError):
            place = None
        named = parents[: index + 1]  # devices and links may be a profile's name
        may = name == "device" or named in (["links", "default"], ["links", "local"])
        if isinstance(place, str) and may:
            place = above[step] = {"profile": place}
        if not isinstance(place, (dict, list)):
            raise UserError(f"setting {text!r}: {'.'.join(parents[: index + 1])} is not a table")
    try:
        if isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    except (ValueError, IndexError):
        raise UserError(f"setting {text!r}: {last!r} is no index of the list") from None
