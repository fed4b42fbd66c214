"""vLLM: a YAML file for ``vllm serve MODEL --config FILE``, with a depth for each batch size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from treepipe.planner.engine import Engine, Served, Settings


def _settings(engine: Engine, served: Served) -> tuple[Settings, Sequence[str]]:
    found: dict[str, Any] = {}
    besides = ["vllm serve MODEL --config THIS-FILE"]
    if served.stages > 1:
        found["pipeline-parallel-size"] = served.stages
    if served.uneven:
        besides[0] = f"VLLM_PP_LAYER_PARTITION={served.uneven} {besides[0]}"
    if served.ranges:
        of = "speculative-config."
        found[of + "method"] = engine.method(served)
        if served.scenario.drafts[0].drafter.weights is None:
            found[of + "prompt_lookup_max"] = served.ngram
        else:
            found[of + "model"] = served.draft
        found[of + "num_speculative_tokens"] = max(each.depth for each in served.ranges)
        if len(served.ranges) > 1:
            by_size = [list(each) for each in served.ranges]
            found[of + "num_speculative_tokens_per_batch_size"] = by_size
    return found, besides


def _text(settings: Settings) -> str:
    """Write YAML, of which JSON is a part."""
    own = {k: v for k, v in settings.items() if "." not in k}
    of = {k.split(".")[1]: v for k, v in settings.items() if "." in k}
    lines = [f"{option}: {json.dumps(value)}" for option, value in own.items()]
    if of:
        quoted = json.dumps(of).replace("'", "''")
        lines.append(f"speculative-config: '{quoted}'")
    return "\n".join([*lines, ""])


ENGINE = Engine("vllm", "vllm", _settings, _text)
