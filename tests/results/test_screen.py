"""A screen of any answer: its lines, its columns, what is counted, and a notebook's."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.examples import examples
from treepipe.results.screen import COLUMNS, LINES, ROWS, WARNINGS, Screen, Shown
from treepipe.results.sheet import Sheet, figures, words

SAID = st.lists(st.text("ab 1.;", min_size=1, max_size=400), max_size=12)
CELLS = st.tuples(st.text("xyz ", min_size=1, max_size=60), *[st.text("0123.", max_size=24)] * 4)


def made(rows: list[tuple[str, ...]], notes: list[str], warnings: list[str]) -> Screen:
    table = Sheet("t", [*words("plan"), *figures("ms", "gap", "95 %", "best in")], [*rows])
    return Screen("the answer", table, notes, warnings, ["acceptance (beta = 0.7), as nobody says"])


@examples(200)
@given(st.lists(CELLS, max_size=30), SAID, SAID, st.sampled_from([80, 100, 160]))
def test_a_screen_has_its_lines_and_columns_and_a_row_is_a_line(
    rows: list[tuple[str, ...]], notes: list[str], warnings: list[str], width: int
) -> None:
    lines = made(rows, notes, warnings).lines(width, "--verbose")
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("Taking acceptance (beta = 0.7) as exact: the answer.")
    assert sum(line.startswith("Warning: ") for line in lines) <= WARNINGS


def test_what_a_screen_leaves_out_is_counted_and_a_notebook_has_it() -> None:
    rows = [(f"plan {n}", f"{n}.5", "", "", "") for n in range(ROWS + 4)]
    screen = made(rows, ["Binds: a."], [f"{n} is odd" for n in range(5)])
    *_, last = screen.lines(COLUMNS, "--verbose")
    assert last == "--verbose shows: 4 more rows, 3 more warnings."
    assert screen.lines()[-1] == "Not shown: 4 more rows, 3 more warnings."
    page = screen.html()
    assert page.startswith(f"<p><b>{screen.answer}</b></p><table>")
    assert page.count("Warning: ") == 6
    assert page.index("<details>") < page.index("Warning: 3 is odd")
    assert re.search(r'<td style="text-align:right">0\.5</td>', page)


def test_cells_are_cut_and_columns_left_out_only_where_a_line_has_no_room() -> None:
    columns = [*words("plan", "split"), *figures("ms", "gap")]
    name, split = "a-system-of-a-long-name", "layers over 2, tensors over 4"
    sheet = Sheet("", columns, [(name, split, "12.5", "+3.0%"), ("pp", "one box", "20", "")])
    (head, first, second), cut = sheet.plain(80)
    assert not cut
    assert first == f"{name}  {split}  12.5  +3.0%"
    assert head.index("ms") + 2 == first.index("12.5") + 4 == second.index("20") + 2
    lines, cut = sheet.plain(64)
    assert (lines[1], cut) == (f"{name}  {split[:25]}…  12.5  +3.0%", 1)
    lines, cut = sheet.plain(54)
    assert (lines[1], cut) == (f"{name}  {split}", 2)


class Answered(Shown):
    @property
    def screen(self) -> Screen:
        return made([], [], [])


def test_a_console_and_a_notebook_show_the_screen() -> None:
    answered = Answered()
    assert repr(answered).splitlines() == answered.screen.lines()
    assert answered._repr_html_() == answered.screen.html()
    with pytest.raises(NotImplementedError):
        _ = Shown().screen
