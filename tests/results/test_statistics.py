"""Intervals of series whose truth is known: how often they cover it, and what warm-up is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import signal

from treepipe.results.statistics import (
    POSITIVE,
    SHARE,
    Interval,
    Paired,
    Range,
    batch_count,
    is_correlated,
    lag_one,
    mser5,
    ratio_observations,
    stays_correlated,
)

TRIALS = 400
LOWEST, HIGHEST = 367, 392
"""Of 400 intervals of 95 %: 380, give or take 3 standard deviations of 4.36."""
Values: TypeAlias = npt.NDArray[np.float64]
Estimate: TypeAlias = Callable[[np.random.Generator], Interval]


def covered(estimate: Estimate, truth: float, seed: int) -> int:
    rng = np.random.default_rng(seed)
    intervals = [estimate(rng) for _ in range(TRIALS)]
    return sum(each.low <= truth <= each.high for each in intervals if each.low and each.high)


def autoregressive(rng: np.random.Generator, length: int, phi: float, mean: float) -> Values:
    """A stationary series with correlation ``phi`` of neighbours and standard deviation 1."""
    noise = rng.normal(0.0, np.sqrt(1 - phi**2), length)
    noise[0] = rng.normal()
    values: Values = mean + signal.lfilter([1.0], [1.0, -phi], noise)
    return values


def batch_means(series: Values, count: int) -> Values:
    means: Values = series.reshape(count, -1).mean(axis=1)
    return means


def recorded_and_drawn(rng: np.random.Generator, *, resampled: bool) -> Values:
    """Texts of 12 recorded prompts, which differ: [8 runs, 10 texts of each]."""
    recorded = rng.normal(5.0, 1.0, 12)
    runs = [rng.choice(recorded, 12) if resampled else recorded for _ in range(8)]
    return np.array([rng.choice(each, 10) for each in runs])


def recorded_runs(rng: np.random.Generator, common: float) -> Interval:
    runs = recorded_and_drawn(rng, resampled=True).mean(axis=1)
    return Interval.over(runs, common=common)


def recorded_batches(rng: np.random.Generator, common: float) -> Interval:
    texts = recorded_and_drawn(rng, resampled=False).ravel()[:20]
    return Interval.over(texts, common=common, batches=True)


def correlated(rng: np.random.Generator) -> Interval:
    return Interval.over(batch_means(autoregressive(rng, 3000, 0.8, 5.0), 30), batches=True)


def latencies(rng: np.random.Generator) -> Interval:
    """Sums of few exponential times, as latencies in a queue are: 6 runs of mean 5."""
    return Interval.over(rng.exponential(5.0, (6, 2)).mean(axis=1), POSITIVE)


def shares(rng: np.random.Generator) -> Interval:
    """Runs of 30 trials of 0.95 each."""
    return Interval.over(rng.binomial(30, 0.95, 5) / 30, SHARE)


def quotients(rng: np.random.Generator) -> tuple[Values, Values]:
    """Time = 3 tokens' worth plus what does not grow with them, over tokens."""
    tokens = rng.exponential(1.0, 60) + 0.1
    return 3 * tokens + rng.exponential(2.0, 60), tokens


def differences(rng: np.random.Generator) -> Interval:
    shared = rng.normal(0, 5, 10)
    a, b = 50 + shared + rng.normal(0, 1, 10), 53 + shared + rng.normal(0, 1, 10)
    return Paired.of(a, b, batches=False).difference


@pytest.mark.parametrize(
    ("estimate", "truth", "seed"),
    [
        (lambda rng: Interval.over(rng.normal(5.0, 1.0, 8)), 5.0, 8),
        (lambda rng: Interval.over(rng.normal(5.0, 1.0, 20), batches=True), 5.0, 20),
        (lambda rng: recorded_runs(rng, 10 / 22), 5.0, 8),
        (lambda rng: recorded_batches(rng, 20 / 12), 5.0, 9),
        (correlated, 5.0, 3),
        (latencies, 5.0, 6),
        (shares, 0.95, 7),
        (lambda rng: Interval.over(ratio_observations(*quotients(rng))), 3 + 2 / 1.1, 5),
        (differences, 3.0, 11),
    ],
    ids=["runs", "batches", "recorded runs", "recorded batches", "correlated batches",
         "skew positive", "shares near 1", "ratio of sums", "pairs"],
)  # fmt: skip
def test_intervals_cover_the_truth(estimate: Estimate, truth: float, seed: int) -> None:
    assert LOWEST <= covered(estimate, truth, seed) <= HIGHEST


@pytest.mark.parametrize(
    ("naive", "truth", "seed", "share"),
    [
        (lambda rng: recorded_runs(rng, 0.0), 5.0, 8, 0.75),
        (lambda rng: recorded_batches(rng, 0.0), 5.0, 9, 0.85),
        (lambda rng: Interval.over(np.divide(*quotients(rng))), 3 + 2 / 1.1, 5, 0.5),
    ],
    ids=["recorded runs", "recorded batches", "mean of ratios"],
)
def test_plain_intervals_of_the_same_would_not(
    naive: Estimate, truth: float, seed: int, share: float
) -> None:
    assert covered(naive, truth, seed) < share * TRIALS


def test_short_correlated_series_are_merged_and_widened() -> None:
    """Batches of 10 where correlation lasts for about 20: half of plain intervals would miss."""

    def batches(rng: np.random.Generator) -> Values:
        return batch_means(autoregressive(rng, 300, 0.9, 5.0), 30)

    plain = covered(lambda rng: Interval.over(batches(rng)), 5.0, seed=4)
    widened = covered(lambda rng: Interval.over(batches(rng), batches=True), 5.0, seed=4)
    assert plain < 0.85 * TRIALS
    assert widened > plain + 0.08 * TRIALS


def test_interval_is_students() -> None:
    interval = Interval.over([9.0, 10.0, 11.0])
    assert interval.mean == 10
    assert interval.high == pytest.approx(10 + 4.302653 / 3**0.5)
    assert Interval.over([3.0]) == Interval(3.0, None, None)


def test_a_further_observation_is_covered() -> None:
    """Student's prediction interval, with each trial's own further observation."""
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(TRIALS):
        *seen, further = rng.normal(5.0, 1.0, 6)
        hits += Interval.over(seen, common=1.0).holds(further)
    assert LOWEST <= hits <= HIGHEST


RANGES = st.sampled_from([POSITIVE, SHARE, Range(1.0), Range(-1.0, 1.0)])
PARTS = st.floats(0.001, 0.999)


@given(RANGES, st.lists(PARTS, min_size=3, max_size=6))
def test_an_interval_is_where_its_quantity_can_be(within: Range, parts: list[float]) -> None:
    """Of values anywhere in a range, however the plain interval leaves it."""
    width = within.high - within.low if np.isfinite(within.high) else 900.0
    values = [within.low + part * width for part in parts]
    assume(np.ptp(values) > 1e-6 * width)
    plain, found = Interval.over(values), Interval.over(values, within)
    assert found.mean == plain.mean
    if found.low is not None or np.isfinite(within.high):
        assert within.low <= found.low < found.mean < found.high <= within.high


@given(st.lists(st.floats(0.4999, 0.5001), min_size=3, max_size=6))
def test_a_narrow_interval_is_the_same_on_every_scale(values: list[float]) -> None:
    plain = Interval.over(values)
    assume(not plain.fixed)
    for within in (POSITIVE, SHARE, Range(-1.0, 9.0)):
        found = Interval.over(values, within)
        assert (found.low, found.high) == pytest.approx((plain.low, plain.high), rel=1e-4)


ENDS = st.none() | st.floats(0.0, 50.0)


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    """Of any ends, one of which may be unknown, or not positive."""
    mean = draw(st.floats(0.1, 50.0))
    low, high = draw(ENDS), draw(ENDS)
    return Interval(
        mean, None if low is None else mean - low, None if high is None else mean + high
    )


@given(intervals(), st.floats(0.01, 99.0), PARTS)
def test_what_an_interval_holds_its_inverse_holds(
    interval: Interval, over: float, part: float
) -> None:
    """Of positive values; an end that is unknown, or not positive, bounds nothing."""
    inverse = interval.inverse(over)
    assert (inverse.high is None) == (interval.low is None or interval.low <= 0)
    assert (inverse.low is None) == (interval.high is None)
    low = max(0.0, -1.0 if interval.low is None else interval.low)
    high = interval.mean + 99 if interval.high is None else interval.high
    value = over / (low + part * (high - low))
    assert inverse.low is None or inverse.low <= value * (1 + 1e-9)
    assert inverse.high is None or value <= inverse.high * (1 + 1e-9)


@given(st.lists(intervals(), min_size=1, max_size=4))
def test_intervals_are_averaged_end_by_end(several: list[Interval]) -> None:
    found = Interval.averaged(several)
    whole = all(each.low is not None and each.high is not None for each in several)
    assert found.mean == pytest.approx(np.mean([each.mean for each in several]))
    for end in ("low", "high"):
        average = np.mean([getattr(each, end) for each in several]) if whole else None
        assert getattr(found, end) == (pytest.approx(average) if whole else None)


POSITIVES = st.lists(st.floats(0.1, 99.0), min_size=1, max_size=6)


@given(POSITIVES, POSITIVES)
def test_ratio_observations_have_the_ratio_as_mean(above: list[float], below: list[float]) -> None:
    count = min(len(above), len(below))
    above, below = above[:count], below[:count]
    found = ratio_observations(above, below)
    assert len(found) == count
    assert found.mean() == pytest.approx(sum(above) / sum(below))


ALL_EQUAL = Interval(0.0, None, None, "all equal")


@given(st.lists(st.floats(0.1, 99.0), min_size=1, max_size=12), st.integers(0, 3))
def test_no_interval_of_few_or_equal_observations(values: list[float], kind: int) -> None:
    """Two runs that are equal, or nearly, by chance tell nothing; of a deterministic run one is
    enough."""
    values = values if kind else values[:1] * len(values)
    for within in (Range(), POSITIVE, Range(0.0, 100.0)):
        found, exact = Interval.over(values, within), Interval.over(values, within, exact=True)
        assert (exact.low, exact.high, exact.fixed) == (None, None, "exact")
        if found.low is not None:
            assert len(values) >= 3
            assert found.low < found.mean < found.high
        assert (found.fixed == "all equal") == (len(values) >= 3 and np.ptp(values) <= 1e-9 * 99)


def test_observations_that_bound_nothing_give_no_ends() -> None:
    """A ratio of three unlike runs among 741 pairs had an end of 150 digits."""
    unlike = Paired.of([40.0, 90.0, 50.0], [55.0, 60.0, 97.0], batches=False, within=POSITIVE,
                       together=741).relative  # fmt: skip
    assert unlike == Interval(unlike.mean, None, None)
    assert not unlike.fixed


def test_what_is_fixed_stays_so() -> None:
    exact = Interval.over([4.0], exact=True)
    for each in (exact.scaled(-2.0), exact.shifted(1.0), exact.inverse(), exact.complement()):
        assert (each.low, each.fixed) == (None, "exact")
        assert each.ends == (each.mean, each.mean)
    assert Interval.averaged([exact, exact]) == exact
    assert Interval.averaged([exact, Interval(2.0, 1.0, 3.0)]) == Interval(3.0, 2.5, 3.5)


def test_at_the_end_of_its_range_there_is_no_interval_or_one_side() -> None:
    equal = Interval.over([0.0] * 3, POSITIVE), Interval.over([1.0, 1.0 + 1e-15, 1.0], SHARE)
    assert equal == (ALL_EQUAL, replace(ALL_EQUAL, mean=1.0)), "by chance, or but for rounding"
    assert Range(0.0).around(0.0, 2.0) == (0.0, 2.0)
    assert Range(0.0).around(-1.0, 2.0) == (-3.0, 1.0), "what is wrong stays to be seen"


def test_a_ratio_needs_a_denominator() -> None:
    with pytest.raises(ValueError, match="needs a denominator"):
        ratio_observations([1.0], [0.0])


def test_correlation_of_neighbours() -> None:
    rng = np.random.default_rng(6)
    assert lag_one(autoregressive(rng, 5000, 0.6, 0.0)) == pytest.approx(0.6, abs=0.05)
    assert sum(is_correlated(rng.normal(0, 1, 20)) for _ in range(1000)) == pytest.approx(
        50, abs=25
    )
    assert not is_correlated([7.0] * 20)
    assert stays_correlated(np.arange(30.0))


@pytest.mark.parametrize(
    ("items", "least", "count"),
    [(9, 1, 1), (10, 1, 10), (29, 1, 28), (500, 1, 30), (500, 40, 12), (500, 60, 1)],
)
def test_batches_are_10_to_30_and_even(items: int, least: int, count: int) -> None:
    assert batch_count(items, least) == count


def test_warm_up_is_found_where_it_ends() -> None:
    rng = np.random.default_rng(7)
    found = [
        mser5(np.concatenate([rng.normal(8, 1, 60), rng.normal(5, 1, 340)])) for _ in range(20)
    ]
    assert np.median(found) == pytest.approx(60, abs=5)
    decay = 5 + 10 * np.exp(-np.arange(400) / 30) + rng.normal(0, 1, 400)
    assert 50 <= mser5(decay) <= 150
    assert mser5(np.arange(200.0)) == 100, "a series that never settles loses half"


def test_a_steady_series_keeps_nearly_everything() -> None:
    rng = np.random.default_rng(8)
    dropped = [mser5(rng.normal(5, 1, 500)) for _ in range(100)]
    assert np.median(dropped) <= 25
    assert mser5([3.0] * 200) == 0
    assert mser5([1.0, 2.0, 3.0]) == 0


def test_warm_up_removal_mends_the_mean() -> None:
    rng = np.random.default_rng(9)
    whole, kept, hits = [], [], 0
    for _ in range(TRIALS):
        series = autoregressive(rng, 2000, 0.5, 5.0) + 20 * np.exp(-np.arange(2000) / 40)
        rest = series[mser5(series) :]
        count = batch_count(len(rest))
        interval = Interval.over(batch_means(rest[len(rest) % count :], count), batches=True)
        hits += interval.low <= 5.0 <= interval.high
        whole.append(series.mean())
        kept.append(rest.mean())
    assert np.mean(whole) > 5.35
    assert np.mean(kept) == pytest.approx(5.0, abs=0.02)
    assert hits > 0.9 * TRIALS


def test_pairs_take_away_what_both_share() -> None:
    rng = np.random.default_rng(10)
    shared = rng.normal(100, 10, 12)
    a, b = shared + rng.normal(0, 1, 12), 1.1 * shared + rng.normal(0, 1, 12)
    paired = Paired.of(a, b, batches=False)
    assert paired.difference == Interval.over(b - a)
    assert paired.variance_reduction == pytest.approx(1 - (b - a).var() / (a.var() + b.var()))
    assert paired.variance_reduction > 0.9
    assert paired.relative.low < 0.1 < paired.relative.high
    assert paired.relative.high - paired.relative.low < 0.03


@given(POSITIVES.filter(lambda values: len(values) > 1), st.data())
def test_nothing_is_less_by_more_than_the_whole_of_it(a: list[float], data: st.DataObject) -> None:
    b = data.draw(st.lists(st.floats(0.1, 99.0), min_size=len(a), max_size=len(a)))
    free, bounded = (Paired.of(a, b, batches=False, within=w) for w in (Range(), POSITIVE))
    assert bounded.relative.low is None or bounded.relative.low >= -1
    assert bounded.difference == free.difference, "a difference may be negative"


def test_equal_series_differ_by_nothing_and_rounding_is_no_difference() -> None:
    same = np.array([1.0, 2.0, 4.0])
    paired = Paired.of(same, same + 1e-13, batches=False)
    assert paired.difference == ALL_EQUAL
    assert paired.variance_reduction == 1.0
    constant = Paired.of([0.0, 0.0], [2.0, 2.0], batches=False)
    assert constant.relative is None
    assert constant.variance_reduction is None
