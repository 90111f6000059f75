"""shrink, against the answers that need no thought."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from heathaze.learn.denoiser import noise_fourth_moment, noise_variance, none
from heathaze.learn.shrink import shrink

SCALE = Fraction(5)


def _noise(random: np.random.Generator, shape: tuple[int, ...], scale: float = 5.0) -> np.ndarray:
    a = np.exp(-1 / scale)
    return random.geometric(1 - a, shape) - random.geometric(1 - a, shape)


def _city(random: np.random.Generator, slices: int, side: int = 64) -> np.ndarray:
    """Warm streets, a few hot places, hours that differ."""
    street = np.zeros((side, side))
    street[::8] = 6
    street[:, ::8] = 6
    places = random.integers(0, side, (40, 2))
    street[places[:, 0], places[:, 1]] += random.pareto(1.2, 40) * 30 + 20
    hours = 1 + 0.6 * np.sin(np.arange(slices) / slices * 2 * np.pi)
    return random.poisson(street[None] * hours[:, None, None])


def _error(estimate: np.ndarray, truth: np.ndarray) -> float:
    return float(np.abs(estimate - truth).mean())


def test_noise_moments_match_a_sum_over_the_law() -> None:
    x = np.arange(-3000, 3001)
    p = np.exp(-np.abs(x) / 5.0)
    p /= p.sum()
    assert noise_variance(SCALE) == pytest.approx((p * x**2).sum())
    assert noise_fourth_moment(SCALE) == pytest.approx((p * x.astype(float) ** 4).sum())


def test_shrink_beats_identity_clipping_smoothing_and_the_mean_over_time() -> None:
    from scipy.ndimage import gaussian_filter

    random = np.random.default_rng(1)
    truth = _city(random, 8)
    noisy = truth + _noise(random, truth.shape)
    error = _error(shrink(noisy, [], SCALE).values, truth)
    smoothed = np.stack([gaussian_filter(image.astype(float), 1.0) for image in noisy])
    mean = np.broadcast_to(noisy.mean(0), noisy.shape)
    for name, other in {"identity": noisy, "clipped": np.maximum(noisy, 0), "smoothed": smoothed, "mean": mean}.items():
        assert error < 0.9 * _error(other, truth), name


def test_earlier_nights_make_tonight_better() -> None:
    random = np.random.default_rng(2)
    rate = _city(random, 8)
    nights = [random.poisson(rate) for _ in range(15)]
    noisy = [night + _noise(random, night.shape) for night in nights]
    alone = _error(shrink(noisy[-1], [], SCALE).values, nights[-1])
    helped = _error(shrink(noisy[-1], noisy[:-1], SCALE).values, nights[-1])
    assert helped < 0.8 * alone


def test_an_event_tonight_is_not_dragged_back_to_earlier_nights() -> None:
    random = np.random.default_rng(3)
    rate = _city(random, 8)
    earlier = [random.poisson(rate) + _noise(random, rate.shape) for _ in range(10)]
    tonight = random.poisson(rate)
    tonight[4, 20:26, 20:26] += 200
    estimate = shrink(tonight + _noise(random, rate.shape), earlier, SCALE).values
    assert estimate[4, 20:26, 20:26].mean() > 0.9 * tonight[4, 20:26, 20:26].mean()


def test_an_empty_map_stays_nearly_empty() -> None:
    noisy = _noise(np.random.default_rng(4), (8, 96, 96))
    estimate = shrink(noisy, [], SCALE)
    assert np.abs(estimate.values).mean() < 0.15 * np.abs(noisy).mean()
    assert np.isfinite(estimate.values).all()


@pytest.mark.parametrize("shape", [(1, 64, 64), (1, 1, 1), (3, 2, 5), (24, 16, 16)])
def test_any_shape_gives_finite_values(shape: tuple[int, ...]) -> None:
    noisy = _noise(np.random.default_rng(5), shape)
    for estimate in (shrink(noisy, [], SCALE), shrink(noisy, [noisy, noisy], SCALE)):
        assert estimate.values.shape == shape and np.isfinite(estimate.values).all()
        assert estimate.deviation is not None and np.isfinite(estimate.deviation).all()


def test_the_stated_deviation_is_of_the_size_of_the_error() -> None:
    random = np.random.default_rng(6)
    truth = _city(random, 8)
    estimate = shrink(truth + _noise(random, truth.shape), [], SCALE)
    assert estimate.deviation is not None
    error, stated = np.sqrt(((estimate.values - truth) ** 2).mean()), np.sqrt((estimate.deviation**2).mean())
    assert 0.5 < stated / error < 2


def test_none_returns_the_noise_and_says_how_much() -> None:
    noisy = _noise(np.random.default_rng(7), (2, 3, 4))
    estimate = none(noisy, [], SCALE)
    assert np.array_equal(estimate.values, noisy)
    assert estimate.deviation is not None and estimate.deviation[0, 0, 0] == pytest.approx(7.06, abs=0.01)
