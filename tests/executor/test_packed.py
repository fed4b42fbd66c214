"""Packed linear layers: the same products, in models, too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.worlds.examples import examples
from tests.worlds.tiny_models import greedy
from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.packed import (
    LEAST_BYTES,
    PackedLinear,
    can_pack,
    linear,
    pack,
    warm_up,
)
from treepipe.executor.models.stage_model import StageModel, TargetEnds
from treepipe.executor.models.widening import write_wider
from treepipe.testing.random_model import save_random_checkpoint

torch.set_num_threads(1)

WIDE = 1 << 19
needs_library = pytest.mark.skipif(
    not can_pack(torch.empty(LEAST_BYTES)), reason="needs an x86 processor and torch with oneDNN"
)


@needs_library
@examples(30)
@given(
    st.integers(1, 70), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]), st.data()
)
def test_a_packed_layer_gives_the_same_product(
    rows: int, bias: bool, dtype: torch.dtype, data: st.DataObject
) -> None:
    """Beside the sum in twice the digits."""
    torch.manual_seed(data.draw(st.integers(0, 2**32)))
    features = data.draw(st.sampled_from([96, 200, 1024]))
    layer = nn.Linear(features, 1 + WIDE * 2 // features, bias, dtype=dtype).requires_grad_(False)
    if not can_pack(layer.weight):
        return  # a processor without this type
    given_rows = torch.randn(1, rows, features, dtype=dtype)
    exact = nn.functional.linear(
        given_rows.double(), layer.weight.double(), layer.bias.double() if bias else None
    )
    both = nn.Sequential(layer)
    pack(both)
    assert type(both[0]) is PackedLinear
    away = (both(given_rows).double() - exact).abs()
    summed = nn.functional.linear(given_rows.double().abs(), layer.weight.double().abs())
    # sums of n terms in single digits err by sqrt(n) roundings of what they add up, in every order
    sums = 4 * torch.finfo(torch.float32).eps * features**0.5 * (summed + 1)
    assert (away <= torch.finfo(dtype).eps * exact.abs() + sums).all()


@needs_library
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text"])
def test_a_model_with_packed_layers_says_what_generate_says(
    architecture: str, tmp_path: Path
) -> None:
    folder = save_random_checkpoint(tmp_path / "small", architecture=architecture, seed=2)
    small = WholeModel(Checkpoint.open(folder), 64)
    wide = WholeModel(Checkpoint.open(write_wider(folder, 128, tmp_path / "wide")), 64)
    prompt = [5, 9, 2, 40, 17]
    assert wide.greedy(prompt, 24) == greedy(folder, prompt, 24)
    assert _packed(wide.stage) == 2 * 3  # the feed-forward's matrices
    assert not _packed(small.stage)


@needs_library
@pytest.mark.parametrize("seed", [1, 2])
def test_a_last_stages_projection_is_packed(seed: int, tmp_path: Path) -> None:
    """Of a tied model (seed 2) the end that embeds, too, keeps the one matrix for both."""
    folder = save_random_checkpoint(tmp_path, vocabulary=9000, seed=seed)
    checkpoint = Checkpoint.open(folder)
    both, last = TargetEnds(checkpoint), TargetEnds(checkpoint, embeds=False)
    assert type(last._project) is PackedLinear
    assert (type(both._project) is PackedLinear) is not checkpoint.tied
    hidden = torch.randn(5, 32)
    torch.testing.assert_close(last.logits(hidden), both.logits(hidden), rtol=1e-5, atol=1e-4)
    assert torch.equal(
        both.embed([3, 8999]), TargetEnds(checkpoint, projects=False).embed([3, 8999])
    )


def test_a_gpus_layers_and_those_in_float16_are_not_packed() -> None:
    large = torch.empty(LEAST_BYTES, device="meta")
    assert not can_pack(large)
    assert not can_pack(torch.empty(LEAST_BYTES, dtype=torch.float16))


def _packed(model: StageModel) -> int:
    """How many of its layers' modules are."""
    modules = [module for layer in model._layers for module in layer.modules()]
    return sum(type(module) is PackedLinear for module in modules)


@needs_library
def test_no_pass_of_a_warm_worker_makes_a_kernel(capfd: pytest.CaptureFixture[str]) -> None:
    """By what oneDNN says of its primitives: made anew, or found in its cache."""
    layers = [linear(torch.ones(1031, width)) for width in (521, 523)]

    def made(rows: int) -> int:
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON_CREATION):
            for layer in layers:
                layer(torch.ones(rows, layer.packed.shape[1]))
        said = capfd.readouterr().out
        assert said.count(",exec,") == len(layers)
        return said.count("create:cache_miss")

    assert made(3) == len(layers), "or the test sees nothing"
    warm_up(6)
    assert [made(rows) for rows in (1, 3, 6)] == [0, 0, 0]
    assert made(7) == len(layers)
