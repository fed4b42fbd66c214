"""Profile files that tests write: measured devices, and models of a given size."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from treepipe.files.toml_file import toml_text

WIDTH = 192
"""Of the hidden states of a model of a given size, in float32."""
ORIGIN = {"source": "made up", "date": "2026-01-01", "hardware": "none", "versions": "none"}


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that lives as long as the tests."""
    return tempfile.TemporaryDirectory(prefix="treepipe-profiles-")


def _written(text: str) -> str:
    path = Path(_folder().name) / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.toml"
    path.write_text(text)
    return str(path)


def device_file(keys: Mapping[str, Any]) -> str:
    """Write a device profile of these keys. Returns its path, which stands for its name."""
    return _written(toml_text({**keys, "origin": ORIGIN}))


def model_file(layers: int, layer_mib: float, kv_kib: float) -> str:
    """Write a model profile of this size: MiB of a layer's weights, and KiB of a token's keys and
    values in a layer. Its other weights are a few KiB."""
    origin = {key: ORIGIN[key] for key in ("source", "date")}
    # A gated MLP of width 1 is a part of the weights.
    weights = round(layer_mib * 2**18) - 3 * WIDTH
    kind = {"layers": layers, "weights": weights, "cached": round(kv_kib * 2**8), "operations": 1}
    sizes = dict.fromkeys(("heads", "kv_heads", "head_dim", "vocabulary", "intermediate_size"), 1)
    keys = {**sizes, "hidden_size": WIDTH, "layers": layers, "dtype": "float32", "tied": True}
    return _written(toml_text({**keys, "kinds": [kind], "origin": origin}))
