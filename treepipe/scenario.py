"""The scenario: the one description both worlds read. Only the shape of the file belongs here.

Reading files, overrides and the wording of errors are in ``scenario_file.py``; turning a scenario
into a plan is in ``planning.py``. Every key is documented by its field's description.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Milliseconds: TypeAlias = Annotated[float, Field(ge=0)]
Table: TypeAlias = Annotated[dict[int, Milliseconds], Field(min_length=1)]


class Section(BaseModel):
    """A table of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(Section):
    """A device: milliseconds against tokens for each kind of work (piecewise linear)."""

    stage_ms: Table = Field({1: 20.0}, description="a pass through the stage's layers")
    draft_ms: Table = Field({1: 3.0}, description="one draft pass")
    evaluate_ms: Table = Field({1: 0.0}, description="output projection of returned rows")
    decide_ms: Milliseconds = Field(0.0, description="the schedule's work per returned segment")
    prune_ms: Milliseconds = Field(0.0, description="compacting the caches for one word")

    @field_validator("stage_ms", "draft_ms", "evaluate_ms")
    @classmethod
    def _tokens_count(cls, table: dict[int, float]) -> dict[int, float]:
        if min(table) < 1:
            raise ValueError("token counts start at 1")
        return table


class Link(Section):
    """One direction of a connection."""

    latency_ms: Milliseconds = 0.2
    bandwidth_mbit_s: Annotated[float, Field(gt=0)] | None = None
    jitter_ms: Milliseconds = Field(0.0, description="adds |normal(0, jitter_ms)|")


class Pair(Link):
    """A link between two named ends, both ways unless ``one_way``."""

    ends: tuple[str, str]
    one_way: bool = False


class Links(Section):
    default: Link | str = Link()
    pairs: tuple[Pair, ...] = ()


class Model(Section):
    """A model: a checkpoint directory (needed to run), or just its layers (enough to predict)."""

    checkpoint: str | None = Field(None, description='a directory, or "reference"')
    layers: Annotated[int, Field(ge=1)] | None = None
    hidden_size: Annotated[int, Field(ge=1)] | None = None


class Draft(Section):
    """A draft server."""

    model: Model = Model()
    device: Device | str = Device()


class Stage(Section):
    """A stage, or ``count`` equal ones; layers are split evenly where no number is given."""

    device: Device | str
    layers: Annotated[int, Field(ge=1)] | None = Field(None, description="layers of each stage")
    count: Annotated[int, Field(ge=1)] = 1


class Pipeline(Section):
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]


class ScheduleSection(Section):
    """The schedule and all its parameters (defaults: FlowSpec's testbed, appendix A.1)."""

    name: Literal["pp", "naive_pp", "pruned_pp", "flowspec"]
    tree_size: Annotated[int, Field(ge=1)] = Field(80, description="L, nodes below the root")
    tree_depth: Annotated[int, Field(ge=0)] = Field(6, description="d0, passes behind catch-up")
    top_k: Annotated[int, Field(ge=1)] = Field(10, description="candidates per node")
    segment_tokens: Annotated[int, Field(ge=1)] = Field(16, description="l_max")
    score_order: bool | None = Field(None, description="default: tree order for naive_pp only")
    context_aware: bool = Field(True, description="expand when tokens were committed")
    expand_size: Annotated[int, Field(ge=1)] = 64
    expand_depth: Annotated[int, Field(ge=0)] = Field(6, description="d_exp")
    score_aware: bool = Field(False, description="expand when nothing was committed")
    score_aware_size: Annotated[int, Field(ge=1)] = Field(48, description="L_se")
    score_aware_depth: Annotated[int, Field(ge=1)] = Field(1, description="d_se")
    prefill_chunk: Annotated[int, Field(ge=1)] = Field(64, description="longest prompt segment")


class Bernoulli(Section):
    source: Literal["bernoulli"]
    beta: Annotated[float, Field(ge=0, le=1)]


class HitRatio(Section):
    source: Literal["hit_ratio"]
    table: dict[int, Annotated[float, Field(ge=0, le=1)]] = Field(min_length=1)


class Pool(Section):
    source: Literal["pool"]
    file: str
    block: Annotated[int, Field(ge=1)] = Field(16, description="positions drawn together")


class Replay(Section):
    source: Literal["replay"]
    file: str


Acceptance: TypeAlias = Annotated[
    Bernoulli | HitRatio | Pool | Replay, Field(discriminator="source")
]


class Workload(Section):
    """What is asked: requests one after another (a closed loop with one request in flight)."""

    requests: Annotated[int, Field(ge=1)] = 1
    prompt_tokens: Annotated[int, Field(ge=1)] = Field(32, description="in the simulator")
    new_tokens: Annotated[int, Field(ge=1)] = 64
    prompts: str = Field("reference:heldout", description="a JSON list, or reference:SET[:KIND]")
    stop_at_end_of_text: bool = Field(True, description="False: always new_tokens long")
    concurrency: Literal[1] = 1


class Sampling(Section):
    temperature: Annotated[float, Field(ge=0, le=0)] = Field(0.0, description="0: greedy")


class Scenario(Section):
    """The whole file."""

    name: str
    seed: Annotated[int, Field(ge=0)] = 0
    runs: Annotated[int, Field(ge=1)] = 1
    emulate: bool = Field(True, description="pad execution to the devices' and links' profiles")
    base_port: Annotated[int, Field(ge=0, le=65000)] = Field(
        0, description="executor: the draft listens here, stage n at base_port + n; 0: any free"
    )
    check_causality: bool = Field(False, description="executor: assert every row's mask (slow)")
    target: Model
    drafts: tuple[Draft, ...] = (Draft(),)
    pipelines: Annotated[tuple[Pipeline, ...], Field(min_length=1)]
    links: Links = Links()
    schedule: ScheduleSection
    acceptance: Acceptance | None = None
    sampling: Sampling = Sampling()
    workload: Workload = Workload()

    @model_validator(mode="after")
    def _one_pipeline(self) -> Scenario:
        if len(self.pipelines) != 1 or len(self.drafts) != 1:
            raise ValueError(
                f"schedule {self.schedule.name!r} uses one draft and one pipeline, "
                f"not {len(self.drafts)} and {len(self.pipelines)}"
            )
        return self
