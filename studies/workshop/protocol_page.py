"""Writes the table and the sequences of records in ``docs/protocol.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from treepipe.core.recovery import Committed
from treepipe.executor.wire import records as r
from treepipe.results.sheet import Sheet, words
from treepipe.studies.workshop.page_parts import with_parts

BEGINNING = r.Start, r.Here, r.Become, r.Listen, r.Listening, r.Connect, r.Loaded
SEQUENCES: Mapping[str, Sequence[type]] = {
    "a session": (r.HowAreYou, r.Status, r.Hello, r.Welcome, r.Alive, r.TimeIs),
    "a run": (
        r.Hello, r.Welcome, *BEGINNING, r.SetClock, r.Open, r.Heartbeat, Committed, r.Finished,
        r.Ask, r.Notes, r.Leave, r.Ended,
    ),
    "a loss": (
        r.Hello, r.Welcome, *BEGINNING, r.Open, Committed, r.Ask, r.OpenTexts, r.EndProcess,
        r.Ended, *BEGINNING, r.Open,
    ),
    "a failure": (r.Hello, r.Welcome, *BEGINNING, r.Open, r.Failed, r.Ended),
}  # fmt: skip
"""Records in their order, by the comment that stands before each on the page."""


def table() -> str:
    """The table of records in Markdown."""
    names = ("record", "from", "to", "in states", "then", "bytes", "answers", "else", "fields")
    sheet = Sheet("", words(*names))
    for rule in r.TABLE:
        states = {r.ANY: "any", r.WORKING: "any but started"}.get(rule.states)
        sheet.add(
            rule.kind.__name__,
            rule.sender,
            rule.receiver,
            states or ", ".join(rule.states),
            rule.then or "",
            f"2^{rule.most_bytes.bit_length() - 1}",
            rule.answers.__name__ if rule.answers else "",
            rule.otherwise,
            ", ".join(field.name for field in fields(rule.kind)),
        )
    return sheet.markdown().partition("\n\n")[2]


def drawn(sequence: Sequence[type]) -> str:
    """Draw records between the ends; ``AssertionError`` if the table does not let one come then."""
    return "\n".join(_arrows(sequence))


def _arrows(sequence: Sequence[type]) -> Iterator[str]:
    yield f"{'daemon':<12}{'coordinator':^24}{'worker':>12}   states"
    states: dict[str, r.State] = {"daemon": "apart", "worker": "over"}
    for kind in sequence:
        other = "worker" if states["worker"] != "over" and kind not in (r.Start, r.Ended) else ""
        rules = [rule for rule in r.TABLE if rule.kind is kind]
        rule = next((each for each in rules if other in (each.sender, each.receiver)), rules[0])
        other = rule.sender if rule.receiver == "coordinator" else rule.receiver
        assert states[other] in rule.states, f"{kind.__name__} where the line is {states[other]}"
        before, states[other] = states[other], rule.then or states[other]
        if kind in (r.Start, r.EndProcess, r.Ended):
            states["worker"] = "started" if kind is r.Start else "over"
        left = (other == "daemon") == (rule.sender == "coordinator")
        arrow = f"<{kind.__name__:-^20}-" if left else f"-{kind.__name__:-^20}>"
        place = f"{arrow:<48}" if other == "daemon" else f"{'':<24}{arrow:<24}"
        then = f" -> {states[other]}" if states[other] != before else ""
        yield f"{place}   {other} {before}{then}"


def with_protocol(text: str) -> str:
    """Replace the page's table and sequences by those of the tool."""
    parts = {"records": f"{table()}\n"}
    parts |= {name: f"```text\n{drawn(each)}\n```\n" for name, each in SEQUENCES.items()}
    return with_parts(text, parts)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_protocol(page.read_text(encoding="utf-8")), encoding="utf-8")
