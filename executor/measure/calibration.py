"""Recording acceptance: what a draft proposes along the target's own greedy texts, and off them.

The loop over texts is the same for every draft; what one is asked is up to its recorder: of a
language model here, of an EAGLE head in ``head_calibration.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from treepipe.core.messages import NO_PARENT
from treepipe.core.tree import split
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.computing import DTYPES
from treepipe.executor.stage_model import StageModel, TargetEnds
from treepipe.profiles.pool_file import Floats, PoolFile, Prompt, Table
from treepipe.scenario.computing import ONE_CORE, Compute

CANDIDATES = 16
OFF_PATH_STEPS = 3
DIGITS = 4
"""Of a log probability behind the point."""


class WholeModel:
    """All layers of a checkpoint in this process; for small models and for calibration."""

    def __init__(self, checkpoint: Checkpoint, capacity: int, compute: Compute = ONE_CORE) -> None:
        dtype, device = DTYPES[compute.dtype], compute.device
        self.stage = StageModel(checkpoint, range(checkpoint.layers), capacity, dtype, device)
        self.ends = TargetEnds(checkpoint, dtype, device)

    def read(
        self, tokens: Sequence[int], positions: Sequence[int], parents: Sequence[int] | None
    ) -> torch.Tensor:
        """Logits [n, vocabulary] after appending the tokens to session 0."""
        states = self.stage.forward(0, self.ends.embed(tokens), positions, parents)
        return self.ends.logits(states)

    def greedy(
        self, prompt: Sequence[int], new_tokens: int, end_tokens: frozenset[int] = frozenset()
    ) -> list[int]:
        """Plain greedy continuation, up to and with the first of ``end_tokens``."""
        return [int(row.argmax()) for row in self.decode(prompt, new_tokens, end_tokens)]

    def decode(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        end_tokens: frozenset[int] = frozenset(),
        chunk: int | None = None,
    ) -> Iterator[torch.Tensor]:
        """Logits [vocabulary] at each place of that continuation.

        Args: ``chunk``: most rows of a pass over the prompt, as schedules have it; None: any.
        """
        self.stage.open(0)
        position = 0
        for count in split(len(prompt), -(-len(prompt) // (chunk or len(prompt))), len(prompt)):
            read = prompt[position : position + count]
            row = self.read(read, range(position, position + count), None)[-1]
            position += count
        yield row.clone()
        for _ in range(new_tokens - 1):
            if (token := int(row.argmax())) in end_tokens:
                break
            row = self.read([token], [position], None)[-1]
            yield row.clone()
            position += 1
        self.stage.close(0)


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts that an acceptance is recorded along: the target's greedy ones.

    Attributes:
        prompts: token ids; each is continued by at most ``new_tokens``.
        end_tokens: any of these ends a text.
        seed: of the wrong tokens that are tried.
    """

    target: Checkpoint
    prompts: Sequence[Sequence[int]]
    new_tokens: int
    end_tokens: frozenset[int] = frozenset()
    seed: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longest text with its prompt."""
        return max(map(len, self.prompts)) + self.new_tokens


class Strays:
    """Wrong tokens beside the texts, and what the draft answers behind them."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._rows: list[list[Any]] = [[] for _ in range(OFF_PATH_STEPS)]

    def draw(self, tokens: Any, log_probs: Any, truth: int | None = None) -> int:
        """A candidate by its probability, but never ``truth``."""
        weights = np.where(tokens == truth, 0.0, np.exp(log_probs))
        return int(self._rng.choice(tokens, p=weights / weights.sum()))

    def note(self, steps: int, log_probs: Any) -> None:
        """Args: ``log_probs``: [n, CANDIDATES], answered ``steps`` (>= 1) off a text."""
        self._rows[steps - 1].extend(np.round(log_probs, DIGITS))

    def off_path(self) -> dict[int, Floats]:
        """All that was noted: [n, CANDIDATES] by steps."""
        return {steps: np.array(rows) for steps, rows in enumerate(self._rows, 1)}


class AcceptanceRecorder(Protocol):
    """A draft whose answers along a text are recorded.

    Attributes:
        name: as the pool's file names the draft.
    """

    name: str

    def record(
        self, whole: WholeModel, prompt: Sequence[int], text: Sequence[int], strays: Strays
    ) -> Prompt:
        """Answers for each of the text's tokens; those off the text go to ``strays``."""
        ...


def record_acceptance(
    texts: Texts, draft: AcceptanceRecorder, progress: Callable[[], None] = lambda: None
) -> PoolFile:
    """Record all texts; ``progress`` is called after every one."""
    for grown in growing_pool(texts, draft):
        pool = grown
        progress()
    return pool


def growing_pool(texts: Texts, draft: AcceptanceRecorder) -> Iterator[PoolFile]:
    """The pool after every text, for who may be interrupted."""
    whole, strays = WholeModel(texts.target, texts.longest), Strays(texts.seed)
    recorded: list[Prompt] = []
    for prompt in texts.prompts:
        text = whole.greedy(prompt, texts.new_tokens, texts.end_tokens)
        recorded.append(draft.record(whole, prompt, text, strays))
        yield PoolFile(
            CANDIDATES,
            tuple(recorded),
            strays.off_path(),
            texts.target.directory.name,
            draft.name,
        )


class ModelRecorder:
    """A language model that drafts: what it says does not depend on what is verified."""

    def __init__(self, draft: Checkpoint, texts: Texts) -> None:
        self.name = draft.directory.name
        self._model = WholeModel(draft, texts.longest + texts.new_tokens * (1 + OFF_PATH_STEPS))

    def record(
        self, whole: WholeModel, prompt: Sequence[int], text: Sequence[int], strays: Strays
    ) -> Prompt:
        """The text is read as a chain of tree nodes, so that wrong tokens can hang at any."""
        draft = self._model
        draft.stage.open(0)
        first = draft.read(prompt, range(len(prompt)), None)[-1:]
        positions = range(len(prompt), len(prompt) + len(text))
        chain = draft.read(text, positions, range(NO_PARENT, len(text) - 1))
        tokens, vectors = candidates_of(torch.cat((first, chain[:-1])))
        ranks = [rank_of(row, token) for row, token in zip(tokens, text, strict=True)]
        # A wrong sibling of every second token of the text, then its own continuation.
        places = range(0, len(text), 2)
        wrong = [strays.draw(tokens[i], vectors[i], text[i]) for i in places]
        parents = [i - 1 for i in places]
        for step in range(1, OFF_PATH_STEPS + 1):
            base = len(text) + (step - 1) * len(wrong)
            depths = [len(prompt) + i + step - 1 for i in places]
            found, rows = candidates_of(draft.read(wrong, depths, parents))
            strays.note(step, rows)
            wrong = [strays.draw(found[i], rows[i]) for i in range(len(wrong))]
            parents = list(range(base, base + len(wrong)))
        draft.stage.close(0)
        return Prompt(Table(np.round(vectors, DIGITS), ranks))


def candidates_of(logits: torch.Tensor) -> tuple[Any, Any]:
    """Token ids and log probabilities [n, CANDIDATES], descending, ties by token id; ``logits``
    may be log probabilities."""
    log_probs = logits.double().log_softmax(-1)
    values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
    return tokens[:, :CANDIDATES].numpy(), values[:, :CANDIDATES].numpy()


def rank_of(candidates: Any, token: int) -> int:
    """Place of a token among candidates, ``CANDIDATES`` if it is not there."""
    found = np.flatnonzero(candidates == token)
    return int(found[0]) if len(found) else CANDIDATES
