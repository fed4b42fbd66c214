"""Recording acceptance: a draft's candidates along the target's own texts, and off them.

The recorder asks for every position once per depth below the verified tokens, since the answers of
most drafts depend on it: an EAGLE head reads true states directly below verified tokens and its own
guesses further down; prompt lookup counts verified tokens only; a mixture combines its parts. A
language model's answers do not, so its record names no such depth.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field, NonNegativeInt

from treepipe.core.drafter import EAGLE_HEAD, LANGUAGE_MODEL, Drafter
from treepipe.core.drafts import drafters
from treepipe.core.errors import UserError
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.core.tree import split
from treepipe.core.verification import DRAWN, Distribution, draw, target_distribution
from treepipe.executor.measure.requests import AcceptanceRequest
from treepipe.executor.measure.work import NamedModel, RandomCheckpoint, open_model
from treepipe.executor.models.checkpoint import Checkpoint, check_same_vocabulary
from treepipe.executor.models.computing import DTYPES
from treepipe.executor.models.offsets import check_offsets
from treepipe.executor.models.prompts import load_texts, tokenize
from treepipe.executor.models.source_settings import SourceSettings, judged_sampling
from treepipe.executor.models.sources import check_runs, open_source
from treepipe.executor.models.stage_model import StageModel, TargetEnds
from treepipe.executor.models.verifier import new_rule
from treepipe.files.section import Section
from treepipe.files.toml_file import validated
from treepipe.profiles.hit_ratio import CHAIN, chain_rounds
from treepipe.profiles.library import REFERENCE, checkpoint_directory
from treepipe.profiles.pool_file import Floats, PoolFile, Prompt, Table, ranks_of
from treepipe.profiles.schema import AcceptanceProfile, Origin
from treepipe.scenario.deployment import ONE_CORE, Compute
from treepipe.scenario.making import READS, provenance
from treepipe.scenario.scenario import override_key
from treepipe.scenario.schema import SamplingSection, SourceSection

OFF_PATH_STEPS = 3
SESSION = 1
CANDIDATES = 16
"""Number of candidates recorded per position."""
LEAST_LOG_RATIO = -99.0
"""A log ratio of a token that the draft never draws."""
DIGITS = 4
"""Decimal digits of a log probability."""
Tokens: TypeAlias = npt.NDArray[np.int64]


class WholeModel:
    """All layers of a checkpoint in this process, for small models."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        capacity: int,
        compute: Compute = ONE_CORE,
        captured: Sequence[int] = (),
    ) -> None:
        dtype, device = DTYPES[compute.dtype], compute.device
        layers, self.captured = range(checkpoint.layers), captured
        self.stage = StageModel(checkpoint, layers, capacity, dtype, device, captured)
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
        """Append the tokens to session 0 and return the captured states and the last layer's."""
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
    named: str = ""

    @property
    def longest(self) -> int:
        """Tokens of the longest text with its prompt."""
        return max(map(len, self.prompts)) + self.new_tokens


class SourceAnswer(NamedTuple):
    """Candidates in descending probability, and the log probabilities of the whole vocabulary."""

    tokens: Tokens
    log_probs: Floats
    whole: Floats


class AcceptanceRecorder:
    """A recorder that asks a draft for every token of the target's texts once per depth."""

    def __init__(self, settings: SourceSettings, texts: Texts) -> None:
        directory = None if settings.model is None else settings.model.resolve()
        self._drafter, self._settings, self._texts = settings.section.drafter, settings, texts
        self._name = self._drafter.called_of("" if directory is None else directory.name)
        target, entries = texts.target, 2 * texts.longest
        self._draft = open_source(settings, target, target.vocabulary, entries, ONE_CORE)
        captured = settings.captured(target.layers)
        self._whole = WholeModel(target, texts.longest, captured=captured)
        self._rng = np.random.default_rng(texts.seed)
        self._off_path: list[list[Floats]] = [[] for _ in range(OFF_PATH_STEPS)]

    def pools(self) -> Iterator[PoolFile]:
        """Yield the pool after every text, so that an interruption keeps the earlier ones."""
        texts, recorded = self._texts, list[Prompt]()
        made = provenance(self._settings.sampling, self._settings.section, texts.named)
        for number in range(len(texts.prompts)):
            recorded.append(self._record(number))
            yield PoolFile(
                CANDIDATES,
                tuple(recorded),
                {steps: np.array(rows) for steps, rows in enumerate(self._off_path, 1)},
                texts.target.directory.name,
                self._name,
                made,
            )

    def _record(self, number: int) -> Prompt:
        """Ask for each of a text's tokens, by depth, and after wrong tokens beside them."""
        prompt, (text, logits) = self._texts.prompts[number], self._write(number)
        self._draft.open(SESSION)
        self._show_states([*prompt, *text])
        keys = self._settings.section.parameters
        levels = range(self._drafter.recorded_depths(keys) + 1)
        judges = [self._judge(number, 1 + depth, depth) for depth in levels]
        by_depth: list[list[tuple[Floats, int, float]]] = [[] for _ in levels]
        drawn = self._settings.sampling.rule in DRAWN
        unread = list(prompt)
        for first in range(len(text)):
            found = self._chain(unread, text[first : first + len(levels)])
            unread = [text[first]]
            for place, (answer, judge) in enumerate(zip(found, judges, strict=False), first):
                own = logits[place] if logits else None
                rank = judge.rank(own, answer.whole, answer.tokens, text[place])
                ratio = judge.log_ratio(own, answer.whole, text[place]) if drawn else 0.0
                by_depth[place - first].append((answer.log_probs, rank, ratio))
            if first % 2 == 0:
                self._off_text(found, text[first])
        self._draft.close(SESSION)
        # Near a text's beginning no state is further back than the prompt's last one.
        filled = [
            [by_depth[min(depth, place)][max(place - depth, 0)] for place in range(len(text))]
            for depth in levels
        ]
        known, *guessed = (
            Table(np.array(vectors), [*ranks], [*ratios] if drawn else ())
            for vectors, ranks, ratios in (zip(*answers, strict=True) for answers in filled)
        )
        return Prompt(known, guessed)

    def _judge(self, number: int, concern: int, depth: int = 0) -> Judge:
        """Return the rule that judges one text, with random numbers for this concern."""
        rng = np.random.default_rng([self._texts.seed, number, concern])
        return Judge(self._settings.sampling, rng, depth)

    def _write(self, number: int) -> tuple[list[int], list[Any]]:
        """Continue a prompt; a lossy rule's text depends on the draft. Return the text, and the
        target's logits [vocabulary] per token of it; a greedy text needs none."""
        texts, whole, judge = self._texts, self._whole, self._judge(number, 0)
        prompt = texts.prompts[number]
        if judge.argmax:
            return whole.greedy(prompt, texts.new_tokens, texts.end_tokens), []
        text, logits, log_probs = list[int](), list[Any](), None
        whole.stage.open(0)
        self._draft.open(SESSION)
        unread, position = [*prompt], 0
        while len(text) < texts.new_tokens and not texts.end_tokens.intersection(text[-1:]):
            states = whole.states(unread, range(position, position + len(unread)))
            position += len(unread)
            logits.append(whole.ends.logits(states[-1:])[0].double().numpy())
            if judge.in_the_loop:
                self._observe(states)
                order = DraftPass(0, tuple(unread), (), (), True, 1)
                log_probs = self._draft.log_probs(SESSION, order)[0]
            unread = [judge.token(logits[-1], log_probs)]
            text += unread
        whole.stage.close(0)
        self._draft.close(SESSION)
        return text, logits

    def _show_states(self, tokens: Sequence[int]) -> None:
        """Show the target's states of all tokens to a draft that reads them."""
        if self._drafter.reads_states:
            self._whole.stage.open(0)
            self._observe(self._whole.states(tokens, range(len(tokens))))
            self._whole.stage.close(0)

    def _observe(self, states: torch.Tensor) -> None:
        if self._drafter.reads_states:
            reader: Any = self._draft
            whole = self._whole
            reader.observe(SESSION, whole.ends.read_states(states, whole.captured))

    def _chain(self, unread: Sequence[int], tokens: Sequence[int]) -> list[SourceAnswer]:
        """Ask at each token in turn, with only tokens before the first one verified."""
        order = DraftPass(0, tuple(unread), (), (), True, 1)
        found = []
        for depth, token in enumerate(tokens):
            found.append(self._ask(order))
            parent = (depth - 1 if depth else NO_PARENT,)
            order = DraftPass(0, (), (token,), parent, False, 1)
        return found

    def _off_text(self, chain: Sequence[SourceAnswer], truth: int) -> None:
        """Ask after a wrong sibling of the first token, in scratch nodes behind the chain."""
        slots, answer, parent = len(chain) - 1, chain[0], NO_PARENT
        wrong = self._drawn(answer, truth)
        for step, rows in enumerate(self._off_path):
            answer = self._ask(DraftPass(0, (), (wrong,), (parent,), False, 1))
            rows.append(answer.log_probs)
            wrong, parent = self._drawn(answer), slots + step

    def _drawn(self, answer: SourceAnswer, truth: int | None = None) -> int:
        """Draw a candidate other than ``truth`` by its probability."""
        weights = np.where(answer.tokens == truth, 0.0, np.exp(answer.log_probs))
        return int(self._rng.choice(answer.tokens, p=weights / weights.sum()))

    def _ask(self, order: DraftPass) -> SourceAnswer:
        log_probs = self._draft.log_probs(SESSION, order)
        tokens, rows = candidates_of(log_probs)
        return SourceAnswer(tokens[0], np.round(rows[0], DIGITS), log_probs[0].numpy())


def record_acceptance(
    settings: SourceSettings, texts: Texts, progress: Callable[[], None] = lambda: None
) -> PoolFile:
    """Record a draft along all texts; ``progress`` is called after each."""
    for grown in AcceptanceRecorder(settings, texts).pools():
        pool = grown
        progress()
    return pool


# --- a verification rule's judgement of a draft along a text: the ranks that a pool records -------
#
# Invariant: rank r means that the rule takes the text's token as one of the draft's first r + 1
# candidates, and of no fewer, so that all rules' pools are drawn from alike.


class Judge:
    """A scenario's rule along one text, for a draft ``depth`` tokens below the verified ones.

    Under a lossy rule the text depends on the draft, which is then ``in_the_loop``.
    """

    def __init__(self, section: SamplingSection, rng: np.random.Generator, depth: int = 0) -> None:
        self._section, self._rng, self._depth = section, rng, depth
        self._rule, self._sampling = new_rule(section, rng), judged_sampling(section)
        self.in_the_loop = not self._rule.lossless

    @property
    def argmax(self) -> bool:
        """Whether the text is the target's greedy one, so that a rank is its token's place."""
        return self._section.greedy

    def token(self, logits: Any, log_probs: Any = None) -> int:
        """Choose the text's next token; ``log_probs`` are the draft's, if it is in the loop."""
        p = target_distribution(logits, self._sampling)
        if not self.in_the_loop:
            return draw(p, self._rng)
        children = candidates_of(torch.as_tensor(log_probs)[None])[0][0]
        # Rules for chains see one child, as in their schedules.
        shown = children[:1] if self._section.rule == "adaptive" else children
        return self._rule.next_token(p, shown.tolist(), self._draft(log_probs))

    def rank(self, logits: Any, log_probs: Any, candidates: Any, token: int) -> int:
        """Rank the text's token among the draft's candidates, or return their number.

        Args:
            logits: the target's [vocabulary]; rule ``exact`` does not need them.
            log_probs: the draft's [vocabulary], float64.
        """
        rule = self._section.rule
        if rule == "rejection":
            p = target_distribution(logits, self._sampling)
            return rejection_rank(p, self._draft(log_probs), token, self._rng)
        place = rank_of(candidates, token)
        if not self._depth:
            return place  # the rule chose the text's token
        if rule == "relaxed_top_p":
            return self._first_inside(logits, candidates, place)
        if rule == "adaptive":
            p, best = target_distribution(logits, self._sampling), int(candidates[0])
            taken = self._rule.next_token(p, (best,), self._draft(log_probs))
            return 0 if taken == best else place
        return place

    def log_ratio(self, logits: Any, log_probs: Any, token: int) -> float:
        """Return log(q / p) of the text's token, at least ``LEAST_LOG_RATIO``."""
        p = target_distribution(logits, self._sampling)[token]
        q = self._draft(log_probs)[token]
        return max(LEAST_LOG_RATIO, round(float(np.log(q / p)), DIGITS)) if q else LEAST_LOG_RATIO

    def _draft(self, log_probs: Any) -> Distribution:
        return target_distribution(np.asarray(log_probs), self._sampling)

    def _first_inside(self, logits: Any, candidates: Any, place: int) -> int:
        """Return the draft's best candidate in the target's top-p set, else ``place``."""
        p = target_distribution(logits, self._sampling)
        order = np.argsort(-p, kind="stable")
        count = int(np.searchsorted(np.cumsum(p[order]), self._section.relaxed_top_p)) + 1
        inside = np.flatnonzero(np.isin(candidates, order[:count]) & (p[candidates] > 0))
        return int(inside[0]) if len(inside) else place


def rejection_rank(p: Distribution, q: Distribution, token: int, rng: np.random.Generator) -> int:
    """Draw which child gave ``token`` under multi-candidate rejection (``MultiCandidate``).

    The text is a draw from ``p`` for any children, so the children may be drawn after it, given
    that the rule's outcome is this token: with probability min(p, q) / p at the token the next
    child is this token and accepted, else it is another one, drawn by max(q - p, 0), and rejected.
    """
    p, q = p.copy(), q.copy()
    for rank in range(CANDIDATES):
        if rng.random() * p[token] < min(p[token], q[token]):
            return rank
        rejected, left = np.maximum(q - p, 0.0), np.maximum(p - q, 0.0)
        if not rejected.any() or not left.any():  # p and q differ by roundings only
            return rank
        q[draw(rejected / rejected.sum(), rng)] = 0.0
        if q.sum() <= 0:
            break
        p, q = left / left.sum(), q / q.sum()
    return CANDIDATES


def candidates_of(logits: torch.Tensor) -> tuple[Any, Any]:
    """Sort token ids and log probabilities [n, CANDIDATES] in descending order, ties by token id;
    ``logits`` may be log probabilities."""
    log_probs = logits.double().log_softmax(-1)
    values, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
    return tokens[:, :CANDIDATES].numpy(), values[:, :CANDIDATES].numpy()


def rank_of(candidates: Any, token: int) -> int:
    """Place of a token among candidates, or ``CANDIDATES``."""
    found = np.flatnonzero(candidates == token)
    return int(found[0]) if len(found) else CANDIDATES


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A target, a draft's name in profiles, its settings, and the texts to record along, with the
    name of their kind."""

    target: NamedModel
    draft_name: str
    settings: SourceSettings
    texts: Texts
    task: str


def open_pair(request: AcceptanceRequest) -> ModelPair:
    """Open the requested models, and check them against the prompts.

    Raises:
        UserError: they cannot be read, or do not fit together.
    """
    if request.head is not None and request.draft is not None:
        raise UserError("--draft and --head: give one of them, not both")
    recorded = _recorded(request)
    drafter = recorded.drafts.drafter
    check_runs(drafter)
    _check_options(request, drafter)
    target = _with_weights(request.model, "target", "--model")
    models, name, path = [target.checkpoint], "", None
    if drafter.weights == LANGUAGE_MODEL:
        small = _with_weights(request.draft or "reference", "draft", "--draft")
        name, path = small.name, small.checkpoint.directory
        models.append(small.checkpoint)
        check_same_vocabulary(*models)
    elif drafter.weights is not None:
        path = checkpoint_directory(request.head or "reference", drafter.weights.reference, Path())
        bundled = path == REFERENCE / drafter.weights.reference
        name = "reference" if bundled else path.resolve().name
    least = 2 if drafter.reads_states else 1  # a text's first token has no state before it
    prompts = _prompts(request.prompts, models, least, recorded.new_tokens)
    settings = SourceSettings(recorded.drafts, path, recorded.sampling, False, 0)
    whole, ends = target.checkpoint, target.checkpoint.end_tokens
    check_offsets(settings, whole)
    named, task = request.prompts, recorded.task or request.prompts
    texts = Texts(whole, prompts, recorded.new_tokens, ends, recorded.seed, named)
    return ModelPair(target, drafter.called_of(name), settings, texts, task)


class Recorded(Section):
    """How a pool is recorded: tables of a scenario, and keys of its texts.

    Attributes:
        new_tokens: most tokens of each text.
        task: the kind of text; None: the name of the prompts.
        seed: for sampled texts and wrong tokens.
    """

    drafts: SourceSection
    sampling: SamplingSection = SamplingSection()
    new_tokens: Annotated[int, Field(ge=2)] = 128
    task: str | None = None
    seed: NonNegativeInt = 0


def _recorded(request: AcceptanceRequest) -> Recorded:
    """Read the keys, by default of the first draft source that reads the given checkpoint.

    Raises:
        UserError: a key is invalid or has no effect, or the rule cannot be recorded.
    """
    weights = LANGUAGE_MODEL if request.head is None else EAGLE_HEAD
    source = next(d.name for d in drafters().values() if d.weights == weights)
    content: dict[str, Any] = {"drafts": {"source": source}}
    for setting in request.settings or ():
        override_key(content, setting)
    recorded = validated(Recorded, content, "calibrate acceptance")
    rule = recorded.sampling.rule
    if rule in READS:
        raise UserError(
            f"--set sampling.rule={rule}: it judges no token by itself; record with "
            f"sampling.rule={READS[rule]}, which a simulation with {rule} reads"
        )
    made = provenance(recorded.sampling, recorded.drafts, request.prompts)
    for table, read in (("drafts", made.draft), ("sampling", made.sampling)):
        for key in content.get(table, {}):
            if key not in read:
                read_here = ", ".join(f"{table}.{each}" for each in read)
                raise UserError(f"--set {table}.{key}: has no effect here; {read_here} have")
    return recorded


def _check_options(request: AcceptanceRequest, drafter: Drafter) -> None:
    """Raise ``UserError`` if this draft source does not read a given checkpoint."""
    own = None if drafter.weights is None else drafter.weights.option
    for option, value in (("--draft", request.draft), ("--head", request.head)):
        if value is not None and option != own:
            raise UserError(f"{option} {value}: drafts.source={drafter.name} drafts without it")


def _prompts(
    named: str, models: Sequence[Checkpoint], least: int, new_tokens: int
) -> tuple[tuple[int, ...], ...]:
    """Tokenize the prompts. Raises ``UserError`` if a prompt does not fit the models."""
    texts = tokenize(models[0], load_texts(named, Path(), "--prompts"), f"--prompts {named}")
    most = min(each.max_positions for each in models) - new_tokens
    for index, text in enumerate(texts):
        if not least <= len(text) <= most:
            raise UserError(
                f"--prompts {named}: prompt {index} has {len(text)} tokens; with {new_tokens} new "
                f"tokens (--set new_tokens={new_tokens}) it must have {least} to {most}"
            )
    return tuple(texts)


def _with_weights(named: str, role: str, option: str) -> NamedModel:
    found = open_model(named, role, option, torch.float32)
    if isinstance(found.checkpoint, RandomCheckpoint):
        raise UserError(f"{option} {named}: acceptance needs a checkpoint with its weights")
    return found


def acceptance_profile(pair: ModelPair, recorded: PoolFile, pool: str) -> AcceptanceProfile:
    """Make the profile of a recorded pool, whose file is beside the profile's."""
    ranks = recorded.ranks
    shares = {k: sum(rank < k for rank in ranks) / len(ranks) for k in (1, 4, 8)}
    hits = ", ".join(f"{share:.1%} among the first {k}" for k, share in shares.items())
    done, wanted = len(recorded.prompts), len(pair.texts.prompts)
    note = f"of {len(ranks)} tokens of {done} texts, {hits}; {_by_depth(recorded)}"
    if done < wanted:
        note += f"; interrupted, {wanted} texts were asked for"
    return AcceptanceProfile(
        draft=pair.draft_name,
        target=pair.target.name,
        task=pair.task,
        temperature=pair.settings.sampling.temperature,
        pool=pool,
        origin=Origin(
            source=f"treepipe calibrate acceptance, prompts {pair.texts.named}",
            date=datetime.date.today(),
            note=note,
        ),
    )


def _by_depth(recorded: PoolFile) -> str:
    """Describe the hit ratios of a chain's rounds in these texts, as a clause of a sentence."""
    edges = [0, *itertools.accumulate(len(each.known.ranks) for each in recorded.prompts)]
    ranks = ranks_of(recorded.prompts)
    rounds = chain_rounds(ranks, itertools.pairwise(edges), 1, CHAIN)
    shares = ", ".join(f"{share:.3f}" for share in rounds.ratios)
    return (
        f"in rounds of a chain of {CHAIN}, by depth, {shares or 'none'}: {rounds.tokens:.2f} "
        f"tokens per round"
    )
