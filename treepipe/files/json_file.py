"""Reading JSON files that others wrote (``config.json`` and the like); faults in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.files.reading import UNREADABLE, read_text, reading_fault


def read_json(path: Path) -> dict[str, Any]:
    """The object in the file. Raises ``UserError`` if there is none."""
    try:
        content = json.loads(read_text(path))
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except UNREADABLE as error:
        raise UserError(f"{path}: is not valid JSON: {reading_fault(error)}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold a JSON object")
    return content
