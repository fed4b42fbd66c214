"""SpecPipe, reproduced: eight stages of RTX 3090, the width of a layer, and who is faster.

Three published times are calibrated on, the plain pipeline's, SpecInfer's and SpecPipe's on
HumanEval-X; an EAGLE tree, two servers, widths and batches are predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.results.metrics import METRIC
from treepipe.results.plots import BLUE, ORANGE
from treepipe.results.show import Say
from treepipe.results.statistics import Interval
from treepipe.studies.layered import (
    LAYERS,
    LEAP,
    MISSES,
    SPECPIPE,
    WIDTH,
    CardCluster,
    Effort,
    add_errors,
    code_times,
    draft_overhead_ms,
    ends,
    pass_ms,
    shared_fields,
    speed_ups,
    times,
    unscaled_ms,
    with_model,
)
from treepipe.studies.page import listed
from treepipe.studies.plots import Line, Panel, line_figure, published_figure
from treepipe.studies.reproduction import (
    Reproduction,
    calibrated,
    metric_entries,
    predicted,
    published,
)
from treepipe.studies.specpipe.testbed import (
    EAGLE_PASSES,
    EAGLE_ROWS,
    FLAT,
    LARGER_DRAFT,
    SCHEDULES,
    SERVERS,
    SURE_OFF_PATH,
    Found,
    Settings,
    find,
)
from treepipe.studies.study import Entry, Measuring, StudyResult

NAME = "specpipe-width"
PAGE = Path(__file__).with_name("page.md")
HUMP = (32, 57)
"""Rows between which a measured layer takes longer than it does for a few more."""
THROUGHPUT = "throughput_tokens_s"
FROM_PIPEDEC = f"one-server/specpipe_at_pipedec_best_level/{METRIC}"
AS_PROFILED = f"one-server/pp_as_profiled/{METRIC}"
FOUR_L40 = f"four-l40/pp/{METRIC}"


def run(say: Say, full: bool, measure: bool) -> StudyResult:
    """6 runs of 300 tokens per point; in full 8 of 500. Every width can be measured."""
    settings = Settings(Effort(8, 500)) if full else Settings()
    return study(replace(settings, measuring=Measuring()) if measure else settings, say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, simulate everything, and write the page."""
    found = find(settings, say)
    made = Reproduction(NAME, PAGE)
    parts = (
        ([*_from_papers(found), *_schedules(found)], "schedules", "Schedules and speed-ups"),
        (_widths(found), "widths", "SpecPipe, one server, mean of the six levels"),
        (
            _batches(found),
            "batches",
            f"SpecPipe-DB, one server, HumanEval-X, width {WIDTH}: B requests share the steps",
        ),
    )
    for entries, part, title in parts:
        made.add(with_model(entries, found.levels), part, title)
    made.show(
        [predicted(name, "ms", value) for name, value in found.changed.items()],
        "changed",
        "Time between tokens on HumanEval-X, one server, with one assumption changed and nothing "
        "calibrated again (intervals: of the samples)",
    )
    add_errors(made, "constant ratios (below)", _trivial())
    result = made.result(_fields(found), _figures(found, made.entries))
    if settings.measuring is not None:
        measure_widths(result, found.cluster, settings.widths, settings.measuring, say)
    return result


def measure_widths(
    study: StudyResult, cluster: CardCluster, widths: Sequence[int], measuring: Measuring, say: Say
) -> None:
    """The widths' measured column, on the study's page."""
    from treepipe.studies.measured import Axis, measure  # needs the executor

    base = cluster.scenario(**SPECPIPE)
    axis = Axis("width", "width w: most nodes of a tree layer", log=True)
    scenarios = {width: base.with_(**{"schedule.width": width}) for width in widths}
    metrics = {METRIC: "time between tokens", "hit_rate": "hit rate"}
    column = measure(axis, scenarios, metrics, measuring, say)
    rows = column.rows
    best = min(rows, key=lambda width: rows[width].predicted.mean)
    seen = min(rows, key=lambda width: rows[width].measured)
    entry = Entry("measured/best_width", "nodes", best, measured=seen)
    column.join(study, "SpecPipe on 8 emulated RTX 3090, the bundled pair on them", [entry])


def _fields(found: Found) -> dict[str, Any]:
    """What the page says beyond the entries."""
    widths, best = found.widths, found.best_width
    rates = {width: outcome.metrics["hit_rate"].mean for width, outcome in widths.items()}
    wider = min((w for w in widths if w > LEAP), default=best)
    overhead = found.cluster.overhead_ms
    layer_ms = pass_ms("rtx-3090", 1, False)
    hump = [ms / layer_ms[1] - 1 for n, ms in layer_ms.items() if HUMP[0] <= n <= HUMP[1]]
    return {
        "best": best,
        "best_ms": found.time_ms(best),
        "flat": FLAT,
        "level": ", ".join(map(str, found.flat)),
        "losses": listed(
            {f"at {w}": f"{found.time_ms(w) / found.time_ms(best) - 1:+.0%}" for w in widths}
        ),
        "stage_1_ms": found.cluster.slowest_ms(1),
        "stage_leap_ms": found.cluster.slowest_ms(LEAP),
        "wider": wider,
        "stage_wider_ms": found.cluster.slowest_ms(wider),
        "narrow": min(widths),
        "narrow_rate": rates[min(widths)],
        "best_rate": rates[best],
        "equation_ms": found.equation_ms(best),
        "larger_draft_ms": found.changed[f"specpipe, {LARGER_DRAFT}"].mean,
        "first_hits": 1 - MISSES[1],
        "first_8_hit": 1 - MISSES[8],
        "overhead_ms": overhead["rtx-3090"],
        "l40_overhead_ms": overhead["l40"],
        "draft_overhead_ms": draft_overhead_ms(),
        "unscaled_ms": unscaled_ms("rtx-3090", 8),
        "hump_rows": HUMP,
        "hump": (min(hump), max(hump)),
        "eagle_rows": EAGLE_ROWS,
        "eagle_passes": EAGLE_PASSES,
        "sure_off_path_ms": found.changed[f"specpipe, {SURE_OFF_PATH}"].mean,
        **shared_fields(found.levels),
    }


def _from_papers(found: Found) -> list[Entry]:
    """What is published: three times that were fitted, and what follows from other figures."""
    facts = published()["specpipe"]
    stepped, code = facts["specpipe_tbt_ms_humaneval_x"], found.code["one-server"]
    l40_ms = unscaled_ms("l40", 4) + LAYERS * found.cluster.overhead_ms["rtx-3090"]
    wanted = {"pp": facts["pp_tbt_ms_humaneval_x"], **code_times()}
    values: dict[str, Interval | float] = {"pp": found.plain_ms["one-server"], **code}
    return [
        *(
            calibrated(f"one-server/{name}/{METRIC}", "ms", values[name], wanted[name])
            for name in ("pp", "specpipe", "specinfer")
        ),
        *(
            predicted(f"left-out/{name}/{METRIC}", "ms", found.levels.left_out[name], fact)
            for name, fact in code_times().items()
        ),
        predicted(FROM_PIPEDEC, "ms", found.leveled["one-server"]["specpipe"][-1], stepped),
        predicted(
            AS_PROFILED, "ms", unscaled_ms("rtx-3090", 8), facts["pp_vllm_tbt_ms_humaneval_x"]
        ),
        predicted(FOUR_L40, "ms", l40_ms, facts["target_tbt_ms_4xL40"]),
        predicted(f"two-server/pp/{METRIC}", "ms", found.plain_ms["two-server"]),
    ]


def _schedules(found: Found) -> list[Entry]:
    """Every schedule, and the least and the largest speed-up over the six levels."""
    entries = []
    for name in SERVERS:
        for schedule, time in found.code[name].items():
            if (name, schedule) not in (("one-server", "specpipe"), ("one-server", "specinfer")):
                entries.append(predicted(f"{name}/{schedule}/{METRIC}", "ms", time))
        specpipe, tree = (found.leveled[name][each] for each in ("specpipe", "specinfer"))
        over = {
            "over_pp": [time.inverse(found.plain_ms[name]) for time in specpipe],
            "over_specinfer": speed_ups(tree, specpipe),
        }
        for key, ratios in over.items():
            for end, value in ends(ratios).items():
                entries.append(predicted(f"{name}/{key}/{end}", "1", value))
    return entries


def _widths(found: Found) -> list[Entry]:
    entries = []
    for width, outcome in found.widths.items():
        entries += metric_entries({f"width={width}": outcome}, METRIC, "hit_rate")
        entries.append(predicted(f"width={width}/equation_2_ms", "ms", found.equation_ms(width)))
    children = {f"children={count}": outcome for count, outcome in found.children.items()}
    best = predicted("best_width", "nodes", found.best_width)
    return [*entries, *metric_entries(children, METRIC), best]


def _batches(found: Found) -> list[Entry]:
    batches = {f"batch={n}/specpipe_db": outcome for n, outcome in found.batches.items()}
    return metric_entries(batches, THROUGHPUT, METRIC)


def _trivial() -> dict[str, float]:
    """Constant ratios: PipeDec's best speed-up holds here, too; every plain pipeline of the 70B
    model takes as long as the one that was measured."""
    facts = published()
    plain = facts["specpipe"]["pp_tbt_ms_humaneval_x"]
    best = facts["pipedec"]["speedup_over_pp_14_stage_range"][1]
    return {FROM_PIPEDEC: plain / best, AS_PROFILED: plain, FOUR_L40: plain}


def _figures(found: Found, entries: Sequence[Entry]) -> dict[str, Figure]:
    """Time between tokens and hit rate against the width, schedules, and batches."""
    simulated = {"color": BLUE, "label": "simulated"}
    equation = {"color": ORANGE, "ls": "--", "label": "equation 2, N - 1 steps lost by a miss"}
    formula = {width: found.equation_ms(width) for width in found.widths}
    stages = {width: found.cluster.slowest_ms(width) for width in found.widths}
    keys = {entry.key: entry for entry in entries}
    schedules = {
        name: {each: keys[f"{name}/{each}/{METRIC}"] for each in ("pp", *SCHEDULES)}
        for name in SERVERS
    }
    return {
        NAME: line_figure(
            f"SpecPipe on 8 RTX 3090: wide is nearly free up to {LEAP} rows, then it is not",
            f"width w: most nodes of a tree layer (dotted: {LEAP} rows, where times leap)",
            [
                Panel(
                    "time between tokens (ms)",
                    [Line(times(found.widths), simulated), Line(formula, equation)],
                    zero=False,
                ),
                Panel(
                    "hit rate P(w)", [Line(times(found.widths, "hit_rate"), simulated)], zero=False
                ),
                Panel("slowest stage (ms)", [Line(stages, simulated)]),
            ],
            log=True,
            at=LEAP,
        ),
        "specpipe-schedules": published_figure(
            "SpecPipe against plain decoding and static trees",
            "time between tokens (ms)",
            {"HumanEval-X": schedules},
        ),
        "specpipe-batches": line_figure(
            "SpecPipe-DB on 8 RTX 3090",
            f"requests that share the steps (B), width {WIDTH} each",
            [
                Panel("throughput (tokens/s)", [Line(times(found.batches, THROUGHPUT), simulated)]),
                Panel("time between tokens (ms)", [Line(times(found.batches), simulated)]),
            ],
            log=True,
        ),
    }
