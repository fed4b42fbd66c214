"""What a scenario says of faults: how soon they are noticed."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from treepipe.files.section import Section

DEFAULT_TIMEOUT_MS = 2000.0
"""How long a worker may be silent in a run."""


class FaultsSection(Section):
    """Workers that fail."""

    timeout_ms: Annotated[float, Field(ge=1000, allow_inf_nan=False)] = Field(
        DEFAULT_TIMEOUT_MS, description="executor: a worker silent for so long is given up"
    )
    spares: Annotated[int, Field(ge=0, le=1000)] = Field(
        0, description="lost workers that are replaced, in each run"
    )
