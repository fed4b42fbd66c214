"""A study's page: the sentences of its ``page.md``, filled with its own and the papers' figures.

A template lists sentences: findings first, then those under each heading. Its fields are Python's:
``{now[KEY]:.1f}`` is the predicted figure of the entry KEY, ``{low[KEY]}`` and ``{high[KEY]}`` its
interval, ``{paper[specpipe][prune_ms]}`` one of ``published.toml``; all others are the study's own.
A sentence with a figure that this size of the study does not have (None, or no such entry) is left
out.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treepipe.files.sentences import sentences
from treepipe.studies.study import Entry


@dataclass(frozen=True, slots=True)
class Page:
    """A template's sentences: findings, and the further lists by their headings."""

    findings: list[str]
    sections: dict[str, list[str]]


class _Absent(Exception):  # noqa: N818
    """A sentence asks for a figure that there is none of."""


class _Figures(dict[str, float | None]):
    def __missing__(self, key: str) -> float:
        raise _Absent


class _Formatter(string.Formatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        value, used = super().get_field(field_name, args, kwargs)
        if value is None:
            raise _Absent
        return value, used


def fill(template: Path, entries: Sequence[Entry], values: Mapping[str, Any]) -> Page:
    """Args: ``values``: fields by their names, besides the entries'; ``paper`` among them.

    Raises:
        KeyError: the template has a field that nobody knows.
    """
    fields = {
        "now": _Figures({entry.key: entry.predicted for entry in entries}),
        "low": _Figures({entry.key: entry.low for entry in entries}),
        "high": _Figures({entry.key: entry.high for entry in entries}),
        **values,
    }
    page = Page([], {})
    for heading, templates in sentences(template.read_text(encoding="utf-8")).items():
        place = page.sections.setdefault(heading, []) if heading else page.findings
        for each in templates:
            try:
                place.append(_Formatter().vformat(each, (), fields))
            except _Absent:
                continue
    return page


def listed(values: Mapping[str, str]) -> str:
    """
    >>> listed({"width 8": "12.0 ms", "width 16": "11.0 ms"})
    'width 8: 12.0 ms, width 16: 11.0 ms'
    """
    return ", ".join(f"{name}: {value}" for name, value in values.items())
