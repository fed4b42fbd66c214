"""Sweeps: what is simulated, what a row says, and that an interrupted one loses and repeats nothing
but what was under way."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treepipe
from tests.worlds.command_line import Terminal
from tests.worlds.profile_files import model_file
from tests.worlds.written_studies import say
from treepipe.core.errors import UserError
from treepipe.planner.cluster import Cluster
from treepipe.profiles.library import LIBRARY
from treepipe.results.metrics import run_metrics
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sweeps import sweep as sweeping
from treepipe.sweeps.sweep import MANIFEST, Dimension, Sweep, SweepResult, SweepSection, carry_out

pytest.importorskip("pyarrow")

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((LIBRARY.parent / "studies" / "sweeps").glob("*.toml"))
PAGE = ROOT / "docs" / "sweeps.md"
BASE: dict[str, Any] = {
    "name": "small",
    "seed": 3,
    "target": {"profile": model_file(4, 1.0, 4.0)},
    "drafts": [{"device": {"draft_ms": {"1": 3.0}}}],
    "pipelines": [{"stages": [{"device": {"stage_ms": {"1": 20.0}}, "count": 2}]}],
    "schedule": {"name": "chain"},
    "acceptance": {"source": "bernoulli", "beta": 0.6},
    "workload": {"new_tokens": 6},
}
SIZES = {"workload.new_tokens": [4, 6, 8], "schedule.gamma": [1, 2]}
TOML = """
name = "small"
target.layers = 4
pipelines = [{ stages = [{ device = { stage_ms = { 1 = 20.0 } }, count = 2 }] }]
schedule.name = "pp"
workload.new_tokens = 4
[sweep.grid]
links.default.latency_ms = [0, 1.5]
"""


def swept(out: Path, **section: Any) -> SweepResult:
    return carry_out(sweep_of(**section), out, say)


def sweep_of(**section: Any) -> Sweep:
    return Sweep.of({**BASE, "sweep": section})


def rows(found: SweepResult) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = found.table().to_pylist()
    return listed


# --- which scenarios ------------------------------------------------------------------------------


SAMPLES = st.integers(1, 40)


def test_a_grid_is_all_combinations() -> None:
    sweep = sweep_of(grid=SIZES)
    found = [tuple(sweep.changes(index).values()) for index in range(len(sweep))]
    assert found == list(itertools.product(*SIZES.values()))


@given(st.floats(0.01, 0.4), st.floats(0.5, 1.0), st.sampled_from(["linear", "log"]), SAMPLES)
def test_a_hypercube_has_a_sample_in_each_part_of_every_range(
    low: float, high: float, scale: str, samples: int
) -> None:
    ends = {"low": low, "high": high, "scale": scale}
    keys = ("scale.latency", "acceptance.beta")
    sweep = sweep_of(latin_hypercube=dict.fromkeys(keys, ends), samples=samples)
    measure = math.log if scale == "log" else float
    width = measure(high) - measure(low)
    orders = []
    for key in keys:
        values = [sweep.changes(index)[key] for index in range(len(sweep))]
        orders.append([samples * (measure(value) - measure(low)) // width for value in values])
        assert sorted(orders[-1]) == list(range(samples))
    assert samples < 10 or orders[0] != orders[1]


def test_a_key_of_whole_numbers_gets_whole_numbers_each_as_often() -> None:
    ranges = {"schedule.gamma": {"low": 2, "high": 5}, "acceptance.beta": {"low": 0, "high": 1}}
    sweep = sweep_of(latin_hypercube=ranges, samples=20)
    found = [sweep.changes(index) for index in range(len(sweep))]
    gammas = [each["schedule.gamma"] for each in found]
    assert sorted(gammas) == [2] * 5 + [3] * 5 + [4] * 5 + [5] * 5
    assert all(isinstance(gamma, int) for gamma in gammas)
    assert len({each["acceptance.beta"] for each in found}) == 20


def test_samples_are_the_same_in_every_combination_and_by_the_sweep_s_seed() -> None:
    section = {"latin_hypercube": {"acceptance.beta": {"low": 0.2, "high": 0.9}}, "samples": 3}
    sweep = sweep_of(grid={"seed": [1, 2]}, **section)
    drawn = [sweep.changes(index)["acceptance.beta"] for index in range(len(sweep))]
    assert drawn[::2] == drawn[1::2]
    assert len({*drawn}) == 3
    assert sweep_of(grid={"seed": [1, 2]}, **section).hypercube == sweep.hypercube
    assert sweep_of(seed=1, **section).hypercube != sweep.hypercube


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ({}, "nothing to vary"),
        ({"gird": {"seed": [1]}}, "key sweep.gird is unknown; did you mean 'grid'?"),
        ({"grid": {"schedule.gama": [1]}}, "key schedule.gama is unknown; did you mean 'gamma'?"),
        ({"grid": {"workload": [{"new": 1}, {"x": 2}]}}, "key workload.new has no unit"),
        ({"grid": {"seed": []}}, "key sweep.grid.seed = []: must not be empty"),
        ({"grid": {"seed": 3}}, "key sweep.grid.seed = 3: must be a list"),
        ({"grid": {"pipelines.4.count": [1]}}, "pipelines.4 is not a table"),
        ({"grid": {"sweep.seed": [1]}}, "sweep.seed is no key of a scenario"),
        ({"grid": {"schedule": [{"name": "pp"}], "schedule.gamma": [1]}}, "contradict each other"),
        ({"grid": {"seed": [1]}, "samples": 4}, "latin_hypercube and samples go together"),
        ({"grid": {"runs": [0]}}, "key runs = 0"),
        (
            {"grid": {"seed": [*range(3000)], "workload.new_tokens": [*range(1, 4000)]}},
            "asks for 11,997,000 scenarios, of which a sweep has at most 10,000,000; give fewer, "
            "first of sweep.grid.workload.new_tokens, which has 3,999",
        ),
        ({"grid": {f"scale.{n}": [*range(99)] for n in range(99)}}, "for over 10^18 scenarios"),
        (
            {"latin_hypercube": {"scale.latency": {"low": 2, "high": 1}}, "samples": 4},
            "low = 2 must be less than high = 1",
        ),
        (
            {"latin_hypercube": {"scale.latency": {"low": 0, "high": 1, "scale": "log"}}},
            "low = 0 must be positive where scale is 'log'",
        ),
        (
            {"latin_hypercube": {"schedule.gamma": {"low": 1.5, "high": 4}}, "samples": 4},
            "key schedule.gamma = 1.5: input should be a valid integer",
        ),
    ],
)
def test_a_wrong_file_is_one_sentence(section: dict[str, Any], part: str) -> None:
    with pytest.raises(UserError, match=re.escape(part)) as raised:
        sweep_of(**section)
    assert "\n" not in str(raised.value)


def test_a_setting_that_the_sweep_varies_is_refused(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(TOML)
    for setting in ("links.default.latency_ms=3", "links.default={}"):
        with pytest.raises(UserError, match=r"the sweep varies links\.default\.latency_ms itself"):
            Sweep.load(tmp_path / "grid.toml", [setting])
    assert Sweep.load(tmp_path / "grid.toml", ["seed=5"]).base["seed"] == 5


# --- what a row says ------------------------------------------------------------------------------


@pytest.mark.long
def test_a_row_s_metrics_are_those_of_simulate(tmp_path: Path) -> None:
    found = rows(swept(tmp_path, grid={**SIZES, "workload.requests": [1, 25]}))
    assert len(found) == 12
    for row in found:
        changes = {key: row[key] for key in (*SIZES, "workload.requests")}
        result = treepipe.simulate(Scenario.of(BASE).with_(**changes))
        told = {name: row[name] for name in result.metrics}
        assert told == pytest.approx({name: m.mean for name, m in result.metrics.items()})
        others = {*treepipe.results.metrics.METRICS} - {*result.metrics}
        assert all(row[name] is None for name in others)
        shares = {name: share.mean for name, share in result.utilization.items()}
        assert dict(row["utilization"]) == pytest.approx(shares)
        assert row["error"] is None


def test_every_replication_has_its_row(tmp_path: Path) -> None:
    found = rows(swept(tmp_path, grid={"runs": [1, 3]}))
    assert [(row["runs"], row["replication"]) for row in found] == [(1, 0), (3, 0), (3, 1), (3, 2)]
    assert [row["scenario_index"] for row in found] == [0, 1, 1, 1]
    traces = predict(Scenario.of(BASE).with_(runs=3))
    for row, trace in zip(found[1:], traces, strict=True):
        expected = run_metrics(trace)
        assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_what_is_refused_is_a_row_that_says_why(tmp_path: Path) -> None:
    small = {"stage_ms": {"1": 20.0}, "memory_mib": 0.5}
    devices = [{"stage_ms": {"1": 20.0}}, small]
    key = "pipelines.0.stages.0.device"
    found = swept(tmp_path, grid={key: devices, "schedule.name": ["pp", "chian"]})
    fits, unknown, full, _ = rows(found)
    assert fits["error"] is None
    assert fits["time_between_tokens_ms"] > 0
    assert "there is no such system" in unknown["error"]
    assert "but its device has 0.5 MiB" in full["error"]
    assert json.loads(full[key]) == small
    assert (full["replication"], full["time_between_tokens_ms"]) == (None, None)
    assert (found.rows, found.refused) == (4, 3)
    assert sum(found.reasons.values()) == 3


def test_varied_keys_are_columns_and_all_files_have_the_same(tmp_path: Path) -> None:
    from pyarrow import parquet

    grid = {"workload.new_tokens": [4, {"uniform": [2, 4]}], "drafts.0.count": [1, 2]}
    found = swept(tmp_path, grid=grid)
    schemas = [parquet.read_schema(file) for file in found.files]
    assert len(schemas) == 4
    assert all(schema.equals(schemas[0], check_metadata=True) for schema in schemas)
    assert [(row["drafts.0.count"], row["workload.new_tokens"]) for row in rows(found)] == [
        (1, "4"), (2, "4"), (1, '{"uniform": [2, 4]}'), (2, '{"uniform": [2, 4]}')
    ]  # fmt: skip
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert manifest["scenario"] == BASE, "all other keys"
    units = {field.name: (field.metadata or {}).get(b"unit") for field in schemas[0]}
    assert units["throughput_tokens_s"] == b"tokens/s"


# --- the folder -----------------------------------------------------------------------------------


def interrupted_after(batches: int) -> Callable[[str, int], None]:
    left = [batches]

    def press(what: str, steps: int) -> None:
        left[0] -= not what
        if not left[0]:
            raise KeyboardInterrupt

    return press


def test_an_interrupted_sweep_simulates_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = swept(tmp_path / "whole", grid=SIZES)
    sweep, begun = sweep_of(grid=SIZES), list[dict[str, Any]]()
    rows_of = sweeping.batch_rows

    def counted(base: Any, changes: Any, path: Path) -> Any:
        begun.extend(map(dict, changes))
        return rows_of(base, changes, path)

    monkeypatch.setattr(sweeping, "batch_rows", counted)
    with pytest.raises(KeyboardInterrupt):
        carry_out(sweep, tmp_path / "cut", interrupted_after(4))
    first = len(begun)
    assert 4 <= first < 6
    resumed = carry_out(sweep, tmp_path / "cut", say)
    assert resumed.simulated == 2
    assert begun[first:] == [sweep.changes(4), sweep.changes(5)]
    assert resumed.table().equals(whole.table())
    assert carry_out(sweep, tmp_path / "cut", say).simulated == 0
    assert len(begun) == first + 2


def test_a_batch_that_was_lost_is_simulated_again(tmp_path: Path) -> None:
    whole = swept(tmp_path, grid=SIZES)
    expected = whole.table()
    whole.files[2].unlink()
    again = swept(tmp_path, grid=SIZES)
    assert (again.simulated, again.scenarios) == (1, 6)
    assert again.table().equals(expected)


def test_another_sweep_s_folder_is_refused(tmp_path: Path) -> None:
    swept(tmp_path, grid=SIZES)
    other = sweep_of(grid={"schedule.gamma": [1]})
    with pytest.raises(UserError, match=r"holds results of another sweep; .* with --force"):
        carry_out(other, tmp_path, say)
    assert carry_out(other, tmp_path, say, force=True).rows == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something else than an earlier sweep"):
        carry_out(other, tmp_path / "mine", say, force=True)


def test_results_with_another_profile_are_not_added_to(tmp_path: Path) -> None:
    profile, out = tmp_path / "mine.toml", tmp_path / "out"
    shipped = (LIBRARY / "devices" / "emulated-20ms.toml").read_text()
    key = "pipelines.0.stages.0.device"
    content = {**copy.deepcopy(BASE), "sweep": {"grid": {key: ["./mine.toml", "emulated-20ms"]}}}
    profile.write_text(shipped)
    sweep = Sweep.of(content, tmp_path / "grid.toml")
    carry_out(sweep, out, say)
    profile.write_text(shipped.replace("20.0", "30.0"))
    with pytest.raises(UserError, match="with other profiles or files"):
        carry_out(sweep, out, say)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_sweeps_resumes_and_tells(terminal: Terminal) -> None:
    Path("grid.toml").write_text(TOML)
    asked = ("sweep", "grid.toml", "--out", "out")
    shown = terminal.succeeds(*asked, "--json", "told.json")
    assert shown.startswith("2 scenarios, 2 rows in out; the least time between tokens, ")
    told = json.loads(Path("told.json").read_text())
    manifest = json.loads(Path("out", MANIFEST).read_text())
    assert manifest.items() <= told.items()
    assert (told["schema"], told["rows"], told["refused"]) == ("treepipe.sweep/1", 2, 0)
    assert "2 scenarios (2 were there already), 2 rows" in terminal.succeeds(*asked)
    terminal.refuses("holds results of another sweep", *asked, "--set", "seed=9")


def test_other_commands_refuse_a_sweep_and_it_refuses_other_files(tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    for load, text, part in (
        (Scenario.load, TOML, "is a sweep file (it has a table [sweep])"),
        (Cluster.load, TOML, "is a sweep file (it has a table [sweep])"),
        (Sweep.load, TOML.partition("[sweep")[0], "has no table [sweep]"),
        (Sweep.load, TOML + "[search]", "is a cluster file"),
    ):
        grid.write_text(text)
        with pytest.raises(UserError, match=re.escape(part)):
            load(grid)


@pytest.mark.parametrize(
    ("missing", "options", "part"),
    [
        (None, ("--backend", "slurm://127.0.0.1:9"), "must be joblib, or a running cluster's ray:"),
        (None, ("--backend", "ray"), "--backend ray: must be joblib, or a running cluster's ray:"),
        (None, ("--backend", "dask://here"), "'here' is no HOST:PORT"),
        (None, ("--backend", "ray://127.0.0.1:9"), "no ray cluster answers: "),
        (None, ("--backend", "dask://127.0.0.1:9"), "no dask cluster answers: "),
        ("pyarrow", (), "pip install 'treepipe[sweep]'"),
        ("distributed", ("--backend", "dask://PORT"), "install 'treepipe[dask]'"),
        ("ray", ("--backend", "ray://PORT"), "pip install 'treepipe[ray]'"),
    ],
)
def test_an_engine_that_is_not_there_is_one_sentence(
    missing: str | None,
    options: tuple[str, ...],
    part: str,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``PORT`` is one that somebody listens at."""
    Path("grid.toml").write_text(TOML)
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        given = [option.replace("PORT", address) for option in options]
        terminal.refuses(part, "sweep", "grid.toml", "--out", "out", *given)
    assert not Path("out").exists()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_sweeps_work(path: Path, tmp_path: Path) -> None:
    settings = ["sweep.samples=1", "workload.new_tokens=6"]
    found = carry_out(Sweep.load(path, settings), tmp_path, say)
    assert found.rows > 1
    assert not found.refused


def test_the_page_names_every_key() -> None:
    page = PAGE.read_text()
    keys = [f"sweep.{name}" for name in SweepSection.model_fields] + [*Dimension.model_fields]
    assert not [key for key in keys if f"`{key}`" not in page]
