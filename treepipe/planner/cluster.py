"""The cluster file (a scenario with an open schedule, and a search) and its loading;
``docs/planning.md`` has every key."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args

from pydantic import Field, create_model, field_validator, model_validator

from treepipe.core.errors import UserError
from treepipe.core.layers import PartitionRule
from treepipe.core.schedules import systems
from treepipe.files.reading import suggestion
from treepipe.files.section import MOST, Positive, Section, Several
from treepipe.files.toml_file import DottedGrid, read_toml
from treepipe.profiles.library import load_device, profile_path
from treepipe.profiles.schema import AnyDevice, Price, Share
from treepipe.results.metrics import GOALS, METRIC, METRICS, PRICES
from treepipe.results.statistics import SHARE
from treepipe.scenario.scenario import Scenario, override_key, refuse_other_files
from treepipe.scenario.schema import Replay, ScheduleName, ScheduleSection

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self

if TYPE_CHECKING:
    Goal: TypeAlias = str
    FrontGoal: TypeAlias = str
else:
    Goal = Literal[GOALS]
    FrontGoal = Literal[GOALS + tuple(PRICES)]
"""Goals by which plans are compared: figures, and the price of all devices."""
Placement: TypeAlias = Literal["own", "shared", "stage"]
Role: TypeAlias = Literal["stage", "draft"]
OF_PROMISES = ("goodput_requests_s", "slo_attainment")
"""Goals that ``serving.slo`` defines."""
SHORTER, SHORTEST = 3, 16
"""Divisor of a text's tokens in the first rung, and the fewest that it keeps: some rounds."""
RUNS = 18
"""Default runs of the last rung."""


class _Limits(Section):
    """Limits besides memory: for every goal an upper bound if less is better, else a lower."""

    memory_share: Share = Field(1.0, description="of each stage's memory that may be taken")
    price_usd_per_hour: Positive | None = Field(None, description="of all devices together")
    price_usd: Positive | None = Field(None, description="of all devices that are bought")

    @property
    def of_metrics(self) -> dict[str, float]:
        """The bounds of simulated figures, by metric."""
        given = {name: getattr(self, name) for name in GOALS}
        return {name: bound for name, bound in given.items() if bound is not None}


if TYPE_CHECKING:
    Limits = _Limits
else:
    _BOUNDS = {name: Share if METRICS[name].range == SHARE else Positive for name in GOALS}
    Limits = create_model(
        "Limits", __base__=_Limits, **{name: (kind | None, None) for name, kind in _BOUNDS.items()}
    )


class Kind(Section):
    """A kind of device that can be bought."""

    device: AnyDevice
    name: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="in tables; default: the device's profile"
    )
    price_usd: Positive | None = Field(
        None, description="of one, to buy it; default: the published one of the device's profile"
    )
    most: Several | None = Field(None, description="so many can be had; default: no limit")
    roles: Annotated[tuple[Role, ...], Field(min_length=1)] = Field(
        get_args(Role), description="what it is bought for"
    )

    @property
    def label(self) -> str:
        """The name in tables; empty if nothing names the kind."""
        profile = self.device if isinstance(self.device, str) else None
        return self.name or profile or getattr(self.device, "profile", None) or ""


class Devices(Section):
    """The table ``[search.devices]``: devices to buy, instead of the file's own."""

    kinds: Annotated[tuple[Kind, ...], Field(min_length=1)]
    counts: Annotated[tuple[Several, ...], Field(min_length=1)] = Field(
        description="stages of a pipeline that are tried"
    )
    mixed: bool = Field(False, description="a pipeline's stages may be of several kinds")

    @model_validator(mode="after")
    def _can_be_told_apart(self) -> Devices:
        labels = [kind.label for kind in self.kinds]
        if "" in labels:
            raise ValueError("key search.devices.kinds: a device without a profile needs a name")
        if len({*labels}) < len(labels):
            raise ValueError("key search.devices.kinds: two kinds have one name; give each a name")
        if not any("stage" in kind.roles for kind in self.kinds):
            raise ValueError("key search.devices.kinds: none has the role 'stage'")
        return self


class Search(Section):
    """The table ``[search]``."""

    goal: Goal = "time_between_tokens_ms"
    schedules: Annotated[tuple[ScheduleName, ...], Field(min_length=1)] = tuple(systems())
    partitions: Annotated[tuple[PartitionRule, ...], Field(min_length=1)] = get_args(PartitionRule)
    grid: DottedGrid = Field({}, description="dotted key -> values, instead of defaults")
    limits: Limits = Limits()
    front: tuple[FrontGoal, ...] = Field(
        (), description="plans that no other one beats in all of these survive the rungs, too"
    )
    drafts: tuple[Placement, ...] = Field(
        (), description="where the draft works; default: where the file has it"
    )
    devices: Devices | None = Field(None, description="what may be bought")
    splits: bool | None = Field(
        None, description="try other splits of the devices; default: where nothing else is given"
    )
    first_runs: Annotated[int, Field(ge=2, le=MOST)] = Field(2, description="of the first rung")
    keep: Annotated[int, Field(ge=2, le=1000)] = Field(
        3, description="one of so many of a schedule's candidates survives a rung"
    )
    cases: Annotated[int, Field(ge=0, le=10_000)] = Field(
        20, description="in which inputs that are estimates vary together; 0: none"
    )

    @field_validator("cases")
    @classmethod
    def _spread(cls, cases: int) -> int:
        if cases == 1:
            raise ValueError("one case has no spread; 0 tries none")
        return cases

    @property
    def weighed(self) -> tuple[FrontGoal, ...]:
        """The goals whose front survives the rungs; with purchases, by default goal and price."""
        if self.front or self.devices is None:
            return self.front
        priced = all(kind.price_usd is not None for kind in self.devices.kinds)
        return (self.goal, "price_usd" if priced else "price_usd_per_hour")

    @model_validator(mode="after")
    def _prices_are_known(self) -> Search:
        kinds = self.devices.kinds if self.devices is not None else ()
        needs = {
            "search.limits.price_usd": self.limits.price_usd is not None,
            "search.front": "price_usd" in self.front,
        }
        for key, needed in needs.items():
            if needed and not kinds:
                raise ValueError(f"key {key}: price_usd is of devices in search.devices.kinds")
            lacking = [kind.label for kind in kinds if kind.price_usd is None]
            if needed and lacking:
                raise ValueError(f"key {key}: {', '.join(lacking)} states no price_usd")
        return self

    @model_validator(mode="after")
    def _laid_out_once(self) -> Search:
        """Refuse grid keys in tables that a layout replaces, which would change the purchase."""
        if self.splits and self.devices is not None:
            raise ValueError("key search.splits contradicts search.devices, which lays devices out")
        pipelines = self.devices or self.splits
        replaced = {"drafts": self.drafts or pipelines, "pipelines": pipelines}
        for key in self.grid:
            table, name = key.split(".")[0], key.split(".")[-1]
            changes = name in ("device", "host", "count", "stages") or ".device." in key
            if replaced.get(table) and (changes or key == table):
                by = next(
                    f"search.{k}" for k in ("devices", "splits", "drafts") if getattr(self, k)
                )
                raise ValueError(f"key search.grid.{key} contradicts {by}, which says it already")
        return self

    @model_validator(mode="after")
    def _schedule_keys_exist(self) -> Search:
        names = sorted({*ScheduleSection.model_fields} - {"name"})
        for key in self.grid:
            table, _, name = key.partition(".")
            if table == "schedule" and name not in names:
                hint = suggestion(name, names)
                raise ValueError(f"key search.grid.{key} is unknown; {hint}")
            if table == "search":
                raise ValueError(f"key search.grid.{key}: the search itself is not searched")
            if key in ("name", "seed", "runs"):
                raise ValueError(f"key search.grid.{key}: all candidates are simulated alike")
        return self


class Cluster(Scenario):
    """The whole file; ``schedule`` holds the keys that all candidates share.

    A schedule that the file names is the only one searched, unless ``search.schedules`` says
    otherwise.
    """

    search: Search = Search()

    @classmethod
    def load(cls, path: Path | str, settings: Sequence[str] = ()) -> Self:
        path = Path(path)
        data = read_toml(path)
        refuse_other_files(data, path, "sweep")
        schedule = data.get("schedule")
        scenario = "search" not in data and isinstance(schedule, Mapping) and "name" in schedule
        for setting in settings:
            override_key(data, setting)
        if scenario and "search" not in data:
            raise UserError(
                f"{path}: is a scenario (it names its schedule and has no table [search]), not a "
                f"cluster file; treepipe simulate takes it, and a [search] says what else to try"
            )
        return cls.of(data, path)

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path | str = Path("cluster")) -> Self:
        data = copy.deepcopy(dict(content))
        data.setdefault("runs", RUNS)
        tables = [data.get(key, {}) for key in ("schedule", "search")]
        if not all(isinstance(table, dict) for table in tables):
            raise UserError(f"{path}: keys schedule and search are tables")
        schedule, search = tables[0], dict(tables[1])
        if "name" in schedule:
            search.setdefault("schedules", [schedule["name"]])
        search = _with_prices(search, Path(path))
        any_name = next(iter(systems()))  # required; replaced in every candidate
        whole = {**data, "search": search, "schedule": {"name": any_name, **schedule}}
        made = super().of(whole, path)
        made._content = data
        return made

    @property
    def fixed(self) -> set[str]:
        """Keys of the schedule that are fixed for all candidates."""
        return set(self._content.get("schedule", {})) - {"name"}

    @property
    def first_tokens(self) -> int | None:
        """How many tokens of each text are simulated at first, and in cases of uncertain inputs;
        None: all, where the goal or a limit depends on their number."""
        search, tokens = self.search, self.workload.new_tokens
        alone = search.goal == METRIC and not (search.limits.of_metrics or search.weighed)
        if not alone or not isinstance(tokens, int) or self.workload.arriving:
            return None
        return max(tokens // SHORTER, SHORTEST) if tokens >= 2 * SHORTEST else None

    @model_validator(mode="after")
    def _can_be_searched(self) -> Cluster:
        goals = {
            "search.goal": [self.search.goal],
            "search.front": self.search.front,
            "search.limits": self.search.limits.of_metrics,
        }
        for key, names in goals.items():
            for name in names:
                if name in OF_PROMISES and self.serving.slo is None:
                    raise ValueError(f"key {key}: {name} needs serving.slo, what is promised")
        if self.runs < self.search.first_runs:
            raise ValueError(
                f"key runs = {self.runs}: a ranking needs at least search.first_runs = "
                f"{self.search.first_runs} runs"
            )
        if self.faults.inject:
            raise ValueError(
                "key faults.inject: no worker fails in a search; treepipe plan --robust tells what "
                "a loss does to the best plan, treepipe simulate what these do to a scenario"
            )
        if isinstance(self.acceptance, Replay):
            raise ValueError(
                "key acceptance.source = 'replay': a search draws texts anew in every run; use "
                "'pool', 'hit_ratio', 'stated', 'bernoulli' or 'profile'"
            )
        drafting = [name for name in self.search.schedules if systems()[name].drafts]
        if self.acceptance is None and drafting:
            raise ValueError(f"key acceptance is missing; {', '.join(drafting)} need it")
        for key in self.search.grid:
            name = key.removeprefix("schedule.")
            read = (systems()[each].keys for each in self.search.schedules)
            if name != key and not any(name in keys for keys in read):
                raise ValueError(f"key search.grid.{key} is read by no schedule that is searched")
        return self


def published_price(device: Any, asked_by: str, base: Path) -> Price | None:
    """Return the published purchase price of a device's profile, or None if there is none.

    Raises ``UserError`` if the profile does not exist.
    """
    name = device.get("profile") if isinstance(device, Mapping) else device
    if not isinstance(name, str):
        return None
    return load_device(profile_path("devices", name, asked_by, base)).price


def _with_prices(search: dict[str, Any], path: Path) -> dict[str, Any]:
    """Add published prices to kinds that state none, neither to buy nor by the hour. Malformed
    tables are left to validation."""
    devices = search.get("devices")
    if not isinstance(devices, Mapping):
        return search
    kinds = devices.get("kinds")
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, Mapping) for kind in kinds):
        return search
    priced = []
    for index, kind in enumerate(kinds):
        device, price = kind.get("device"), None
        hourly = isinstance(device, Mapping) and "price_usd_per_hour" in device
        if "price_usd" not in kind and not hourly:
            key = f"{path}: key search.devices.kinds.{index}.device"
            price = published_price(device, key, path.parent)
        priced.append(kind if price is None else {**kind, "price_usd": price.amount})
    return {**search, "devices": {**devices, "kinds": priced}}
