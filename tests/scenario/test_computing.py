"""What a scenario says of weight, type and processor: known to predictions, or warned of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.profile_files import device_file
from treepipe.core.errors import UserError
from treepipe.profiles.library import REFERENCE, load_model
from treepipe.profiles.shapes import Shape
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.sim.predict import predict
from treepipe.sim.theory.closed_form import closed_form

TIMES = {0: {1: 1.0, 64: 4.0}, 512: {1: 1.5, 64: 5.0}}
ROOFLINE = {"tflops": {"float32": 0.1}, "memory_gb_s": 20.0}


def measured(times: int, dtype: str = "float32", **keys: Any) -> str:
    """The profile of a device on which the bundled pair was measured, so many times as wide."""
    name = "reference" if times == 1 else f"reference, {times} times as wide"
    entries = {}
    for role in ("target", "draft"):
        shape = load_model(REFERENCE / role / "config.json")
        sizes = shape.model_dump(include={*Shape.model_fields})
        sizes["intermediate_size"] *= times
        entries[role] = {"model": name, "dtype": dtype, "ms": TIMES, "shape": sizes}
    layers = {"layer": [entries["target"]], "head": [entries["target"]]}
    return device_file({**layers, "draft": [entries["draft"]], **keys})


def scenario(device: object, **keys: Any) -> Scenario:
    content = {
        "name": "pair",
        "target": {"checkpoint": "reference"},
        "drafts": [{"device": device, "model": {"checkpoint": "reference"}}],
        "pipelines": [{"stages": [{"device": device, "count": 2}]}],
        "schedule": {"name": "pp"},
        "workload": {"new_tokens": 4},
    }
    return Scenario.of(content).with_(**keys)


def deployed(device: object, **keys: Any) -> Deployment:
    return deploy(scenario(device, **keys))


def wide(folder: Path) -> dict[str, Any]:
    """Keys that name the bundled pair's sizes, but 16 times as wide."""
    for role in ("target", "draft"):
        content = json.loads((REFERENCE / role / "config.json").read_text())
        content["intermediate_size"] *= 16
        (folder / f"{role}.json").write_text(json.dumps(content))
    return {
        "target": {"profile": str(folder / "target.json"), "dtype": "float32"},
        "drafts.0.model": {"profile": str(folder / "draft.json"), "dtype": "float32"},
    }


def test_a_wider_pair_takes_the_times_measured_of_it_and_no_others(tmp_path: Path) -> None:
    keys = wide(tmp_path)
    assert not deployed(measured(1)).warnings
    assert not deployed(measured(16), **keys).warnings
    scaled = deployed(measured(1, roofline=ROOFLINE), **keys)
    said = " ".join(scaled.warnings)
    assert "scaled from those of reference in float32" in said
    assert scaled.roles.pipelines[0][0].times.stage(1, 0) > 8 * 4 * TIMES[0][1] / 2
    with pytest.raises(UserError, match=r"do not hold layer of .*draft\.json"):
        deployed(measured(1), **keys)


def test_what_a_devices_tables_lack_is_named() -> None:
    with pytest.raises(UserError, match=r"do not hold output projection of reference in float32"):
        deployed(measured(1, head=[]))


def test_a_draft_reads_the_distribution_of_a_prompts_last_row_alone() -> None:
    """A draft of one layer, whose layer and output projection were measured."""
    layer, head = {1: 1.0, 101: 2.0}, {1: 0.5, 101: 5.5}
    shape = load_model(REFERENCE / "draft" / "config.json")
    sizes = shape.model_dump(include={*Shape.model_fields})
    entry = {"model": "reference", "dtype": "float32", "shape": sizes}
    device = {
        "layer": [{**entry, "attention": True, "ms": {0: layer, 4096: layer}}],
        "head": [{**entry, "ms": {0: head}}],
        "call_overhead_ms": 0.1,
    }
    keys = {
        "drafts.0.device": device_file(device),
        "pipelines": [{"stages": [{"device": measured(1)}]}],
        "schedule": {"name": "specinfer", "branching": [9, 1]},
        "workload": {"prompt_tokens": 100, "new_tokens": 2},
        "acceptance": {"source": "bernoulli", "beta": 0.5},
    }
    trace = predict(scenario(measured(1), **keys))[0]
    first, second = [s for s in trace.spans if s.kind == "draft"][:2]
    assert (first.tokens, second.tokens) == (101, 9)  # the prompt and its first token; then a layer
    assert first.end_ms - first.start_ms == pytest.approx(0.1 + shape.layers * 2.0 + 0.5)
    nine = 0.1 + shape.layers * 1.08 + 0.9
    assert second.end_ms - second.start_ms == pytest.approx(nine)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_weight_and_type_count_in_memory_and_on_links(dtype: str, size: int) -> None:
    types = {"target.dtype": dtype, "drafts.0.model.dtype": dtype}
    found = deployed(measured(1, dtype), **types)
    assert found.roles.row_bytes == size * 192
    attention, forward, norms = 4 * 192 * 192, 3 * 192 * 512, 2 * 192
    assert found.roles.footprint.layer_bytes == size * (attention + forward + norms)
    assert found.roles.footprint.kv_bytes == size * 2 * 192
    named = deployed({}, **{"target": {"layers": 8, "hidden_size": 192, "dtype": dtype}})
    assert named.roles.row_bytes == size * 192


def test_a_simulation_says_that_processors_are_a_runs() -> None:
    keys = {"drafts.0.device.threads": 2, "pipelines.0.stages.0.device.kind": "cuda"}
    found = predict(scenario({}, **keys))[0].warnings
    assert f"keys {', '.join(keys)} have no effect: they are read only in a run" in found
    assert not [w for w in predict(scenario({}))[0].warnings if "threads" in w]
    with pytest.raises(UserError, match="key index = 1 is for kind = 'cuda', not 'cpu'"):
        scenario({}, **{"drafts.0.device.index": 1})
    assert deployed({}, **{"drafts.0.device.graphs": "auto"}).roles.drafts[0].compute.graphs
    assert not deployed({}).roles.drafts[0].compute.graphs


def test_a_look_up_has_neither_weight_nor_type() -> None:
    keys = {"drafts.0.source": "ngram", "drafts.0.model.dtype": "float16"}
    said = predict(scenario({}, **keys))[0].warnings
    words = "it is read only where drafts.0.source is 'model' or 'eagle' or 'hybrid' or 'eagle3'"
    assert f"key drafts.0.model has no effect: {words} or 'block' or 'mtp'" in said


def sampling(**more: Any) -> list[dict[str, Any]]:
    """A device's table of the exact rule and of the rejecting one, over the pair's vocabulary."""
    exact = {"vocabulary": 2048, "rule": "exact", "judge_ms": 0.5}
    drawn = {"vocabulary": 2048, "rule": "rejection", "judge_ms": 0.7, "draw_ms": {1: 0.3, 3: 0.9}}
    return [{**exact, **more}, {**drawn, **more}]


def sampled_ms(device: object, **keys: Any) -> float:
    keys = {"sampling.temperature": 0.8, "acceptance": {"source": "bernoulli", "beta": 0.6}, **keys}
    (request,) = predict(scenario(device, **keys))[0].requests
    return request.finished_ms - request.started_ms


@pytest.mark.parametrize("ends", ["draft", "pipeline"])
@pytest.mark.parametrize("name", ["pp", "specinfer"])
def test_a_rule_that_samples_takes_its_time_at_each_row_of_the_walk(ends: str, name: str) -> None:
    """Every token of a text is chosen at one row; rows beside the walk cost their projection."""
    schedule = {"name": name, "ends": ends, **({"branching": [3, 1]} if name != "pp" else {})}
    keys = {"schedule": schedule, "workload": {"new_tokens": 24, "prompt_tokens": 9}}
    keys["sampling"] = {"temperature": 0.8, "top_p": 0.9}
    without = sampled_ms(measured(1), **keys)
    with_ = sampled_ms(measured(1, sampling=sampling(truncated=True)), **keys)
    chosen = (with_ - without) / 0.5
    assert chosen == pytest.approx(24 if name == "pp" else round(chosen)), "by hand"
    assert 24 <= chosen <= 26 + 1e-9, "of the last round some tokens are behind the text's end"


def test_a_rule_that_draws_takes_time_at_each_row_of_the_draft() -> None:
    """A chain's passes draw one candidate each, also the last one of a round, which proposes."""
    keys = {"schedule": {"name": "chain", "gamma": 3}, "sampling.rule": "rejection"}
    keys |= {"workload": {"new_tokens": 12}, "acceptance": {"source": "bernoulli", "beta": 1.0}}
    times = sampling(judge_ms=0.0)
    trace = predict(scenario(measured(1), **keys))[0]
    passes = sum(span.kind == "draft" for span in trace.spans)
    added = sampled_ms(measured(1, sampling=times), **keys) - sampled_ms(measured(1), **keys)
    assert added == pytest.approx(0.3 * passes)
    with pytest.raises(UserError, match="key sampling: no closed form applies: it leaves out"):
        closed_form(scenario(measured(1, sampling=times), **{"sampling.temperature": 1, **keys}))


def test_what_nobody_measured_of_a_rule_is_told() -> None:
    warm = {"sampling.temperature": 0.8}
    assert not deployed(measured(1)).warnings
    assert not deployed(measured(1, sampling=sampling()), **warm).warnings
    (told,) = deployed(measured(1), **warm).warnings
    assert "no [[sampling]] holds rule 'exact': its time is left out" in told
    (told,) = deployed(measured(1, sampling=sampling()), **warm, **{"sampling.top_k": 9}).warnings
    assert "no [[sampling]] holds rule 'exact' with top_k or top_p" in told
    scaled = deployed(measured(1, sampling=sampling(vocabulary=512)), **warm)
    assert "'exact' over 2048 tokens are scaled from those over 512" in scaled.warnings[0]
    assert max(each.times.judge for each in scaled.roles.placed) == pytest.approx(4 * 0.5)
