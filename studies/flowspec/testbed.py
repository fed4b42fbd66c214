"""FlowSpec's testbed as scenarios: the varied parameters, and assumptions about models and data.

Nothing is fitted here. Sources: FlowSpec (2025), section 4.1 and appendix A.1; docstrings mark as
assumed what they leave open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from treepipe.files.toml_file import read_toml
from treepipe.physics.timing import TimeTable
from treepipe.scenario.scenario import Scenario
from treepipe.studies.reproduction import device_times, model_profile

Size: TypeAlias = Literal["7b", "13b"]

SCENARIO = Path(__file__).parent / "testbed.toml"
NEW_TOKENS = 128
STAGES = 4
DEVICE = "jetson-orin-nano-8gb"
KNOTS = (1, 8, 16, 32, 64, 96, 128)
"""Numbers of tokens at which the roofline's times are sampled."""
SEGMENT, TREE_LAYER = 16, 10
"""Tokens of a usual pass of a stage, and of the draft, to which the time parameters refer."""
UNPACKING = (0.5 + 2 + 2) / 2
"""Bytes that a pass moves per 4-bit weight, over those of a float16 weight: bitsandbytes reads half
a byte, writes two of float16, and the product reads these two. Passes of few tokens are bound by
memory."""

_TABLES = read_toml(Path(__file__).with_name("tables.toml"))
MODELS: Sequence[str] = _TABLES["models"]
TEMPLATE_TOKENS: Mapping[str, int] = _TABLES["template_tokens"]
PROMPT_TOKENS: Mapping[str, int] = _TABLES["prompt_tokens"]
"""Assumed lengths of system prompts by family, and of the datasets' tasks."""
METHODS: Mapping[str, Mapping[str, Any]] = _TABLES["methods"]
"""Keys of the schedule by method."""
TEMPERATURES = ("t0", "t1")
"""Sampling temperatures, as keys name them."""


class Times(NamedTuple):
    """The fitted service times, in milliseconds.

    Attributes:
        stage_ms: a pass of a stage over a segment of 16 tokens.
        sync_ms: cost of a step besides computing and sending: the decision, its broadcast to
            all devices, and their waiting for it.
        draft_ms: a draft pass over a tree layer of 10 nodes.
    """

    stage_ms: float
    sync_ms: float
    draft_ms: float


@dataclass(frozen=True, slots=True)
class Case:
    """A method on the testbed.

    Attributes:
        depth_loss: the draft's loss of accuracy beyond recorded depths (``docs/scenario.md``).
        extra: further changes of the scenario.
    """

    method: str
    size: Size
    times: Times
    depth_loss: float
    requests: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    def scenario(self, top1: float) -> Scenario:
        """Return the scenario in which the draft's first candidate is right at a share ``top1``."""
        changes = {
            **{f"schedule.{key}": value for key, value in METHODS[self.method].items()},
            "target.profile": f"vicuna-{self.size}",
            **_devices(self.times, self.size, in_step=self.method == "pipedec"),
            "acceptance.hit_ratio": {1: top1},
            "acceptance.depth_loss": self.depth_loss,
            "workload.requests": self.requests,
        }
        return Scenario.load(SCENARIO).with_(**{**changes, **self.extra})


def prefill(size: Size, times: Times, prompt_tokens: int) -> Scenario:
    """Return one request that ends soon after its prompt; acceptance has no effect."""
    extra = {
        "workload.prompt_tokens": prompt_tokens,
        "workload.new_tokens": 2,
        "acceptance": {"source": "bernoulli", "beta": 0.5},
    }
    return Case("naive_pp", size, times, 0.0, 1, extra).scenario(0.7)


def size_of(model: str) -> Size:
    return "13b" if "13b" in model else "7b"


def prompt_tokens(model: str, dataset: str) -> int:
    """Return the assumed length of a dataset's prompts in a model's template."""
    return PROMPT_TOKENS[dataset] + TEMPLATE_TOKENS[model.split("-")[0]]


def roofline_times() -> Times:
    """Return the 7B models' times by the roofline alone."""
    return Times(_stage("7b")(SEGMENT), 0.0, _draft("7b")(TREE_LAYER))


def larger(times: Times) -> Times:
    """Scale the 7B models' times to the 13B models by the bytes that a pass moves.

    The target's layers are unpacked at every pass (``UNPACKING``), on top of their larger number
    and size; the EAGLE head is not quantized, so that it is slower by its size alone; a step's
    synchronisation does not depend on the model.
    """
    stages = _stage("13b")(SEGMENT) / _stage("7b")(SEGMENT)
    heads = _draft("13b")(TREE_LAYER) / _draft("7b")(TREE_LAYER)
    return Times(times.stage_ms * stages * UNPACKING, times.sync_ms, times.draft_ms * heads)


def _devices(times: Times, size: Size, *, in_step: bool) -> dict[str, Any]:
    """Return the devices' keys. Where the whole pipeline is in lock-step (``in_step``), a step is
    synchronised whether or not a segment comes back: then that is part of all stages' passes."""
    sync_ms = times.sync_ms if in_step else 0.0
    stage_ms = _scaled(_stage(size), SEGMENT, times.stage_ms)
    evaluate = device_times(DEVICE).evaluation(model_profile(f"vicuna-{size}"))
    return {
        "pipelines.0.stages.0.device": {
            "stage_ms": {n: ms + sync_ms for n, ms in stage_ms.items()}
        },
        "drafts.0.device": {
            "draft_ms": _scaled(_draft(size), TREE_LAYER, times.draft_ms),
            "evaluate_ms": {n: evaluate(n) for n in KNOTS},
            "decide_ms": times.sync_ms - sync_ms,
        },
    }


def _scaled(curve: TimeTable, tokens: int, ms: float) -> dict[int, float]:
    """Scale the curve to ``ms`` milliseconds at ``tokens`` tokens."""
    return {n: curve(n) * ms / curve(tokens) for n in KNOTS}


@cache
def _stage(size: Size) -> TimeTable:
    """Return the profile's times for float16; ``larger`` adds the unpacking of 4-bit weights."""
    model = model_profile(f"vicuna-{size}")
    return device_times(DEVICE).stage(model, model.shape.layers // STAGES)


@cache
def _draft(size: Size) -> TimeTable:
    target = model_profile(f"vicuna-{size}").shape
    return device_times(DEVICE).draft(model_profile(f"eagle-vicuna-{size}"), target)
