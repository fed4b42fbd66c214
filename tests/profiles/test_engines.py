"""Acceptance imported from what engines export: counts by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.worlds.command_line import Terminal
from treepipe.core.errors import UserError
from treepipe.profiles.chains import Wanted
from treepipe.profiles.engines import read_export
from treepipe.scenario.scenario import Scenario

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 400.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 3000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1600.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 500.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 300.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 600.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 300.0
vllm:generation_tokens_total{engine="0",model_name="m"} 2000.0
vllm:generation_tokens_total{engine="1",model_name="m"} 708.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 8.0
"""
LLAMA = """llamacpp:spec_decode_num_drafts 100
llamacpp:spec_decode_num_draft_tokens 150
llamacpp:spec_decode_num_accepted_tokens_per_pos{position="0"} 80
llamacpp:spec_decode_num_accepted_tokens_per_pos{position="1"} 20
"""
SGLANG = """sglang:spec_accept_length{model_name="m"} 2.25
sglang:spec_num_steps{model_name="m"} 3.0
"""

SIMULATED: dict[str, Any] = {
    "name": "simulated",
    "target": {"layers": 1},
    "pipelines": [{"stages": [{"device": {"stage_ms": {1: 10.0}}}]}],
    "schedule": {"name": "chain", "gamma": 3},
}


def file(folder: Path, text: str) -> Path:
    path = folder / "export.txt"
    path.write_text(text)
    return path


def response(**keys: object) -> str:
    return json.dumps({"model": "m", "metrics": {"speculative_decoding": keys}})


# --- counters and tables ----------------------------------------------------------------------


def test_counters_of_all_engines_of_a_server_are_added_up(tmp_path: Path) -> None:
    """Of 1,000 steps 800 have the first token right, 600 the second, 300 the third; 8 requests
    begin with a token of their own, so all 2,708 tokens are told of."""
    found = read_export("vllm", file(tmp_path, VLLM))
    assert found.shares == (0.8, 0.75, 0.5)
    assert found.tokens == pytest.approx(1 + 0.8 + 0.6 + 0.3)
    assert (found.rounds, found.model, found.notes) == (1000, "m", ())


def test_steps_without_a_draft_are_counted_by_the_engines_tokens(tmp_path: Path) -> None:
    """1,000 tokens more than drafted steps and prompts explain are as many steps of one token:
    2,000 steps give 3,700 tokens."""
    found = read_export("vllm", file(tmp_path, VLLM.replace("} 708.0", "} 1708.0")))
    assert found.shares == (0.4, 0.75, 0.5)
    assert (found.tokens, found.rounds) == (pytest.approx(3700 / 2000), 2000)
    assert found.notes[0].startswith("1000 of 2000 steps drafted nothing")
    unsaid = VLLM.replace("generation_tokens", "other_tokens")
    assert "are not counted" in read_export("vllm", file(tmp_path, unsaid)).notes[0]


def test_draft_lengths_that_vary_are_told(tmp_path: Path) -> None:
    found = read_export("llama-cpp", file(tmp_path, LLAMA))
    assert found.shares == (0.8, 0.25)
    assert "steps that drafted nothing are not counted" in found.notes[0]
    assert "draft lengths vary (1.5 of 2 on average)" in found.notes[1]
    assert "lower bounds" in found.notes[1]


def test_a_mean_length_is_one_share_for_all_depths(tmp_path: Path) -> None:
    found = read_export("sglang", file(tmp_path, SGLANG))
    (p,) = found.shares
    assert 1 + p + p**2 + p**3 == pytest.approx(2.25)
    assert "same at every depth" in found.notes[1]
    assert found.tokens == pytest.approx(2.25)


VLLM_LOG = """INFO [loggers.py:116] Engine 000: Avg generation throughput: 826.0 tokens/s
INFO [metrics.py:96] SpecDecoding metrics: Mean acceptance length: 2.16, Accepted throughput: \
15.00 tokens/s, Drafted throughput: 38.70 tokens/s, Accepted: 150 tokens, Drafted: 387 tokens, \
Per-position acceptance rate: 0.543, 0.357, 0.264, Avg Draft acceptance rate: 38.8%
SpecDecoding metrics: Draft acceptance rate: nan%, Accepted: 0 tokens, Drafted: 0 tokens
SpecDecoding metrics: Mean acceptance length: 3.00, Accepted: 774 tokens, Drafted: 1161 tokens, \
Per-position acceptance rate: 1.000, 0.750, 0.250, Avg Draft acceptance rate: 66.7%
"""
SLOT = """slot print_timing: id  1 | task 90 | draft acceptance = 0.66237 (  257 accepted /   388 \
generated), mean acceptance length =  3.65, acceptance rate per position = (0.804, 0.701, 0.629, \
0.515)
"""
SHORT_SLOT = "draft acceptance = 0.77945 (  311 accepted /   399 generated), mean len =  2.55\n"
OLD_SLOT = "draft acceptance rate = 0.72055 (  526 accepted /   730 generated)\n"
EXAMPLE = "n_draft   = 5\nn_predict = 672\nn_drafted = 730\nn_accept  = 526\naccept    = 72.055%\n"
TOTALS = """statistics        draft-mtp: #calls(b,g,a) =    1    100    100, #gen drafts = \
   100, #acc drafts =    85, #gen tokens =    200, #acc tokens =   155, #mean acc len = 2.55, \
#acc rate/pos = (0.850, 0.700), dur(b,g,a) = 0.004, 505.730, 0.235 ms
statistics        draft-mtp: #calls(b,g,a) =    2    220    200, #gen drafts = \
   200, #acc drafts =   170, #gen tokens =    399, #acc tokens =   311, #mean acc len = 2.55, \
#acc rate/pos = (0.850, 0.705), dur(b,g,a) = 0.004, 1011.730, 0.465 ms
"""
SGLANG_LOG = """server_args=ServerArgs(speculative_num_steps=3, speculative_eagle_topk=1)
Decode batch, #running-req: 1, #token: 99, accept len: 3.05, accept rate: 0.76, cuda graph: True
Prefill batch, #new-seq: 1
Decode batch, #running-req: 3, #token: 99, accept len: 2.05, accept rate: 0.51, cuda graph: True
"""
BENCH = """Mean ITL (ms):                           40.50
---------------Speculative Decoding---------------
Acceptance rate (%):                     53.98
Acceptance length:                       2.62
Drafts:                                  37085
Draft tokens:                            111255
Accepted tokens:                         60052
Per-position acceptance (%):
  Position 0:                            76.70
  Position 1:                            51.51
  Position 2:                            33.72
==================================================
"""


@pytest.mark.parametrize(
    ("kind", "text", "shares", "rounds"),
    [
        # 129 steps (387 / 3) and 387 are added up: 0.543 and 1 make (70 + 387) / 516.
        ("vllm", VLLM_LOG, (0.8858, 0.7358, 0.3890), 516),
        ("llama-cpp", SLOT, (0.804, 0.701 / 0.804, 0.629 / 0.701, 0.515 / 0.629), 97),
        # Totals since the start: the last line; 20 of its 220 steps drafted nothing.
        ("llama-cpp", TOTALS, (0.85 * 200 / 220, 0.705 / 0.85), 220),
        ("vllm-bench", BENCH, (0.767, 0.5151 / 0.767, 0.3372 / 0.5151), 37085),
    ],
)
def test_pasted_text_with_positions(
    kind: str, text: str, shares: tuple[float, ...], rounds: int, tmp_path: Path
) -> None:
    found = read_export(kind, file(tmp_path, text))
    assert found.shares == pytest.approx(shares, abs=1e-3)
    assert found.rounds == rounds
    assert found.drafted == len(shares)


@pytest.mark.parametrize(
    ("kind", "text", "drafted", "tokens"),
    [
        ("llama-cpp", SHORT_SLOT, None, 2.55),
        ("llama-cpp", OLD_SLOT, 5, 672 / 146),
        ("llama-cpp", EXAMPLE, None, 672 / 146),
        ("vllm", "SpecDecoding metrics: Accepted: 526 tokens, Drafted: 730 tokens", 5, 672 / 146),
        ("sglang", SGLANG_LOG, None, (3.05 + 3 * 2.05) / 4),  # weighed by the open requests
    ],
)
def test_pasted_text_with_one_number_keeps_its_mean(
    kind: str, text: str, drafted: int | None, tokens: float, tmp_path: Path
) -> None:
    found = read_export(kind, file(tmp_path, text), Wanted(draft_tokens=drafted))
    assert len(found.shares) == 1
    assert found.tokens == pytest.approx(tokens)
    assert "one mean length" in " ".join(found.notes)


def test_published_tables(tmp_path: Path) -> None:
    reached = file(tmp_path, "position,accepted\n1,0.8\n2,0.6\n")
    assert read_export("table", reached).shares == pytest.approx((0.8, 0.75))
    given_above = file(tmp_path, "position, conditional\n1, 0.8\n2, 0.75\n")
    assert read_export("table", given_above).shares == (0.8, 0.75)


# --- requests ---------------------------------------------------------------------------------

STEP = st.integers(0, 4).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d)))


@given(st.lists(st.lists(STEP, min_size=1, max_size=6), min_size=1, max_size=3))
def test_histograms_by_draft_length_say_what_the_ordered_steps_say(
    tmp_path_factory: pytest.TempPathFactory, requests: list[list[tuple[int, int]]]
) -> None:
    """And both what the engine's own totals say: 1 + accepted / steps tokens of a step, those that
    drafted nothing among them."""
    assume(any(drafted for steps in requests for drafted, _ in steps))
    folder = tmp_path_factory.mktemp("export")
    ordered, histograms = [], []
    for steps in requests:
        accepted = [right for _, right in steps]
        totals = {"num_accepted_draft_tokens": sum(accepted)}
        ordered.append(
            response(per_step_drafted=[d for d, _ in steps], per_step_accepted=accepted, **totals)
        )
        by_length = {
            str(d): [steps.count((d, n)) for n in range(d + 1)] for d in {d for d, _ in steps}
        }
        histograms.append(
            response(acceptance_histogram_by_draft_length=by_length,
                     acceptance_histogram=[], **totals)
        )  # fmt: skip
    one = read_export("vllm-requests", file(folder, "\n".join(ordered)))
    other = read_export("vllm-requests", file(folder, f"[{','.join(histograms)}]"))
    assert one.shares == other.shares
    every = [step for steps in requests for step in steps]
    assert one.tokens == pytest.approx(1 + sum(n for _, n in every) / len(every))
    assert one.rounds == len(every)
    nothing = sum(not drafted for drafted, _ in every)
    assert (nothing > 0) <= any(f"{nothing} of {len(every)} steps drafted" in n for n in one.notes)


def test_histograms_of_lengths_and_of_correct_drafts_say_the_same(tmp_path: Path) -> None:
    """4 steps accept 2, 1, 1 and 0 of 2 drafted tokens, with or without the target's own."""
    totals = {"num_accepted_draft_tokens": 4, "num_spec_tokens": 2}
    drafts = {"spec_correct_drafts_histogram": [1, 2, 1], "spec_num_proposed_drafts": 8}
    for kind, text in (
        ("vllm-requests", response(acceptance_histogram=[1, 2, 1], **totals)),
        ("vllm-requests", response(acceptance_histogram=[0, 1, 2, 1], **totals)),
        ("sglang-requests", json.dumps({"meta_info": drafts})),
    ):
        assert read_export(kind, file(tmp_path, text)).shares == (0.75, 1 / 3)


# --- the command ------------------------------------------------------------------------------


def test_what_is_imported_is_a_profile_that_scenarios_name(terminal: Terminal) -> None:
    out = terminal.folder / "mine.toml"
    command = ("profiles", "import", "vllm", file(terminal.folder, VLLM), "--out", out)
    assert "tokens per step: 2.7" in terminal.succeeds(*command)
    profile = {"source": "profile", "name": str(out)}
    scenario = Scenario.of({**SIMULATED, "acceptance": profile})
    assert scenario.acceptance.table == {1: (0.8, 0.75, 0.5)}
    assert "0.8, 0.75, 0.5 by depth" in terminal.succeeds("profiles", out)
    terminal.refuses("--force", *command)
    terminal.refuses(
        "profiles import vlm: there are vllm, llama-cpp", "profiles", "import", "vlm", out
    )
    terminal.refuses(
        "it tells of 3 drafted tokens, not of 4", *command, "--force", "--draft-tokens", 4
    )
    terminal.refuses("--config: has no effect", *command, "--config", "llama-2-7b")


def test_an_assumption_about_ranks_is_named_and_uncertain(terminal: Terminal) -> None:
    export = file(terminal.folder, "position,accepted\n1,0.5\n")
    command = ("profiles", "import", "table", export, "--out", "mine.toml")
    terminal.refuses("key tasks", *command, "--set", "tasks=code")
    terminal.succeeds(*command, "--assume-ranks", 0.5, "--set", "task=code")
    text = Path("mine.toml").read_text()
    assert "estimate = true" in text
    assert "uncertainty = 0.5" in text
    assert 'task = "code"' in text
    assert "assumed: each further candidate" in text
    assert "0.75" in text


BAD = [
    ("vllm", "", "there is no sample vllm:spec_decode_num_*"),
    ("vllm", VLLM.replace('engine="1",model_name="m"', 'engine="1",model_name="n"'),
     "it tells of several models, m, n; give --model"),
    ("vllm", VLLM.replace('position="1"} 600', 'position="1"} 900'), "deeper ones cannot be more"),
    ("vllm", VLLM.replace('position="1"', 'position="7"'), "not all from 0 on"),
    ("sglang", SGLANG.replace("2.25", "5"), "a mean length of 5 tokens does not go with 3 drafted"),
    ("vllm-requests", "{", "export.txt: "),
    ("vllm-requests", '[[{"acceptance_histogram": [1]}]]', "export.txt: entry 1: is no table"),
    ("vllm-requests",
     response(acceptance_histogram=1, num_spec_tokens=3, num_accepted_draft_tokens=1),
     "a value is of another kind"),
    ("vllm-requests",
     response(acceptance_histogram=[1], num_spec_tokens=10**9, num_accepted_draft_tokens=0),
     "the longest step drafted 1e+09 tokens; there may be 1 to 10000"),
    ("vllm-requests", "{}", "there is no response that tells of speculative decoding"),
    ("vllm-requests",
     response(acceptance_histogram=[1, 1], num_spec_tokens=1, num_accepted_draft_tokens=9),
     "does not go with num_accepted_draft_tokens = 9"),
    ("vllm-requests",
     response(per_step_accepted=[2], per_step_drafted=[1], num_accepted_draft_tokens=2),
     "a step of 1 drafted tokens has 2 accepted ones"),
    ("vllm-requests", response(per_step_accepted=[2]), "'per_step_drafted'"),
    ("llama-cpp", OLD_SLOT, "it does not tell how many tokens a step drafts; give --draft-tokens"),
    ("llama-cpp", SLOT + SLOT.replace(", 0.515", ""), "tells of chains of 3 and of 4"),
    ("llama-cpp", TOTALS + TOTALS.replace("draft-mtp", "ngram-mod"), "ngram-mod; keep one"),
    ("sglang", SGLANG_LOG.replace("topk=1", "topk=4"), "its drafts are trees"),
    ("sglang", "Decode batch, #running-req: 1, gen throughput: 9", "it tells of no drafts"),
    ("vllm", VLLM_LOG.replace("0.357", "0.757"), "deeper ones cannot be more"),
    ("table", "a,b\n1,2\n", "its first line must be position,accepted"),
    ("table", "position,accepted\n2,0.5\n", "positions must be 1, 2, 3"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "sentence"), BAD)
def test_bad_exports_are_one_sentence(kind: str, text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_export(kind, file(tmp_path, text))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="there is no such file"):
        read_export("vllm", tmp_path / "nothing")
