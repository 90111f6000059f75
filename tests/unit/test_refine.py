"""refine: from the sample to all events."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from heathaze.policy import Refine
from heathaze.release.refine import Measured, finish, refine

NIGHT = Measured(sample_size=1_000, event_count=3_000, noise_variance=50.0)
SHAPE = (2, 10, 10)
NOISY = np.random.default_rng(0).integers(-20, 30, SHAPE)


def estimate(total: float) -> np.ndarray:
    """A posterior mean that adds up to a total."""
    values = np.random.default_rng(1).gamma(0.5, 2, SHAPE)
    return (values * total / values.sum()).astype(np.float32)


def test_a_posterior_mean_is_scaled_from_the_sample_to_all_events_however_unsure_it_is() -> None:
    for deviation in (0.01, 100.0):
        found = refine(estimate(1_000), np.full(SHAPE, deviation), NOISY, NIGHT, Refine())
        assert found.gamma == pytest.approx(3.0) and found.uniformity is None
        assert found.total_published == pytest.approx(3_000, rel=1e-4)


def test_no_more_events_are_published_than_there_are() -> None:
    found = refine(estimate(40_000), np.ones(SHAPE), NOISY, NIGHT, Refine())
    assert found.total_published == pytest.approx(3_000, rel=1e-4)


def test_what_is_too_much_is_taken_where_the_estimate_is_unsure() -> None:
    crowd = np.full(SHAPE, 6.0, dtype=np.float32)
    crowd[0, 0, 0] = 500.0
    unsure = np.where(crowd > 100, 0.01, 1.0)
    found = refine(crowd, unsure, NOISY, NIGHT, Refine())
    assert found.values[0, 0, 0] == pytest.approx(3 * 500, rel=0.01)
    assert found.total_published == pytest.approx(3_000, rel=1e-3)


def test_each_slice_keeps_its_total_when_values_below_0_are_cut() -> None:
    values = np.random.default_rng(2).normal(0.5, 3, SHAPE).astype(np.float32)
    values[1] += 20
    published = finish(values, Refine(non_negative=True))
    assert published.min() >= 0 and values.min() < 0
    assert published.sum((1, 2)) == pytest.approx(values.sum((1, 2)), rel=1e-3)


def test_an_estimate_that_lost_events_is_not_blown_up() -> None:
    found = refine(estimate(200), np.ones(SHAPE), NOISY, NIGHT, Refine())
    assert found.gamma == pytest.approx(3.0)


@pytest.mark.parametrize("deviation", [None, np.full(SHAPE, 2.0)])
def test_the_factor_of_the_paper_is_used_for_plain_noise_and_where_the_policy_names_c(deviation: np.ndarray | None) -> None:
    left = 200 * 50.0 if deviation is None else 200 * 4.0
    found = refine(estimate(1_000), deviation, NOISY, NIGHT, Refine(uniformity=Decimal("0.01")))
    assert found.gamma == pytest.approx(1_000 * 3_000 * 0.01 / (left + 0.99 * 1_000 + 0.01 * 1_000**2))
    assert found.uniformity == 0.01 and not found.was_chosen


def test_c_is_chosen_from_the_noisy_tensor_where_the_noise_is_left_as_it_is() -> None:
    found = refine(NOISY, None, NOISY, NIGHT, Refine())
    assert found.was_chosen and found.uniformity is not None and 0 < found.gamma < 3
