"""Questions about one stream alone, which a formula answers in the cases of uncertain inputs."""

from __future__ import annotations

import pytest

from treepipe.planner import depths


def few_streams(monkeypatch: pytest.MonkeyPatch, most: int = 4) -> None:
    """Let the formula be evaluated for up to ``most`` streams, not for 256, in every case."""
    monkeypatch.setattr(depths, "MOST_STREAMS", most)
    monkeypatch.setattr(depths, "SHOWN", tuple(n for n in depths.SHOWN if n <= most))
