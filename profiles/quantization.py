"""What ``quantization_config`` of a ``config.json`` says of the weights' type: a record per method.

Here belongs reading it; what follows for bytes is in ``shapes.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from treepipe.core.errors import UserError
from treepipe.profiles.families import LINEAR, WAY_OUT, Keys
from treepipe.profiles.shapes import DType

Table: TypeAlias = Mapping[str, Any]
SCALE_BITS = 16
"""Of a group's scale, mostly."""
SMALL = (
    *("lm_head", "embed", "norm", "gate", "router", "visual", "vision", "audio", "mtp", "conv1d"),
    *("multi_modal", "in_proj_a", "in_proj_b", "correction_bias", "sinks"),
)
"""Parts of the names of modules that count as not quantized, or not at all."""
ATTENTION = re.compile(r"(self_attn|linear_attn|attention)(?:[.*\\$]|$)+(\w*)")
WHOLE: tuple[set[str], ...] = (
    *({""}, {"q_proj", "o_proj"}, {"qkv_proj", "o_proj"}, {"q_b_proj", "o_proj"}),
    *({"in_proj_qkv", "out_proj"}, {"in_proj_qkvz", "out_proj"}),
)
"""Names of modules that stand for all of a layer's attention."""
LISTS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules")
ELSE = ("kv_cache_scheme", "kv_cache_quant_algo", "dynamic", "modules_in_block_to_quantize")
"""Keys of what is not counted."""


class Quantized(NamedTuple):
    """Attributes: ``dtype``, ``bits`` of a quantized weight with its scales; ``kept``: kinds of
    layers whose attention is not quantized; ``caveats``: what is not counted."""

    dtype: DType
    bits: float
    kept: frozenset[str]
    caveats: tuple[str, ...]


def _grouped(of: Table) -> float:
    """Bits of integers that share a scale and a zero point in groups (AWQ, GPTQ)."""
    bits = _number(of, "bits", "w_bit")
    group = _number(of, "group_size", "q_group_size")
    return bits + (SCALE_BITS + bits) / group if group > 0 else bits


def _compressed(of: Table) -> float:
    """Bits of compressed-tensors' first group of weights; float4 has scales of 8 bits."""
    groups: Table = of.get("config_groups") or {}
    weights: Table = next((each["weights"] for each in groups.values()), {})
    bits = _number(weights, "num_bits")
    group = weights.get("group_size") or -1
    scale = 8 if weights.get("type") == "float" and bits == 4 else SCALE_BITS
    zero = 0 if weights.get("symmetric", True) else bits
    return bits + (scale + zero) / group if group > 0 else bits


def _blocks(of: Table) -> float:
    """Bits of 8-bit floats with a float32 scale for each block."""
    rows, columns = of.get("weight_block_size") or (1, 4096)
    return 8 + 32 / (rows * columns)


def _bitsandbytes(of: Table) -> float:
    """Bits of NF4 with a float32 for each 64 weights, or nested scales; or of 8-bit integers."""
    if not (of.get("load_in_4bit") or of.get("_load_in_4bit")):
        return 8
    return 4 + (8 / 64 + 32 / (64 * 256) if of.get("bnb_4bit_use_double_quant") else 32 / 64)


def _modelopt(of: Table) -> float:
    """Bits of NVIDIA's formats."""
    known = {"NVFP4": 4 + 8 / 16, "FP8": 8.0, "W4A16_AWQ": 4 + SCALE_BITS / 128}
    return known[str((of.get("quantization") or of).get("quant_algo"))]


METHODS: dict[str, Callable[[Table], float]] = {
    "awq": _grouped,
    "gptq": _grouped,
    "auto-round": _grouped,
    "intel/auto-round": _grouped,
    "compressed-tensors": _compressed,
    "fp8": _blocks,
    "fbgemm_fp8": _blocks,
    "mxfp4": lambda of: 4 + 8 / 32,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
}
"""Bits of a weight with its scales, by ``quant_method``."""
EXPERTS_ONLY = ("mxfp4",)
"""Methods that quantize experts alone (GPT-OSS)."""


def read_quantization(keys: Keys, kinds: Sequence[str]) -> Quantized | None:
    """Read how weights are quantized; None: they are not.

    Args:
        kinds: the kind of every layer.

    Raises ``UserError``: the method is unknown, or does not say how many bits it takes.
    """
    of = keys.get("quantization_config") or keys.get("compression_config")
    if not of:
        return None
    where = f"{keys.path}: key quantization_config"
    if not isinstance(of, Mapping):
        raise UserError(f"{where} = {of!r} must be a table")
    method = of.get("quant_method") or ("modelopt" if "quant_algo" in of else None)
    if not isinstance(method, str) or method not in METHODS:
        raise UserError(
            f"{where}.quant_method = {method!r} is unknown; known are {', '.join(METHODS)}; "
            f"{WAY_OUT}"
        )
    try:
        return _read(of, method, kinds)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        raise UserError(f"{where} does not say how many bits a weight takes; {WAY_OUT}") from None


def _read(of: Table, method: str, kinds: Sequence[str]) -> Quantized:
    """Read a method's table. Raises one of several exceptions if it is not as it should be."""
    bits = METHODS[method](of)
    if not 0 < bits <= SCALE_BITS:
        raise ValueError
    floating = method in ("fp8", "fbgemm_fp8") or "float" in str(of) or "FP8" in str(of)
    dtype: DType = "int4" if bits < 6 else "float8" if floating else "int8"
    caveats = [f"{key} is not counted" for key in ELSE if of.get(key)]
    if method in EXPERTS_ONLY:
        return Quantized(dtype, bits, frozenset(kinds), tuple(caveats))
    ignored = [str(name) for key in LISTS for name in of.get(key) or ()]
    kept, others = _kept(ignored, kinds)
    if others:
        caveats.append(
            f"of what is left in 16 bits, {', '.join(others[:3])}{' and more' * (len(others) > 3)} "
            f"count as quantized"
        )
    groups: Table = of.get("config_groups") or {}
    if len({str(each["weights"]) for each in groups.values()}) > 1:
        caveats.append("all weights count as those of the first of its config_groups")
    return Quantized(dtype, bits, kept, tuple(caveats))


def _number(of: Table, *names: str) -> float:
    """Return the first of these that there is. Raises ``ValueError`` if it is no such number."""
    value = next((of[name] for name in names if of.get(name) is not None), None)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 2**20:
        raise ValueError
    return value


def _kept(ignored: Sequence[str], kinds: Sequence[str]) -> tuple[frozenset[str], list[str]]:
    """Return the kinds of layers whose attention is left, and the names of what else is."""
    layers: dict[str, set[int]] = {kind: set() for kind in kinds}
    parts: dict[tuple[str, int], set[str]] = {}
    others = list[str]()
    for name in ignored:
        found = ATTENTION.search(name.replace("\\.", "."))
        if found is None or any(each in name for each in SMALL):
            others += [name] * (found is None and not any(each in name for each in SMALL))
            continue
        number = re.search(r"layers\.(\d+)\.", name.replace("\\.", "."))
        linear = found[1] == "linear_attn"
        for layer in _numbers(number, kinds):
            if (kinds[layer] == LINEAR) is linear:
                parts.setdefault((kinds[layer], layer), set()).add(found[2])
    for (kind, layer), named in parts.items():
        if any(whole <= named for whole in WHOLE):
            layers[kind].add(layer)
        else:
            others.append(f"layer {layer}'s {', '.join(sorted(named))}")
    kept = frozenset(kind for kind, own in layers.items() if len(own) == list(kinds).count(kind))
    others += [
        f"attention of {len(own)} {kind} layers"
        for kind, own in layers.items()
        if own and kind not in kept
    ]
    return kept, others


def _numbers(number: re.Match[str] | None, kinds: Sequence[str]) -> Iterator[int]:
    if number is None:
        yield from range(len(kinds))
    elif int(number[1]) < len(kinds):
        yield int(number[1])
