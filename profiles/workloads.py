"""Workload traces: treepipe's own CSV, Mooncake's lines, and a result of ``vllm bench serve``.

A file's format is told by its fields. A request has a time, the tokens of its prompt and of its
text, and perhaps the request that it waits for (the turn before it in its session) and the part of
its prompt that earlier ones brought; a benchmark's also has measured times.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field

from treepipe.core.errors import UserError
from treepipe.files.reading import parse_json, read_text, reading
from treepipe.files.section import Section, Several
from treepipe.files.toml_file import validated

Time: TypeAlias = Annotated[float, Field(ge=0, le=1e20, allow_inf_nan=False)]
"""In a format's unit; the bound is beyond any clock in nanoseconds."""
Tokens: TypeAlias = Annotated[int, Field(ge=0)]
Name: TypeAlias = int | str
WHOLE = "message_array_with_responses"
"""Mooncake's ``context_mode`` of turns that state their whole prompt."""
BLOCK_TOKENS = 512
"""Tokens of a prompt that one of Mooncake's ``hash_ids`` names."""
LONGEST = 100
"""Most characters of a line that an error shows."""


@dataclass(slots=True)
class _Line:
    """A request as a format states it, and its place in the file for errors.

    Attributes:
        at_s: time of asking; None: ``delay_s`` after the turn above it in the file.
        blocks: names of the prompt's blocks, each for all of the prompt up to it.
        adds: whether a later turn states only what it adds to its session's texts.
    """

    place: str
    at_s: float | None
    prompt: int
    new: int
    session: Name | None = None
    delay_s: float | None = None
    known: int | None = None
    blocks: Sequence[Name] = ()
    adds: bool = False
    first_s: float | None = None
    gaps_s: tuple[float, ...] = ()


class OwnCsv(Section):
    """A line of treepipe's own CSV (docs/planning/workloads.md); times in seconds of the run."""

    form: ClassVar[str] = "treepipe CSV"
    needed: ClassVar[tuple[str, ...]] = ("arrival_s", "prompt_tokens", "new_tokens")

    arrival_s: Time
    prompt_tokens: Several
    new_tokens: Several
    session: Name | None = None
    delay_s: Time | None = None
    known_tokens: Tokens | None = None

    def line(self, place: str) -> _Line:
        sizes = self.prompt_tokens, self.new_tokens
        return _Line(place, self.arrival_s, *sizes, self.session, self.delay_s, self.known_tokens)


class Mooncake(Section):
    """A line of Mooncake's traces or of AIPerf's ``mooncake_trace``; times in milliseconds.

    (github.com/kvcache-ai/Mooncake; github.com/ai-dynamo/aiperf, docs/benchmark_modes)
    """

    form: ClassVar[str] = "Mooncake, AIPerf mooncake_trace"
    needed: ClassVar[tuple[str, ...]] = ("input_length", "output_length")

    timestamp: Time | None = None
    input_length: Several
    output_length: Several
    session_id: Name | None = None
    delay: Time | None = None
    context_mode: str | None = None
    hash_ids: tuple[Name, ...] = ()

    def line(self, place: str) -> _Line:
        at_s, delay_s = (None if t is None else t / 1e3 for t in (self.timestamp, self.delay))
        made = _Line(place, at_s, self.input_length, self.output_length, self.session_id, delay_s)
        return replace(made, blocks=self.hash_ids, adds=self.context_mode != WHOLE)


class VllmBench(Section):
    """A request of ``vllm bench serve --save-detailed``, whose file holds a list per field; times
    in seconds of some clock (github.com/vllm-project/vllm, vllm/benchmarks/serve.py)."""

    form: ClassVar[str] = "vllm bench serve"
    needed: ClassVar[tuple[str, ...]] = ("start_times", "input_lens", "output_lens")

    start_times: Time
    input_lens: Several
    output_lens: Several
    ttfts: Time | None = None
    itls: tuple[Time, ...] = ()

    def line(self, place: str) -> _Line:
        made = _Line(place, self.start_times, self.input_lens, self.output_lens)
        return replace(made, first_s=self.ttfts, gaps_s=self.itls)


Format: TypeAlias = type[OwnCsv] | type[Mooncake] | type[VllmBench]
"""The last one of a format's ``needed`` fields counts new tokens."""
Record: TypeAlias = tuple[str, Mapping[str, Any]]
"""A request's place, and its fields."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a trace; times in seconds, the first request's is 0 where times are a clock's.

    Attributes:
        after: place of the request that it waits for.
        delay_s: time after that one's end; None: then, but not before ``at_s``.
        known: tokens of the prompt that earlier requests have brought.
        first_s, gaps_s: measured time to the first token, and between chunks.
    """

    at_s: float
    prompt_tokens: int
    new_tokens: int
    after: int | None = None
    delay_s: float | None = None
    known: int = 0
    first_s: float | None = None
    gaps_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkloadTrace:
    """Requests by time, the name of their format, and the number of failed ones, left out."""

    name: str
    requests: tuple[Asked, ...]
    failed: int = 0

    def window(self, first_s: float, end_s: float) -> WorkloadTrace:
        """Return the requests from ``first_s`` until before ``end_s``, counted from there. A turn
        whose predecessor is before the window is a session's first."""
        places = [n for n, each in enumerate(self.requests) if first_s <= each.at_s < end_s]
        new = {old: place for place, old in enumerate(places)}
        kept = (self.requests[place] for place in places)
        moved = [replace(each, at_s=each.at_s - first_s) for each in kept]
        turns = (
            replace(each, after=new[each.after])
            if each.after in new
            else replace(each, after=None, delay_s=None)
            for each in moved
        )
        return replace(self, requests=tuple(turns))

    @property
    def summary(self) -> str:
        """The counts of a trace, in a sentence."""
        prompts = sum(each.prompt_tokens for each in self.requests)
        known, turns = (
            sum(each.known for each in self.requests),
            sum(each.after is not None for each in self.requests),
        )
        return (
            f"{self.name}: {len(self.requests)} requests in {self.requests[-1].at_s:.4g} s, "
            f"{turns} of them later turns of sessions; {prompts} prompt tokens, {known} of them "
            f"known prefixes; {sum(each.new_tokens for each in self.requests)} new tokens; "
            f"{self.failed} failed requests left out"
        )


def read_workload(file: Path, key: str = "key workload.trace") -> WorkloadTrace:
    """Read a trace of any format; ``UserError`` names the file, the line and the field."""
    with reading(file, f"cannot be read ({key})", f"file ({key})"):
        stamp = file.stat().st_mtime_ns if file.is_file() else 0
    return _read(file, key, stamp)


@lru_cache(maxsize=2)
def _read(file: Path, key: str, stamp_ns: int) -> WorkloadTrace:
    """Read a trace once for all runs, as long as its file stays the same."""
    with reading(file, f"cannot be read ({key})", f"file ({key})", (csv.Error,)):
        text = read_text(file, "utf-8-sig")  # drops a byte order mark
        form, records = _records(text, file, key)
    lines, failed = list[_Line](), 0
    for place, record in records:
        if form is not OwnCsv and record.get(form.needed[-1]) == 0:
            failed += 1
            continue
        given = {name: record.get(name) for name in form.model_fields}
        stated = {name: each for name, each in given.items() if each not in (None, "")}
        lines.append(validated(form, stated, place).line(place))
    if not lines:
        raise UserError(f"{file}: holds no request ({key}); {failed} failed")
    if form is OwnCsv:
        _check_own(lines)
    return WorkloadTrace(form.form, tuple(_linked(lines, clock=form is not OwnCsv)), failed)


def _check_own(lines: Sequence[_Line]) -> None:
    for line in lines:
        if line.known is not None and line.known > line.prompt:
            raise UserError(
                f"{line.place}: key known_tokens = {line.known}: the prompt has {line.prompt}"
            )
    for above, line in pairwise(lines):
        assert above.at_s is not None
        assert line.at_s is not None  # this format needs it
        if line.at_s < above.at_s:
            raise UserError(
                f"{line.place}: key arrival_s = {line.at_s:g} is before the line above it, "
                f"{above.at_s:g}; arrivals must be in order"
            )


def _linked(lines: Sequence[_Line], *, clock: bool) -> Iterator[Asked]:
    """Yield the requests by time, each with the one that it waits for and its known tokens.

    Args:
        clock: times are some clock's, so they are counted from the first request on.
    """
    timed = sorted(_timed(lines), key=lambda each: each[0])
    origin_s = timed[0][0] if clock else 0.0
    places, brought = dict[Name, int](), set[Name]()
    prompts = list[int]()
    for place, (at_s, line) in enumerate(timed):
        after = None if line.session is None else places.get(line.session)
        if line.session is not None:
            places[line.session] = place
        blocks = line.blocks
        new = next((n for n, each in enumerate(blocks) if each not in brought), len(blocks))
        brought.update(blocks)
        prompt, known = line.prompt, line.known or new * BLOCK_TOKENS
        if line.adds and after is not None:
            told = prompts[after] + timed[after][1].new
            prompt, known = prompt + told, told - 1  # nothing computed its last token
        prompts.append(prompt)
        delay_s = None if after is None else line.delay_s
        sizes = prompt, line.new, after, delay_s, min(known, prompt - 1)
        yield Asked(at_s - origin_s, *sizes, line.first_s, line.gaps_s)


def _timed(lines: Sequence[_Line]) -> Iterator[tuple[float, _Line]]:
    """Yield each line with its time; a turn that states only its delay comes after the one above
    it."""
    latest = dict[Name | None, float]()
    for line in lines:
        at_s = line.at_s
        if at_s is None:
            if line.session is None or line.session not in latest:
                raise UserError(f"{line.place}: key timestamp is missing, and no turn is before it")
            at_s = latest[line.session] + (line.delay_s or 0.0)
        latest[line.session] = at_s
        yield at_s, line


# --- files ------------------------------------------------------------------------------------


def _records(text: str, file: Path, key: str) -> tuple[Format, Iterator[Record]]:
    """Return the format of a file's content, and its requests."""
    if not text.lstrip().startswith("{"):
        return OwnCsv, _csv(text, file, key)
    try:
        whole = parse_json(text)
    except json.JSONDecodeError:
        whole = None
    if isinstance(whole, dict) and _has(whole, VllmBench):
        return VllmBench, _columns(whole, file)
    # Texts in JSON may hold other line ends, such as U+2028.
    lines = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
    records = [(f"{file}:{n}", _json(line, f"{file}:{n}")) for n, line in lines]
    if any(_has(record, Mooncake) for _, record in records):
        return Mooncake, iter(records)
    if _has(records[0][1], VllmBench):
        raise UserError(
            f"{file}: holds {len(records)} results of {VllmBench.form}; there may be one"
        )
    raise UserError(
        f"{records[0][0]}: has the keys of no workload ({key}); {_known(Mooncake, VllmBench)}"
    )


def _has(record: Mapping[str, Any], form: Format) -> bool:
    return all(record.get(name) is not None for name in form.needed)


def _known(*forms: Format) -> str:
    told = [f"{form.form}: {', '.join(form.needed)}" for form in forms]
    return f"known are {'; '.join(told)}"


def _json(line: str, place: str) -> Mapping[str, Any]:
    try:
        found = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{place}: must hold a JSON object")
    return found


def _csv(text: str, file: Path, key: str) -> Iterator[Record]:
    reader = csv.reader(io.StringIO(text))
    lines = [(reader.line_num, line) for line in reader if line]
    columns = [name.strip() for name in lines[0][1]] if lines else []
    if not {*OwnCsv.needed} <= {*columns}:
        first = ", ".join(columns)
        found = repr(first if len(first) <= LONGEST else first[:LONGEST] + "…")
        raise UserError(
            f"{file}: its first line must name the columns {', '.join(OwnCsv.needed)}, not "
            f"{found if lines else 'nothing'} ({key}); {_known(Mooncake, VllmBench)}"
        )
    if len({*columns}) < len(columns):
        raise UserError(f"{file}: names a column twice: {', '.join(columns)} ({key})")
    if foreign := {*columns} - {*OwnCsv.model_fields}:
        raise UserError(
            f"{file}: its first line names {', '.join(sorted(foreign))}; there may be "
            f"{', '.join(OwnCsv.model_fields)} ({key})"
        )
    if not lines[1:]:
        raise UserError(f"{file}: holds no request, only the line with the columns ({key})")
    return _csv_rows(lines[1:], columns, file)


def _csv_rows(
    lines: Sequence[tuple[int, list[str]]], columns: Sequence[str], file: Path
) -> Iterator[Record]:
    for number, line in lines:
        if len(line) != len(columns):
            raise UserError(f"{file}:{number}: has {len(line)} values for {len(columns)} columns")
        yield f"{file}:{number}", dict(zip(columns, map(str.strip, line), strict=True))


def _columns(whole: Mapping[str, Any], file: Path) -> Iterator[Record]:
    lists = {name: whole[name] for name in VllmBench.model_fields if name in whole}
    lengths = {name: len(each) if isinstance(each, list) else -1 for name, each in lists.items()}
    if len({*lengths.values()}) > 1 or -1 in lengths.values():
        words = {-1: "(no list)"}
        told = ", ".join(f"{name} {words.get(n, n)}" for name, n in lengths.items())
        raise UserError(f"{file}: its lists must be equally long, not {told}")
    for number in range(lengths["start_times"]):
        yield f"{file}: request {number}", {name: each[number] for name, each in lists.items()}
