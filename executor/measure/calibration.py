"""Recording acceptance: what a draft proposes along the target's own texts, and off them.

The loop over texts is the same for every draft; what one is asked is up to its recorder: of a
language model here, of all others in ``source_calibration.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.core.tree import split
from treepipe.executor.checkpoint import Checkpoint
from treepipe.executor.computing import DTYPES
from treepipe.executor.draft_source import DraftSource
from treepipe.executor.measure.judging import CANDIDATES, DIGITS, Judge, candidates_of
from treepipe.executor.sources import SourceSettings, open_source
from treepipe.executor.stage_model import StageModel, TargetEnds
from treepipe.profiles.pool_file import Floats, PoolFile, Prompt, Table
from treepipe.scenario.computing import ONE_CORE, Compute
from treepipe.scenario.making import made_with
from treepipe.scenario.schema import GREEDY, SamplingSection

OFF_PATH_STEPS = 3
SESSION = 1


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
        return self.ends.logits(self.states(tokens, positions, parents))

    def states(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        parents: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """The last layer's [n, hidden] after appending the tokens to session 0."""
        return self.stage.forward(0, self.ends.embed(tokens), positions, parents)

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
    """The texts that an acceptance is recorded along: the target's, as the rule gives them.

    Attributes:
        prompts: token ids; each is continued by at most ``new_tokens``.
        end_tokens: any of these ends a text.
        seed: of the texts, if they are sampled, and of the wrong tokens that are tried.
        sampling: how the target's tokens are chosen, and drafted ones judged.
        named: the prompts, as the command line names them.
    """

    target: Checkpoint
    prompts: Sequence[Sequence[int]]
    new_tokens: int
    end_tokens: frozenset[int] = frozenset()
    seed: int = 0
    sampling: SamplingSection = GREEDY
    named: str = ""

    @property
    def longest(self) -> int:
        """Tokens of the longest text with its prompt."""
        return max(map(len, self.prompts)) + self.new_tokens

    def judge(self, number: int, depth: int = 0) -> Judge:
        """The rule that ranks one text's tokens, with random numbers of its own."""
        rng = np.random.default_rng([self.seed, number, 1 + depth])
        return Judge(self.sampling, rng, depth)

    def write(self, whole: WholeModel, number: int, draft: DraftSource | None) -> Written:
        """Continue a prompt. Args: ``draft``: looked at where the rule's texts depend on it."""
        prompt = self.prompts[number]
        judge = Judge(self.sampling, np.random.default_rng([self.seed, number, 0]))
        if judge.argmax:
            text = whole.greedy(prompt, self.new_tokens, self.end_tokens)
            return Written(number, prompt, text)
        asked = draft if judge.in_the_loop else None
        tokens, logits = [*prompt], list[Any]()
        whole.stage.open(0)
        if asked is not None:
            asked.open(SESSION)
        unread, position = tokens[:], 0
        while len(tokens) < len(prompt) + self.new_tokens:
            states = whole.states(unread, range(position, position + len(unread)))
            position += len(unread)
            logits.append(whole.ends.logits(states[-1:])[0].double().numpy())
            log_probs = None
            if asked is not None:
                if hasattr(asked, "observe"):
                    asked.observe(SESSION, whole.ends.features(states))
                order = DraftPass(0, tuple(unread), (), (), True, 1)
                log_probs = asked.log_probs(SESSION, order)[0]
            unread = [judge.token(logits[-1], log_probs)]
            tokens += unread
            if unread[0] in self.end_tokens:
                break
        whole.stage.close(0)
        if asked is not None:
            asked.close(SESSION)
        return Written(number, prompt, tokens[len(prompt) :], logits)


@dataclass(frozen=True, slots=True)
class Written:
    """A prompt, its text, and what the rule may want to know of the target.

    Attributes:
        number: of the prompt among the texts.
        logits: [vocabulary] per token of the text; empty for a greedy text.
    """

    number: int
    prompt: Sequence[int]
    text: Sequence[int]
    logits: Sequence[Any] = ()

    def rank(self, judge: Judge, place: int, log_probs: Any, candidates: Any) -> int:
        """Rank the text's token at ``place`` among a draft's candidates."""
        logits = self.logits[place] if self.logits else None
        return judge.rank(logits, log_probs, candidates, self.text[place])


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
        settings: what it drafts with.
    """

    name: str
    settings: SourceSettings

    @property
    def source(self) -> DraftSource:
        """The draft as a run has it."""
        ...

    def record(self, whole: WholeModel, written: Written, strays: Strays) -> Prompt:
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
    made = made_with(texts.sampling, draft.settings.section, texts.named)
    recorded: list[Prompt] = []
    for number in range(len(texts.prompts)):
        written = texts.write(whole, number, draft.source)
        recorded.append(draft.record(whole, written, strays))
        yield PoolFile(
            CANDIDATES,
            tuple(recorded),
            strays.off_path(),
            texts.target.directory.name,
            draft.name,
            made,
        )


class ModelRecorder:
    """A language model that drafts: what it says does not depend on what is verified."""

    def __init__(self, settings: SourceSettings, texts: Texts) -> None:
        assert settings.model is not None
        draft = settings.model.open()
        self.name, self.settings, self._texts = draft.directory.name, settings, texts
        self._model = WholeModel(draft, texts.longest + texts.new_tokens * (1 + OFF_PATH_STEPS))

    @cached_property
    def source(self) -> DraftSource:
        target, longest = self._texts.target, self._texts.longest
        return open_source(self.settings, target, target.vocabulary, longest, ONE_CORE)

    def record(self, whole: WholeModel, written: Written, strays: Strays) -> Prompt:
        """The text is read as a chain of tree nodes, so that wrong tokens can hang at any."""
        draft, prompt, text = self._model, written.prompt, written.text
        draft.stage.open(0)
        first = draft.read(prompt, range(len(prompt)), None)[-1:]
        positions = range(len(prompt), len(prompt) + len(text))
        chain = draft.read(text, positions, range(NO_PARENT, len(text) - 1))
        logits, judge = torch.cat((first, chain[:-1])), self._texts.judge(written.number)
        tokens, vectors = candidates_of(logits)
        ranks = [
            written.rank(judge, place, row, tokens[place])
            for place, row in enumerate(logits.double().log_softmax(-1).numpy())
        ]
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
