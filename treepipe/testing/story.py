"""The story of one case: what each schedule was told and answered, and which message came when.

In words, and as the token tree where the story ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from treepipe.core.messages import NO_PARENT, Beat, Close, Flight, Message, Segment, Text, Word
from treepipe.core.protocol import (
    Announce,
    Command,
    Drafted,
    DraftPass,
    Emit,
    Event,
    Feed,
    Finish,
    Judged,
    Returned,
    Schedule,
    Started,
    Stepped,
    Withdraw,
)
from treepipe.testing.ledger import NodeLedger

SHOWN = 12
"""Tokens of a list that are told; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: an event of a schedule, or a message that comes to its receiver.

    Attributes:
        sender: None for an event of a schedule.
    """

    receiver: str
    text: str
    sender: str | None = None


@dataclass
class Story:
    """The steps so far, in order.

    Attributes:
        ledgers: fed nodes by request.
    """

    steps: list[Step] = field(default_factory=list)
    ledgers: dict[int, NodeLedger] = field(default_factory=dict)

    @property
    def events(self) -> int:
        """Number of events that schedules were told."""
        return sum(step.sender is None for step in self.steps)

    def told(self, session: int, event: Event, commands: Sequence[Command]) -> None:
        """Note an event of a request's schedule, and its commands."""
        answer = "; ".join(map(_command, commands)) or "nothing to do"
        self.steps.append(Step(f"request {session}", f"{_event(event)} -> {answer}"))

    def came(self, sender: str, receiver: str, message: Message) -> None:
        """Note a message that has come to its receiver."""
        self.steps.append(Step(receiver, _message(message), sender))

    def lines(self) -> Iterator[str]:
        """Yield the steps in words, then the token tree of each request where the story ends."""
        for number, step in enumerate(self.steps, start=1):
            who = step.receiver if step.sender is None else f"{step.sender} -> {step.receiver}"
            yield f"{number:3}  {who}: {step.text}"
        for session, ledger in self.ledgers.items():
            if ledger.tokens:
                yield f"     fed nodes of request {session}:"
                yield from (f"       {line}" for line in tree_lines(ledger))


class Noted:
    """A schedule whose events and commands are kept, and noted in a story.

    Attributes:
        withdrawn: tickets of the draft passes that it has taken back.
    """

    def __init__(self, schedule: Schedule, session: int = 0, story: Story | None = None) -> None:
        self._schedule, self._session, self._story = schedule, session, story
        self.told: list[tuple[Event, list[Command]]] = []
        self.withdrawn = set[int]()

    def handle(self, event: Event) -> Sequence[Command]:
        commands = list(self._schedule.handle(event))
        self.told.append((event, commands))
        self.withdrawn.update(each.ticket for each in commands if isinstance(each, Withdraw))
        if self._story is not None:
            self._story.told(self._session, event, commands)
        return commands

    def __getattr__(self, name: str) -> Any:
        return getattr(self._schedule, name)


# --- words ---------------------------------------------------------------------------------------


def _some(values: Sequence[object]) -> str:
    few = ", ".join(map(str, values[:SHOWN]))
    return few if len(values) <= SHOWN else f"{few} and {len(values) - SHOWN} more"


def _event(event: Event) -> str:
    match event:
        case Started(prompt, wanted, ends):
            end = f", unless {_some(sorted(ends))} ends them" if ends else ""
            return f"begins: {len(prompt)} tokens of prompt, {wanted} more are wanted{end}"
        case Drafted(ticket, tokens):
            rows = [_some([int(token) for token in row]) for row in tokens]
            return f"pass {ticket} drafted {' | '.join(rows) or 'nothing'}"
        case Returned(ticket, _, start, tokens):
            return f"segment {ticket} is back from row {start}: the target says {_some(tokens)}"
        case Text():
            return f"the draft below has {_text(event)}"
        case Stepped(returned):
            own = "without a segment of its own" if returned is None else _event(returned)
            return f"a step ends, {own}"
    return f"worker {event.worker} is lost"


def _command(command: Command) -> str:
    match command:
        case DraftPass(catch_up=catch_up) if catch_up:
            return f"draft pass {command.ticket}: read {_some(catch_up)}, ask {command.top_k}"
        case DraftPass():
            nodes = zip(command.tokens, command.parents, strict=True)
            return f"draft pass {command.ticket}: nodes {_nodes(nodes)}, ask {command.top_k}"
        case Withdraw(ticket):
            return f"withdraw draft pass {ticket}"
        case Feed(segment):
            return f"feed {_segment(segment)}"
        case Announce(word):
            return f"announce {_word(word)}"
        case Emit(tokens):
            return f"emit {_some(tokens)}"
        case Text():
            return f"send the draft below {_text(command)}"
        case Judged(accepted, drafted):
            return f"{accepted} of {drafted} levels are accepted"
        case Finish(reason):
            return f"finish ({reason})"


def _text(text: Text) -> str:
    return f"{_some(text.tokens) or 'nothing'} from place {text.start} on"


def _nodes(nodes: Any) -> str:
    return _some([f"{t}" if p == NO_PARENT else f"{t} below {p}" for t, p in nodes])


def _segment(segment: Segment) -> str:
    if not segment.tokens:
        return f"segment {segment.ticket} (empty)"
    if segment.committed:
        return f"segment {segment.ticket}: committed {_some(segment.tokens)}"
    nodes = zip(segment.tokens, segment.parents, strict=True)
    return f"segment {segment.ticket}: nodes from row {segment.start}, {_nodes(nodes)}"


def _word(word: Word) -> str:
    end = ", the round ends" if word.ends_round else ""
    if word.retained is None:
        return f"word {word.number}: go on{end}"
    kept = _some(word.retained) or "nothing"
    return f"word {word.number}: keep rows {kept}, {word.accepted} of them accepted{end}"


def _message(message: Message) -> str:
    match message:
        case Flight(segments=segments):
            return "; ".join(map(_segment, segments)) or "an empty flight"
        case Beat(words=words):
            return "; ".join(map(_word, words)) or "a beat without words"
        case Close():
            return "the request is over"
        case Text():
            return f"it has {_text(message)}"
    return "a report that a step's work is done"


def tree_lines(ledger: NodeLedger) -> Iterator[str]:
    """Yield the fed nodes as a tree, each with its token; those that left it are marked."""
    live, below = set(ledger.live), dict[int, list[int]]()
    for node, parent in enumerate(ledger.parents):
        below.setdefault(parent, []).append(node)

    def lines(node: int, indent: str) -> Iterator[str]:
        mark = "" if node in live else ", pruned or accepted"
        yield f"{indent}{ledger.tokens[node]} at position {ledger.positions[node]}{mark}"
        for child in below.get(node, ()):
            yield from lines(child, indent + "  ")

    for root in below.get(NO_PARENT, ()):
        yield from lines(root, "")
