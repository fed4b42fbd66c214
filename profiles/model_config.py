"""Reading a Hugging Face ``config.json`` as a model profile: sizes, never weights.

``families.py`` says what a family's layers have, ``quantization.py`` what type weights have. Every
key that nobody reads is named to the user, unless it is known to change no size.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.reading import read_json
from treepipe.files.toml_file import validated
from treepipe.profiles.families import (
    ALIASES,
    MIXERS,
    MOST_LAYERS,
    WAY_OUT,
    WINDOWS,
    Keys,
    ModelFamily,
    families,
    heads_of,
)
from treepipe.profiles.quantization import Quantized, read_quantization
from treepipe.profiles.schema import ModelProfile
from treepipe.profiles.shapes import BYTES, Experts, Shape

INNER = ("text_config", "transformer_layer_config", "language_config", "llm_config")
"""Keys of the language model in a file that describes more."""
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of routed experts in families of mixtures."""
CHOSEN = ("num_experts_per_tok", "experts_per_token", "top_k_experts")
"""Names of the number of them that a row is routed to."""
SHARED = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
"""Names of the number of experts that every row passes."""
PREDICTED = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
"""Names of the number of MTP heads."""
AUXILIARY = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids", "target_layer_ids")
"""Names of the layers whose states enter a head."""
OTHERS = ("vision", "audio", "speech", "image", "video", "talker", "code2wav", "projector")
"""Beginnings of the names of what reads no text."""
REFUSED = {
    "hybrid_override_pattern": "layers of state spaces",
    "layers_block_type": "layers of state spaces",
    "mamba_d_state": "layers of state spaces",
    "mamba_num_heads": "layers of state spaces",
    "ssm_state_size": "layers of state spaces",
    "ssm_cfg": "layers of state spaces",
    "attn_layer_period": "layers of state spaces",
    "linear_attn_config": "linear attention of an unknown kind",
    "hidden_size_per_layer_input": "embeddings in every layer",
    "num_kv_shared_layers": "caches that layers share",
    "compress_ratios": "compressed attention",
    "zero_expert_num": "experts that compute nothing",
    "cross_attention_layers": "layers that read images",
}
"""Keys whose layers cannot be counted, and what they mean."""
HARMLESS = frozenset(
    """
    architectures model_type auto_map transformers_version _name_or_path torch_dtype dtype
    id2label label2id problem_type task_specific_params is_encoder_decoder is_decoder use_cache
    return_dict output_hidden_states output_attentions chunk_size_feed_forward
    initializer_range initializer bos_token_id eos_token_id pad_token_id sep_token_id
    image_token_id image_token_index boi_token_index eoi_token_index video_token_id
    vision_start_token_id vision_end_token_id mm_tokens_per_image language_model_only
    mask_token_id block_size bias hidden_act hidden_activation activation_function swiglu_limit
    vocab_size_per_layer_input swiglu_alpha qk_head_dim pretraining_tp rms_norm_eps
    layer_norm_eps norm_eps rope_theta rope_scaling rope_parameters rope_type
    rope_local_base_freq rope_interleave partial_rotary_factor rotary_dim
    max_position_embeddings original_max_position_embeddings initial_context_length
    mrope_interleaved no_rope_layers attn_temperature_tuning floor_scale attn_scale
    mrope_section attention_dropout hidden_dropout resid_pdrop embd_pdrop dropout
    residual_dropout attn_pdrop classifier_dropout query_pre_attn_scalar attn_logit_softcapping
    final_logit_softcapping logit_scale cache_implementation embedding_multiplier
    attention_multiplier residual_multiplier logits_scaling router_aux_loss_coef aux_loss_alpha
    output_router_logits router_jitter_noise seq_aux norm_topk_prob scoring_func topk_method
    topk_group n_group routed_scaling_factor ep_size scale_shared_expert_gate moe_router_dtype
    mamba_ssm_dtype attn_output_gate output_gate_type use_bidirectional_attention is_causal
    causal_head use_qk_norm max_window_layers use_sliding_window sliding_window_pattern
    _sliding_window_pattern no_rope_layer_interval full_attention_interval tie_encoder_decoder
    speculators_version speculators_model_type speculators_config norm_before_residual
    norm_before_fc mtp_use_dedicated_embeddings for_llm_class fc_norm norm_output
    """.split()  # noqa: SIM905 (a list of a hundred lines)
)
"""Keys that change no size, or only together with one that is read."""


def read_config(path: Path) -> ModelProfile:
    """Read a model's sizes. Raises ``UserError`` if one is missing or makes no sense."""
    outer = read_json(path)
    inner: dict[str, Any] = next(
        (outer[key] for key in INNER if isinstance(outer.get(key), dict)), {}
    )
    content = {key: value for key, value in {**outer, **inner}.items() if key not in INNER}
    named = str(content.get("model_type") or "").removesuffix("_text")
    family = families().get(ALIASES.get(named, named))
    keys = Keys(path, content, {} if family is None else family.defaults)
    for key, what in REFUSED.items():
        if keys.get(key):
            raise UserError(f"{path}: key {key}: {what} cannot be counted; {WAY_OUT}")
    shape, weights = _shape(keys, family or families()["llama"])
    caveats = dict[str, str]()
    if family is None:
        told = f"model_type = {named!r} is unknown" if named else "model_type is missing"
        caveats["model_type"] = f"{told}: layers count as Llama's; compare the total"
    dtype = keys.get("dtype") or keys.get("torch_dtype")
    if weights is not None:
        dtype = weights.dtype
    elif dtype is None:
        caveats["dtype"] = "dtype is missing: bfloat16 is assumed"
        dtype = "bfloat16"
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise UserError(f"{path}: key dtype = {dtype!r} is not one of {', '.join(BYTES)}")
    predicted = max(keys.size(key, 0, least=0, most=64) for key in PREDICTED)
    return validated(
        ModelProfile,
        {
            **shape.model_dump(exclude_unset=True),
            "dtype": dtype,
            "mtp_parameters": predicted and predicted * _predictor(shape),
            "caveats": caveats | dict(_caveats(keys, weights)),
            "origin": {
                "source": str(path),
                "date": datetime.date.fromtimestamp(path.stat().st_mtime),
            },
        },
        path,
    )


def _shape(keys: Keys, family: ModelFamily) -> tuple[Shape, Quantized | None]:
    """Return a model's sizes, and how its weights are quantized."""
    layers = keys.size("num_hidden_layers", most=MOST_LAYERS)
    experts = _experts(keys, family, layers)
    heads, kv_heads, head_dim = heads_of(keys)
    if keys.get("kv_lora_rank"):
        head_dim = keys.size("qk_nope_head_dim") + keys.size("qk_rope_head_dim")
    kinds = family.kinds(keys, layers)
    weights = read_quantization(keys, kinds)
    sizes: dict[str, Any] = {
        "hidden_size": keys.size("hidden_size"),
        "intermediate_size": keys.size(family.dense, experts["size"] if experts else None),
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocabulary": keys.size("draft_vocab_size", keys.size("vocab_size")),
        "experts": experts,
        "tied": keys.flag("tie_word_embeddings"),
        "attention_bias": keys.flag("attention_bias"),
        "query_norm": family.head_norms == "head",
        "bits": None if weights is None else weights.bits,
        **_head(keys, layers),
    }
    plain = validated(Shape, sizes, keys.path)
    own = _kinds(keys, family, kinds, weights, plain.experts)
    alike = {
        "weights": plain.read_parameters(None) - _mlp(plain),
        "cached": plain.cached,
        "window": None,
        "kept": False,
    }
    if len(own) == 1 and all(own[0][key] == value for key, value in alike.items()):
        return plain, weights
    return validated(Shape, {**sizes, "kinds": own}, keys.path), weights


def _mlp(shape: Shape) -> float:
    """Weights of a layer's MLP and router."""
    return shape.router_parameters + shape.mlp_parameters(None)


def _kinds(
    keys: Keys,
    family: ModelFamily,
    kinds: Sequence[str],
    weights: Quantized | None,
    experts: Experts | None,
) -> list[dict[str, Any]]:
    """Return the layers by kind, as keys of ``LayerKind``."""
    hidden, found = keys.size("hidden_size"), list[dict[str, Any]]()
    rest = family.norms * hidden
    if experts is not None:
        mixed = experts.count * family.expert_bias + hidden * family.shared_gate
        mixed += (4 * hidden + experts.count) * family.beside
        rest += round(mixed * (1 - experts.dense_layers / len(kinds)))
    if keys.flag("mlp_bias"):
        rest += 2 * keys.size("intermediate_size") + hidden
    for kind, number in Counter(kinds).items():
        mixer = MIXERS[family.mixers[kind]](family, keys)
        found.append(
            {
                **mixer._asdict(),
                "weights": mixer.weights + rest,
                "layers": number,
                "window": keys.size(WINDOWS[kind]) if kind in WINDOWS else None,
                "kept": weights is not None and kind in weights.kept,
            }
        )
    return found


def _experts(keys: Keys, family: ModelFamily, layers: int) -> dict[str, int] | None:
    """Return the sizes of a mixture's experts; None for a dense model."""
    count = max(keys.size(key, 0, least=0) for key in EXPERTS)
    if count < 2 or (family.beside and not keys.flag("enable_moe_block")):
        return None
    chosen = [key for key in CHOSEN if keys.get(key) is not None] or CHOSEN
    size = keys.size("moe_intermediate_size", keys.get("intermediate_size"))
    shared = max(family.shared, *(keys.size(key, 0, least=0) for key in SHARED))
    every = keys.size("shared_expert_intermediate_size", size * shared, least=0)
    return {
        "count": count,
        "per_token": keys.size(chosen[0]),
        "size": size,
        "shared_size": every + (keys.size("intermediate_size") if family.beside else 0),
        "dense_layers": sum(_dense(keys, layers)),
        "biases": (2 * size + keys.size("hidden_size")) * family.expert_bias,
    }


def _dense(keys: Keys, layers: int) -> list[bool]:
    """Return which layers of a mixture have one MLP instead."""
    named, first = keys.list("mlp_only_layers"), keys.size("first_k_dense_replace", 0, least=0)
    frequency = keys.size("moe_layer_freq", 1)
    step = keys.size("decoder_sparse_step", keys.size("interleave_moe_layer_step", 1))
    kinds, mixed = keys.list("mlp_layer_types"), keys.list("moe_layers")
    if kinds or mixed:
        return [kind == "dense" for kind in kinds] or [n not in mixed for n in range(layers)]
    return [
        n in named or n < first or n % frequency != 0 or (n + 1) % step != 0 for n in range(layers)
    ]


def _head(keys: Keys, layers: int) -> dict[str, Any]:
    """Return what makes a draft head of a layer, by the name of its architecture."""
    told = [*keys.list("architectures"), keys.get("speculators_model_type")]
    kind = " ".join(map(str, told)).lower()
    tables = (keys.get("eagle_config"), keys.get("dflash_config"))
    found = [keys.get(key) for key in AUXILIARY]
    found += [each.get(key) for each in tables if isinstance(each, Mapping) for key in AUXILIARY]
    states = next((len(each) for each in found if isinstance(each, list) and each), None)
    if "eagle3" in kind or "peagle" in kind:
        return {"inputs": states or 3}
    if "dflash" in kind or "dspark" in kind:
        return {"eagle": True, "inputs": states or layers}
    return {"eagle": True} if "eagle" in kind or "mtp" in kind else {}


def _predictor(shape: Shape) -> int:
    """Weights of an MTP head (DeepSeek-V3, section 2.2): a projection of the embedding and the last
    state, a layer with the model's attention and experts, three norms; the ends are borrowed."""
    hidden, experts = shape.hidden_size, shape.experts
    attention = shape.read_parameters(None) - _mlp(shape)
    if attending := [kind.weights for kind in shape.kinds if kind.cached]:
        attention = attending[-1]
    if experts is not None:
        sparse = experts.model_copy(update={"dense_layers": 0})
        shape = shape.model_copy(update={"experts": sparse})
    return round(2 * hidden**2 + 3 * hidden + attention + _mlp(shape))


def _caveats(keys: Keys, weights: Quantized | None) -> Iterator[tuple[str, str]]:
    """Yield what is counted otherwise than it is, by the key that says so."""
    if weights is not None and weights.caveats:
        yield "quantization_config", f"quantization_config: {'; '.join(weights.caveats)}"
    if top := keys.get("index_topk"):
        yield "index_topk", f"index_topk = {top}: attention counts over the whole context"
    unread = keys.unread_but(HARMLESS)
    others = [key for key in unread if key.endswith("_config") and key.startswith(OTHERS)]
    if others:
        yield others[0], f"{', '.join(others)}: what reads no text is not counted"
    if unknown := [key for key in unread if key not in others]:
        yield (
            "unknown",
            f"{', '.join(unknown)}: unknown keys; what they change of sizes, types or attention is "
            f"not counted",
        )
