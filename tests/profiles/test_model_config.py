"""Models of published ``config.json`` files: counted beside what others publish of them.

``data/model_configs.json`` holds the keys of 32 files that concern sizes, and published totals with
their sources. ``besides`` is what a total counts and we do not: a tower for images (counted on its
class in transformers), copies of embedding and output projection in an MTP head, numbers that are
no weights.
"""

from __future__ import annotations

import json
import math
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from treepipe.core.errors import UserError
from treepipe.files.reading import parse_json
from treepipe.profiles.families import ALIASES, families
from treepipe.profiles.library import REFERENCE, find_model, load_model
from treepipe.profiles.model_config import read_config
from treepipe.profiles.schema import ModelProfile
from treepipe.profiles.service import attention_work
from treepipe.scenario.deployment import Footprint
from treepipe.scenario.scenario import Scenario

PUBLISHED = json.loads((Path(__file__).parents[1] / "data" / "model_configs.json").read_text())
LLAMA = PUBLISHED["meta-llama/Llama-3.1-8B"]["config"]


def read(config: dict[str, Any], folder: Path) -> ModelProfile:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return read_config(path)


def published(name: str, folder: Path) -> ModelProfile:
    return read(PUBLISHED[name]["config"], folder)


# --- totals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str, tmp_path: Path) -> None:
    """All agree to the last digit but Kimi-K2, whose total holds 3,416 further numbers."""
    entry, model = PUBLISHED[name], published(name, tmp_path)
    counted = model.parameters + model.mtp_parameters * entry.get("mtp", False)
    assert counted == pytest.approx(entry["parameters"] - entry.get("besides", 0), rel=1e-8)
    if active := entry.get("active"):
        embedding = model.head_parameters * entry.get("embedding", False)
        assert model.active_parameters + embedding == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "bytes" in PUBLISHED[name]])
def test_bytes_of_quantized_weights_are_the_published_ones(name: str, tmp_path: Path) -> None:
    entry, model = PUBLISHED[name], published(name, tmp_path)
    assert model.bits is not None
    counted = model.model_bytes(model.dtype) + model.mtp_parameters * model.bits / 8
    assert counted == pytest.approx(entry["bytes"] - entry.get("bytes_besides", 0), rel=0.004)


@pytest.mark.parametrize("name", families())
def test_a_family_counts_what_its_class_in_transformers_has(name: str, tmp_path: Path) -> None:
    """At the class's own sizes, of which the file says only what our record has no default of."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    own = {
        "deepseek_v2": {"num_experts_per_tok": 6},
        "gemma4": {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True},
        "kimi_k2": {"model_type": "deepseek_v3"},
    }.get(name, {})
    kind = own.get("model_type", name)
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    config = known[f"{kind}_text" if f"{kind}_text" in known else kind](**own)
    with torch.device("meta"):
        whole = transformers.AutoModelForCausalLM.from_config(config)
    there = {*families()[name].defaults, "layer_types"} - {"hidden_size_per_layer_input"}
    content = {key: value for key, value in config.to_dict().items() if key not in there}
    model = read(content, tmp_path)
    assert model.parameters == sum(weight.numel() for weight in whole.parameters())
    assert {*model.caveats} <= {"dtype", "index_topk"}


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("gpt-oss-20b", "openai/gpt-oss-20b"),
        ("qwen-3.5-4b", "Qwen/Qwen3.5-4B"),
        ("qwen-3.6-35b-a3b", "Qwen/Qwen3.6-35B-A3B"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("qwen-3-30b-a3b", "Qwen/Qwen3-30B-A3B"),
    ],
)
def test_a_profile_of_the_library_has_its_file_s_sizes(
    profile: str, name: str, tmp_path: Path
) -> None:
    told = {"origin", "caveats"}
    ours, model = find_model(profile, "test"), published(name, tmp_path)
    assert ours.model_dump(exclude=told) == model.model_dump(exclude=told)


# --- heads ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eagle3", "block"])
def test_a_head_counts_what_its_file_holds(name: str) -> None:
    """All but a norm or two: of the joined states, and a block draft's last one."""
    with (REFERENCE / name / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    held = {key: math.prod(each["shape"]) for key, each in header.items() if "shape" in each}
    model = load_model(REFERENCE / name / "config.json")
    known = sum(size for key, size in held.items() if not key.startswith(("d2t", "t2d", "embed")))
    norms = known - model.parameters
    assert norms in (model.hidden_size, 2 * model.hidden_size)


def test_an_eagle_3_head_has_three_states_and_wider_attention(tmp_path: Path) -> None:
    """The tensors of a head for DeepSeek-V3 in the published layout (EAGLE-3's code)."""
    config = {
        **{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
        **{"hidden_size": 7168, "intermediate_size": 40960, "num_attention_heads": 56},
        **{"num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 129280},
        **{"draft_vocab_size": 32000, "tie_word_embeddings": False, "torch_dtype": "float16"},
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]},
    }
    model = read(config, tmp_path)
    fc, attention = 7168 * 3 * 7168, (56 + 2 * 8) * 128 * 2 * 7168 + 56 * 128 * 7168
    norms = 3 * 7168  # without that of the joined states
    assert model.parameters == fc + attention + 3 * 7168 * 40960 + 32000 * 7168 + norms
    assert not model.caveats


def test_a_block_draft_joins_a_state_for_each_of_its_layers(tmp_path: Path) -> None:
    config = {
        **{"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 16},
        **{"hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 32},
        **{"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 5},
        **{"vocab_size": 248320, "tie_word_embeddings": False, "dtype": "bfloat16"},
    }
    model = read(config, tmp_path)
    layer = 5120 * 128 * (2 * 32 + 2 * 8) + 3 * 5120 * 17408 + 2 * 5120 + 2 * 128
    assert model.parameters == 5 * layer + 5120 * 5 * 5120  # its ends are the target's
    other = read({**config, "dflash_config": {"target_layer_ids": [1, 7]}}, tmp_path)
    assert model.parameters - other.parameters == 3 * 5120**2


def test_deepseek_s_mtp_head_has_the_weights_that_its_authors_say(tmp_path: Path) -> None:
    """11.5 billion, without the ends that it shares (README_WEIGHTS of DeepSeek-V3)."""
    head = published("deepseek-ai/DeepSeek-V3", tmp_path).mtp_parameters
    assert head == pytest.approx(11.5e9, rel=0.01)


# --- attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "of_token"),
    [
        ("Qwen/Qwen3.6-27B", 16 * 2 * 4 * 256 * 2),  # 16 of 64 layers attend
        ("deepseek-ai/DeepSeek-V3", 61 * (512 + 64) * 2),
        ("openai/gpt-oss-120b", 36 * 2 * 8 * 64 * 2),
        ("google/gemma-3-27b-it", 62 * 2 * 16 * 128 * 2),
    ],
)
def test_a_token_s_keys_and_values(name: str, of_token: int, tmp_path: Path) -> None:
    model = published(name, tmp_path)
    assert model.layers * model.kv_bytes(model.dtype) == of_token


def test_a_window_bounds_caches_and_reads(tmp_path: Path) -> None:
    """Gemma 3 27B: 52 layers keep 1,024 tokens, 10 all of them."""
    model, of_layer = published("google/gemma-3-27b-it", tmp_path), 2 * 16 * 128 * 2
    footprint = Footprint.of_shape(model, "bfloat16")
    cache = 62 * 32768 * footprint.entry_bytes(32768)
    assert cache == pytest.approx(of_layer * (52 * 1024 + 10 * 32768))
    assert footprint.entry_bytes(1000) == of_layer

    def read_at(context: int) -> float:
        return 62 * attention_work(model, "bfloat16", 1, context).moved_bytes

    assert read_at(32768) == pytest.approx(of_layer * (52 * 1025 + 10 * 32769))
    assert read_at(500) == pytest.approx(of_layer * 62 * 501)


def test_a_linear_layer_keeps_a_state_whatever_the_length(tmp_path: Path) -> None:
    model = published("Qwen/Qwen3.6-27B", tmp_path)
    footprint, state = Footprint.of_shape(model, "bfloat16"), 48 * 128 * 128 + 3 * 10240
    for entries in (1, 100, 10**6):
        cache = 64 * entries * footprint.entry_bytes(entries)
        assert cache == pytest.approx(16 * 4096 * entries + 48 * state * 4)


# --- what is not understood -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"hybrid_override_pattern": "M-M*"}, "layers of state spaces .*stage_ms"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 is above"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True must be a whole number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes' must be true or false"),
        ({"layer_types": ["full_attention"]}, "layer_types lists 1 layers, but num_hidden_"),
        ({"layer_types": ["mamba"] * 32}, "layer_types holds 'mamba', .*stage_ms"),
        ({"hidden_size": None}, "hidden_size is missing; .*target.layers .*stage_ms"),
        ({"model_type": "deepseek_v3", "v_head_dim": 0}, "v_head_dim = 0 must"),
        ({"dtype": "float7"}, "dtype = 'float7' is not one of"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "'aqlm' is unknown; .*stage_ms"),
        ({"quantization_config": {"quant_method": "awq"}}, "does not say how many bits"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 0.5}}, "how many bits"),
        ({"quantization_config": 4}, "quantization_config = 4 must be a table"),
        ({"rope_theta": float("nan")}, "key rope_theta = NaN is not a finite number"),
        ({"rms_norm_eps": float("inf")}, "key rms_norm_eps = Infinity is not a finite number"),
        ({"rope_scaling": {"factors": [1, float("-inf")]}}, r"rope_scaling.factors.1 = -Infinity"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_counted_is_refused(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        read({**LLAMA, **changes}, tmp_path)


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"torch_dtype": None}, "dtype", "bfloat16 is assumed"),
        ({"model_type": "foo"}, "model_type", "'foo' is unknown: layers count as Llama's"),
        ({"model_type": None}, "model_type", "is missing"),
        ({"altup_num_inputs": 4}, "unknown", "altup_num_inputs"),
        ({"sliding_window": 512}, "unknown", "sliding_window"),
        ({"vision_config": {"depth": 3}}, "vision_config", "what reads no text"),
        ({"quantization_config": {"quant_method": "fp8", "kv_cache_scheme": {"bits": 8}}},
         "quantization_config", "kv_cache_scheme is not counted"),
        ({"quantization_config": {"quant_method": "fp8",
          "modules_to_not_convert": ["model.layers.0.mlp.up_proj", "lm_head"]}},
         "quantization_config", "model.layers.0.mlp.up_proj count as quantized"),
        ({"quantization_config": {"quant_method": "fp8", "ignore": ["model.layers.3.self_attn"]}},
         "quantization_config", "attention of 1 full_attention layers count as quantized"),
    ],
)  # fmt: skip
def test_what_is_counted_otherwise_is_told_by_name(
    changes: dict[str, Any], key: str, words: str, tmp_path: Path
) -> None:
    model = read({**LLAMA, **changes}, tmp_path)
    assert [*model.caveats] == [key]
    assert words in model.caveats[key]


def test_a_caveat_is_in_every_answer_unless_the_scenario_says_the_type(
    tmp_path: Path, terminal: Terminal
) -> None:
    read({key: value for key, value in LLAMA.items() if key != "torch_dtype"}, tmp_path)
    scenario = Scenario.of(
        {
            "name": "one card",
            "target": {"profile": "config.json"},
            "drafts": [{"source": "ngram", "device": {"draft_ms": {1: 1.0}}}],
            "pipelines": [{"stages": [{"device": "rtx-4090"}]}],
            "links": {"default": {}},
            "schedule": {"name": "chain"},
            "acceptance": {"source": "bernoulli", "beta": 0.5},
            "workload": {"requests": 1, "prompt_tokens": 8, "new_tokens": 4},
        },
        tmp_path / "s.toml",
    )
    from treepipe import simulate

    told = "model config.json: key dtype is missing: bfloat16 is assumed"
    assert told in simulate(scenario, runs=2).warnings
    said = scenario.with_(**{"target.dtype": "float16"})
    assert told not in simulate(said, runs=2).warnings
    shown = terminal.succeeds("profiles", str(tmp_path / "config.json"))
    assert told.partition(": ")[2] in shown
    assert "8,030,261,248" in shown


ODD: tuple[Any, ...] = (None, True, -1, 0, 10**30, 0.5, "a", [], [3], {}, {"a": 1}, [[None]])
GROUPS = {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}
METHOD = {"quant_method": "compressed-tensors", "config_groups": GROUPS, "ignore": ["lm_head"]}
TABLES = ("text_config", "quantization_config")
WEIGHTS = ("quantization_config", "config_groups", "g", "weights")


@pytest.mark.parametrize(
    "name", ["deepseek-ai/DeepSeek-V3", "Qwen/Qwen3.6-35B-A3B", "openai/gpt-oss-20b"]
)
def test_any_value_of_any_key_is_counted_or_refused_in_a_sentence(
    name: str, tmp_path: Path
) -> None:
    """Of the file's keys and tables, and of those that only other files have."""
    whole = PUBLISHED[name]["config"]
    further = {"architectures": 0, "per_layer_config": 0, "eagle_config": 0, "mlp_layer_types": 0}
    further |= {"moe_layers": 0, "indexer_types": 0, "n_shared_experts": 0, "moe_layer_freq": 0}
    content = {**whole, "quantization_config": METHOD, **further}
    places = [(key,) for key in content]
    places += [(key, inner) for key in TABLES for inner in content.get(key, {})]
    places += [("quantization_config", "config_groups", "g"), (*WEIGHTS, "num_bits")]
    for place in places:
        for odd in ODD:
            changed = json.loads(json.dumps({**whole, "quantization_config": METHOD}))
            table = changed
            for key in place[:-1]:
                table = table.get(key, {})
            table[place[-1]] = odd
            with suppress(UserError):  # any other exception ends in a traceback
                assert read(changed, tmp_path).parameters > 0


# --- quantized parts ------------------------------------------------------------------------------


def test_attention_that_a_checkpoint_leaves_in_16_bits_is_kept(tmp_path: Path) -> None:
    """Named as a whole, by pattern, or module by module of every layer."""
    config = PUBLISHED["Qwen/Qwen3.6-27B"]["config"]
    linear = [f"model.language_model.layers.{n}.linear_attn" for n in range(64) if (n + 1) % 4]
    parts = [f"{name}.{part}" for name in linear for part in ("in_proj_qkv", "out_proj", "norm")]
    weights = {"num_bits": 4, "group_size": 128, "type": "int", "symmetric": False}
    found = []
    for ignored in (linear, parts, ["re:.*linear_attn.*"], ["re:.*\\.linear_attn\\..*"]):
        groups = {"group_0": {"weights": weights}}
        method = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ignored}
        model = read({**config, "quantization_config": method}, tmp_path)
        assert [(kind.layers, kind.kept) for kind in model.kinds] == [(48, True), (16, False)]
        assert (model.dtype, model.bits) == ("int4", 4 + 20 / 128)
        found.append(model.model_bytes("int4"))
    kept = 48 * model.kinds[0].weights
    rest = model.parameters - kept - model.end_parameters
    assert found == [pytest.approx(2 * (kept + model.end_parameters) + rest * 4.15625 / 8)] * 4


@pytest.mark.parametrize(
    ("method", "dtype", "bits"),
    [
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4", 4 + 20 / 64),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "int8", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 4.5),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "int4", 4.5),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "float8", 8 + 32 / 128**2),
        ({"quant_method": "mxfp4"}, "int4", 4.25),
    ],
)
def test_bits_of_a_weight_with_its_scales(
    method: dict[str, Any], dtype: str, bits: float, tmp_path: Path
) -> None:
    model = read({**LLAMA, "quantization_config": method}, tmp_path)
    assert (model.dtype, model.bits) == (dtype, bits)


# --- numbers that JSON does not have --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"a": [0, {"b": NaN}]}', "key a.1.b = NaN is not a finite number"),
        ('{"a": 1e999}', "key a = Infinity is not a finite number"),
        ("-Infinity", "-Infinity is not a finite number"),
        (f'{{"a": {"9" * 400}.0}}', "key a = Infinity is not a finite number"),
    ],
)
def test_a_number_that_is_not_finite_is_named(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_json(text)


def test_our_own_files_write_the_logarithm_of_zero() -> None:
    assert parse_json("[-Infinity, 1e300]", endless=True) == [-math.inf, 1e300]
    with pytest.raises(ValueError, match="key 0 = NaN"):
        parse_json("[NaN]", endless=True)


def test_aliases_are_of_known_families() -> None:
    assert {*ALIASES.values()} <= {*families()}
