"""What is written about scenarios holds: the tables of ``docs/scenario.md`` are the schema's, and
every example in the docs and every shipped file is read as it stands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.worlds.every_key import USUAL, every_key
from treepipe.core.errors import UserError
from treepipe.core.schedules import systems
from treepipe.files.toml_file import read_toml
from treepipe.planner.cluster import Cluster
from treepipe.profiles.library import LIBRARY
from treepipe.scenario.keys import key_facts
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.sim.predict import predict
from treepipe.studies.workshop.scenario_page import with_tables

ROOT = Path(__file__).parents[2]
STUDIES = LIBRARY.parent / "studies"
PAGE = ROOT / "docs" / "scenario.md"


def test_the_page_has_the_tables_of_the_schema() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text) == text, "make docs writes them"
    assert "| key |" not in re.sub(r"<!-- keys:.*?<!-- end -->", "", text, flags=re.S)


def test_every_key_is_told_of_with_its_meaning_at_one_place() -> None:
    """Beside another walk through the schema, which the laws on keys take."""
    told = [each.path for each in key_facts()]
    assert len(told) == len(set(told))
    assert all(each.meaning and each.values for each in key_facts())
    elsewhere = {each.path: each for each in key_facts() if " as " in each.values}
    for key in every_key(USUAL):
        path = ".".join(str(step) for step in key.place if not isinstance(step, int))
        assert key_facts(str(key))[0].path == path.replace("hosts.a.", "hosts.NAME.")
        assert path.replace("hosts.a.", "hosts.NAME.") in told or any(
            path.startswith(f"{table}.") for table in elsewhere
        )


def test_facts_of_a_key_are_those_of_its_field() -> None:
    facts = {each.path: each for each in key_facts()}
    batch, gamma = facts["serving.batch"], facts["schedule.gamma"]
    assert (batch.values, batch.default) == ('whole number ≥ 1 or "auto"', "1")
    assert batch.read.startswith("where several requests are open")
    assert (gamma.default, gamma.read) == (
        "5; 3 for engine_pp; 4 for pipeinfer; 1 for pipespec; 7 for ssd",
        "chain, engine_pp, pipeinfer, starsd, dsd, pipespec, pearl, ssd",
    )
    assert facts["schedule.score_order"].default == "true; false for naive_pp"
    assert facts["links.default.jitter"].read == "where jitter_ms is given"
    assert facts["acceptance.beta"].read == 'where source is "bernoulli"'
    assert facts["links.local"].values == "table as links.default or text"
    assert facts["faults.spares"].values == "whole number ≥ 0, ≤ 1000 or list of text"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("servng", "key servng: there is no key 'servng' here; did you mean 'serving'?"),
        (
            "serving.bach.x",
            "key serving.bach.x: there is no key 'bach' here; did you mean 'batch'?",
        ),
        ("tree_size", "key tree_size: there is no key 'tree_size' here; did you mean 'schedule.tr"),
        ("seed.qqqq", "key seed.qqqq: there is no key 'qqqq' here; there are none"),
    ],
)
def test_a_key_that_is_none_has_a_near_one(path: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        key_facts(path)
    assert str(refused.value).startswith(sentence)


def test_every_system_is_on_the_page_and_has_a_scenario() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"\| `name` \| system .*?\n\n", text, re.S)
    on_page = {
        name for row in table.split("\n|")[2:] for name in re.findall(r"`(\w+)`", row.split("|")[0])
    }
    assert on_page == set(systems())
    for name in on_page:
        assert (STUDIES / "scenarios" / f"{name}.toml").is_file()


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
    # Acceptance is the only file that is read with the scenario itself.
    path.write_text(re.sub(r'"\./(code|acceptance)\.toml"', '"reference"', text))
    data = read_toml(path)
    if "search" in data or "schedule" not in data:  # a cluster file
        Cluster.load(path)
        return
    scenario = Scenario.load(path)
    if '.toml"' not in text:  # which the reader has yet to make
        deploy(scenario)


SCENARIOS = sorted((STUDIES / "scenarios").glob("*.toml"))
FEW = ("runs=1", "workload.requests=2", "workload.new_tokens=6")


CLUSTERS = sorted((STUDIES / "clusters").glob("*.toml"))


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_shipped_clusters_are_whole_wherever_they_are_copied_to(path: Path, tmp_path: Path) -> None:
    cluster = Cluster.load(shutil.copy(path, tmp_path))
    deploy(cluster)
    assert acceptance_pool(cluster)[0].candidates > 1


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_simulate(path: Path, tmp_path: Path) -> None:
    """Wherever they are copied to."""
    (trace,) = predict(Scenario.load(shutil.copy(path, tmp_path), FEW))
    assert [len(request.tokens) for request in trace.requests] == [6, 6]
    of_runs = ("read only in a run", "read only where something is drafted (schedule.name)")
    assert not [w for w in trace.warnings if "no effect" in w and not w.endswith(of_runs)]
