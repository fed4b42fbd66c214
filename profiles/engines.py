"""Exports of serving engines, read as shares of accepted tokens by depth (``hit_ratio.py``).

Engines count how many drafted tokens of a step were accepted, never the rank of the target's token
among the draft's candidates. So shares are those of the first candidate (a chain); trees need an
assumption that the caller requests (``assumed``). Here belong the readers; ``engines.toml`` says
which formats there are, and where each has which field.
"""

from __future__ import annotations

import csv
import datetime
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import Field

from treepipe.core.errors import UserError
from treepipe.files.reading import parse_json, read_text, reading, reading_fault
from treepipe.files.section import Section
from treepipe.files.toml_file import read_toml, validated
from treepipe.profiles.chains import (
    ANYTHING,
    Chains,
    Imported,
    Wanted,
    added_up,
    json_entries,
)
from treepipe.profiles.hit_ratio import MOST_DRAFTED, conditional

SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
"""Patterns of a sample in the text format of Prometheus, and of one of its labels."""
RANKS = (1, 2, 4, 8, 16)
"""Numbers of candidates for which ``assumed`` computes hit ratios."""


class ExportFormat(Section):
    """A format of a kind (``engines.toml``)."""

    reader: str
    fields: Mapping[str, str] = Field(default_factory=dict)
    mark: str = ""


def read_export(kind: str, file: Path, wanted: Wanted = ANYTHING) -> Imported:
    """Read an export of a kind in ``KINDS``. Raises ``UserError`` if that fails."""
    with reading(file, "cannot be read"):
        text = read_text(file, "utf-8-sig")
    row = next(each for each in KINDS[kind] if re.search(each.mark, text))
    try:
        found = READERS[row.reader](row.fields, text, wanted)
        if wanted.draft_tokens not in (None, found.drafted):
            raise ValueError(
                f"it tells of {found.drafted} drafted tokens, not of {wanted.draft_tokens}"
            )
        return found
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


# --- texts: log lines and printed tables ----------------------------------------------------------


def _printed(fields: Mapping[str, str], text: str, wanted: Wanted) -> Imported:
    """Read reports that begin with ``begins`` and tell fields of ``Chains`` by patterns.

    Reports of a ``draft`` count from the server's start, so that its last one is read.
    """
    found = dict[object, Chains]()
    ends = [match.start() for match in re.finditer(fields["begins"], text)] + [len(text)]
    for number, (first, last) in enumerate(pairwise(ends)):
        part = text[first:last]
        told = {name: _numbers(pattern, part) for name, pattern in fields.items()}
        one: dict[str, Any] = {n: told[n][0] for n in ONE_NUMBER if told.get(n)}
        reached = told.get("reached") or [each / 100 for each in told.get("percent", ())]
        report = Chains(**one, reached=tuple(reached))
        draft = re.search(fields["draft"], part) if "draft" in fields else None
        if report.drafted or report.length:
            found[number if draft is None else draft[1]] = report
    if not found:
        raise ValueError("it tells of no drafts")
    if "draft" in fields and len(found) > 1:
        raise ValueError(f"it tells of several drafts, {', '.join(map(str, found))}; keep one's")
    if max(_numbers(fields.get("branches", NOTHING), text), default=1) > 1:
        raise ValueError("its drafts are trees, of which a mean length tells no share")
    chain = max(_numbers(fields.get("chain", NOTHING), text), default=0)
    notes = [f"of {len(found)} reports"] if len(found) > 1 else []
    return added_up([replace(r, longest=int(chain)) for r in found.values()], wanted, "", notes)


ONE_NUMBER = ("steps", "drafts", "drafted", "accepted", "length", "running")
NOTHING = r"(?!)()"
"""A pattern that is nowhere."""


def _numbers(pattern: str, text: str) -> list[float]:
    return [
        float(number)
        for match in re.finditer(pattern, text)
        for number in re.findall(r"\d+(?:\.\d+)?", match[1] if match.re.groups else "")
    ]


# --- counters -----------------------------------------------------------------------------------

_Page: TypeAlias = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Samples of one model (labels and value) by name without ``_total``."""


def _counters(fields: Mapping[str, str], text: str, wanted: Wanted) -> Imported:
    """Read Prometheus counters by name: of all drafts, drafted tokens and accepted ones by
    position; of all tokens and of first ones, which the prompt's pass produces."""
    prefix = fields["drafts"].removesuffix("drafts")
    model, page = _page(text, prefix, wanted.model)
    drafts, accepted = _total(page, fields["drafts"]) or 0.0, _by_position(page, fields["reached"])
    if drafts <= 0 or not accepted:
        raise ValueError(f"there is no {fields['drafts']} above 0 with {fields['reached']}")
    tokens = _total(page, fields.get("generated", ""))
    first = _total(page, fields.get("requests", "")) or 0.0
    notes = [] if tokens is not None else [
        f"the page lacks {fields.get('generated') or 'a counter of all tokens'}, so steps that "
        f"drafted nothing are not counted: shares are those of steps with a draft"
    ]  # fmt: skip
    chains = Chains(
        steps=0.0 if tokens is None else tokens - first - sum(accepted),
        drafts=drafts,
        drafted=_total(page, fields["drafted"]) or 0.0,
        reached=tuple(each / drafts for each in accepted),
    )
    return added_up([chains], wanted, model, notes)


def _by_position(page: _Page, name: str) -> list[float]:
    positions = defaultdict[int, float](float)
    for labels, value in page.get(name, ()):
        positions[int(labels["position"])] += value
    if sorted(positions) != list(range(len(positions))):
        raise ValueError(f"positions are {sorted(positions)}, not all from 0 on")
    return [positions[place] for place in range(len(positions))]


def _gauges(fields: Mapping[str, str], text: str, wanted: Wanted) -> Imported:
    """Read the mean length of a step (with the target's own token) and its drafted tokens."""
    model, page = _page(text, "sglang:spec_", wanted.model)
    lengths, chains = ({v for _, v in page.get(fields[n], ())} for n in ("length", "chain"))
    if not lengths or not chains:
        raise ValueError(f"there is no {fields['length']} with {fields['chain']}")
    if len(lengths) > 1 or len(chains) > 1:
        raise ValueError("several servers give different gauges; import one of them at a time")
    told = Chains(length=lengths.pop(), longest=round(chains.pop()))
    return added_up([told], wanted, model, ["the gauge is of the last interval alone"])


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


def _vllm_requests(fields: Mapping[str, str], text: str, wanted: Wanted) -> Imported:
    """Read vLLM's responses or AIPerf's records, one per line or in a list: steps, else
    histograms."""
    counts, notes = Counter[tuple[int, int]](), set[str]()
    model, blocks = _blocks(text, ("acceptance_histogram", "per_step_accepted"), wanted.model)
    for _, found in blocks:
        if found.get("per_step_accepted") is None:
            counts.update(_vllm_histogram(found, notes))
            continue
        drafted, accepted = (
            [int(value) for value in found[key]]
            for key in ("per_step_drafted", "per_step_accepted")
        )
        own = _with_own_token(Counter(accepted), found)
        counts.update((d, n - own) for d, n in zip(drafted, accepted, strict=True))
    return _counted(counts, model, notes)


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


def _sglang_requests(fields: Mapping[str, str], text: str, wanted: Wanted) -> Imported:
    """Read SGLang's responses, one per line or in a list: histograms of correct drafts per step."""
    counts = Counter[tuple[int, int]]()
    model, blocks = _blocks(text, ("spec_correct_drafts_histogram",), wanted.model)
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
    return Imported(conditional(reached), longest, rounds, model, tuple(all_notes))


def _blocks(
    text: str, keys: Sequence[str], model: str | None
) -> tuple[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Return the responses' model, and each response with its table that has one of the keys."""
    found = [
        (response, table)
        for _, response in json_entries(text)
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


def _result(fields: Mapping[str, str], text: str, wanted: Wanted) -> Imported:
    """Read a benchmark's JSON by its keys: shares of all drafts by position, of its one model."""
    found = parse_json(text)
    told = Chains(
        drafts=found[fields["drafts"]],
        drafted=found.get(fields["drafted"]) or 0.0,
        reached=tuple(map(float, found[fields["reached"]])),
    )
    if not told.reached or told.drafts <= 0:
        raise ValueError("it tells of no drafts")
    return added_up([told], wanted, wanted.model or str(found.get("model_id", "")))


# --- tables -----------------------------------------------------------------------------------


def _table(fields: Mapping[str, str], text: str, wanted: Wanted) -> Imported:
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
    (column,) = columns - {"position"}
    shares = tuple(float(row[column]) for row in rows)
    if column == "accepted":
        shares = conditional([1.0, *shares])
    elif not all(0 <= share <= 1 for share in shares):
        raise ValueError("a share is not between 0 and 1")
    return Imported(shares, len(rows), None, wanted.model or "")


# --- the formats ----------------------------------------------------------------------------------

READERS: Mapping[str, Callable[[Mapping[str, str], str, Wanted], Imported]] = {
    "printed": _printed,
    "counters": _counters,
    "gauges": _gauges,
    "vllm_requests": _vllm_requests,
    "sglang_requests": _sglang_requests,
    "result": _result,
    "table": _table,
}
"""By name; they raise ``ValueError`` with a sentence, or whatever parsing raises."""
_FILE = Path(__file__).with_suffix(".toml")
KINDS: Mapping[str, Sequence[ExportFormat]] = {
    kind: [validated(ExportFormat, row, _FILE) for row in rows]
    for kind, rows in read_toml(_FILE).items()
}
