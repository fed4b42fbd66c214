"""Exports of serving engines, read as shares of accepted tokens by depth (``hit_ratio.py``).

Engines count how many drafted tokens of a step were accepted, never the rank of the target's token
among the draft's candidates. So shares are those of the first candidate (a chain); trees need an
assumption that the caller requests (``assumed``).
"""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from scipy.optimize import brentq

from treepipe.core.errors import UserError
from treepipe.files.reading import parse_json, read_text, reading, reading_fault

Steps: TypeAlias = Sequence[tuple[int, int]]
"""(Drafted, accepted) tokens of successive steps of a request."""
SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
"""Patterns of a sample in the text format of Prometheus, and of one of its labels."""
ALIKE = 0.02
"""Relative variation below which draft lengths count as fixed."""
MOST_DRAFTED = 10_000
"""Most drafted tokens of a step."""
RANKS = (1, 2, 4, 8, 16)
"""Numbers of candidates for which ``assumed`` computes hit ratios."""


@dataclass(frozen=True, slots=True)
class Imported:
    """The content of an export.

    Attributes:
        shares: P(accepted at a depth | all above it accepted), of the draft's first candidate.
        rounds: counted steps; None if unknown.
        model: the engine's name of the model; empty if unknown.
        notes: a sentence per assumption.
        replay: each request's steps in order, if known.
        prompts: prompt tokens of these requests, 1 if unknown.
    """

    shares: tuple[float, ...]
    rounds: int | None
    model: str = ""
    notes: tuple[str, ...] = ()
    replay: tuple[Steps, ...] = ()
    prompts: tuple[int, ...] = ()

    @property
    def tokens(self) -> float:
        """Mean tokens of a step, including the target's own: 1 + p1 + p1 p2 + ..."""
        total, product = 1.0, 1.0
        for share in self.shares:
            product *= share
            total += product
        return total


def read_export(kind: str, file: Path, model: str | None = None) -> Imported:
    """Read an export of a kind in ``KINDS``. Raises ``UserError`` if that fails."""
    with reading(file, "cannot be read"):
        text = read_text(file, "utf-8-sig")
    try:
        return KINDS[kind](text, model)
    except KeyError as error:
        raise UserError(f"{file}: is no export of {kind}: key {error} is missing") from None
    except (TypeError, AttributeError, OverflowError):
        raise UserError(
            f"{file}: is no export of {kind}: a value is of another kind than it should be"
        ) from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file}: is no export of {kind}: no valid JSON: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: {reading_fault(error)}") from None


def assumed(shares: Sequence[float]) -> dict[int, tuple[float, ...]]:
    """Hit ratios by k, if each further candidate hits the same share of what those above it miss.

    No engine exports ranks, so this is an assumption, not a measurement; most drafts do worse at
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
    """Build a profile's content; a relative ``uncertainty`` selects assumed ranks."""
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

_Page: TypeAlias = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Samples of one model (labels and value) by name without ``_total``."""


@dataclass(frozen=True, slots=True)
class _Counters:
    """A reader of an engine's Prometheus counters.

    Attributes:
        prefix: start of its counters' names.
        generated: the counter of all tokens; empty if the engine has no known one.
        requests: the counter of first tokens, which the prompt's pass produces.
    """

    prefix: str
    generated: str = ""
    requests: str = ""

    def __call__(self, text: str, model: str | None) -> Imported:
        model, page = _page(text, self.prefix, model)
        drafts = _total(page, self.prefix + "drafts") or 0.0
        accepted = self._accepted(page)
        if drafts <= 0 or not accepted:
            raise ValueError(
                f"there is no {self.prefix}drafts above 0 with {self.prefix}accepted_tokens_per_pos"
            )
        drafted = _total(page, self.prefix + "draft_tokens")
        nothing = self._drafted_nothing(page, sum(accepted) + drafts)
        steps, notes = drafts + (nothing or 0.0), list[str]()
        if nothing is None:
            notes.append(
                f"the page lacks {self.generated or 'a counter of all tokens'}, so steps that "
                f"drafted nothing are not counted: shares are those of steps with a draft"
            )
        elif nothing:
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
        return Imported(_conditional([steps, *accepted]), int(steps), model, tuple(notes))

    def _accepted(self, page: _Page) -> list[float]:
        """Accepted tokens by position."""
        positions = defaultdict[int, float](float)
        for labels, value in page.get(self.prefix + "accepted_tokens_per_pos", ()):
            positions[int(labels["position"])] += value
        if sorted(positions) != list(range(len(positions))):
            raise ValueError(f"positions are {sorted(positions)}, not all from 0 on")
        return [positions[place] for place in range(len(positions))]

    def _drafted_nothing(self, page: _Page, drafted: float) -> float | None:
        """Number of steps without a draft, given the tokens of the others; None if unknown."""
        tokens = _total(page, self.generated)
        if tokens is None:
            return None
        return max(0.0, tokens - (_total(page, self.requests) or 0.0) - drafted)


def _gauges(text: str, model: str | None) -> Imported:
    """Read SGLang's mean length of a step (with the target's own token) and its drafted tokens."""
    model, page = _page(text, "sglang:spec_", model)
    lengths = {value for _, value in page.get("sglang:spec_accept_length", ())}
    steps = {value for _, value in page.get("sglang:spec_num_steps", ())}
    if not lengths or not steps:
        raise ValueError("there is no sglang:spec_accept_length with sglang:spec_num_steps")
    if len(lengths) > 1 or len(steps) > 1:
        raise ValueError("several servers give different gauges; import one of them at a time")
    share = _even_share(lengths.pop(), round(steps.pop()))
    notes = (
        "made of one mean length: the share is taken to be the same at every depth",
        "the gauge is of the last interval alone, and so is this",
    )
    return Imported((share,), None, model, notes)


def _even_share(length: float, drafted: int) -> float:
    """Solve 1 + p + ... + p^drafted = length for the share p."""
    if not 1 <= drafted <= MOST_DRAFTED or not 1 <= length <= drafted + 1:
        raise ValueError(f"a mean length of {length:g} tokens does not go with {drafted} drafted")

    def excess(share: float) -> float:
        return sum(share**depth for depth in range(drafted + 1)) - length

    return float(brentq(excess, 0.0, 1.0))


def _page(text: str, prefix: str, model: str | None) -> tuple[str, _Page]:
    """Return the model that has samples with this prefix, and all samples of that model."""
    samples = [
        (match[1], dict(LABEL.findall(match[2] or "")), float(match[3]))
        for line in text.splitlines()
        if (match := SAMPLE.match(line.strip()))
    ]
    models = {found.get("model_name", "") for name, found, _ in samples if name.startswith(prefix)}
    if model is not None:
        models &= {model}
    if not models:
        of = f" of model {model!r}" if model is not None else ""
        raise ValueError(f"there is no sample {prefix}*{of}")
    named = _one_model(models)
    page = defaultdict[str, list[tuple[Mapping[str, str], float]]](list)
    for name, labels, value in samples:
        if labels.get("model_name", "") == named:
            page[name.removesuffix("_total")].append((labels, value))
    return named, page


def _one_model(models: set[str]) -> str:
    if len(models) > 1:
        raise ValueError(f"it tells of several models, {', '.join(sorted(models))}; give --model")
    return models.pop()


def _total(page: _Page, name: str) -> float | None:
    """Sum of a counter over a server's engines; None if the page lacks it."""
    samples = page.get(name.removesuffix("_total"))
    return None if samples is None else sum(value for _, value in samples)


# --- requests ---------------------------------------------------------------------------------


def _vllm_requests(text: str, model: str | None) -> Imported:
    """Read vLLM's responses or AIPerf's records, one per line or in a list: ordered steps, else
    histograms."""
    counts, notes = Counter[tuple[int, int]](), set[str]()
    replay, prompts = list[Steps](), list[int]()
    model, blocks = _blocks(text, ("acceptance_histogram", "per_step_accepted"), model)
    for response, found in blocks:
        if found.get("per_step_accepted") is None:
            counts.update(_vllm_histogram(found, notes))
            continue
        drafted, accepted = (
            [int(value) for value in found[key]]
            for key in ("per_step_drafted", "per_step_accepted")
        )
        own = _with_own_token(Counter(accepted), found)
        ordered = [(d, n - own) for d, n in zip(drafted, accepted, strict=True)]
        counts.update(ordered)
        replay.append(tuple(ordered))
        prompts.append(int((response.get("usage") or {}).get("prompt_tokens") or 1))
    if sum(map(len, replay)) < counts.total():
        replay, prompts = [], []
    shares = _counted(counts, model, notes)
    return replace(shares, replay=tuple(replay), prompts=tuple(prompts))


def _vllm_histogram(found: Mapping[str, Any], notes: set[str]) -> Counter[tuple[int, int]]:
    """Steps by drafted and accepted tokens; assumptions are added to ``notes``."""
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
    """Whether lengths include the target's own token, judged by ``num_accepted_draft_tokens``."""
    tokens = sum(length * steps for length, steps in histogram.items())
    steps, accepted = sum(histogram.values()), int(found["num_accepted_draft_tokens"])
    if tokens not in (accepted, accepted + steps):
        raise ValueError(
            f"its histogram holds {tokens} tokens in {steps} steps, which does not go with "
            f"num_accepted_draft_tokens = {accepted}"
        )
    return tokens != accepted


def _sglang_requests(text: str, model: str | None) -> Imported:
    """Read SGLang's responses, one per line or in a list: histograms of correct drafts per step."""
    counts = Counter[tuple[int, int]]()
    model, blocks = _blocks(text, ("spec_correct_drafts_histogram",), model)
    for _, found in blocks:
        histogram = _histogram(found["spec_correct_drafts_histogram"])
        steps, drafted = sum(histogram.values()), int(found["spec_num_proposed_drafts"])
        if not steps or drafted % steps:
            raise ValueError(
                f"spec_num_proposed_drafts = {drafted} is no multiple of the histogram's {steps} "
                f"steps, so draft lengths vary, and nothing tells which"
            )
        counts.update({(drafted // steps, n): each for n, each in histogram.items()})
    return _counted(counts, model, set())


def _counted(counts: Counter[tuple[int, int]], model: str, notes: set[str]) -> Imported:
    """Acceptance by depth, given acceptance at all depths above.

    A draft that ended above a depth, or proposed nothing, counts as a miss there.
    """
    wrong = [step for step in counts if not 0 <= step[1] <= step[0]]
    if wrong:
        raise ValueError(f"a step of {wrong[0][0]} drafted tokens has {wrong[0][1]} accepted ones")
    longest, rounds = max((drafted for drafted, _ in counts), default=0), counts.total()
    if not 0 < longest <= MOST_DRAFTED:
        raise ValueError(
            f"the longest step drafted {longest:.4g} tokens; there may be 1 to {MOST_DRAFTED}"
        )
    reached = [
        sum(n for (_, right), n in counts.items() if right >= depth) for depth in range(longest + 1)
    ]
    nothing = sum(n for (drafted, _), n in counts.items() if not drafted)
    shorter = sum(n for (drafted, _), n in counts.items() if 0 < drafted < longest)
    all_notes = sorted(notes)
    if nothing or shorter:
        all_notes.append(
            f"{nothing} of {rounds} steps drafted nothing and {shorter} fewer than "
            f"{longest} tokens: where a draft ended counts as a miss, whatever ended it"
        )
    return Imported(_conditional(reached), rounds, model, tuple(all_notes))


def _blocks(
    text: str, keys: Sequence[str], model: str | None
) -> tuple[str, list[tuple[Mapping[str, Any], dict[str, Any]]]]:
    """Return the responses' model, and each response with its table that has one of the keys."""
    try:
        content = parse_json(text)
        responses = content if isinstance(content, list) else [content]
    except json.JSONDecodeError:
        # Texts may hold other line ends, such as U+2028.
        responses = [parse_json(line) for line in text.split("\n") if line.strip()]
    found = [
        (response, table)
        for response in responses
        for table in _tables(response)
        if any(table.get(key) is not None for key in keys)
        and model in (None, str(response.get("model", "")))
    ]
    if not found:
        raise ValueError("there is no response that tells of speculative decoding")
    return _one_model({str(response.get("model", "")) for response, _ in found}), found


def _tables(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the tables in a value, outer ones first."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _tables(each)


def _histogram(value: Any) -> dict[int, int]:
    """Steps by length, from a list by index or a table."""
    items = enumerate(value) if isinstance(value, list) else value.items()
    found = {int(length): int(steps) for length, steps in items}
    if any(each < 0 for pair in found.items() for each in pair):
        raise ValueError("a histogram holds a negative number")
    return {length: steps for length, steps in found.items() if steps}


def _vllm_bench(text: str, model: str | None) -> Imported:
    """Read a result of ``vllm bench serve``: shares of all drafts by position, of its one model."""
    found = parse_json(text)
    rates, drafts = (
        found["spec_decode_per_position_acceptance_rates"],
        found["spec_decode_num_drafts"],
    )
    if not rates or drafts <= 0:
        raise ValueError("it tells of no drafts")
    notes, drafted = list[str](), found.get("spec_decode_draft_tokens")
    if drafted and abs(drafted / (drafts * len(rates)) - 1) > ALIKE:
        notes.append(
            f"draft lengths vary ({drafted / drafts:.3g} of {len(rates)} on average): shares of "
            f"deeper positions are lower bounds"
        )
    name = str(found.get("model_id", ""))
    return Imported(
        _conditional([1.0, *map(float, rates)]), int(drafts), model or name, tuple(notes)
    )


# --- tables -----------------------------------------------------------------------------------


def _table(text: str, model: str | None) -> Imported:
    """Read a published table: ``position`` from 1, and ``accepted`` (share of all rounds) or
    ``conditional`` (share of the rounds that were right at all positions above)."""
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
    """Share of each depth's count that reaches the next depth, up to the first zero.

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
    "vllm": _Counters(
        "vllm:spec_decode_num_",
        "vllm:generation_tokens_total",
        "vllm:time_to_first_token_seconds_count",
    ),
    "llama-cpp": _Counters("llamacpp:spec_decode_num_"),
    "sglang": _gauges,
    "vllm-requests": _vllm_requests,
    "sglang-requests": _sglang_requests,
    "aiperf": _vllm_requests,
    "vllm-bench": _vllm_bench,
    "table": _table,
}
"""Readers of three engines' ``/metrics``, of two engines' responses, of two benchmarks' results
(AIPerf's records hold vLLM's keys), and of tables."""
