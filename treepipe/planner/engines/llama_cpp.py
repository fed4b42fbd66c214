"""llama.cpp: a preset for ``llama-server --models-preset FILE`` (INI: options without dashes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treepipe.planner.engine import Engine, Served, Settings


def _settings(engine: Engine, served: Served) -> tuple[Settings, Sequence[str]]:
    found: dict[str, Any] = {"model": "MODEL.gguf"}
    besides = ["llama-server --models-preset THIS-FILE; put your model for MODEL.gguf"]
    if served.stages > 1:
        layers = ",".join(map(str, served.layers)) or ",".join("1" * served.stages)
        found |= {"split-mode": "layer", "tensor-split": layers}
        besides.append("Stages on other hosts: rpc-server there, and --rpc HOST:PORT,... here.")
    streams = served.streams
    depth = 0 if served.depths is None else served.depths.depth_at(streams)
    found["parallel"] = streams
    if not depth:
        if served.ranges:
            besides.append(f"For {streams} streams drafting does not pay, so it is off.")
        return found, besides
    found["spec-type"] = engine.method(served)
    if served.scenario.drafts[0].drafter.weights is None:
        found["spec-ngram-simple-size-n"] = served.ngram
        found["spec-ngram-simple-size-m"] = depth
    else:
        found |= {"spec-draft-model": served.draft, "spec-draft-n-max": depth}
    besides.append(f"The depth is that for {streams} streams (workload.concurrency).")
    return found, besides


def _text(settings: Settings) -> str:
    lines = [f"{option} = {value}" for option, value in settings.items()]
    return "\n".join(["version = 1", "[plan]", *lines, ""])


ENGINE = Engine("llama.cpp", "llama_cpp", _settings, _text, mark=";")
