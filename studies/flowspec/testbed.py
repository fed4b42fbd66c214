"""FlowSpec's testbed as scenarios: what the study varies, and what it assumes of models and data.

Law of this file: nothing is fitted and no result is known here. Sources: FlowSpec (2025), section
4.1 and appendix A.1; what they leave open is marked as an assumption.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from treepipe.physics.timing import TimeTable
from treepipe.profiles.library import LIBRARY, load_device, load_model, shape_of
from treepipe.profiles.schema import Hardware
from treepipe.profiles.service import ServedModel, ServiceTimes
from treepipe.scenario.scenario import Scenario

Size: TypeAlias = Literal["7b", "13b"]

SCENARIO = Path(__file__).parent / "testbed.toml"
NEW_TOKENS = 128
STAGES = 4
DEVICE = "jetson-orin-nano-8gb"
PROFILES: dict[Size, tuple[str, str]] = {
    "7b": ("vicuna-7b", "eagle-vicuna-7b"),
    "13b": ("vicuna-13b", "eagle-vicuna-13b"),
}
"""Target and draft; Llama 2 Chat has the same sizes as Vicuna."""
KNOTS = (1, 8, 16, 32, 64, 96, 128)
"""Tokens at which the roofline's times are taken over."""
SEGMENT, TREE_LAYER = 16, 10
"""Tokens of a usual pass of a stage, and of the draft: where a time parameter applies."""

UNPACKING = (0.5 + 2 + 2) / 2
"""Bytes that a pass moves per 4-bit weight, over those of a float16 weight: bitsandbytes reads half
a byte, writes two of float16, and the product reads these two. Passes of few tokens are bound by
memory."""

MODELS: dict[str, tuple[Size, str]] = {
    "vicuna-7b-v1.3": ("7b", "vicuna"),
    "vicuna-13b-v1.3": ("13b", "vicuna"),
    "llama2-chat-7b": ("7b", "llama2"),
    "llama2-chat-13b": ("13b", "llama2"),
}
TEMPLATE_TOKENS = {"vicuna": 40, "llama2": 150}
"""Assumed: the families' system prompts."""
PROMPT_TOKENS = {
    "mt_bench": 85,
    "humaneval": 150,
    "gsm8k": 80,
    "alpaca": 35,
    "cnn_dm": 850,
    "natural_questions": 15,
}
"""Assumed: mean lengths of the tasks, without the template."""

TEMPERATURES = ("t0", "t1")
"""Of sampling, as keys name them."""
WITHOUT_SLIP = "pipedec_without_slip"
"""PipeDec as its paper has it: the index slip of FlowSpec's code was put right."""
METHODS: dict[str, dict[str, Any]] = {
    "naive_pp": {"schedule.name": "naive_pp"},
    "pipedec": {"schedule.name": "pipedec"},
    WITHOUT_SLIP: {"schedule.name": "pipedec", "schedule.index_slip": False},
    "flowspec": {"schedule.name": "flowspec"},
    "pruned_pp": {"schedule.name": "pruned_pp"},
    "flowspec_without_score_segmentation": {
        "schedule.name": "flowspec",
        "schedule.score_order": False,
    },
    "flowspec_with_score_expansion": {"schedule.name": "flowspec", "schedule.score_aware": True},
}


@dataclass(frozen=True, slots=True)
class Times:
    """The fitted service times, in milliseconds.

    Attributes:
        stage_ms: a pass of a stage over a segment of 16 tokens.
        sync_ms: what a step costs besides computing and sending: the decision, its broadcast to
            all devices, and their waiting for it.
        draft_ms: a draft pass over a tree layer of 10 nodes.
    """

    stage_ms: float
    sync_ms: float
    draft_ms: float


@dataclass(frozen=True, slots=True)
class Case:
    """One simulated situation.

    Attributes:
        top1: share of positions whose target token is the draft's first candidate.
        depth_loss: of the draft beyond recorded depths (``docs/scenario.md``).
        extra: further changes of the scenario.
    """

    method: str
    size: Size
    times: Times
    top1: float
    depth_loss: float
    requests: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    def scenario(self) -> Scenario:
        """The testbed's scenario file with these values."""
        changes = {
            **METHODS[self.method],
            "target.profile": PROFILES[self.size][0],
            **_devices(self.times, self.size),
            "acceptance.hit_ratio": {1: self.top1},
            "acceptance.depth_loss": self.depth_loss,
            "workload.requests": self.requests,
        }
        return Scenario.load(SCENARIO).with_(**{**changes, **self.extra})


def prefill(size: Size, times: Times, prompt_tokens: int) -> Scenario:
    """One request that is over soon after its prompt; acceptance does not matter."""
    extra = {
        "workload.prompt_tokens": prompt_tokens,
        "workload.new_tokens": 2,
        "acceptance": {"source": "bernoulli", "beta": 0.5},
    }
    return Case("naive_pp", size, times, 0.7, 0.0, 1, extra).scenario()


def prompt_tokens(model: str, dataset: str) -> int:
    """Assumed length of a dataset's prompts in a model's template."""
    return PROMPT_TOKENS[dataset] + TEMPLATE_TOKENS[MODELS[model][1]]


def roofline_times() -> Times:
    """What the roofline alone says of the 7B models."""
    return Times(_stage("7b")(SEGMENT), 0.0, _draft("7b")(TREE_LAYER))


def larger(times: Times) -> Times:
    """The 13B models' times, from the 7B models' by what a pass moves.

    The target's layers are unpacked at every pass (``UNPACKING``), on top of their larger number
    and size; the EAGLE head is not quantized, so that it is slower by its size alone; a step's
    synchronisation does not depend on the model.
    """
    stages = _stage("13b")(SEGMENT) / _stage("7b")(SEGMENT)
    heads = _draft("13b")(TREE_LAYER) / _draft("7b")(TREE_LAYER)
    return Times(times.stage_ms * stages * UNPACKING, times.sync_ms, times.draft_ms * heads)


def _devices(times: Times, size: Size) -> dict[str, Any]:
    """The roofline's curves, scaled to the fitted times."""
    evaluate = _service().evaluation(_model(PROFILES[size][0]))
    return {
        "pipelines.0.stages.0.device": {"stage_ms": _scaled(_stage(size), SEGMENT, times.stage_ms)},
        "drafts.0.device": {
            "draft_ms": _scaled(_draft(size), TREE_LAYER, times.draft_ms),
            "evaluate_ms": {n: evaluate(n) for n in KNOTS},
            "decide_ms": times.sync_ms,
        },
    }


def _scaled(curve: TimeTable, tokens: int, ms: float) -> dict[int, float]:
    """The curve's shape, with so many milliseconds for so many tokens."""
    return {n: curve(n) * ms / curve(tokens) for n in KNOTS}


@cache
def _stage(size: Size) -> TimeTable:
    """The profile's times for float16; that 4-bit weights are unpacked is told in ``larger``."""
    model = _model(PROFILES[size][0])
    return _service().stage(model, model.shape.layers // STAGES)


@cache
def _draft(size: Size) -> TimeTable:
    target, draft = PROFILES[size]
    return _service().draft(_model(draft), _model(target).shape)


@cache
def _model(name: str) -> ServedModel:
    profile = load_model(LIBRARY / "models" / f"{name}.toml")
    return ServedModel(name, profile, profile.dtype)


@cache
def _service() -> ServiceTimes:
    hardware = load_device(LIBRARY / "devices" / f"{DEVICE}.toml")
    assert isinstance(hardware, Hardware)  # the library's own profile
    return ServiceTimes(DEVICE, hardware, shape_of, [])
