"""The sweep file: a scenario, and the values of keys to simulate.

Invariant: a sweep is a sequence of scenarios that its file alone determines. Each scenario is made
when its index is requested, so a sweep of any length needs no memory. Keys are documented by their
fields' descriptions and in ``docs/sweeps.md``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from treepipe.core.errors import UnknownKeyError, UserError
from treepipe.files.reading import counted
from treepipe.files.section import Section, Seed, Several
from treepipe.files.toml_file import DottedGrid, copied, flattened, read_toml, validated
from treepipe.results.metric import Floats
from treepipe.scenario.scenario import (
    Scenario,
    assign_key,
    override_key,
    refuse_other_files,
)
from treepipe.sim.predict import likeness

MOST_SCENARIOS = 10_000_000
"""Most scenarios of a sweep."""


class Dimension(Section):
    """The range of one key of a Latin hypercube."""

    low: float = Field(allow_inf_nan=False)
    high: float = Field(allow_inf_nan=False)
    scale: Literal["linear", "log"] = Field(
        "linear", description='"log": as many samples between 1 and 10 as between 10 and 100'
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Dimension:
        if not self.low < self.high:
            raise ValueError(f"low = {self.low:g} must be less than high = {self.high:g}")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"low = {self.low:g} must be positive where scale is 'log'")
        return self

    def at(self, shares: Floats, *, whole: bool) -> list[Any]:
        """Return values at shares [0, 1) of the range; whole numbers have equal parts of it."""
        low, high = self.low, self.high + 1 if whole else self.high
        if self.scale == "log":
            values = low * (high / low) ** shares
        else:
            values = low + (high - low) * shares
        if whole:
            values = np.clip(np.floor(values), low, self.high)
        return [int(value) if whole else float(value) for value in values]


class SweepSection(Section):
    """The table ``[sweep]``."""

    grid: DottedGrid = Field({}, description="dotted key -> values: all combinations")
    latin_hypercube: dict[str, Dimension] = Field({}, description="dotted key -> its range")
    samples: Several | None = Field(None, description="of the hypercube, in each combination")
    seed: Seed = Field(0, description="of the hypercube; the scenario's own is another key")

    @field_validator("latin_hypercube", mode="before")
    @classmethod
    def _dotted_ranges(cls, ranges: Any) -> Any:
        def is_range(value: Any) -> bool:
            return not isinstance(value, Mapping) or bool({"low", "high"} & set(value))

        return dict(flattened(ranges, is_range)) if isinstance(ranges, Mapping) else ranges

    @model_validator(mode="after")
    def _varies_something(self) -> SweepSection:
        if not self.keys:
            raise ValueError("gives neither grid nor latin_hypercube, nothing to vary")
        if bool(self.latin_hypercube) != (self.samples is not None):
            raise ValueError("latin_hypercube and samples go together; give both")
        return self

    @model_validator(mode="after")
    def _said_once(self) -> SweepSection:
        for a, b in itertools.combinations(sorted(self.keys), 2):
            if a == b or b.startswith(f"{a}."):
                raise ValueError(f"{a} and {b} contradict each other: one holds the other")
        for key in self.keys:
            if key.split(".")[0] in ("sweep", "search"):
                raise ValueError(f"{key} is no key of a scenario")
        return self

    @property
    def keys(self) -> list[str]:
        """The varied keys, the grid's first."""
        return [*self.grid, *self.latin_hypercube]


@dataclass(frozen=True)
class Sweep:
    """A sweep file: ``base`` is the content of its scenario.

    >>> sweep = Sweep.of({
    ...     "name": "sizes",
    ...     "target": {"layers": 8},
    ...     "pipelines": [{"stages": [{"device": "emulated-20ms", "count": 4}]}],
    ...     "schedule": {"name": "pp"},
    ...     "sweep": {"grid": {"workload.new_tokens": [8, 16], "seed": [0, 1, 2]}},
    ... })
    >>> len(sweep), sweep.changes(4)
    (6, {'workload.new_tokens': 16, 'seed': 1})
    """

    path: Path
    base: Mapping[str, Any]
    section: SweepSection

    @classmethod
    def load(cls, path: Path | str, settings: Sequence[str] = ()) -> Sweep:
        """Read a file; ``settings`` as ``Scenario.load`` takes them.

        Raises ``UserError``: names the file and the key.
        """
        path = Path(path)
        data = read_toml(path)
        for setting in settings:
            override_key(data, setting)
        found = cls.of(data, path)
        for setting in settings:
            key = setting.partition("=")[0].strip()
            for varied in found.section.keys:
                if f"{varied}.".startswith(f"{key}.") or key.startswith(f"{varied}."):
                    raise UserError(f"setting {setting!r}: the sweep varies {varied} itself")
        return found

    @classmethod
    def of(cls, content: Mapping[str, Any], path: Path | str = Path("sweep")) -> Sweep:
        """Build the sweep that a file's content states; file names are relative to ``path``'s
        folder.

        Raises ``UserError``: a key is unknown, or no scenario of the sweep is valid.
        """
        path, base = Path(path), copied(dict(content))
        refuse_other_files(base, path, "search")
        if "sweep" not in base:
            raise UserError(f"{path}: has no table [sweep], which says what is varied")
        whole = validated(_Whole, {"sweep": base.pop("sweep")}, path)
        found = cls(path, base, whole.sweep)
        size = found._combinations * (whole.sweep.samples or 1)
        if size > MOST_SCENARIOS:
            factors = {f"grid.{key}": len(values) for key, values in whole.sweep.grid.items()}
            factors["samples"] = whole.sweep.samples or 1
            key = max(factors, key=lambda each: factors[each])
            raise UserError(
                f"{path}: table [sweep] asks for {counted(size)} scenarios, of which a sweep "
                f"has at most {MOST_SCENARIOS:,}; give fewer, first of sweep.{key}, which has "
                f"{factors[key]:,}"
            )
        _ = found.first  # refuses now, not after hours
        return found

    def __len__(self) -> int:
        return self._combinations * (self.section.samples or 1)

    @property
    def _combinations(self) -> int:
        return math.prod(len(values) for values in self.section.grid.values())

    def changes(self, index: int) -> dict[str, Any]:
        """Return the varied keys of the scenario at an index: all combinations of the grid with the
        first sample, the last key changing first, then all with the second one, and so on."""
        sample, left = divmod(index, self._combinations)
        found = {key: values[sample] for key, values in self.hypercube.items()}
        for key, values in reversed(self.section.grid.items()):
            left, place = divmod(left, len(values))
            found[key] = values[place]
        return dict(reversed(found.items()))

    @property
    def is_alike(self) -> bool:
        """Whether its scenarios differ in durations alone: the last one has another value of every
        varied key than the first one."""
        ends = [changed(self.base, self.changes(each), self.path) for each in (0, len(self) - 1)]
        try:
            return len({likeness(Scenario.of(content, self.path)) for content in ends}) == 1
        except UserError:
            return False

    @cached_property
    def hypercube(self) -> dict[str, list[Any]]:
        """The samples of each key: one in each of equally many equal parts of its range (McKay,
        Beckman and Conover 1979)."""
        ranges = self.section.latin_hypercube
        if not ranges:
            return {}
        from scipy.stats import qmc

        generator = np.random.default_rng(self.section.seed)
        shares = qmc.LatinHypercube(len(ranges), seed=generator).random(self.section.samples)
        return {
            key: each.at(shares[:, column], whole=isinstance(self.first.number_at(key), int))
            for column, (key, each) in enumerate(ranges.items())
        }

    @cached_property
    def first(self) -> Scenario:
        """The first valid one of ``variants``.

        Raises ``UserError``: a key is unknown, or no variant is valid.
        """
        found, fault = None, None
        for content in self.variants():
            try:
                scenario = Scenario.of(content, self.path)
                found = found or scenario
            except UnknownKeyError:
                raise
            except UserError as error:
                fault = fault or error
        if found is None:
            assert fault is not None  # there is at least one variant
            raise fault
        return found

    def variants(self) -> Iterator[dict[str, Any]]:
        """Yield contents with all varied keys: the first combination, then it with each other value
        of a key that is no number."""
        firsts = {key: values[0] for key, values in self.section.grid.items()}
        firsts |= {key: _given(each.low) for key, each in self.section.latin_hypercube.items()}
        yield changed(self.base, firsts, self.path)
        for key, values in self.section.grid.items():
            for value in values[1:]:
                if not isinstance(value, (int, float)):
                    yield changed(self.base, {**firsts, key: value}, self.path)

    @cached_property
    def digest(self) -> str:
        """A fingerprint of the sweep's whole content, samples included."""
        said = [dict(self.base), self.section.model_dump(), self.hypercube]
        return hashed(said)


class _Whole(Section):
    """A file with the table, so that faults name their keys in full."""

    sweep: SweepSection


def changed(base: Mapping[str, Any], changes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a scenario's content with other values at dotted keys; raises ``UserError``."""
    content: dict[str, Any] = copied(dict(base))
    for key, value in changes.items():
        assign_key(content, key, copied(value), f"{path}: sweep: {key}")
    return content


def hashed(content: Any) -> str:
    """Return a fingerprint of a file's content, whatever the order of its keys."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _given(value: float) -> float:
    """Return a number as a file would state it."""
    return int(value) if value.is_integer() else value
