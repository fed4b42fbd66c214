"""PipeDec, reproduced: calibrated on the range of its speed-ups with 14 stages.

Means, the static tree, other depths, the best parameters and the throughput (section 4.3) are
predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

from treepipe.progress import Progress
from treepipe.results.metrics import METRIC
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome
from treepipe.studies import layered, reproduction
from treepipe.studies.layered import PIPEDEC, CardCluster, Effort, Level, Levels, acceptance, right
from treepipe.studies.plots import Panel, line_figure, shaded
from treepipe.studies.reproduction import Reproduction, metric_entries, predicted, published
from treepipe.studies.study import Entry, StudyResult

NAME = "pipedec-stages"
PAGE = Path(__file__).with_name("pipedec.md")
STATIC = {"schedule.name": "specinfer"}
"""Keys of the static tree (STPP): PipeDec states neither the tree nor that it is drafted ahead;
assumed is SpecInfer's, in sequence."""
METHODS: dict[str, Any] = {"pp": {"schedule.name": "pp"}, "stpp": STATIC, "pipedec": PIPEDEC}
STAGES = ("7-stage", "14-stage", "21-stage")
COMPARED = ("14-stage", "stpp")
"""Systems that are also simulated at further levels of acceptance."""
STOCHASTIC = 1.25
"""Factor on the misses of greedy decoding at temperature 0.6, top-p 0.9, top-k 80 (assumed)."""
THROUGHPUT = "throughput_tokens_s"
AT_CODE = "14-stage/over_pp/at_specpipe_code_level"


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job."""

    calibration: Effort = field(default_factory=Effort)
    effort: Effort = field(default_factory=lambda: Effort(4, 300))
    widths: Sequence[int] = (8, 16, 32, 64, 128)
    children: Sequence[int] = (2, 4, 8, 16)
    together: Sequence[int] = (1, 2, 4, 8)
    requests: int = 8
    request_tokens: int = 48
    levels: Levels | None = None


SHORT, FULL = Settings(), Settings(Effort(8, 500), Effort(5, 400))


@dataclass(frozen=True, slots=True)
class Results:
    """The results of all simulations.

    Attributes:
        plain_ms: time between tokens of the plain pipeline on the 14 cards.
        outcomes: outcomes of PipeDec by number of stages, and of "stpp", the static tree, at levels
            of acceptance ("code", "middle", "stochastic", or the number of one of the six):
            ``LEVEL/NAME``; ``width=W/children=C``; and ``k=K/METHOD`` with K concurrent requests.
    """

    settings: Settings
    levels: Levels
    plain_ms: float
    outcomes: Mapping[str, Outcome]

    def times(self, name: str) -> list[Interval]:
        """Return the time between tokens at each of the six levels."""
        numbers = range(len(self.levels.six))
        return [self.outcomes[f"{number}/{name}"].metrics[METRIC] for number in numbers]

    def over_plain(self, name: str) -> list[Interval]:
        """Return the speed-up over the plain pipeline per level."""
        return [time.inverse(self.plain_ms) for time in self.times(name)]

    def over_static(self, name: str) -> list[Interval]:
        """Return the speed-up over the static tree per level."""
        return layered.speed_ups(self.times("stpp"), self.times(name))


def study(settings: Settings, say: Progress) -> StudyResult:
    """Calibrate, simulate everything, and write the page."""
    results = find(settings, say)
    made = Reproduction(NAME, PAGE)
    made.add(layered.with_model([*_speed_ups(results), *_single(results)], results.levels))
    grid = "14 stages, mean of the six levels: width and candidates per node"
    parts = {
        "parameters": ("width=", grid, (METRIC, "hit_rate")),
        "throughput": ("k=", "Throughput of k requests side by side on 14 cards", (THROUGHPUT,)),
    }
    for part, (begins, title, metrics) in parts.items():
        own = {label: each for label, each in results.outcomes.items() if label.startswith(begins)}
        made.add(layered.with_model(metric_entries(own, *metrics), results.levels), part, title)
    layered.leave_out(made, "pipedec")
    return made.result(_fields(results, made.now), _figure(results))


# --- the simulations -----------------------------------------------------------------------------


def find(settings: Settings, say: Progress) -> Results:
    """Calibrate, and simulate everything."""
    levels = settings.levels or layered.find_levels(settings.calibration, say)
    cluster, middle = layered.build("fourteen"), acceptance(levels.middle)
    scenarios = _cases(cluster, levels, settings.effort)
    base = cluster.scenario(**PIPEDEC, **middle, **settings.effort.changes())
    for width, count in product(settings.widths, settings.children):
        changes = {"schedule.width": width, "schedule.children": count}
        scenarios[f"width={width}/children={count}"] = base.with_(**changes)
    effort = Effort(3, settings.request_tokens).changes()
    for (method, schedule), count in product(METHODS.items(), settings.together):
        clients = {"workload.concurrency": count, "workload.requests": settings.requests}
        scenario = cluster.scenario(**schedule, **middle, **clients, **effort)
        scenarios[f"k={count}/{method}"] = scenario
    outcomes = reproduction.simulated(scenarios, say)
    return Results(settings, levels, layered.plain_ms(cluster), outcomes)


def _cases(cluster: CardCluster, levels: Levels, effort: Effort) -> dict[str, Scenario]:
    """Make scenarios of all systems at the six levels, and of some at further ones."""
    systems: dict[str, tuple[CardCluster, dict[str, Any]]] = {
        "7-stage": (cluster, {**PIPEDEC, "schedule.groups": 2}),
        "14-stage": (cluster, PIPEDEC),
        "21-stage": (layered.build("twenty-one"), PIPEDEC),
        "stpp": (cluster, STATIC),
    }
    middle = levels.middle
    stochastic = Level(*(STOCHASTIC * each for each in middle))
    cases = {str(number): level for number, level in enumerate(levels.six)}
    cases |= {"code": levels.humaneval_x, "middle": middle, "stochastic": stochastic}
    return {
        f"{case}/{name}": where.scenario(**schedule, **acceptance(level), **effort.changes())
        for name, (where, schedule) in systems.items()
        for case, level in cases.items()
        if case.isdigit() or name in COMPARED
    }


# --- entries, fields and plots -------------------------------------------------------------------


def _speed_ups(results: Results) -> list[Entry]:
    """Return the mean, least and largest speed-up over the levels. The levels were fitted to the
    range over the plain pipeline with 14 stages."""
    low, high = published()["pipedec"]["speedup_over_pp_14_stage_range"]
    fitted = {"14-stage/over_pp/low": low, "14-stage/over_pp/high": high}
    entries = []
    for name in STAGES:
        both = {"over_pp": results.over_plain(name), "over_stpp": results.over_static(name)}
        for over, ratios in both.items():
            values = {"mean": Interval.averaged(ratios), **layered.ends(ratios)}
            keys = {which: f"{name}/{over}/{which}" for which in values}
            entries += [
                predicted(keys[which], "1", value, fitted.get(keys[which]), fitted=True)
                for which, value in values.items()
            ]
    return entries


def _single(results: Results) -> list[Entry]:
    facts, outcomes = published()["pipedec"], results.outcomes
    times = {
        (w, c): outcomes[f"width={w}/children={c}"].metrics[METRIC]
        for w, c in product(results.settings.widths, results.settings.children)
    }
    width, count = min(times, key=lambda pair: times[pair].mean)
    seven, longer = (fmean(time.mean for time in results.times(name)) for name in STAGES[:2])
    at_code = outcomes["code/14-stage"].metrics[METRIC].inverse(results.plain_ms)
    compared = [f"{case}/{name}" for case in ("middle", "stochastic") for name in COMPARED]
    return [
        predicted("gain_7_to_14", "1", seven / longer - 1),
        predicted("best_width", "nodes", width, facts["width"]),
        predicted("best_children", "nodes", count, facts["children"]),
        predicted(AT_CODE, "1", at_code, facts["speedup_over_pp_14_stage_range"][1]),
        predicted("14-stage/pp/time_between_tokens_ms", "ms", results.plain_ms),
        *metric_entries({key: outcomes[key] for key in compared}, METRIC),
    ]


def _fields(results: Results, now: Mapping[str, float]) -> dict[str, Any]:
    fewest, *_, most = sorted(results.settings.together)
    return {
        "longer": now["21-stage/over_pp/mean"] / now["14-stage/over_pp/mean"] - 1,
        "slower": {
            name: now[f"stochastic/{name}/{METRIC}"] / now[f"middle/{name}/{METRIC}"] - 1
            for name in COMPARED
        },
        "least": {method: now[f"k={fewest}/{method}/{THROUGHPUT}"] for method in METHODS},
        "most": {method: now[f"k={most}/{method}/{THROUGHPUT}"] for method in METHODS},
        "fewest_together": fewest,
        "most_together": most,
        "stochastic": STOCHASTIC,
        "requests": results.settings.requests,
        **layered.shared_fields(results.levels),
    }


def _figure(results: Results) -> Figure:
    shares = [right(level) for level in results.levels.six]
    names = {f"PipeDec, {name}": name for name in STAGES}
    over_plain, over_static = (
        {label: dict(zip(shares, over(name), strict=True)) for label, name in named.items()}
        for named, over in (
            ({**names, "static tree": "stpp"}, results.over_plain),
            (names, results.over_static),
        )
    )
    return line_figure(
        "PipeDec on RTX 3090 (21 stages: with RTX 4090 and L40)",
        "share of tokens that are the draft's first candidate",
        [
            Panel("times as fast as the plain pipeline", shaded(over_plain)),
            Panel("times as fast as the static tree", shaded(over_static)),
        ],
        columns=2,
    )
