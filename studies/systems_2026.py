"""SPD's wall speed-ups from its theoretical ones, and an engine's ratio with and without drafts.

SPD: two rows of one model give the time of a cycle, a stage's layers and a fixed part; every other
row follows by the closed form from the hit ratio that its theoretical speed-up implies. vLLM: the
RFC's own step and its fixed time per round are simulated in the engine's microbatch slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from treepipe.progress import Progress
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome
from treepipe.sim.theory.closed_form import closed_form
from treepipe.studies.plots import PUBLISHED, Line, Panel, line_figure, shaded
from treepipe.studies.reproduction import Reproduction, predicted, published, simulated, widened
from treepipe.studies.study import Entry, StudyResult

NAME = "systems-2026"
PAGE = Path(__file__).with_name("systems-2026.md")
FITTED = ("4b/t0/n4-ls4", "4b/t0/n8-ls4")
MODELS = {"4b/t0": "4B, T = 0", "4b/t1": "4B, T = 1", "9b/t0": "9B, T = 0"}
STREAMS = (1, 8)


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job: runs of each point, and new tokens of a request."""

    runs: int = 6
    tokens: int = 512


SHORT = Settings()
FULL = Settings(runs=24)


@dataclass(frozen=True, slots=True)
class Cycle:
    """The time of a cycle: ``fixed_ms``, and ``share`` of a stage's part of a plain token."""

    fixed_ms: float
    share: float


def stages_of(row: str) -> int:
    """
    >>> stages_of("9b/t0/n16-ls2")
    16
    """
    return int(row.split("/n")[1].split("-")[0])


def serial_ms(row: str) -> float:
    return 1e3 / float(published()["spd"]["serial_tokens_s"][row.split("/")[0]])


def hit_of(row: str) -> float:
    """Return the hit ratio p of a theoretical speed-up n / (1 + (n - 1)(1 - p))."""
    stages = stages_of(row)
    return 1 - (stages / float(published()["spd"]["theoretical"][row]) - 1) / (stages - 1)


def fitted_cycle() -> Cycle:
    """Solve two rows for the cycle: wall = theoretical (T / n) / (fixed + share T / n)."""
    facts, parts = published()["spd"], list[tuple[float, float]]()
    for row in FITTED:
        part = serial_ms(row) / stages_of(row)
        parts.append((part, facts["theoretical"][row] * part / facts["wall"][row]))
    (short, short_ms), (long, long_ms) = sorted(parts)
    share = (long_ms - short_ms) / (long - short)
    return Cycle(short_ms - share * short, share)


def spd_scenario(row: str, cycle: Cycle, settings: Settings) -> Scenario:
    """Make the scenario of a row: the fixed part of a cycle is in every stage's pass, side by
    side."""
    stages, part = stages_of(row), serial_ms(row) / stages_of(row)
    return _scenario(
        row,
        settings,
        {"name": "spd", "anchors": False},
        drafts=[{"device": {"draft_ms": {"1": 0.0}}}],
        stages=[
            {"device": {"stage_ms": {"1": cycle.fixed_ms + cycle.share * part}}, "count": stages}
        ],
        beta=hit_of(row),
    )


def engine_scenario(streams: int, settings: Settings) -> Scenario:
    """Make vLLM's pipeline: the fixed time of a round is spent on the last stage's device, where
    the draft works; only the first token's acceptance is known, so no second one is drafted."""
    facts = published()["engines"]["vllm-44697"]
    stage = {"stage_ms": {"1": facts["step_ms"] / 4}}
    last = {**stage, "decide_ms": facts["per_round_ms"] / max(1, streams // 4)}
    order = {"receives_first": False, "feedback": "broadcast", "drafts_first": True}
    return _scenario(
        f"vllm-44697/c={streams}",
        settings,
        {"name": "engine_pp", "gamma": 1, **order},
        drafts=[{"device": {"draft_ms": {"1": 0.0}}, "host": "last"}],
        stages=[{"device": stage, "count": 3}, {"device": last, "host": "last"}],
        beta=facts["accepted_first"],
        streams=streams,
    )


def _scenario(
    name: str,
    settings: Settings,
    schedule: Mapping[str, Any],
    *,
    drafts: Sequence[Any],
    stages: Sequence[Any],
    beta: float,
    streams: int = 1,
) -> Scenario:
    content = {
        "name": name,
        "runs": settings.runs,
        "target": {"layers": 48},
        "drafts": drafts,
        "pipelines": [{"stages": stages}],
        "links": {"default": {"latency_ms": 0.0}},
        "schedule": schedule,
        "serving": {"batch": max(1, streams // 4)},
        "acceptance": {"source": "bernoulli", "beta": beta},
        "workload": {
            "prompt_tokens": 1,
            "new_tokens": settings.tokens,
            "requests": streams,
            "concurrency": streams,
        },
    }
    if schedule["name"] == "spd":
        del content["serving"]
    return Scenario.of(content, Path(f"{NAME}.toml"))


# --- figures -------------------------------------------------------------------------------------


def study(settings: Settings, say: Progress) -> StudyResult:
    """Fit the cycle, simulate every row, and the engine's streams."""
    facts, cycle = published()["spd"], fitted_cycle()
    spd = {row: wall_of(row, spd_scenario(row, cycle, settings)) for row in facts["theoretical"]}
    engines = {f"c={n}": engine_scenario(n, settings) for n in STREAMS}
    engine = simulated(engines, say)
    made = Reproduction(NAME, PAGE)
    made.add([_wall(row, speed) for row, speed in spd.items()], "spd", "SPD: speed over one GPU")
    ratios = [_ratio(n, engine[f"c={n}"]) for n in STREAMS]
    wide = made.leave_out({"vllm-44697/engine_pp": ratios})
    ratios = [widened(each, wide) for each in ratios]
    made.add(ratios, "engine", "vLLM: with drafts over without")
    fields = {"cycle": cycle, "profile": facts["profile_ms"]}
    return made.result(fields, _figure(spd))


def wall_of(row: str, scenario: Scenario) -> float:
    """Return the speed over one GPU in the long run."""
    return serial_ms(row) / closed_form(scenario).terms["long_run_time_between_tokens_ms"]


def _wall(row: str, speed: float) -> Entry:
    fact = published()["spd"]["wall"].get(row)
    return predicted(f"spd/{row}/wall", "1", speed, fact, fitted=row in FITTED)


def _ratio(streams: int, outcome: Outcome) -> Entry:
    facts = published()["engines"]["vllm-44697"]
    plain, fast = (facts[f"{kind}_tokens_s"][f"c{streams}"] for kind in ("plain", "speculative"))
    rate = outcome.metrics["throughput_tokens_s"].mean
    return predicted(f"engine/vllm-44697/c={streams}/ratio", "1", rate / plain, fast / plain)


def _figure(spd: Mapping[str, float]) -> Figure:
    facts, panels = published()["spd"], []
    for model, called in MODELS.items():
        rows = [row for row in spd if row.startswith(model) and not row.endswith("ls3")]
        theory = {stages_of(row): facts["theoretical"][row] for row in rows}
        wall = {stages_of(row): spd[row] for row in rows}
        seen = {stages_of(row): facts["wall"][row] for row in rows if row in facts["wall"]}
        lines = shaded({"theoretical, published": theory, "wall, predicted": wall})
        panels.append(Panel(called, [*lines, Line(seen, PUBLISHED)]))
    return line_figure("SPD: speed over one GPU", "stages", panels)
