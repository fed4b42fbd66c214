"""The scenario: the one description both worlds read. Only the shape of the file belongs here.

Reading files and overrides is in ``scenario_file.py``; turning a scenario into a plan is in
``planning.py``; devices and links are written as in profile files (``profiles/schema.py``). Every
key is documented by its field's description.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from treepipe.files.section import Count, Milliseconds, Section
from treepipe.profiles.schema import AnyDevice, AnyLink, Device, ExtendedLink, Link, LinkKeys
from treepipe.profiles.shapes import DType
from treepipe.scenario.distributions import Arrivals, Lengths


def _label(name: str) -> str:
    """Raises ``ValueError`` for what looks like a host's address on a network."""
    if re.fullmatch(r"pipeline\d+\.stage\d+", name):
        return name  # a role's name, which ``machine.py`` refuses in its own words
    address = ":" in name or re.fullmatch(r"(\S+@)?[\w-]+(\.[\w-]+)+\.?", name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if not address:
            return name
    raise ValueError(
        "a host's name is a label for roles that share a machine, not its address; runs stay on "
        "this computer, so give it a plain name, e.g. 'orin'"
    )


HostName: TypeAlias = Annotated[str, AfterValidator(_label)]


class Pair(LinkKeys):
    """A link between two named ends, both ways unless ``one_way``."""

    ends: tuple[str, str] = Field(description="names of roles, the sender first")
    one_way: bool = Field(False, description="only from the first end to the second")
    profile: str | None = Field(None, description="a link profile, whose keys the others replace")

    @property
    def link(self) -> Link | ExtendedLink:
        """What is said of the link itself."""
        given = {key: getattr(self, key) for key in self.model_fields_set & set(Link.model_fields)}
        if self.profile is None:
            return Link(**given)
        return ExtendedLink(profile=self.profile, **given)

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """(Sender, receiver) of what it describes."""
        return (self.ends,) if self.one_way else (self.ends, self.ends[::-1])

    @model_validator(mode="after")
    def _two_ends(self) -> Pair:
        if self.ends[0] == self.ends[1]:
            raise ValueError(f"both ends are {self.ends[0]!r}; a role has no link to itself")
        return self


class Links(Section):
    """How long messages take, by who sends them to whom."""

    default: AnyLink = Field(Link(), description="between roles of different hosts")
    local: AnyLink = Field(
        Link(latency_ms=0.0), description="between roles of one host; default: no time at all"
    )
    pairs: tuple[Pair, ...] = Field((), description="links that differ from these")

    @model_validator(mode="after")
    def _described_once(self) -> Links:
        described: dict[tuple[str, str], int] = {}
        for index, pair in enumerate(self.pairs):
            for direction in pair.directions:
                if direction in described:
                    raise ValueError(
                        f"key links.pairs.{index}: {' -> '.join(direction)} is described by "
                        f"links.pairs.{described[direction]} already"
                    )
                described[direction] = index
        return self


class Model(Section):
    """A model: a checkpoint directory (needed to run), a profile, or just its layers (enough to
    predict with devices that say a whole stage's time)."""

    profile: str | None = Field(
        None, description="a model profile's name, a config.json, or a directory that holds one"
    )
    dtype: DType | None = Field(None, description="of the weights; default: the profile's")
    checkpoint: str | None = Field(None, description='a directory, or "reference"')
    layers: Annotated[int, Field(ge=1)] | None = None
    hidden_size: Annotated[int, Field(ge=1)] | None = None
    layer_mib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="weights of a layer; a run reads it off the checkpoint"
    )
    kv_kib: Annotated[float, Field(gt=0)] | None = Field(
        None, description="keys and values of a token in a layer; a run reads it off the checkpoint"
    )


class HostSection(Section):
    """A machine that the roles naming it share."""

    capacity: Count = Field(1, description="pieces of work at once, e.g. cores; others wait")


class Draft(Section):
    """A draft server, or ``count`` equal ones."""

    model: Model = Model()
    source: Literal["model", "eagle", "ngram", "hybrid"] = Field(
        "model", description="what proposes tokens: a language model, an EAGLE head, prompt lookup"
    )
    head: str | None = Field(None, description='the EAGLE head: a directory, or "reference"')
    ngram: Count = Field(3, description="longest suffix that prompt lookup matches")
    weight: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="hybrid: of the model")
    device: AnyDevice = Device()
    host: HostName | None = Field(None, description="the machine it shares with all that name it")
    count: Count = 1


class Stage(Section):
    """A stage, or ``count`` equal ones; layers are split evenly where no number is given."""

    device: AnyDevice
    host: HostName | None = Field(None, description="the machine it shares with all that name it")
    layers: Annotated[int, Field(ge=1)] | None = Field(None, description="layers of each stage")
    count: Annotated[int, Field(ge=1)] = 1


class Pipeline(Section):
    """A target in stages, or ``count`` equal ones."""

    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    count: Annotated[int, Field(ge=1)] = 1


ScheduleName: TypeAlias = Literal[
    "pp",
    "specinfer",
    "eagle",
    "chain",
    "naive_pp",
    "pruned_pp",
    "flowspec",
    "flowspec_free",
    "pipedec",
    "specpipe",
    "specpipe_db",
    "starsd",
    "dsd",
]


class ScheduleSection(Section):
    """The schedule and all its parameters (defaults: each paper's testbed).

    Keys that the chosen schedule does not read are allowed, so that ``--set schedule.name=`` alone
    compares two schedules; a result warns of them.
    """

    name: ScheduleName
    tree_size: Count = Field(80, description="L, nodes below the root")
    tree_depth: Annotated[int, Field(ge=0)] = Field(6, description="d0, passes behind catch-up")
    top_k: Count = Field(10, description="candidates per node")
    segment_tokens: Count = Field(16, description="l_max")
    score_order: bool | None = Field(None, description="default: tree order for naive_pp only")
    context_aware: bool = Field(True, description="expand when tokens were committed")
    expand_size: Count = 64
    expand_depth: Annotated[int, Field(ge=0)] = Field(6, description="d_exp")
    score_aware: bool = Field(False, description="expand when nothing was committed")
    score_aware_size: Count = Field(48, description="L_se")
    score_aware_depth: Count = Field(1, description="d_se")
    branching: tuple[Count, ...] | None = Field(
        None, description="children per node at each depth; default 1,1,3,1,1,1,1,1 for specinfer"
    )
    gamma: Count = Field(5, description="tokens of a chain; draft depth of starsd")
    adaptive_depth: bool = Field(False, description="starsd: depth by acceptance and queue")
    depth_range: tuple[Count, Count] = Field((1, 8), description="bounds of the adaptive depth")
    width: Count = Field(16, description="w, most nodes of a layer")
    children: Count = Field(16, description="c, candidates per node of the deepest layer")
    layers_per_step: Count = Field(1, description="layers drafted and fed per step")
    group_size: Count = Field(1, description="stages in a row that form a group")
    draft_reuse: bool = Field(True, description="the draft keeps its cache between layers")
    central_transfers: bool = Field(False, description="one transfer per device at a time")
    batch: Count = Field(4, description="B, requests that share the steps of specpipe_db")
    prefill_chunk: Count = Field(64, description="longest prompt segment")

    @model_validator(mode="after")
    def _depths(self) -> ScheduleSection:
        low, high = self.depth_range
        if low > high:
            raise ValueError(f"key schedule.depth_range = [{low}, {high}]: low exceeds high")
        return self


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
    hit_ratio: dict[Count, Annotated[float, Field(gt=0, lt=1)]] | None = Field(
        None, description="passages are drawn so that this is reached; default: as recorded"
    )
    sharpness: Annotated[float, Field(gt=0)] = Field(
        1.0, description="power of the draft's probabilities; above 1 it is surer than recorded"
    )
    depth_loss: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="share lost per unverified token beyond the recorded depths"
    )


class Replay(Section):
    source: Literal["replay"]
    file: str


Acceptance: TypeAlias = Annotated[
    Bernoulli | HitRatio | Pool | Replay, Field(discriminator="source")
]


class Workload(Section):
    """What is asked, and when: by ``concurrency`` clients in a closed loop, or at arrival times."""

    requests: Count = Field(1, description="with a trace: its first ones; default: all of them")
    prompt_tokens: Lengths = Field(32, description="in the simulator; real prompts have their own")
    new_tokens: Lengths = 64
    prompts: str = Field("reference:heldout", description="a JSON list, or reference:SET[:KIND]")
    stop_at_end_of_text: bool = Field(True, description="False: always new_tokens long")
    concurrency: Count = Field(1, description="requests that are asked for at once")
    warmup_requests: Annotated[int, Field(ge=0)] | None = Field(
        None, description="the first ones of each run, not counted; default: found in the run"
    )
    arrivals: Arrivals | None = Field(None, description="default: the closed loop")

    @model_validator(mode="after")
    def _some_are_counted(self) -> Workload:
        warmup = self.warmup_requests
        if warmup is not None and warmup >= self.requests:
            raise ValueError(
                f"key workload.warmup_requests = {warmup} leaves nothing of "
                f"workload.requests = {self.requests}"
            )
        return self


class ServingSection(Section):
    """How requests share the draft servers."""

    admission: Count | None = Field(None, description="requests beyond so many are refused")
    places: Count | None = Field(None, description="per pipeline; requests beyond so many wait")
    queue: Literal["fifo", "weighted_fair", "earliest_deadline"] = "fifo"
    weights: tuple[Annotated[float, Field(gt=0)], ...] = Field((), description="per pipeline")
    deadlines_ms: tuple[Milliseconds, ...] = Field((), description="per pipeline")


class SamplingSection(Section):
    """How the target's next token is chosen (``verification.py``); the defaults are greedy."""

    temperature: Annotated[float, Field(ge=0)] = Field(0.0, description="0: greedy")
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = Field(0, description="0: all tokens")
    rule: Literal["exact", "rejection", "relaxed_best", "relaxed_top_p", "adaptive"] = Field(
        "exact", description="lossless: exact, rejection; lossy: the others"
    )
    relaxed_top_p: Annotated[float, Field(gt=0, le=1)] = Field(0.9, description="relaxed_top_p's")
    tau_max: Annotated[float, Field(ge=0, le=1)] = Field(0.5, description="adaptive's")

    @property
    def lossless(self) -> bool:
        return self.rule in ("exact", "rejection") or (self.rule == "adaptive" and not self.tau_max)


DEFAULT_TIMEOUT_S = 30.0
"""How long a worker may be silent in a run."""


class RunSection(Section):
    """How a run watches over its workers."""

    timeout_s: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        DEFAULT_TIMEOUT_S, description="executor: a worker that is silent for longer ends the run"
    )


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
    drafts: Annotated[tuple[Draft, ...], Field(min_length=1)] = (Draft(),)
    pipelines: Annotated[tuple[Pipeline, ...], Field(min_length=1)]
    hosts: dict[str, HostSection] = Field({}, description="by the name that roles give")
    links: Links = Links()
    schedule: ScheduleSection
    acceptance: Acceptance | None = None
    sampling: SamplingSection = SamplingSection()
    serving: ServingSection = ServingSection()
    workload: Workload = Workload()
    run: RunSection = RunSection()
