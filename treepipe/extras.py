"""Checks for optional libraries (extras)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from treepipe.core.errors import UserError

EXECUTOR = ("msgspec", "safetensors", "tokenizers", "torch", "transformers", "zmq")


def need(extra: str, modules: Sequence[str], who: str) -> None:
    """Raise ``UserError`` if an extra is not installed, without a slow import."""
    for name in modules:
        if find_spec(name) is None:
            raise UserError(
                f"{who} needs the extra {extra!r} ({name} is not installed): "
                f"pip install 'treepipe[{extra}]'"
            )


def need_executor(who: str) -> None:
    """Raise ``UserError`` if the extra 'executor' is not installed."""
    need("executor", EXECUTOR, who)


def need_parquet(who: str = "treepipe sweep") -> None:
    """Raise ``UserError`` if the extra 'sweep' is not installed."""
    need("sweep", ("pyarrow",), who)
