"""Real time: nothing is emulated, this machine is the device. Calibrated, predicted, then run.

Draft and two stages are processes of this machine. Its device profile is measured with one process
alone, and acceptance of each kind of prompts is recorded from others of that kind. Then, in several
turns, its host's profile is measured with ``pp`` and ``naive_pp`` of the same workers on other
prompts, every schedule is predicted, and continues prompts that no turn before had: a shared
machine's speed changes within seconds, so calibration and runs lie close together. The heavy pair
is the bundled one opened many times as wide, which says the same and takes milliseconds a pass.
With it plans are searched, too, and run beside ``generate()`` (``real_speed.py``).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
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
from treepipe.executor.measure.run_request import RunRequest
from treepipe.executor.prompts import load_texts
from treepipe.files.toml_file import toml_text
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
from treepipe.validation.validation import busy_shares

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


@dataclass(frozen=True, slots=True)
class Pair:
    """The bundled pair at a weight, and what is wanted of its predictions.

    Attributes:
        widen, draft_widen: times as wide feed-forward layers.
        aims: largest relative errors: of durations in the median and at worst, of the prediction in
            the median, of a device's busy share at worst; of what is not named there is no aim.
    """

    name: str
    widen: int
    draft_widen: int
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
    """One case, predicted and run in several turns: times are means, as turns have prompts of their
    own, and durations' errors medians, as a turn may be disturbed."""

    rows: Sequence[Row]

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
        return median(row.duration_error for row in self.rows)

    @property
    def drifted_duration_error(self) -> float:
        return median(row.drifted_duration_error for row in self.rows)

    @property
    def drift(self) -> float:
        return median(row.drift for row in self.rows)

    @property
    def utilization_error(self) -> float:
        """Predicted less measured busy share, of the device where they are farthest apart."""
        turns = [busy_shares(row) for row in self.rows]
        apart = [
            median(turn[name].predicted - turn[name].measured for turn in turns)
            for name in turns[0]
        ]
        return max(apart, key=abs)


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
        [_sheet(rows), *([speed.sheet] if speed else ())],
        {NAME: _figure(rows)},
        [
            *(_finding(pair, rows) for pair in settings.pairs),
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
    device = folder / f"{pair.name}-device.toml"
    asked = DeviceRequest(
        draft="reference",
        widen=pair.widen,
        draft_widen=pair.draft_widen,
        tokens=ROWS,
        contexts=(CONTEXT,),
        seconds=settings.device_seconds,
    )
    calibrate_device(asked, device, say)
    file = folder / f"{pair.name}.toml"
    bare = _scenario(pair, file, f"./{device.name}", settings)
    file.write_text(toml_text(bare.content), encoding="utf-8")
    return bare


def _in_place(bare: Scenario, turn: int, settings: Settings, say: Say) -> Scenario:
    """The scenario with this machine's host profile, measured now."""
    host = bare.path.with_name(f"{bare.path.stem}-host-{turn}.toml")
    prompts = settings.calibrated_on or CALIBRATION
    asked = RunRequest(str(bare.path), prompts, settings.host_seconds)
    calibrate_run(asked, host, say)
    return bare.with_(hosts={"box": {"profile": f"./{host.name}"}})


def _scenario(pair: Pair, file: Path, device: str, settings: Settings) -> Scenario:
    content = {
        "name": f"real time, {pair.name} pair",
        "emulate": False,
        "target": {"checkpoint": "reference", "widen": pair.widen},
        "drafts": [
            {
                "host": "box",
                "device": device,
                "model": {"checkpoint": "reference", "widen": pair.draft_widen},
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
        value = row.predicted
        found += [
            Entry(f"{key}/predicted_ms", "ms", value.mean, value.low, value.high),
            Entry(f"{key}/measured_ms", "ms", measured=row.measured),
            Entry(f"{key}/error", "1", row.error),
            Entry(f"{key}/duration_error", "1", row.drifted_duration_error),
            Entry(f"{key}/raw_duration_error", "1", row.duration_error),
            Entry(f"{key}/drift", "1", measured=row.drift),
            Entry(f"{key}/utilization_error", "1", row.utilization_error),
        ]
    return found


def _errors(pair: Pair, rows: Mapping[str, Repeated]) -> dict[str, float]:
    own = [row for key, row in rows.items() if key.startswith(f"{pair.name}/")]
    durations = [abs(row.drifted_duration_error) for row in own]
    shares = [abs(row.utilization_error) for row in own]
    return {
        "duration_error/median": median(durations),
        "duration_error/worst": max(durations),
        "error/median": median([abs(row.error) for row in own]),
        "utilization_error/median": median(shares),
        "utilization_error/worst": max(shares),
    }


def _summary(pair: Pair, rows: Mapping[str, Repeated]) -> list[Entry]:
    return [
        Entry(f"{pair.name}/{what}", "1", value, published=pair.aims.get(what))
        for what, value in _errors(pair, rows).items()
    ]


def _finding(pair: Pair, rows: Mapping[str, Repeated]) -> str:
    found = _errors(pair, rows)
    own = [each for key, each in rows.items() if key.startswith(f"{pair.name}/")]
    drifts = [row.drift for each in own for row in each.rows]
    middle, worst = found["duration_error/median"], found["duration_error/worst"]
    return (
        f"{pair.name} pair: durations are off by {middle:.1%} in the median and {worst:.1%} at "
        f"worst once the machine's drift is taken off (it ran at {min(drifts):.2f} to "
        f"{max(drifts):.2f} times the time that its calibration took); the predicted time "
        f"between tokens by {found['error/median']:.1%} in the median; busy shares, of the device "
        f"farthest off in each case, by {100 * found['utilization_error/median']:.0f} points in "
        f"the median and {100 * found['utilization_error/worst']:.0f} at worst"
    )


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
            Column("of it durations, drift taken off", shown="+.1%"),
            Column("raw", shown="+.1%"),
            Column("drift", shown=".2f"),
            Column("busy share of the device farthest off", shown="+.2f"),
        ],
    )
    for key, row in rows.items():
        value = row.predicted
        errors = row.error, row.drifted_duration_error, row.duration_error
        others = row.drift, row.utilization_error
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
