"""The gain and the cost of adaptive verification, run on the bundled pair by the executor.

Real processes decode; the target alone then reads every text and counts the tokens that exact
decoding would not have chosen after the same prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import torch

from treepipe.executor.measure.calibration import WholeModel
from treepipe.executor.run.controller import Controller
from treepipe.executor.run.launch import Launch, prepare
from treepipe.progress import Progress
from treepipe.results.metrics import METRIC, run_metrics
from treepipe.studies.dsd.testbed import REGION_RATIO, T0_MS, Cell

NODES, RATIO = 4, REGION_RATIO[0]
"""Nodes and ratio of the runs: the lower border of the claimed region."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A run with one tau_max.

    Attributes:
        token_ms: time between tokens.
        tokens: tokens per window.
        differing: share of tokens that are not the target's own choice after the same prefix (each
            has total variation 1 from greedy decoding).
        nats: mean surprise of the target at a token of the text.
    """

    tau_max: float
    token_ms: float
    tokens: float
    differing: float
    nats: float

    @property
    def window_ms(self) -> float:
        """Measured time of a window, which other load on the host increases."""
        return self.token_ms * self.tokens


def emulated_window_ms() -> float:
    """Return the longest window of the emulated nodes: drafting that is not hidden, and a pass."""
    cell = Cell(NODES, RATIO, 0.0)
    return T0_MS * (cell.gamma * cell.draft + cell.window + cell.ways)


def run_adaptive(taus: Sequence[float], prompts: int, tokens: int, say: Progress) -> list[Relaxed]:
    """Decode greedily over the emulated nodes with every tau_max; the first must be 0: exact."""
    torch.set_num_threads(1)
    found = []
    for tau in taus:
        launch = _launch(tau, prompts, tokens)
        say(f"running tau_max = {tau:g}", len(launch.deployment.requests))
        first = replace(launch.deployment, requests=launch.deployment.requests[:1])
        with Controller(launch.roles, launch.deployment) as controller:
            controller.run(first)  # warm-up
            trace, _ = controller.run(launch.deployment, lambda: say("", 1))
        metrics = run_metrics(trace)
        read = _read(launch, [tuple(request.tokens) for request in trace.requests])
        found.append(Relaxed(tau, metrics[METRIC], metrics["tokens_per_round"], *read))
    return found


def _launch(tau: float, prompts: int, tokens: int) -> Launch:
    changes = {
        "target.layers": 8,
        "sampling.rule": "adaptive",
        "sampling.tau_max": tau,
        "workload.requests": prompts,
        "workload.new_tokens": tokens,
        "workload.stop_at_end_of_text": False,
        "runs": 1,
    }
    return prepare(Cell(NODES, RATIO, 0.5).scenario("dsd", **changes))


def _read(launch: Launch, texts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Return the share of tokens that are not the target's choice, and its mean surprise (nats)."""
    requests = launch.deployment.requests
    longest = max(len(r.prompt) + len(text) for r, text in zip(requests, texts, strict=True))
    whole = WholeModel(launch.target, longest)
    wrong, nats = list[float](), list[float]()
    for request, text in zip(requests, texts, strict=True):
        tokens = [*request.prompt, *text]
        whole.stage.open(0)
        logits = whole.read(tokens[:-1], range(len(tokens) - 1), None)[len(request.prompt) - 1 :]
        whole.stage.close(0)
        chosen = torch.tensor(text)
        wrong += (logits.argmax(-1) != chosen).float().tolist()
        each = -logits.double().log_softmax(-1)[torch.arange(len(chosen)), chosen]
        nats += each.tolist()
    return fmean(wrong), fmean(nats)
