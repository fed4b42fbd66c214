"""SGLang: a YAML file for ``python -m sglang.launch_server --config FILE``, with one depth."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from treepipe.planner.engine import Engine, Served, Settings


def _settings(engine: Engine, served: Served) -> tuple[Settings, Sequence[str]]:
    found: dict[str, Any] = {}
    environment, besides = [], list[str]()
    if served.stages > 1:
        found["pipeline-parallel-size"] = served.stages
    if served.uneven:
        environment.append(f"SGLANG_PP_LAYER_PARTITION={served.uneven} ")
    depth = 0 if served.depths is None else served.depths.depth_at(served.streams)
    if depth:
        found |= {
            "speculative-algorithm": engine.method(served),
            "speculative-draft-model-path": served.draft,
            "speculative-num-steps": depth,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": depth + 1,  # the root is one of them
        }
        besides.append(f"The depth is that for {served.streams} streams (workload.concurrency).")
        if served.stages > 1:
            environment.append("SGLANG_ENABLE_PP_SPEC=1 ")
            found["disable-overlap-schedule"] = True
        last = max(each.last for each in served.ranges if each.depth)
        if last < served.ranges[-1].last:
            found["max-running-requests"] = last
            besides.append(f"More than {last} streams wait, since drafting does not pay for them.")
    elif served.ranges:
        besides.append(f"For {served.streams} streams drafting does not pay, so it is off.")
    command = "python -m sglang.launch_server --model-path MODEL --config THIS-FILE"
    return found, ["".join(environment) + command, *besides]


def _text(settings: Settings) -> str:
    """Write YAML, of which JSON is a part."""
    return "".join(f"{option}: {json.dumps(value)}\n" for option, value in settings.items())


ENGINE = Engine("sglang", "sglang", _settings, _text)
