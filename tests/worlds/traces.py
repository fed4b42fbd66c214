"""Workload traces and a benchmark's result, written by hand as published files look."""

from __future__ import annotations

import json
from typing import Any


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


MOONCAKE = lines(
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 1024, "output_length": 6, "hash_ids": [0, 1]},
    {"timestamp": 1500, "input_length": 1300, "output_length": 7, "hash_ids": [0, 7, 2]},
)
SESSIONS = lines(
    {"session_id": "a", "timestamp": 1000, "input_length": 10, "output_length": 5},
    {"session_id": "a", "delay": 250, "input_length": 30, "output_length": 6},
    {"session_id": "b", "timestamp": 1100, "input_length": 9, "output_length": 7},
)
VLLM = {
    "model_id": "m",
    "start_times": [100.5, 100.0, 101.0],
    "input_lens": [7, 8, 9],
    "output_lens": [5, 4, 0],
    "ttfts": [0.1, 0.2, 0.0],
    "itls": [[0.03, 0.05], [0.03, 0.03, 0.03], []],
    "spec_decode_num_drafts": 10,
    "spec_decode_draft_tokens": 20,
    "spec_decode_accepted_tokens": 9,
    "spec_decode_per_position_acceptance_rates": [0.6, 0.3],
}
CSV = "arrival_s,prompt_tokens,new_tokens,session,delay_s,known_tokens\n1,9,5,a,,\n2,8,4,a,0.5,3\n"
