"""SPD's wall speed-ups from its theoretical ones, and an engine's ratio with and without drafts.

SPD: a cycle is the longer of the draft, by its depth, and a stage's layers, with a fixed part, and
with a verification where a token comes back, which no cycle of a refill has. Its times are the
published profile's; two rows of one model settle a stage and a layer of the draft, and every other
row follows by the closed form from the hit ratio that its theoretical speed-up implies. vLLM: the
RFC's own step and its fixed time per round are simulated in the engine's microbatch slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path
from typing import Any

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
    relative_error,
    simulated,
)
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
    """What a cycle consists of.

    Attributes:
        share: a stage's time over its part of a plain token.
        layer: a layer of the draft over a plain token; its projections take as long as one more, so
            that L layers hide behind stages of L + 1 (SPD's rule).
        fixed_ms: messages, with four stages, and what every doubling of the stages adds.
    """

    share: float
    layer: float
    fixed_ms: float
    doubling_ms: float

    def stage_ms(self, row: str) -> float:
        return self.share * serial_ms(row) / stages_of(row)

    def draft_ms(self, row: str) -> float:
        return self.layer * serial_ms(row) * (layers_of(row) + 1)

    def messages_ms(self, row: str) -> float:
        return self.fixed_ms + self.doubling_ms * log2(stages_of(row) / 4)


VERIFY_MS: float = published()["spd"]["profile_ms"]["n4"]["verify"]


def stages_of(row: str) -> int:
    """
    >>> stages_of("9b/t0/n16-ls2")
    16
    """
    return int(row.split("/n")[1].split("-")[0])


def layers_of(row: str) -> int:
    """Return the layers of the row's draft."""
    return int(row.split("-ls")[1])


def serial_ms(row: str) -> float:
    return 1e3 / float(published()["spd"]["serial_tokens_s"][row.split("/")[0]])


def hit_of(row: str) -> float:
    """Return the hit ratio p of a theoretical speed-up n / (1 + (n - 1)(1 - p))."""
    stages = stages_of(row)
    return 1 - (stages / float(published()["spd"]["theoretical"][row]) - 1) / (stages - 1)


def profiled_cycle() -> Cycle:
    """Return the cycle by the profile and plain decoding alone: a stage is its part of a plain
    token; the draft's layer is that of the profile with four stages."""
    profile = published()["spd"]["profile_ms"]
    four, eight = ({**profile[n], "rest": _rest_ms(profile[n])} for n in ("n4", "n8"))
    layer = four["draft"] / (layers_of(FITTED[0]) + 1) / serial_ms(FITTED[0])
    return Cycle(1.0, layer, four["rest"], eight["rest"] - four["rest"])


def _rest_ms(profile: Mapping[str, float]) -> float:
    return profile["cycle"] - max(profile["stage"], profile["draft"]) - profile["verify"]


def _as_profiled(row: str) -> float:
    """Return the error of the row's wall if its stages were as long as the profile has them."""
    profile = published()["spd"]["profile_ms"][f"n{stages_of(row)}"]
    waiting = 1 - published()["spd"]["theoretical"][row] / stages_of(row)
    return cycle_ms(row) / (profile["cycle"] - waiting * VERIFY_MS) - 1


def cycle_ms(row: str) -> float:
    """Return the row's published mean cycle: wall = theoretical (T / n) / cycle."""
    facts = published()["spd"]
    return float(facts["theoretical"][row] * serial_ms(row) / stages_of(row) / facts["wall"][row])


def fitted_cycle() -> Cycle:
    """Settle a stage by the row of four stages, which is longer than the draft, and the draft's
    layer by that of eight, whose stages have no more layers than the draft."""
    cycle = profiled_cycle()
    longer = {}
    for row in FITTED:
        tokens = published()["spd"]["theoretical"][row] / stages_of(row)
        longer[row] = cycle_ms(row) - cycle.messages_ms(row) - tokens * VERIFY_MS
    four, eight = FITTED
    share = longer[four] / cycle.stage_ms(four)
    return replace(cycle, share=share, layer=cycle.layer * longer[eight] / cycle.draft_ms(eight))


def ends_of(cycle: Cycle) -> list[Cycle]:
    """Return the shortest and the longest cycle that the profile admits: the draft's layer as with
    eight and with four stages, messages that do not grow with the stages or twice as fast."""
    profile, slow = published()["spd"]["profile_ms"], profiled_cycle().layer
    fast = slow * profile["n8"]["draft"] / profile["n4"]["draft"]
    return [
        replace(cycle, layer=layer, doubling_ms=times * cycle.doubling_ms)
        for layer, times in ((fast, 0), (slow, 2))
    ]


def spd_scenario(row: str, cycle: Cycle, settings: Settings) -> Scenario:
    """Make the scenario of a row: stages, draft and messages side by side in every cycle, and a
    verification in those that return a token."""
    fixed_ms = cycle.messages_ms(row)
    draft = {"draft_ms": {"1": cycle.draft_ms(row) + fixed_ms}, "decide_ms": VERIFY_MS}
    stage = {"device": {"stage_ms": {"1": cycle.stage_ms(row) + fixed_ms}}}
    return _scenario(
        row,
        settings,
        {"name": "spd", "anchors": False},
        drafts=[{"device": draft}],
        stages=[{**stage, "count": stages_of(row)}],
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
    spd = {row: _walls(row, cycle, settings) for row in facts["theoretical"]}
    engines = {f"c={n}": engine_scenario(n, settings) for n in STREAMS}
    engine = simulated(engines, say)
    made = Reproduction(NAME, PAGE)
    made.add([_wall(row, speed) for row, speed in spd.items()], "spd", "SPD: speed over one GPU")
    unfitted = [
        predicted(
            f"left-out/{row}", "1", _walls(row, profiled_cycle(), settings), facts["wall"][row]
        )
        for row in FITTED
    ]
    made.add(unfitted, "left-out", "SPD: the rows from the profile and plain decoding alone")
    ratios = [_ratio(n, engine[f"c={n}"]) for n in STREAMS]
    made.add(ratios, "engine", "vLLM: with drafts over without")
    errors = [relative_error(each) or 0.0 for each in unfitted]
    fields = {"cycle": cycle, "profile": facts["profile_ms"], "errors": errors}
    fields |= {
        "draft_ms": {row: cycle.draft_ms(row) for row in spd},
        "slow": _as_profiled(FITTED[0]),
    }
    fields |= {"stage_ms": {row: cycle.stage_ms(row) for row in spd}}
    return made.result(fields, _figure({row: speed.mean for row, speed in spd.items()}))


def _walls(row: str, cycle: Cycle, settings: Settings) -> Interval:
    """Return a row's speed, between those of the cycle's ends."""
    middle, *ends = (
        wall_of(row, spd_scenario(row, each, settings)) for each in (cycle, *ends_of(cycle))
    )
    return Interval(middle, min(middle, *ends), max(middle, *ends))


def wall_of(row: str, scenario: Scenario) -> float:
    """Return the speed over one GPU in the long run."""
    return serial_ms(row) / closed_form(scenario).terms["long_run_time_between_tokens_ms"]


def _wall(row: str, speed: Interval) -> Entry:
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
