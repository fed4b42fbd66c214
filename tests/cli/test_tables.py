"""Tables on the terminal: times in a unit that suits them, and no name cut however narrow it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.worlds.command_line import USUAL_METRICS, Terminal
from treepipe import Comparison, Result, compare, simulate
from treepipe.results.show import print_screen
from treepipe.results.units import Scale, number
from treepipe.scenario.scenario import Scenario

PAGED = "serving={cache='paged',cache_tokens=9999}"
SLOW = "pipelines.0.stages.0.device={stage_ms={1=20000.0}}"


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (0.0, "0 ms"),
        (0.004, "4 µs"),
        (0.05, "0.05 ms"),
        (999.0, "999 ms"),
        (33560.0, "33.56 s"),
        (119900.0, "119.9 s"),
        (207900.0, "3.465 min"),
        (-33560.0, "-33.56 s"),
        (4.32e7, "12 h"),
        (4.32e11, "120,000 h"),
    ],
)
def test_times_are_shown_in_the_unit_that_suits_them(ms: float, shown: str) -> None:
    scale = Scale.of("ms", ms)
    assert f"{number(ms / scale.size)} {scale.unit}" == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (123456.7, "123,457"),
        (9999.6, "10,000"),
        (1234.5, "1,234"),
        (0.5, "0.5"),
        (3e-7, "0.0000003"),
    ],
)
def test_numbers_have_no_powers_of_ten(value: float, shown: str) -> None:
    assert number(value) == shown
    assert Scale.of("tokens/s", value) == Scale(1.0, "tokens/s")


def shown_at(width: int, found: Result | Comparison) -> str:
    shown = Console(width=width)
    with shown.capture() as captured:
        print_screen(found.screen, verbose=True, shown=shown)
    return captured.get()


CHANGES: dict[str, dict[str, Any]] = {
    "result": {},
    "versus": {},
    "targets": {"pipelines.0.count": 2, "workload.concurrency": 2},
}


@pytest.fixture(params=CHANGES)
def found(request: pytest.FixtureRequest, scenario: Path) -> Result | Comparison:
    each = Scenario.load(scenario, [SLOW, PAGED, "runs=3"]).with_(**CHANGES[request.param])
    if request.param == "versus":
        return compare(each, each.with_(**{"schedule.tree_size": 8}))
    return simulate(each)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_names_and_numbers_are_whole_at_every_width(width: int, found: Result | Comparison) -> None:
    text = shown_at(width, found)
    assert all(name.removesuffix("_ms") in text for name in USUAL_METRICS)
    assert "recomputed_tokens_per_request" in text, "the longest name"
    assert not re.search(r"\w…|\de[+-]\d", text)  # nothing cut, no powers of ten
    assert max(map(len, text.splitlines())) <= width
    if isinstance(found, Result) and found.targets:
        assert "fairness" in text
        assert all(f"pipeline{n}" in text for n in (0, 1))


def test_a_row_is_in_one_unit_and_the_file_in_milliseconds(found: Result | Comparison) -> None:
    first = found.a if isinstance(found, Comparison) else found
    metric = first.metrics["request_latency_ms"]
    assert metric.unit == "ms"
    assert metric.mean == pytest.approx(203_450, rel=1e-3)
    (row,) = (line for line in shown_at(160, found).splitlines() if "request_latency" in line)
    cells = re.split(r"  +", row.strip())
    assert "min" in cells
    assert cells[1] == number(metric.mean / 60e3)
    if first is found:
        assert cells[2] == f"{number(metric.low / 60e3)} … {number(metric.high / 60e3)}"


@pytest.mark.parametrize("name", ["[/b]", "[red]hot", ":x:"])
def test_what_a_user_named_is_shown_as_it_is(name: str, scenario: Path, terminal: Terminal) -> None:
    """Brackets and colons are no styles and no pictures, on either stream."""
    named = ("simulate", scenario, "--runs", 1, "--set", f'name="{name}"')
    assert f"{name}, schedule flowspec: predicted" in terminal.succeeds(*named)
    terminal.refuses(f"{name}: there is no such file", "simulate", name)
