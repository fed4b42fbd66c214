"""Device profiles of the passes that engines' benchmarks time: each row of a file comes out again,
and what is no such file is one sentence with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.command_line import Terminal
from treepipe import simulate
from treepipe.core.errors import UserError
from treepipe.profiles.cost_tables import read_costs
from treepipe.profiles.library import check_file, find_model, load_device, shape_of
from treepipe.profiles.schema import DeviceProfile, EmulatedProfile
from treepipe.profiles.service import Remark, ServedModel, ServiceTimes
from treepipe.scenario.scenario import Scenario

# A test as llama-bench -o json prints it (llama.cpp, tools/llama-bench/README.md).
TEST: dict[str, Any] = {
    "build_commit": "8cf427ff", "build_number": 5163, "backends": "CUDA",
    "cpu_info": "AMD Ryzen 7 7800X3D 8-Core Processor", "gpu_info": "NVIDIA GeForce RTX 4080",
    "model_filename": "models/Qwen2.5-7B-Instruct-Q4_K_M.gguf",
    "model_type": "qwen2 7B Q4_K - Medium", "model_size": 4677120000, "model_n_params": 7615616512,
    "n_batch": 2048, "n_ubatch": 512, "n_threads": 8, "cpu_mask": "0x0", "cpu_strict": False,
    "poll": 50, "type_k": "f16", "type_v": "f16", "n_gpu_layers": 99, "split_mode": "layer",
    "main_gpu": 0, "no_kv_offload": False, "flash_attn": False, "tensor_split": "0.00",
    "use_mmap": True, "embeddings": False, "n_prompt": 4, "n_gen": 0, "n_depth": 0,
    "test_time": "2025-04-24T11:58:50Z", "avg_ns": 9000000, "stddev_ns": 145375,
    "avg_ts": 444.4, "stddev_ts": 14.3, "samples_ns": [9300000, 8800000, 8900000],
    "samples_ts": [430.1, 454.5, 449.4],
}  # fmt: skip
MAC = Path(__file__).parents[1] / "data" / "llama-bench-m3-ultra-70b.json"
"""Rates published in geerlingguy/beowulf-ai-cluster, issue 17, in llama-bench's format."""
ROWS = {1: 8.4, 2: 8.5, 4: 8.9, 8: 9.6, 64: 14.0}
LINE = {
    "n_kv_max": 2048, "n_batch": 2048, "n_ubatch": 512, "flash_attn": 0, "is_pp_shared": 0,
    "n_gpu_layers": 99, "n_threads": 8, "n_threads_batch": 8, "pp": 128, "tg": 32, "pl": 1,
    "n_kv": 160, "t_pp": 0.1, "speed_pp": 1280.0, "t_tg": 0.32, "speed_tg": 100.0, "t": 0.42,
    "speed": 380.95,
}  # fmt: skip


def bench(*tests: dict[str, Any]) -> str:
    return json.dumps([{**TEST, **test} for test in tests], indent=2)


def passes(rows: dict[int, float], depth: int = 0) -> list[dict[str, Any]]:
    return [
        {"n_prompt": n, "n_depth": depth, "avg_ns": ms * 1e6, "samples_ns": [ms * 1e6]}
        for n, ms in rows.items()
    ]


def file(folder: Path, text: str) -> Path:
    path = folder / "times.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("lines", [False, True])
def test_a_benchmark_is_a_device_by_layers_and_head(terminal: Terminal, lines: bool) -> None:
    """All of the model's layers and its projection take what the benchmark took, for each row and
    context; and the file says what it cannot say."""
    behind = {rows: ms + 1.0 for rows, ms in ROWS.items()}
    given = [
        *passes(ROWS),
        *passes(behind, 4096),
        {"n_prompt": 1024},
        {"n_prompt": 64, "n_gen": 9},
    ]
    text = bench(*given)
    if lines:
        text = "\n".join(["load: done", *(json.dumps(each) for each in json.loads(text))])
    source, out = file(terminal.folder, text), terminal.folder / "board.toml"
    command = ("profiles", "import", "llama-bench", source, "--out", out)
    said = terminal.succeeds(*command, "--config", "qwen-2.5-7b")
    assert "2 tests were left out" in said
    assert check_file(out) == ("devices", [])
    profile = load_device(out)
    assert isinstance(profile, DeviceProfile)
    served = ServedModel("qwen-2.5-7b", find_model("qwen-2.5-7b", "test"), "int4")
    warnings: list[Remark] = []
    service = ServiceTimes("board", profile, shape_of, warnings)
    stage, head = service.stage(served, served.shape.layers), service.evaluation(served)
    for context, rows in ((0, ROWS), (4096, behind)):
        for n, ms in rows.items():
            assert stage(n, context) + head(n) == pytest.approx(ms, rel=1e-12)
            assert service.draft(served)(n, context) == pytest.approx(ms, rel=1e-12)
    assert warnings == []
    # One of 28 layers and the head: shares of the weights that are read.
    shape = served.shape
    weights = 28 * shape.layer_parameters + shape.head_parameters
    assert head(1) == pytest.approx(8.4 * shape.head_parameters / weights)
    origin = profile.origin
    assert origin.hardware == "NVIDIA GeForce RTX 4080, AMD Ryzen 7 7800X3D 8-Core Processor"
    assert origin.versions == "llama.cpp 8cf427ff (build 5163), CUDA"
    assert str(origin.date) == "2025-04-24"
    for words in ("qwen2 7B Q4_K - Medium", "int4 stands for 4.91 bits", "prune_ms", "energy"):
        assert words in origin.note


def test_a_simulation_of_an_imported_board_takes_the_benchmark_s_time(terminal: Terminal) -> None:
    """Without the model's sizes, too: plain decoding takes a pass of one row per token."""
    source = file(terminal.folder, bench(*passes(ROWS)))
    for config in ((), ("--config", "qwen-2.5-7b")):
        out = terminal.folder / f"board{len(config)}.toml"
        terminal.succeeds("profiles", "import", "llama-bench", source, "--out", out, *config)
        target = {"profile": "qwen-2.5-7b", "dtype": "int4"} if config else {"layers": 28}
        free = {"latency_ms": 0.0}
        scenario = Scenario.of(
            {
                "name": "imported",
                "target": target,
                "pipelines": [{"stages": [{"device": str(out)}]}],
                "links": {"default": free, "local": free},
                "schedule": {"name": "pp"},
                "workload": {"requests": 1, "prompt_tokens": 8, "new_tokens": 8},
            }
        )
        found = simulate(scenario, runs=1).metrics["time_between_tokens_ms"].mean
        assert found == pytest.approx(ROWS[1], rel=1e-9)


def test_generated_tokens_are_passes_over_one_row(terminal: Terminal) -> None:
    """The default file (pp512, pp4096, tg128) of a 70B model on an M3 Ultra: one device decodes at
    the rate that the file states (geerlingguy/beowulf-ai-cluster, issue 17); without the generated
    tokens one row is too far from the 512 that are left."""
    out, tests = terminal.folder / "mac.toml", json.loads(MAC.read_text("utf-8"))
    command = ("profiles", "import", "llama-bench", "--config", "llama-3.1-70b", "--out", out)
    said = terminal.succeeds(*command, MAC)
    assert "2 tests were left out: they take several passes over their prompt" in said
    profile = load_device(out)
    assert isinstance(profile, DeviceProfile)
    (layer,) = profile.layer
    assert [*layer.ms[0]] == [1, 512]
    scenario = Scenario.of({
        "name": "mac",
        "target": {"profile": "llama-3.1-70b", "dtype": "int4"},
        "pipelines": [{"stages": [{"device": str(out)}]}],
        "links": {"default": {"latency_ms": 0.2, "bandwidth_mbit_s": 2350}},
        "schedule": {"name": "pp"},
        "workload": {"requests": 2, "prompt_tokens": 16, "new_tokens": 64},
    })  # fmt: skip
    (stated,) = [test["avg_ts"] for test in tests if (test["n_prompt"], test["n_gen"]) == (0, 128)]
    found = simulate(scenario)
    assert 1e3 / found.metrics["time_between_tokens_ms"].mean == pytest.approx(stated, rel=0.01)
    assert any(
        "passes of pipeline0.stage1 (compute) over 2 to 16 rows" in w for w in found.warnings
    )
    source = file(terminal.folder, json.dumps(tests[:1]))
    terminal.succeeds(*command, source, "--force")
    with pytest.raises(UserError, match=r"asked for at 1 tokens, far outside .* begins at 512"):
        simulate(scenario)


def test_a_prompt_of_one_row_goes_before_generated_tokens(tmp_path: Path) -> None:
    text = bench(*passes(ROWS), {"n_prompt": 0, "n_gen": 128, "avg_ns": 128e7, "samples_ns": []})
    assert read_costs("llama-bench", file(tmp_path, text)).ms == {0: ROWS}


def test_batches_of_requests(tmp_path: Path) -> None:
    text = "main: n_kv_max = 2048\n" + "\n".join(
        json.dumps({**LINE, "pl": pl, "t_tg": t, "of": "a\u2028b"}, ensure_ascii=False)
        for pl, t in ((1, 0.32), (4, 0.4))
    )
    found = read_costs("llama-batched-bench", file(tmp_path, text))
    assert found.ms == {144: {1: pytest.approx(10.0), 4: pytest.approx(12.5)}}


def test_what_a_file_does_not_tell_is_said(terminal: Terminal) -> None:
    """And what the command tells instead is in the profile."""
    times = {1: 0.32, 8: 0.4, 64: 0.64}  # seconds of 32 passes
    lines = "\n".join(json.dumps({**LINE, "pl": pl, "t_tg": s}) for pl, s in times.items())
    source, out = file(terminal.folder, lines), terminal.folder / "board.toml"
    command = ("profiles", "import", "llama-batched-bench", source, "--out", out, "--force")
    terminal.succeeds(*command)
    profile = load_device(out)
    assert isinstance(profile, EmulatedProfile)
    assert profile.origin.hardware == "not stated"
    assert profile.stage_ms == profile.draft_ms == {1: 10.0, 8: 12.5, 64: 20.0}
    assert "the model's sizes are unknown" in profile.origin.note
    sizes = ("--config", "qwen-3-30b-a3b", "--dtype", "int8", "--set", "origin.hardware=an Orin")
    terminal.succeeds(*command, *sizes)
    other = load_device(out)
    assert isinstance(other, DeviceProfile)
    assert (other.layer[0].dtype, other.origin.hardware) == ("int8", "an Orin")
    terminal.refuses('key layer.0.dtype = "nf4"', *command, *sizes[:2], "--dtype", "nf4")
    terminal.refuses("--dtype: has no effect without --config", *command, "--dtype", "int4")
    terminal.refuses("--draft-tokens: has no effect; llama-batched-bench makes", *command,
                     "--draft-tokens", "3")  # fmt: skip


BAD = [
    ("llama-bench", "", "times.json: there is no JSON in it"),
    ("llama-bench", '{"n_prompt": 1}\n{"n', "times.json: line 2: is not valid JSON"),
    ("llama-bench", "[3]", "times.json: entry 1: is no table"),
    ("llama-bench", bench({}, {"avg_ns": "x"}), "times.json: entry 2: key avg_ns = \"x\": "),
    ("llama-bench", bench({"avg_ns": 0}), "times.json: entry 1: key avg_ns = 0: "),
    ("llama-bench", "[{}]", "times.json: entry 1: key model_filename is missing"),
    ("llama-bench", bench({}, {"n_threads": 4}),
     "times.json: entry 2: 4 rows behind 0 tokens are timed before, too"),
    ("llama-bench", bench({"n_gen": 128}), "no test is one pass over a prompt"),
    ("llama-bench", "| model | size | test | t/s |\n| --- | ---: | ---: | ---: |\n",
     "times.json: is a Markdown table; llama-bench writes JSON with -o json"),
    ("llama-bench", bench({}, {"model_filename": "b.gguf"}),
     "models are Qwen2.5-7B-Instruct-Q4_K_M, b; give --model"),
    ("llama-batched-bench", json.dumps({**LINE, "tg": 0}), "times.json: entry 1: key tg = 0: "),
    ("llama-batched-bench", json.dumps({**LINE, "tg": 10**400}), "too large for a time"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "sentence"), BAD)
def test_bad_files_are_one_sentence_with_their_place(
    kind: str, text: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        read_costs(kind, file(tmp_path, text))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_one_of_several_models_is_chosen(tmp_path: Path) -> None:
    path = file(tmp_path, bench({}, {"model_filename": "b.gguf", "n_prompt": 2}))
    assert list(read_costs("llama-bench", path, "b").ms[0]) == [2]
