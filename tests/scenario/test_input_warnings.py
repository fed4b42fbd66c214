"""What a result says of its inputs: the same sentences, whichever command made it."""

from __future__ import annotations

import pytest

from tests.worlds.theory_scenarios import Written, draft_of, stages_of
from treepipe.core.errors import UserError
from treepipe.scenario.resolve import deploy, input_warnings

BOARD = "jetson-agx-orin"
ESTIMATED = (
    'target={profile="llama-3.2-1b"}',
    'drafts=[{device="jetson-agx-orin",model={profile="llama-3.2-1b"}}]',
    'pipelines=[{stages=[{device="l40"},{device="jetson-agx-orin"}]}]',
    'links={default="wifi"}',
    "workload={new_tokens=3}",
)


def test_a_simulation_says_of_estimates_in_one_line() -> None:
    written = Written("chain", *ESTIMATED, "schedule.width=3")
    deployment = deploy(written.scenario)
    expected = input_warnings(written.scenario, deployment)
    assert (
        "inputs are estimates: device jetson-agx-orin ±40 %, device l40 ±40 %, link wifi ±100 %; "
        "the intervals of runs do not include this"
    ) in expected
    (trace,) = written.simulated()
    assert set(expected) <= set(trace.warnings)
    assert "key schedule.width has no effect on chain" in expected


def test_devices_of_which_the_same_is_true_share_a_sentence() -> None:
    written = Written("chain", *ESTIMATED)
    deployment = deploy(written.scenario)
    layers = [w for w in deployment.warnings if "no layer was measured there" in w]
    assert len(layers) == 1
    assert layers[0].startswith("devices jetson-agx-orin, l40: ")


def test_target_and_draft_of_which_the_same_is_true_share_a_sentence() -> None:
    both = [
        f"pipelines=[{{stages=[{{device={BOARD!r},count=4}}]}}]",
        'target={profile="llama-3.1-8b"}',
    ]
    written = Written("chain", *ESTIMATED, *(each.replace("'", '"') for each in both))
    (said,) = [w for w in deploy(written.scenario).warnings if "was measured there" in w]
    assert "no layer or output projection was measured there" in said
    for model in ("llama-3.1-8b", "llama-3.2-1b"):
        assert f"{model} in bfloat16" in said


def test_measured_inputs_are_no_estimates() -> None:
    verified = "drafts=[{ device = { draft_ms = { 1 = 3.0 } } }]"
    written = Written("pp", verified)
    deployment = deploy(written.scenario)
    told = input_warnings(written.scenario, deployment)
    assert all("no effect" in each for each in told)


@pytest.mark.parametrize("schedule", ["pp", "chain"])
@pytest.mark.parametrize(
    ("last", "told"), [(1, " with a fall, so its last time was held"), (30, "")]
)
def test_a_table_that_goes_on_says_so_and_a_falling_one_holds_its_last_time(
    schedule: str, last: int, told: str
) -> None:
    stages = f"pipelines=[{{stages=[{{device={{stage_ms={{1=20,4={last}}}}},count=2}}]}}]"
    written = Written(schedule, stages, "workload.prompt_tokens=64")
    (trace,) = written.simulated()
    assert min(span.end_ms - span.start_ms for span in trace.spans if span.kind == "compute") >= 1
    expected = "compute times were extrapolated to 64 tokens, the table ends at 4" + told
    assert f"pipeline0.stage1: {expected}" in trace.warnings


def test_a_token_count_far_outside_the_table_is_refused() -> None:
    short = "pipelines=[{stages=[{device={stage_ms={1=5,2=6}},count=2}]}]"
    prompt = ("workload.prompt_tokens=150", "schedule.prefill_chunk=200")
    with pytest.raises(UserError, match="150 tokens, far outside their table, which ends at 2"):
        Written("pp", short, *prompt).simulated()


def test_a_scenario_without_any_time_has_a_prediction() -> None:
    timeless = (stages_of(0.0), draft_of(0.0), "links.default.latency_ms=0")
    (trace,) = Written("chain", *timeless).simulated()
    assert [len(request.tokens) for request in trace.requests] == [48]


def test_a_checkpoints_hidden_states_have_bytes() -> None:
    """Its ``config.json`` tells the width; without it links would carry ids alone."""
    named = Written("pp", 'target={checkpoint="reference"}').scenario
    told = Written("pp", "target={layers=8,hidden_size=192}").scenario
    assert deploy(named).roles.row_bytes == deploy(told).roles.row_bytes == 4 * 192


def test_factors_and_cases_without_effect_are_told() -> None:
    plain = Written("pp", "scale.misses=2").scenario
    words = "have no effect: they are read only where something is drafted (schedule.name)"
    assert f"keys acceptance, scale.misses {words}" in input_warnings(plain, deploy(plain))
