"""The optional libraries: whether a command that needs the executor can run."""

from __future__ import annotations

from treepipe.core.errors import UserError


def need_executor(command: str) -> None:
    """Raises ``UserError`` if the extra 'executor' is not installed."""
    try:
        import safetensors  # noqa: F401
        import tokenizers  # noqa: F401
        import torch  # noqa: F401
        import transformers  # noqa: F401
        import zmq  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"treepipe {command} needs the extra 'executor' ({error.name} is not installed): "
            f"pip install 'treepipe[executor]'"
        ) from None
