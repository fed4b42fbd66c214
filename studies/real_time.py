"""Real time: nothing is emulated, this machine is the device. Calibrated, predicted, then run.

Draft and two stages are processes of this machine. Its device profile is measured with one process
alone, and acceptance of each kind of prompts is recorded from others of that kind. Then, in several
turns, its host's profile is measured with ``pp`` and ``naive_pp`` of the same workers on other
prompts, every schedule is predicted, and continues prompts that no turn before had: a shared
machine's speed changes within seconds, so calibration and runs lie close together. The heavy pair
is the bundled one written many times as wide, which says the same and takes milliseconds a pass.
With it plans are searched, too, and run beside ``generate()`` (``real_speed.py``).

Law of this file: an error is raw, and every turn counts. What is corrected by a figure that the run
itself told has a name of its own, a schedule that calibration ran is left out of what is summed up,
and beside every median stands the signed mean.
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
from treepipe.executor.measure.calibrate import (
    AcceptanceRequest,
    DeviceRequest,
    calibrate_acceptance,
    calibrate_device,
    calibrate_run,
)
from treepipe.executor.measure.in_place import SCHEDULES as CALIBRATED_WITH
from treepipe.executor.measure.run_request import RunRequest
from treepipe.executor.prompts import load_texts
from treepipe.executor.widening import write_wider
from treepipe.files.toml_file import toml_text
from treepipe.profiles.library import REFERENCE
from treepipe.results.plots import BLACK, BLUE, ORANGE, clean
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schema import ScheduleName
from treepipe.studies.real_speed import Speeds, speeds
from treepipe.studies.study import Entry, StudyResult
from treepipe.validation.calibration import CALIBRATION, HELD_OUT
from treepipe.validation.comparison import Case, compare
from treepipe.validation.judgement import Row, faults_of, warnings_of
from treepipe.validation.validation import busy_shares, spread

NAME = "real-time"
SCHEDULES: tuple[str, ...] = tuple(systems())
KEYS: Mapping[str, Any] = {
    "tree_size": 16,
    "tree_depth": 3,
    "top_k": 4,
    "segment_tokens": 8,
    "expand_size": 12,
    "expand_depth": 2,
    "width": 4,
    "children": 4,
    "gamma": 3,
}
"""Of every schedule that reads them: small trees, as a pass on a few cores grows with its rows."""
ROWS = (*range(1, 23), 24, 28, 32, 48, 64)
"""Of a pass that is measured: all that segments of such trees have. A product's time is a staircase
(on an AMD EPYC 15 rows take as long as 18), which powers of two would hide."""
CONTEXT = 64
"""About as long as texts are: one table, so that each of its points is visited often. A machine
that is slow for a few seconds else leaves its mark on single points."""


FITTED = (
    f"the host's terms are fitted to runs of {' and '.join(CALIBRATED_WITH)} on other prompts: "
    f"these schedules are left out of medians, means and worst errors"
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The bundled pair at a weight, and what is wanted of its predictions.

    Attributes:
        times, draft_times: so many times as wide feed-forward layers (``widening.py``).
        aims: largest sizes of errors, by the keys of what is summed up; of what is not named there
            is no aim.
    """

    name: str
    times: int
    draft_times: int
    aims: Mapping[str, float]


POINTS = {"utilization_error/worst": 0.05}
HEAVY_AIMS = {
    "duration_error/median": 0.04,
    "duration_error/worst": 0.12,
    "error/median": 0.07,
    **POINTS,
}
LIGHT_AIMS = {"duration_error/median": 0.12, "duration_error/worst": 0.30, **POINTS}
HEAVY, LIGHT = Pair("heavy", 12, 4, HEAVY_AIMS), Pair("light", 1, 1, LIGHT_AIMS)


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done: pairs x schedules x kinds of prompts, and seconds of each calibration (of
    the host in each turn).

    Attributes:
        stages: numbers of them; the host's terms are fitted on the first.
        cuts: other partitions, as layers of each stage.
        plans: of different schedules that are run beside ``generate()`` with the first pair, per
            number of stages; 0: none.
        rounds: how often each of these continues its prompts.
        requests: in each turn, of the held-out prompts that no turn before had.
        turns: how often the host is calibrated, and then each schedule predicted and run.
        calibrated_on: prompts of acceptance and of the host's terms; None: the calibration
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


FULL = Settings(device_seconds=90.0, host_seconds=30.0, stages=(2, 3), cuts=((3, 5),))


@dataclass(frozen=True, slots=True)
class Repeated:
    """One case, predicted and run in several turns, each with prompts of its own: times are means
    over the turns, and errors those of the means."""

    rows: Sequence[Row]

    @property
    def calibrated_with(self) -> bool:
        """Whether the host's terms were fitted to runs of the same schedule."""
        return self.rows[0].schedule in CALIBRATED_WITH

    @property
    def predicted(self) -> Interval:
        known = [row.predicted for row in self.rows]
        lows = [each.low for each in known if each.low is not None]
        highs = [each.high for each in known if each.high is not None]
        mean = fmean(each.mean for each in known)
        return Interval(mean, fmean(lows), fmean(highs)) if lows else Interval.over([mean])

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
        """Predicted less measured busy share, of the device where they are farthest apart."""
        turns = [_shares_apart(row) for row in self.rows]
        return max((fmean(turn[name] for turn in turns) for name in turns[0]), key=abs)


def _shares_apart(row: Row) -> dict[str, float]:
    """Predicted less measured busy share of every device."""
    return {name: each.predicted - each.measured for name, each in busy_shares(row).items()}


def run(say: Say, full: bool) -> StudyResult:
    """On two stages; in full on three, too, and on two of 3 and 5 layers, with more calibration."""
    return study(FULL if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, predict and run, a pair after the other."""
    rows: dict[str, Repeated] = {}
    speed: Speeds | None = None
    with TemporaryDirectory() as folder:
        for kind in settings.kinds:
            _know(kind, Path(folder), settings, say)
        for pair in settings.pairs:
            bare = _on_this_device(pair, Path(folder), settings, say)
            found: dict[str, list[Row]] = {}
            for turn in range(settings.turns):
                base = _in_place(bare, turn, settings, say)
                for row in compare(_cases(pair, base, settings, turn), say):
                    found.setdefault(row.label, []).append(row)
            rows |= {label: Repeated(turns) for label, turns in found.items()}
            if settings.plans and speed is None:
                kind = settings.kinds[0]
                asked = base.with_(runs=4, workload=_workload(settings, f"{HELD_OUT}:{kind}"))
                speed = speeds(asked, settings.plans, settings.rounds, say)
    return StudyResult(
        NAME,
        [
            *_entries(rows),
            *(entry for pair in settings.pairs for entry in _summary(pair, rows)),
            *(speed.entries if speed else ()),
        ],
        [_partitions(settings.pairs, rows), _sheet(rows), *([speed.sheet] if speed else ())],
        {NAME: _figure(rows)},
        [
            *(said for pair in settings.pairs for said in _findings(pair, rows)),
            FITTED,
            *([speed.finding] if speed else ()),
            *warnings_of({name: each.rows[0] for name, each in rows.items()}),
        ],
        faults_of(
            {
                f"{name}, turn {turn}": row
                for name, each in rows.items()
                for turn, row in enumerate(each.rows, start=1)
            }
        ),
    )


def _know(kind: str, folder: Path, settings: Settings, say: Say) -> None:
    """Files of a kind of prompts: its acceptance, and what each turn continues."""
    asked = AcceptanceRequest(
        prompts=settings.calibrated_on or f"{CALIBRATION}:{kind}", new_tokens=settings.new_tokens
    )
    calibrate_acceptance(asked, folder / _acceptance(kind), say)
    texts = itertools.cycle(load_texts(f"{HELD_OUT}:{kind}", folder))
    for turn in range(settings.turns):
        own = list(itertools.islice(texts, settings.requests))
        (folder / _prompts(kind, turn)).write_text(json.dumps(own), encoding="utf-8")


def _acceptance(kind: str) -> str:
    return f"./{kind}.toml"


def _prompts(kind: str, turn: int) -> str:
    return f"./{kind}-{turn}.json"


def _on_this_device(pair: Pair, folder: Path, settings: Settings, say: Say) -> Scenario:
    """The pair's scenario in a file, with this machine's device profile, measured now."""
    models = _written(pair, folder)
    device = folder / f"{pair.name}-device.toml"
    asked = DeviceRequest(
        model=models["target"],
        draft=models["draft"],
        tokens=ROWS,
        contexts=(CONTEXT,),
        seconds=settings.device_seconds,
    )
    calibrate_device(asked, device, say)
    file = folder / f"{pair.name}.toml"
    bare = _scenario(pair.name, models, file, f"./{device.name}", settings)
    file.write_text(toml_text(bare.content), encoding="utf-8")
    return bare


def _written(pair: Pair, folder: Path) -> dict[str, str]:
    """The checkpoints of the pair's target and draft, by role; the bundled ones as they are."""
    return {
        role: "reference"
        if times == 1
        else str(write_wider(REFERENCE / role, times, folder / f"{pair.name}-{role}"))
        for role, times in (("target", pair.times), ("draft", pair.draft_times))
    }


def _in_place(bare: Scenario, turn: int, settings: Settings, say: Say) -> Scenario:
    """The scenario with this machine's host profile, measured now."""
    host = bare.path.with_name(f"{bare.path.stem}-host-{turn}.toml")
    prompts = settings.calibrated_on or CALIBRATION
    asked = RunRequest(str(bare.path), prompts, settings.host_seconds)
    calibrate_run(asked, host, say)
    return bare.with_(hosts={"box": {"profile": f"./{host.name}"}})


def _scenario(
    name: str, models: Mapping[str, str], file: Path, device: str, settings: Settings
) -> Scenario:
    content = {
        "name": f"real time, {name} pair",
        "emulate": False,
        "target": {"checkpoint": models["target"]},
        "drafts": [
            {
                "host": "box",
                "device": device,
                "model": {"checkpoint": models["draft"]},
            }
        ],
        "pipelines": [{"stages": [{"host": "box", "device": device, "count": settings.stages[0]}]}],
        "acceptance": {"source": "profile", "name": _acceptance(settings.kinds[0])},
        "schedule": {"name": "pp"},
    }
    return Scenario.of(content, file)


def _cases(pair: Pair, base: Scenario, settings: Settings, turn: int) -> list[Case]:
    found = []
    for tail, layout in _layouts(base, settings):
        for name in settings.schedules:
            keys = {key: value for key, value in KEYS.items() if key in systems()[name].keys}
            for kind in settings.kinds:
                scenario = base.with_(
                    **{
                        **layout,
                        "schedule": {"name": name, **keys},
                        "runs": 4,
                        "acceptance.name": _acceptance(kind),
                        "workload": {
                            **_workload(settings, _prompts(kind, turn)),
                            "concurrency": settings.requests if name == "specpipe_db" else 1,
                        },
                    }
                )
                found.append(Case(f"{pair.name}/{name}/{kind}{tail}", scenario))
    return found


def _layouts(base: Scenario, settings: Settings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The keys of each partition, and how its cases' names end: the first one's as they begin."""
    yield "", {}
    for count in settings.stages[1:]:
        yield f", {count} stages", {"pipelines.0.stages.0.count": count}
    (stage,) = base.content["pipelines"][0]["stages"]
    for cut in settings.cuts:
        stages = [{"host": stage["host"], "device": stage["device"], "layers": n} for n in cut]
        yield f", {' + '.join(map(str, cut))} layers", {"pipelines": [{"stages": stages}]}


def _workload(settings: Settings, prompts: str) -> dict[str, Any]:
    return {
        "requests": settings.requests,
        "new_tokens": settings.new_tokens,
        "prompts": prompts,
    }


def _entries(rows: Mapping[str, Repeated]) -> list[Entry]:
    found = []
    for key, row in rows.items():
        value, corrected = row.predicted, row.drift_corrected_duration_error
        own = [
            Entry(f"{key}/predicted_ms", "ms", value.mean, value.low, value.high),
            Entry(f"{key}/measured_ms", "ms", measured=row.measured),
            Entry(f"{key}/error", "1", row.error),
            Entry(f"{key}/duration_error", "1", row.duration_error),
            Entry(f"{key}/drift_corrected_duration_error", "1", corrected),
            Entry(f"{key}/drift", "1", measured=row.drift),
            Entry(f"{key}/utilization_error", "1", row.utilization_error),
        ]
        found += [replace(e, role="calibrated") for e in own] if row.calibrated_with else own
    return found


def _held(pair: Pair, rows: Mapping[str, Repeated]) -> dict[str, Repeated]:
    """A pair's cases whose schedules calibration did not run."""
    return {
        key: each
        for key, each in rows.items()
        if key.startswith(f"{pair.name}/") and not each.calibrated_with
    }


def _errors(held: Mapping[str, Repeated]) -> dict[str, dict[str, Any]]:
    """What ``spread`` says of errors: the prediction's by cases, all others by cases' single turns,
    where a busy share is the farthest device's."""
    turns = {
        f"{key}, turn {turn}": row
        for key, each in held.items()
        for turn, row in enumerate(each.rows, start=1)
    }
    corrected = {key: row.drift_corrected_duration_error for key, row in turns.items()}
    farthest = {key: max(_shares_apart(row).values(), key=abs) for key, row in turns.items()}
    return {
        "error": spread({key: each.error for key, each in held.items()}),
        "duration_error": spread({key: row.duration_error for key, row in turns.items()}),
        "drift_corrected_duration_error": spread(corrected),
        "utilization_error": spread(farthest),
    }


def _summary(pair: Pair, rows: Mapping[str, Repeated]) -> list[Entry]:
    held = _held(pair, rows)
    return [
        Entry(f"{pair.name}/{key}", "1", found[of], published=pair.aims.get(key))
        for what, found in (_errors(held) if held else {}).items()
        for key, of in (
            (f"{what}/median", "median"),
            (f"{what}/worst", "worst"),
            (f"{what}/mean", "bias"),
        )
    ]


def _findings(pair: Pair, rows: Mapping[str, Repeated]) -> list[str]:
    """Raw errors, and what is left of durations' once the drift is taken off."""
    held = _held(pair, rows)
    if not held:
        return []
    turns = [row for each in held.values() for row in each.rows]
    fast, drifts = sum(row.duration_error < 0 for row in turns), [row.drift for row in turns]
    of = _errors(held)
    durations, worst_at = of["duration_error"], of["duration_error"]["worst_at"]
    return [
        f"{pair.name} pair: durations are off by {_told(durations)} ({worst_at}), too fast in "
        f"{fast} of {len(turns)} turns of {len(held)} cases; the predicted time between tokens, "
        f"all of a case's turns together, by {_told(of['error'])}; the busy share of the device "
        f"farthest off in each turn by {_told(of['utilization_error'])} of all time",
        f"{pair.name} pair: with the machine's drift taken off, which only the run itself tells "
        f"(it took {min(drifts):.2f} to {max(drifts):.2f} times as long as when it was "
        f"calibrated), durations are off by {_told(of['drift_corrected_duration_error'])}",
    ]


def _told(found: Mapping[str, Any]) -> str:
    """Args: ``found``: by ``spread``."""
    return (
        f"{found['median']:.1%} in the median, {found['worst']:.1%} at worst and "
        f"{found['bias']:+.1%} in the mean"
    )


def _partitions(pairs: Sequence[Pair], rows: Mapping[str, Repeated]) -> Sheet:
    """Errors of each pair on each partition."""
    parts = ("error", "duration_error", "drift_corrected_duration_error", "utilization_error")
    names = ("error", "durations", "… drift taken off", "busy share of the device farthest off")
    shown = (("median", ".1%"), ("worst", ".1%"), ("bias", "+.1%"))
    sheet = Sheet(
        f"{NAME}-partitions",
        "Sizes of errors and their signed means (bias), without what calibration ran",
        [
            Column("pair"),
            Column("partition"),
            *(Column(f"{name}, {of}", shown=form) for name in names for of, form in shown),
        ],
    )
    for pair in pairs:
        groups: dict[str, dict[str, Repeated]] = {}
        for key, each in _held(pair, rows).items():
            groups.setdefault(key.partition(", ")[2], {})[key] = each
        for partition, held in groups.items():
            of = _errors(held)
            figures = (of[part][figure] for part in parts for figure, _ in shown)
            sheet.add(pair.name, partition or "as calibrated", *figures)
    return sheet


def _sheet(rows: Mapping[str, Repeated]) -> Sheet:
    sheet = Sheet(
        NAME,
        "Time between tokens, nothing emulated",
        [
            Column("pair / schedule / prompts"),
            Column("predicted", "ms"),
            Column("low"),
            Column("high"),
            Column("measured", "ms"),
            Column("error", shown="+.1%"),
            Column("of it durations", shown="+.1%"),
            Column("… at worst in a turn", shown="+.1%"),
            Column("… drift taken off", shown="+.1%"),
            Column("drift", shown=".2f"),
            Column("busy share of the device farthest off", shown="+.2f"),
            Column("calibration ran it"),
        ],
    )
    for key, row in rows.items():
        value = row.predicted
        worst = max((each.duration_error for each in row.rows), key=abs)
        errors = row.error, row.duration_error, worst, row.drift_corrected_duration_error
        others = row.drift, row.utilization_error, "yes" if row.calibrated_with else ""
        sheet.add(key, value.mean, value.low, value.high, row.measured, *errors, *others)
    return sheet


def _figure(rows: Mapping[str, Repeated]) -> Figure:
    figure = Figure(figsize=(8.5, 1.4 + 0.26 * len(rows)), layout="constrained")
    panel: Any = figure.subplots()
    places = range(len(rows))
    known = [row.predicted for row in rows.values()]
    below = [0.0 if each.low is None else each.mean - each.low for each in known]
    above = [0.0 if each.high is None else each.high - each.mean for each in known]
    bars = {"fmt": "o", "color": BLUE, "ecolor": BLACK, "capsize": 2, "ms": 5}
    panel.errorbar([each.mean for each in known], places, xerr=[below, above], **bars)
    panel.plot([row.measured for row in rows.values()], places, "s", color=ORANGE, ms=5)
    panel.set_yticks(list(places), list(rows), size=8)
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.set_xscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("{x:g}")
    panel.set_xlabel("time between tokens (ms): round, predicted (95 %); square, measured")
    clean(panel, axis="x")
    return figure
