"""Scenario files whose roles are at workers; for tests of what several hosts are asked for."""

from __future__ import annotations

from pathlib import Path

A, B, C = "10.0.0.1:5600", "10.0.0.2:5600", "10.0.0.3:5600"
STAGES = tuple(f"pipeline0.stage{number}" for number in (1, 2, 3))
TEXT = """
name = "hosts"
[target]
layers = 6
hidden_size = 64
[[drafts]]
device = "emulated-20ms"
{draft}
[[pipelines]]
stages = [
  {{ device = "emulated-20ms"{0} }},
  {{ device = "emulated-20ms"{1} }},
  {{ device = "emulated-20ms"{2} }},
]
[links]
default = {{ latency_ms = 7.0, medium = "air" }}
pairs = [
  {{ ends = ["draft0", "pipeline0.stage2"], latency_ms = 8.0, duplex = "half" }},
  {{ ends = ["pipeline0.stage2", "pipeline0.stage3"], latency_ms = 9.0 }},
]
[schedule]
name = "flowspec"
tree_size = 8
[acceptance]
source = "bernoulli"
beta = 0.7
[workload]
requests = 1
new_tokens = 8
"""


def scenario_at(folder: Path, *workers: str | None) -> Path:
    """A file whose draft and three stages are at these workers; None: the coordinator's host."""
    draft, *stages = workers
    said = [f', worker = "{each}"' if each else "" for each in stages]
    path = folder / "hosts.toml"
    path.write_text(TEXT.format(*said, draft=f'worker = "{draft}"' if draft else ""))
    return path
