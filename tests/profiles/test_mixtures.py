"""Mixtures of experts: passes by the experts that their rows touch, in rooflines and tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from treepipe import simulate
from treepipe.core.errors import UserError
from treepipe.profiles.library import find_device, find_model, load_model, shape_of
from treepipe.profiles.mixtures import with_law
from treepipe.profiles.schema import DeviceProfile
from treepipe.profiles.service import Remark, ServedModel, ServiceTimes
from treepipe.profiles.shapes import BYTES, Experts
from treepipe.scenario.deployment import Footprint
from treepipe.scenario.scenario import Scenario

BOARD = "jetson-agx-orin-llama-cpp"
MIXTURE = "qwen-3.6-35b-a3b"
PASSES = {1: 25.8, 2: 29.6, 4: 38.1, 5: 42.8, 7: 52.2}
"""Milliseconds of this model's pass on an AGX Orin, by rows (llama.cpp, pull request 28285)."""
PREDICTED = {3: 33.9, 6: 47.6}
"""What we predict of passes that we have not seen, in ms."""
EXPERTS = Experts(count=256, per_token=8, size=512)


def times(device: str, model: str, dtype: str = "int4") -> ServiceTimes:
    profile = find_device(device, "test")
    assert isinstance(profile, DeviceProfile)
    return ServiceTimes(device, profile, shape_of, [])


def whole_pass(rows: int) -> float:
    served = ServedModel(MIXTURE, find_model(MIXTURE, "test"), "int4")
    service = times(BOARD, MIXTURE)
    return service.stage(served, served.shape.layers)(rows) + service.evaluation(served)(rows)


def test_touched_experts_are_those_of_independent_draws() -> None:
    rng = np.random.default_rng(0)
    few = Experts(count=12, per_token=3, size=1)
    for rows in (1, 2, 5, 20):
        seen = [
            len({int(e) for _ in range(rows) for e in rng.choice(12, 3, replace=False)})
            for _ in range(500)
        ]
        assert few.touched(rows) == pytest.approx(np.mean(seen), abs=0.2)


@pytest.mark.parametrize("rows", PASSES)
def test_the_board_s_passes_are_those_that_were_measured(rows: int) -> None:
    assert whole_pass(rows) == pytest.approx(PASSES[rows], rel=1e-6)


@pytest.mark.parametrize("rows", PREDICTED)
def test_passes_between_the_measured_ones_are_predicted(rows: int) -> None:
    """A statement about measurements that were kept back; leaving one out below says how good."""
    assert whole_pass(rows) == pytest.approx(PREDICTED[rows], abs=0.05)


@pytest.mark.parametrize(
    ("left_out", "error"), [(1, -0.042), (2, 0.015), (4, 0.012), (5, 0.003), (7, -0.034)]
)
def test_a_pass_that_is_left_out_is_predicted_from_the_others(left_out: int, error: float) -> None:
    """Between measured rows within 1.5 %; one beyond them, 4.2 % and 3.4 % too fast."""
    others = {rows: ms for rows, ms in PASSES.items() if rows != left_out}
    predicted = with_law(others, EXPERTS)[left_out]
    assert predicted / PASSES[left_out] - 1 == pytest.approx(error, abs=6e-4)
    if left_out in (2, 4, 5):
        assert abs(predicted / PASSES[left_out] - 1) < 0.03


def test_a_table_of_the_law_gives_the_law_everywhere() -> None:
    """Between rows a straight line would be 6 % too fast; beyond them it would not end."""

    def law(rows: int) -> float:
        return 5.0 + 0.4 * EXPERTS.touched(rows) + 0.05 * rows

    table = with_law({rows: law(rows) for rows in (1, 8, 32, 64)}, EXPERTS)
    for rows in (2, 5, 12, 16, 48, 96, 128):
        assert table[rows] == pytest.approx(law(rows), rel=1e-3)
    # Few rows do not tell experts' cost from rows'; it all counts as experts', which run out.
    short = with_law({rows: law(rows) for rows in (1, 4, 8)}, EXPERTS)
    assert short[128] == pytest.approx(law(128) - 0.05 * 128 + 0.05 * 17.5, rel=0.03)


def test_a_roofline_reads_what_the_rows_touch() -> None:
    """Moving weights binds: a dense layer takes the same for 8 rows, a mixture's 8 times as many
    experts, but never more than all of them."""
    service, served = times("jetson-agx-orin", ""), {}
    for name in ("qwen-3-30b-a3b", "qwen-3-8b"):
        served[name] = ServedModel(name, find_model(name, "test"), "float16")
    dense, mixture = (
        {rows: service.stage(served[name], 1)(rows) for rows in (1, 8, 256)}
        for name in ("qwen-3-8b", "qwen-3-30b-a3b")
    )
    assert dense[8] / dense[1] < 1.02
    shape = served["qwen-3-30b-a3b"].shape
    assert shape.experts is not None
    attention = shape.hidden_size * (2 * 32 + 2 * 4) * 128
    router, expert = shape.hidden_size * 128, 3 * shape.hidden_size * 768

    def weights(rows: int) -> float:
        return attention + router + 128 * (1 - (1 - 8 / 128) ** rows) * expert

    assert mixture[8] / mixture[1] == pytest.approx(weights(8) / weights(1), rel=0.02)
    assert mixture[256] < 1.1 * shape.layer_bytes("float16") / (204.8e6 * 0.78)
    # Memory holds all of them.
    footprint = Footprint.of_shape(shape, "bfloat16")
    assert footprint.layer_bytes == pytest.approx(2 * (weights(10**6) + 4096 + 256))


@pytest.mark.parametrize(("model", "best"), [("qwen-3.5-4b", 6), (MIXTURE, 3)])
def test_a_mixture_wants_shorter_drafts_than_a_dense_model(model: str, best: int) -> None:
    """On the same board with the same draft: what docs/planning.md says. All passes but those of
    the mixture's 3 and 6 rows were measured."""
    scenario = Scenario.of(
        {
            "name": "one board",
            "target": {"profile": model, "dtype": "int4"},
            "drafts": [{"device": {"draft_ms": {1: 2.0}}}],
            "pipelines": [{"stages": [{"device": BOARD}]}],
            "links": {"default": {"latency_ms": 0.05}},
            "schedule": {"name": "chain", "gamma": 1},
            "acceptance": {"source": "bernoulli", "beta": 0.8},
            "workload": {"requests": 1, "prompt_tokens": 16, "new_tokens": 400},
        }
    )
    speeds = {}
    for gamma in range(1, 7):
        found = simulate(scenario.with_(**{"schedule.gamma": gamma}), runs=2)
        speeds[gamma] = found.metrics["time_between_tokens_ms"].mean
    assert min(speeds, key=lambda gamma: speeds[gamma]) == best
    assert ("uniform routing" in " ".join(found.warnings)) == (model == MIXTURE)


CONFIG = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100,
    "intermediate_size": 96, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "keys", "experts"),
    [
        ("mixtral", {"num_local_experts": 8}, {"size": 96}),
        ("qwen3_moe", {"num_experts": 8, "moe_intermediate_size": 24, "mlp_only_layers": [0, 3]},
         {"size": 24, "dense_layers": 2}),
        ("qwen3_moe", {"num_experts": 8, "moe_intermediate_size": 24, "decoder_sparse_step": 2},
         {"size": 24, "dense_layers": 2}),
        ("glm4_moe", {"n_routed_experts": 8, "moe_intermediate_size": 24, "n_shared_experts": 2,
          "first_k_dense_replace": 1}, {"size": 24, "shared_size": 48, "dense_layers": 1}),
    ],
)  # fmt: skip
def test_a_mixture_s_config_is_a_model_profile(
    family: str, keys: dict[str, object], experts: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "num_key_value_heads": 4, "model_type": family, **keys}))
    model = load_model(path)
    assert model.experts == Experts.model_validate({"count": 8, "per_token": 2, **experts})
    # Of 4 layers, each dense one has its MLP and each other one 8 experts, the shared and a router.
    dense = model.experts.dense_layers
    own = 8 * model.experts.size + model.experts.shared_size
    mlps = 3 * 64 * (dense * model.intermediate_size + (4 - dense) * own)
    attention = 4 * (4 * 64 * 64 + 2 * 64 + 2 * 16 * family.startswith("qwen3"))
    assert model.layer_parameters * 4 == mlps + attention + (4 - dense) * 64 * 8
    assert model.layer_bytes("float32") == model.layer_parameters * BYTES["float32"]


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"num_experts": 8, "num_experts_per_tok": None}, "key num_experts_per_tok is missing"),
        ({"num_experts": 1, "intermediate_size": None}, "key intermediate_size is missing"),
        ({"num_experts": "8"}, "key num_experts = '8' must be a whole number of at least 0"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "key experts: .*per_token = 9 is above"),
        ({"num_experts": 8, "first_k_dense_replace": 4}, "leaves no mixture of 4 layers"),
        ({"num_experts": 8, "mlp_only_layers": 3}, "key mlp_only_layers = 3 must be a list"),
    ],
)
def test_a_config_without_sense_is_refused(
    keys: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **keys}))
    with pytest.raises(UserError, match=sentence):
        load_model(path)


def test_dense_layers_of_a_mixture_are_told() -> None:
    profile, shape = find_device("jetson-agx-orin", "test"), find_model(MIXTURE, "test")
    assert isinstance(profile, DeviceProfile)
    assert shape.experts is not None
    partly = shape.experts.model_copy(update={"dense_layers": 3})
    for experts, told in ((shape.experts, False), (partly, True)):
        said = list[Remark]()
        model = ServedModel(MIXTURE, shape.model_copy(update={"experts": experts}), "int4")
        ServiceTimes(BOARD, profile, shape_of, said).layer(model)
        assert any("3 of 40 layers" in sentence for _, sentence, *_ in said) == told
