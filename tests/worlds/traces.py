"""Workload traces and results of benchmarks, written by hand as published files look."""

from __future__ import annotations

import json
from typing import Any


def lines(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def aiperf(start_s: float, end_s: float, session: str, turn: int, new: int = 4) -> dict[str, Any]:
    sizes = {"input_sequence_length": 20, "output_sequence_length": new}
    times = {"time_to_first_token": 100.0, "inter_chunk_latency": [50.0, 40.0]}
    return {
        "metadata": {
            "x_correlation_id": session,
            "conversation_id": "c",
            "turn_index": turn,
            "request_start_ns": 1759813207000000000 + round(start_s * 1e9),
            "request_end_ns": 1759813207000000000 + round(end_s * 1e9),
        },
        "metrics": {name: {"value": value} for name, value in (sizes | times).items()},
        "error": None,
        "spec_decode_acceptance": {
            "engine": "vllm",
            "acceptance_histogram": [1, 0, 1],
            "num_spec_steps": 2,
            "num_draft_tokens": 4,
            "num_accepted_draft_tokens": 2,
            "num_spec_tokens": 2,
        },
    }


FAILED = {
    "metadata": {"request_start_ns": 1759813207000000000},
    "metrics": {"error_isl": {"value": 550}},
    "error": {"code": 499},
}
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
BAILIAN = lines(
    {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.0, "input_length": 40}
    | {"output_length": 132, "type": "text", "turn": 1, "hash_ids": [5, 6, 7]},
    {"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 60}
    | {"output_length": 80, "type": "text", "turn": 2, "hash_ids": [5, 6, 8, 9]},
)
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
BLIS = """version: 2
time_unit: us
request_id,session_id,round_index,prefix_group,prefix_length,input_tokens,output_tokens,\
arrival_time_us,last_chunk_time_us,status
0,s,0,g,16,20,4,1000000,3000000,ok
1,s,1,g,16,40,5,3500000,5000000,ok
2,,0,,,7,6,2000000,2500000,ok
"""
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
