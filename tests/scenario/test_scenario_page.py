"""What is written about scenarios holds: ``docs/scenario.md`` against the schema, key by key, and
every example in the docs and every shipped file is read as it stands."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from treepipe.core.schedules import systems
from treepipe.files.toml_file import read_toml
from treepipe.planner.cluster import Cluster
from treepipe.profiles import schema
from treepipe.profiles.library import LIBRARY
from treepipe.profiles.shapes import Shape
from treepipe.scenario import distributions
from treepipe.scenario import schema as scenario
from treepipe.scenario.faults import FaultsSection, InjectedFault
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict

ROOT = Path(__file__).parents[2]
STUDIES = LIBRARY.parent / "studies"
PAGE = ROOT / "docs" / "scenario.md"
SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "The scenario file": (Scenario,),
    "Models": (scenario.Model,),
    "Draft servers, pipelines, hosts": (
        scenario.DraftSection,
        scenario.Pipeline,
        scenario.Stage,
        scenario.HostSection,
    ),
    "Devices": (
        schema.Device,
        schema.Hardware,
        schema.ExtendedDevice,
        schema.Power,
        schema.Roofline,
        schema.LayerTime,
        schema.MeasuredTime,
        schema.FitError,
        Shape,
    ),
    "Links": (scenario.Links, scenario.Pair, schema.Link, schema.ExtendedLink),
    "`[schedule]`": (scenario.ScheduleSection,),
    "`[acceptance]`": (
        scenario.Bernoulli,
        scenario.HitRatio,
        scenario.PoolSection,
        scenario.Replay,
    ),
    "`[sampling]`": (scenario.SamplingSection,),
    "`[workload]` and `[serving]`": (
        scenario.Workload,
        scenario.ServingSection,
        scenario.SloSection,
    ),
    "Load": (
        distributions.Uniform,
        distributions.LogNormal,
        distributions.Geometric,
        distributions.Poisson,
        distributions.Gamma,
        distributions.ArrivalTrace,
    ),
    "`[scale]`": (scenario.ScaleSection,),
    "`[run]`": (scenario.RunSection,),
    "`[faults]`": (FaultsSection, InjectedFault),
}
"""Which tables of the file each part of the page describes."""
BEFORE_THE_SCHEMA = {("`[acceptance]`", "name")}
"""Keys that reading the file replaces by others."""


def written() -> set[tuple[str, str]]:
    """(Heading, key) of the first column of every table of keys; ``a.b`` is the key b."""
    found, heading, inside = set[tuple[str, str]](), "", False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        inside = line.startswith("|") and (inside or line.startswith("| key |"))
        if inside:
            names = re.findall(r"`([\w.]+)`", line.split("|")[1])
            found |= {(heading, name.split(".")[-1]) for name in names}
    return found


def nested(annotation: Any) -> Iterator[type[BaseModel]]:
    """All tables that a type annotation allows, at whatever place inside it."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for argument in typing.get_args(annotation):
        yield from nested(argument)


def reachable(model: type[BaseModel]) -> set[type[BaseModel]]:
    """The table itself and all that stand inside it."""
    found, left = set[type[BaseModel]](), [model]
    while left:
        model = left.pop()
        if model not in found:
            found.add(model)
            for field in model.model_fields.values():
                left += nested(field.annotation)
    return found


def test_every_table_of_the_file_has_a_place_on_the_page() -> None:
    placed = {model for models in SECTIONS.values() for model in models}
    assert placed == reachable(Scenario)


@pytest.mark.parametrize("heading", SECTIONS)
def test_the_page_and_the_schema_have_the_same_keys(heading: str) -> None:
    on_page = {key for place, key in written() - BEFORE_THE_SCHEMA if place == heading}
    in_schema = {key for model in SECTIONS[heading] for key in model.model_fields}
    assert on_page == in_schema


def test_every_system_is_on_the_page_and_has_a_scenario() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"\| `name` \| system .*?\n\n", text, re.S)
    on_page = {
        name for row in table.split("\n|")[2:] for name in re.findall(r"`(\w+)`", row.split("|")[0])
    }
    assert on_page == set(systems())
    for name in on_page:
        assert (STUDIES / "scenarios" / f"{name}.toml").is_file()


def test_no_table_of_keys_stands_elsewhere() -> None:
    assert {heading for heading, _ in written()} == set(SECTIONS)


def examples() -> list[tuple[str, str]]:
    """(Where, text) of the TOML examples of the docs."""
    found = []
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, text in enumerate(re.findall(r"```toml\n(.*?)```", file.read_text(), re.S)):
            found.append((f"{file.name}-{number}", text))
    return found


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in examples()])
def test_examples_in_the_docs_are_whole_scenarios(text: str, tmp_path: Path) -> None:
    path = tmp_path / "example.toml"
    path.write_text(text)
    if "./code.toml" in text:  # the only file that is read with the scenario itself
        shipped = LIBRARY / "acceptance" / "reference.toml"
        path.write_text(text.replace("./code.toml", str(shipped)))
    data = read_toml(path)
    (Cluster if "search" in data else Scenario).load(path)


SCENARIOS = sorted((STUDIES / "scenarios").glob("*.toml"))
FEW = ("runs=1", "workload.requests=1", "workload.new_tokens=6")


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_simulate(path: Path) -> None:
    (trace,) = predict(Scenario.load(path, FEW))
    assert [len(request.tokens) for request in trace.requests] == [6]
    of_runs = ("read only in a run", "read only where something is drafted (schedule.name)")
    assert not [w for w in trace.warnings if "no effect" in w and not w.endswith(of_runs)]
