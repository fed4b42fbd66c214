"""What a draft source is to everyone else: one record of its name, keys, weights and answers.

Law of this file: whoever wants to know something of a draft source asks its record; nobody compares
names. A record is pure data, so that planning needs no executor: the code that opens the draft in a
run is named, and the executor imports it. ``docs/adding.md`` writes one from the beginning to the
end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from treepipe.core.registry import NAME, NAME_RULE, names_of, wrong_keys

TAKEN = frozenset(
    {"source", "model", "head", "least_probability", "one_pass", "device", "host", "worker"}
    | {"count"}
)
"""Keys that every draft server's table has, so that no draft source can have one of that name."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A kind of checkpoint that a draft source reads.

    Attributes:
        key: of the draft server's table, that names the checkpoint.
        reference: folder of the bundled one.
        option: of ``treepipe calibrate acceptance``, that names the checkpoint.
    """

    key: str
    reference: str
    option: str


LANGUAGE_MODEL = Weights("model.checkpoint", "draft", "--draft")
"""A causal language model with the target's vocabulary."""
EAGLE_HEAD = Weights("head", "eagle", "--head")
"""A head with the embedding and the output projection of its target (EAGLE, section 4.1)."""


@dataclass(frozen=True)
class DraftParameters:
    """A draft source's own keys are fields of a subclass, which is a frozen dataclass, too; each of
    its fields is a ``key`` (``registry.py``)."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft source with all that others need to know of it.

    Attributes:
        name: what ``drafts.source`` calls it: lower-case letters, digits and underscores.
        summary: what proposes the tokens, in a few words.
        opens: MODULE:FUNCTION of the executor part, which makes a ``DraftSource`` of an ``Opening``
            (``executor/draft_source.py``).
        parameters: the dataclass of its keys.
        weights: the checkpoint that it reads, whose size is its memory footprint; None: it computes
            no model, takes no time by layers and holds no memory.
        reads_states: it reads the target's states of committed tokens.
        unverified_depths: levels below the last verified token whose answers differ, and are
            recorded in calibration one by one; deeper ones answer like the last of them. 0: answers
            depend on the token path alone, as a language model's do.
        called: its name in profiles; "{weights}" stands for the name of the checkpoint.
        order: its place in lists; the first one is the default. Those of other packages come last.

    Raises:
        ValueError: the record contradicts itself; the sentence names the draft source.
    """

    name: str
    summary: str
    opens: str
    parameters: type[DraftParameters] = DraftParameters
    weights: Weights | None = None
    reads_states: bool = False
    unverified_depths: int = 0
    called: str = "{weights}"
    order: int = 100

    def __post_init__(self) -> None:
        for wrong in self._wrong():
            raise ValueError(f"draft source {self.name!r}: {wrong}")

    def _wrong(self) -> Iterator[str]:
        """What the record cannot mean, a sentence each."""
        if not re.fullmatch(NAME, self.name):
            yield NAME_RULE
        if not self.summary:
            yield "summary says what proposes the tokens"
        if not re.fullmatch(r"[\w.]+:[\w.]+", self.opens):
            yield f"opens = {self.opens!r} is no MODULE:FUNCTION"
        yield from wrong_keys(self.parameters, DraftParameters)
        for name in sorted(self.keys & TAKEN):
            yield f"key {name} is one of every draft server's"
        if self.weights == EAGLE_HEAD and not self.reads_states:
            yield "an EAGLE head reads the target's states"
        alone = self.weights == LANGUAGE_MODEL and not self.reads_states
        if self.unverified_depths < (0 if alone else 1):
            yield "unverified_depths is 0 for a language model alone, and at least 1 for all others"

    @property
    def keys(self) -> frozenset[str]:
        """Names of the parameters that it reads."""
        return names_of(self.parameters)

    @property
    def borrows(self) -> bool:
        """Whether it computes with the target's embedding and output projection."""
        return self.weights == EAGLE_HEAD

    @property
    def rank(self) -> tuple[int]:
        return (self.order,)

    def called_of(self, checkpoint: str) -> str:
        """Its name in profiles. Args: ``checkpoint``: name of its weights, if it has any."""
        return self.called.format(weights=checkpoint)
