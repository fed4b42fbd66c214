"""An engine's hop: what it makes of a link, and its import from two benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import treepipe
from tests.worlds.command_line import Terminal
from treepipe.core.errors import UserError
from treepipe.profiles.library import find_link, load_hop, profile_names
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scale import Estimated
from treepipe.scenario.scenario import Scenario

BENCH = Path(__file__).parents[1] / "data" / "llama-bench-m3-ultra-70b.json"
TWO = {
    "name": "two boxes",
    "target": {"layers": 2, "hidden_size": 4096, "dtype": "float16"},
    "drafts": [{"host": "a", "device": {"draft_ms": {1: 0.0}}}],
    "pipelines": [
        {
            "stages": [
                {"device": {"stage_ms": {1: 20.0}}, "host": "a"},
                {"device": {"stage_ms": {1: 20.0}}},
            ]
        }
    ],
    "schedule": {"name": "pp"},
    "workload": {"requests": 1, "prompt_tokens": 1, "new_tokens": 8},
}


def test_a_link_behind_an_engine_by_hand() -> None:
    """ggml-rpc: 3.2 ms a message, float32 states; exo passes the ring twice."""
    wire, rpc = find_link("ethernet-2.5g", "test"), find_link("ethernet-2.5g+llama-cpp-rpc", "test")
    assert rpc.message_ms == pytest.approx(wire.message_ms + 3.2)
    assert rpc.latency_ms == wire.latency_ms
    assert rpc.bandwidth_mbit_s == pytest.approx(2360 / 2)
    ring = find_link("wifi+exo-ring", "test")
    assert ring.latency_ms == pytest.approx(2 * 2.0)
    assert ring.origin.uncertainty == 1.0, "the larger of both"
    with pytest.raises(UserError, match="there is no such profile in hops; did you mean"):
        find_link("wifi+exo-rin", "test")


def test_a_token_takes_a_message_to_the_second_box_and_one_back() -> None:
    """By hand: two stages of 20 ms and two messages of 3.2 + 0.01 + 0.09 ms, whose bytes take
    0.06 ms at most."""
    scenario = Scenario.of({**TWO, "links": {"default": "ethernet-2.5g+llama-cpp-rpc"}})
    found = treepipe.simulate(scenario).metrics["time_between_tokens_ms"].mean
    assert found == pytest.approx(40 + 2 * 3.3 + 0.06, abs=0.06)
    of = Estimated("link", "ethernet-2.5g+llama-cpp-rpc")
    assert deploy(scenario).estimates[of] == 3.3
    slower = scenario.with_(**{"scale.links": {of.name: 2.0}})
    more = treepipe.simulate(slower).metrics["time_between_tokens_ms"].mean
    assert more - found == pytest.approx(2 * 3.3 + 0.06, abs=0.06)


def bench(file: Path, ms: float, **keys: object) -> Path:
    """Write the shipped result with generated tokens of so many milliseconds."""
    tests = [
        each for each in json.loads(BENCH.read_text()) if each["n_gen"] and not each["n_prompt"]
    ]
    for each in tests:
        each |= {"samples_ns": [ms * 1e6 * each["n_gen"]], **keys}
    file.write_text(json.dumps(tests))
    return file


def test_two_benchmarks_give_the_hop(terminal: Terminal) -> None:
    """One device 69.4 ms, three in a row 75.4: three messages of 2 ms, and back in a simulation."""
    bench(terminal.folder / "one.json", 69.4)
    bench(terminal.folder / "split.json", 75.4, tensor_split="1.00/1.00/1.00")
    said = terminal.succeeds(
        "profiles", "import", "hop", "one.json", "split.json", "--out", "h.toml"
    )
    assert "2 ms per message" in said
    hop = load_hop(terminal.folder / "h.toml")
    assert hop.hop_ms == pytest.approx(2.0)
    whole = {"profile": "ethernet-2.5g+./h.toml", "latency_ms": 0.0}
    scenario = Scenario.of({**TWO, "links": {"default": whole}}, terminal.folder / "s.toml")
    found = treepipe.simulate(scenario).metrics["time_between_tokens_ms"].mean
    assert found == pytest.approx(40 + 2 * 2.01, abs=0.1)


def test_what_is_no_hop_is_refused_in_a_sentence(terminal: Terminal) -> None:
    bench(terminal.folder / "one.json", 69.4)
    bench(terminal.folder / "fast.json", 60.0)
    command = ("profiles", "import")
    terminal.refuses("adds nothing that could be a hop", *command, "hop", "one.json", "fast.json")
    terminal.refuses("takes two files", *command, "hop", "one.json")
    terminal.refuses("takes one file", *command, "llama-bench", "one.json", "fast.json")


def test_every_engine_is_a_source_and_an_uncertainty() -> None:
    assert {"llama-cpp-rpc", "exo-ring", "vllm-pp", "ds4", "treepipe"} <= {*profile_names("hops")}
