"""The EAGLE-3 head as a module, and its published checkpoint layouts.

Li et al., EAGLE-3, section 3.1: ``fc`` joins states of the target from three depths, a decoder
layer reads each with the next token's embedding, and the head's own projection reads tokens of a
reduced vocabulary off it. Three dialects of one layout are read: EAGLE's own, SpecForge's (both
``midlayer.*``) and speculators' (``layers.0.*``, with a nested configuration and some keys of other
meaning).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from treepipe.core.errors import UserError
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle_head import load_module, read_head_tensors
from treepipe.executor.models.families import FAMILIES, AutoConfig, fixed_rotary
from treepipe.executor.models.packed import pack
from treepipe.executor.models.supported import config_of
from treepipe.files.reading import read_json

FAMILY_OF = {FAMILIES[name].model_type: name for name in ("LlamaForCausalLM", "Qwen3ForCausalLM")}
"""Architectures of the heads' layers, by their ``model_type``."""
TABLES = ("d2t", "t2d", "embed_tokens.weight")
"""Tensors that belong to no layer."""


@dataclass(frozen=True, slots=True)
class HeadRules:
    """Settings by which heads of the same tensors differ.

    Attributes:
        before_residual: the layer's residual is the normed state.
        feeds_normed: the next level reads the state behind the final norm.
        norms_output: the projection reads it.
        inputs: number of the target's states.
        state_norms: "each" state has a norm before ``fc``, "all" of them have one together.
        target_width: width of the target's states.
        tokens: size of the head's vocabulary.
    """

    before_residual: bool = False
    feeds_normed: bool = False
    norms_output: bool = True
    inputs: int = 3
    state_norms: str = ""
    target_width: int = 0
    tokens: int = 0


class FirstLayer(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A decoder layer that reads an embedding and a state, [batch, n, 2 hidden], and gives a
    state."""

    def __init__(self, config: Any, architecture: str, *, before_residual: bool) -> None:
        super().__init__()
        family, width = FAMILIES[architecture], config.hidden_size
        layer = family.layer(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(layer.self_attn, name)
            bias = old.bias is not None
            setattr(layer.self_attn, name, nn.Linear(2 * width, old.out_features, bias=bias))
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm = layer.input_layernorm
        self.post_attention_layernorm = layer.post_attention_layernorm
        self.hidden_norm = family.norm(width, config.rms_norm_eps)
        self._before_residual = before_residual

    def forward(self, rows: torch.Tensor, **rest: Any) -> torch.Tensor:
        """``rest`` are the other arguments of a decoder layer."""
        embedded, state = rows.chunk(2, -1)
        normed = self.hidden_norm(state)
        joined = torch.cat((self.input_layernorm(embedded), normed), -1)
        states = normed if self._before_residual else state
        states = states + self.self_attn(hidden_states=joined, **rest)[0]
        result: torch.Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return result


class Eagle3Head(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The head without its tables of tokens."""

    def __init__(self, config: Any, architecture: str, rules: HeadRules, *, bias: bool) -> None:
        """Build the module; ``bias`` is that of ``fc``."""
        super().__init__()
        family, width = FAMILIES[architecture], config.hidden_size
        self.config, self.rules = config, rules
        first = FirstLayer(config, architecture, before_residual=rules.before_residual)
        further = [family.layer(config, n) for n in range(1, config.num_hidden_layers)]
        self.layers = nn.ModuleList([first, *further])
        joined = rules.inputs * rules.target_width
        self.fc = nn.Linear(joined, width, bias=bias)
        if rules.state_norms == "each":
            norms = [
                family.norm(rules.target_width, config.rms_norm_eps) for _ in range(rules.inputs)
            ]
            self.fc_norm = nn.ModuleList(norms)
        elif rules.state_norms:
            self.input_norm = family.norm(joined, config.rms_norm_eps)
        if rules.norms_output or rules.feeds_normed:
            self.norm = family.norm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, rules.tokens, bias=False)
        self.rotary = fixed_rotary(architecture, config)

    def observed(self, states: torch.Tensor) -> torch.Tensor:
        """Join the target's states [..., inputs x target width] to one [..., hidden]."""
        if self.rules.state_norms == "each":
            parts = states.chunk(self.rules.inputs, -1)
            states = torch.cat(
                [norm(own) for norm, own in zip(self.fc_norm, parts, strict=True)], -1
            )
        elif self.rules.state_norms:
            states = self.input_norm(states)
        joined: torch.Tensor = self.fc(states)
        return joined

    def fed_on(self, states: torch.Tensor) -> torch.Tensor:
        """Return what the next level reads of the last layer's states [..., hidden]."""
        return self.norm(states) if self.rules.feeds_normed else states

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Project the last layer's states [..., hidden] -> [..., tokens of the head]."""
        found: torch.Tensor = self.lm_head(self.norm(states) if self.rules.norms_output else states)
        return found


def load_eagle3(
    directory: Path,
    target: Checkpoint,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> tuple[Eagle3Head, torch.Tensor | None, torch.Tensor | None]:
    """Load a head for a target.

    Also returned are its own embedding [vocabulary, hidden] (None: the target's) and the target's
    token by the head's (None: they are the same). Raises ``UserError``: a file is wrong, lacks
    something, or does not fit the target.
    """
    path, tensors = directory / "config.json", _renamed(read_head_tensors(directory))
    content = read_json(path)
    _check_kind(path, content, target)
    config, architecture = _layers_config(path, content, tensors)
    if "fc.weight" not in tensors:
        raise UserError(f"{directory}: is no EAGLE-3 head, tensor fc.weight is missing")
    rules = _rules(path, content, tensors, target)
    with torch.device("meta"):
        head = Eagle3Head(config, architecture, rules, bias="fc.bias" in tensors)
    head.rotary = fixed_rotary(architecture, config)
    tables = {name: tensors.pop(name) for name in TABLES if name in tensors}
    for name in tensors.keys() - head.state_dict().keys():
        raise UserError(f"{directory}: an EAGLE-3 head has no place for tensor {name}")
    load_module(head, tensors, directory, dtype, device)
    pack(head)
    embedding = _embedding(directory, tables, config.hidden_size, target)
    tokens = _tokens(directory, tables, rules.tokens, target.vocabulary)
    return (
        head,
        None if embedding is None else embedding.to(device, dtype),
        None if tokens is None else tokens.to(device),
    )


def _renamed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors under speculators' names; SGLang norms a further layer's input by
    ``hidden_norm``."""
    found = {name.replace("midlayer.", "layers.0."): each for name, each in tensors.items()}
    for name in [*found]:
        own = name.replace("hidden_norm", "input_layernorm")
        if own != name and not name.startswith("layers.0.") and own not in found:
            found[own] = found.pop(name)
    return found


def _check_kind(path: Path, content: Mapping[str, Any], target: Checkpoint) -> None:
    """Raise ``UserError`` if it is another kind of draft, or a head of another target."""
    kind = content.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise UserError(f"{path}: key speculators_model_type = {kind!r} is no EAGLE-3 head")
    if (content.get("eagle_config") or {}).get("use_aux_hidden_state") is False:
        raise UserError(
            f"{path}: key eagle_config.use_aux_hidden_state = false is not supported; such a head "
            f"reads one state only"
        )
    verifier = (content.get("speculators_config") or {}).get("verifier") or {}
    named, own = verifier.get("name_or_path"), read_json(target.directory / "config.json")
    ours = f"{target.directory.resolve()} {own.get('_name_or_path')}"
    if named and str(named).rstrip("/").split("/")[-1] not in ours:
        raise UserError(
            f"{path}: key speculators_config.verifier.name_or_path = {named!r}: the head is for "
            f"another target than {target.directory} (a copy has that name in its path)"
        )


def _layers_config(
    path: Path, content: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> tuple[Any, str]:
    """Return the configuration of the head's layers and their architecture."""
    own = {**(content.get("transformer_layer_config") or content)}
    kind = own.pop("model_type", "llama")
    if kind not in FAMILY_OF:
        raise UserError(
            f"{path}: key model_type = {kind!r} of the head's layers is not supported; supported "
            f"are {', '.join(FAMILY_OF)}"
        )
    held = {int(name.split(".")[1]) for name in tensors if name.startswith("layers.")}
    count = own.get("num_hidden_layers", 1)
    if held != {*range(count)}:
        raise UserError(
            f"{path}: key num_hidden_layers = {count}, but the weights hold layers {sorted(held)}"
        )
    for name in ("architectures", "auto_map", "quantization_config"):
        if own.pop(name, None) is not None and name == "quantization_config":
            raise UserError(f"{path}: key quantization_config is not supported")
    return config_of(path, lambda: AutoConfig.for_model(kind, **own)), FAMILY_OF[kind]


def _rules(
    path: Path,
    content: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    target: Checkpoint,
) -> HeadRules:
    """Read the settings in the dialect of the file."""
    speculators = "speculators_model_type" in content
    if speculators and "norm_before_residual" not in content:
        raise UserError(
            f"{path}: key norm_before_residual is missing; speculators takes false for it, vLLM "
            f"true: say there which the head was trained with"
        )
    each, all_ = ("fc_norm.0.weight" in tensors, "input_norm.weight" in tensors)
    for key, there in (("fc_norm", each), ("norm_before_fc", all_)):
        if bool(content.get(key, there)) != there:
            raise UserError(
                f"{path}: key {key} = {str(bool(content[key])).lower()}, but the weights "
                f"{'hold' if there else 'lack'} such norms"
            )
    if each and all_:
        raise UserError(f"{path.parent}: holds both fc_norm and input_norm; a head has one of them")
    width = content.get("target_hidden_size") or target.hidden_size
    if width != target.hidden_size:
        raise UserError(
            f"{path}: key target_hidden_size = {width} differs from the target's "
            f"{target.hidden_size}"
        )
    projection = tensors.get("lm_head.weight")
    if projection is None:
        raise UserError(
            f"{path.parent}: the weights are incomplete, tensor lm_head.weight is missing"
        )
    return HeadRules(
        before_residual=bool(content.get("norm_before_residual", False)),
        feeds_normed=speculators and bool(content.get("norm_output", False)),
        norms_output=speculators or bool(content.get("norm_output", True)),
        inputs=tensors["fc.weight"].shape[-1] // target.hidden_size,
        state_norms="each" if each else "all" if all_ else "",
        target_width=target.hidden_size,
        tokens=content.get("draft_vocab_size") or len(projection),
    )


def _embedding(
    directory: Path, tables: Mapping[str, torch.Tensor], width: int, target: Checkpoint
) -> torch.Tensor | None:
    """Return the head's own embedding, which it needs if it is of another width."""
    embedding = tables.get("embed_tokens.weight")
    if embedding is None and width != target.hidden_size:
        raise UserError(
            f"{directory}: tensor embed_tokens.weight is missing, which a head of width {width} "
            f"needs for a target of width {target.hidden_size}"
        )
    if embedding is not None and embedding.shape != (target.vocabulary, width):
        raise UserError(
            f"{directory}: tensor embed_tokens.weight has shape {tuple(embedding.shape)}, "
            f"wanted is {(target.vocabulary, width)}"
        )
    return embedding


def _tokens(
    directory: Path, tables: Mapping[str, torch.Tensor], count: int, vocabulary: int
) -> torch.Tensor | None:
    """Return the target's tokens by the head's. ``d2t`` holds differences (EAGLE)."""
    known = tables.get("t2d")
    if known is not None and len(known) != vocabulary:
        raise UserError(
            f"{directory}: tensor t2d is for {len(known)} tokens, the target has {vocabulary}"
        )
    if "d2t" not in tables:
        if count != vocabulary:
            raise UserError(
                f"{directory}: tensor d2t is missing; the head has {count} tokens, the target "
                f"{vocabulary}"
            )
        return None
    differences = tables["d2t"].long()
    if differences.shape != (count,):
        raise UserError(
            f"{directory}: tensor d2t has shape {tuple(differences.shape)}, not {count}"
        )
    tokens = differences + torch.arange(count)
    inside = bool((tokens >= 0).all() and (tokens < vocabulary).all())
    if not inside or len(tokens.unique()) != count:
        raise UserError(f"{directory}: tensor d2t does not give each of {count} tokens its own")
    if known is not None and not (known.sum() == count and known.bool()[tokens].all()):
        raise UserError(f"{directory}: tensors d2t and t2d name different tokens")
    return tokens
