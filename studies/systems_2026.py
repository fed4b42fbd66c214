"""SPD's wall speed-ups from its theoretical ones, and an engine's ratio with and without drafts.

SPD: a cycle is the longer of the draft, by its depth, and a stage's layers, with messages, and a
verification where a token comes back, which no cycle of a refill has. All times are those of plain
decoding and of the published profile; a row follows by the closed form from the hit ratio that its
theoretical speed-up implies. vLLM: the RFC's own step and its fixed time per round are simulated in
the engine's microbatch slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from treepipe.progress import Progress
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome
from treepipe.sim.theory.closed_form import closed_form
from treepipe.studies.plots import PUBLISHED, Line, Panel, line_figure, shaded
from treepipe.studies.reproduction import (
    Reproduction,
    predicted,
    published,
    simulated,
    widened,
)
from treepipe.studies.study import Entry, StudyResult, relative_error

NAME = "systems-2026"
PAGE = Path(__file__).with_name("systems-2026.md")
MODELS = {"4b/t0": "4B, T = 0", "4b/t1": "4B, T = 1", "9b/t0": "9B, T = 0"}
STREAMS = (1, 8)


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job: runs of each point, and new tokens of a request."""

    runs: int = 6
    tokens: int = 512


SHORT = Settings()
FULL = Settings(runs=24)


class Cycle(NamedTuple):
    """What a cycle consists of.

    Attributes:
        layer: a layer of the draft over a plain token; its projections take as long as one more, so
            that L layers hide behind stages of L + 1 (SPD's rule).
        fixed_ms: messages, with four stages, and what every doubling of the stages adds.
    """

    layer: float
    fixed_ms: float
    doubling_ms: float

    def draft_ms(self, row: str) -> float:
        return self.layer * serial_ms(row) * (int(row.split("-ls")[1]) + 1)

    def messages_ms(self, row: str) -> float:
        return self.fixed_ms + self.doubling_ms * log2(stages_of(row) / 4)


VERIFY_MS: float = published()["spd"]["profile_ms"]["n4"]["verify"]


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


def cycles() -> list[Cycle]:
    """Return the cycle by the profile, with its draft of four layers and four stages, and the
    shortest and the longest that are as likely: the draft as with eight stages, messages that do
    not grow with the stages; a draft's layer like the target's, messages growing twice as fast."""
    facts = published()["spd"]
    (draft, fixed_ms), (fast, longer_ms) = (
        (p["draft"] / 5 / serial_ms("4b/t0/n4-ls4"), p["cycle"] - p["stage"] - p["verify"])
        for p in facts["profile_ms"].values()
    )
    more_ms = longer_ms - fixed_ms
    slow = 1 / facts["layers"]
    ends = ((draft, more_ms), (fast, 0.0), (slow, 2 * more_ms))
    return [Cycle(layer, fixed_ms, doubling_ms) for layer, doubling_ms in ends]


def spd_scenario(row: str, cycle: Cycle, settings: Settings) -> Scenario:
    """Make the scenario of a row: stages, draft and messages side by side in every cycle, and a
    verification in those that return a token."""
    sent_ms, part_ms = cycle.messages_ms(row), serial_ms(row) / stages_of(row)
    draft = {"draft_ms": {"1": cycle.draft_ms(row) + sent_ms}, "decide_ms": VERIFY_MS}
    return _scenario(
        row,
        settings,
        {"name": "spd", "anchors": False},
        drafts=[{"device": draft}],
        stages=[{"device": {"stage_ms": {"1": part_ms + sent_ms}}, "count": stages_of(row)}],
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
    """Evaluate every row, and simulate the engine's streams."""
    spd = {
        row: [wall_of(row, spd_scenario(row, cycle, settings)) for cycle in cycles()]
        for row in published()["spd"]["theoretical"]
    }
    engines = {f"c={n}": engine_scenario(n, settings) for n in STREAMS}
    engine = simulated(engines, say)
    made = Reproduction(NAME, PAGE)
    walls = [_wall(row, *speeds) for row, speeds in spd.items()]
    ratios = [_ratio(n, engine[f"c={n}"]) for n in STREAMS]
    known = [each for each in walls if each.published]
    wide = made.leave_out({"spd/spd": known, "vllm-44697/engine_pp": ratios})
    walls, ratios = ([widened(each, wide) for each in group] for group in (walls, ratios))
    made.add(walls, "spd", "SPD: speed over one GPU")
    made.add(ratios, "engine", "vLLM: with drafts over without")
    errors = [abs(relative_error(each) or 0.0) for each in known]
    fields = {
        "cycle": cycles()[0],
        "profile": published()["spd"]["profile_ms"],
        "worst": max(errors),
        "draft_ms": {row: cycles()[0].draft_ms(row) for row in spd},
        "stage_ms": {row: serial_ms(row) / stages_of(row) for row in spd},
    }
    return made.result(fields, _figure({row: speed for row, (speed, *_) in spd.items()}))


def wall_of(row: str, scenario: Scenario) -> float:
    """Return the speed over one GPU in the long run."""
    return serial_ms(row) / closed_form(scenario).terms["long_run_time_between_tokens_ms"]


def _wall(row: str, *speeds: float) -> Entry:
    value = Interval(speeds[0], min(speeds), max(speeds))
    return predicted(f"spd/{row}/wall", "1", value, published()["spd"]["wall"].get(row))


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
