"""Workload traces: a record per format, told apart by their content; a new format is a record.

A request has a time, the tokens of its prompt and of its text, and perhaps the request that it
waits for (the turn before it in its session) and the part of its prompt that earlier ones brought.
Formats that are results of benchmarks also have each request's measured times.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypeAlias

from pydantic import Field, create_model

from treepipe.core.errors import UserError
from treepipe.files.outputs import write_file
from treepipe.files.reading import parse_json, read_text, reading
from treepipe.files.section import Section, Several
from treepipe.files.toml_file import validated

Time: TypeAlias = Annotated[float, Field(ge=0, le=1e20, allow_inf_nan=False)]
"""In a format's unit; the bound is beyond any clock in nanoseconds."""
Tokens: TypeAlias = Annotated[int, Field(ge=0)]
Name: TypeAlias = int | str
WHOLE = "message_array_with_responses"
HEAD_LINES = 200
"""Most lines before a CSV file's columns."""
LONGEST = 100
"""Most characters of a line that an error shows."""


@dataclass(frozen=True, slots=True)
class Format:
    """The fields of a format by what they mean; dots lead into tables, "|" stands between names of
    which the first counts that is there, "" is a field that the format lacks.

    Attributes:
        source: where the format is documented.
        kind: lines of JSON, CSV, or one JSON table whose fields are lists over all requests.
        unit_s: seconds per unit of ``at``, ``delay`` and ``end``.
        at, prompt, new: time of asking, tokens of the prompt, new tokens (0: a failed request).
        told_by: further fields by which a file is recognized.
        session, turn: the turns of a session follow each other; turn 0 is the first.
        own, parent: a request's own name, and that of the turn before it.
        delay, end: time between a turn's end and the next turn; the end, from which it follows.
        blocks, block_tokens: names of the prompt's blocks, each for all of the prompt up to it.
        group, prefix: requests of a group begin with the same ``prefix`` tokens, which ``prompt``
            does not count.
        counted: tokens of the whole prompt as the server counted them, 0 if it did not.
        context: turns state only what they add to their session's texts, unless this field says
            ``WHOLE``.
        known: tokens of the prompt that a cache already holds.
        failed: a field that only failed requests have a value in.
        clock: times are some clock's, so they are counted from the first request on.
        first, gaps, measured_s: measured time to the first token and between chunks, their unit.
        accepts: the kind of ``engines.py`` that reads the same file's acceptance.
    """

    name: str
    source: str
    kind: Literal["lines", "csv", "columns"]
    at: str
    unit_s: float
    prompt: str
    new: str
    told_by: tuple[str, ...] = ()
    session: str = ""
    turn: str = ""
    own: str = ""
    parent: str = ""
    delay: str = ""
    end: str = ""
    blocks: str = ""
    block_tokens: int = 0
    group: str = ""
    prefix: str = ""
    counted: str = ""
    context: str = ""
    known: str = ""
    failed: str = ""
    clock: bool = True
    first: str = ""
    gaps: str = ""
    measured_s: float = 1.0
    accepts: str = ""

    @property
    def model(self) -> type[Section]:
        """A table with the fields of this format, whose names errors tell."""
        types: dict[str, Any] = {self.prompt: (Several, ...), self.new: (Several, ...)}
        optional: list[tuple[str, Any]] = [
            *((name, Time) for name in (self.delay, self.end, self.first)),
            *((name, Name) for name in (self.session, self.own, self.parent, self.group)),
            *((name, Tokens) for name in (self.turn, self.prefix, self.counted, self.known)),
            (self.context, str),
            (self.blocks, tuple[Name, ...]),
            (self.gaps, tuple[Time, ...]),
        ]
        types[self.at] = (Optional[Time], None) if self.delay else (Time, ...)  # noqa: UP045
        types |= {name: (Optional[kind], None) for name, kind in optional if name}  # noqa: UP045
        return create_model("Row", __base__=Section, **types)

    @property
    def needed(self) -> tuple[str, ...]:
        at = () if self.delay and self.kind == "lines" else (self.at,)
        return (*at, self.prompt, self.new, *self.told_by)


OURS = Format(
    "treepipe CSV",
    "docs/planning/workloads.md",
    "csv",
    *("arrival_s", 1.0, "prompt_tokens", "new_tokens"),
    session="session",
    delay="delay_s",
    known="known_tokens",
    clock=False,
)
FORMATS = (
    OURS,
    Format(
        "AIPerf profile_export.jsonl",
        "github.com/ai-dynamo/aiperf docs/tutorials/working-with-profile-exports.md",
        "lines",
        *("metadata.request_start_ns", 1e-9),
        "metrics.input_sequence_length.value",
        "metrics.output_sequence_length.value",
        session="metadata.x_correlation_id|metadata.conversation_id",
        turn="metadata.turn_index",
        end="metadata.request_end_ns",
        failed="error",
        first="metrics.time_to_first_token.value",
        gaps="metrics.inter_chunk_latency.value",
        measured_s=1e-3,
        accepts="aiperf",
    ),
    Format(
        "Bailian",
        "github.com/alibaba-edu/qwen-bailian-usagetraces-anon",
        "lines",
        *("timestamp", 1.0, "input_length", "output_length"),
        told_by=("chat_id",),
        own="chat_id",
        parent="parent_chat_id",
        blocks="hash_ids",
        block_tokens=16,
    ),
    Format(
        "Mooncake, AIPerf mooncake_trace",
        "github.com/kvcache-ai/Mooncake; github.com/ai-dynamo/aiperf docs/benchmark_modes",
        "lines",
        *("timestamp", 1e-3, "input_length", "output_length"),
        session="session_id",
        context="context_mode",
        delay="delay",
        blocks="hash_ids",
        block_tokens=512,
    ),
    Format(
        "BurstGPT",
        "github.com/HPMLL/BurstGPT",
        "csv",
        *("Timestamp", 1.0, "Request tokens", "Response tokens"),
    ),
    Format(
        "BLIS TraceV2",
        "github.com/inference-sim/inference-sim sim/workload/tracev2.go",
        "csv",
        *("arrival_time_us", 1e-6, "input_tokens", "output_tokens"),
        session="session_id",
        turn="round_index",
        end="last_chunk_time_us",
        group="prefix_group",
        prefix="prefix_length",
        counted="server_input_tokens",
        failed="error_message",
    ),
    Format(
        "vllm bench serve",
        "github.com/vllm-project/vllm vllm/benchmarks/serve.py",
        "columns",
        *("start_times", 1.0, "input_lens", "output_lens"),
        first="ttfts",
        gaps="itls",
        accepts="vllm-bench",
    ),
)
"""All formats; the first whose fields a file's first request has is its own."""


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
    """Requests by time, the name of their format, and the number of failed ones, left out;
    ``accepts`` as of the format."""

    name: str
    requests: tuple[Asked, ...]
    failed: int = 0
    accepts: str = ""

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
    """Read a trace of any of ``FORMATS``; ``UserError`` names the file, the line and the field."""
    with reading(file, f"cannot be read ({key})", f"file ({key})"):
        stamp = file.stat().st_mtime_ns if file.is_file() else 0
    return _read(file, key, stamp)


@lru_cache(maxsize=2)
def _read(file: Path, key: str, stamp_ns: int) -> WorkloadTrace:
    """Read a trace once for all runs, as long as its file stays the same."""
    with reading(file, f"cannot be read ({key})", f"file ({key})", (csv.Error,)):
        text = read_text(file, "utf-8-sig")  # drops a byte order mark
        form, records = _records(text, file, key)
    found, failed = [], 0
    model = form.model
    for place, record in records:
        values = {name: _value(record, name) for name in model.model_fields}
        given = {name: value for name, value in values.items() if value not in (None, "")}
        if form is not OURS and _failed(record, form):
            failed += 1
            continue
        found.append(_Row.of(form, place, validated(model, given, place)))
    if not found:
        raise UserError(f"{file}: holds no request ({key}); {failed} failed")
    return WorkloadTrace(form.name, tuple(_linked(found, form)), failed, form.accepts)


def _failed(record: Mapping[str, Any], form: Format) -> bool:
    told = form.failed and _value(record, form.failed)
    return bool(told) or str(_value(record, form.new)).strip() in ("0", "0.0")


@dataclass(slots=True)
class _Row:
    """A line's values by what they mean, and its place for errors."""

    form: Format
    place: str
    at: float | None
    prompt: int
    new: int
    session: Name | None
    turn: int | None
    own: Name | None
    parent: Name | None
    delay: float | None
    end: float | None
    blocks: Sequence[Name] | None
    group: Name | None
    prefix: int | None
    counted: int | None
    context: str | None
    known: int | None
    first: float | None
    gaps: Sequence[float] | None
    at_s: float = field(init=False, default=0.0)

    @classmethod
    def of(cls, form: Format, place: str, row: Section) -> _Row:
        meanings = [each.name for each in fields(cls)][2:-1]
        values: list[Any] = [getattr(row, getattr(form, each), None) for each in meanings]
        made = cls(form, place, *values)
        prefix = made.prefix if made.prefix and made.group is not None else 0
        made.prompt = made.counted or made.prompt + prefix
        return made


def _linked(rows: list[_Row], form: Format) -> Iterator[Asked]:
    """Yield the requests by time, each with the one that it waits for and its known tokens."""
    before = dict[Name, _Row]()
    for row in rows:  # a turn that states only its delay comes after the one above it
        above = before.get(row.session) if row.session is not None else None
        if row.at is not None:
            row.at_s = form.unit_s * row.at
        elif above is not None:
            row.at_s = above.at_s + form.unit_s * (row.delay or 0.0)
        else:
            raise UserError(f"{row.place}: key {form.at} is missing, and no turn is before it")
        if row.session is not None:
            before[row.session] = row
    if form is OURS:
        _check_ours(rows)
    rows.sort(key=lambda row: (row.at_s, row.turn or 0))
    _check_turns(rows, form)
    origin_s = rows[0].at_s if form.clock else 0.0
    places, cache = dict[Name, int](), _Prefixes(form.block_tokens)
    for place, row in enumerate(rows):
        name = row.parent if form.parent else row.session
        first = bool(form.turn) and row.turn == 0
        after = None if name is None or first else places.get(name)
        own = row.own if form.own else row.session
        if own is not None:
            places[own] = place
        delay_s = None
        if after is not None and row.delay is not None:
            delay_s = form.unit_s * row.delay
        elif after is not None and form.end and (end := rows[after].end):
            delay_s = max(0.0, row.at_s - form.unit_s * end)
        known = row.known or cache.known(row)
        if form.context and after is not None and row.context != WHOLE:
            told = rows[after].prompt + rows[after].new
            row.prompt, known = row.prompt + told, told - 1  # nothing computed its last token
        known = min(known, row.prompt - 1)
        measured = None if row.first is None else form.measured_s * row.first
        gaps = tuple(form.measured_s * gap for gap in row.gaps or ())
        yield Asked(row.at_s - origin_s, row.prompt, row.new, after, delay_s, known, measured, gaps)


def _check_ours(rows: Sequence[_Row]) -> None:
    for row in rows:
        if row.known is not None and row.known > row.prompt:
            raise UserError(
                f"{row.place}: key {row.form.known} = {row.known}: the prompt has {row.prompt}"
            )
    for above, row in pairwise(rows):
        if row.at_s < above.at_s:
            raise UserError(
                f"{row.place}: key {row.form.at} = {row.at_s:g} is before the line above it, "
                f"{above.at_s:g}; arrivals must be in order"
            )


def _check_turns(rows: Sequence[_Row], form: Format) -> None:
    """Refuse turns that, by time, are asked for before those that they follow."""
    latest, begun = dict[Name | None, _Row](), set[Name | None]()
    named = {row.own: row for row in rows}
    for row in rows:
        if form.parent:
            late = row.parent is not None and row.parent not in latest and named.get(row.parent)
            key, value = form.parent, row.parent
        elif form.turn and row.session is not None:
            above, again = latest.get(row.session), row.turn == 0 and row.session in begun
            late = above if above and not again and (row.turn or 0) <= (above.turn or 0) else None
            key, value = form.turn, row.turn
        else:
            continue
        if late:
            raise UserError(
                f"{row.place}: key {key} = {value}: by their times, this turn is not after the one "
                f"that it follows; the other is at {late.place}"
            )
        latest[row.own if form.parent else row.session] = row
        begun |= {row.session} if row.turn == 0 else set()


class _Prefixes:
    """The beginnings of prompts that earlier requests have brought, and that are never dropped."""

    def __init__(self, block_tokens: int) -> None:
        self._size, self._blocks, self._groups = block_tokens, set[Name](), dict[Name, int]()

    def known(self, row: _Row) -> int:
        """Return the known tokens of a request, and keep what it brings."""
        blocks = row.blocks or ()
        new = next((n for n, each in enumerate(blocks) if each not in self._blocks), len(blocks))
        self._blocks.update(blocks)
        found = new * self._size
        if row.group is not None and row.prefix:
            found = min(row.prefix, self._groups.get(row.group, 0))
            self._groups[row.group] = max(row.prefix, self._groups.get(row.group, 0))
        return found


# --- files ------------------------------------------------------------------------------------


def _records(
    text: str, file: Path, key: str
) -> tuple[Format, Iterator[tuple[str, Mapping[str, Any]]]]:
    """Return the format of a file's content, and its requests with their places."""
    if not text.lstrip().startswith("{"):
        return _csv(text, file, key)
    try:
        whole = parse_json(text)
    except json.JSONDecodeError:
        whole = None
    if isinstance(whole, dict) and (form := _format_of(whole, "columns")):
        return form, _columns(whole, form, file)
    # Texts in JSON may hold other line ends, such as U+2028.
    lines = ((n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip())
    records = [(f"{file}:{n}", _json(line, f"{file}:{n}")) for n, line in lines]
    known = (_format_of(record, "lines") for _, record in records)  # failed requests lack fields
    if found := [form for form in known if form]:
        return min(found, key=FORMATS.index), iter(records)
    if form := _format_of(records[0][1], "columns"):
        raise UserError(f"{file}: holds {len(records)} results of {form.name}; there may be one")
    raise UserError(f"{file}:1: has the keys of no workload ({key}); {_known('lines', 'columns')}")


def _json(line: str, place: str) -> Mapping[str, Any]:
    try:
        found = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{place}: must hold a JSON object")
    return found


def _csv(text: str, file: Path, key: str) -> tuple[Format, Iterator[tuple[str, Mapping[str, Any]]]]:
    """Find the line that names the columns; a head in YAML may stand above it (BLIS)."""
    reader = csv.reader(io.StringIO(text))
    lines = [(reader.line_num, line) for line in reader if line]
    for place, (_, line) in enumerate(lines[:HEAD_LINES]):
        columns = [name.strip() for name in line]
        if form := _format_of(dict.fromkeys(columns, ""), "csv"):
            if len({*columns}) < len(columns):
                raise UserError(f"{file}: names a column twice: {', '.join(columns)} ({key})")
            if form is OURS and (foreign := {*columns} - {*form.model.model_fields}):
                raise UserError(
                    f"{file}: its first line names {', '.join(sorted(foreign))}; there may be "
                    f"{', '.join(form.model.model_fields)} ({key})"
                )
            if not lines[place + 1 :]:
                raise UserError(f"{file}: holds no request, only the line with the columns ({key})")
            return form, _csv_rows(lines[place + 1 :], columns, file)
    first = ", ".join(name.strip() for name in lines[0][1]) if lines else ""
    found = repr(first if len(first) <= LONGEST else first[:LONGEST] + "…") if lines else "nothing"
    raise UserError(
        f"{file}: its first line must name the columns {', '.join(OURS.needed)}, not {found} "
        f"({key}); {_known('csv')}"
    )


def _csv_rows(
    lines: Sequence[tuple[int, list[str]]], columns: Sequence[str], file: Path
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in lines:
        if len(line) != len(columns):
            raise UserError(f"{file}:{number}: has {len(line)} values for {len(columns)} columns")
        yield f"{file}:{number}", dict(zip(columns, map(str.strip, line), strict=True))


def _columns(
    whole: Mapping[str, Any], form: Format, file: Path
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    lists = {name: whole[name] for name in form.model.model_fields if name in whole}
    lengths = {name: len(each) if isinstance(each, list) else -1 for name, each in lists.items()}
    if len({*lengths.values()}) > 1 or -1 in lengths.values():
        words = {-1: "(no list)"}
        told = ", ".join(f"{name} {words.get(n, n)}" for name, n in lengths.items())
        raise UserError(f"{file}: its lists must be equally long, not {told}")
    for number in range(lengths[form.at]):
        yield f"{file}: request {number}", {name: each[number] for name, each in lists.items()}


def _format_of(record: Mapping[str, Any], kind: str) -> Format | None:
    def has(name: str) -> bool:
        return _value(record, name) is not None

    return next((f for f in FORMATS if f.kind == kind and all(map(has, f.needed))), None)


def _known(*kinds: str) -> str:
    told = [f"{f.name}: {', '.join(f.needed)}" for f in FORMATS if f.kind in kinds]
    return f"known are {'; '.join(told)}"


def _value(record: Any, name: str) -> Any:
    """Return the value that dots lead to, of names between "|" the first that has one."""
    for each in (name, *name.split("|")):
        if each in record:
            return record[each]
        place = record
        for part in each.split("."):
            place = place.get(part) if isinstance(place, Mapping) else None
        if place is not None:
            return place
    return None


def save_csv(trace: WorkloadTrace, out: Path, option: str) -> int:
    """Write a trace as our CSV; returns the number of turns that follow one that another turn
    follows, too, which this format writes as first turns. Raises ``WriteError``."""
    sessions, last, cut = list[int](), dict[int, int](), 0
    lines = ["arrival_s,prompt_tokens,new_tokens,session,delay_s,known_tokens"]
    for place, each in enumerate(trace.requests):
        session, delay = place, "" if each.delay_s is None else repr(each.delay_s)
        if each.after is not None and last[sessions[each.after]] == each.after:
            session = sessions[each.after]
        elif each.after is not None:
            delay, cut = "", cut + 1
        sessions.append(session)
        last[session] = place
        sizes = each.prompt_tokens, each.new_tokens, session, delay, each.known
        lines.append(",".join(map(str, (repr(each.at_s), *sizes))))
    write_file(out, "\n".join(lines) + "\n", option)
    return cut
