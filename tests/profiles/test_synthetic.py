"""Times of verification and drafting from benchmarks that were made of known times: they come out
again, and runs that do not tell them apart are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from treepipe.core.errors import UserError
from treepipe.profiles.cost_tables import read_costs
from treepipe.profiles.library import load_device
from treepipe.profiles.schema import EmulatedProfile

SETTINGS = [(n, depth) for n in (1, 2, 4, 8) for depth in (0, 1, 3, 7)]


def verify(rows: int) -> float:
    return 20 + 0.3 * rows + (6 if rows > 16 else 0)


def draft(streams: int) -> float:
    return 1.5 + 0.1 * streams


def result(streams: int, depth: int, rate: int, one_pass: bool = False) -> dict[str, Any]:
    """A result whose first chunks of every request wait for other requests' prompts."""
    passes = min(depth, 1) if one_pass else depth
    step = (verify(streams * (depth + 1)) + passes * draft(streams)) / 1e3
    tokens = 1 + rate * depth
    gaps = [3 * step, *[step] * 31]
    made: dict[str, Any] = {
        "model_id": "some/model", "max_concurrency": streams, "num_prompts": streams,
        "input_lens": [128] * streams, "output_lens": [1 + 32 * tokens] * streams,
        "ttfts": [0.1] * streams, "itls": [gaps] * streams,
    }  # fmt: skip
    if depth:
        made["spec_decode_num_drafts"] = 32 * streams
        made["spec_decode_draft_tokens"] = 32 * streams * depth
        made["spec_decode_acceptance_length"] = tokens
    return made


def written(folder: Path, results: list[dict[str, Any]]) -> Path:
    """As ``--append-result`` writes them."""
    file = folder / "results.json"
    file.write_text("\n".join(map(json.dumps, results)), "utf-8")
    return file


@pytest.mark.parametrize("one_pass", [False, True])
def test_known_times_come_out(one_pass: bool, tmp_path: Path) -> None:
    runs = [result(n, k, rate, one_pass) for n, k in SETTINGS for rate in ((0, 1) if k else (0,))]
    found = read_costs("vllm-synthetic", written(tmp_path, runs))
    (times,) = found.ms.values()
    assert times == pytest.approx({rows: verify(rows) for rows in (1, 2, 4, 8, 16, 32, 64)})
    assert found.draft_ms == pytest.approx({n: draft(n) for n in (1, 2, 4, 8)})
    assert any("as a block draft's" in note for note in found.notes) == one_pass
    assert any("+0.0%, the engine's own work" in note for note in found.notes)


def test_noise_of_two_percent_leaves_times_within_a_few(tmp_path: Path) -> None:
    runs = [result(n, k, 0) for n, k in SETTINGS]
    for number, run in enumerate(runs):
        factor = 1 + 0.02 * (-1) ** number
        run["itls"] = [[gap * factor for gap in own] for own in run["itls"]]
    found = read_costs("vllm-synthetic", written(tmp_path, runs))
    (times,) = found.ms.values()
    assert times == pytest.approx({rows: verify(rows) for rows in times}, rel=0.04)


def test_runs_that_tell_nothing_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"do not tell verification from drafting at 4 rows, 1 str"):
        read_costs("vllm-synthetic", written(tmp_path, [result(1, 3, 0), result(1, 0, 0)]))
    merged = result(1, 3, 0) | {"spec_decode_acceptance_length": 4.0}
    with pytest.raises(UserError, match=r"entry 1: key itls: a chunk has 1 tokens, a step"):
        read_costs("vllm-synthetic", written(tmp_path, [merged]))
    with pytest.raises(UserError, match=r"entry 1: key itls"):
        read_costs("vllm-synthetic", written(tmp_path, [result(2, 0, 0) | {"itls": []}]))
    with pytest.raises(UserError, match=r"entry 1"):
        read_costs("vllm-synthetic", written(tmp_path, [{"model_id": "x"}]))


@pytest.mark.parametrize(
    "change",
    [
        {"itls": [[-1.0, 0.0]]},
        {"itls": [[0.0, 0.0]], "output_lens": [3]},
        {"input_lens": []},
        {"input_lens": [10**400]},
        {"spec_decode_num_drafts": -32},
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="entry 1: key"):
        read_costs("vllm-synthetic", written(tmp_path, [result(1, 3, 0) | change]))


def test_the_command_writes_a_device_of_both(tmp_path: Path, terminal: Terminal) -> None:
    file = written(tmp_path, [result(n, k, 0) for n, k in SETTINGS])
    out = tmp_path / "box.toml"
    terminal.succeeds("profiles", "import", "vllm-synthetic", str(file), "--out", str(out))
    device = load_device(out)
    assert isinstance(device, EmulatedProfile)
    assert device.stage_ms is not None
    assert device.stage_ms[64] == pytest.approx(verify(64))
    assert device.draft_ms is not None
    assert device.draft_ms[8] == pytest.approx(draft(8))
