"""The laws of a decoding schedule: their table, and the report of a broken one.

The code that tries them is in ``trials``; the reference worlds that observe them report through
``hold``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class LawBroken(AssertionError):  # noqa: N818  (it names what happened)
    """A law does not hold.

    Attributes:
        law: its name.
    """

    def __init__(self, law: str, sentence: str) -> None:
        super().__init__(f"{law}: {sentence}")
        self.law = law


def hold(condition: object, law: str, sentence: str) -> None:
    """Raise ``LawBroken`` unless the condition is true."""
    if not condition:
        raise LawBroken(law, sentence)


@dataclass(frozen=True, slots=True)
class Law:
    """One law.

    Attributes:
        name: its name on the command line.
        sentence: what holds.
        source: paper and section that state it or that it follows from.
        trial: name of the trial that tries it.
    """

    name: str
    sentence: str
    source: str
    trial: str


PROTOCOL = "protocol"
"""The law that any failure of a subject's own code breaks."""

_LAWS = (
    Law(
        PROTOCOL,
        "a schedule accepts every legal event, and gives legal commands only",
        "treepipe, docs/design.md, The protocol",
        "requests",
    ),
    Law(
        "order",
        "in every segment and every draft pass a node comes after its ancestors",
        "PipeDec, section 3.3.1; SpecPipe, section 3.2.1",
        "requests",
    ),
    Law(
        "index",
        "each stage computes exactly the rows that the words it knows left alive, and keeps "
        "exactly the nodes that the draft kept",
        "FlowSpec, section 3.3; PipeDec, section 3.3.4",
        "requests",
    ),
    Law(
        "answered_once",
        "each ticket is given out once and answered once",
        "treepipe, docs/design.md, The protocol",
        "requests",
    ),
    Law(
        "causality",
        "each row attends to the committed text, to its ancestors and to itself, at the position "
        "of its depth",
        "PipeDec, algorithm 1 (dynamic tree attention); FlowSpec, section 3.3",
        "requests",
    ),
    Law(
        "drafted",
        "the draft reads what is committed, and every fed node was drafted for its own path",
        "PipeDec, section 3.3.3",
        "requests",
    ),
    Law(
        "lossless",
        "the text is the target's own, for any draft, partition and order of messages",
        "Leviathan et al. 2023",
        "requests",
    ),
    Law(
        "termination",
        "every request ends, for a reason, and none waits for ever",
        "PipeDec, section 3.4.3",
        "requests",
    ),
    Law(
        "bounds",
        "caches and segments stay within the bounds that the system's record states",
        "treepipe, docs/adding.md",
        "requests",
    ),
    Law(
        "rounds",
        "the rounds' records agree with the text and with the nodes that were fed",
        "treepipe, docs/design.md, The protocol",
        "requests",
    ),
    Law(
        "freed",
        "nobody keeps anything of a finished request",
        "treepipe, docs/design.md, The protocol",
        "requests",
    ),
    Law(
        "batches",
        "requests that share passes keep their texts, and a pass never serves more of them than "
        "may share it",
        "SpecPipe, section 3.5",
        "batches",
    ),
    Law(
        "rooms",
        "requests that wait, or are preempted, for want of cache keep their texts, and no cache "
        "holds more than it has room for",
        "Kwon et al. 2023 (PagedAttention), section 4.5",
        "rooms",
    ),
    Law(
        "blocks",
        "a draft that answers for the levels of a block at once is asked about no node below it, "
        "and changes no text",
        "DFlash, arXiv 2602.06036; DDTree, arXiv 2604.12989",
        "blocks",
    ),
    Law(
        "self_draft",
        "a draft that is the target, and wrong at some places on purpose, has every other token "
        "accepted that is fed for the text, and none is fed twice",
        "Leviathan et al. 2023, section 3.1 (an acceptance rate of 1 where p = q)",
        "self_draft",
    ),
    Law(
        "refusal",
        "an illegal event is refused and changes nothing",
        "treepipe, docs/design.md, The protocol",
        "adversary",
    ),
    Law(
        "failover",
        "where a pipeline is lost, requests end with a prefix of the target's text, and nothing is "
        "sent to the lost pipeline",
        "treepipe, docs/faults.md",
        "adversary",
    ),
    Law(
        "replay",
        "a schedule is a function of its events: told them again, a fresh one gives the same "
        "commands",
        "treepipe, docs/design.md, The protocol",
        "replay",
    ),
    Law(
        "wanted",
        "no draft pass begins whose answer nobody uses: one that is given up before is withdrawn",
        "treepipe, docs/design.md, The protocol",
        "replay",
    ),
    Law(
        "sampling",
        "sampled texts have exactly the target's distribution",
        "Leviathan et al. 2023, appendix A.1; SpecInfer, section 5.2",
        "sampling",
    ),
    Law(
        "worlds",
        "the simulator, with any times of stages, links and pruning, decodes what the world "
        "without time decodes, and no activity begins before its cause",
        "treepipe, docs/design.md, Two worlds",
        "worlds",
    ),
    Law(
        "closed_form",
        "with constant times, the closed form that the record names and the simulator agree",
        "the paper that the record cites; docs/theory.md",
        "closed_form",
    ),
)

LAWS: Mapping[str, Law] = {law.name: law for law in _LAWS}
"""All laws by name, in the order in which they are told."""
