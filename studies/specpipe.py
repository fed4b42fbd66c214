"""SpecPipe, reproduced: eight stages of RTX 3090, the width of a layer, and other schedules.

Calibrated on three published times, those of the plain pipeline, SpecInfer and SpecPipe on
HumanEval-X; an EAGLE tree, two servers, widths and batches (sections 3.3.3 and 4) are predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.progress import Progress
from treepipe.results.metrics import METRIC
from treepipe.results.plots import BLUE, ORANGE
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome
from treepipe.sim.theory.layered import specpipe_even_tbt_ms
from treepipe.studies import layered, reproduction
from treepipe.studies.plots import Line, Panel, line_figure
from treepipe.studies.reproduction import Reproduction, metric_entries, predicted, published
from treepipe.studies.study import Entry, StudyResult

NAME = "specpipe-width"
PAGE = Path(__file__).with_name("specpipe.md")
SERVERS = ("one-server", "two-server")
EAGLE_ROWS, EAGLE_PASSES = 60, 7
"""Nodes of an EAGLE-2 tree, with the root, and draft passes that build it."""
EAGLE = {
    **{"schedule.name": "eagle", "schedule.tree_size": EAGLE_ROWS - 1},
    **{"schedule.tree_depth": 6, "schedule.top_k": 10},
    "acceptance": {"source": "profile", "name": "reference-eagle"},
}
"""Keys of the EAGLE schedule; its head's acceptance is the bundled one's."""
SCHEDULES = ("specinfer", "eagle", "specpipe")
"""Schedules simulated on HumanEval-X: SpecInfer drafts asynchronously, and EAGLE3 takes a
full pass of the pipeline to draft (sections 4 and 4.2)."""
FLAT = 0.03
"""Relative difference in time below which widths are called equal to the best one."""
SURE_OFF_PATH = "off the path as sure as on it"
LARGER_DRAFT = "drafted by the 8B model"
THROUGHPUT = "throughput_tokens_s"
FROM_PIPEDEC = f"one-server/specpipe_at_pipedec_best_level/{METRIC}"
AS_PROFILED = f"one-server/pp_as_profiled/{METRIC}"
FOUR_L40 = f"four-l40/pp/{METRIC}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job."""

    effort: layered.Effort = field(default_factory=layered.Effort)
    widths: Sequence[int] = (2, 4, 8, 16, 32, 48, 64, 80, 128)
    children: Sequence[int] = (2, 4, 8)
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32)
    batch_tokens: int = 48
    levels: layered.Levels | None = None


SHORT, FULL = Settings(), Settings(layered.Effort(8, 500))


@dataclass(frozen=True, slots=True)
class Results:
    """The results of all simulations.

    Attributes:
        cluster: the cluster of one server.
        plain_ms: time between tokens of the plain pipeline, by server.
        outcomes: outcomes by ``SERVER/SCHEDULE`` (on HumanEval-X), ``SERVER/SCHEDULE/LEVEL``, or
            the varied parameter: ``width=W``, ``children=C``, SpecPipe-DB's ``batch=B``.
        changed: times by schedule and changed assumption, without a new calibration.
    """

    settings: Settings
    levels: layered.Levels
    cluster: layered.CardCluster
    plain_ms: Mapping[str, float]
    outcomes: Mapping[str, Outcome]
    changed: Mapping[str, Interval]

    @property
    def best_width(self) -> int:
        return min(self.settings.widths, key=self.time_ms)

    def time_ms(self, width: int) -> float:
        return self.time(f"width={width}").mean

    def time(self, label: str) -> Interval:
        """Return the time between tokens."""
        return self.outcomes[label].metrics[METRIC]

    def leveled(self, label: str) -> list[Interval]:
        """Return the times of ``SERVER/SCHEDULE`` at the six levels, the most misses first."""
        return [self.time(f"{label}/{number}") for number in range(len(self.levels.six))]

    def equation_ms(self, width: int) -> float:
        """Return SpecPipe's equation 2 with the simulated hit rate (a miss loses N - 1 steps)."""
        step = self.cluster.slowest_ms(width) + layered.PRUNE_MS
        hit = self.outcomes[f"width={width}"].metrics["hit_rate"].mean
        return specpipe_even_tbt_ms(step, hit, len(self.cluster.cards), "N-1")


def study(settings: Settings, say: Progress) -> StudyResult:
    """Calibrate, simulate everything, and write the page."""
    results = find(settings, say)
    made = Reproduction(NAME, PAGE)
    labels = {f"batch={n}": f"batch={n}/specpipe_db" for n in settings.batches}
    batches = {key: results.outcomes[label] for label, key in labels.items()}
    title = (
        f"SpecPipe-DB, one server, HumanEval-X, width {layered.WIDTH}: B requests share the steps"
    )
    parts = (
        ([*_from_papers(results), *_schedules(results)], "schedules", "Schedules and speed-ups"),
        (_widths(results), "widths", "SpecPipe, one server, mean of the six levels"),
        (metric_entries(batches, THROUGHPUT, METRIC), "batches", title),
    )
    for entries, part, title in parts:
        made.add(layered.with_model(entries, results.levels), part, title)
    layered.leave_out(made, "specpipe")
    return made.result(_fields(results), _figure(results))


# --- the simulations -----------------------------------------------------------------------------


def find(settings: Settings, say: Progress) -> Results:
    """Calibrate, and simulate everything."""
    levels = settings.levels or layered.find_levels(settings.effort, say)
    clusters = {name: layered.build(name) for name in SERVERS}
    one = clusters["one-server"]
    base = one.scenario(**layered.SPECPIPE, **layered.acceptance(levels.middle))
    scenarios = {
        f"{key}={value}": base.with_(**{f"schedule.{key}": value})
        for key, values in (("width", settings.widths), ("children", settings.children))
        for value in values
    }
    for name, cluster in clusters.items():
        own = _on(cluster, levels)
        scenarios |= {f"{name}/{label}": scenario for label, scenario in own.items()}
    changed = _changed(one, levels.humaneval_x)
    effort = settings.effort.changes()
    scenarios = {label: each.with_(**effort) for label, each in {**scenarios, **changed}.items()}
    scenarios |= _batches(one, settings, layered.acceptance(levels.humaneval_x))
    outcomes = reproduction.simulated(scenarios, say)
    plain = {name: layered.plain_ms(cluster) for name, cluster in clusters.items()}
    times = {label: outcomes[label].metrics[METRIC] for label in changed}
    return Results(settings, levels, one, plain, outcomes, times)


def _on(cluster: layered.CardCluster, levels: layered.Levels) -> dict[str, Scenario]:
    """Make scenarios of every schedule on HumanEval-X, and of two trees at the six levels."""
    code, whole = layered.acceptance(levels.humaneval_x), layered.plain_ms(cluster)
    through = replace(cluster, draft_ms={1: whole / EAGLE_PASSES})
    scenarios = {
        "specpipe": cluster.scenario(**layered.SPECPIPE, **code),
        "specinfer": cluster.scenario(**layered.SPECINFER, **code),
        "eagle": through.scenario(**EAGLE),
    }
    for number, level in enumerate(levels.six):
        for schedule in (layered.SPECPIPE, layered.SPECINFER):
            label = f"{schedule['schedule.name']}/{number}"
            scenarios[label] = cluster.scenario(**schedule, **layered.acceptance(level))
    return scenarios


def _changed(cluster: layered.CardCluster, level: layered.Level) -> dict[str, Scenario]:
    larger_ms = published()["specpipe"]["draft_tbt_ms"]["llama-3.1-8b"]
    slow, keys = replace(cluster, draft_ms={1: larger_ms}), layered.SPECPIPE
    sure = layered.acceptance(level, off_path_sharpness=layered.SHARPNESS)
    return {
        f"specpipe, {SURE_OFF_PATH}": cluster.scenario(**keys, **sure),
        f"specpipe, {LARGER_DRAFT}": slow.scenario(**keys, **layered.acceptance(level)),
    }


def _batches(
    cluster: layered.CardCluster, settings: Settings, level: dict[str, Any]
) -> dict[str, Scenario]:
    """Make scenarios of SpecPipe-DB with as many clients as places and three requests each."""
    base = cluster.scenario(**{**layered.SPECPIPE, **level, "schedule.name": "specpipe_db"})
    return {
        f"batch={count}": base.with_(
            **{
                "schedule.batch": count,
                "workload.concurrency": count,
                "workload.requests": 3 * count,
                "workload.new_tokens": settings.batch_tokens,
                "runs": 3 if count > 4 else 3 * settings.effort.runs,
            }
        )
        for count in settings.batches
    }


# --- entries, fields and plots -------------------------------------------------------------------


def _from_papers(results: Results) -> list[Entry]:
    """Return the published figures: three fitted times, and predictions of others."""
    facts, code = published()["specpipe"], layered.code_times()
    overhead_ms = results.cluster.overhead_ms["rtx-3090"]
    l40_ms = layered.unscaled_ms("l40", 4) + layered.LAYERS * overhead_ms
    fitted = {name: results.time(f"one-server/{name}") for name in ("specpipe", "specinfer")}
    values: dict[str, Interval | float] = {"pp": results.plain_ms["one-server"], **fitted}
    facts_of = {"pp": facts["pp_tbt_ms_humaneval_x"], **code}
    one_ms, vllm_ms = layered.unscaled_ms("rtx-3090", 8), facts["pp_vllm_tbt_ms_humaneval_x"]
    easiest = results.leveled("one-server/specpipe")[-1]
    return [
        *(
            predicted(f"one-server/{name}/{METRIC}", "ms", value, facts_of[name], fitted=True)
            for name, value in values.items()
        ),
        *(
            predicted(f"left-out/{name}/{METRIC}", "ms", results.levels.left_out[name], fact)
            for name, fact in code.items()
        ),
        predicted(FROM_PIPEDEC, "ms", easiest, facts["specpipe_tbt_ms_humaneval_x"]),
        predicted(AS_PROFILED, "ms", one_ms, vllm_ms),
        predicted(FOUR_L40, "ms", l40_ms, facts["target_tbt_ms_4xL40"]),
        predicted(f"two-server/pp/{METRIC}", "ms", results.plain_ms["two-server"]),
    ]


def _schedules(results: Results) -> list[Entry]:
    """Return every schedule's time, and the least and the largest speed-up over the six levels."""
    entries = []
    for name in SERVERS:
        for schedule in SCHEDULES:
            if f"{name}/{schedule}" not in ("one-server/specpipe", "one-server/specinfer"):
                time = results.time(f"{name}/{schedule}")
                entries.append(predicted(f"{name}/{schedule}/{METRIC}", "ms", time))
        specpipe, tree = (results.leveled(f"{name}/{each}") for each in ("specpipe", "specinfer"))
        over = {
            "over_pp": [time.inverse(results.plain_ms[name]) for time in specpipe],
            "over_specinfer": layered.speed_ups(tree, specpipe),
        }
        for key, ratios in over.items():
            for end, value in layered.ends(ratios).items():
                entries.append(predicted(f"{name}/{key}/{end}", "1", value))
    return entries


def _widths(results: Results) -> list[Entry]:
    entries = []
    for width in results.settings.widths:
        key = f"width={width}"
        entries += metric_entries({key: results.outcomes[key]}, METRIC, "hit_rate")
        entries.append(predicted(f"{key}/equation_2_ms", "ms", results.equation_ms(width)))
    for count in results.settings.children:
        key = f"children={count}"
        entries.append(predicted(f"{key}/{METRIC}", "ms", results.time(key)))
    return [*entries, predicted("best_width", "nodes", results.best_width)]


def _fields(results: Results) -> dict[str, Any]:
    best, slowest_ms = results.best_width, results.cluster.slowest_ms
    losses = {w: results.time_ms(w) / results.time_ms(best) for w in results.settings.widths}
    rates = {w: results.outcomes[f"width={w}"].metrics["hit_rate"].mean for w in losses}
    wider = min((w for w in losses if w > layered.LEAP), default=best)
    return {
        "best": best,
        "best_ms": results.time_ms(best),
        "flat": FLAT,
        "level": ", ".join(f"{width}" for width, loss in losses.items() if loss <= 1 + FLAT),
        "losses": ", ".join(f"at {width}: {loss - 1:+.0%}" for width, loss in losses.items()),
        "stage_1_ms": slowest_ms(1),
        "stage_leap_ms": slowest_ms(layered.LEAP),
        "wider": wider,
        "stage_wider_ms": slowest_ms(wider),
        "narrow": min(rates),
        "narrow_rate": rates[min(rates)],
        "best_rate": rates[best],
        "larger_draft_ms": results.changed[f"specpipe, {LARGER_DRAFT}"].mean,
        "first_hits": 1 - layered.MISSES[1],
        "cluster": results.cluster,
        "draft_overhead_ms": layered.draft_overhead_ms(),
        "unscaled_ms": layered.unscaled_ms("rtx-3090", 8),
        "sure_off_path_ms": results.changed[f"specpipe, {SURE_OFF_PATH}"].mean,
        **layered.shared_fields(results.levels),
    }


def _figure(results: Results) -> Figure:
    simulated = {"color": BLUE, "label": "simulated"}
    equation = {"color": ORANGE, "ls": "--", "label": "equation 2, N - 1 steps lost by a miss"}
    widths, leap = results.settings.widths, layered.LEAP
    times, hits = (
        Line({n: results.outcomes[f"width={n}"].metrics[metric] for n in widths}, simulated)
        for metric in (METRIC, "hit_rate")
    )
    stages = Line({width: results.cluster.slowest_ms(width) for width in widths}, simulated)
    formula = Line({width: results.equation_ms(width) for width in widths}, equation)
    return line_figure(
        f"SpecPipe on 8 RTX 3090: wide is nearly free up to {leap} rows, then it is not",
        f"width w: most nodes of a tree layer (dotted: {leap} rows, where times leap)",
        [
            Panel("time between tokens (ms)", [times, formula], zero=False),
            Panel("hit rate P(w)", [hits], zero=False),
            Panel("slowest stage (ms)", [stages]),
        ],
        log=True,
        at=leap,
    )
