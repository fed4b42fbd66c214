"""Sampling through real processes: continuations have exactly the target's distribution.

A vocabulary of 8 tokens and 3 new tokens: the exact probability of each of the 512 continuations
is computed from the unpartitioned model, and the sampled counts are held against it (chi-square).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from tests.worlds.changed import changed
from tests.worlds.deployments import small_deployment
from tests.worlds.real_runs import run_once
from treepipe.core.cache_room import PAGE
from treepipe.core.system import Ends
from treepipe.core.verification import Adaptive, Sampling, target_distribution
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.measure.calibration import WholeModel
from treepipe.executor.verifier import new_rule
from treepipe.scenario.deployment import RequestSpec, Room
from treepipe.scenario.schema import SamplingSection
from treepipe.testing.random_model import save_random_checkpoint

pytestmark = pytest.mark.processes

VOCABULARY, HORIZON, REQUESTS = 8, 3, 125
PROMPT = (1, 5, 2, 7) * 3 + (1, 5, 2)
NARROW: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9, "top_k": 5}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    target = save_random_checkpoint(folder / "target", layers=4, seed=5, vocabulary=VOCABULARY)
    draft = save_random_checkpoint(folder / "draft", layers=1, seed=6, vocabulary=VOCABULARY)
    return target, draft


def exact(directory: Path, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of the prompt."""
    whole = WholeModel(Checkpoint.open(directory), 32)

    def following(text: tuple[int, ...]) -> npt.NDArray[np.float64]:
        whole.stage.open(0)
        logits = whole.read((*PROMPT, *text), range(len(PROMPT) + len(text)), None)[-1]
        whole.stage.close(0)
        return target_distribution(logits.double().numpy(), sampling)

    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(HORIZON):
        found = {
            (*text, token): probability * share
            for text, probability in found.items()
            for token, share in enumerate(following(text))
            if probability * share
        }
    return found


def p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square of counts against probabilities; rare continuations share one cell."""
    total = counts.total()
    assert set(counts) <= set(expected), "an impossible continuation was sampled"
    common = [text for text, share in expected.items() if share * total >= 5]
    shares = np.array([expected[text] for text in common])
    seen = np.array([counts[text] for text in common])
    if (rest := 1 - shares.sum()) * total > 1e-6:
        shares, seen = np.append(shares, rest), np.append(seen, total - seen.sum())
    result: float = stats.chisquare(seen, shares / shares.sum() * total).pvalue
    return result


@pytest.mark.parametrize(
    ("name", "rule", "ends"),
    [("flowspec", "exact", "pipeline"), ("specinfer", "rejection", "draft")],
)
def test_continuations_have_the_targets_distribution(
    pair: tuple[Path, Path], name: str, rule: str, ends: Ends
) -> None:
    """Verified at the last stage, and where the draft is. (Every system has this law in memory:
    ``tests/core/test_sampling_exact.py``.)

    A prompt has 15 tokens: the second new one takes another page, of which there are four for
    three requests. Requests that are preempted draw again, anew; what was emitted stays."""
    section = SamplingSection(rule=rule, **NARROW)
    sizes: dict[str, Any] = {"branching": (2, 2, 1)} if name == "specinfer" else {}
    deployment = small_deployment(name, clients=3, sampling=section, ends=ends, children=3, **sizes)
    deployment = changed(
        deployment,
        requests=(RequestSpec(PROMPT, HORIZON),) * REQUESTS,
        seed=11,
        cache="paged",
        room=Room((4 * PAGE,), (4 * PAGE,)),
    )
    trace, _ = run_once(pair, deployment, sampling=section, emulate=False)
    assert sum(request.preemptions for request in trace.requests) > REQUESTS / 10
    counts = Counter(request.tokens for request in trace.requests)
    assert counts.total() == REQUESTS
    sampling = Sampling(section.temperature, section.top_p, section.top_k)
    assert p_value(counts, exact(pair[0], sampling)) > 1e-4


def test_the_signals_weights_reach_the_rule() -> None:
    """p and q differ, and their best tokens are the same: only the signal that counts is low."""
    p, q = np.array([0.6, 0.4, 0.0]), np.array([0.9, 0.1, 0.0])
    found = {}
    for alone in ("contrast", "matches", "agreement"):
        others = {f"{name}_weight": 0.0 for name in ("contrast", "matches", "agreement")}
        section = SamplingSection(
            rule="adaptive", tau_max=1.0, **{**others, f"{alone}_weight": 1.0}
        )
        rule = new_rule(section, np.random.default_rng(0))
        assert isinstance(rule, Adaptive)
        found[alone] = rule._tau(p, q)
    contrast = 0.9 * np.log(0.9 / 0.6) + 0.1 * np.log(0.1 / 0.4)
    assert found["contrast"] == pytest.approx(np.exp(-contrast))
    assert found["matches"] == pytest.approx(0.55)
    assert found["agreement"] == pytest.approx(0.7)
