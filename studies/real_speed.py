"""The speed of a plan for this machine, without emulation, beside that of ``generate()``.

Plans are searched with this machine's own profiles; each schedule's best one and the library's
plain and assisted generation continue the same prompts in turns, so that drifts of the machine's
speed affect all alike. The time of all of them includes the prompts' prefill.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch

from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.computing import use
from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import Launch, prepare
from treepipe.files.toml_file import read_toml
from treepipe.planner.cluster import Cluster
from treepipe.planner.plan import search
from treepipe.progress import Progress
from treepipe.results.sheet import Sheet, columns
from treepipe.scenario.deployment import ONE_CORE, Compute, RequestSpec
from treepipe.scenario.scenario import Scenario
from treepipe.studies.study import Entry, counted

_FILE = read_toml(Path(__file__).with_name("real-time.toml"))
AIMS: Mapping[str, float] = _FILE["speed"]
SEARCH: Mapping[str, Any] = _FILE["search"]


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one contender, round by round; ``stages`` is 0 for ``generate()``."""

    label: str
    stages: int
    threads: int
    rates: list[float] = field(default_factory=list)

    def over(self, other: Speed) -> float:
        """Return the median of the rounds' ratios."""
        return median(a / b for a, b in zip(self.rates, other.rates, strict=True))


Contender: TypeAlias = tuple[Speed, Callable[[], float]]
"""A record of rates, and a function that continues all prompts and returns tokens per second."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds: ``generate()`` by threads, and plans by number of stages, the chosen one first."""

    generate: Mapping[int, Speed]
    assisted: Speed
    plans: Mapping[int, Sequence[Speed]]

    @property
    def ratios(self) -> dict[str, float]:
        """Ratios of tokens per second between contenders, by the names in ``AIMS``."""
        plain, found = self.generate[1], {}
        best = {n: max(plans, key=lambda each: each.over(plain)) for n, plans in self.plans.items()}
        found["best_over_generate"] = best[1].over(plain)
        found["chosen_over_generate"] = self.plans[1][0].over(plain)
        found["best_over_assisted"] = best[1].over(self.assisted)
        found["chosen_over_best"] = self.plans[1][0].over(best[1])
        if 2 in best:
            found["two_stages_over_generate"] = best[2].over(self.generate[2])
            found["two_stages_chosen_over_best"] = self.plans[2][0].over(best[2])
        return found

    @property
    def entries(self) -> list[Entry]:
        return [
            Entry(f"speed/{what}", "1", measured=ratio, published=AIMS.get(what))
            for what, ratio in self.ratios.items()
        ]

    @property
    def finding(self) -> str:
        """One sentence; the rounds that measure the best plan also choose it (optimistic)."""
        plain, shown = self.generate[1], []
        for stages, plans in self.plans.items():
            best = max(plans, key=lambda each: each.over(plain))
            other = self.generate[stages]
            shown.append(
                f"{plans[0].label}, as planned for {counted(stages, 'stage')}, "
                f"decodes {plans[0].over(other):.2f} times as fast as generate() with as many "
                f"threads; the fastest of {len(plans)} that were run, {best.label}, "
                f"{best.over(other):.2f} times"
            )
        return "; ".join(shown)

    @property
    def sheet(self) -> Sheet:
        numbers = "stages|.0f", "threads each|.0f", "tokens/s (1/s)", "over generate()|.2f"
        title = "Tokens per second with the heavy pair, side by side"
        sheet = Sheet(title, columns("what", *numbers), name="speed")
        plans = itertools.chain.from_iterable(self.plans.values())
        for each in (*self.generate.values(), self.assisted, *plans):
            plain = self.generate[max(1, each.stages, each.threads)]
            sheet.add(each.label, each.stages, each.threads, median(each.rates), each.over(plain))
        return sheet


def speeds(
    base: Scenario, plans: int, rounds: int, say: Progress, searched: Mapping[str, Any] = SEARCH
) -> Speeds:
    """Search plans on one and two stages, and run them beside ``generate()``.

    Args:
        base: this machine's calibrated scenario; its first pipeline gets other numbers of stages.
        plans: number of plans of different schedules, per number of stages.
        rounds: number of times that each contender continues all prompts.
        searched: the table ``[search]`` of a cluster file.
    """
    contenders = _generations(prepare(base))
    for stages in (1, 2):
        scenario = base.with_(**{"pipelines.0.stages.0.count": stages})
        contenders += _chosen(scenario, stages, plans, searched, say)
    say("side by side", rounds * len(contenders))
    for _ in range(rounds):
        for speed, rate in contenders:
            speed.rates.append(rate())
            say("", 1)
    one, two, assisted, *planned = (speed for speed, _ in contenders)
    by_stages = {n: [each for each in planned if each.stages == n] for n in (1, 2)}
    return Speeds({1: one, 2: two}, assisted, by_stages)


def _chosen(
    scenario: Scenario, stages: int, plans: int, searched: Mapping[str, Any], say: Progress
) -> Iterator[Contender]:
    """Yield the best plans of up to ``plans`` schedules, best first; and plain decoding, which
    separates the drafts' effect from the executor's."""
    content = {key: value for key, value in scenario.content.items() if key != "schedule"}
    found = search(Cluster.of({**content, "search": dict(searched)}, scenario.path), say)
    seen: set[str] = set()
    for each in found.ranking:
        candidate = each.candidate
        if candidate.schedule not in seen and len(seen) < plans:
            seen.add(candidate.schedule)
            launch = prepare(candidate.scenario)
            yield Speed(candidate.label, stages, 1), partial(_rate, launch)
    if "pp" not in seen:
        launch = prepare(scenario.with_(schedule={"name": "pp"}))
        yield Speed("pp", stages, 1), partial(_rate, launch)


def _rate(launch: Launch) -> float:
    """Measure tokens per second over all requests, one after another, after a warm-up request."""
    with Controller(launch.roles, launch.deployment) as controller:
        controller.run(launch.deployment.asked(launch.deployment.requests[:1]))
        trace, _ = controller.run(launch.deployment)
    seconds = sum(r.finished_ms - r.started_ms for r in trace.requests) / 1e3
    return sum(len(r.tokens) for r in trace.requests) / seconds


def _generations(launch: Launch) -> list[Contender]:
    """Return ``generate()`` with one thread and with two, and assisted generation with one."""
    requests = launch.deployment.requests
    target = whole_model(launch.target)
    assert launch.draft is not None, "the pair has a draft"
    draft = whole_model(launch.draft)
    ways = (("generate()", None, 1), ("generate()", None, 2), ("assisted generate()", draft, 1))
    return [
        (Speed(label, 0, threads), partial(generate_rate, target, by, requests, threads))
        for label, by, threads in ways
    ]


def whole_model(checkpoint: Checkpoint) -> Any:
    """Load the checkpoint as the library's own model."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # silences warnings of assisted generation
    return AutoModelForCausalLM.from_pretrained(checkpoint.directory, dtype=torch.float32).eval()


def generate_rate(
    target: Any, draft: Any | None, requests: Sequence[RequestSpec], threads: int
) -> float:
    """Measure tokens per second of greedy ``generate()``, assisted if ``draft`` is given."""
    use(Compute(threads=threads))
    _generate(target, draft, requests[0])
    began = time.perf_counter()
    tokens = sum(_generate(target, draft, request) for request in requests)
    seconds = time.perf_counter() - began
    use(ONE_CORE)
    return tokens / seconds


def _generate(target: Any, draft: Any | None, request: RequestSpec) -> int:
    """Continue a prompt by as many tokens as a run decodes; returns their number."""
    ids = torch.tensor([request.prompt])
    text = target.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=request.max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(request.end_tokens) or None,
        pad_token_id=0,
        **({} if draft is None else {"assistant_model": draft}),
    )
    return int(text.shape[1] - ids.shape[1])
