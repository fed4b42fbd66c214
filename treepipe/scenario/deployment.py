"""A scenario with every name resolved to numbers: what both worlds are started with.

Nothing here reads a file; ``resolve.py`` makes it of a scenario.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, log
from pathlib import Path
from typing import Literal

from treepipe.core.barrier import Groups, group_sizes
from treepipe.core.cache_room import CacheRoom
from treepipe.core.draft_desk import DraftDesk
from treepipe.core.draft_work import Draft
from treepipe.core.front_desk import ArrivalQueue, Dispatcher, FrontDesk, Policy, ServiceLevels
from treepipe.core.messages import Flight, Message
from treepipe.core.protocol import Schedule, Started
from treepipe.core.requests import Objectives
from treepipe.core.stage_desk import Place, StageDesk
from treepipe.core.system import Ends
from treepipe.physics.timing import DeviceTimes, LinkTimes
from treepipe.physics.transfers import Held
from treepipe.profiles.shapes import BYTES
from treepipe.scenario.computing import FULL, ONE_CORE, Compute, Computed
from treepipe.scenario.faults import FaultPlan
from treepipe.scenario.footprint import Footprint
from treepipe.scenario.machines import Machine
from treepipe.scenario.scale import Estimated

SWITCH = "switch"
"""Name of the process that lets transfers wait for each other; no device of a deployment."""

AT_ONCE = LinkTimes(0.0)
"""A link that takes no time."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A role on a device.

    Attributes:
        name: as metrics and traces show it ("draft0", "pipeline0.stage1").
        times: what its device needs for each kind of work.
        layers: the target's layers it holds (empty for a draft).
        one_pass: a draft proposes all that it does in a turn in one pass, its first.
        compute: what its worker computes with in a run.
        worker: HOST:PORT of the worker's daemon on another host; None: a process of this one.
    """

    name: str
    times: DeviceTimes
    layers: range = range(0)
    compute: Compute = ONE_CORE
    worker: str | None = None
    one_pass: bool = False

    def draft_ms(self, work: Draft, parts: Sequence[tuple[int, int]] | None) -> float:
        """How long draft passes take. Args: ``parts``: their rows and contexts; None: any."""
        if self.one_pass and work.later:
            return 0.0
        times, rows = self.times, work.rows
        taken = times.draft(rows) if parts is None else times.draft.over(parts)
        return taken if times.project is None else taken - times.spared(rows, work.asked)


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """A request: prompt token ids (for the simulator only their number counts) and its length.

    ``end_tokens``, any of which ends a text, are token ids: they mean nothing where a simulation's
    tokens are ranks.
    ``arrival_ms`` counts from the start of the run; None: a client of the closed loop asks for it.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    end_tokens: frozenset[int] = frozenset()
    arrival_ms: float | None = None

    @property
    def started(self) -> Started:
        return Started(self.prompt, self.max_new_tokens, self.end_tokens)


@dataclass(frozen=True, slots=True)
class Serving:
    """How requests share draft servers and pipelines; see ``core/front_desk.py``.

    Attributes:
        batch: most requests in a stage's pass ("auto" until ``fitting.py`` has chosen).
        prompts: their place among what waits for a stage (``core/stage_desk.py``).
        cache: how requests share the room for keys and values (``core/cache_room.py``); None:
            there is room for all that are open.
        cache_tokens: that room; None: what the devices' memory leaves.
        slo: what requests are promised, for goodput; nobody schedules by it.
    """

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
    slo: Objectives | None = None


NewSchedule = Callable[[int, int], Schedule]
"""Session number, number of stages -> a fresh schedule."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most tokens that a schedule has of a request at once.

    Attributes:
        pass_tokens: in one pass of a stage.
        segment_tokens: in one pass of a stage, prompts aside.
        tree_tokens: in the tree in flight, of which each stage holds keys and values.
        scratch_tokens: in the tree that a draft grows ahead of it.
    """

    pass_tokens: int = 1
    segment_tokens: int = 1
    tree_tokens: int = 0
    scratch_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens whose keys and values fit, per pipeline (at each of its stages) and draft server."""

    pipelines: tuple[float, ...] = ()
    drafts: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Deployment:
    """Draft servers, pipelines, the links between them, the schedule, and what a run is asked.

    Everything but ``requests`` and ``seed`` is the same in all runs of a scenario; ``asked`` gives
    the one of a run.

    Attributes:
        default_link, links: link times, by (sender, receiver) where they differ; a spare's, too, by
            its address.
        local_link: between roles of one machine.
        row_bytes: bytes of one row's hidden state between stages.
        dtype: in a run, what the target is computed in, and its states travel in.
        groups: stages in a row that work one after another within a step.
        overlapped_pruning: stages prune while a step's results are on their way.
        central_transfers: a device takes part in one transfer at a time.
        ends: where the target's ends are.
        reads_states: a draft reads the target's states of accepted rows (an EAGLE head).
        never_misses: the verification rule takes a child wherever there is one.
        least_probabilities: of a candidate, by draft server; empty: every one is proposed.
        requests: in the order in which they are asked for; all of them arrive, or none does.
            Empty before a run is chosen.
        seed: root of every random stream.
        warnings: what the times rest on besides measurements; for the result.
        machines: what the roles work on; one that is in none has a plain device of its own.
        bounds: of the schedule, on the longest of the pipelines.
        footprint: of the target; None if nothing tells its size.
        draft_footprints: with the number of layers, of the draft servers whose model is known.
        room: for keys and values, where ``serving.cache`` shares it; ``fitting.py`` finds it.
        path: of the scenario, for errors.
        estimates: relative uncertainty of the inputs that are estimates.
        faults: which ones there are, and what then.
        redeal: makes the deployment without a stage that is lost, whose layers the others take, or
            raises ``UserError``; None: nobody does.
        stand_in: gives the schedules of requests whose draft server is lost, which need no draft;
            None: nobody stands in for it.
        plain: draft servers that are lost, and decode by these.
        key: file of the key that the workers on other hosts hold; None on the loopback only.
    """

    name: str
    drafts: tuple[Placed, ...]
    pipelines: tuple[tuple[Placed, ...], ...]
    new_schedule: NewSchedule
    requests: tuple[RequestSpec, ...]
    default_link: LinkTimes
    links: Mapping[tuple[str, str], LinkTimes] = field(default_factory=dict)
    row_bytes: int = 0
    dtype: Computed = FULL
    serving: Serving = Serving()
    groups: Groups = 1
    overlapped_pruning: bool = True
    central_transfers: bool = False
    ends: Ends = "draft"
    reads_states: bool = False
    never_misses: bool = False
    least_probabilities: tuple[float, ...] = ()
    seed: int = 0
    warnings: tuple[str, ...] = ()
    machines: tuple[Machine, ...] = ()
    local_link: LinkTimes = AT_ONCE
    bounds: Bounds = Bounds()
    footprint: Footprint | None = None
    draft_footprints: Mapping[str, tuple[Footprint, int]] = field(default_factory=dict)
    room: Room = Room()
    path: Path = Path("scenario")
    estimates: Mapping[Estimated, float] = field(default_factory=dict)
    key: Path | None = None
    faults: FaultPlan = field(default_factory=FaultPlan)
    redeal: Callable[[Deployment, str], Deployment] | None = None
    stand_in: NewSchedule | None = None
    plain: frozenset[str] = frozenset()

    def asked(self, requests: tuple[RequestSpec, ...], seed: int | None = None) -> Deployment:
        """The deployment for a run of these requests. Args: ``seed``: None keeps its own."""
        return replace(self, requests=requests, seed=self.seed if seed is None else seed)

    def without_draft(self, lost: str) -> Deployment | None:
        """The deployment with a stand-in for a lost draft server; None if there is none, or it is
        the stand-in that is lost."""
        drafts = {draft.name for draft in self.drafts} - self.plain
        if self.stand_in is None or lost not in drafts:
            return None
        return replace(self, plain=self.plain | {lost})

    def with_draft(self, back: str) -> Deployment:
        """The deployment in which a draft server drafts, whether or not it did before."""
        return replace(self, plain=self.plain - {back})

    def at_spare(self, role: str, spare: str) -> Deployment:
        """The deployment with a role at the spare of this address, whose links it has, as far as
        they are known."""
        ends = {pair: tuple(role if e == spare else e for e in pair) for pair in self.links}
        own = {(to[0], to[1]): self.links[pair] for pair, to in ends.items() if to != pair}
        return replace(self, links={**self.links, **own})

    def schedule_of(self, draft: int) -> NewSchedule:
        """What gives the schedules of a draft server's requests."""
        if self.stand_in is not None and self.drafts[draft].name in self.plain:
            return self.stand_in
        return self.new_schedule

    @property
    def layers(self) -> dict[str, range]:
        """Which ones each stage holds."""
        return {stage.name: stage.layers for stages in self.pipelines for stage in stages}

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(placed.name for placed in self.placed)

    @property
    def placed(self) -> tuple[Placed, ...]:
        """Draft servers, then the stages of every pipeline."""
        return (*self.drafts, *(stage for stages in self.pipelines for stage in stages))

    @property
    def connections(self) -> list[tuple[str, str]]:
        """(Sender, receiver) of all messages: every draft to every stage, each stage to the next,
        the last ones back; in lock-step the others say when they are through."""
        drafts, pairs = [draft.name for draft in self.drafts], list[tuple[str, str]]()
        inner = [stage.name for stages in self.pipelines for stage in stages[:-1]]
        for placed in self.pipelines:
            stages = [stage.name for stage in placed]
            pairs += [(draft, stage) for draft in drafts for stage in stages]
            pairs += itertools.pairwise(stages)
            pairs += [(stages[-1], draft) for draft in drafts]
        return pairs + [(stage, draft) for stage in inner for draft in drafts]

    def link(self, sender: str, receiver: str) -> LinkTimes:
        """Times of one direction between two roles."""
        found = self.links.get((sender, receiver))
        if found is not None:
            return found
        return self.local_link if self.is_local(sender, receiver) else self.default_link

    def is_local(self, sender: str, receiver: str) -> bool:
        """Whether two roles are on one machine, so that no port is between them."""
        return any({sender, receiver} <= set(machine.roles) for machine in self.machines)

    def unscheduled(self, message: Message) -> bool:
        """Whether a message passes by the central scheduler, which has what goes from a node to its
        neighbour (PipeDec, appendix A): flights."""
        return self.central_transfers and not isinstance(message, Flight)

    def link_for(self, sender: str, receiver: str, *, unscheduled: bool) -> LinkTimes:
        """Times between two roles of what passes by the scheduler or does not.

        The last stage "broadcasts" its result "to all nodes" (PipeDec, section 3.4.3): the stages
        have it when the draft server has, so what that tells them then takes no time of its own.
        """
        told = unscheduled and sender not in self.layers and self.ends == "pipeline"
        return AT_ONCE if told else self.link(sender, receiver)

    def held(self, sender: str, receiver: str, *, unscheduled: bool = False) -> Held:
        """What a transfer between two roles has to itself while it lasts; mostly nothing."""
        link = self.link_for(sender, receiver, unscheduled=unscheduled)
        found = (sender, receiver) if self.central_transfers and not unscheduled else ()
        if link.medium is not None:
            return (*found, f"medium {link.medium}")
        return (*found, "<->".join(sorted((sender, receiver)))) if link.half_duplex else found

    @property
    def queues_transfers(self) -> bool:
        """Whether any transfer may have to wait for one of another link."""
        return self.central_transfers or self.shares_links

    @property
    def shares_links(self) -> bool:
        """Whether what one transfer occupies on a link another link's may have to wait for; in the
        central scheduler both directions of a link take turns without that."""
        links = (self.default_link, self.local_link, *self.links.values())
        turns = any(link.half_duplex for link in links) and not self.central_transfers
        return turns or any(link.medium is not None for link in links)

    def machine(self, role: str) -> Machine:
        """What a role works on."""
        return next((m for m in self.machines if role in m.roles), Machine(role, (role,)))

    def pipeline_of(self, role: str) -> int | None:
        """The pipeline that a stage belongs to; None for a role that is none."""
        found = (n for n, each in enumerate(self.pipelines) if role in [s.name for s in each])
        return next(found, None)

    def verifies(self, pipeline: int, number: int) -> bool:
        """Whether the ``number``-th stage (from 1) of a pipeline takes the target's tokens."""
        return self.ends == "pipeline" and number == len(self.pipelines[pipeline])

    @property
    def width(self) -> int:
        """Numbers in a row's hidden state, in a run."""
        return self.row_bytes // round(BYTES[self.dtype])

    @property
    def outer_row_bytes(self) -> int:
        """Bytes of a row's hidden states between draft server and pipeline; 0 where ids travel."""
        return 0 if self.ends == "pipeline" else self.row_bytes

    def sent_row_bytes(self, sender: str) -> int:
        """Bytes of the hidden states of a row that a role sends."""
        feeds = any(sender == draft.name for draft in self.drafts)
        return self.outer_row_bytes if feeds else self.row_bytes

    @property
    def arrivals_ms(self) -> tuple[float, ...]:
        """The requests' arrival times; empty for a closed loop."""
        times = [request.arrival_ms for request in self.requests]
        return tuple(time for time in times if time is not None)

    def most_open(self, pipeline: int) -> int:
        """Most requests that a pipeline serves at once."""
        serving, pipelines = self.serving, len(self.pipelines)
        asked = len(self.requests) if self.arrivals_ms else serving.clients
        inside = min(asked, serving.admission or asked, len(self.requests))
        share = inside // pipelines + (pipeline < inside % pipelines)
        return min(share, serving.limit) if serving.limit is not None else share

    @property
    def batch(self) -> int:
        """Most requests in a stage's pass; 1 as long as nothing has chosen it."""
        return 1 if self.serving.batch == "auto" else self.serving.batch

    def draft_desk(self, draft: int) -> DraftDesk:
        groups = [len(group_sizes(self.groups, len(stages))) for stages in self.pipelines]
        queue = ArrivalQueue(self.serving.policy, self.serving.levels)
        warm_up_ms = self.serving.warm_up_ms if self.drafts[draft].name not in self.plain else None
        least = self.least_probabilities[draft] if self.least_probabilities else 0.0
        log_prob = log(least) if least else -inf
        room = self.cache_room(draft)
        return DraftDesk(draft, groups, queue, self.batch, warm_up_ms, room, log_prob)

    def cache_room(self, draft: int) -> CacheRoom:
        """A draft server's own cache, and its share of the stages', which is the same for all."""
        servers, bounds = len(self.drafts), self.bounds
        return CacheRoom(
            tuple(tokens // servers for tokens in self.room.pipelines),
            self.room.drafts[draft] if self.room.drafts else inf,
            bounds.tree_tokens,
            bounds.scratch_tokens,
            self.serving.cache == "paged",
        )

    def stage_desk(self, pipeline: int, number: int) -> StageDesk:
        """The desk of the ``number``-th stage (from 1) of a pipeline."""
        stages, prompts = len(self.pipelines[pipeline]), self.serving.prompts
        in_phases = not self.overlapped_pruning
        return StageDesk(number, stages, self.groups, self.batch, prompts, in_phases=in_phases)

    def front_desk(self) -> FrontDesk:
        serving = self.serving
        dispatcher = Dispatcher(
            len(self.requests),
            serving.clients,
            len(self.drafts),
            len(self.pipelines),
            serving.limit,
            serving.admission,
            self.arrivals_ms,
        )
        return FrontDesk(dispatcher, [len(request.prompt) for request in self.requests])
