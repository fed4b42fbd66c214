"""Is it faster for real? What a plan chose for this machine, side by side with ``generate()``.

Nothing is emulated. Plans are searched with this machine's own profiles; each schedule's best one
and the library's plain and assisted generation continue the same prompts in turns, so that a
machine whose speed drifts treats them alike. Prompts are read within the time of all of them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.computing import use
from treepipe.executor.controller import Controller
from treepipe.executor.launch import Launch, prepare
from treepipe.planner.cluster import Cluster
from treepipe.planner.halving import search
from treepipe.results.sheet import Column, Sheet
from treepipe.results.show import Say
from treepipe.scenario.computing import ONE_CORE, Compute
from treepipe.scenario.deployment import RequestSpec
from treepipe.scenario.scenario import Scenario
from treepipe.studies.study import Entry

AIMS = {
    "best_over_generate": 1.5,
    "best_over_assisted": 1.2,
    "two_stages_over_generate": 1.0,
    "chosen_over_best": 0.95,
    "two_stages_chosen_over_best": 0.95,
}
"""Of the ratios of tokens per second, at least; of others there is no aim."""
SEARCH: Mapping[str, Any] = {
    "cases": 0,
    "schedules": (
        "pp",
        "chain",
        "specinfer",
        "naive_pp",
        "pruned_pp",
        "flowspec",
        "pipedec",
        "specpipe",
        "starsd",
    ),
    "grid": {
        "schedule.tree_size": (4, 8, 16),
        "schedule.tree_depth": (2, 3, 4),
        "schedule.top_k": (2,),
        "schedule.gamma": (1, 2, 3, 4),
        "schedule.segment_tokens": (4,),
        "schedule.expand_size": (4,),
        "schedule.expand_depth": (2,),
        "schedule.branching": ((1, 1, 1), (2, 1, 1), (2, 2, 1)),
        "schedule.width": (1, 2, 4),
        "schedule.children": (2,),
    },
}
"""Small trees: a pass on a core costs nearly as much again with the second row."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens per second of one contender, round by round; ``stages`` is 0 for ``generate()``."""

    label: str
    stages: int
    threads: int
    rates: Sequence[float]

    def over(self, other: Speed) -> float:
        """The median of the rounds' ratios."""
        return median(a / b for a, b in zip(self.rates, other.rates, strict=True))


@dataclass(frozen=True, slots=True)
class _Contender:
    label: str
    stages: int
    threads: int
    rate: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Speeds:
    """What was measured: of each number of stages the plans, the chosen one first."""

    generate: Mapping[int, Speed]
    assisted: Speed
    plans: Mapping[int, Sequence[Speed]]

    @property
    def ratios(self) -> dict[str, float]:
        """Tokens per second over those of what it is held against, by the names in ``AIMS``."""
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
        """One sentence. The best is found by the rounds that it is told of, which flatters it."""
        plain, shown = self.generate[1], []
        for stages, plans in self.plans.items():
            best = max(plans, key=lambda each: each.over(plain))
            other = self.generate[stages]
            shown.append(
                f"{plans[0].label}, as planned for {stages} stage{'s' if stages > 1 else ''}, "
                f"decodes {plans[0].over(other):.2f} times as fast as generate() with as many "
                f"threads; the fastest of {len(plans)} that were run, {best.label}, "
                f"{best.over(other):.2f} times"
            )
        return "; ".join(shown)

    @property
    def sheet(self) -> Sheet:
        sheet = Sheet(
            "speed",
            "Tokens per second with the heavy pair, side by side",
            [
                Column("what"),
                Column("stages", shown=".0f"),
                Column("threads each", shown=".0f"),
                Column("tokens/s", "1/s", shown=".1f"),
                Column("over generate()", shown=".2f"),
            ],
        )
        plans = itertools.chain.from_iterable(self.plans.values())
        for each in (*self.generate.values(), self.assisted, *plans):
            plain = self.generate[max(1, each.stages, each.threads)]
            sheet.add(each.label, each.stages, each.threads, median(each.rates), each.over(plain))
        return sheet


def speeds(
    base: Scenario, plans: int, rounds: int, say: Say, searched: Mapping[str, Any] = SEARCH
) -> Speeds:
    """Search plans on one and two stages, and run them beside ``generate()``.

    Args:
        base: this machine, calibrated; its first pipeline's stages are counted anew.
        plans: of different schedules, per number of stages.
        rounds: how often each contender continues all prompts.
        searched: the table ``[search]`` of a cluster file.
    """
    contenders = _generations(prepare(base))
    for stages in (1, 2):
        scenario = base.with_(**{"pipelines.0.stages.0.count": stages})
        contenders += _chosen(scenario, stages, plans, searched, say)
    say("side by side", rounds * len(contenders))
    rates: list[list[float]] = [[] for _ in contenders]
    for _ in range(rounds):
        for contender, own in zip(contenders, rates, strict=True):
            own.append(contender.rate())
            say("", 1)
    found = [
        Speed(each.label, each.stages, each.threads, own)
        for each, own in zip(contenders, rates, strict=True)
    ]
    return Speeds(
        {each.threads: each for each in found[:2]},
        found[2],
        {n: [each for each in found[3:] if each.stages == n] for n in (1, 2)},
    )


def _chosen(
    scenario: Scenario, stages: int, plans: int, searched: Mapping[str, Any], say: Say
) -> Iterator[_Contender]:
    """The best plans of so many schedules, best first; and plain decoding, to tell what drafts are
    worth from what this executor's layers are."""
    content = {key: value for key, value in scenario.content.items() if key != "schedule"}
    found = search(Cluster.of({**content, "search": dict(searched)}, scenario.path), say)
    seen: set[str] = set()
    for each in found.ranking:
        candidate = each.candidate
        if candidate.schedule not in seen and len(seen) < plans:
            seen.add(candidate.schedule)
            launch = prepare(candidate.scenario)
            yield _Contender(candidate.label, stages, 1, partial(_rate, launch))
    if "pp" not in seen:
        launch = prepare(scenario.with_(schedule={"name": "pp"}))
        yield _Contender("pp", stages, 1, partial(_rate, launch))


def _rate(launch: Launch) -> float:
    """Tokens per second of all requests, one after another, behind a first one that warms up."""
    with Controller(launch.roles, launch.deployment) as controller:
        controller.run(launch.deployment.asked(launch.deployment.requests[:1]))
        trace, _ = controller.run(launch.deployment)
    seconds = sum(r.finished_ms - r.started_ms for r in trace.requests) / 1e3
    return sum(len(r.tokens) for r in trace.requests) / seconds


def _generations(launch: Launch) -> list[_Contender]:
    """``generate()`` with one thread and with two, and assisted with one."""
    requests = launch.deployment.requests
    target = whole_model(launch.target)
    assert launch.draft is not None, "the pair has a draft"
    draft = whole_model(launch.draft)
    return [
        _Contender("generate()", 0, 1, partial(generate_rate, target, None, requests, 1)),
        _Contender("generate()", 0, 2, partial(generate_rate, target, None, requests, 2)),
        _Contender("assisted generate()", 0, 1, partial(generate_rate, target, draft, requests, 1)),
    ]


def whole_model(checkpoint: Checkpoint) -> Any:
    """The library's own model."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # assisted generation warns of how it calls itself
    return AutoModelForCausalLM.from_pretrained(checkpoint.directory, dtype=torch.float32).eval()


def generate_rate(
    target: Any, draft: Any | None, requests: Sequence[RequestSpec], threads: int
) -> float:
    """Tokens per second of the library's greedy ``generate()``, assisted where there is a draft."""
    use(Compute(threads=threads))
    _generate(target, draft, requests[0])
    began = time.perf_counter()
    tokens = sum(_generate(target, draft, request) for request in requests)
    seconds = time.perf_counter() - began
    use(ONE_CORE)
    return tokens / seconds


def _generate(target: Any, draft: Any | None, request: RequestSpec) -> int:
    """How many tokens came, as many as a run of ours decodes."""
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
