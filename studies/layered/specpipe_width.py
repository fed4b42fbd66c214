"""SpecPipe, reproduced: eight stages of RTX 3090, the width of a layer, and who is faster.

(SpecPipe, sections 3.3.3 and 4.) Two published times are calibrated on, the plain pipeline's and
SpecPipe's on HumanEval-X; SpecInfer's tree, an EAGLE tree, two servers, widths and batches are
predictions. What is said of it is in ``specpipe_words.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from treepipe.results.metrics import METRIC
from treepipe.results.show import Say
from treepipe.sim.points import Outcome, Point, simulate_points
from treepipe.studies.layered.calibration import (
    SPECPIPE,
    Effort,
    Levels,
    acceptance,
    build,
    find_levels,
    plain_ms,
)
from treepipe.studies.layered.cluster import (
    SCENARIO,
    Cluster,
    one_server,
    pass_ms,
    two_servers,
)
from treepipe.studies.layered.specpipe_found import Found, Server
from treepipe.studies.layered.specpipe_page import page
from treepipe.studies.study import StudyResult

SPECINFER = ("schedule.name=specinfer",)
EAGLE = (
    "schedule.name=eagle",
    "schedule.tree_size=59",
    "schedule.tree_depth=6",
    "schedule.top_k=10",
    "acceptance={ source = 'profile', name = 'reference-eagle' }",
)
"""An EAGLE-2 tree of 60 rows with the root; its head's guesses are the bundled one's."""
EAGLE_PASSES = 7


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is done."""

    effort: Effort = field(default_factory=Effort)
    widths: Sequence[int] = (2, 4, 8, 16, 32, 48, 64, 80, 128)
    children: Sequence[int] = (2, 4, 8)
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32)
    batch_tokens: int = 48
    levels: Levels | None = None


def run(say: Say, full: bool) -> StudyResult:
    """6 runs of 300 tokens per point, or 8 of 500."""
    return study(Settings(Effort(8, 500)) if full else Settings(), say)


def study(settings: Settings, say: Say) -> StudyResult:
    """Calibrate, simulate everything, and write the page."""
    levels = settings.levels or find_levels(settings.effort, say)
    clusters = {"one-server": build(one_server()), "two-server": build(two_servers())}
    points = [
        point for name, cluster in clusters.items() for point in _cluster(name, cluster, levels)
    ]
    one = clusters["one-server"]
    points += _sweep(one, settings, acceptance(fmean(levels.six)))
    points += _sensitivity(one, levels.humaneval_x)
    points = [_with_effort(each, settings.effort) for each in points]
    points += _batches(one, settings, acceptance(levels.humaneval_x))
    outcomes = simulate_points(points, say)
    servers = {name: _server(name, cluster, outcomes, levels) for name, cluster in clusters.items()}
    return page(
        Found(
            levels,
            servers,
            _numbered(outcomes, "width", settings.widths),
            _numbered(outcomes, "children", settings.children),
            _numbered(outcomes, "batch", settings.batches),
            {name: outcomes[f"sensitivity/{name}"].metrics[METRIC] for name in SENSITIVITY},
            one,
        )
    )


def _cluster(name: str, cluster: Cluster, levels: Levels) -> list[Point]:
    """Every schedule on HumanEval-X, and the two trees over the six levels."""
    code, alike = acceptance(levels.humaneval_x), cluster.settings()
    whole = plain_ms(cluster)
    head_ms = pass_ms("rtx-3090", 1, True)[1]  # a layer and the output projection
    points = [
        Point(f"{name}/specpipe", SCENARIO, (*alike, *SPECPIPE, code)),
        Point(f"{name}/specinfer", SCENARIO, (*alike, *SPECINFER, code)),
        _drafting(f"{name}/specinfer_hidden_draft", cluster, 0.0, (*SPECINFER, code)),
        _drafting(f"{name}/eagle", cluster, whole / EAGLE_PASSES, EAGLE),
        _drafting(f"{name}/eagle_own_device", cluster, head_ms, EAGLE),
    ]
    for number, level in enumerate(levels.six):
        for schedule in (SPECPIPE, SPECINFER):
            label = f"{name}/{_name(schedule)}/{number}"
            points.append(Point(label, SCENARIO, (*alike, *schedule, acceptance(level))))
    return points


def _name(schedule: Sequence[str]) -> str:
    return schedule[0].rpartition("=")[2]


def _drafting(label: str, cluster: Cluster, pass_time_ms: float, settings: Sequence[str]) -> Point:
    """With other times of the draft."""
    other = replace(cluster, draft_ms={1: pass_time_ms})
    return Point(label, SCENARIO, (*other.settings(), *settings))


def _sweep(cluster: Cluster, settings: Settings, level: str) -> list[Point]:
    """Widths, and candidates per node, at the mean of the six levels."""
    alike = (*cluster.settings(), *SPECPIPE, level)
    return [
        *(Point(f"width={w}", SCENARIO, (*alike, f"schedule.width={w}")) for w in settings.widths),
        *(
            Point(f"children={c}", SCENARIO, (*alike, f"schedule.children={c}"))
            for c in settings.children
        ),
    ]


SENSITIVITY = (
    "specpipe, draft as unsure as recorded",
    "specinfer, draft as unsure as recorded",
    "specpipe, width 32",
    "specpipe, pruning costs nothing",
    "specpipe, drafted by the 8B model",
)


def _sensitivity(cluster: Cluster, level: float) -> list[Point]:
    """What the calibration's assumptions are worth, on HumanEval-X."""
    alike, code = cluster.settings(), acceptance(level)
    unsure = acceptance(level, sharpness=1.0)
    free, slow = replace(cluster, prune_ms=0.0), replace(cluster, draft_ms={1: 67.0})
    variants = (
        (*alike, *SPECPIPE, unsure),
        (*alike, *SPECINFER, unsure),
        (*alike, *SPECPIPE, code, "schedule.width=32"),
        (*free.settings(), *SPECPIPE, code),
        (*slow.settings(), *SPECPIPE, code),
    )
    return [
        Point(f"sensitivity/{name}", SCENARIO, variant)
        for name, variant in zip(SENSITIVITY, variants, strict=True)
    ]


def _batches(cluster: Cluster, settings: Settings, level: str) -> list[Point]:
    """SpecPipe-DB with as many clients as places; three requests each."""
    return [
        Point(
            f"batch={count}",
            SCENARIO,
            (
                *cluster.settings(),
                *SPECPIPE,
                level,
                "schedule.name=specpipe_db",
                f"schedule.batch={count}",
                f"workload.concurrency={count}",
                f"workload.requests={3 * count}",
                f"workload.new_tokens={settings.batch_tokens}",
                f"runs={3 if count > 4 else 3 * settings.effort.runs}",
            ),
        )
        for count in settings.batches
    ]


def _with_effort(point: Point, effort: Effort) -> Point:
    return replace(point, settings=(*point.settings, *effort.settings()))


def _numbered(outcomes: dict[str, Outcome], key: str, values: Sequence[int]) -> dict[int, Outcome]:
    return {value: outcomes[f"{key}={value}"] for value in values}


def _server(name: str, cluster: Cluster, outcomes: dict[str, Outcome], levels: Levels) -> Server:
    numbers = range(len(levels.six))
    return Server(
        plain_ms(cluster),
        {
            schedule: outcomes[f"{name}/{schedule}"].metrics[METRIC]
            for schedule in (
                "specinfer",
                "specinfer_hidden_draft",
                "eagle",
                "eagle_own_device",
                "specpipe",
            )
        },
        [outcomes[f"{name}/specpipe/{n}"].metrics[METRIC] for n in numbers],
        [outcomes[f"{name}/specinfer/{n}"].metrics[METRIC] for n in numbers],
    )
