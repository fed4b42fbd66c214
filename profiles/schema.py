"""Keys of profile files: origins, devices, links, models, acceptance.

A link of a scenario has the same keys, and a device all but measured tables (``Hardware``), which
only profiles hold; a profile adds its ``[origin]``.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from treepipe.core.verification import RuleName
from treepipe.files.section import (
    Beside,
    Count,
    Factor,
    Milliseconds,
    Positive,
    ReadIf,
    Section,
    TokenTable,
)
from treepipe.physics.timing import JitterKind, LinkTimes, TimeTable
from treepipe.profiles.hit_ratio import Shares, check_rising, depths_of
from treepipe.profiles.kernels import KERNELS
from treepipe.profiles.shapes import BYTES, DType, Shape

Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
ContextTable: TypeAlias = Annotated[
    dict[Annotated[int, Field(ge=0)], TokenTable], Field(min_length=1)
]
"""Milliseconds against tokens, by context length."""
GapTable: TypeAlias = Annotated[dict[Milliseconds, Positive], Field(min_length=1)]
"""A factor against milliseconds."""


if TYPE_CHECKING:
    KernelName: TypeAlias = str
else:
    KernelName = Literal[tuple(KERNELS)]
FactorTable: TypeAlias = dict[Count, Factor]
"""A factor against a count."""


class Origin(Section):
    """The source of a profile's figures."""

    source: str = Field(min_length=1, description="who measured or published it, and where")
    date: datetime.date = Field(description="of the measurement, or when the source was read")
    note: str = Field("", description="what a user of the figures must know")
    estimate: bool = Field(False, description="computed or assumed, not measured")
    uncertainty: Positive | None = Field(
        None, description="relative, e.g. 0.3 for 30 % either way; required of an estimate"
    )

    @model_validator(mode="after")
    def _estimates_are_uncertain(self) -> Origin:
        if self.estimate and self.uncertainty is None:
            raise ValueError("key origin.uncertainty is missing; an estimate must state it")
        return self


class MeasuredOrigin(Origin):
    """The source of figures of hardware."""

    hardware: str = Field(min_length=1, description="what was measured")
    versions: str = Field(min_length=1, description="software it was measured with")


class Price(Section):
    """A published purchase price of a device."""

    amount: Positive = Field(description="of one device")
    currency: Literal["USD"] = Field(description="in which budgets are stated, too")
    source: str = Field(min_length=1, description="who asks it, and for what")
    date: datetime.date = Field(description="on which it was published")

    def __str__(self) -> str:
        return f"{self.amount:,.10g} {self.currency} ({self.source}, {self.date})"


class FitError(Section):
    """Relative error of thinning a measured table to its knots, over all measured points."""

    median: Annotated[float, Field(ge=0)] = Field(description="relative")
    max: Annotated[float, Field(ge=0)] = Field(description="relative")
    points: Count = Field(description="number of measured points")


class MeasuredTime(Section):
    """Milliseconds of one kind of work, against tokens and context length."""

    model: str = Field(description="a model profile's name, or any name beside a shape")
    dtype: DType = Field(description="of the weights")
    ms: ContextTable = Field(description="medians: context length → { tokens = ms }")
    shape: Shape | None = Field(None, description="of a model that has no profile")
    iqr_ms: ContextTable | None = Field(
        None, description="interquartile range of the passes whose median ms holds"
    )
    fit_error: FitError | None = Field(None, description="what thinning the table cost")
    source: str | None = Field(None, description="where it differs from the profile's")


class LayerTime(MeasuredTime):
    """One decoder layer."""

    attention: bool = Field(
        True, description="false: without attention itself, which the roofline adds"
    )


class HeadTime(MeasuredTime):
    """An output projection."""

    shared: bool = Field(
        False, description="by a role that also embeds with the same matrix, which is not packed"
    )


class SamplingTime(Section):
    """What a rule that samples adds to passes, row by row."""

    vocabulary: Count = Field(description="number of tokens")
    rule: RuleName = Field(description="as sampling.rule of a scenario")
    truncated: bool = Field(False, description="with top_k or top_p")
    judge_ms: Milliseconds = Field(
        description="per row at which the target's token is chosen, beside its output projection"
    )
    draw_ms: TokenTable | None = Field(
        None, description="candidates → ms per row of a draft pass; none: the rule needs no draft"
    )


class Roofline(Section):
    """Peak figures and their reached shares (Williams et al., 2009)."""

    tflops: Annotated[dict[DType, Positive], Field(min_length=1)] = Field(
        description="dense, by the type that is computed in"
    )
    memory_gb_s: Positive = Field(description="memory bandwidth")
    compute_efficiency: Share = Field(0.7, description="share of the peak that is reached")
    memory_efficiency: Share | Annotated[dict[DType, Share], Field(min_length=1)] = Field(
        0.8, description="share of the bandwidth that is reached, or shares by the weights' type"
    )

    def reached(self, dtype: DType) -> float:
        """Return the share of the bandwidth for weights of a type, or of the nearest size."""
        share = self.memory_efficiency
        if isinstance(share, float):
            return share
        return share[min(share, key=lambda each: (abs(BYTES[each] - BYTES[dtype]), each != dtype))]


class Power(Section):
    """Watts of a device."""

    idle_w: Annotated[float, Field(ge=0)] = Field(description="when nothing works")
    busy_w: Positive = Field(description="when all of the capacity works")

    def __str__(self) -> str:
        return f"power {self.idle_w:.4g} W idle, {self.busy_w:.4g} W busy"


class MeasuredPower(Power):
    """Watts of a profile's device, and the sensor that told them."""

    sensor: str | None = Field(None, description="that told both, and what it covers")

    def __str__(self) -> str:
        return f"{super().__str__()}{'' if self.sensor is None else f'; sensor {self.sensor}'}"


class AnyHardware(Section):
    """Keys of every device, however its times are given."""

    memory_mib: Positive | None = Field(
        None, description="for weights, caches, buffers; a deployment that does not fit is refused"
    )
    read_mib_s: Annotated[
        Positive | None, ReadIf("simulation"), ReadIf("failing"), ReadIf("restart unknown")
    ] = Field(None, description="weights that a role reads and packs in a second")
    runtime_mib: Annotated[Annotated[float, Field(ge=0)] | None, ReadIf("limited")] = Field(
        None, description="part of memory_mib that each role's process takes without any model"
    )
    decide_ms: Annotated[Milliseconds, ReadIf("verifying")] = Field(
        0.0, description="the schedule's work per returned segment (a batch: one per request)"
    )
    prune_ms: Annotated[Milliseconds, ReadIf("pruning")] = Field(
        0.0, description="compacting a stage's caches for one word"
    )
    idle_factor: Annotated[GapTable | None, ReadIf("working")] = Field(
        None, description="idle gap before a pass in ms → factor on its time"
    )
    price_usd_per_hour: Positive | None = Field(None, description="for usd_per_million_tokens")
    power: Power | None = Field(None, description="for joules_per_token")
    kind: Annotated[Literal["cpu", "cuda"], ReadIf("run")] = Field(
        "cpu", description="the processor that a worker computes on"
    )
    index: Annotated[int, Field(ge=0, le=1000), ReadIf("run")] = Field(
        0, description="of the GPU, for kind cuda"
    )
    threads: Annotated[int, Field(ge=1, le=1000), ReadIf("run")] = Field(
        1, description="that a worker's CPU computes with, at most the machine's cores"
    )
    graphs: Annotated[Literal["auto", False], ReadIf("run")] = Field(
        False,
        description="auto: a worker's passes run in buckets of rows and context, on a GPU as "
        "captured CUDA graphs where the model's can be (untried on hardware)",
    )

    @model_validator(mode="after")
    def _only_gpus_are_counted(self) -> AnyHardware:
        if self.index and self.kind == "cpu":
            raise ValueError(f"key index = {self.index} is for kind = 'cuda', not 'cpu'")
        return self


class RooflineKeys(AnyHardware):
    """Keys of every device whose times may follow from its peak figures."""

    roofline: Annotated[Roofline | None, ReadIf("working")] = Field(
        None, description="peak figures, for what was not measured"
    )


class Hardware(RooflineKeys):
    """A device described by the cost of one model layer; ``service.py`` computes a stage's time."""

    kernels: KernelName = Field(
        "any", description="family whose law passes over quantized weights follow (kernels.toml)"
    )
    call_overhead_ms: Milliseconds = Field(0.0, description="once per pass, whatever its size")
    request_ms: Milliseconds = Field(
        0.0, description="per layer and request beyond the first whose rows a pass computes"
    )
    layer: tuple[LayerTime, ...] = Field((), description="measured decoder layers")
    head: tuple[HeadTime, ...] = Field((), description="measured output projections")
    embedding: tuple[MeasuredTime, ...] = Field((), description="measured embeddings")
    draft: tuple[MeasuredTime, ...] = Field((), description="measured whole draft passes")
    sampling: tuple[SamplingTime, ...] = Field(
        (), description="measured verification rules; evaluate_ms of a role's times includes them"
    )

    @model_validator(mode="after")
    def _has_times(self) -> Hardware:
        if self.roofline is None and not (self.layer or self.draft):
            raise ValueError("needs [roofline], [[layer]] or [[draft]]: there is nothing to time")
        return self


class Peaks(RooflineKeys):
    """A device of a scenario by its peak figures alone; measured tables are a profile's."""

    roofline: Annotated[Roofline, ReadIf("working")] = Field(
        description="peak figures, for what was not measured"
    )

    @property
    def hardware(self) -> Hardware:
        return Hardware.model_validate(given_keys(self))


class RoleKeys(AnyHardware):
    """Tables of milliseconds against tokens for a role's whole work (piecewise linear)."""

    stage_ms: Annotated[TokenTable, ReadIf("stage")] = Field(
        {1: 20.0}, description="tokens → ms of a pass through the stage's layers"
    )
    draft_ms: Annotated[TokenTable, ReadIf("drafting")] = Field(
        {1: 3.0}, description="tokens → ms of a draft pass"
    )
    evaluate_ms: Annotated[TokenTable, ReadIf("verifying")] = Field(
        {1: 0.0},
        description="rows → ms of their output projection and of choosing the target's tokens",
    )


class Device(RoleKeys):
    """A device described by the times of a role's whole work."""


class DeviceProfile(Hardware):
    """A file of ``devices/``."""

    origin: MeasuredOrigin
    power: MeasuredPower | None = Field(None, description="for joules_per_token")
    price: Price | None = Field(None, description="where somebody published one")


class EmulatedProfile(Device):
    """A file of ``devices/`` with times of a role's whole work."""

    origin: MeasuredOrigin
    power: MeasuredPower | None = Field(None, description="for joules_per_token")
    price: Price | None = Field(None, description="where somebody published one")


class HostFit(Section):
    """The runs that a host's terms were fitted to."""

    schedules: tuple[str, ...] = Field(description="that were run")
    prompts: str = Field(description="on which")
    pieces: Count = Field(description="of work that were seen")
    company: Annotated[float, Field(ge=0)] = Field(
        0.0, description="processors' worth of other processes' work meanwhile"
    )


class HostProfile(Section):
    """A file of ``hosts/``: a host's costs beyond its devices' times, in runs without emulation."""

    origin: MeasuredOrigin
    send_ms: TokenTable = Field({1: 0.0}, description="bytes -> ms of a message's sender")
    receive_ms: TokenTable = Field({1: 0.0}, description="bytes -> ms of a message's receiver")
    look_ms: Milliseconds = Field(
        0.0, description="further, of the first of messages read together"
    )
    wake_ms: Milliseconds = Field(0.0, description="until a sleeping role goes on")
    desk_ms: TokenTable = Field({1: 0.0}, description="rows -> ms of the draft's decisions")
    gauge_ms: Positive | None = Field(
        None, description="of the workers' fixed piece of work, to which runs are compared"
    )
    stage_factor: FactorTable = Field({}, description="rows -> factor on a stage's pass")
    draft_factor: FactorTable = Field({}, description="rows -> factor on a draft pass")
    evaluate_factor: FactorTable = Field({}, description="rows -> factor on taking tokens")
    together: FactorTable = Field({}, description="processors at work -> factor on their work")
    processors: Positive | None = Field(
        None, description="roles that can be at work at once; others wait; none: any number"
    )
    turn_ms: Positive | None = Field(
        None, description="for which a role has a processor while others wait; none: to its end"
    )
    company: Annotated[int, Field(ge=0, le=64)] = Field(
        0, description="other processes that compute without a pause, beyond those of its fit"
    )
    variation: Annotated[float, Field(ge=0, le=10)] = Field(
        0.0, description="standard deviation of a piece of work over its mean"
    )
    draft_cold: FactorTable = Field(
        {}, description="a draft's 1st, 2nd, … pass behind a wait -> further factor"
    )
    restart_ms: Milliseconds | None = Field(
        None, description="from a worker's loss until all work again, models included"
    )
    restart_mib: Positive | None = Field(
        None,
        description="weights that the host's roles read in restart_ms; others take longer or "
        "shorter by the rate of reading",
    )
    iqr: dict[str, FactorTable] | None = Field(
        None, description="interquartile range of a key's values, relative, by its knots"
    )
    fit: HostFit | None = None


class ExtendedDevice(RoleKeys, RooflineKeys):
    """A device profile with overriding keys; an absent key keeps the profile's value."""

    profile: str = Field(description="a device profile, whose keys the others here replace")


def device_kind(data: Any) -> str:
    """Tag of the form in which a device is described."""
    if isinstance(data, str):
        return "device-name"
    if isinstance(data, ExtendedDevice) or (isinstance(data, dict) and "profile" in data):
        return "device-extended"
    if isinstance(data, dict):
        hardware = bool({"roofline", "layer", "draft"} & set(data))
    else:
        hardware = isinstance(data, Peaks)
    return "device-hardware" if hardware else "device-times"


AnyDevice: TypeAlias = Annotated[
    Annotated[Device, Tag("device-times")]
    | Annotated[Peaks, Tag("device-hardware")]
    | Annotated[ExtendedDevice, Tag("device-extended")]
    | Annotated[str, Tag("device-name")],
    Discriminator(device_kind),
]
"""A device in a scenario: a table, a profile's name, or a profile with overriding keys."""


class LinkKeys(Section):
    """Keys of a link."""

    latency_ms: Milliseconds = Field(0.2, description="propagation, whatever the size")
    bandwidth_mbit_s: Positive | None = Field(None, description="the rate; default: no time")
    burst_kib: Annotated[Annotated[float, Field(ge=0)], Beside("bandwidth_mbit_s")] = Field(
        0.0, description="depth of a token bucket in each port, which fills at bandwidth_mbit_s"
    )
    peak_mbit_s: Annotated[Positive | None, Beside("burst_kib")] = Field(
        None, description="the rate of what finds tokens; default: no time"
    )
    message_ms: Milliseconds = Field(0.0, description="keeps the sender busy, once per message")
    transfer_ms: TokenTable | None = Field(
        None, description="instead of a bandwidth: bytes → ms on the wire, besides the latency"
    )
    jitter_ms: Milliseconds = Field(0.0, description="scale of what is added to the latency")
    jitter: Annotated[JitterKind, Beside("jitter_ms")] = Field(
        "half_normal", description="its family: |normal(0, jitter_ms)|, or of the mean jitter_ms"
    )
    jitter_cv: Annotated[Positive, Beside("jitter_ms")] = Field(
        1.0, description="of lognormal: standard deviation over mean"
    )
    loss: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="probability that a message is lost and sent again"
    )
    retransmit_ms: Annotated[Milliseconds, Beside("loss")] = Field(
        200.0, description="after which a lost message is sent again (Linux: TCP's least timeout)"
    )
    duplex: Annotated[Literal["full", "half"], ReadIf("occupied")] = Field(
        "full", description="half: one direction at a time"
    )
    medium: Annotated[Annotated[str, Field(min_length=1)] | None, ReadIf("occupied")] = Field(
        None, description="all links that name the same one carry one message at a time"
    )

    @model_validator(mode="after")
    def _one_rate(self) -> LinkKeys:
        if self.transfer_ms is not None and self.bandwidth_mbit_s is not None:
            raise ValueError("give bandwidth_mbit_s or transfer_ms, not both")
        if self.peak_mbit_s is not None and self.peak_mbit_s < (self.bandwidth_mbit_s or 0.0):
            raise ValueError("key peak_mbit_s is less than bandwidth_mbit_s")
        given = self.model_fields_set
        by_profile = "jitter" not in given and getattr(self, "profile", None) is not None
        if "jitter_cv" in given and self.jitter != "lognormal" and not by_profile:
            raise ValueError(f"key jitter_cv is for jitter = 'lognormal', not {self.jitter!r}")
        return self


class Link(LinkKeys):
    """One direction of a connection."""

    @property
    def times(self) -> LinkTimes:
        """The link's times, which both worlds read."""
        return LinkTimes(
            self.latency_ms,
            self.bandwidth_mbit_s,
            self.jitter_ms,
            self.message_ms,
            None if self.transfer_ms is None else TimeTable(self.transfer_ms),
            self.jitter,
            self.jitter_cv,
            self.loss,
            self.retransmit_ms,
            self.duplex == "half",
            self.medium,
            self.burst_kib * 1024,
            self.peak_mbit_s,
        )


class ExtendedLink(LinkKeys):
    """A link profile with overriding keys; an absent key keeps the profile's value."""

    profile: str = Field(description="a link profile, whose keys the others here replace")


def link_kind(data: Any) -> str:
    """Tag of the form in which a link is described."""
    if isinstance(data, str):
        return "link-name"
    extended = isinstance(data, ExtendedLink) or (isinstance(data, dict) and "profile" in data)
    return "link-extended" if extended else "link-times"


AnyLink: TypeAlias = Annotated[
    Annotated[Link, Tag("link-times")]
    | Annotated[ExtendedLink, Tag("link-extended")]
    | Annotated[str, Tag("link-name")],
    Discriminator(link_kind),
]
"""A link in a scenario: a table, a profile's name, or a profile with overriding keys."""


def given_keys(section: Section) -> dict[str, Any]:
    """Return the keys that a section's author set, besides a profile's name."""
    return {name: getattr(section, name) for name in section.model_fields_set - {"profile"}}


class LinkProfile(Link):
    """A file of ``links/``."""

    origin: MeasuredOrigin
    measured_to_bytes: Count | None = Field(
        None, description="largest message that was timed; larger ones are shown as extrapolated"
    )


class HopProfile(Section):
    """A file of ``hops/``: what an inference engine adds to every message between two stages, or
    between a stage and the host that asks for tokens."""

    origin: MeasuredOrigin
    hop_ms: Milliseconds = Field(description="of the engine itself, per pass and message")
    crossings: Positive = Field(1.0, description="times that a message crosses the link in a row")
    copies: Positive = Field(1.0, description="bytes that travel, over rows in 16 bits")

    def over(self, link: Link) -> dict[str, Any]:
        """Return the keys of a link that the engine's messages take."""
        keys: dict[str, Any] = {
            "latency_ms": link.latency_ms * self.crossings,
            "jitter_ms": link.jitter_ms * self.crossings,
            "message_ms": link.message_ms * self.crossings + self.hop_ms,
        }
        factor = self.crossings * self.copies
        for key in ("bandwidth_mbit_s", "peak_mbit_s"):
            if (rate := getattr(link, key)) is not None:
                keys[key] = rate / factor
        if link.transfer_ms is not None:
            keys["transfer_ms"] = {n: ms * factor for n, ms in link.transfer_ms.items()}
        return keys


class ModelProfile(Shape):
    """A file of ``models/``."""

    origin: Origin
    dtype: DType = Field("float16", description="that the weights are published in")
    mtp_parameters: Annotated[int, Field(ge=0)] = Field(
        0, description="weights of MTP heads, which are in neither layers nor ends"
    )
    caveats: dict[str, str] = Field(
        {}, description="what is counted otherwise than it is, by the key of its file that says so"
    )


class AcceptanceProfile(Section):
    """A file of ``acceptance/``: how well a draft guesses a target, for a kind of text."""

    origin: Origin
    draft: str
    target: str
    task: str
    temperature: Annotated[float, Field(ge=0)]
    hit_ratio: Annotated[dict[Count, Shares], Field(min_length=1)] | None = Field(
        None,
        description="share of positions whose target token is among the first k, or shares by "
        "depth; beside a pool one share each",
    )
    pool: str | None = Field(None, description="a recorded pool (JSON), beside this file")
    block: Count | None = Field(
        None, description="pool: positions drawn together; default: chosen from the pool"
    )

    @field_validator("hit_ratio")
    @classmethod
    def _grows(cls, table: dict[int, Shares] | None) -> dict[int, Shares] | None:
        check_rising(table or {}, "hit_ratio")
        return table

    @model_validator(mode="after")
    def _has_source(self) -> AcceptanceProfile:
        if self.hit_ratio is None and self.pool is None:
            raise ValueError("give hit_ratio, or pool, or both: a pool drawn to reach the ratio")
        if self.pool is not None and depths_of(self.hit_ratio or {}) > 1:
            raise ValueError(
                "key hit_ratio: beside a pool, which has depths of its own, it is one share for "
                "each k"
            )
        return self
