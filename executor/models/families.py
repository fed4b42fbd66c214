"""The supported architectures, a record each, and their layer classes; this import takes seconds.

A record says what an architecture does apart from Llama around its own layer module: which layers
attend to a window only, how its files hold experts, what its ends do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig as AutoConfig
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.glm4 import modeling_glm4
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.olmo2 import modeling_olmo2
from transformers.models.phi3 import modeling_phi3
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

FULL, SLIDING = "full_attention", "sliding_attention"
"""Kinds of layers, by the names of ``layer_types`` in ``config.json``."""


class ExpertNames(NamedTuple):
    """How files name the matrices of each expert, which a layer of transformers holds stacked.

    Attributes:
        block: name of the feed-forward part, which is ``mlp`` in the layer.
    """

    block: str
    gate: str
    up: str
    down: str

    def stored(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Shapes of the files' tensors, given those of the layer's."""
        found, parts = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
        for name, shape in shapes.items():
            if name == "mlp.experts.gate_up_proj":
                count, both, hidden = shape
                parts = {self.gate: (both // 2, hidden), self.up: (both // 2, hidden)}
            elif name == "mlp.experts.down_proj":
                count, *one = shape
                parts = {self.down: tuple(one)}
            else:
                found[name.replace("mlp.", f"{self.block}.")] = shape
                continue
            for part, one_shape in parts.items():
                found |= {self._name(number, part): one_shape for number in range(count)}
        return found

    def stacked(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Join the files' tensors to the layer's."""
        rest = dict(tensors)
        count = sum(name.endswith(f".{self.down}.weight") for name in rest)
        gates, ups, downs = (
            [rest.pop(self._name(number, part)) for number in range(count)]
            for part in (self.gate, self.up, self.down)
        )
        both = [torch.cat(pair) for pair in zip(gates, ups, strict=True)]
        found = {name.replace(f"{self.block}.", "mlp."): each for name, each in rest.items()}
        found["mlp.experts.gate_up_proj"] = torch.stack(both)
        found["mlp.experts.down_proj"] = torch.stack(downs)
        return found

    def _name(self, number: int, part: str) -> str:
        return f"{self.block}.experts.{number}.{part}.weight"


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture: its classes in transformers, and what it does apart from Llama.

    Attributes:
        model: base class of its models, which says what its layers need around them.
        slides: whether ``sliding_window`` holds for all layers ("all"), for those that
            ``layer_types`` names ("named"), or is not read ("none").
        partial_rotary: whether only a share of a head's width is rotated.
        rotary_by_kind: whether the kinds of layers have rotary embeddings of their own.
        scales_embedding: whether embeddings are multiplied by the square root of their width.
        softcaps: whether ``final_logit_softcapping`` bounds the logits.
        experts: None where files and layers name all tensors alike.
        routes: whether each row chooses experts, whose rows only the host counts.
    """

    architecture: str
    model_type: str
    layer: Any
    rotary: Any
    norm: Any
    model: Any
    slides: str = "none"
    partial_rotary: bool = False
    rotary_by_kind: bool = False
    scales_embedding: bool = False
    softcaps: bool = False
    experts: ExpertNames | None = None
    routes: bool = False

    @classmethod
    def of(cls, module: Any, name: str, **differences: Any) -> Family:
        """Return an architecture's record, given transformers' module and its classes' name."""
        architecture = f"{name}ForCausalLM"
        parts = ("DecoderLayer", "RotaryEmbedding", "RMSNorm", "PreTrainedModel")
        layer, rotary, norm, model = (getattr(module, name + part) for part in parts)
        model_type = getattr(module, architecture).config_class.model_type
        return cls(architecture, model_type, layer, rotary, norm, model, **differences)

    @property
    def attention(self) -> str:
        """Implementation of attention that its layers are run with, by transformers' name: "eager"
        where a layer does more than the usual one (sinks, bounded scores)."""
        return "sdpa" if self.model._supports_sdpa else "eager"

    def kind(self, config: Any, number: int) -> str:
        """Return the kind of a layer."""
        if self.slides == "none" or not getattr(config, "sliding_window", None):
            return FULL
        return SLIDING if self.slides == "all" else str(config.layer_types[number])

    def uncaptured(self, device: str) -> str | None:
        """Return why no graph of its passes can be captured on a device, or None."""
        if self.routes and device != "cpu":
            return f"the host counts the rows of each of {self.model_type}'s experts"
        return None

    def embedding_scale(self, config: Any, dtype: torch.dtype) -> torch.Tensor | None:
        """Return the factor of embeddings, rounded to the type; None if there is none."""
        if not self.scales_embedding:
            return None
        return torch.tensor(config.hidden_size**0.5, dtype=torch.float32).to(dtype)

    def softcap(self, config: Any) -> float | None:
        """Return the bound c of logits x, as c tanh(x / c); None if there is none."""
        bound: float | None = config.final_logit_softcapping if self.softcaps else None
        return bound

    def dtype_of(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """Type of a weight in a model of this type: some are kept in float32."""
        kept = [*(self.model._keep_in_fp32_modules_strict or ())]
        if dtype == torch.float16:
            kept += self.model._keep_in_fp32_modules or ()
        wide = dtype != torch.float32 and any(re.search(each, name) for each in kept)
        return torch.float32 if wide else dtype


_GEMMA = {"scales_embedding": True, "softcaps": True}
_RECORDS = (
    Family.of(modeling_llama, "Llama"),
    Family.of(modeling_mistral, "Mistral", slides="all"),
    Family.of(
        modeling_mixtral,
        "Mixtral",
        slides="all",
        routes=True,
        experts=ExpertNames("block_sparse_moe", "w1", "w3", "w2"),
    ),
    Family.of(modeling_qwen2, "Qwen2", slides="named"),
    Family.of(modeling_qwen3, "Qwen3", slides="named"),
    Family.of(
        modeling_qwen3_moe,
        "Qwen3Moe",
        slides="all",
        routes=True,
        experts=ExpertNames("mlp", "gate_proj", "up_proj", "down_proj"),
    ),
    Family.of(modeling_gemma2, "Gemma2", slides="named", **_GEMMA),
    Family.of(modeling_gemma3, "Gemma3", slides="named", rotary_by_kind=True, **_GEMMA),
    Family.of(modeling_gpt_oss, "GptOss", slides="named", routes=True),
    Family.of(modeling_phi3, "Phi3", slides="all", partial_rotary=True),
    Family.of(modeling_olmo2, "Olmo2"),
    Family.of(modeling_glm4, "Glm4", partial_rotary=True),
)
FAMILIES = {family.architecture: family for family in _RECORDS}
"""Supported architectures by the name in ``config.json``."""


def layer_shapes(architecture: str, config: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of a decoder layer's tensors by their names in files; a model's layers are alike."""
    family = FAMILIES[architecture]
    with torch.device("meta"):
        layer = family.layer(config, 0)
    shapes = {name: tuple(tensor.shape) for name, tensor in layer.state_dict().items()}
    return shapes if family.experts is None else family.experts.stored(shapes)


def fixed_rotary(architecture: str, config: Any) -> Any:
    """Make the rotary embedding with the frequencies of a text's beginning.

    The kinds "dynamic" and "longrope" change them by the longest position in a pass, which may be a
    drafted token's that is never committed. Texts end before that: ``supported.max_positions``.
    """
    rotary = FAMILIES[architecture].rotary(config=config)
    fixed = "default"  # the kind that transformers leaves alone
    by_kind = isinstance(rotary.rope_type, dict)  # of layers
    rotary.rope_type = dict.fromkeys(rotary.rope_type, fixed) if by_kind else fixed
    return rotary


class Rotations:
    """Cosines and sines of every position, from ``fixed_rotary``."""

    def __init__(self, rotary: Any, dtype: torch.dtype, device: str, kind: str = FULL) -> None:
        """Args: ``kind``: the kind of layers, where each has frequencies of its own."""
        by_kind = isinstance(rotary.rope_type, dict)
        self._rotary = partial(rotary, layer_type=kind) if by_kind else rotary
        self._like = torch.empty(0, dtype=dtype, device=device)
        self._tables: tuple[torch.Tensor, ...] = ()

    def at(self, place: torch.Tensor, below: int) -> tuple[torch.Tensor, ...]:
        """Return [1, rows, head] each, for positions [1, rows] that are less than ``below``."""
        if not self._tables or len(self._tables[0]) < below:
            known = torch.arange(2 * below, device=self._like.device)[None]
            self._tables = tuple([table[0] for table in self._rotary(self._like, known)])
        return tuple([table[place] for table in self._tables])
