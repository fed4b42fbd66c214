"""The study of FlowSpec's tables: curves and fits on made data, and end to end in a tiny size."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.written_studies import say, written
from treepipe.studies import flowspec as table
from treepipe.studies import flowspec_fit as calibration
from treepipe.studies.flowspec_fit import (
    DESIGNS,
    FITTED_MODEL,
    METHODS,
    MODELS,
    PROMPT_TOKENS,
    ROWS,
    TOP1,
    Case,
    Curve,
    Fit,
    Linear,
    Surrogate,
    Times,
    _naive_tbts,
    fits,
    form_spread,
    larger,
    operations,
    prompt_tokens,
    roofline_times,
    tbt_of,
    tokens_per_s,
    unpacking_ms,
)
from treepipe.studies.study import Entry

TRUE = Times(70.0, 25.0, 18.0)
ACCURACIES = dict(zip(PROMPT_TOKENS, (0.9, 0.7, 0.85, 0.8, 0.3, 0.45), strict=True))


def made_tbt(method: str, top1: float, times: Times) -> float:
    """A pipeline in formulas: rounds per token fall with accuracy, a round has fixed parts."""
    rounds = 0.2 + 0.3 * (1 - top1)
    stage, sync, draft = times.stage_ms, times.sync_ms, times.draft_ms
    if method == "naive_pp":
        return rounds * (8 * stage + sync + 7 * draft)
    if method == "pipedec":
        return (1 + 2 * (1 - top1)) * (stage + sync)
    return rounds / 3 * (4 * stage + 7 * draft) + 0.6 * (stage + sync) + 0.4 * (sync + 7 * draft)


@pytest.fixture
def surrogate() -> Surrogate:
    """Of the formulas; a prefill is five stages, a loss with depth changes nothing."""
    keys = [*((m, 0.0) for m in ROWS), *(("pipedec", loss) for loss in calibration.LOSSES)]
    tables = {
        key: Linear([np.array([made_tbt(key[0], x, times) for x in TOP1]) for times in DESIGNS])
        for key in keys
    }
    prefill = Linear([np.array([5 * times.stage_ms]) for times in DESIGNS])
    prompts = {prompt_tokens(model, d) for model in MODELS for d in PROMPT_TOKENS}
    return Surrogate(tables, dict.fromkeys(prompts, prefill))


def made_rows(times: Times) -> dict[str, dict[str, float]]:
    prefill = 5 * times.stage_ms
    return {
        f"{FITTED_MODEL}/t0/{method}": {
            d: tokens_per_s(made_tbt(method, x, times), prefill) for d, x in ACCURACIES.items()
        }
        for method in ROWS
    }


def test_tokens_per_second_count_the_prefill() -> None:
    assert tokens_per_s(100.0, 1000.0) == pytest.approx(128 / 13.7)
    assert tbt_of(tokens_per_s(123.0, 700.0), 700.0) == pytest.approx(123.0)


def test_a_curve_is_smooth_and_goes_on_along_its_tangents() -> None:
    curve = Curve(TOP1, [np.exp(5 - x) for x in TOP1])
    assert curve(0.5) == pytest.approx(np.exp(4.5), rel=1e-6)
    assert curve.accuracy(np.exp(4.5)) == pytest.approx(0.5, abs=1e-4)
    assert curve(TOP1[-1] + 0.2) == pytest.approx(np.exp(5 - TOP1[-1] - 0.2), rel=1e-6)
    assert curve.outside(np.exp(4.5)) == 0
    assert curve.outside(np.exp(5.0)) == pytest.approx(TOP1[0])
    assert curve.outside(np.exp(4.0)) == pytest.approx(TOP1[-1] - 1)


def test_times_are_found_from_rows_that_they_made(surrogate: Surrogate) -> None:
    found = fits(surrogate, made_rows(TRUE), list(PROMPT_TOKENS))[0]
    assert found.misfit < 1e-4
    assert found.times.stage_ms == pytest.approx(TRUE.stage_ms, rel=0.08)
    assert found.times.sync_ms == pytest.approx(TRUE.sync_ms, rel=0.2)
    assert found.times.draft_ms == pytest.approx(TRUE.draft_ms, rel=0.15)


@pytest.mark.long
def test_a_dataset_left_out_is_predicted(
    surrogate: Surrogate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "LOSSES", (0.1,))
    disturbed = made_rows(TRUE)
    disturbed[f"{FITTED_MODEL}/t0/pipedec"]["cnn_dm"] *= 1.2
    errors = calibration.leave_one_out(surrogate, disturbed)
    assert len(errors) == 12
    assert errors["pipedec", "cnn_dm"] == pytest.approx(1 / 1.2 - 1, abs=0.03)
    assert errors["flowspec", "cnn_dm"] == pytest.approx(0, abs=0.03)


def test_forms_that_say_the_same_spread_nothing(surrogate: Surrogate) -> None:
    prompt = prompt_tokens(FITTED_MODEL, "mt_bench")
    forms = fits(surrogate, made_rows(TRUE), list(PROMPT_TOKENS))
    assert [form.misfit for form in forms] == sorted(form.misfit for form in forms)
    alike = form_spread(surrogate, forms, 6.0, prompt)
    assert alike["pipedec"] == pytest.approx(0, abs=1e-3)
    moved = replace(forms[0], times=forms[0].times._replace(stage_ms=2 * TRUE.stage_ms))
    assert form_spread(surrogate, [forms[0], moved], 6.0, prompt)["flowspec"] > 0.01


def test_another_sample_s_naive_figure_is_predicted_by_table_1() -> None:
    """Table 2 is of Llama 2 Chat 7B, Table 3 names its models; unpublished figures are left."""
    rates = {f"{table.SWEPT_MODEL}/t0/naive_pp": {"gsm8k": 6.0}}
    rates["vicuna-7b-v1.3/t1/naive_pp"] = {"mt_bench": 4.0}
    others = [
        Entry("ablation/t0/naive_pp/gsm8k", "tokens/s", published=6.6),
        Entry("ablation/t0/pruned_pp/gsm8k", "tokens/s", published=8.0),
        Entry("table3/vicuna-7b-v1.3/t1/naive_pp/mt_bench", "tokens/s", published=5.0),
        Entry("table3/llama2-chat-7b/t1/naive_pp/mt_bench", "tokens/s"),
    ]
    found = table._resampled(rates, others)
    assert [(each.predicted, each.published) for each in found] == [(6.0, 6.6), (4.0, 5.0)]


def test_larger_models_move_more_bytes_and_synchronise_alike() -> None:
    """4-bit weights are read, written in 16 bits and read again: 4.56 bytes, not the 7B's 2."""
    times = larger(TRUE, 90.0)
    layers = 10 / 8 * (5120 / 4096) * (13824 + 4 / 3 * 5120) / (11008 + 4 / 3 * 4096)
    assert (times.stage_ms - 90) / TRUE.stage_ms == pytest.approx(layers * 4.56 / 2, rel=0.01)
    assert 1.25 < times.draft_ms / TRUE.draft_ms < 1.25**2, "a head and a projection in float16"
    assert times.sync_ms == TRUE.sync_ms
    weights = 10 * (4 * 5120**2 + 3 * 5120 * 13824)
    assert operations(90.0) == pytest.approx(0.090 * 0.64e12 / weights, rel=0.01)


def test_one_row_needs_no_unpacking_where_a_kernel_is_for_it() -> None:
    case = Case("naive_pp", "13b", larger(TRUE, 0.0), 0.0, 1)
    fused, plain = (
        each.scenario(0.5).pipelines[0].stages[0].device.stage_ms
        for each in (case, replace(case, one_row=False))
    )
    assert fused[1] == pytest.approx(fused[2] * 0.5625 / 4.5625, rel=0.01)
    assert plain[1] == plain[2] == fused[2]


def test_unpacking_takes_what_makes_the_larger_models_drafts_as_accurate(
    surrogate: Surrogate,
) -> None:
    """So that no cell asks for an accuracy below zero, as rounds that are too short do."""
    fit = Fit(TRUE, 0.1, {}, 0.0)
    slow = larger(TRUE, 80.0)
    rows = {
        f"{model}/t0/naive_pp": {
            d: tokens_per_s(made_tbt("naive_pp", x, times), 5 * times.stage_ms)
            for d, x in ACCURACIES.items()
        }
        for model, times in ((FITTED_MODEL, TRUE), ("vicuna-13b-v1.3", slow))
    }
    assert unpacking_ms(surrogate, rows, fit) == pytest.approx(80.0, rel=0.03)
    short = surrogate.curve("naive_pp", larger(TRUE, 0.0), 0.1)
    slowest = max(_naive_tbts(surrogate, rows, larger(TRUE, 0.0), "13b"))
    assert short.accuracy(slowest) < min(ACCURACIES.values()) - 0.1


def test_the_roofline_says_less_than_was_fitted() -> None:
    times = roofline_times()
    assert times.stage_ms == pytest.approx(61.2, abs=0.1)  # 8 layers of 7.65 ms
    assert times.draft_ms == pytest.approx(13.9, abs=0.1)


@pytest.mark.processes
def test_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "TOP1", (0.3, 0.6, 0.9))
    monkeypatch.setattr(calibration, "LOSSES", (0.1,))
    result = table.study(table.Settings(1, 1, 1), say)
    rows = written(result, tmp_path / "out")
    for model, t, method, dataset in product(MODELS, ("t0", "t1"), ROWS, PROMPT_TOKENS):
        row = rows[f"{model}/{t}/{method}/{dataset}"]
        assert row["predicted"] > 0
        assert row["unit"] == "tokens/s"
        used = method == "naive_pp" or f"{model}/{t}" == f"{FITTED_MODEL}/t0"
        assert (row["role"] == "calibrated") == used, "and the 13B cells were not"
    for t, method in product(("t0", "t1"), METHODS):
        if method != "pipedec":
            assert rows[f"ablation/{t}/{method}/gsm8k"]["predicted"] > 0
    for rate, method in product(table.BANDWIDTHS, ROWS):
        assert rows[f"bandwidth={rate}/{method}"]["predicted"] > 0
    assert (
        rows["bandwidth=125/flowspec"]["predicted"]
        < rows["bandwidth=1000/flowspec"]["predicted"]
        == pytest.approx(rows["llama2-chat-7b/t0/flowspec/mt_bench"]["predicted"])
    )
