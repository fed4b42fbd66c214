"""The study ``real-time``: this machine without emulation, calibrated, predicted, then run.

Draft and two stages are processes of this machine. The device profile is measured with one process
alone, and acceptance of each kind of prompts is recorded from other prompts of that kind. Then each
of several turns measures the host's profile with ``pp`` and ``naive_pp`` of the same workers on
other prompts, predicts every schedule, and runs it on prompts of no earlier turn: a shared
machine's speed changes within seconds, so calibration and runs must be close together. The heavy
pair is the bundled one, widened so that it gives the same texts and takes milliseconds a pass.
Plans are also searched with it, and run beside ``generate()`` (``real_speed.py``).

Invariant: errors are raw, and every turn counts. Figures corrected by a measurement of the run
itself have their own names, summaries leave out schedules that calibration ran, and the signed mean
accompanies every median.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from matplotlib.figure import Figure

from treepipe.core.schedules import systems
from treepipe.executor.measure.calibrate import calibrate_acceptance, calibrate_device
from treepipe.executor.measure.in_place import SCHEDULES as CALIBRATED_WITH
from treepipe.executor.measure.requests import AcceptanceRequest, DeviceRequest, RunRequest
from treepipe.executor.measure.run import calibrate_run
from treepipe.executor.models.prompts import load_texts
from treepipe.executor.models.widening import write_wider
from treepipe.files.toml_file import read_toml, toml_text
from treepipe.profiles.library import CALIBRATION, HELD_OUT, REFERENCE
from treepipe.progress import Progress
from treepipe.results.plots import BLACK, BLUE, ORANGE, clean, whiskers
from treepipe.results.sheet import Sheet, columns
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.studies.real_speed import Speeds, speeds
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.comparison import Case, compare
from treepipe.validation.judgement import Row, faults_of, warnings_of
from treepipe.validation.validation import busy_shares, spread

NAME = "real-time"
SCHEDULES: tuple[str, ...] = tuple(systems())
_FILE = read_toml(Path(__file__).with_name("real-time.toml"))
KEYS: Mapping[str, Any] = _FILE["keys"]
ROWS = (*range(1, 23), 24, 28, 32, 48, 64)
"""Measured numbers of rows of a pass: all that segments of such trees have. The time of a product
is a staircase (on an AMD EPYC 15 rows take as long as 18), which powers of two would hide."""
CONTEXT = 64
"""Context length, close to the texts' length. One table visits each of its points often; otherwise
a machine that is slow for a few seconds distorts single points."""
FITTED = (
    f"the host's terms are fitted to runs of {' and '.join(CALIBRATED_WITH)} on other prompts: "
    f"these schedules are left out of medians, means and worst errors"
)
ALIKE = ("starsd", "eagle")
ERRORS = ("error", "duration_error", "drift_corrected_duration_error", "utilization_error")


@dataclass(frozen=True, slots=True)
class Pair:
    """The bundled pair with feed-forward layers ``times`` as wide (``widening.py``)."""

    name: str
    times: int
    draft_times: int


HEAVY, LIGHT = Pair("heavy", 12, 4), Pair("light", 1, 1)


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job: pairs x schedules x kinds of prompts, and seconds of each calibration
    (of the host in each turn).

    Attributes:
        requests: number of held-out prompts in each turn, which no earlier turn had.
        stages: numbers of stages; the host's terms are fitted on the first.
        cuts: other partitions, as layers of each stage.
        plans: number of plans of different schedules to run beside ``generate()`` with the first
            pair, per number of stages.
        rounds: number of times that each plan continues its prompts.
        turns: number of times that the host is calibrated, and each schedule predicted and run.
        calibrated_on: prompts for acceptance and for the host's terms; None: the calibration
            prompts, of which acceptance takes its kind.
    """

    pairs: Sequence[Pair] = (HEAVY, LIGHT)
    schedules: Sequence[ScheduleName] = SCHEDULES
    kinds: Sequence[str] = ("code", "prose")
    requests: int = 3
    new_tokens: int = 32
    device_seconds: float = 30.0
    host_seconds: float = 12.0
    stages: Sequence[int] = (2,)
    cuts: Sequence[Sequence[int]] = ()
    plans: int = 5
    rounds: int = 3
    turns: int = 3
    calibrated_on: str | None = None


SHORT = Settings()
FULL = Settings(device_seconds=90.0, host_seconds=30.0, stages=(2, 3), cuts=((3, 5),))


@dataclass(frozen=True, slots=True)
class Repeated:
    """One case, predicted and run in several turns with different prompts: times are means over the
    turns, and errors those of the means."""

    rows: Sequence[Row]

    @property
    def calibrated_with(self) -> bool:
        """Whether the host's terms were fitted to runs of the same schedule."""
        return self.rows[0].schedule in CALIBRATED_WITH

    @property
    def predicted(self) -> Interval:
        return Interval.averaged([row.predicted for row in self.rows])

    @property
    def measured(self) -> float:
        return fmean(row.measured for row in self.rows)

    @property
    def error(self) -> float:
        return self.predicted.mean / self.measured - 1

    @property
    def duration_error(self) -> float:
        return fmean(row.replayed for row in self.rows) / self.measured - 1

    @property
    def drift_corrected_duration_error(self) -> float:
        return fmean(row.replayed * row.drift for row in self.rows) / self.measured - 1

    @property
    def drift(self) -> float:
        return fmean(row.drift for row in self.rows)

    @property
    def utilization_error(self) -> float:
        """Predicted less measured busy share, of the device with the largest difference."""
        turns = [_shares_apart(row) for row in self.rows]
        return max((fmean(turn[name] for turn in turns) for name in turns[0]), key=abs)


def _shares_apart(row: Row) -> dict[str, float]:
    """Return predicted less measured busy share of every device."""
    return {name: each.predicted - each.measured for name, each in busy_shares(row).items()}


def study(settings: Settings, say: Progress) -> StudyResult:
    """Calibrate, predict and run each pair."""
    rows: dict[str, Repeated] = {}
    speed: Speeds | None = None
    with TemporaryDirectory() as folder:
        bench = Bench(settings, Path(folder), say)
        for pair in settings.pairs:
            bare, found = bench.on_this_device(pair), dict[str, list[Row]]()
            for turn in range(settings.turns):
                base = bench.in_place(bare, turn)
                for row in compare(bench.cases(pair, base, turn), say):
                    found.setdefault(row.label, []).append(row)
            rows |= {label: Repeated(turns) for label, turns in found.items()}
            if settings.plans and speed is None:
                workload = bench.workload(f"{HELD_OUT}:{settings.kinds[0]}")
                calibrated = base.with_(runs=4, workload=workload)
                speed = speeds(calibrated, settings.plans, settings.rounds, say)
    result = StudyResult(NAME, _entries(rows), [_partitions(settings.pairs, rows), _sheet(rows)])
    for pair in settings.pairs:
        result.rows += _summary(pair, rows)
        result.findings += _findings(pair, rows)
    result.findings.append(FITTED)
    if speed:
        result.rows += speed.entries
        result.tables.append(speed.sheet)
        result.findings.append(speed.finding)
    result.figures[NAME] = _figure(rows)
    warnings = warnings_of({name: each.rows[0] for name, each in rows.items()})
    result.warnings = {text.replace(f"{folder}/", ""): own for text, own in warnings.items()}
    result.faults = faults_of(_turns(rows))
    return result


# --- the runs ------------------------------------------------------------------------------------


class Bench:
    """Calibration of this machine into a folder: prompts and acceptance first, then each pair."""

    def __init__(self, settings: Settings, folder: Path, say: Progress) -> None:
        self._settings, self._folder, self._say = settings, folder, say
        for kind in settings.kinds:
            prompts = settings.calibrated_on or f"{CALIBRATION}:{kind}"
            length, out = [f"new_tokens={settings.new_tokens}"], folder / _acceptance(kind)
            calibrate_acceptance(AcceptanceRequest(prompts=prompts, settings=length, out=out), say)
            texts = itertools.cycle(load_texts(f"{HELD_OUT}:{kind}", folder))
            for turn in range(settings.turns):
                own = list(itertools.islice(texts, settings.requests))
                (folder / _prompts(kind, turn)).write_text(json.dumps(own), encoding="utf-8")

    def on_this_device(self, pair: Pair) -> Scenario:
        """Measure this machine's device profile, and write the pair's scenario to a file."""
        models = {  # the bundled checkpoints, wider where the pair is
            role: "reference"
            if times == 1
            else str(write_wider(REFERENCE / role, times, self._folder / f"{pair.name}-{role}"))
            for role, times in (("target", pair.times), ("draft", pair.draft_times))
        }
        device, file = (self._folder / f"{pair.name}{end}.toml" for end in ("-device", ""))
        request = DeviceRequest(
            model=models["target"],
            draft=models["draft"],
            settings=[f"tokens={[*ROWS]}", f"contexts=[{CONTEXT}]"],
            seconds=self._settings.device_seconds,
            out=device,
        )
        calibrate_device(request, self._say)
        place = {"host": "box", "device": f"./{device.name}"}
        content = {
            "name": f"real time, {pair.name} pair",
            "emulate": False,
            "target": {"checkpoint": models["target"]},
            "drafts": [{**place, "model": {"checkpoint": models["draft"]}}],
            "pipelines": [{"stages": [{**place, "count": self._settings.stages[0]}]}],
            "acceptance": {"source": "profile", "name": _acceptance(self._settings.kinds[0])},
            "schedule": {"name": "pp"},
        }
        bare = Scenario.of(content, file)
        file.write_text(toml_text(bare.content), encoding="utf-8")
        return bare

    def in_place(self, bare: Scenario, turn: int) -> Scenario:
        """Measure this machine's host profile, and add it to the scenario."""
        host = bare.path.with_name(f"{bare.path.stem}-host-{turn}.toml")
        prompts = self._settings.calibrated_on or CALIBRATION
        request = RunRequest(
            scenario=str(bare.path), prompts=prompts, seconds=self._settings.host_seconds, out=host
        )
        calibrate_run(request, self._say)
        return bare.with_(hosts={"box": {"profile": f"./{host.name}"}})

    def cases(self, pair: Pair, base: Scenario, turn: int) -> list[Case]:
        found, settings = [], self._settings
        kinds = itertools.product(self._layouts(base), settings.schedules, settings.kinds)
        for (tail, layout), name, kind in kinds:
            keys = {key: value for key, value in KEYS.items() if key in systems()[name].keys}
            clients = settings.requests if name == "specpipe_db" else 1
            workload = {**self.workload(_prompts(kind, turn)), "concurrency": clients}
            changes = {
                **layout,
                "schedule": {"name": name, **keys},
                "runs": 4,
                "acceptance.name": _acceptance(kind),
                "workload": workload,
            }
            found.append(Case(f"{pair.name}/{name}/{kind}{tail}", base.with_(**changes)))
        return found

    def _layouts(self, base: Scenario) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the keys of each partition, with a suffix for its cases' names."""
        yield "", {}
        for count in self._settings.stages[1:]:
            yield f", {count} stages", {"pipelines.0.stages.0.count": count}
        (stage,) = base.content["pipelines"][0]["stages"]
        for cut in self._settings.cuts:
            stages = [{"host": stage["host"], "device": stage["device"], "layers": n} for n in cut]
            yield f", {' + '.join(map(str, cut))} layers", {"pipelines": [{"stages": stages}]}

    def workload(self, prompts: str) -> dict[str, Any]:
        requests, new_tokens = self._settings.requests, self._settings.new_tokens
        return {"requests": requests, "new_tokens": new_tokens, "prompts": prompts}


def _acceptance(kind: str) -> str:
    return f"./{kind}.toml"


def _prompts(kind: str, turn: int) -> str:
    return f"./{kind}-{turn}.json"


# --- the results ---------------------------------------------------------------------------------


def _turns(cases: Mapping[str, Repeated]) -> dict[str, Row]:
    return {
        f"{key}, turn {turn}": row
        for key, each in cases.items()
        for turn, row in enumerate(each.rows, start=1)
    }


def _entries(rows: Mapping[str, Repeated]) -> list[Entry]:
    found = []
    for key, row in rows.items():
        *errors, utilization = ERRORS
        own = [
            Entry.of(f"{key}/predicted_ms", "ms", row.predicted),
            Entry(f"{key}/measured_ms", "ms", measured=row.measured),
            *(Entry(f"{key}/{error}", "1", getattr(row, error)) for error in errors),
            Entry(f"{key}/drift", "1", measured=row.drift),
            Entry(f"{key}/{utilization}", "1", row.utilization_error),
        ]
        found += [replace(e, role="calibrated") for e in own] if row.calibrated_with else own
    return found


def _held(pair: Pair, rows: Mapping[str, Repeated]) -> dict[str, Repeated]:
    """Return a pair's cases whose schedules calibration did not run."""
    return {
        key: each
        for key, each in rows.items()
        if key.startswith(f"{pair.name}/") and not each.calibrated_with
    }


def _errors(held: Mapping[str, Repeated]) -> dict[str, dict[str, Any]]:
    """Return the ``spread`` of each kind of error: the prediction's over cases, all others over
    single turns; of busy shares that of the device farthest off."""
    turns = _turns(held)
    found = {
        "error": {key: each.error for key, each in held.items()},
        "duration_error": {key: row.duration_error for key, row in turns.items()},
        ERRORS[2]: {key: row.drift_corrected_duration_error for key, row in turns.items()},
        "utilization_error": {
            key: max(_shares_apart(row).values(), key=abs) for key, row in turns.items()
        },
    }
    return {what: spread(errors) for what, errors in found.items()}


def _apart(held: Mapping[str, Repeated]) -> dict[str, Any]:
    """Return the ``spread`` of how far runs of equal work in one turn are apart: of a single
    pipeline StarSD does what EAGLE does (``ALIKE``). Empty without such runs."""
    turns = _turns(held)
    one, other = (f"/{name}/" for name in ALIKE)
    pairs = [(turns[key], turns.get(key.replace(one, other))) for key in turns if one in key]
    found = {str(n): a.measured / b.measured - 1 for n, (a, b) in enumerate(pairs) if b}
    return spread(found) if found else {}


def _summary(pair: Pair, rows: Mapping[str, Repeated]) -> list[Entry]:
    held, aims = _held(pair, rows), _FILE["aims"][pair.name]
    apart = _apart(held)
    floor = [
        Entry(f"{pair.name}/equal_runs/{end}", "1", measured=apart[end])
        for end in ("median", "worst")
        if apart
    ]
    return floor + [
        Entry(f"{pair.name}/{what}/{end}", "1", found[of], published=aims.get(f"{what}/{end}"))
        for what, found in (_errors(held) if held else {}).items()
        for end, of in (("median", "median"), ("worst", "worst"), ("mean", "bias"))
    ]


def _findings(pair: Pair, rows: Mapping[str, Repeated]) -> list[str]:
    """Describe raw errors, and duration errors without the drift."""
    held = _held(pair, rows)
    if not held:
        return []
    turns = _turns(held).values()
    fast, drifts = sum(row.duration_error < 0 for row in turns), [row.drift for row in turns]
    found = _errors(held)
    described = {
        what: f"{of['median']:.1%} in the median, {of['worst']:.1%} at worst and "
        f"{of['bias']:+.1%} in the mean"
        for what, of in found.items()
    }
    return [
        f"{pair.name} pair: durations are off by {described['duration_error']} "
        f"({found['duration_error']['worst_at']}), too fast in "
        f"{fast} of {len(turns)} turns of {len(held)} cases; the predicted time between tokens, "
        f"all of a case's turns together, by {described['error']}; the busy share of the device "
        f"farthest off in each turn by {described['utilization_error']} of all time",
        f"{pair.name} pair: with the machine's drift taken off, which only the run itself tells "
        f"(it took {min(drifts):.2f} to {max(drifts):.2f} times as long as when it was "
        f"calibrated), durations are off by {described['drift_corrected_duration_error']}",
        *(
            [
                f"{pair.name} pair: two runs of equal work in one turn ({' and '.join(ALIKE)}) "
                f"differ by {apart['median']:.1%} in the median and "
                f"{apart['worst']:.1%} at worst, which no prediction knows"
            ]
            if (apart := _apart(held))
            else []
        ),
    ]


def _partitions(pairs: Sequence[Pair], rows: Mapping[str, Repeated]) -> Sheet:
    names = ("error", "durations", "… drift taken off", "busy share of the device farthest off")
    shown = {"median": ".1%", "worst": ".1%", "bias": "+.1%"}
    heads = [f"{name}, {of}|{form}" for name in names for of, form in shown.items()]
    title = "Sizes of errors and their signed means (bias), without what calibration ran"
    sheet = Sheet(title, columns("pair", "partition", *heads), name=f"{NAME}-partitions")
    for pair in pairs:
        groups: dict[str, dict[str, Repeated]] = {}
        for key, each in _held(pair, rows).items():
            groups.setdefault(key.partition(", ")[2], {})[key] = each
        for partition, held in groups.items():
            found = _errors(held)
            figures = (found[error][figure] for error in ERRORS for figure in shown)
            sheet.add(pair.name, partition or "as calibrated", *figures)
    return sheet


def _sheet(rows: Mapping[str, Repeated]) -> Sheet:
    times = ("pair / schedule / prompts", "predicted (ms)", "low", "high", "measured (ms)")
    errors = ("error", "of it durations", "… at worst in a turn", "… drift taken off")
    busy = "busy share of the device farthest off|+.2f"
    heads = columns(*times, *(f"{each}|+.1%" for each in errors), "drift|.2f", busy)
    title = "Time between tokens, nothing emulated"
    sheet = Sheet(title, [*heads, *columns("calibration ran it")], name=NAME)
    for key, row in rows.items():
        value = row.predicted
        worst = max((each.duration_error for each in row.rows), key=abs)
        off = row.error, row.duration_error, worst, row.drift_corrected_duration_error
        others = row.drift, row.utilization_error, "yes" if row.calibrated_with else ""
        sheet.add(key, value.mean, value.low, value.high, row.measured, *off, *others)
    return sheet


def _figure(rows: Mapping[str, Repeated]) -> Figure:
    figure = Figure(figsize=(8.5, 1.4 + 0.26 * len(rows)), layout="constrained")
    panel: Any = figure.subplots()
    places = range(len(rows))
    known = [row.predicted for row in rows.values()]
    bars = {"fmt": "o", "color": BLUE, "ecolor": BLACK, "capsize": 2, "ms": 5}
    panel.errorbar([each.mean for each in known], places, xerr=whiskers(known), **bars)
    panel.plot([row.measured for row in rows.values()], places, "s", color=ORANGE, ms=5)
    panel.set_yticks(list(places), list(rows), size=8)
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("{x:g}")
    panel.set_xlabel("time between tokens (ms): round, predicted (95 %); square, measured")
    clean(panel, axis="x")
    return figure
