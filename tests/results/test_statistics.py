"""Intervals of series whose truth is known: how often they cover it, and what warm-up is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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


def covered(estimate: Callable[[np.random.Generator], Interval], truth: float, seed: int) -> int:
    rng = np.random.default_rng(seed)
    intervals = [estimate(rng) for _ in range(TRIALS)]
    return sum(each.low <= truth <= each.high for each in intervals if each.low and each.high)


def autoregressive(
    rng: np.random.Generator, length: int, phi: float, mean: float
) -> npt.NDArray[np.float64]:
    """A stationary series with correlation ``phi`` of neighbours and standard deviation 1."""
    values = np.empty(length)
    values[0] = rng.normal()
    noise = rng.normal(0.0, np.sqrt(1 - phi**2), length)
    for i in range(1, length):
        values[i] = phi * values[i - 1] + noise[i]
    return mean + values


def batch_means(series: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    means: npt.NDArray[np.float64] = series.reshape(count, -1).mean(axis=1)
    return means


def test_interval_is_students() -> None:
    interval = Interval.over([9.0, 10.0, 11.0])
    assert interval.mean == 10
    assert interval.high == pytest.approx(10 + 4.302653 / 3**0.5)
    assert Interval.over([3.0]) == Interval(3.0, None, None)


def test_independent_observations_cover_the_mean() -> None:
    for over, count in ((Interval.over, 8), (Interval.over_batches, 20)):
        hits = covered(lambda rng: over(rng.normal(5.0, 1.0, count)), 5.0, seed=count)  # noqa: B023
        assert LOWEST <= hits <= HIGHEST


def test_a_further_observation_is_covered() -> None:
    """Student's prediction interval, with each trial's own further observation."""
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(TRIALS):
        *seen, further = rng.normal(5.0, 1.0, 6)
        interval = Interval.over(seen, common=1.0)
        hits += interval.holds(further)
    assert LOWEST <= hits <= HIGHEST


def recorded_and_drawn(rng: np.random.Generator, *, resampled: bool) -> npt.NDArray[np.float64]:
    """Texts of 12 recorded prompts, which differ: [8 runs, 10 texts of each]."""
    recorded = rng.normal(5.0, 1.0, 12)
    runs = [rng.choice(recorded, 12) if resampled else recorded for _ in range(8)]
    return np.array([rng.choice(each, 10) for each in runs])


def test_intervals_over_runs_cover_what_the_recorded_prompts_have_by_chance() -> None:
    texts = 10 / 12

    def estimate(common: float) -> Callable[[np.random.Generator], Interval]:
        def over(rng: np.random.Generator) -> Interval:
            runs = recorded_and_drawn(rng, resampled=True).mean(axis=1)
            return Interval.over(runs, common=common)

        return over

    assert covered(estimate(0.0), 5.0, seed=8) < 0.75 * TRIALS
    assert LOWEST <= covered(estimate(texts / (1 + texts)), 5.0, seed=8) <= HIGHEST + 4


def test_intervals_over_batches_cover_what_the_recorded_prompts_have_by_chance() -> None:
    def over(rng: np.random.Generator, common: float) -> Interval:
        texts = recorded_and_drawn(rng, resampled=False).ravel()[:20]
        return Interval.over_batches(texts, common=common)

    assert covered(lambda rng: over(rng, 0.0), 5.0, seed=9) < 0.85 * TRIALS
    assert LOWEST - 6 <= covered(lambda rng: over(rng, 20 / 12), 5.0, seed=9) <= HIGHEST


def test_batches_of_a_correlated_series_cover_the_mean() -> None:
    def estimate(rng: np.random.Generator) -> Interval:
        return Interval.over_batches(batch_means(autoregressive(rng, 3000, 0.8, 5.0), 30))

    assert LOWEST <= covered(estimate, 5.0, seed=3) <= HIGHEST


def test_short_correlated_series_are_merged_and_widened() -> None:
    """Batches of 10 where correlation lasts for about 20: half of plain intervals would miss."""

    def batches(rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return batch_means(autoregressive(rng, 300, 0.9, 5.0), 30)

    plain = covered(lambda rng: Interval.over(batches(rng)), 5.0, seed=4)
    widened = covered(lambda rng: Interval.over_batches(batches(rng)), 5.0, seed=4)
    assert plain < 0.85 * TRIALS
    assert widened > plain + 0.08 * TRIALS


RANGES = st.sampled_from([POSITIVE, SHARE, Range(1.0), Range(-1.0, 1.0)])
PARTS = st.floats(0.001, 0.999)


@given(RANGES, st.lists(PARTS, min_size=2, max_size=6))
def test_an_interval_is_where_its_quantity_can_be(within: Range, parts: list[float]) -> None:
    """Of values anywhere in a range, however the plain interval leaves it."""
    width = within.high - within.low if np.isfinite(within.high) else 900.0
    values = [within.low + part * width for part in parts]
    assume(np.ptp(values) > 1e-6 * width)
    plain, found = Interval.over(values), Interval.over(values, within)
    assert found.mean == plain.mean
    assert within.low <= found.low < found.mean < found.high <= within.high


@given(st.lists(st.floats(0.4999, 0.5001), min_size=3, max_size=6))
def test_a_narrow_interval_is_the_same_on_every_scale(values: list[float]) -> None:
    plain = Interval.over(values)
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


def test_at_the_end_of_its_range_an_interval_has_no_width_or_one_side() -> None:
    assert Interval.over([0.0, 0.0], POSITIVE) == Interval(0.0, 0.0, 0.0)
    assert Interval.over([1.0, 1.0 + 1e-15], SHARE) == Interval(1.0, 1.0, 1.0), "only rounding"
    assert Range(0.0).around(0.0, 2.0) == (0.0, 2.0)
    assert Range(0.0).around(-1.0, 2.0) == (-3.0, 1.0), "what is wrong stays to be seen"


def test_intervals_of_skew_positive_means_cover_them_on_the_log_scale() -> None:
    """Sums of few exponential times, as latencies in a queue are: 6 runs of mean 5."""

    def runs(rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.exponential(5.0, (6, 2)).mean(axis=1)

    hits = covered(lambda rng: Interval.over(runs(rng), POSITIVE), 5.0, seed=6)
    plain = covered(lambda rng: Interval.over(runs(rng)), 5.0, seed=6)
    assert hits >= LOWEST
    assert hits > plain


def test_intervals_of_shares_near_one_cover_them_on_the_logit_scale() -> None:
    """Runs of 30 trials of 0.95 each."""

    def shares(rng: np.random.Generator) -> npt.NDArray[np.float64]:
        return rng.binomial(30, 0.95, 5) / 30

    hits = covered(lambda rng: Interval.over(shares(rng), SHARE), 0.95, seed=7)
    assert hits >= LOWEST


def test_a_ratio_needs_a_denominator() -> None:
    with pytest.raises(ValueError, match="needs a denominator"):
        ratio_observations([1.0], [0.0])


def test_ratio_of_sums_covers_the_ratio_of_means() -> None:
    """Time = 3 tokens' worth plus what does not grow with them; the mean of ratios is biased."""

    def parts(rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], ...]:
        tokens = rng.exponential(1.0, 60) + 0.1
        return 3 * tokens + rng.exponential(2.0, 60), tokens

    truth = 3 + 2 / 1.1
    hits = covered(lambda rng: Interval.over(ratio_observations(*parts(rng))), truth, seed=5)
    assert LOWEST <= hits <= HIGHEST
    naive = covered(lambda rng: Interval.over(np.divide(*parts(rng))), truth, seed=5)
    assert naive < 0.5 * TRIALS


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
    assert all(60 <= each <= 90 for each in found[:1])
    assert np.median(found) == pytest.approx(60, abs=5)
    decay = 5 + 10 * np.exp(-np.arange(400) / 30) + rng.normal(0, 1, 400)
    assert 50 <= mser5(decay) <= 150


def test_a_steady_series_keeps_nearly_everything() -> None:
    rng = np.random.default_rng(8)
    dropped = [mser5(rng.normal(5, 1, 500)) for _ in range(100)]
    assert np.median(dropped) <= 25
    assert mser5([3.0] * 200) == 0
    assert mser5([1.0, 2.0, 3.0]) == 0


def test_a_series_that_never_settles_loses_half() -> None:
    assert mser5(np.arange(200.0)) == 100


def test_warm_up_removal_mends_the_mean() -> None:
    rng = np.random.default_rng(9)
    whole, kept, hits = [], [], 0
    for _ in range(TRIALS):
        series = autoregressive(rng, 2000, 0.5, 5.0) + 20 * np.exp(-np.arange(2000) / 40)
        rest = series[mser5(series) :]
        count = batch_count(len(rest))
        interval = Interval.over_batches(batch_means(rest[len(rest) % count :], count))
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


def test_paired_intervals_cover_the_difference() -> None:
    def estimate(rng: np.random.Generator) -> Interval:
        shared = rng.normal(0, 5, 10)
        a, b = 50 + shared + rng.normal(0, 1, 10), 53 + shared + rng.normal(0, 1, 10)
        return Paired.of(a, b, batches=False).difference

    assert LOWEST <= covered(estimate, 3.0, seed=11) <= HIGHEST


def test_equal_series_differ_by_nothing_and_rounding_is_no_difference() -> None:
    same = np.array([1.0, 2.0, 4.0])
    paired = Paired.of(same, same + 1e-13, batches=False)
    assert paired.difference == Interval(0.0, 0.0, 0.0)
    assert paired.variance_reduction == 1.0
    constant = Paired.of([0.0, 0.0], [2.0, 2.0], batches=False)
    assert constant.relative is None
    assert constant.variance_reduction is None
