"""What a result says of its inputs: the same sentences, whichever command made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.theory_scenarios import Written
from treepipe.core.errors import UserError
from treepipe.scenario.resolve import deploy, input_warnings
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sim.theory.closed_form import closed_form

ESTIMATED = (
    'target={profile="llama-3.2-1b"}',
    'drafts=[{device="jetson-agx-orin",model={profile="llama-3.2-1b"}}]',
    'pipelines=[{stages=[{device="l40"},{device="jetson-agx-orin"}]}]',
    'links={default="wifi"}',
    "workload={new_tokens=3}",
)


def test_simulation_and_theory_say_the_same_of_estimates_in_one_line(tmp_path: Path) -> None:
    written = Written(tmp_path, "chain", *ESTIMATED, "schedule.width=3")
    deployment = deploy(written.scenario)
    expected = input_warnings(written.scenario, deployment)
    assert (
        "inputs are estimates: device jetson-agx-orin ±40 %, device l40 ±40 %, link wifi ±100 %; "
        "the intervals of runs do not include this"
    ) in expected
    (trace,) = written.simulated()
    assert set(expected) <= set(trace.warnings)
    assert set(expected) <= set(written.expected().warnings)
    assert "key schedule.width has no effect on chain" in expected


def test_devices_of_which_the_same_is_true_share_a_sentence(tmp_path: Path) -> None:
    written = Written(tmp_path, "chain", *ESTIMATED)
    deployment = deploy(written.scenario)
    layers = [w for w in deployment.warnings if "no layer was measured" in w]
    assert len(layers) == 1
    assert layers[0].startswith("devices jetson-agx-orin, l40: ")


def test_measured_inputs_are_no_estimates(tmp_path: Path) -> None:
    verified = "drafts=[{ device = { draft_ms = { 1 = 3.0 } } }]"
    written = Written(tmp_path, "pp", verified)
    deployment = deploy(written.scenario)
    told = input_warnings(written.scenario, deployment)
    assert all("no effect" in each for each in told)


@pytest.mark.parametrize("schedule", ["pp", "chain"])
@pytest.mark.parametrize(
    ("last", "told"), [(1, " with a fall, so its last time was held"), (30, "")]
)
def test_a_table_that_goes_on_says_so_and_a_falling_one_holds_its_last_time(
    tmp_path: Path, schedule: str, last: int, told: str
) -> None:
    stages = f"pipelines=[{{stages=[{{device={{stage_ms={{1=20,4={last}}}}},count=2}}]}}]"
    written = Written(tmp_path, schedule, stages, "workload.prompt_tokens=64")
    (trace,) = written.simulated()
    assert min(span.end_ms - span.start_ms for span in trace.spans if span.kind == "compute") >= 1
    expected = "compute times were extrapolated to 64 tokens, the table ends at 4" + told
    assert f"pipeline0.stage1: {expected}" in trace.warnings


def test_a_token_count_far_outside_the_table_is_refused(tmp_path: Path) -> None:
    short = "pipelines=[{stages=[{device={stage_ms={1=5,2=6}},count=2}]}]"
    prompt = ("workload.prompt_tokens=150", "schedule.prefill_chunk=200")
    with pytest.raises(UserError, match="150 tokens, far outside their table, which ends at 2"):
        Written(tmp_path, "pp", short, *prompt).simulated()


def test_a_scenario_without_any_time_has_a_prediction(tmp_path: Path) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(
        'name = "zero"\n[target]\n[[drafts]]\ndevice = { draft_ms = { 1 = 0.0 } }\n[[pipelines]]\n'
        "stages = [{ device = { stage_ms = { 1 = 0.0 } } }]\n[links]\ndefault.latency_ms = 0\n"
        '[schedule]\nname = "chain"\n[acceptance]\nsource = "bernoulli"\nbeta = 0.5\n'
    )
    scenario = Scenario.load(path)
    (trace,) = predict(scenario)
    assert [len(request.tokens) for request in trace.requests] == [64]
    with pytest.raises(UserError, match="no closed form applies: a round of one token takes no"):
        closed_form(scenario)


def test_a_checkpoints_hidden_states_have_bytes(tmp_path: Path) -> None:
    """Its ``config.json`` tells the width; without it links would carry ids alone."""
    named = Written(tmp_path, "pp", 'target={checkpoint="reference"}').scenario
    told = Written(tmp_path, "pp", "target={layers=8,hidden_size=192}").scenario
    assert deploy(named).roles.row_bytes == deploy(told).roles.row_bytes == 4 * 192


def test_factors_and_cases_without_effect_are_told_or_refused(tmp_path: Path) -> None:
    plain = Written(tmp_path, "pp", "scale.misses=2").scenario
    words = "have no effect: they are read only where something is drafted (schedule.name)"
    assert f"keys acceptance, scale.misses {words}" in input_warnings(plain, deploy(plain))
    with pytest.raises(UserError, match=r"key scale.stages"):
        Written(tmp_path, "pp", "scale.stages=1e308")
