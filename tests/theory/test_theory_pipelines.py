"""Closed forms against the simulator: plain decoding, chains and layers.

Deterministic figures agree to rounding, expected values lie in the simulator's 95 % interval.
"""

from __future__ import annotations

import pytest

from tests.worlds.theory_scenarios import (
    ENDS,
    EXACTLY,
    Written,
    assert_equal,
    assert_within,
    draft_of,
    gaps,
    links_of,
    stages_of,
)
from treepipe.results.estimates import summarize
from treepipe.results.metrics import run_metrics
from treepipe.sim.theory import dsd
from treepipe.sim.theory.layered import specpipe_even_tbt_ms

UNEVEN = (
    "pipelines=[{ stages = ["
    "{ device = { stage_ms = { 1 = 9.0, 100 = 19.0 }, prune_ms = 2.0 } }, "
    "{ device = { stage_ms = { 1 = 30.0, 9 = 31.0 }, prune_ms = 25.0 } }, "
    "{ device = { stage_ms = { 1 = 5.0 }, evaluate_ms = { 1 = 2.0, 9 = 6.0 }, "
    "decide_ms = 1.0 } }] }]"
)
UNEVEN_LINKS = (
    "links={ default = { latency_ms = 1.5, bandwidth_mbit_s = 100.0, message_ms = 0.25 }, pairs = "
    '[{ ends = ["pipeline0.stage1", "pipeline0.stage2"], latency_ms = 7.0 }] }'
)
WIDE = "target.hidden_size=2048"
GROWING_DRAFT = (
    "drafts=[{ device = { draft_ms = { 1 = 3.0, 5 = 4.0 }, evaluate_ms = { 1 = 2.0, 9 = 6.0 }, "
    "decide_ms = 1.0 } }]"
)


# --- one segment per round -----------------------------------------------------------------------


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("settings", [(), (UNEVEN, UNEVEN_LINKS, WIDE)])
@pytest.mark.parametrize("new_tokens", [1, 2, 12])
def test_plain_decoding(settings: tuple[str, ...], new_tokens: int, ends: str) -> None:
    """PipeDec, section 2.2, and a prompt in chunks over uneven stages and links."""
    given = (f"workload.new_tokens={new_tokens}", f"schedule.ends={ends}")
    assert_equal(Written("pp", *settings, *given))


@pytest.mark.parametrize(
    ("name", "ends"),
    [("chain", "draft"), ("dsd", "pipeline")],
)
@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize("settings", [(), (UNEVEN, UNEVEN_LINKS, WIDE)])
@pytest.mark.parametrize("new_tokens", [1, 7, 23])
def test_chains_where_nothing_or_everything_is_accepted(
    name: str, beta: int, settings: tuple[str, ...], new_tokens: int, ends: str
) -> None:
    given = (
        f"schedule.name={name}",
        f"schedule.ends={ends}",
        f"acceptance.beta={beta}",
        f"workload.new_tokens={new_tokens}",
    )
    assert_equal(Written(name, *settings, *given))


@pytest.mark.parametrize(
    ("name", "source", "beta", "rows"),
    [
        ("chain", "model", 0, 1),
        ("chain", "model", 1, 2),
        ("chain", "eagle", 0, 1),
        ("chain", "eagle", 1, 5),
        ("dsd", "model", 0, 1),
        ("dsd", "eagle", 0, 1),
    ],
)
def test_a_chain_knows_that_catching_up_takes_longer(
    name: str, source: str, beta: int, rows: int
) -> None:
    """A language model keeps the accepted tokens that it drafted from; a head reads all again."""
    given = "schedule.ends=draft", f"acceptance.beta={beta}", f"drafts.0.source={source}"
    written = Written(name, GROWING_DRAFT, *given)
    assert_equal(written)
    (trace,) = written.simulated()
    passes = [span.tokens for span in trace.spans if span.kind == "draft"]
    assert passes[0] == 151, "the prompt and its first token"
    assert max(passes[1:]) == rows


@pytest.mark.long
@pytest.mark.parametrize("name", ["chain", "dsd", "specpipe"])
@pytest.mark.parametrize(("beta", "runs"), [(0.5, 40), (0.9, 80)])
def test_expected_values(name: str, beta: float, runs: int) -> None:
    draft = [] if name == "specpipe" else [GROWING_DRAFT]
    written = Written(name, *draft, f"acceptance.beta={beta}", f"runs={runs}")
    metrics, _ = summarize(written.simulated())
    assert_within(metrics, written.expected().metrics)
    if name != "specpipe":
        assert written.bent == []


# --- DSD's own quantities ------------------------------------------------------------------------

DSD = (
    'links={ default = { latency_ms = 100.0 }, pairs = [{ ends = ["draft0", "pipeline0.stage1"], '
    'latency_ms = 0.0 }, { ends = ["draft0", "pipeline0.stage4"], latency_ms = 0.0 }] }',
    draft_of(3.0),
    stages_of(*[5.0] * 4),
    "workload.new_tokens=51",
    "workload.prompt_tokens=1",
)
"""No way between the draft and the ends of the pipeline: N - 1 = 3 links count."""


def between_tokens(schedule: str, *settings: str) -> float:
    (trace,) = Written(schedule, *DSD, *settings).simulated()
    return run_metrics(trace)["time_between_tokens_ms"]


def test_dsd_times_and_saving() -> None:
    """Section 3: k tokens one by one; a window; and what k tokens per window save on links."""
    plain = between_tokens("pp")
    assert 50 * plain == pytest.approx(dsd.plain_ms(50, 4, 20.0, 100.0), rel=EXACTLY)
    missed = between_tokens("dsd", "acceptance.beta=0")
    assert missed == pytest.approx(dsd.speculative_ms(4 * 3.0, 20.0, 4, 100.0), rel=EXACTLY)
    written = Written("dsd", *DSD, "acceptance.beta=1")
    (trace,) = written.simulated()
    window = gaps(trace.requests[0])[1:]  # before the first one the draft has no time to hide in
    assert window == pytest.approx([dsd.speculative_ms(0.0, 20.0, 4, 100.0)] * 9, rel=EXACTLY)
    saving = (plain - 20.0) - (window[0] - 20.0) / 5  # of each token's time, without compute
    assert saving == pytest.approx(3 * 100.0 * (5 - 1) / 5, rel=EXACTLY), "(N - 1) t1 (k - 1) / k"
    gain = dsd.gain(5, 4, 20.0, 100.0, window[0])
    assert gain == pytest.approx(5 * plain / window[0], rel=EXACTLY)


# --- a layer per step ----------------------------------------------------------------------------


def between_hits(name: str, *settings: str) -> tuple[float, float]:
    """Simulated and expected, where everything hits and the pipeline has filled."""
    given = ("acceptance.beta=1", "workload.new_tokens=64", *settings)
    written = Written(name, *given)
    (trace,) = written.simulated()
    return sum(gaps(trace.requests[0])[-36:]) / 36, written.expected().terms["hit_ms"]


@pytest.mark.parametrize("hop_ms", [0.0, 4.0, 8.0])
def test_pruning_hides_behind_a_transfer(hop_ms: float) -> None:
    """Alike in all else, PipeDec's step is a transfer longer where SpecPipe's has room for it.

    A layer takes the longer of two ways to its next stage: the transfer, or the decision's word
    (1 ms there and back) and pruning, about 5 ms in SpecPipe, section 4. In phases it takes both.
    """
    stages = stages_of(*[20.0] * 4, more=", prune_ms = 5.0")
    keys = (stages, links_of(0.5, *[hop_ms] * 3), draft_of(5.0))
    around = 20.0 + (3 * hop_ms + 1.0 + 5.0) / 4  # the first of four groups waits for no transfer
    steps = {"pipedec": 20.0 + 1.0 + 5.0 + hop_ms, "specpipe": max(20.0 + 1.0 + 5.0, around)}
    for name, step_ms in steps.items():
        assert between_hits(name, *keys) == pytest.approx((step_ms, step_ms), rel=EXACTLY)


@pytest.mark.parametrize("name", ["pipedec", "specpipe"])
@pytest.mark.parametrize("mbit_s", [20.0, 1000.0])
def test_words_are_shorter_than_layers(name: str, mbit_s: float) -> None:
    """A layer's states take longer than its word: a tenth of a step, or a hundredth of that."""
    keys = (f"links.default.bandwidth_mbit_s={mbit_s}", WIDE, "schedule.ends=draft")
    more = ("acceptance.beta=1", "schedule.width=1", "schedule.children=1")
    found, expected = between_hits(name, *keys, *more)
    assert expected == pytest.approx(found, rel=1e-3)


READING = "drafts=[{{ device = {{ draft_ms = {{ 1 = 3.0, 2 = {0}, 64 = {0}, 1000 = {0} }} }} }}]"


@pytest.mark.parametrize("name", ["pipedec", "specpipe"])
@pytest.mark.parametrize("parallel", ["true", "false"])
@pytest.mark.parametrize("pass_ms", [4.0, 33.0, 95.0])
@pytest.mark.parametrize("new_tokens", [1, 2])
def test_the_draft_reads_the_prompt_while_the_target_does(
    name: str, parallel: str, pass_ms: float, new_tokens: int
) -> None:
    """Chunks of 50 tokens each; where they take the draft longer than the target, the first token
    waits for the pass under way, and the first layer for all others."""
    keys = (f"schedule.parallel_prefill={parallel}", READING.format(pass_ms), "schedule.width=1")
    more = ("schedule.children=1", f"workload.new_tokens={new_tokens}")
    assert_equal(Written(name, *keys, *more))


def test_what_parallel_prefill_spares() -> None:
    """The first decision waits for one token's pass, not for the whole prompt's."""
    keys = ("workload.prompt_tokens=513", "workload.new_tokens=2", "schedule.width=1")
    slow = "drafts=[{ device = { draft_ms = { 1 = 3.0, 65 = 9.0, 514 = 300.0 } } }]"
    gap = {}
    for parallel in ("true", "false"):
        written = Written("pipedec", slow, *keys, f"schedule.parallel_prefill={parallel}")
        (trace,) = written.simulated()
        rows = [s.tokens for s in trace.spans if s.kind == "draft"]
        assert rows[:10] == ([57] * 9 + [1] if parallel == "true" else [514, *rows[1:10]])
        (gap[parallel],) = gaps(trace.requests[0])
    assert gap["false"] - gap["true"] > 200.0


@pytest.mark.parametrize("group", [1, 2])
def test_every_gap_of_layers_is_a_hit_or_a_miss(group: int) -> None:
    written = Written("pipedec", f"schedule.groups={group}")
    terms = written.expected().terms
    (trace,) = written.simulated()
    found = gaps(trace.requests[0])[1:]
    assert {round(gap, 6) for gap in found} == {
        round(terms["hit_ms"], 6),
        round(terms["miss_ms"], 6),
    }


@pytest.mark.parametrize("draft_ms", [5.0, 40.0])
@pytest.mark.parametrize(("end_ms", "spared_ms"), [(2.0, 0.0), (0.5, 0.75), (0.0, 1.0)])
def test_pipedec_latency(draft_ms: float, end_ms: float, spared_ms: float) -> None:
    """Section 2.3: the slower of the draft and of the slowest stage and transfer (C = 1).

    Exactly so in phases if the way to the draft server and back takes no time. Where pruning and
    transfers overlap, exactly so if it takes one transfer; a shorter way spares a fourth of the
    difference, since the first of 4 groups waits for no transfer and is ahead of the others.
    """
    keys = ("acceptance.beta=1", "workload.new_tokens=64")
    settings = (draft_of(draft_ms), stages_of(*[20.0] * 4), links_of(end_ms, 4.0, 4.0, 4.0), *keys)
    paper = max(draft_ms, 20.0 + 4.0)
    if not end_ms:
        phases, _ = between_hits("pipedec", *settings)
        assert phases == pytest.approx(paper)
    written = Written("pipedec", *settings, "schedule.overlapped_pruning=true")
    (trace,) = written.simulated()
    filled = gaps(trace.requests[0])[-40:]
    expected = paper if draft_ms == paper else paper - spared_ms
    assert sum(filled) / 40 == pytest.approx(expected, rel=EXACTLY)
    terms = written.expected().terms
    assert terms["hit_ms"] == pytest.approx(expected, rel=EXACTLY)


@pytest.mark.parametrize("name", ["specpipe", "spd"])
def test_specpipe_between_tokens(name: str) -> None:
    """Eq. 2 with N - 1 further steps: a step is the stages' time alone, P the hits seen.

    SPD's speedup over the stages one after another, n / (1 + (n - 1)(1 - p)), is the same.
    """
    settings = (draft_of(5.0), stages_of(*[20.0] * 4), links_of(0.0), "workload.new_tokens=501")
    (trace,) = Written(name, *settings).simulated()
    found = gaps(trace.requests[0])[1:]
    hit = sum(gap < 50 for gap in found) / len(found)
    assert 0.6 < hit < 0.8
    mean = sum(found) / len(found)
    assert mean == pytest.approx(specpipe_even_tbt_ms(20.0, hit, 4), rel=EXACTLY)
    assert 4 * 20.0 / mean == pytest.approx(4 / (1 + 3 * (1 - hit)), rel=EXACTLY)
    worst = specpipe_even_tbt_ms(20.0, hit, 4, "N")
    assert worst - mean == pytest.approx((1 - hit) * 20.0, rel=1e-6)
