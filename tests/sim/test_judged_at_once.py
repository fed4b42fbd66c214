"""Block verification predicted from recorded ratios, beside the rule itself on the same models."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.theory_scenarios import Written
from treepipe.core.verification import Block, Distribution, draw
from treepipe.executor.measure.acceptance import rejection_rank
from treepipe.profiles.pool_file import Made, PoolFile, Prompt, Table
from treepipe.results.metrics import run_metrics
from treepipe.scenario.memory import fitted
from treepipe.scenario.resolve import resolve
from treepipe.scenario.workload import draw_requests
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.validation.comparison import CalibratedAcceptance, predict_case

TOKENS, GAMMA, LENGTH = 5, 4, 400


def models(history: tuple[int, ...]) -> tuple[Distribution, Distribution]:
    """Distributions of target and draft behind a text's last two tokens."""
    return behind(*history[-2:])


@cache
def behind(first: int, second: int) -> tuple[Distribution, Distribution]:
    own = np.random.default_rng([first, second, 1]).normal(size=TOKENS)
    other = np.random.default_rng([first, second, 2]).normal(size=TOKENS)
    return np.exp(own) / np.exp(own).sum(), np.exp(own + other) / np.exp(own + other).sum()


@cache
def recorded(seed: int, *, ratios: bool = True) -> Prompt:
    """One text of the target's, as the acceptance recorder notes it under rule "rejection"."""
    rng, text = np.random.default_rng(seed), [0, 1]
    vectors, ranks, found = [], [], []
    for _ in range(LENGTH):
        p, q = models(tuple(text))
        text.append(draw(p, rng))
        vectors.append(np.log(np.sort(q)[::-1]))
        ranks.append(min(TOKENS, rejection_rank(p, q, text[-1], rng)))
        found.append(float(np.log(q[text[-1]] / p[text[-1]])))
    return Prompt(Table(np.array(vectors), ranks, found if ratios else ()))


def pool_of(folder: Path, *, ratios: bool) -> str:
    prompts = [recorded(seed, ratios=ratios) for seed in range(12)]
    made = Made({"temperature": 1.0, "rule": "rejection", "top_p": 1.0, "top_k": 0}, {})
    pool = PoolFile(TOKENS, prompts, {1: prompts[0].known.vectors[:9]}, made=made)
    pool.save(folder / "pool.json", "--out")
    return "pool.json"


def played(rounds: int) -> float:
    """Tokens of a round by the rule itself, which draws the chains."""
    rng, text = np.random.default_rng(7), [0, 1]
    for _ in range(rounds):
        drawn, q = list[int](), []
        for _ in range(GAMMA):
            q.append(models((*text, *drawn))[1])
            drawn.append(draw(q[-1], rng))
        p = [models((*text, *drawn[:size]))[0] for size in range(GAMMA + 1)]
        text += Block(rng).chain(p, drawn, q)
    return (len(text) - 2) / rounds


FEW = "workload.requests=3", "workload.new_tokens=60"
"""For what is equal to the last digit, in short texts, too."""


def chain(folder: Path, rule: str, *changes: str, ratios: bool = True) -> Written:
    file = pool_of(folder, ratios=ratios)
    return Written(
        "chain",
        f'acceptance={{source="pool", file="{file}"}}',
        "sampling.temperature=1",
        f"sampling.rule={rule}",
        "schedule.ends=draft",
        "workload.new_tokens=400",
        "workload.requests=10",
        *changes,
        folder=folder,
    )


def predicted(folder: Path, rule: str, *changes: str, ratios: bool) -> tuple[float, list[str]]:
    (trace,) = chain(folder, rule, *changes, ratios=ratios).simulated()
    return run_metrics(trace)["tokens_per_round"], trace.warnings


def test_a_prediction_keeps_as_many_tokens_as_the_rule(tmp_path: Path) -> None:
    expected = played(4000)
    found, warned = predicted(tmp_path, "block", ratios=True)
    assert found == pytest.approx(expected, rel=0.03)
    assert not any("one by one" in each for each in warned)
    one_by_one, _ = predicted(tmp_path, "rejection", ratios=True)
    assert found > 1.03 * one_by_one


def test_a_validation_predicts_what_a_simulation_does(tmp_path: Path) -> None:
    scenario = chain(tmp_path, "block", *FEW).scenario
    requests = draw_requests(scenario, scenario.seed)
    (deployment,) = fitted([resolve(scenario).asked(requests, scenario.seed)])
    acceptance = CalibratedAcceptance(*acceptance_pool(scenario))
    found = predict_case(deployment, scenario, acceptance, lambda *_: None)
    expected, _ = predicted(tmp_path, "block", *FEW, ratios=True)
    assert found.metrics["tokens_per_round"].mean == expected


def test_without_ratios_tokens_are_judged_one_by_one(tmp_path: Path) -> None:
    found, warned = predicted(tmp_path, "block", *FEW, ratios=False)
    assert found == predicted(tmp_path, "rejection", *FEW, ratios=False)[0]
    assert any("one by one, which accepts as many or fewer" in each for each in warned)


def test_a_pool_keeps_its_ratios(tmp_path: Path) -> None:
    prompt = PoolFile.load(tmp_path / pool_of(tmp_path, ratios=True)).prompts[0]
    assert prompt.beginning(3).known.log_ratios == recorded(0).known.log_ratios[:3]
