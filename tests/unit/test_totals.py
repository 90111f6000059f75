from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from heathaze.learn.denoiser import Denoised, discrete_laplace, noise_variance
from heathaze.learn.shrink import shrink
from heathaze.learn.totals import Totals, measured_again, settle_totals

SHAPE = (8, 30, 40)
DEVIATION = 2.0


def city(seed: int = 0) -> np.ndarray:
    """Whole counts, thick in one corner, in slices that differ."""
    north, east = np.mgrid[0 : SHAPE[1], 0 : SHAPE[2]]
    busy = np.linspace(0.5, 2, SHAPE[0])[:, None, None]
    return np.random.default_rng(seed).poisson(busy * 30 * np.exp(-(north + east) / 15))


def estimate(truth: np.ndarray, seed: int = 1) -> Denoised:
    """Cells that err independently, as claimed."""
    off = DEVIATION * np.random.default_rng(seed).standard_normal(truth.shape)
    return Denoised((truth + off).astype(np.float32), np.full(truth.shape, DEVIATION, dtype=np.float32))


def measured(truth: np.ndarray, scale: int, seed: int = 2) -> Totals:
    return measured_again(truth, Fraction(scale), np.random.default_rng(seed))


def error(values: np.ndarray, truth: np.ndarray) -> float:
    """Mean squared error of the totals of slices."""
    return float(np.mean((values - truth).sum((1, 2), dtype=np.float64) ** 2))


@pytest.mark.parametrize("scale", [20, 50, 120])
def test_totals_are_as_good_as_two_independent_measurements_weighed_by_their_variances(scale):
    found = []
    for seed in range(150):
        truth = city(seed)
        found.append(error(settle_totals(estimate(truth, seed + 1_000), measured(truth, scale, seed + 2_000)).values, truth))
    cells, noise = truth[0].size * DEVIATION**2, noise_variance(Fraction(scale))
    best = cells * noise / (cells + noise)
    assert 0.85 * best < np.mean(found) < 1.2 * best


def test_an_error_that_all_cells_share_is_found_and_taken_off():
    truth = city()
    off = Denoised((truth * 1.3 + 0.5).astype(np.float32), np.sqrt(truth + 1).astype(np.float32))
    assert error(settle_totals(off, measured(truth, 5)).values, truth) < 0.001 * error(off.values, truth)


def test_totals_that_drown_in_noise_leave_the_estimate_alone():
    truth = city()
    denoised = estimate(truth)
    assert np.abs(settle_totals(denoised, measured(truth, 50_000)).values - denoised.values).max() < 0.2


def test_totals_with_little_of_epsilon_never_move_a_small_map_further_than_the_noise_of_its_cells():
    """As on a map of 8 x 8 cells, where a thick tail of four noisy totals once looked like an error of the estimate."""
    scale, total_scale = Fraction(3), Fraction(150)
    reach = 5 * np.sqrt(4 * 64 * noise_variance(scale))
    for seed in range(300):
        random = np.random.default_rng(seed)
        truth = random.poisson(0.6, (4, 8, 8))
        noisy = (truth + discrete_laplace(random, float(scale), truth.shape)).astype(np.int32)
        totals = measured_again(truth, total_scale, random).with_cells(noisy, scale)
        settled = settle_totals(shrink(noisy, [], scale), totals).values
        assert abs(settled.sum() - noisy.sum()) < reach


def test_totals_and_sums_of_cells_are_weighed_by_their_variances():
    noisy = np.full((2, 10, 10), 3, dtype=np.int32)
    equal = Totals(np.array([400, 0]), 100 * noise_variance(Fraction(2))).with_cells(noisy, Fraction(2))
    assert np.allclose(equal.values, [350, 150]) and np.isclose(equal.variance, 50 * noise_variance(Fraction(2)))


def test_cells_that_are_surely_known_stay_as_they_are():
    truth = city()
    deviation = np.full(SHAPE, DEVIATION, dtype=np.float32)
    deviation[:, :8, :8] = 0
    settled = settle_totals(Denoised(truth.astype(np.float32) + 1, deviation), measured(truth, 2)).values
    assert np.abs(settled[:, :8, :8] - truth[:, :8, :8] - 1).max() < 1e-3
    assert np.abs(settled[:, 8:, 8:] - truth[:, 8:, 8:]).max() < 0.2


@pytest.mark.parametrize("slices", [1, 8])
def test_a_denoiser_without_deviations_is_settled_too_and_so_is_an_empty_night(slices):
    truth = city()[:slices]
    silent = Denoised((truth * 1.5).astype(np.float32))
    assert error(settle_totals(silent, measured(truth, 5)).values, truth) < 0.01 * error(silent.values, truth)
    nothing = Denoised(np.zeros(truth.shape, dtype=np.float32))
    settled = settle_totals(nothing, Totals(np.zeros(slices, dtype=np.int64), 50.0))
    assert np.array_equal(settled.values, nothing.values) and settled.deviation is None


@pytest.mark.parametrize(("spread", "at_most"), [(0.0, 0.4), (1.0, 0.8), (30.0, 1.01)])
def test_totals_that_noise_alone_sets_apart_are_drawn_together(spread, at_most):
    """28 slices that differ by so many deviations of the noise, 300 times; squared errors, as a part of the noise's."""
    random, scale = np.random.default_rng(3), Fraction(80)
    noise = noise_variance(scale)
    parts, claims = [], []
    for _ in range(300):
        exact = 5_000 + spread * noise**0.5 * random.standard_normal(28)
        drawn = Totals(exact + discrete_laplace(random, float(scale), 28), noise).drawn_together()
        parts.append(np.mean((drawn.values - exact) ** 2) / noise)
        claims.append(drawn.variance / noise)
    assert np.mean(parts) < at_most
    assert np.mean(claims) == pytest.approx(np.mean(parts), abs=0.15)


def test_too_few_totals_are_left_as_they_are():
    few = Totals(np.array([10.0, 20.0, 90.0]), 1e6)
    assert few.drawn_together() is few
