"""What serving engines export of a draft's acceptance -> shares by depth (``hit_ratio.py``).

Law of this file: nothing is made up. Engines count how many drafted tokens of a step were accepted,
never at which rank of the draft's candidates the target's token was. So shares are those of the
first candidate, a chain's; trees need an assumption that the caller names (``assumed``).
"""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from scipy.optimize import brentq

from treepipe.core.errors import UserError
from treepipe.files.reading import UNREADABLE, read_text, reading_fault

Steps: TypeAlias = Sequence[tuple[int, int]]
"""(Drafted, accepted) tokens of successive steps of a request."""
SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
"""Of the text format of Prometheus: a sample, and one of its labels."""
ALIKE = 0.02
"""Draft lengths that vary by less are taken for fixed."""
RANKS = (1, 2, 4, 8, 16)
"""Candidates that an assumption about ranks is written for."""


@dataclass(frozen=True, slots=True)
class Imported:
    """What a file says.

    Attributes:
        shares: P(accepted at a depth | all above it accepted), of the draft's first candidate.
        rounds: steps that were counted; None where the file does not say it.
        model: as the engine calls it; empty where the file does not say it.
        notes: what was taken for granted, in a sentence each.
        replay: steps of each request in their order, where they are told.
        prompts: tokens of these requests' prompts, 1 where the file does not say it.
    """

    shares: tuple[float, ...]
    rounds: int | None
    model: str = ""
    notes: tuple[str, ...] = ()
    replay: tuple[Steps, ...] = ()
    prompts: tuple[int, ...] = ()

    @property
    def tokens(self) -> float:
        """Mean tokens of a step, the target's own among them: 1 + p1 + p1 p2 + ..."""
        total, product = 1.0, 1.0
        for share in self.shares:
            product *= share
            total += product
        return total


def read_export(kind: str, file: Path, model: str | None = None) -> Imported:
    """Read what an engine exported.

    Args:
        kind: one of ``KINDS``.
        model: the one that is meant, where the file tells of several.

    Raises:
        UserError: the file cannot be read, or does not hold what it should.
    """
    if kind not in KINDS:
        raise UserError(f"profiles import {kind}: there are {', '.join(KINDS)}")
    try:
        text = read_text(file, "utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{file}: there is no such file") from None
    except UNREADABLE as error:
        raise UserError(f"{file}: cannot be read: {reading_fault(error)}") from None
    try:
        return KINDS[kind](text, model)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{file}: is no export of {kind}: {error} is missing, or is not what it should be"
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: {reading_fault(error)}") from None


def assumed(shares: Sequence[float]) -> dict[int, tuple[float, ...]]:
    """Hit ratios by k, if every further candidate hits the same share of what those above it miss.

    No engine exports ranks, so this is an assumption, not a measurement; drafts are mostly worse at
    their second candidate than at their first.

    >>> assumed([0.5])[2], assumed([0.5])[4]
    ((0.75,), (0.9375,))
    """
    return {k: tuple(1 - (1 - share) ** k for share in shares) for k in RANKS}


NO_RANKS = (
    "no ranks: engines count accepted tokens, not at which of the draft's candidates the target's "
    "token was"
)


def profile_content(
    found: Imported, *, source: str, date: datetime.date, uncertainty: float | None, **said: Any
) -> dict[str, Any]:
    """An acceptance profile's file.

    Args:
        uncertainty: relative, of the misses, where ranks are assumed; None: they are not.
        said: ``draft``, ``target``, ``task`` and ``temperature``.
    """
    counted = [] if found.rounds is None else [f"{found.rounds} steps"]
    if uncertainty is None:
        ranks = f"{NO_RANKS}, so this is for chains; in trees other candidates never hit"
    else:
        ranks = f"{NO_RANKS}; assumed: each further candidate hits the same share of what is missed"
    origin = {"source": source, "date": date, "note": "; ".join([*counted, *found.notes, ranks])}
    table = {1: found.shares} if uncertainty is None else assumed(found.shares)
    if uncertainty is not None:
        origin |= {"estimate": True, "uncertainty": uncertainty}
    shares = {k: [round(share, 6) for share in each] for k, each in table.items()}
    return {**said, "hit_ratio": shares, "origin": origin}


# --- counters ---------------------------------------------------------------------------------


def _counters(
    prefix: str, generated: str = "", requests: str = ""
) -> Callable[[str, str | None], Imported]:
    """Make a reader of an engine's Prometheus counters.

    Args:
        prefix: how the names of its counters begin.
        generated: the counter of all tokens; empty where the engine has none that is known.
        requests: the counter of first tokens, which come with the prompt's pass.
    """

    def read(text: str, model: str | None) -> Imported:
        found = _samples(text, prefix + "spec_decode_num_", model)
        drafts = sum(value for _, value in found.samples.get("drafts", ()))
        positions = defaultdict[int, float](float)
        for labels, value in found.samples.get("accepted_tokens_per_pos", ()):
            positions[int(labels["position"])] += value
        if drafts <= 0 or not positions:
            raise ValueError(
                f"there is no {prefix}spec_decode_num_drafts above 0 with "
                f"{prefix}spec_decode_num_accepted_tokens_per_pos"
            )
        if sorted(positions) != list(range(len(positions))):
            raise ValueError(f"positions are {sorted(positions)}, not all from 0 on")
        accepted = [positions[place] for place in range(len(positions))]
        drafted = sum(value for _, value in found.samples.get("draft_tokens", ()))
        steps, notes = drafts, list[str]()
        tokens = _total(text, generated, found.model) if generated else None
        if tokens is None:
            notes.append(
                f"the page lacks {generated or 'a counter of all tokens'}, so steps that drafted "
                f"nothing are not counted: shares are those of steps with a draft"
            )
        else:
            begun = _total(text, requests, found.model) or 0.0
            nothing = max(0.0, tokens - begun - sum(accepted) - drafts)
            steps += nothing
            if nothing:
                notes.append(
                    f"{nothing:.0f} of {steps:.0f} steps drafted nothing (tokens less first, "
                    f"accepted and drafts' own ones): they count as misses"
                )
        if drafted and abs(drafted / (drafts * len(accepted)) - 1) > ALIKE:
            notes.append(
                f"draft lengths vary ({drafted / drafts:.3g} of {len(accepted)} on average), and "
                f"counters do not tell which steps were short: shares of deeper positions are "
                f"lower bounds"
            )
        return Imported(_conditional([steps, *accepted]), int(steps), found.model, tuple(notes))

    return read


def _gauges(text: str, model: str | None) -> Imported:
    """SGLang's mean length of a step, the target's own token among it, and its number of drafts."""
    found = _samples(text, "sglang:spec_", model)
    lengths = [value for _, value in found.samples.get("accept_length", ())]
    steps = [value for _, value in found.samples.get("num_steps", ())]
    if not lengths or not steps:
        raise ValueError("there is no sglang:spec_accept_length with sglang:spec_num_steps")
    if len({*lengths}) > 1 or len({*steps}) > 1:
        raise ValueError("several servers give different gauges; import one of them at a time")
    share = _even_share(lengths[0], round(steps[0]))
    notes = (
        "made of one mean length: the share is taken to be the same at every depth",
        "the gauge is of the last interval alone, and so is this",
    )
    return Imported((share,), None, found.model, notes)


def _even_share(length: float, drafted: int) -> float:
    """The share p for which 1 + p + ... + p^drafted is the length."""
    if drafted < 1 or not 1 <= length <= drafted + 1:
        raise ValueError(f"a mean length of {length:g} tokens does not go with {drafted} drafted")

    def excess(share: float) -> float:
        return sum(share**depth for depth in range(drafted + 1)) - length

    return float(brentq(excess, 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class _Samples:
    model: str
    samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]


def _samples(text: str, prefix: str, model: str | None) -> _Samples:
    """Samples of a model whose names begin so, by the rest of the name (without ``_total``)."""
    found = defaultdict[str, list[tuple[Mapping[str, str], float]]](list)
    models = set[str]()
    for name, labels, value in _each_sample(text):
        of_model = labels.get("model_name", "")
        if name.startswith(prefix) and model in (None, of_model):
            models.add(of_model)
            rest = name.removeprefix(prefix).removesuffix("_total")
            found[rest].append((labels, value))
    if not models:
        of = f" of model {model!r}" if model is not None else ""
        raise ValueError(f"there is no sample {prefix}*{of}")
    if len(models) > 1:
        raise ValueError(f"it tells of several models, {', '.join(sorted(models))}; give --model")
    return _Samples(models.pop(), found)


def _each_sample(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each sample of a page."""
    for line in text.splitlines():
        if match := SAMPLE.match(line.strip()):
            yield match[1], dict(LABEL.findall(match[2] or "")), float(match[3])


def _total(text: str, name: str, model: str) -> float | None:
    """A model's counter, summed over all engines of a server; None where the page lacks it."""
    values = [
        value
        for found, labels, value in _each_sample(text)
        if found == name and labels.get("model_name", "") == model
    ]
    return sum(values) if values else None


# --- requests ---------------------------------------------------------------------------------


def _vllm_requests(text: str, model: str | None) -> Imported:
    """Responses of vLLM, one per line or in a list: ordered steps, else histograms."""
    counts, names, notes = Counter[tuple[int, int]](), set[str](), set[str]()
    replay, prompts = list[Steps](), list[int]()
    for response, found in _blocks(text, ("acceptance_histogram", "per_step_accepted")):
        name = str(response.get("model", ""))
        if model not in (None, name):
            continue
        names.add(name)
        steps: Counter[tuple[int, int]]
        if found.get("per_step_accepted") is not None:
            drafted, accepted = map(_whole, (found["per_step_drafted"], found["per_step_accepted"]))
            own = _with_own_token(Counter(accepted), found)
            ordered = [(d, n - own) for d, n in zip(drafted, accepted, strict=True)]
            steps = Counter(ordered)
            replay.append(tuple(ordered))
            prompts.append(int(response.get("usage", {}).get("prompt_tokens", 1)))
        else:
            steps = _vllm_histogram(found, notes)
        counts.update(steps)
    if sum(map(len, replay)) < sum(counts.values()):
        replay, prompts = [], []
    return _counted(counts, names, notes, tuple(replay), tuple(prompts))


def _vllm_histogram(found: Mapping[str, Any], notes: set[str]) -> Counter[tuple[int, int]]:
    """Steps by drafted and accepted tokens. Args: ``notes``: gets what is taken for granted."""
    by_length = found.get("acceptance_histogram_by_draft_length")
    if by_length is None:
        notes.add("every step is taken to have drafted as many tokens")
        by_length = {found["num_spec_tokens"]: found["acceptance_histogram"]}
    split = {int(drafted): _histogram(each) for drafted, each in by_length.items()}
    lengths = sum((Counter(each) for each in split.values()), Counter[int]())
    own = _with_own_token(lengths, found)
    return Counter(
        {(drafted, n - own): steps for drafted, each in split.items() for n, steps in each.items()}
    )


def _with_own_token(histogram: Mapping[int, int], found: Mapping[str, Any]) -> bool:
    """Whether lengths count the target's own token, by the total beside them."""
    tokens = sum(length * steps for length, steps in histogram.items())
    steps, accepted = sum(histogram.values()), int(found["num_accepted_draft_tokens"])
    if tokens not in (accepted, accepted + steps):
        raise ValueError(
            f"its histogram holds {tokens} tokens in {steps} steps, which does not go with "
            f"num_accepted_draft_tokens = {accepted}"
        )
    return tokens != accepted


def _sglang_requests(text: str, model: str | None) -> Imported:
    """Responses of SGLang, one per line or in a list: histograms of correct drafts per step."""
    counts, names = Counter[tuple[int, int]](), set[str]()
    for response, found in _blocks(text, ("spec_correct_drafts_histogram",)):
        name = str(response.get("model", ""))
        if model not in (None, name):
            continue
        names.add(name)
        histogram = _histogram(found["spec_correct_drafts_histogram"])
        steps, drafted = sum(histogram.values()), int(found["spec_num_proposed_drafts"])
        if not steps or drafted % steps:
            raise ValueError(
                f"spec_num_proposed_drafts = {drafted} is no multiple of the histogram's {steps} "
                f"steps, so draft lengths vary, and nothing tells which"
            )
        counts.update({(drafted // steps, n): each for n, each in histogram.items()})
    return _counted(counts, names, set())


def _counted(
    counts: Counter[tuple[int, int]],
    names: set[str],
    notes: set[str],
    replay: tuple[Steps, ...] = (),
    prompts: tuple[int, ...] = (),
) -> Imported:
    """Shares by depth: of steps that were right above, those right there.

    A draft that ended above a depth, or proposed nothing, was not right there: so the mean tokens
    of a step are the engine's own.
    """
    if not counts:
        raise ValueError("there is no response that tells of speculative decoding")
    if len(names) > 1:
        raise ValueError(f"it tells of several models, {', '.join(sorted(names))}; give --model")
    wrong = [step for step in counts if not 0 <= step[1] <= step[0]]
    if wrong:
        raise ValueError(f"a step of {wrong[0][0]} drafted tokens has {wrong[0][1]} accepted ones")
    longest, rounds = max(drafted for drafted, _ in counts), counts.total()
    if not longest:
        raise ValueError("no step drafted a token")
    reached = [
        sum(n for (_, right), n in counts.items() if right >= depth) for depth in range(longest + 1)
    ]
    return Imported(
        _conditional(reached),
        rounds,
        names.pop(),
        (*sorted(notes), *_ended_early(counts, longest)),
        replay,
        prompts,
    )


def _ended_early(counts: Counter[tuple[int, int]], longest: int) -> Iterator[str]:
    """Says how many drafts were shorter than the longest, since they count as misses."""
    nothing = sum(n for (drafted, _), n in counts.items() if not drafted)
    shorter = sum(n for (drafted, _), n in counts.items() if 0 < drafted < longest)
    if nothing or shorter:
        yield (
            f"{nothing} of {counts.total()} steps drafted nothing and {shorter} fewer than "
            f"{longest} tokens: where a draft ended counts as a miss, whatever ended it"
        )


def _blocks(text: str, keys: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    """Every response, with the table inside of it that has one of the keys."""
    try:
        content = json.loads(text)
        responses = content if isinstance(content, list) else [content]
    except json.JSONDecodeError:
        responses = [json.loads(line) for line in text.splitlines() if line.strip()]
    for response in responses:
        for table in _tables(response):
            if any(table.get(key) is not None for key in keys):
                yield response, table


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    """The tables in a value, the outer ones first."""
    if isinstance(value, dict):
        yield value
    inside: Iterable[Any] = value.values() if isinstance(value, dict) else value
    for each in inside if isinstance(value, dict | list) else ():
        yield from _tables(each)


def _histogram(value: Any) -> dict[int, int]:
    """Steps by length; as a list by index, or as a table."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    found = {int(length): int(steps) for length, steps in items}
    if any(each < 0 for pair in found.items() for each in pair):
        raise ValueError("a histogram holds a negative number")
    return {length: steps for length, steps in found.items() if steps}


def _whole(values: Any) -> list[int]:
    return [int(value) for value in values]


# --- tables -----------------------------------------------------------------------------------


def _table(text: str, model: str | None) -> Imported:
    """A published table: ``position`` from 1, and ``accepted`` (of all rounds) or ``conditional``
    (of the rounds in which all above it were right)."""
    rows = list(csv.DictReader(text.splitlines(), skipinitialspace=True))
    columns = {*rows[0]} if rows else set[str]()
    if columns not in ({"position", "accepted"}, {"position", "conditional"}):
        raise ValueError(
            "its first line must be position,accepted (shares of all rounds) or "
            "position,conditional (of those that were right above)"
        )
    if [row["position"].strip() for row in rows] != [str(n) for n in range(1, len(rows) + 1)]:
        raise ValueError("positions must be 1, 2, 3 and so on")
    if "conditional" in columns:
        shares = tuple(float(row["conditional"]) for row in rows)
        if not all(0 <= share <= 1 for share in shares):
            raise ValueError("a share is not between 0 and 1")
        return Imported(shares, None, model or "")
    return Imported(
        _conditional([1.0, *(float(row["accepted"]) for row in rows)]), None, model or ""
    )


def _conditional(reached: Sequence[float]) -> tuple[float, ...]:
    """Shares of those that reach a depth that reach the next one, as far as any do.

    >>> _conditional([100, 80, 60])
    (0.8, 0.75)
    """
    shares = list[float]()
    for above, here in pairwise(reached):
        if not 0 <= here <= above:
            raise ValueError(
                f"position {len(shares)} has {here:g} accepted, above it there are {above:g}; "
                f"deeper ones cannot be more"
            )
        if above == 0:
            break
        shares.append(here / above)
    return tuple(shares)


KINDS: dict[str, Callable[[str, str | None], Imported]] = {
    "vllm": _counters(
        "vllm:", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count"
    ),
    "llama-cpp": _counters("llamacpp:"),
    "sglang": _gauges,
    "vllm-requests": _vllm_requests,
    "sglang-requests": _sglang_requests,
    "table": _table,
}
"""Readers by what is imported: ``/metrics`` of three engines, responses of two, and tables."""
