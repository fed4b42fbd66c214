"""What checkpoints ask for: done as ``generate()`` does it, or refused in one sentence."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.worlds.tiny_models import change, greedy, save_head, save_tokenizer
from treepipe.core.errors import UserError
from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle_head import load_head
from treepipe.executor.models.prompts import tokenize
from treepipe.scenario.deployment import Compute
from treepipe.testing.random_model import CONFIGS, save_random_checkpoint

torch.set_num_threads(1)

PROMPT = [5, 9, 2, 40, 17]
WEIGHTS = "model.safetensors"
LAYER = "model.layers.1."
UP = f"{LAYER}mlp.up_proj.weight"
Change = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A good checkpoint, to be spoiled; its projection is not the embedding."""
    return save_tokenizer(save_random_checkpoint(tmp_path / "model", seed=1))


def reload_weights(folder: Path, **changed: torch.Tensor | None) -> None:
    """Replace tensors of the weights' file; None removes one. ``__`` stands for a dot."""
    tensors = load_file(folder / WEIGHTS)
    for name, tensor in changed.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, folder / WEIGHTS)


def load(folder: Path) -> None:
    """Open, read all weights, and the tokenizer."""
    checkpoint = Checkpoint.open(folder)
    WholeModel(checkpoint, 8)
    tokenize(checkpoint, ["w1 w2"])


# --- what generate() does ------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("places", [[7], [7, 3], [3, 9, 12], None])
def test_any_of_several_tokens_ends_a_text(
    folder: Path, file: str, places: list[int] | None
) -> None:
    """``generation_config.json`` decides where it is there, even if it names no token."""
    whole = greedy(folder, PROMPT, 20)
    tokens = None if places is None else [whole[place] for place in places]
    ends = tokens[0] if tokens and len(tokens) == 1 else tokens
    if file == "config.json":
        (folder / "generation_config.json").unlink()
        change(folder, eos_token_id=ends)
    else:
        change(folder, eos_token_id=whole[1])  # is not heard
        change(folder, file, eos_token_id=... if ends is None else ends)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.end_tokens == frozenset(tokens or ())
    text = WholeModel(checkpoint, 64).greedy(PROMPT, 20, checkpoint.end_tokens)
    assert text == greedy(folder, PROMPT, 20)
    assert (len(text) < 20) == bool(tokens)


def test_what_generate_would_change_in_a_greedy_text_is_warned_of(folder: Path) -> None:
    assert Checkpoint.open(folder).warnings == []
    change(folder, "generation_config.json", repetition_penalty=1.05, do_sample=True, num_beams=1)
    (warning,) = Checkpoint.open(folder).warnings
    assert "generation_config.json: key repetition_penalty = 1.05 is not applied" in warning


FACTORS = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 4.0, 8.0, 16.0]}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {"rope_type": "longrope", "original_max_position_embeddings": 24, **FACTORS},
}


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("style", ["rope_parameters", "rope_scaling"])
def test_rotary_embeddings_are_those_of_generate(folder: Path, kind: str, style: str) -> None:
    """Up to the last position that the checkpoint allows, whatever deeper rows are in a pass."""
    rope = {**ROPES[kind], "rope_theta": 500.0}
    if style == "rope_scaling":  # as older checkpoints have it
        rope["type"] = rope.pop("rope_type")
        change(folder, rope_parameters=..., rope_theta=rope.pop("rope_theta"), rope_scaling=rope)
    else:
        change(folder, rope_parameters=rope)
    change(folder, max_position_embeddings=32)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.max_positions == (24 if kind == "longrope" else 32)
    wanted = checkpoint.max_positions - len(PROMPT)
    expected = greedy(folder, PROMPT, wanted)
    model = WholeModel(checkpoint, 128)
    assert model.greedy(PROMPT, wanted) == expected
    # Now as a chain of tree nodes in one pass with far deeper ones, which are never committed.
    model.stage.open(0)
    model.read(PROMPT, range(len(PROMPT)), None)
    drafted = [*expected, *[1] * 40]
    positions = range(len(PROMPT), len(PROMPT) + len(drafted))
    rows = model.read(drafted, positions, range(-1, len(drafted) - 1)).argmax(-1).tolist()
    assert rows[: wanted - 1] == expected[1:]


@pytest.mark.parametrize(
    ("architecture", "keys", "positions"),
    [
        ("mistral", {"sliding_window": 16}, 256),
        ("mistral", {"sliding_window": None}, 256),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, 256),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 16}, 256),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 9}, 256),
        ("llama", {"sliding_window": 16}, 16),
        ("llama", {"final_logit_softcapping": 3.0, "attn_logit_softcapping": 5.0}, 256),
        ("llama", {"hidden_act": "gelu"}, 256),
        ("llama", {"pretraining_tp": 2}, 256),
    ],
)
def test_what_is_accepted_gives_the_text_of_generate(
    tmp_path: Path, architecture: str, keys: dict[str, Any], positions: int
) -> None:
    """However many files it is in."""
    folder = save_random_checkpoint(tmp_path, architecture=architecture, seed=1, shard_size="20KB")
    change(folder, layer_types=..., **keys)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.max_positions == positions
    wanted = min(positions, 32) - len(PROMPT)
    text = WholeModel(checkpoint, 64).greedy(PROMPT, wanted)
    assert text == greedy(folder, PROMPT, wanted)


@pytest.mark.parametrize(
    "keys",
    [
        {
            "rope_parameters": {
                "sliding_attention": ROPES["linear"],
                "full_attention": ROPES["yarn"],
            }
        },
        {"sliding_window": 4, "final_logit_softcapping": 3.0},
        {"layer_types": ["full_attention"] * 2},
    ],
)
def test_kinds_of_layers_are_those_of_generate(tmp_path: Path, keys: dict[str, Any]) -> None:
    """A family's layers of two kinds have windows and rotary embeddings of their own."""
    folder = save_random_checkpoint(tmp_path, architecture="gemma3_text", seed=1)
    change(folder, **keys)
    assert WholeModel(Checkpoint.open(folder), 64).greedy(PROMPT, 24) == greedy(folder, PROMPT, 24)


def test_a_part_of_a_heads_width_is_rotated_by_longrope(tmp_path: Path) -> None:
    """As published files of Phi-3 have it, up to where transformers takes other frequencies."""
    folder = save_random_checkpoint(tmp_path, architecture="phi3", seed=1)
    factors = {name: values[:2] for name, values in FACTORS.items()}
    change(folder, rope_parameters=..., rope_scaling={"type": "longrope", **factors})
    change(folder, original_max_position_embeddings=24, partial_rotary_factor=0.5)
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.max_positions == 24
    assert WholeModel(checkpoint, 64).greedy(PROMPT, 19) == greedy(folder, PROMPT, 19)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("architecture", CONFIGS)
def test_weights_of_16_bits_give_transformers_logits(
    tmp_path: Path, architecture: str, dtype: torch.dtype
) -> None:
    """As they come and computed in their type, but for what transformers keeps in float32."""
    folder = save_random_checkpoint(tmp_path / "float32", architecture=architecture, seed=1)
    load_model = partial(
        AutoModelForCausalLM.from_pretrained, dtype=dtype, experts_implementation="eager"
    )
    load_model(folder).save_pretrained(tmp_path / "half")
    name: Any = str(dtype).removeprefix("torch.")
    ours = WholeModel(Checkpoint.open(tmp_path / "half"), 64, Compute(dtype=name))
    ours.stage.open(0)
    with torch.inference_mode():
        expected = load_model(tmp_path / "half")(torch.tensor([PROMPT])).logits[0]
    found = ours.read(PROMPT, range(5), None)
    assert found.dtype == expected.dtype == dtype
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("key", ["attention_bias", "mlp_bias"])
def test_biases_are_computed_with(folder: Path, key: str) -> None:
    parts = {
        "attention_bias": {"self_attn.q_proj": 32, "self_attn.k_proj": 16, "self_attn.v_proj": 16}
        | {"self_attn.o_proj": 32},
        "mlp_bias": {"mlp.gate_proj": 64, "mlp.up_proj": 64, "mlp.down_proj": 32},
    }[key]
    tensors = load_file(folder / WEIGHTS)
    for layer in range(2):
        for part, width in parts.items():
            tensors[f"model.layers.{layer}.{part}.bias"] = torch.randn(width)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(UserError, match=r"has no place for the weights' tensor model\.layers\.0\."):
        Checkpoint.open(folder)
    change(folder, **{key: True})
    assert WholeModel(Checkpoint.open(folder), 64).greedy(PROMPT, 20) == greedy(folder, PROMPT, 20)


def test_buffers_of_old_checkpoints_are_left_aside(folder: Path) -> None:
    reload_weights(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4))
    load(folder)


# --- what is refused -----------------------------------------------------------------------------


def _config(**keys: Any) -> Change:
    return lambda folder: change(folder, **keys)


def _weights(**tensors: torch.Tensor | None) -> Change:
    return lambda folder: reload_weights(folder, **tensors)


def _text(file: str, text: str) -> Change:
    return lambda folder: (folder / file).write_text(text) and None


def _cut(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def _gguf(folder: Path) -> None:
    (folder / "config.json").rename(folder / "llama.gguf")


def _index(content: Any) -> Change:
    return _text("model.safetensors.index.json", json.dumps(content))


def _with(value: float) -> torch.Tensor:
    tensor = torch.zeros(64, 32)
    tensor[3, 4] = value
    return tensor


BAD: list[tuple[Change, str]] = [
    (_text("config.json", "{"), "config.json: is not valid JSON"),
    (_text("config.json", "[]"), "config.json: must hold a JSON object"),
    (_config(hidden_size=...), "config.json: key hidden_size is missing"),
    (_config(rms_norm_eps=math.nan), "key rms_norm_eps = NaN is not a finite number"),
    (_config(rope_theta=math.inf), "key rope_theta = Infinity is not a finite number"),
    (_text("generation_config.json", '{"top_p": NaN}'), "key top_p = NaN is not a finite"),
    (_config(vocab_size=0), "key vocab_size = 0 must be a whole number"),
    (_config(num_hidden_layers=3), "tensor model.layers.2.self_attn.q_proj.weight is missing"),
    (_config(num_hidden_layers=1), "but the weights hold further layers"),
    (_config(num_key_value_heads=4), "asks for tensor model.layers.0.self_attn.k_proj.weight"),
    (_config(num_key_value_heads=3), "num_key_value_heads = 3 does not divide"),
    (_config(architectures=["GPT2LMHeadModel"]), "architectures = 'GPT2LMHeadModel' is"),
    (_config(architectures=[[1]]), "key architectures = [1] is not supported"),
    (_config(architectures=...), "key architectures = 'none' is not supported"),
    (_config(model_type="gpt2"), "key model_type = 'gpt2' does not belong to Llama"),
    (_config(hidden_act="sillu"), "config.json: is not usable: KeyError: 'sillu'"),
    (_config(quantization_config={"quant_method": "gptq"}), "(gptq): a run computes with weights"),
    (_config(quantization_config=4), "quantization_config (of no named method): a run"),
    (_gguf, "llama.gguf: a run computes with weights of 16 or 32 bits"),
    (_config(architectures=["Gemma3ForConditionalGeneration"]), "it reads images, too; save its"),
    (_config(decoder_sparse_step=2), "keys mlp_only_layers and decoder_sparse_step"),
    (_config(use_bidirectional_attention=True), "use_bidirectional_attention = true is"),
    (_config(attention_chunk_size=8), "key attention_chunk_size is not supported"),
    (_config(is_causal=False), "key is_causal = false is not supported"),
    (_config(rope_parameters={"rope_type": "mrope"}), "rope_type = 'mrope' is not"),
    (_config(rope_parameters={**ROPES["linear"], "partial_rotary_factor": 0.5}), "partial_"),
    (_config(rope_parameters={"rope_type": "yarn"}), "config.json: is not usable"),
    (_config(layer_types=["full_attention", "linear_attention"]), "layer_types hold"),
    (_config(layer_types=["full_attention", "sliding_attention"]), "no sliding_window"),
    (_config(eos_token_id="</s>"), "config.json: "),
    (_text("generation_config.json", '{"eos_token_id": ["</s>"]}'), "key eos_token_id = ["),
    (_text("generation_config.json", "{"), "generation_config.json: is not valid"),
    (_weights(lm_head__weight=None), "tensor lm_head.weight is missing (config.json"),
    (_weights(model__norm__weight=None), "tensor model.norm.weight is missing"),
    (_weights(**{f"{LAYER}self_attn.v_proj.weight": None}), "self_attn.v_proj.weight is missing"),
    (_weights(**{UP: torch.zeros(32, 64)}), f"tensor {UP} in shape (64, 32), but {WEIGHTS} holds"),
    (_weights(model__norm__weight=torch.ones(32, dtype=torch.int8)), "I8 values"),
    (_weights(**{UP: _with(torch.nan)}), f"tensor {UP} holds a value that is no number (NaN)"),
    (_weights(**{UP: _with(-torch.inf)}), f"tensor {UP} holds a value that is infinite"),
    (_cut, f"{WEIGHTS}: cannot be read"),
    (lambda folder: (folder / WEIGHTS).unlink(), "holds neither model.safetensors"),
    (_index({"weight_map": {"a": 3}}), "index.json: key weight_map must map tensors'"),
    (_index({"weight_map": {"a": "b"}}), "index.json: names b, which is missing"),
    (_index({"weight_map": {"a": "config.json"}}), "config.json: cannot be read"),
    (_index({"weight_map": {"a": WEIGHTS}}), f"names tensor a in {WEIGHTS}, which"),
    (_text("tokenizer.json", '{"model": 3}'), "tokenizer.json: is no usable tokenizer"),
    (lambda folder: (folder / "tokenizer.json").unlink(), "there is no such file"),
]


@pytest.mark.parametrize(("spoil", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_bad_checkpoints_are_refused_in_one_sentence(
    folder: Path, spoil: Change, sentence: str
) -> None:
    load(folder)
    spoil(folder)
    with pytest.raises(UserError) as refused:
        load(folder)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    save_tokenizer(folder, 99)
    with pytest.raises(UserError, match="prompt 1 token 70, but the model knows 61 tokens"):
        tokenize(Checkpoint.open(folder), ["w1", "w70"])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json: there is no such file"),
        (_config(hidden_size=64, head_dim=16), "hidden_size = 64 differs from the target's 32"),
        (lambda folder: (folder / WEIGHTS).unlink(), "holds neither model.safetensors nor"),
        (_weights(fc__weight=None), "is no EAGLE head, tensor fc.weight is missing"),
        (_weights(layers__0__mlp__up_proj__weight=None), "layers.0.mlp.up_proj.weight is missing"),
        (_text("config.json", "[]"), "config.json: must hold a JSON object"),
        (_config(rope_parameters={"rope_type": "mrope"}), "rope_type = 'mrope' is not supported"),
        (_weights(fc__weight=torch.zeros(32, 32)), "tensor fc.weight has shape (32, 32), config"),
        (_weights(fc__bias=torch.full((32,), torch.nan)), "tensor fc.bias holds a value that is"),
        (_weights(embed_tokens__weight=torch.zeros(40, 32)), "embed_tokens.weight has shape"),
        (_cut, f"{WEIGHTS}: cannot be read"),
    ],
)
def test_bad_heads_are_refused_in_one_sentence(folder: Path, spoil: Change, sentence: str) -> None:
    target = Checkpoint.open(folder)
    head = save_head(folder / "head", target)
    load_head(head, target)
    spoil(head)
    with pytest.raises(UserError) as refused:
        load_head(head, target)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
