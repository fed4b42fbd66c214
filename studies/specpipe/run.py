"""SpecPipe, reproduced: eight stages of RTX 3090, the width of a layer, and who is faster.

Three published times are calibrated on, the plain pipeline's, SpecInfer's and SpecPipe's on
HumanEval-X; an EAGLE tree, two servers, widths and batches are predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from treepipe.results.metrics import METRIC
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.studies.layered import (
    LEAP,
    MISSES,
    SPECPIPE,
    WIDTH,
    CardCluster,
    Effort,
    Levels,
    code_times,
    draft_overhead_ms,
    ends,
    error_sheets,
    metric_entries,
    pass_ms,
    shared_fields,
    speed_ups,
    unscaled_ms,
    with_model,
)
from treepipe.studies.page import listed, result
from treepipe.studies.reproduction import (
    calibrated,
    cells,
    estimate,
    predicted,
    published,
)
from treepipe.studies.specpipe.figures import batch_figure, schedule_figure, width_figure
from treepipe.studies.specpipe.testbed import (
    AS_CALIBRATED,
    EAGLE_PASSES,
    EAGLE_ROWS,
    FLAT,
    INGREDIENTS,
    Found,
    Server,
    Settings,
    find,
)
from treepipe.studies.study import Entry, Measuring, StudyResult

NAME = "specpipe-width"
PAGE = Path(__file__).with_name("page.md")
HUMP = (32, 57)
"""Rows between which a measured layer takes longer than it does for a few more."""


def run(say: Say, full: bool, measure: bool) -> StudyResult:
    """6 runs of 300 tokens per point; in full 8 of 500. Every width can be measured."""
    settings = Settings(Effort(8, 500)) if full else Settings()
    return study(replace(settings, measuring=Measuring()) if measure else settings, say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, simulate everything, and write the page."""
    found = find(settings, say)
    entries = _entries(found)
    study = result(
        NAME,
        PAGE,
        entries,
        _fields(found),
        [
            *error_sheets(NAME, entries, "constant ratios (below)", _trivial()),
            _code_sheet(found),
            _width_sheet(found),
            _batch_sheet(found),
            _ingredient_sheet(found),
            _sensitivity_sheet(found),
        ],
        {
            NAME: width_figure(found),
            "specpipe-schedules": schedule_figure(found.servers),
            "specpipe-batches": batch_figure(found.batches),
        },
    )
    if settings.measuring is not None:
        measure_widths(study, found.cluster, settings.widths, settings.measuring, say)
    return study


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
        "if_even": listed(
            {
                f"at {w}": f"{found.level_ms(w) / found.level_ms(LEAP) - 1:+.0%}"
                for w in widths
                if w < LEAP
            }
        ),
        "stage_1_ms": found.cluster.slowest_ms(1),
        "stage_leap_ms": found.cluster.slowest_ms(LEAP),
        "wider": wider,
        "stage_wider_ms": found.cluster.slowest_ms(wider),
        "narrow": min(widths),
        "narrow_rate": rates[min(widths)],
        "best_rate": rates[best],
        "equation_ms": found.equation_ms(best)[0],
        "larger_draft_ms": found.sensitivity["specpipe, drafted by the 8B model"].mean,
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
        "ingredients": found.ingredients,
        **shared_fields(found.levels),
    }


def _entries(found: Found) -> list[Entry]:
    facts = published()["specpipe"]
    plain, stepped = facts["pp_tbt_ms_humaneval_x"], facts["specpipe_tbt_ms_humaneval_x"]
    one = found.servers["one-server"]
    entries = [
        calibrated(f"one-server/pp/{METRIC}", "ms", one.plain_ms, plain),
        calibrated(f"one-server/specpipe/{METRIC}", "ms", one.code["specpipe"], stepped),
        calibrated(
            f"one-server/specinfer/{METRIC}",
            "ms",
            one.code["specinfer"],
            facts["specinfer_tbt_ms_humaneval_x"],
        ),
        *_left_out(found.levels),
        predicted(
            f"one-server/specpipe_at_pipedec_best_level/{METRIC}", "ms", one.specpipe[-1], stepped
        ),
        predicted(
            f"one-server/pp_as_profiled/{METRIC}",
            "ms",
            unscaled_ms("rtx-3090", 8),
            facts["pp_vllm_tbt_ms_humaneval_x"],
        ),
        predicted(
            f"four-l40/pp/{METRIC}",
            "ms",
            unscaled_ms("l40", 4) + 80 * found.cluster.overhead_ms["rtx-3090"],
            facts["target_tbt_ms_4xL40"],
        ),
        predicted(f"two-server/pp/{METRIC}", "ms", found.servers["two-server"].plain_ms),
    ]
    for name, server in found.servers.items():
        for schedule, time in server.code.items():
            if f"{name}/{schedule}" not in ("one-server/specpipe", "one-server/specinfer"):
                entries.append(predicted(f"{name}/{schedule}/{METRIC}", "ms", time))
        entries += _ratios(name, server)
    for width, outcome in found.widths.items():
        entries.append(predicted(f"width={width}/{METRIC}", "ms", outcome.metrics[METRIC]))
        entries.append(predicted(f"width={width}/hit_rate", "1", outcome.metrics["hit_rate"]))
        entries.append(predicted(f"width={width}/equation_2_ms", "ms", found.equation_ms(width)[0]))
    entries += metric_entries({f"children={n}": each for n, each in found.children.items()}, METRIC)
    entries.append(predicted("best_width", "nodes", found.best_width))
    batches = {f"batch={n}/specpipe_db": each for n, each in found.batches.items()}
    entries += metric_entries(batches, "throughput_tokens_s", METRIC)
    return with_model(entries, found.levels)


def _left_out(levels: Levels) -> list[Entry]:
    """Each of the two times on HumanEval-X from the other one's level."""
    return [
        predicted(f"left-out/{name}/{METRIC}", "ms", levels.left_out[name], fact)
        for name, fact in code_times().items()
    ]


def _ratios(name: str, server: Server) -> list[Entry]:
    """The least and the largest speed-up over the six levels."""
    over = {
        "over_pp": [time.inverse(server.plain_ms) for time in server.specpipe],
        "over_specinfer": speed_ups(server.specinfer, server.specpipe),
    }
    return [
        predicted(f"{name}/{key}/{end}", "1", value)
        for key, ratios in over.items()
        for end, value in ends(ratios).items()
    ]


def _trivial() -> dict[str, float]:
    """Constant ratios: PipeDec's best speed-up holds here, too; every plain pipeline of the 70B
    model takes as long as the one that was measured."""
    facts = published()
    plain = facts["specpipe"]["pp_tbt_ms_humaneval_x"]
    best = facts["pipedec"]["speedup_over_pp_14_stage_range"][1]
    return {
        f"one-server/specpipe_at_pipedec_best_level/{METRIC}": plain / best,
        f"one-server/pp_as_profiled/{METRIC}": plain,
        f"four-l40/pp/{METRIC}": plain,
    }


# --- tables --------------------------------------------------------------------------------------


def _code_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "specpipe-width-schedules",
        "Time between tokens on HumanEval-X",
        [
            Column("cluster"),
            Column("schedule"),
            *estimate("predicted", "ms"),
            Column("over the plain pipeline", shown=".2f"),
        ],
    )
    for name, server in found.servers.items():
        sheet.add(name, "pp", server.plain_ms, None, None, 1.0)
        for schedule, time in server.code.items():
            sheet.add(name, schedule, *cells(time), server.plain_ms / time.mean)
    return sheet


def _width_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "specpipe-width-widths",
        "SpecPipe, one server: the width of a layer (mean of the six levels)",
        [
            Column("width", shown="d"),
            Column("stage", "ms"),
            Column("hit rate P(w)", shown=".3f"),
            Column("steps per token", shown=".3f"),
            *estimate("TBT", "ms"),
            Column("equation 2, N - 1", "ms"),
            Column("equation 2, N", "ms"),
        ],
    )
    for width, outcome in found.widths.items():
        metrics = outcome.metrics
        time, equation = metrics[METRIC], found.equation_ms(width)
        sheet.add(
            width,
            found.cluster.slowest_ms(width),
            metrics["hit_rate"].mean,
            1 / metrics["tokens_per_step"].mean,
            *cells(time),
            *equation,
        )
    return sheet


def _batch_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "specpipe-width-batches",
        f"SpecPipe-DB, one server, HumanEval-X, width {WIDTH}: B requests share the steps",
        [
            Column("B", shown="d"),
            *estimate("throughput", "tokens/s"),
            Column("TBT of a request", "ms"),
            Column("P99 TBT", "ms"),
        ],
    )
    for count, outcome in found.batches.items():
        metrics = outcome.metrics
        slow = metrics[METRIC].mean, metrics[f"p99_{METRIC}"].mean
        sheet.add(count, *cells(metrics["throughput_tokens_s"]), *slow)
    return sheet


def _ingredient_sheet(found: Found) -> Sheet:
    published_ms = code_times()
    sheet = Sheet(
        "specpipe-width-ingredients",
        "HumanEval-X, one server: the acceptance model and the static tree, one ingredient changed "
        "and nothing calibrated again (intervals: of the samples)",
        [
            Column("changed"),
            *estimate("SpecInfer", "ms"),
            *estimate("SpecPipe", "ms"),
            Column("SpecInfer over SpecPipe", shown=".2f"),
        ],
    )
    tree_ms, stepped_ms = (published_ms[name] for name in ("specinfer", "specpipe"))
    nothing = (None, None)
    sheet.add("(published)", tree_ms, *nothing, stepped_ms, *nothing, tree_ms / stepped_ms)
    for name in INGREDIENTS:
        tree = found.ingredients[f"specinfer/{name}"]
        stepped = found.ingredients.get(
            f"specpipe/{name}", found.ingredients[f"specpipe/{AS_CALIBRATED}"]
        )
        sheet.add(name, *cells(tree), *cells(stepped), tree.mean / stepped.mean)
    return sheet


def _sensitivity_sheet(found: Found) -> Sheet:
    sheet = Sheet(
        "specpipe-width-sensitivity",
        "HumanEval-X, one server, one assumption changed and nothing calibrated again",
        [Column("changed"), *estimate("TBT", "ms")],
    )
    code = found.servers["one-server"].code
    unchanged = {"specpipe, nothing": code["specpipe"]}
    for name, time in {**unchanged, **found.sensitivity}.items():
        sheet.add(name, *cells(time))
    return sheet
