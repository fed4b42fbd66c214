"""The sections and keys of a scenario file: only the shape of the file belongs here.

``scenario.py`` reads and changes files; ``profiles/schema.py`` defines devices and links. Every key
is documented by its field's description.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Optional,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

from pydantic import AfterValidator, Field, PrivateAttr, create_model, model_validator

from treepipe.core.drafter import Drafter, DraftParameters
from treepipe.core.drafts import drafters
from treepipe.core.registry import keys_of
from treepipe.core.schedules import ScheduleSpec, systems
from treepipe.core.system import System
from treepipe.core.verification import LOSSLESS, RuleName
from treepipe.files.reading import suggestion
from treepipe.files.section import (
    MOST,
    Beside,
    Count,
    Factor,
    Milliseconds,
    Positive,
    ReadIf,
    Section,
    Several,
)
from treepipe.profiles.hit_ratio import Shares, check_rising
from treepipe.profiles.schema import AnyDevice, AnyLink, Device, ExtendedLink, Link, LinkKeys
from treepipe.profiles.shapes import DType
from treepipe.scenario.distributions import Arrivals, Lengths
from treepipe.scenario.stated import DrawnSection, Stated


def _label(name: str) -> str:
    """Raise ``ValueError`` for an empty name or one that looks like a network address."""
    if not name.strip():
        raise ValueError("a host's name is a label, e.g. 'orin'; leave the key out for none")
    if re.fullmatch(r"pipeline\d+\.stage\d+", name):
        return name  # a role's name, which ``placement.py`` refuses in its own words
    address = ":" in name or re.fullmatch(r"(\S+@)?[\w-]+(\.[\w-]+)+\.?", name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if not address:
            return name
    raise ValueError(
        "a host's name is a label for roles that share a machine, not its address (which is key "
        "worker); give it a plain name, e.g. 'orin'"
    )


HostName: TypeAlias = Annotated[str, AfterValidator(_label)]


def endpoint(address: str) -> tuple[str, int]:
    """Parse ``HOST:PORT`` into host and port. Raises ``ValueError`` with a clause that says what is
    wrong.

    >>> endpoint("192.168.1.21:5600"), endpoint("[fd00::1]:5600")
    (('192.168.1.21', 5600), ('fd00::1', 5600))
    """
    host, _, port = address.rpartition(":")
    plain = re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host)
    if not plain or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise ValueError(f"{address!r} is no HOST:PORT, e.g. 192.168.1.21:5600")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address(address: str) -> str:
    endpoint(address)
    return address


WORKER = "HOST:PORT of its treepipe worker; default: a process of this host"
HOST = "machine shared with all roles that name it; default: its own"
WorkerAddress: TypeAlias = Annotated[str, AfterValidator(_address)]
Home: TypeAlias = Annotated[HostName | None, ReadIf("host")]
Away: TypeAlias = Annotated[WorkerAddress | None, ReadIf("run")]


class Pair(LinkKeys):
    """A link between two named ends, both ways."""

    ends: Annotated[tuple[str, str], ReadIf("connected")] = Field(
        description="two roles, or a role and a spare's address; a stage twice: its tensor devices"
    )
    profile: str | None = Field(
        None, description="a link profile, whose keys the others here replace"
    )

    @property
    def link(self) -> Link | ExtendedLink:
        """The keys that describe the link itself."""
        given = {key: getattr(self, key) for key in self.model_fields_set & set(Link.model_fields)}
        if self.profile is None:
            return Link(**given)
        return ExtendedLink(profile=self.profile, **given)

    @property
    def directions(self) -> tuple[tuple[str, str], ...]:
        """(Sender, receiver) of both directions; of a stage's devices it is the same."""
        return tuple(dict.fromkeys((self.ends, self.ends[::-1])))


class Links(Section):
    """Times of messages, by sender and receiver."""

    default: Annotated[AnyLink, ReadIf("apart")] = Field(
        Link(), description="between roles of different hosts"
    )
    local: Annotated[AnyLink, ReadIf("local")] = Field(
        Link(latency_ms=0.0), description="between roles of one host; default: no time"
    )
    pairs: tuple[Pair, ...] = Field(
        (), description="links that differ, with a link's keys and these"
    )

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
    """A model: a checkpoint directory (needed to run), a profile, or only its number of layers
    (enough to predict with devices that state a whole stage's time)."""

    profile: Annotated[str | None, ReadIf("described")] = Field(
        None, description="name of a model profile, a config.json, or its directory"
    )
    dtype: Annotated[DType | None, ReadIf("sized")] = Field(
        None,
        description="type of weights, states, keys and values; default: the profile's, for a "
        "checkpoint float32",
    )
    checkpoint: str | None = Field(
        None,
        description="directory with config.json, safetensors and tokenizer.json, needed by a run; "
        "or 'reference', the bundled one",
    )
    layers: Annotated[Annotated[int, Field(ge=1)] | None, ReadIf("dealt")] = Field(
        None, description="number of layers, without profile and checkpoint"
    )
    hidden_size: Annotated[Annotated[int, Field(ge=1)] | None, ReadIf("width")] = Field(
        None, description="numbers in a row's hidden state"
    )


class HostSection(Section):
    """A machine that the roles naming it share."""

    capacity: Annotated[Count, ReadIf("crowded")] = Field(
        1, description="pieces of work at once, e.g. its cores"
    )
    profile: Annotated[str | None, ReadIf("in place")] = Field(
        None,
        description="instead of capacity: a host profile",
    )

    @model_validator(mode="after")
    def _company_is_said_once(self) -> HostSection:
        if self.profile is not None and "capacity" in self.model_fields_set:
            raise ValueError(
                "keys capacity and profile: a host's profile says itself what work takes while "
                "others work there; give one of them"
            )
        return self


def _annotation(hint: Any, key: dataclasses.Field[Any]) -> Any:
    """Return a key's type with the bounds of its numbers, also in tuples and unions."""
    least, most = key.metadata["least"], key.metadata["most"]
    if hint in (int, float) and (least, most) != (None, None):
        return Annotated[hint, Field(ge=least, le=MOST if most is None else most)]
    if get_origin(hint) is Literal or not (inner := get_args(hint)):
        return hint
    bound = tuple(each if each is ... else _annotation(each, key) for each in inner)
    if get_origin(hint) is tuple:
        made = tuple.__class_getitem__(bound)
        return Annotated[made, Field(min_length=1)] if ... in bound else made
    return Union[bound]  # noqa: UP007


def _sources(reading: Callable[[Drafter], Any]) -> Beside:
    """Return the condition of a key that some draft sources read."""
    return Beside("source", tuple(name for name, each in drafters().items() if reading(each)))


if TYPE_CHECKING:
    SourceName: TypeAlias = str
else:
    SourceName = Literal[tuple(drafters())]


class _Source(Section):
    """A draft source with the keys of all draft sources; each reads its own."""

    source: Annotated[SourceName, ReadIf("asked")] = Field(
        next(iter(drafters())),
        description=f"what proposes tokens: {', '.join(d.summary for d in drafters().values())}",
    )

    @property
    def drafter(self) -> Drafter:
        return drafters()[self.source]

    @property
    def parameters(self) -> DraftParameters:
        """Values of the keys that the draft source reads."""
        return self.drafter.parameters(**{key: getattr(self, key) for key in self.drafter.keys})


def _source_key(name: str, hint: Any, key: dataclasses.Field[Any]) -> tuple[Any, Any]:
    """Make the field of a key that some draft sources read."""
    read = _sources(lambda each: name in each.keys)
    annotation: Any = Annotated[_annotation(hint, key), read, ReadIf("asked")]
    return annotation, Field(key.default, description=key.metadata["help"])


def _source_keys() -> dict[str, Any]:
    """Fields of all draft sources' parameters."""
    found = keys_of(each.parameters for each in drafters().values())
    return {name: _source_key(name, *each) for name, each in found.items()}


if TYPE_CHECKING:
    SourceSection = _Source
else:
    SourceSection = create_model("SourceSection", __base__=_Source, **_source_keys())


class DraftSection(SourceSection):
    """A draft server, or ``count`` equal ones."""

    model: Annotated[Model, _sources(lambda each: each.weights)] = Field(
        Model(), description="the draft model"
    )
    head: Annotated[str | None, _sources(lambda each: each.borrows)] = Field(
        None,
        description="directory of a head or block draft as published (by source), or 'reference', "
        "the bundled one",
    )
    least_probability: Annotated[float, Field(ge=0, le=1), ReadIf("drafted")] = Field(
        0.0,
        description="the draft proposes no less probable candidate (a simulation needs a recorded "
        "pool)",
    )
    agreement: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None,
        description="it drafts for the draft server before it (pipespec), with whose first "
        "candidate it agrees with this probability in a simulation; default: for the target",
    )
    device: AnyDevice = Field(Device(), description="a device profile's name, its keys, or both")
    host: Home = Field(None, description=HOST)
    worker: Away = Field(None, description=WORKER)
    count: Several = Field(1, description="number of equal draft servers")

    @property
    def what(self) -> SourceSection:
        """The draft source without the keys that place it."""
        return SourceSection.model_validate(self.model_dump(include={*SourceSection.model_fields}))

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint with the draft source's weights; None if none is named or needed."""
        weights = self.drafter.weights
        found: str | None = None if weights is None else attrgetter(weights.key)(self)
        return found


class Stage(Section):
    """A stage, or ``count`` equal ones. Layers are split evenly where no number is given."""

    device: AnyDevice = Field(description="as of a draft server")
    host: Home = Field(None, description=HOST)
    worker: Away = Field(None, description=WORKER)
    layers: Annotated[int, Field(ge=1)] | None = Field(
        None, description="layers of each stage; default: an equal share of the rest"
    )
    tensor: Several = Field(
        1, description="equal devices that share all its layers; one device's keys stand for each"
    )
    count: Several = Field(1, description="number of equal stages in a row")


class Pipeline(Section):
    """A target split into stages, or ``count`` equal ones."""

    stages: Annotated[tuple[Stage, ...], Field(min_length=1)] = Field(
        description="in the order in which they work"
    )
    count: Several = Field(1, description="number of equal pipelines")

    @property
    def length(self) -> int:
        """Number of its stages, each equal one counted."""
        return sum(stage.count for stage in self.stages)


def _known(name: str) -> str:
    if name not in systems():
        raise ValueError(f"there is no such system; {suggestion(name, systems())}")
    return name


ScheduleName: TypeAlias = Annotated[str, AfterValidator(_known)]
"""A system's name (``core/schedules``)."""


class _Schedule(Section):
    """The schedule and its parameters (defaults: each paper's testbed).

    The keys are those of all systems. Keys that the chosen one does not read are allowed, so that
    ``--set schedule.name=`` alone compares two schedules; the result then warns of them.
    """

    name: ScheduleName = Field(description="the system")

    @property
    def system(self) -> System:
        return systems()[self.name]

    @cached_property
    def parameters(self) -> Any:
        """The chosen system's parameters, with its defaults for keys that were not given."""
        return self._of(self.system)

    def _of(self, system: System) -> Any:
        given = {key: getattr(self, key) for key in self.model_fields_set & system.keys}
        return system.parameters(**{k: v for k, v in given.items() if v is not None})

    def choose(
        self,
        *,
        drawn: bool = False,
        reads_states: bool = False,
        independent_levels: bool = False,
        below: bool = False,
    ) -> ScheduleSpec:
        """Make the specification from which schedules are built.

        Args:
            drawn: candidates are random draws, as rejection sampling requires.
            reads_states: the draft reads the target's hidden states of committed tokens.
            independent_levels: the draft's candidates at a level are the same below every node.
            below: another draft drafts for the draft.
        """
        of_draft = drawn, reads_states, independent_levels, below
        return ScheduleSpec(self.name, self.parameters, *of_draft)

    @property
    def unread(self) -> dict[str, str]:
        """Keys without effect, each with the reason ("": the system does not read it)."""
        reasons = self.parameters.ineffective_keys()
        read = self.system.keys - set(reasons)
        return {key: reasons.get(key, "") for key in self.model_fields_set - read - {"name"}}

    @model_validator(mode="after")
    def _agree(self) -> _Schedule:
        """Refuse contradictory keys, including those of systems that were not chosen."""
        for system in systems().values():
            try:
                self._of(system).check()
            except ValueError as error:
                raise ValueError(f"key schedule.{error}") from None
        return self


def _schedule_keys() -> dict[str, Any]:
    """Make fields of all systems' parameters; their default is the chosen system's."""
    return {
        name: (
            Optional[_annotation(hint, key)],  # noqa: UP045
            Field(None, description=key.metadata["help"]),
        )
        for name, (hint, key) in keys_of(s.parameters for s in systems().values()).items()
    }


if TYPE_CHECKING:
    ScheduleSection = _Schedule
else:
    ScheduleSection = create_model("ScheduleSection", __base__=_Schedule, **_schedule_keys())


class Bernoulli(DrawnSection):
    source: Literal["bernoulli"]
    beta: Annotated[float, Field(ge=0, le=1)] = Field(
        description="probability that the draft's first candidate is the target's token"
    )


Rank: TypeAlias = Annotated[int, Field(ge=1, le=100_000)]
"""Rank of a candidate; the bound exceeds any vocabulary."""


class HitRatio(DrawnSection):
    source: Literal["hit_ratio"]
    table: dict[Rank, Shares] = Field(
        min_length=1,
        description="k → share of positions whose token is among the draft's first k candidates, "
        "or its shares by depth",
    )

    @model_validator(mode="after")
    def _rises(self) -> HitRatio:
        check_rising(self.table, "acceptance.table")
        return self


class PoolSection(DrawnSection):
    source: Literal["pool"]
    file: str = Field(description="pool: JSON, or .json.gz")
    block: Several | None = Field(
        None,
        description="positions drawn together; default: whole texts; with hit_ratio, chosen from "
        "the pool",
    )
    hit_ratio: dict[Count, Annotated[float, Field(gt=0, lt=1)]] | None = Field(
        None,
        description="k → share that the drawn passages reach, e.g. { 1 = 0.8 }; default: as "
        "recorded",
    )
    sharpness: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.0, description="exponent of the draft's probabilities; above 1 it is surer than recorded"
    )
    off_path_sharpness: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="the same where the draft follows a wrong token; default: sharpness"
    )
    depth_loss: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="share of positions that an EAGLE head loses per unverified token beyond the "
        "recorded depths",
    )


class Replay(Section):
    source: Literal["replay"]
    file: str = Field(description="replay: a recording that treepipe run --recording wrote")


class ProfileAcceptance(Section):
    """A reference to an acceptance profile, whose content replaces it before validation."""

    source: Literal["profile"]
    name: str = Field(description="an acceptance profile, whose keys the others here replace")


HIT_RATIOS = HitRatio | Stated
"""Acceptances with a ``table`` of hit ratios."""
Acceptance: TypeAlias = Annotated[
    Bernoulli | HitRatio | Stated | PoolSection | Replay, Field(discriminator="source")
]


class Workload(Section):
    """The requests and their timing: ``concurrency`` clients in a closed loop, or arrival times."""

    requests: Annotated[Several, ReadIf("drawn")] = Field(
        1, description="how many; of a trace the first ones (default: all)"
    )
    prompt_tokens: Annotated[Lengths, ReadIf("simulation"), ReadIf("untraced"), ReadIf("drawn")] = (
        Field(32, description="length of each prompt, in a simulation")
    )
    new_tokens: Annotated[Lengths, ReadIf("untraced"), ReadIf("drawn")] = Field(
        64, description="most new tokens of each request"
    )
    prompts: str = Field(
        "reference:heldout",
        description="for a run: a JSON list of texts, JSON lines or Parquet with prompt or turns, "
        "or reference:SET[:KIND]",
    )
    stop_at_end_of_text: Annotated[bool, ReadIf("run")] = Field(
        True, description="false: every text is new_tokens long"
    )
    concurrency: Annotated[Several, ReadIf("closed loop")] = Field(
        1, description="clients, each of which waits for its last answer"
    )
    warmup_requests: Annotated[int, Field(ge=0)] | None = Field(
        None, description="first requests of each run that do not count; default: found in the run"
    )
    arrivals: Arrivals | None = Field(
        None, description="when requests come; default: the closed loop"
    )
    trace: str | None = Field(
        None,
        description="a file of requests with their times: Mooncake's, vllm bench serve's, or CSV",
    )
    rate_scale: Annotated[Factor, ReadIf("traced")] = Field(
        1.0, description="factor on the rate of a trace's requests; delays in sessions stay"
    )
    window_s: Annotated[
        Positive | tuple[Annotated[float, Field(ge=0)], Positive] | None, ReadIf("traced")
    ] = Field(
        None, description="of a trace only the first seconds, or [from, to] (before rate_scale)"
    )

    @property
    def arriving(self) -> bool:
        """Whether requests come at times of their own, rather than by clients of a closed loop."""
        return self.trace is not None or self.arrivals is not None

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        if self.trace is not None and self.arrivals is not None:
            raise ValueError(
                "keys workload.trace and workload.arrivals both say when; leave one out"
            )
        if isinstance(self.window_s, tuple) and self.window_s[0] >= self.window_s[1]:
            raise ValueError(
                f"key workload.window_s = {[*self.window_s]} must go from less to more"
            )
        return self

    @model_validator(mode="after")
    def _some_are_counted(self) -> Workload:
        """A trace without ``requests`` has as many as its file (``scenario/workload.py``)."""
        known = self.trace is None or "requests" in self.model_fields_set
        warmup = self.warmup_requests
        if warmup is not None and known and warmup >= self.requests:
            raise ValueError(
                f"key workload.warmup_requests = {warmup} leaves nothing of "
                f"workload.requests = {self.requests}"
            )
        return self


class SloSection(Section):
    """Limits promised to each request; requests within them count as goodput."""

    time_to_first_token_ms: Positive | None = Field(None, description="at most")
    time_between_tokens_ms: Positive | None = Field(
        None, description="at most, on average over the request"
    )
    request_latency_ms: Positive | None = Field(None, description="at most")

    @model_validator(mode="after")
    def _promises_something(self) -> SloSection:
        if not self.model_fields_set:
            raise ValueError(
                f"key serving.slo promises nothing; give {', '.join(type(self).model_fields)}"
            )
        return self


class ServingSection(Section):
    """Rules by which requests share draft servers and pipelines."""

    admission: Annotated[Count | Literal["auto"] | None, ReadIf("admission")] = Field(
        None,
        description="most open requests, others are refused; auto: N_max of StarSD's closed form",
    )
    places: Annotated[Count | None, ReadIf("places")] = Field(
        None, description="most open requests per pipeline, others wait"
    )
    batch: Annotated[Count | Literal["auto"], ReadIf("batch")] = Field(
        1,
        description="most requests in one pass of a stage",
    )
    cache: Annotated[Literal["reserved", "paged"] | None, ReadIf("several")] = Field(
        None,
        description="how requests share the room for keys and values; default: all must fit",
    )
    cache_tokens: Annotated[Count | None, Beside("cache")] = Field(
        None,
        description="that room in tokens, on every stage and draft server; default: what memory "
        "leaves",
    )
    queue: Annotated[
        Literal["fifo", "weighted_fair", "earliest_deadline"], ReadIf("rivals"), ReadIf("deadlines")
    ] = Field("fifo", description="order in which a draft server serves its pipelines")
    weights: Annotated[tuple[Positive, ...], Beside("queue", ("weighted_fair",))] = Field(
        (), description="of each pipeline; default: 1"
    )
    deadlines_ms: Annotated[tuple[Milliseconds, ...], Beside("queue", ("earliest_deadline",))] = (
        Field((), description="of each pipeline, from a turn's beginning; default: 0")
    )
    slo: SloSection | None = Field(
        None,
        description="limits for goodput_requests_s and slo_attainment; no schedule reads them",
    )
    warm_up_ms: Annotated[
        Annotated[float, Field(ge=0.01, allow_inf_nan=False)] | None, ReadIf("drafted")
    ] = Field(
        None,
        description="idle time after which a draft server with open requests runs an empty pass "
        "to keep its device warm (idle_factor); default: never",
    )
    _n_max: int | None = PrivateAttr(None)

    @property
    def admitted(self) -> int | Literal["auto"] | None:
        """``admission``, or N_max in place of "auto" where it was computed."""
        return self.admission if self._n_max is None else self._n_max

    @property
    def by_n_max(self) -> bool:
        return self._n_max is not None

    def admitting(self, n_max: int) -> ServingSection:
        """Return the section with N_max in place of "auto"; it is still dumped as "auto"."""
        made = self.model_copy()
        made._n_max = n_max
        return made


Weight: TypeAlias = Annotated[float, Field(ge=0, le=1e6)]


class SamplingSection(Section):
    """Rules that choose the target's next token (``verification.py``); the defaults are greedy."""

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False), ReadIf("sampled")] = Field(
        0.0, description="0: greedy"
    )
    top_p: Annotated[float, Field(gt=0, le=1), Beside("temperature")] = Field(
        1.0, description="only the target's most probable tokens with this total probability"
    )
    top_k: Annotated[int, Field(ge=0), Beside("temperature")] = Field(
        0, description="only so many of the target's most probable tokens; 0: all"
    )
    rule: RuleName = Field(
        "exact", description="how drafted tokens are judged; the first three are lossless"
    )
    relaxed_top_p: Annotated[float, Field(gt=0, le=1), Beside("rule", ("relaxed_top_p",))] = Field(
        0.9, description="top-p set of the target that the rule accepts"
    )
    tau_max: Annotated[float, Field(ge=0, le=1), Beside("rule", ("adaptive",))] = Field(
        0.5, description="most relaxation"
    )
    weights: Annotated[tuple[Weight, Weight, Weight], Beside("rule", ("adaptive",))] = Field(
        (1.0, 1.0, 1.0), description="of DSD's three signals in the geometric mean; 0: none"
    )

    @model_validator(mode="after")
    def _any_signal_counts(self) -> SamplingSection:
        if not any(self.weights):
            raise ValueError("key sampling.weights: they are all 0; one of the signals must count")
        return self

    @property
    def greedy(self) -> bool:
        """Whether the target's token is the argmax, so that nothing is sampled."""
        return self.rule == "exact" and not self.temperature

    @property
    def lossless(self) -> bool:
        return self.rule in LOSSLESS or (self.rule == "adaptive" and not self.tau_max)


class ScaleSection(Section):
    """What-if factors on inputs; 1 leaves an input unchanged."""

    stages: Factor = Field(1.0, description="on the times of all stages")
    drafts: Annotated[Factor, ReadIf("working")] = Field(
        1.0, description="on the times of all draft servers"
    )
    devices: dict[str, Factor] = Field(
        {}, description="on the times of the roles on a device profile: { l40 = 1.4 }"
    )
    roles: dict[str, Factor] = Field({}, description="on the times of a role: { draft0 = 1.5 }")
    rows: Factor = Field(
        1.0, description="on the times of passes over rows that nobody measured or gave"
    )
    latency: Factor = Field(1.0, description="on links' latencies, jitter included")
    bandwidth: Annotated[Factor, ReadIf("rated")] = Field(
        1.0, description="on the rates of all links"
    )
    links: dict[str, Factor] = Field({}, description="on the times of a link profile: { wan = 2 }")
    misses: Annotated[Factor, ReadIf("simulation"), ReadIf("drafted")] = Field(
        1.0, description="on the share of misses"
    )


class RunSection(Section):
    """Settings by which a run reaches its workers."""

    key: Annotated[str | None, ReadIf("run"), ReadIf("workers")] = Field(
        None,
        description="key file of workers on other hosts (treepipe worker --make-key); needed for "
        "addresses off the loopback",
    )
