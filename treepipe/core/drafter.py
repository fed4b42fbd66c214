"""A draft source's record: its name, keys, weights, and the inputs of its answers.

Code that needs a fact about a draft source reads its record; no code compares names. A record is
pure data: it names the executor's code that opens the draft.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from treepipe.core.captures import Captures
from treepipe.core.registry import NAME, NAME_RULE, key, names_of, wrong_keys

TAKEN = frozenset(
    {"source", "model", "head", "least_probability", "device", "host", "worker"}
    | {"count", "agreement"}
)
"""Keys of every draft server's table, which no draft source may redefine."""


@dataclass(frozen=True, slots=True)
class Weights:
    """A kind of checkpoint that a draft source reads.

    Attributes:
        key: key of the draft server's table that names the checkpoint.
        reference: folder of the bundled checkpoint.
        option: option of ``treepipe calibrate acceptance`` that names the checkpoint.
    """

    key: str
    reference: str
    option: str


LANGUAGE_MODEL = Weights("model.checkpoint", "draft", "--draft")
"""A causal language model with the target's vocabulary."""
EAGLE_HEAD = Weights("head", "eagle", "--head")
"""A head with the embedding and the output projection of its target, which fuses a token and a
state before its layers (EAGLE, section 4.1)."""
EAGLE3_HEAD = Weights("head", "eagle3", "--head")
"""A head with an output projection of its own, mostly to fewer tokens (EAGLE-3, section 3.1)."""
BLOCK_HEAD = Weights("head", "block", "--head")
"""A draft of blocks, with the same ends (DFlash, arXiv 2602.06036)."""
HEADS = EAGLE_HEAD, EAGLE3_HEAD, BLOCK_HEAD


@dataclass(frozen=True)
class DraftParameters:
    """Base of a draft source's own keys: a subclass is a frozen dataclass of ``key``s."""


@dataclass(frozen=True)
class BlockKeys(DraftParameters):
    """Keys of a draft whose one pass proposes tokens for all levels of a block.

    Its candidates at a level are the same below every node, it makes a block anew when committed
    tokens are new to it, and it proposes nothing below the block's last level.
    """

    block: int = key(8, "places of a block, the newest token's among them", least=2)

    @property
    def levels(self) -> int:
        return self.block - 1


@dataclass(frozen=True, slots=True)
class Drafter:
    """A draft source.

    Attributes:
        name: its name in ``drafts.source``: lower-case letters, digits and underscores.
        summary: the origin of the proposed tokens, in a few words.
        opens: MODULE:FUNCTION of the executor, which makes a ``DraftSource`` of an ``Opening``;
            None: it is predicted only.
        parameters: the dataclass of its keys.
        weights: the checkpoint that it reads; None: it computes no model, takes no time by layers
            and holds no memory.
        captures: the boundaries of the target whose states of committed tokens it reads
            (``captures.py``), or the function that finds them; (): it reads none.
        unverified_depths: levels below the last verified token whose answers differ and are
            recorded one by one; deeper ones answer like the last of them. 0: answers depend on the
            token path alone, as a language model's do, or the block says the levels.
        in_turn: it drafts chains alone, and only while nothing is being verified, since it begins
            at the target's state behind the newest token.
        called: its name in profiles; "{weights}" stands for the name of the checkpoint.
        order: its place in lists; the first one is the default.

    Raises:
        ValueError: the record contradicts itself; the sentence names the draft source.
    """

    name: str
    summary: str
    opens: str | None
    parameters: type[DraftParameters] = DraftParameters
    weights: Weights | None = None
    captures: tuple[int, ...] | Captures = ()
    unverified_depths: int = 0
    in_turn: bool = False
    called: str = "{weights}"
    order: int = 100

    def __post_init__(self) -> None:
        for wrong in self._wrong():
            raise ValueError(f"draft source {self.name!r}: {wrong}")

    def _wrong(self) -> Iterator[str]:
        if not re.fullmatch(NAME, self.name):
            yield NAME_RULE
        if not self.summary:
            yield "summary says what proposes the tokens"
        if self.opens is not None and not re.fullmatch(r"[\w.]+:[\w.]+", self.opens):
            yield f"opens = {self.opens!r} is no MODULE:FUNCTION"
        yield from wrong_keys(self.parameters, DraftParameters)
        for name in sorted(self.keys & TAKEN):
            yield f"key {name} is one of every draft server's"
        if self.borrows and not self.reads_states:
            yield "a head reads the target's states"
        alone = self.weights == LANGUAGE_MODEL and not self.reads_states
        if self.unverified_depths < (0 if alone or self.drafts_blocks else 1):
            yield "unverified_depths is 0 for a language model alone, and at least 1 for all others"

    @property
    def keys(self) -> frozenset[str]:
        return names_of(self.parameters)

    @property
    def reads_states(self) -> bool:
        return bool(self.captures)

    def captured(
        self, parameters: Any, config: Callable[[], Mapping[str, Any]], layers: int
    ) -> tuple[int, ...]:
        """Return the boundaries that it reads of a target of ``layers`` layers; ``config`` reads
        its checkpoint's ``config.json``. Raises ``ValueError`` with a sentence."""
        if isinstance(self.captures, tuple):
            return self.captures
        return self.captures(parameters, config(), layers)

    @property
    def borrows(self) -> bool:
        """Whether it computes with the target's embedding (and, unless it is an EAGLE-3 head, with
        its output projection)."""
        return self.weights in HEADS

    @property
    def drafts_blocks(self) -> bool:
        return issubclass(self.parameters, BlockKeys)

    def recorded_depths(self, parameters: DraftParameters) -> int:
        """Return the number of ``unverified_depths``, of a block its levels but the first."""
        if isinstance(parameters, BlockKeys):
            return parameters.levels - 1
        return self.unverified_depths

    @property
    def rank(self) -> tuple[int]:
        return (self.order,)

    def called_of(self, checkpoint: str) -> str:
        """Return its name in profiles, with weights named ``checkpoint`` if it has any."""
        return self.called.format(weights=checkpoint)
