"""Sweeps: many scenarios from one file, simulated into a folder of Parquet files.

Invariants: a sweep is a sequence of scenarios that its file alone determines, each made when its
index is requested. A batch's file is either complete or missing, and its name determines its
scenarios, so the missing files are the remaining work; all have the same columns. Keys are
documented by their fields' descriptions and in ``docs/sweeps.md``.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from joblib import delayed  # type: ignore[import-untyped]
from pydantic import Field, field_validator, model_validator

from treepipe.core.errors import RunError, UnknownKeyError, UserError
from treepipe.extras import need_parquet
from treepipe.files.outputs import claim_results, write_file
from treepipe.files.reading import counted, read_json
from treepipe.files.section import Section, Seed, Several
from treepipe.files.toml_file import DottedGrid, copied, flattened, read_toml, validated
from treepipe.results.estimates import find_warmup, observe
from treepipe.results.metric import Floats
from treepipe.results.metrics import METRIC, METRICS
from treepipe.results.screen import ROWS, Screen, Shown
from treepipe.results.sheet import Column, Sheet, words
from treepipe.results.trace import Trace
from treepipe.scenario.scenario import (
    Scenario,
    assign_key,
    override_key,
    refuse_other_files,
)
from treepipe.sim.engine import run_jobs
from treepipe.sim.points import ROOMS, fingerprint
from treepipe.sim.predict import MOST, alike, likeness, predict_alike
from treepipe.version import __version__

SCHEMA = "treepipe.sweep/1"
MOST_SCENARIOS = 10_000_000
"""Most scenarios of a sweep."""
MANIFEST = "_sweep.json"
"""Name of the manifest; readers of Parquet folders skip names that begin with "_"."""
BATCHES = 16
"""Number of a sweep's files, unless its scenarios are simulated together, or are more than
``MOST`` per file."""


# --- the file -------------------------------------------------------------------------------------


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
        found = np.clip(np.floor(values), low, self.high).astype(int) if whole else values
        return list(found.tolist())


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
    def _varies_keys_of_a_scenario(self) -> SweepSection:
        if not self.keys:
            raise ValueError("gives neither grid nor latin_hypercube, nothing to vary")
        if bool(self.latin_hypercube) != (self.samples is not None):
            raise ValueError("latin_hypercube and samples go together; give both")
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


class _Whole(Section):
    """A file with the table, so that faults name their keys in full."""

    sweep: SweepSection


@dataclass(frozen=True)
class Sweep:
    """A sweep file: ``base`` is the content of its scenario.

    >>> sweep = Sweep.load("studies/sweeps/flowspec-links.toml")
    >>> len(sweep), [*sweep.changes(0)][:2]
    (200, ['schedule.tree_size', 'schedule.segment_tokens'])
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
        sweep = cls.of(data, path)
        for setting in settings:
            key = setting.partition("=")[0].strip()
            for varied in sweep.section.keys:
                if f"{varied}.".startswith(f"{key}.") or key.startswith(f"{varied}."):
                    raise UserError(f"setting {setting!r}: the sweep varies {varied} itself")
        return sweep

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
        sweep = cls(path, base, whole.sweep)
        factors = {f"grid.{key}": len(values) for key, values in whole.sweep.grid.items()}
        factors["samples"] = whole.sweep.samples or 1
        if (size := math.prod(factors.values())) > MOST_SCENARIOS:
            key = max(factors, key=lambda each: factors[each])
            raise UserError(
                f"{path}: table [sweep] asks for {counted(size)} scenarios, of which a sweep "
                f"has at most {MOST_SCENARIOS:,}; give fewer, first of sweep.{key}, which has "
                f"{factors[key]:,}"
            )
        _ = sweep.first  # refuses now, not after hours
        return sweep

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
        """The first valid one of the first combination, and of it with each other value of a key
        that is no number.

        Raises ``UserError``: a key is unknown, or none is valid.
        """
        grid = self.section.grid
        firsts = {key: values[0] for key, values in grid.items()}
        for key, each in self.section.latin_hypercube.items():
            firsts[key] = int(each.low) if each.low.is_integer() else each.low
        others = [
            {**firsts, key: value}
            for key, values in grid.items()
            for value in values[1:]
            if not isinstance(value, (int, float))
        ]
        found, fault = list[Scenario](), list[UserError]()
        for changes in (firsts, *others):
            content = changed(self.base, changes, self.path)
            try:
                found.append(Scenario.of(content, self.path))
            except UnknownKeyError:
                raise
            except UserError as error:
                fault.append(error)
        if not found:
            raise fault[0]
        return found[0]


def changed(base: Mapping[str, Any], changes: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a scenario's content with other values at dotted keys; raises ``UserError``."""
    content: dict[str, Any] = copied(dict(base))
    for key, value in changes.items():
        assign_key(content, key, copied(value), f"{path}: sweep: {key}")
    return content


# --- the folder -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class SweepResult(Shown):
    """The folder with the results of a sweep.

    Attributes:
        manifest: the content of its manifest.
        simulated: scenarios that were simulated now; the others were there.
        rows: number of rows in all files.
        reasons: number of refused scenarios by reason, the most frequent first.
    """

    out: Path
    sweep: Sweep = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)
    simulated: int = 0
    rows: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def scenarios(self) -> int:
        """Number of the sweep's scenarios."""
        return len(self.sweep)

    @property
    def refused(self) -> int:
        """Number of scenarios that were refused."""
        return sum(self.reasons.values())

    @property
    def files(self) -> list[Path]:
        """The finished batches' files, in order."""
        return sorted(self.out.glob("batch-*.parquet"))

    @property
    def batches(self) -> dict[Path, range]:
        """The indices of the scenarios of each batch, by file."""
        size, count = self.manifest["batch"], len(self.sweep)
        starts = enumerate(range(0, count, size))
        return {
            self.out / f"batch-{batch:06}.parquet": range(start, min(start + size, count))
            for batch, start in starts
        }

    def table(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows (of these columns) as a ``pyarrow.Table``, in the scenarios' order."""
        from pyarrow import concat_tables, parquet

        return concat_tables(
            parquet.read_table(file, columns=columns and list(columns)) for file in self.files
        )

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file ``treepipe.sweep/1``."""
        counts = {"rows": self.rows, "refused": self.refused, "reasons": dict(self.reasons)}
        first = {"answer": self.screen.answer, "simulated": self.simulated}
        return {**self.manifest, **first, **counts}

    @property
    def screen(self) -> Screen:
        there = self.scenarios - self.simulated
        kept = f" ({there} were there already)" if there else ""
        total = f"{self.scenarios} scenarios{kept}, {self.rows} rows in {self.out}"
        (best, left_out), fastest = self._fastest(), ""
        if best.rows:
            ms, *values = best.texts[0]
            fastest = f"; the least time between tokens, {ms} ms, is that of {', '.join(values)}"
        refused = [f"{n} scenarios refused: {reason}" for reason, n in self.reasons.items()]
        more = [f"{left_out} slower scenarios"] * (left_out > 0)
        return Screen(f"{total}{fastest}", best, warnings=refused, tables=[best], more=more)

    def _fastest(self) -> tuple[Sheet, int]:
        """Return the varied keys and the mean time between tokens of the fastest scenarios, and the
        number of the others."""
        heads = words(*self.sweep.section.keys)
        sheet = Sheet("the fastest", [Column("ms between tokens", shown=".4g"), *heads])
        if not self.files:
            return sheet, 0
        table = self.table(["scenario_index", METRIC])
        index, ms = (table[name].to_numpy() for name in table.column_names)
        timed = np.isfinite(ms)
        scenarios, places = np.unique(index[timed], return_inverse=True)
        means = np.bincount(places, ms[timed]) / np.bincount(places)
        for at in np.argsort(means, kind="stable")[:ROWS]:
            changes = self.sweep.changes(int(scenarios[at]))
            sheet.add(float(means[at]), *(f"{changes[key]}" for key in self.sweep.section.keys))
        return sheet, len(means) - len(sheet.rows)


def _opened(out: Path, sweep: Sweep, *, force: bool) -> SweepResult:
    """Open the folder, or make it; with ``force`` results of another sweep are deleted.

    Raises ``UserError``: it holds something else.
    """
    claim_results(out, MANIFEST, "sweep")
    swept = SweepResult(out, sweep, _manifest(sweep))
    there = read_json(out / MANIFEST) if (out / MANIFEST).exists() else swept.manifest
    fault = "this sweep by another treepipe, or with other profiles or files"
    if there.get("sweep") != swept.manifest["sweep"]:
        fault = "another sweep"
    elif there.get("inputs") == swept.manifest["inputs"]:
        fault = ""
    if fault and not force:
        raise UserError(
            f"--out {out}: holds results of {fault}; name another folder, or throw them away with "
            f"--force"
        )
    for file in swept.files if fault else ():
        file.unlink()
    if fault or not (out / MANIFEST).exists():
        write_file(out / MANIFEST, json.dumps(swept.manifest, indent=2) + "\n", "--out")
    return swept


def _manifest(sweep: Sweep) -> dict[str, Any]:
    stated = [dict(sweep.base), sweep.section.model_dump()]
    whole = json.dumps([*stated, sweep.hypercube], sort_keys=True, default=str)
    return {
        "schema": SCHEMA,
        "name": sweep.base.get("name"),
        "sweep": hashlib.sha256(whole.encode()).hexdigest(),
        "inputs": fingerprint(
            [*stated, sweep.first.model_dump()], sweep.path.parent, (*ROOMS, "sweeps")
        ),
        "scenarios": len(sweep),
        "batch": MOST if sweep.is_alike else min(MOST, math.ceil(len(sweep) / BATCHES)),
        "varied": sweep.section.keys,
        "scenario": sweep.base,
        "treepipe": __version__,
    }


# --- the work -------------------------------------------------------------------------------------


def carry_out(
    sweep: Sweep, out: Path, say: Callable[[str, int], None], *, force: bool = False
) -> SweepResult:
    """Simulate a sweep's missing scenarios into the folder ``out``, on the current engine. Each
    batch is written as soon as it is done.

    Raises:
        UserError: the folder holds something else, or the extra 'sweep' is not installed.
        RunError: a file could not be written, or a cluster failed.
    """
    need_parquet()
    swept = _opened(out, sweep, force=force)
    missing = {file: own for file, own in swept.batches.items() if not file.exists()}
    simulated = sum(map(len, missing.values()))
    say(f"{simulated} scenarios", simulated)
    varied = {**sweep.section.grid, **sweep.hypercube}
    kinds = {key: _kind(values) for key, values in varied.items()}
    jobs = (
        delayed(_batch)(file, sweep.base, {n: sweep.changes(n) for n in own}, sweep.path, kinds)
        for file, own in missing.items()
    )
    for file, data in run_jobs(jobs, ordered=False, together=1):
        write_file(file, data, "--out")
        say("", len(missing[file]))
    errors = swept.table(["error"])["error"].to_pylist()
    reasons = Counter(each for each in errors if each is not None)
    counts = simulated, len(errors), dict(reasons.most_common())
    return SweepResult(out, sweep, swept.manifest, *counts)


def _kind(values: Sequence[Any]) -> str:
    """Return the one type of Parquet that holds all values; others than numbers are texts.

    >>> _kind([1, 2]), _kind([1, 0.5]), _kind([True, False]), _kind([1, "auto"])
    ('int64', 'double', 'bool', 'string')
    """
    types = {type(value) for value in values}
    if types == {bool}:
        return "bool"
    if types == {int} and all(-(2**63) <= value < 2**63 for value in values):
        return "int64"
    return "double" if types <= {int, float} else "string"


def _cell(value: Any, kind: str) -> Any:
    """Convert a value to its column's type; in a text column, other values are written as JSON."""
    if kind == "string" and not isinstance(value, str):
        return json.dumps(value, default=str)
    return float(value) if kind == "double" else value


def _batch(
    file: Path,
    base: Mapping[str, Any],
    scenarios: Mapping[int, Mapping[str, Any]],
    path: Path,
    kinds: Mapping[str, str],
) -> tuple[Path, bytes]:
    """Return a batch's file and its content."""
    rows = []
    found = batch_rows(base, [*scenarios.values()], path)
    for (index, changes), replications in zip(scenarios.items(), found, strict=True):
        row = {key: _cell(value, kinds[key]) for key, value in changes.items()}
        rows += [{**row, "scenario_index": index, **each} for each in replications]
    return file, _parquet(kinds, rows)


def _parquet(kinds: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the rows as a Parquet file with all of a sweep's columns."""
    import pyarrow
    from pyarrow import parquet

    types = {
        "scenario_index": "int64",
        "replication": "int64",
        "error": "string",
        "warnings": pyarrow.list_(pyarrow.string()),
        "utilization": pyarrow.map_(pyarrow.string(), pyarrow.float64()),
        **kinds,
    }
    fields = [pyarrow.field(name, kind) for name, kind in types.items()]
    fields += [
        pyarrow.field(name, "double", metadata={"unit": each.unit})
        for name, each in METRICS.items()
    ]
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(fields)), file)
    return file.getvalue()


def batch_rows(
    base: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], path: Path
) -> list[list[dict[str, Any]]]:
    """Return the rows of each scenario's replications, without the keys.

    A metric is that of one run, as ``treepipe simulate`` computes it, without the warm-up of all
    runs. The row of a refused scenario has no number of a replication.
    """
    rows, scenarios = dict[int, list[dict[str, Any]]](), dict[int, Scenario]()
    for number, each in enumerate(changes):
        try:
            scenarios[number] = Scenario.of(changed(base, each, path), path)
        except UserError as error:
            rows[number] = _refused(error, path)
    numbers = [*scenarios]
    for group in alike([*scenarios.values()]):
        members = [numbers[each] for each in group]
        predicted = predict_alike([scenarios[number] for number in members])
        for number, traces in zip(members, predicted, strict=True):
            rows[number] = _scenario_rows(scenarios[number], traces)
    return [rows[number] for number in range(len(changes))]


def _scenario_rows(
    scenario: Scenario, traces: list[Trace] | UserError | RunError
) -> list[dict[str, Any]]:
    if isinstance(traces, Exception):
        return _refused(traces, scenario.path)
    try:
        warmup = scenario.workload.warmup_requests
        if warmup is None:
            warmup = find_warmup(traces)[0]
        return [{**_row(trace, warmup), "replication": run} for run, trace in enumerate(traces)]
    except UserError as error:
        return _refused(error, scenario.path)


def _refused(error: Exception, path: Path) -> list[dict[str, Any]]:
    return [{"error": str(error).removeprefix(f"{path}: "), "replication": None}]


def _row(trace: Trace, warmup: int) -> dict[str, Any]:
    """Make the row of one replication."""
    figures, warnings = None, trace.warnings
    if trace.figures is not None and not warmup:
        figures = trace.figures()
    if figures is None:
        estimates = observe([trace], warmup, batches=1)
        warnings = warnings + estimates.warnings
        figures = _single(estimates.metrics), _single(estimates.utilization)
    metrics, shares = figures
    return {**metrics, "utilization": sorted(shares.items()), "warnings": sorted({*warnings})}


def _single(values: Mapping[str, Floats]) -> dict[str, float]:
    return {name: float(each.item()) for name, each in values.items()}
