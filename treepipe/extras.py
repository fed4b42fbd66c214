"""The optional libraries: whether what needs the executor can run."""

from __future__ import annotations

from importlib.util import find_spec

from treepipe.core.errors import UserError

EXECUTOR = ("msgspec", "safetensors", "tokenizers", "torch", "transformers", "zmq")


def need_executor(who: str) -> None:
    """Raise ``UserError`` if the extra 'executor' is not installed; nothing of it is loaded, since
    that takes seconds, and most refusals come before."""
    for name in EXECUTOR:
        if find_spec(name) is None:
            raise UserError(
                f"{who} needs the extra 'executor' ({name} is not installed): "
                f"pip install 'treepipe[executor]'"
            )
