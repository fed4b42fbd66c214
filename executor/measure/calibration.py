"""Recording acceptance: a draft's candidates along the target's own texts, and off them.

``ModelRecorder`` reads each text once, since a language model's answers do not depend on the number
of verified tokens. ``SourceRecorder`` asks for every position once per depth, since other drafts'
answers do: an EAGLE head reads true states directly below verified tokens and its own guesses
further down; prompt lookup counts verified tokens only; a mixture combines its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
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
from treepipe.scenario.making import provenance
from treepipe.scenario.schema import GREEDY, SamplingSection

OFF_PATH_STEPS = 3
SESSION = 1
Tokens: TypeAlias = npt.NDArray[np.int64]


class WholeModel:
    """All layers of a checkpoint in this process, for small models."""

    def __init__(self, checkpoint: Checkpoint, capacity: int, compute: Compute = ONE_CORE) -> None:
        dtype, device = DTYPES[compute.dtype], compute.device
        self.stage = StageModel(checkpoint, range(checkpoint.layers), capacity, dtype, device)
        self.ends = TargetEnds(checkpoint, dtype, device)

    def read(
        self, tokens: Sequence[int], positions: Sequence[int], parents: Sequence[int] | None
    ) -> torch.Tensor:
        """Append the tokens to session 0 and return logits [n, vocabulary]."""
        return self.ends.logits(self.states(tokens, positions, parents))

    def states(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        parents: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Append the tokens to session 0 and return the last layer's [n, hidden]."""
        return self.stage.forward(0, self.ends.embed(tokens), positions, parents)

    def greedy(
        self, prompt: Sequence[int], new_tokens: int, end_tokens: frozenset[int] = frozenset()
    ) -> list[int]:
        """Plain greedy continuation, up to and including the first of ``end_tokens``."""
        return [int(row.argmax()) for row in self.decode(prompt, new_tokens, end_tokens)]

    def decode(
        self,
        prompt: Sequence[int],
        new_tokens: int,
        end_tokens: frozenset[int] = frozenset(),
        chunk: int | None = None,
    ) -> Iterator[torch.Tensor]:
        """Yield logits [vocabulary] at each place of that continuation.

        ``chunk`` bounds the rows of a pass over the prompt, as in schedules.
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
    """The target's texts along which acceptance is recorded.

    The target continues each prompt (token ids) by at most ``new_tokens``; ``seed`` is for sampled
    texts and wrong tokens, ``named`` is the prompts' name on the command line.
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
        """Return the rule that ranks one text's tokens, with its own random numbers."""
        rng = np.random.default_rng([self.seed, number, 1 + depth])
        return Judge(self.sampling, rng, depth)

    def write(self, whole: WholeModel, number: int, draft: DraftSource | None) -> Written:
        """Continue a prompt; a lossy rule's text depends on the draft."""
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
    """A prompt with its number, its text, and the target's logits [vocabulary] per text token.

    A greedy text needs no logits.
    """

    number: int
    prompt: Sequence[int]
    text: Sequence[int]
    logits: Sequence[Any] = ()

    def rank(self, judge: Judge, place: int, log_probs: Any, candidates: Any) -> int:
        """Rank the text's token at ``place`` among a draft's candidates."""
        logits = self.logits[place] if self.logits else None
        return judge.rank(logits, log_probs, candidates, self.text[place])


class OffPathSamples:
    """Wrong tokens beside the texts, and the draft's answers after them."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._rows: list[list[Any]] = [[] for _ in range(OFF_PATH_STEPS)]

    def draw(self, tokens: Any, log_probs: Any, truth: int | None = None) -> int:
        """Draw a candidate other than ``truth`` by its probability."""
        weights = np.where(tokens == truth, 0.0, np.exp(log_probs))
        return int(self._rng.choice(tokens, p=weights / weights.sum()))

    def note(self, steps: int, log_probs: Any) -> None:
        """Keep log probabilities [n, CANDIDATES] from ``steps`` >= 1 tokens off a text."""
        self._rows[steps - 1].extend(np.round(log_probs, DIGITS))

    def off_path(self) -> dict[int, Floats]:
        """Return all kept log probabilities [n, CANDIDATES] by steps."""
        return {steps: np.array(rows) for steps, rows in enumerate(self._rows, 1)}


class ModelRecorder:
    """A recorder of a language model."""

    def __init__(self, settings: SourceSettings, texts: Texts) -> None:
        assert settings.model is not None
        draft = Checkpoint.open(settings.model)
        self.name, self.settings, self._texts = draft.directory.name, settings, texts
        self._model = WholeModel(draft, texts.longest + texts.new_tokens * (1 + OFF_PATH_STEPS))

    @cached_property
    def source(self) -> DraftSource:
        target, longest = self._texts.target, self._texts.longest
        return open_source(self.settings, target, target.vocabulary, longest, ONE_CORE)

    def record(self, whole: WholeModel, written: Written, samples: OffPathSamples) -> Prompt:
        """Read the text as a chain of tree nodes, at each of which wrong tokens can hang."""
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
        # Each second token of the text gets a wrong sibling and its continuation.
        places = range(0, len(text), 2)
        wrong = [samples.draw(tokens[i], vectors[i], text[i]) for i in places]
        parents = [i - 1 for i in places]
        for step in range(1, OFF_PATH_STEPS + 1):
            base = len(text) + (step - 1) * len(wrong)
            depths = [len(prompt) + i + step - 1 for i in places]
            found, rows = candidates_of(draft.read(wrong, depths, parents))
            samples.note(step, rows)
            wrong = [samples.draw(found[i], rows[i]) for i in range(len(wrong))]
            parents = list(range(base, base + len(wrong)))
        draft.stage.close(0)
        return Prompt(Table(np.round(vectors, DIGITS), ranks))


class SourceAnswer(NamedTuple):
    """Candidates in descending probability, and the log probabilities of the whole vocabulary."""

    tokens: Tokens
    log_probs: Floats
    whole: Floats


class SourceRecorder:
    """A recorder that asks a draft for every token once per depth."""

    def __init__(self, settings: SourceSettings, texts: Texts) -> None:
        directory = None if settings.model is None else settings.model.resolve()
        self.name = settings.section.drafter.called_of("" if directory is None else directory.name)
        self.settings, self._texts = settings, texts
        target, entries = texts.target, 2 * texts.longest
        self.source = open_source(settings, target, target.vocabulary, entries, ONE_CORE)
        self._depths = settings.section.drafter.unverified_depths

    def record(self, whole: WholeModel, written: Written, samples: OffPathSamples) -> Prompt:
        """Ask for each of the text's tokens, by depth; answers off the text go to ``samples``."""
        prompt, text = written.prompt, written.text
        self.source.open(SESSION)
        self._show_states(whole, [*prompt, *text])
        levels = range(self._depths + 1)
        judges = [self._texts.judge(written.number, depth) for depth in levels]
        by_depth: list[list[tuple[Floats, int]]] = [[] for _ in levels]
        unread = list(prompt)
        for first in range(len(text)):
            found = self._chain(unread, text[first : first + len(levels)])
            unread = [text[first]]
            for depth, answer in enumerate(found):
                place, judge = first + depth, judges[depth]
                rank = written.rank(judge, place, answer.whole, answer.tokens)
                by_depth[depth].append((answer.log_probs, rank))
            if first % 2 == 0:
                self._off_text(found, text[first], samples)
        self.source.close(SESSION)
        # Near a text's beginning no state is further back than the prompt's last one.
        filled = [
            [by_depth[min(depth, place)][max(place - depth, 0)] for place in range(len(text))]
            for depth in levels
        ]
        known, *guessed = (
            Table(np.array([vector for vector, _ in answers]), [rank for _, rank in answers])
            for answers in filled
        )
        return Prompt(known, guessed)

    def _show_states(self, whole: WholeModel, tokens: Sequence[int]) -> None:
        """Show the target's states of all tokens to a draft that reads them."""
        observe = getattr(self.source, "observe", None)
        if observe is None:
            return
        whole.stage.open(0)
        hidden = whole.ends.embed(tokens)
        states = whole.stage.forward(0, hidden, range(len(tokens)), None)
        whole.stage.close(0)
        observe(SESSION, whole.ends.features(states))

    def _chain(self, unread: Sequence[int], tokens: Sequence[int]) -> list[SourceAnswer]:
        """Ask at each token in turn, with only tokens before the first one verified."""
        order = DraftPass(0, tuple(unread), (), (), True, 1)
        found = []
        for depth, token in enumerate(tokens):
            found.append(self._ask(order))
            parent = (depth - 1 if depth else NO_PARENT,)
            order = DraftPass(0, (), (token,), parent, False, 1)
        return found

    def _off_text(self, chain: Sequence[SourceAnswer], truth: int, samples: OffPathSamples) -> None:
        """Ask after a wrong sibling of the first token, in scratch nodes behind the chain."""
        slots, answer, parent = len(chain) - 1, chain[0], NO_PARENT
        wrong = samples.draw(answer.tokens, answer.log_probs, truth)
        for step in range(OFF_PATH_STEPS):
            answer = self._ask(DraftPass(0, (), (wrong,), (parent,), False, 1))
            samples.note(step + 1, answer.log_probs[None])
            wrong, parent = samples.draw(answer.tokens, answer.log_probs), slots + step

    def _ask(self, order: DraftPass) -> SourceAnswer:
        log_probs = self.source.log_probs(SESSION, order)
        tokens, rows = candidates_of(log_probs)
        return SourceAnswer(tokens[0], np.round(rows[0], DIGITS), log_probs[0].numpy())


AcceptanceRecorder: TypeAlias = ModelRecorder | SourceRecorder


def recorder_of(settings: SourceSettings, texts: Texts) -> AcceptanceRecorder:
    """Open the draft of these settings for recording."""
    recorder = SourceRecorder if settings.section.drafter.unverified_depths else ModelRecorder
    return recorder(settings, texts)


def record_acceptance(
    texts: Texts, draft: AcceptanceRecorder, progress: Callable[[], None] = lambda: None
) -> PoolFile:
    """Record all texts; ``progress`` is called after each."""
    for grown in growing_pool(texts, draft):
        pool = grown
        progress()
    return pool


def growing_pool(texts: Texts, draft: AcceptanceRecorder) -> Iterator[PoolFile]:
    """Yield the pool after every text, so that an interruption keeps the earlier ones."""
    whole, samples = WholeModel(texts.target, texts.longest), OffPathSamples(texts.seed)
    made = provenance(texts.sampling, draft.settings.section, texts.named)
    recorded: list[Prompt] = []
    for number in range(len(texts.prompts)):
        written = texts.write(whole, number, draft.source)
        recorded.append(draft.record(whole, written, samples))
        yield PoolFile(
            CANDIDATES,
            tuple(recorded),
            samples.off_path(),
            texts.target.directory.name,
            draft.name,
            made,
        )
