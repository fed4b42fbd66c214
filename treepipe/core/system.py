"""A system's record: its name, parameters, bounds and needs.

Code that needs a fact about a system reads its record; no code compares names. A record that
contradicts itself is refused when it is made (``docs/adding.md``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

from treepipe.core.barrier import Groups
from treepipe.core.messages import Feedback
from treepipe.core.protocol import Schedule
from treepipe.core.registry import NAME, NAME_RULE, key, names_of, wrong_keys
from treepipe.core.stage_desk import Place

Block: TypeAlias = Mapping[str, Sequence[Any]]
"""A part of a planner's grid: the product of its keys' values is tried."""


Ends: TypeAlias = Literal["draft", "pipeline"]
"""The place of the target's ends: embedding, output projection, taking its token, and the decision.

"pipeline": the first stage embeds; the last one projects, takes the target's token at each row and
decides, and token ids travel to and from the draft server. "draft": the draft server does all of
it, and hidden states travel there and back.
"""


@dataclass(frozen=True)
class Parameters:
    """Keys of every system; a system's own keys are the ``key`` fields of a frozen subclass."""

    prefill_chunk: int = key(64, "tokens of a prompt's chunk, at most", least=1)
    ends: Ends = key("pipeline", "where embedding, projection, verification and decision are")

    def check(self) -> None:
        """Check the values against each other.

        Raises:
            ValueError: they contradict each other; its sentence begins with a key's name.
        """

    def ineffective_keys(self) -> Mapping[str, str]:
        """Return the keys that other keys' values leave without effect, each with that cause."""
        return {}

    def candidates(self) -> Mapping[str, int]:
        """Return the maximum number of candidates below one node, by the key that sets it."""
        return {}

    def lengths(self) -> Mapping[str, int]:
        """Return the maximum number of tokens drafted in a row, by the key that sets it."""
        return {}

    @property
    def drawable(self) -> bool:
        """Whether a system that can draft by drawing can do so with these values."""
        return True

    @property
    def drafts_ahead(self) -> bool:
        """Whether a request's draft works while its tokens are being verified."""
        return False

    @property
    def groups(self) -> Groups:
        """Stages in a row that work one after another within a step (lock-step only)."""
        return 1

    def reported_states(self, stages: int) -> tuple[int, ...]:
        """Return the number of states that each stage sends with its reports (lock-step only)."""
        return (0,) * stages

    @property
    def overlapped_pruning(self) -> bool:
        """Whether stages prune while results are on their way (lock-step only)."""
        return True

    @property
    def parallel_prefill(self) -> bool:
        """Whether the draft reads the prompt while the target does."""
        return False

    @property
    def central_transfers(self) -> bool:
        """Whether a device takes part in one transfer at a time."""
        return False

    @property
    def cancels(self) -> bool:
        """Whether a stage gives up a pass under way of which a word leaves no row."""
        return False

    @property
    def cut(self) -> bool:
        """Whether chains are cut before they leave, by what more rows cost."""
        return False

    @property
    def lookup(self) -> int:
        """Number of tokens of prompt lookup that a draft pass verifies."""
        return 0

    @property
    def feedback(self) -> Feedback:
        return "broadcast"


@dataclass(frozen=True, slots=True)
class ScheduleContext:
    """The context of one request's schedule.

    Attributes:
        session: number that every message of the request carries.
        stages: number of its pipeline's stages.
        drawn: candidates are draws from the draft's distribution, as the rejection rule needs.
        reads_states: the draft reads the target's states of committed tokens.
        independent_levels: the draft's candidates at a level are the same below every node.
        below: another draft drafts for the draft (``levels.py``).
    """

    session: int
    stages: int
    drawn: bool = False
    reads_states: bool = False
    independent_levels: bool = False
    below: bool = False

    @property
    def keeps(self) -> bool:
        """Whether the draft's keys and values of a token remain valid when the token is accepted;
        not those of an EAGLE head, which made them from its own guess of the target's state."""
        return not self.reads_states


@dataclass(frozen=True, slots=True)
class Load:
    stages: tuple[int, ...]
    requests: int


def defaults_only(load: Load) -> Sequence[Block]:
    return ({},)


def unbounded(*facts: Any) -> int | None:
    """Return None: no bound, as a system's ``places`` or ``flights``."""
    return None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest numbers of tokens that a schedule has of one request at once.

    Attributes:
        pass_tokens: tokens in one pass of a stage.
        segment_tokens: tokens in one pass of a stage, prompts excluded.
        tree_tokens: tokens in the tree in flight, whose keys and values each stage holds.
        scratch_tokens: tokens in the tree that a draft grows ahead of it.
    """

    pass_tokens: int = 1
    segment_tokens: int = 1
    tree_tokens: int = 0
    scratch_tokens: int = 0

    def ahead(self, level: int, levels: int) -> int:
        """Return how far beyond the final tokens a draft of a draft may be: the lower, the more."""
        return self.scratch_tokens - self.segment_tokens * (2 * levels - level) // levels


@dataclass(frozen=True, slots=True)
class System:
    """A decoding schedule with all facts that other code needs about it.

    Attributes:
        name: its name in scenarios: lower-case letters, digits and underscores.
        year, source: year and citation of the publication, with the section that describes the
            schedule.
        parameters: the dataclass of its keys, with defaults as published.
        make: makes a fresh schedule for one request.
        tree_tokens: maximum number of tree nodes that one request holds in a stage's cache, by
            stages.
        segment_tokens: maximum number of them in one pass, by stages (fewer stages never reduce
            it).
        scratch_tokens: maximum number of scratch nodes in the draft's cache at once, by stages;
            None: as many as ``tree_tokens``.
        drafts: whether it needs a draft at all.
        in_lock_step: its pipeline steps as a whole, with one draft server as its master.
        drawn: it can draft by drawing, as the rejection rule needs.
        chains: its trees never branch, as the adaptive rule needs.
        levels: another draft may draft for its draft, and so on (``levels.py``).
        places: maximum number of requests that one pipeline serves at once by itself; None: no
            bound.
        flights: maximum number of flights in a pipeline at once, by stages; None: no bound.
        target_emits: with its ends at the pipeline, its tokens are out when they are decided there,
            not when the draft server hears of them.
        prompts: the default place of prompts among the segments that wait for a stage.
        grid: values that the planner tries where a file names none.
        order: its place in tables and grids: plain decoding first, static trees, pipelines that are
            pruned, shared drafts.
        closed_form: name of the closed form that predicts it (``sim/theory/closed_form.py``).

    Raises:
        ValueError: the record contradicts itself; the sentence names the system and the field.
    """

    name: str
    year: int
    source: str
    summary: str
    parameters: type[Parameters]
    make: Callable[[Any, ScheduleContext], Schedule]
    tree_tokens: Callable[[Any, int], int]
    segment_tokens: Callable[[Any, int], int]
    scratch_tokens: Callable[[Any, int], int] | None = None
    drafts: bool = True
    in_lock_step: bool = False
    drawn: bool = False
    chains: bool = False
    levels: bool = False
    places: Callable[[Any], int | None] = unbounded
    flights: Callable[[Any, int], int | None] = unbounded
    target_emits: bool = False
    prompts: Place = "last"
    grid: Callable[[Load], Sequence[Block]] = defaults_only
    closed_form: str | None = None
    order: int = 100

    def __post_init__(self) -> None:
        for wrong in chain(_wrong_words(self), _wrong_keys(self.parameters), _wrong_figures(self)):
            raise ValueError(f"system {self.name!r}: {wrong}")

    @property
    def keys(self) -> frozenset[str]:
        return names_of(self.parameters)

    @property
    def rank(self) -> tuple[int, int]:
        return self.order, self.year

    def bounds(self, parameters: Parameters, stages: int) -> Bounds:
        """Return its bounds with these parameters on a pipeline of so many stages."""
        segment = self.segment_tokens(parameters, stages)
        return Bounds(
            max(segment, parameters.prefill_chunk),
            segment,
            self.tree_tokens(parameters, stages),
            (self.scratch_tokens or self.tree_tokens)(parameters, stages),
        )


# --- contradictions of a record: a sentence each; the first is reported ---------------------------


def _wrong_words(system: System) -> Iterator[str]:
    if not re.fullmatch(NAME, system.name):
        yield NAME_RULE
    if not system.source or not system.summary:
        yield "source and summary say where it is described and what it does"
    if not system.drafts and (system.drawn or system.chains or system.levels):
        yield "without a draft there are no drawn candidates, no chains and no drafts of it"


def _wrong_keys(parameters: type[Parameters]) -> Iterator[str]:
    yield from wrong_keys(parameters, Parameters)
    names = names_of(parameters)
    usual = parameters()
    try:
        usual.check()
    except ValueError as error:
        yield f"its defaults contradict each other: {error}"
    for named in (usual.ineffective_keys(), usual.candidates(), usual.lengths()):
        for name in {*named} - names:
            yield f"{name} is none of its keys {', '.join(sorted(names))}"


def _wrong_figures(system: System) -> Iterator[str]:
    usual, names = system.parameters(), system.keys
    for stages in (1, 2, 4):
        for bound in (system.tree_tokens, system.segment_tokens, system.scratch_tokens):
            count = 0 if bound is None else bound(usual, stages)
            if not isinstance(count, int) or count < 0:
                yield f"a bound for {stages} stages is {count!r}, not a number of tokens"
        for drawn in {False, system.drawn}:
            if not isinstance(system.make(usual, ScheduleContext(0, stages, drawn)), Schedule):
                yield "make gives no schedule (core/protocol.py says what one has)"
    places = system.places(usual)
    if places is not None and places < 1:
        yield f"places is {places}; at least one request is served"
    for block in system.grid(Load((2, 4), 3)):
        for name in {*block} - names:
            yield f"the grid names {name}, which is none of its keys {', '.join(sorted(names))}"
