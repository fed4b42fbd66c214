"""A scenario with every name resolved to numbers, the input of both worlds: roles, their machines
and models, links, rules of service and requests.

Nothing here reads a file. ``resolve.py`` makes a deployment of a scenario; ``desks.py`` makes the
desks of its roles.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from treepipe.core.barrier import Groups
from treepipe.core.captures import carried
from treepipe.core.draft_work import Draft
from treepipe.core.front_desk import Policy, ServiceLevels
from treepipe.core.messages import Feedback, Flight, Message, Through
from treepipe.core.protocol import Schedule, Started
from treepipe.core.requests import Objectives
from treepipe.core.stage_desk import Place
from treepipe.core.system import Bounds, Ends
from treepipe.physics.timing import DeviceTimes, HostTimes, LinkTimes
from treepipe.physics.transfers import Resources
from treepipe.profiles.shapes import BYTES, STATE_BYTES, DType, Shape, compute_dtype
from treepipe.scenario.faults import Faults
from treepipe.scenario.scale import Estimated

SWITCH = "switch"
"""Name of the process that makes transfers wait for each other; not a device of a deployment."""

AT_ONCE = LinkTimes(0.0)
"""A link that takes no time."""


Computed: TypeAlias = Literal["float32", "float16", "bfloat16"]
"""Types that a run can compute in."""
COMPUTED: tuple[Computed, ...] = get_args(Computed)
FULL: Computed = "float32"
"""Type in which every schedule's greedy text equals plain decoding's, except for very rare ties."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute settings of a role.

    Attributes:
        kind, index: the processor; a CPU has no index.
        threads: number of CPU threads.
        dtype: type of weights, states, keys and values.
        graphs: passes run in buckets, on a GPU as captured graphs.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    index: int = 0
    threads: int = 1
    dtype: Computed = FULL
    graphs: bool = False

    @property
    def device(self) -> str:
        """The device's name in torch."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


ONE_CORE = Compute()
"""Settings of a role whose device states nothing else."""


def computed_in(dtype: DType | None) -> Computed:
    """Return the type that a run computes in where a scenario states ``dtype`` of a model."""
    return next((each for each in COMPUTED if each == dtype), FULL)


MIB = 2**20


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a model, as far as they are known (``vocabulary`` counts logits).

    Attributes:
        layer_bytes: weights of a layer.
        kv_bytes: keys and values of a token in a layer.
        windows: (window, bytes) of those of ``kv_bytes`` that only the last tokens hold.
        state_bytes: what a layer keeps of a request, whatever its length.
        row_bytes: one row's hidden state.
        ends_bytes: embedding and output projection, and the input part of an EAGLE head.
        embedding_bytes: the embedding alone; the output projection has the same size.
        tied: the output projection is the embedding, so that a role with both holds one matrix.
        vocabulary: logits of a row.
    """

    layer_bytes: float
    kv_bytes: float
    row_bytes: float = 0.0
    ends_bytes: float = 0.0
    embedding_bytes: float = 0.0
    tied: bool = False
    vocabulary: int = 0
    windows: tuple[tuple[int, float], ...] = ()
    state_bytes: float = 0.0

    def entry_bytes(self, entries: int) -> float:
        """Return the bytes of one of a request's ``entries`` in a layer's cache, on average."""
        number = max(1, entries)
        spared = sum(own * max(0.0, 1 - window / number) for window, own in self.windows)
        return self.kv_bytes - spared + self.state_bytes / number

    def stage_ends_bytes(self, first: bool, last: bool) -> float:
        """Return the bytes of the target's ends that a stage of the pipeline holds."""
        return self.embedding_bytes * (1 if self.tied and first and last else first + last)

    @classmethod
    def of_shape(cls, shape: Shape, dtype: DType) -> Footprint:
        """Return the footprint of a model whose sizes are known."""
        # Quantized models keep what is around their layers in the type they compute in.
        full = BYTES[compute_dtype(dtype)]
        return cls(
            shape.layer_bytes(dtype),
            shape.kv_bytes(dtype),
            shape.row_bytes(dtype),
            shape.end_parameters * full,
            shape.head_parameters * full,
            shape.tied,
            shape.vocabulary,
            tuple(
                (kind.window, full * kind.cached * kind.layers / shape.layers)
                for kind in shape.kinds
                if kind.window is not None
            ),
            shape.state * STATE_BYTES,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """A physical device; a value is None where it is unknown.

    Attributes:
        roles: names of the roles that work on it.
        capacity: pieces of work that it does at once; more wait, first come first served.
        idle_factor: (gap in ms, factor on the time of the next work), ascending; empty: no effect.
        read_mib_s: rate at which its roles read their weights.
        runtime_mib: memory that each role's process takes without any model.
        costs: the host's additions to its devices' times in a run that is not emulated, if known.
        power_w: power when idle, and with all of its capacity at work.
    """

    name: str
    roles: tuple[str, ...]
    capacity: int = 1
    memory_mib: float | None = None
    idle_factor: tuple[tuple[float, float], ...] = ()
    power_w: tuple[float, float] | None = None
    usd_per_hour: float | None = None
    runtime_mib: float = 0.0
    costs: HostTimes | None = None
    read_mib_s: float | None = None

    @property
    def contended(self) -> bool:
        """Whether its roles may have to wait for each other."""
        return self.costs is None and len(self.roles) > self.capacity


@dataclass(frozen=True, slots=True)
class Placed:
    """A role on a device.

    Attributes:
        name: name in metrics and traces ("draft0", "pipeline0.stage1").
        times: the device's times for each kind of work.
        layers: the target's layers that it holds (empty for a draft).
        block: places of a block draft's block; 0: it is none.
        agreement: of a draft of another draft: how often it agrees with that one.
        tensor: equal devices that share each of its layers.
        compute: what its worker computes with in a run.
        worker: HOST:PORT of the worker's daemon on another host; None: a process of this host.
    """

    name: str
    times: DeviceTimes
    layers: range = range(0)
    compute: Compute = ONE_CORE
    worker: str | None = None
    block: int = 0
    tensor: int = 1
    agreement: float | None = None

    def draft_ms(self, work: Draft, parts: Sequence[tuple[int, int]] | None) -> float:
        """Return the time of draft passes. Args: ``parts``: their rows and contexts; None: any."""
        times, rows, asked, drawn = self.times, work.rows, work.asked, 0.0
        if times.draw is not None:
            drawn = sum([order.asked * times.draw(order.top_k) for _, order in work.passes])
        if self.block:
            new = [order.renews + self.block if order.renews else 0 for _, order in work.passes]
            rows, asked = sum(new), len([*filter(None, new)]) * (self.block - 1)
            if not rows:
                return drawn  # the block has the answer
            if parts is not None:
                parts = [(own, held) for own, (_, held) in zip(new, parts, strict=True) if own]
        taken = times.draft(rows) if parts is None else times.draft.over(parts)
        spared = 0.0 if times.project is None else times.spared(rows, asked)
        return taken - spared + drawn


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request: prompt token ids (a simulator uses only their number) and the most new tokens.

    ``end_tokens`` are the token ids that end a text; they have no meaning where a simulation's
    tokens are ranks. ``arrival_ms`` counts from the start of the run; None: a client of the closed
    loop asks for the request. A turn of a session also waits for the request at place ``after`` to
    end, and then for ``delay_ms``. ``known`` as in ``Started``.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_tokens: frozenset[int] = frozenset()
    arrival_ms: float | None = None
    after: int | None = None
    delay_ms: float = 0.0
    known: int = 0

    @property
    def started(self) -> Started:
        return Started(self.prompt, self.max_new_tokens, self.end_tokens, self.known)


NewSchedule = Callable[[int, int], Schedule]
"""Maps session number and number of stages to a fresh schedule."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The draft servers and the stages: their devices and the parts of the models that they hold.

    Attributes:
        machines: machines that host roles; a role on none of them has a device of its own.
        ends: location of the target's embedding and output projection.
        captured: boundaries of the target whose states of accepted rows a draft reads.
        row_bytes: bytes of one row's hidden state between stages.
        dtype: in a run, the type of the target's computation and of the states that stages send.
        footprint: the target's footprint; None if its size is unknown.
        draft_footprints: footprint and number of layers by draft server, where the model is known.
        shared_footprints: what one device holds of the target, by stage whose devices share layers.
    """

    drafts: tuple[Placed, ...]
    pipelines: tuple[tuple[Placed, ...], ...]
    machines: tuple[Machine, ...] = ()
    ends: Ends = "draft"
    captured: tuple[int, ...] = ()
    row_bytes: int = 0
    dtype: Computed = FULL
    footprint: Footprint | None = None
    draft_footprints: Mapping[str, tuple[Footprint, int]] = field(default_factory=dict)
    shared_footprints: Mapping[str, Footprint] = field(default_factory=dict)

    @property
    def placed(self) -> tuple[Placed, ...]:
        """Draft servers, then the stages of every pipeline."""
        return (*self.drafts, *itertools.chain.from_iterable(self.pipelines))

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(placed.name for placed in self.placed)

    @property
    def reads_states(self) -> bool:
        return bool(self.captured)

    @property
    def layers(self) -> dict[str, range]:
        """Layers of each stage, by its name."""
        return {stage.name: stage.layers for stages in self.pipelines for stage in stages}

    @property
    def connections(self) -> list[tuple[str, str]]:
        """(Sender, receiver) of all messages: every draft to every stage, each stage to the next,
        the last stage back; in lock-step the other stages also report to the draft when a step
        ends."""
        drafts, pairs = [draft.name for draft in self.heads], list[tuple[str, str]]()
        inner = [stage.name for stages in self.pipelines for stage in stages[:-1]]
        for placed in self.pipelines:
            stages = [stage.name for stage in placed]
            pairs += [(draft, stage) for draft in drafts for stage in stages]
            pairs += itertools.pairwise(stages)
            pairs += [(stages[-1], draft) for draft in drafts]
        pairs += [(stage, draft) for stage in inner for draft in drafts]
        below = [each.name for each in self.drafts[len(self.heads) :]]
        ways = [(low, to) for low in below for to in self.beside(low)]
        return [*pairs, *dict.fromkeys(each for way in ways for each in (way, way[::-1]))]

    @property
    def heads(self) -> tuple[Placed, ...]:
        """The draft servers of requests. The others, behind them, are drafts of drafts: row by row,
        each row in the order of those for which it drafts."""
        return tuple([each for each in self.drafts if each.agreement is None])

    def beside(self, draft: str) -> list[str]:
        """Return the drafts for which one drafts, and that draft for it."""
        names, row = [each.name for each in self.drafts], len(self.heads)
        at = names.index(draft)
        return [names[to] for to in (at - row, at + row) if 0 <= to < len(names)]

    def machine(self, role: str) -> Machine:
        """Return the machine that a role works on."""
        return next((m for m in self.machines if role in m.roles), Machine(role, (role,)))

    def is_local(self, sender: str, receiver: str) -> bool:
        """Return whether two roles share a machine, so that no port is between them."""
        return any({sender, receiver} <= set(machine.roles) for machine in self.machines)

    def pipeline_of(self, role: str) -> int | None:
        """Return the pipeline that a stage belongs to; None for any other role."""
        found = (n for n, each in enumerate(self.pipelines) if role in [s.name for s in each])
        return next(found, None)

    def verifies(self, pipeline: int, number: int) -> bool:
        """Return whether the ``number``-th stage (from 1) of a pipeline verifies tokens."""
        return self.ends == "pipeline" and number == len(self.pipelines[pipeline])

    @property
    def width(self) -> int:
        """Width of a row's hidden state in a run."""
        return self.row_bytes // round(BYTES[self.dtype])

    def sent_states(self, sender: str) -> int:
        """Return the number of states of each row whose states a role sends: a stage's output and
        the captured ones before it, or what the draft reads if it verifies."""
        for stages in self.pipelines:
            for stage in stages:
                if stage.name == sender:
                    if self.ends == "pipeline" and stage is stages[-1]:
                        return len(self.captured)
                    return 1 + carried(self.captured, stage.layers)
        return 1 if self.ends == "draft" else 0

    def sent_row_bytes(self, sender: str) -> int:
        """Return the bytes of the hidden states of a row that a role sends."""
        return self.row_bytes * self.sent_states(sender)

    def size_bytes(self, sender: str, message: Message) -> int:
        """Return a message's bytes on a link; the states in a report have no captured ones."""
        bare = isinstance(message, Through)
        return message.size_bytes(self.row_bytes if bare else self.sent_row_bytes(sender))

    def flight_row_bytes(self, sender: str) -> int:
        """Return the same of a message with a state of every row; 0 where ids are sent."""
        last = sender in [stages[-1].name for stages in self.pipelines]
        return 0 if self.ends == "pipeline" and last else self.sent_row_bytes(sender)


@dataclass(frozen=True, slots=True)
class Wiring:
    """The links between the roles.

    Attributes:
        pairs: links that differ from the default, by (sender, receiver); a spare has its address as
            name.
        local: link between roles of one machine.
        central_transfers: a device takes part in one transfer at a time.
        key: file of the key that workers on other hosts hold; None on the loopback only.
    """

    default: LinkTimes
    pairs: Mapping[tuple[str, str], LinkTimes] = field(default_factory=dict)
    local: LinkTimes = AT_ONCE
    central_transfers: bool = False
    key: Path | None = None

    @property
    def links(self) -> tuple[LinkTimes, ...]:
        return self.default, self.local, *self.pairs.values()

    def unscheduled(self, message: Message) -> bool:
        """Return whether a message bypasses the central scheduler, which handles only flights:
        transfers from a node to its neighbour (PipeDec, appendix A)."""
        return self.central_transfers and not isinstance(message, Flight)

    @property
    def queues_transfers(self) -> bool:
        """Whether any transfer may have to wait for one of another link."""
        return self.central_transfers or self.shares_links

    @property
    def shares_links(self) -> bool:
        """Whether transfers of several links may wait for each other; under the central scheduler
        both directions of a link take turns anyway."""
        turns = any(link.half_duplex for link in self.links) and not self.central_transfers
        return turns or any(link.medium is not None for link in self.links)

    def at_spare(self, role: str, spare: str) -> Wiring:
        """Return the wiring with a role at a spare, whose known links it takes."""
        ends = {pair: tuple(role if e == spare else e for e in pair) for pair in self.pairs}
        own = {(to[0], to[1]): self.pairs[pair] for pair, to in ends.items() if to != pair}
        return replace(self, pairs={**self.pairs, **own})


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens whose keys and values fit, per pipeline (each of its stages) and draft server."""

    pipelines: tuple[float, ...] = ()
    drafts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Service:
    """Rules of decoding, and of sharing draft servers and pipelines among requests.

    Attributes:
        groups: successive stages that work one after another within a step.
        overlapped_pruning: stages prune while a step's results are on their way.
        cancels: a stage gives up a pass, behind a layer of it, of which a word leaves no row.
        flights: maximum number of flights under way, per pipeline; None: no bound.
        cut: tokens that a round drafts of a chain that is cut by what more rows cost; 0: none is.
        feedback: the way of words to the stages.
        reported_states: states that each stage's reports take to the draft server, per pipeline.
        bounds: the schedule's bounds on the longest pipeline.
        target_emits: tokens are out when they are decided, where the pipeline's last stage does it.
        never_misses: the verification rule takes a child wherever there is one.
        least_probabilities: least probability of a candidate, by draft server; empty: no limit.
        clients: number of clients of the closed loop.
        limit: most requests that a pipeline serves at once.
        admission: requests beyond this number are refused.
        batch: most requests in a stage's pass ("auto" until ``memory.py`` has chosen).
        prompts: the place of prompts in a stage's queue (``core/stage_desk.py``).
        cache: how requests share the room for keys and values (``core/cache_room.py``); None: there
            is room for all open requests.
        cache_tokens: size of that room; None: the rest of the devices' memory.
        room: room for keys and values where requests share it, computed by ``memory.py``.
        slo: limits promised to requests, for goodput only; scheduling ignores them.
    """

    new_schedule: NewSchedule
    groups: Groups = 1
    overlapped_pruning: bool = True
    cancels: bool = False
    flights: tuple[int | None, ...] = ()
    cut: int = 0
    feedback: Feedback = "broadcast"
    reported_states: tuple[tuple[int, ...], ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    target_emits: bool = False
    never_misses: bool = False
    least_probabilities: tuple[float, ...] = ()
    clients: int = 1
    limit: int | None = None
    admission: int | None = None
    policy: Policy = "fifo"
    levels: ServiceLevels = field(default_factory=ServiceLevels)
    batch: int | Literal["auto"] = 1
    prompts: Place = "last"
    warm_up_ms: float | None = None
    cache: Literal["reserved", "paged"] | None = None
    cache_tokens: int | None = None
    room: Room = Room()
    slo: Objectives | None = None

    def reported(self, pipeline: int, stage: int) -> int:
        """Return the number of states in a report of a pipeline's ``stage``-th stage (from 1)."""
        return self.reported_states[pipeline][stage - 1] if self.reported_states else 0

    @property
    def pass_requests(self) -> int:
        """Most requests in a stage's pass; 1 until the batch is chosen."""
        return 1 if self.batch == "auto" else self.batch


@dataclass(frozen=True, slots=True)
class Deployment:
    """Roles, the wiring between them, their service rules, their faults, and the requests of a run.

    All runs of a scenario share everything but ``requests`` and ``seed``; ``asked`` returns the
    deployment of a run.

    Attributes:
        requests: requests in the order of asking; either all have an arrival time or none has.
            Empty before a run is chosen.
        seed: root of every random stream.
        warnings: assumptions behind the times, for the result.
        estimates: relative uncertainty of the inputs that are estimates.
        path: path of the scenario, for errors.
    """

    name: str
    roles: Roles
    wiring: Wiring
    service: Service
    faults: Faults = field(default_factory=Faults)
    requests: tuple[RequestSpec, ...] = ()
    seed: int = 0
    warnings: tuple[str, ...] = ()
    estimates: Mapping[Estimated, float] = field(default_factory=dict)
    path: Path = Path("scenario")

    def asked(self, requests: tuple[RequestSpec, ...], seed: int | None = None) -> Deployment:
        """Return the deployment for a run of these requests. Args: ``seed``: None keeps its own."""
        return replace(self, requests=requests, seed=self.seed if seed is None else seed)

    def warned(self, *sentences: str) -> Deployment:
        return replace(self, warnings=(*self.warnings, *sentences))

    @property
    def arrivals_ms(self) -> tuple[float, ...]:
        """Arrival times of the requests; empty for a closed loop."""
        times = [request.arrival_ms for request in self.requests]
        return tuple(time for time in times if time is not None)

    def most_open(self, pipeline: int) -> int:
        """Return the most requests that a pipeline serves at once."""
        service, pipelines = self.service, len(self.roles.pipelines)
        sessions = sum(request.after is None for request in self.requests)
        asked = sessions if self.arrivals_ms else service.clients
        inside = min(asked, service.admission or asked, len(self.requests))
        share = inside // pipelines + (pipeline < inside % pipelines)
        return min(share, service.limit) if service.limit is not None else share

    # --- links between roles ---------------------------------------------------------------------

    def link(self, sender: str, receiver: str) -> LinkTimes:
        """Return the times of one direction between two roles."""
        wiring = self.wiring
        other = wiring.local if self.roles.is_local(sender, receiver) else wiring.default
        return wiring.pairs.get((sender, receiver), other)

    def all_reduces_ms(self, stage: Placed, rows: int) -> float:
        """Return the mean time of a layer's two all-reduces over a stage's devices: of the sums
        behind attention and behind the MLP (Megatron-LM, section 3)."""
        size = rows * self.roles.row_bytes
        return 2 * self.inside(stage.name).all_reduce_ms(stage.tensor, size)

    def inside(self, stage: str) -> LinkTimes:
        """Return the link between the devices that share a stage's layers."""
        return self.wiring.pairs.get((stage, stage), self.wiring.default)

    def link_for(self, sender: str, receiver: str, *, unscheduled: bool) -> LinkTimes:
        """Return the times between two roles of a message that does, or does not, bypass the
        scheduler.

        The last stage "broadcasts" its result "to all nodes" (PipeDec, section 3.4.3): the stages
        receive it together with the draft server, so the draft server's message to them about it
        takes no time.
        """
        roles = self.roles
        told = unscheduled and sender not in roles.layers and roles.ends == "pipeline"
        return AT_ONCE if told else self.link(sender, receiver)

    def held(self, sender: str, receiver: str, *, unscheduled: bool = False) -> Resources:
        """Return the resources that a transfer between two roles occupies alone; usually empty."""
        link = self.link_for(sender, receiver, unscheduled=unscheduled)
        found = (sender, receiver) if self.wiring.central_transfers and not unscheduled else ()
        if link.medium is not None:
            return (*found, f"medium {link.medium}")
        return (*found, "<->".join(sorted((sender, receiver)))) if link.half_duplex else found

    # --- lost workers (``core/failover.py`` decides) ---------------------------------------------

    def pipeline_of(self, role: str) -> int | None:
        return self.roles.pipeline_of(role)

    def at_spare(self, role: str, spare: str) -> Deployment:
        """Return the deployment with a role moved to the spare of this address."""
        return replace(self, wiring=self.wiring.at_spare(role, spare))
