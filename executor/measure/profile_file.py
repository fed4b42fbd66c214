"""Writing a profile as TOML: never over another file unasked, and whole or not at all.

Only the form of the file belongs here; what it says is in ``device_file.py``, ``links.py`` and
``acceptance.py``.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from treepipe.files.outputs import check_outputs, write_file
from treepipe.files.section import Section

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
DIGITS = 5
"""Of a figure; times are not known better."""


def claim(out: Path, force: bool) -> None:
    """Raises ``UserError`` if ``--out`` may not or cannot be written; asked before measuring."""
    check_outputs({"--out": out}, keep=() if force else ("--out",))


def write_profile(profile: Section, heading: str, out: Path) -> None:
    """Write a profile; what was there before stays until the new one is complete.

    Args:
        heading: one line about the file.
    """
    write_file(out, "\n".join([f"# {heading}", *_lines(profile)]) + "\n", "--out")


def _lines(profile: Section) -> Iterator[str]:
    """Plain keys first, as TOML asks; then the origin, then what is measured."""
    data = profile.model_dump(exclude_defaults=True)
    plain = {key: value for key, value in data.items() if not _opens_table(key, value)}
    yield from _assignments(plain)
    for key, value in sorted(data.items(), key=lambda item: item[0] != "origin"):
        if key not in plain:
            for table in value if isinstance(value, (tuple, list)) else [value]:
                yield ""
                yield f"[[{key}]]" if isinstance(value, (tuple, list)) else f"[{key}]"
                yield from _assignments(table)


def _opens_table(key: str, value: Any) -> bool:
    """Whether a value gets a heading of its own rather than a line."""
    if isinstance(value, (tuple, list)):
        return any(isinstance(each, Mapping) for each in value)
    return key in ("origin", "roofline")


def _assignments(table: Mapping[str, Any]) -> Iterator[str]:
    """A line per key; a table of tables comes last, with a line per inner table."""
    nested = {
        key: any(isinstance(inner, Mapping) for inner in value.values())
        for key, value in table.items()
        if isinstance(value, Mapping)
    }
    for key, value in sorted(table.items(), key=lambda item: nested.get(item[0], False)):
        if nested.get(key):
            for inner, content in value.items():
                yield f"{key}.{_key(inner)} = {_value(content)}"
        elif value is not None:
            yield f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inner} }}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, (int, datetime.date)):
        return str(value)
    return json.dumps(str(value), ensure_ascii=False)


def _key(key: object) -> str:
    text = f"{key:g}" if isinstance(key, float) else str(key)
    return text if BARE_KEY.fullmatch(text) else json.dumps(text)
