"""A rehearsed night is as hard as the real one was, though its truth is drawn from an estimate that is smoother than reality."""

from __future__ import annotations

import weakref
from fractions import Fraction

import numpy as np
import pytest

from heathaze.learn.denoiser import Denoised, noise_variance
from heathaze.learn.maps import Estimate, Measurement, Scales, measure_again
from heathaze.learn.tree import FINEST, area_sums, spread_areas
from heathaze.release import rehearsal
from heathaze.release.rehearsal import last_rehearsals, moved

SCALES = Scales(cell=Fraction(5), total=Fraction(5))
SLICES, AREAS = 6, 20


def poisson(values: np.ndarray) -> Estimate:
    """An estimate whose cells vary by chance alone."""
    return Estimate(Denoised(values.astype(np.float32), np.sqrt(values).astype(np.float32)), None, 1)


def flattened(measured: Measurement) -> Estimate:
    """Areas drawn to their mean by as much of their spread as noise explains: right in every cell, wrong in common over areas."""
    sums = area_sums(measured.slices, FINEST).mean(0)
    noise = noise_variance(SCALES.cell) * FINEST**2 / SLICES
    gain = max(0.0, 1 - noise / sums.var())
    shrunk = np.maximum(sums.mean() + gain * (sums - sums.mean()), 1)
    image = spread_areas(shrunk / FINEST**2, FINEST, measured.slices.shape[1:])
    return poisson(np.broadcast_to(image, measured.slices.shape))


def error_of_areas(truth: np.ndarray, found: Estimate) -> float:
    return float(np.sqrt(np.mean(np.square(area_sums(found.slices.values - truth, FINEST).mean(0)))))


@pytest.mark.parametrize("rounds, least, most", [(rehearsal.ROUNDS, 0.95, 1.3), (1, 0.0, 0.9)])
def test_rehearsed_errors_over_areas_are_as_large_as_real_ones(
    rounds: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What areas differ by is hidden by noise as large, so that half of it is lost; one rehearsal finds that too easy."""
    monkeypatch.setattr(rehearsal, "ROUNDS", rounds)
    noise = noise_variance(SCALES.cell) * FINEST**2 / SLICES
    ratios = []
    for seed in range(6):
        random = np.random.default_rng(seed)
        areas = np.maximum(200 + np.sqrt(noise) * random.standard_normal((AREAS, AREAS)), 1) / FINEST**2
        truth = random.poisson(
            np.broadcast_to(spread_areas(areas, FINEST, (AREAS * FINEST,) * 2), (SLICES, *(AREAS * FINEST,) * 2))
        )
        measured = measure_again(truth, SCALES, random)
        found = flattened(measured)
        drawn = list(last_rehearsals(found, measured.slices, SCALES, flattened, random))
        assert len(drawn) == min(rehearsal.READ, rounds)
        rehearsed = np.sqrt(np.mean([error_of_areas(imagined, result) ** 2 for imagined, _, result in drawn]))
        ratios.append(float(rehearsed) / error_of_areas(truth, found))
    assert least < np.mean(ratios) < most, ratios


def test_an_estimate_is_moved_by_what_a_rehearsal_missed_and_no_area_below_nothing() -> None:
    shape = (2, 2 * FINEST, 2 * FINEST)
    found, start, result = (poisson(np.full(shape, value)) for value in (1.0, 2.0, 2.5))
    after = moved(found, start, result).slices
    assert after.deviation is not None
    assert np.allclose(after.values, 0.5) and np.allclose(np.square(after.deviation), 0.5), "as sure as chance alone"
    empty = moved(found, start, poisson(np.full(shape, 9.0))).slices
    assert not empty.values.any() and empty.deviation is not None and not empty.deviation.any()
    unsure = Estimate(Denoised(found.slices.values, np.full(shape, 3.0, np.float32)), None, 1)
    doubled = moved(unsure, poisson(np.full(shape, 2.0)), poisson(np.full(shape, 1.0))).slices
    assert doubled.deviation is not None
    assert np.allclose(doubled.values, 2) and np.allclose(np.square(doubled.deviation), 2 + 4 * 8), "a rate varies as it is large"
    with_map = [
        Estimate(one.slices, poisson(np.full(shape, value)[:1]).slices, 1)
        for one, value in ((found, 4.0), (start, 2.0), (result, 3.0))
    ]
    of_map = moved(*with_map).map
    assert of_map is not None and np.allclose(of_map.values, 3), "the map is moved by its own error"
    alone = moved(Estimate(Denoised(found.slices.values), None, 1), start, result)
    assert alone.slices.deviation is None and np.allclose(alone.slices.values, 0.5)


def test_one_rehearsal_is_let_go_before_the_next_is_made() -> None:
    """Of 96 large slices, two would not fit."""
    random = np.random.default_rng(0)
    measured = measure_again(random.poisson(np.full((SLICES, 4 * FINEST, 4 * FINEST), 3.0)), SCALES, random)
    alive = []

    def again(another: Measurement) -> Estimate:
        alive.append(sum(reference() is not None for reference in seen))
        return flattened(another)

    seen: list[weakref.ref[np.ndarray]] = []
    for truth, other, result in last_rehearsals(flattened(measured), measured.slices, SCALES, again, random):
        seen += [weakref.ref(one) for one in (truth, other.slices, result.slices.values)]
        del truth, other, result
    assert len(seen) == 3 * rehearsal.READ and alive == [0] * rehearsal.ROUNDS
