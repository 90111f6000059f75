from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from heathaze.learn.denoiser import Denoised, noise_variance, none
from heathaze.learn.maps import (
    GROWTH,
    Measurement,
    Scales,
    change_of_parts,
    estimate_night,
    measure_again,
    parts_of,
    scatter,
    settle_map,
    share_noisy,
    share_out,
    vary_parts,
)
from heathaze.learn.shrink import shrink
from heathaze.learn.totals import Totals
from heathaze.rho import block_sums, spread_evenly

SIDE = 4
SCALES = Scales(Fraction(6), Fraction(12), Fraction(20), SIDE)


def city(slices: int = 8) -> np.ndarray:
    """Whole counts: few hot places, the same in all slices, that are busier in some of them."""
    random = np.random.default_rng(0)
    places = random.gamma(0.1, 10, (32, 48))
    return random.poisson(np.linspace(0.5, 2, slices)[:, None, None] * places)


def test_what_is_shared_out_adds_up_to_its_block_and_follows_the_map():
    blocks = Denoised(np.array([[[160.0, 0.0]], [[16.0, 32.0]]], dtype=np.float32), np.full((2, 1, 2), 3.0, dtype=np.float32))
    counts = np.zeros((1, 4, 8), dtype=np.float32)
    counts[0, 0, 0], counts[0, 3, 3] = 30, 10
    cells = share_out(blocks, Denoised(counts, np.ones_like(counts)), SIDE)
    assert np.allclose(block_sums(cells.values, SIDE), blocks.values, rtol=1e-5)
    assert np.allclose(cells.values[:, 0, 0], [120, 12]) and np.allclose(cells.values[:, 3, 3], [40, 4])
    assert np.allclose(cells.values[1, :, 4:], 2), "a block of which the map knows nothing shares evenly"
    assert cells.deviation is not None and (cells.deviation > 0).all()
    assert cells.deviation[0, 0, 0] > cells.deviation[1, 0, 0], "more events, more to be wrong about"


def test_counts_below_zero_are_never_shared_out_and_without_deviations_there_are_none():
    blocks = Denoised(np.array([[[-5.0, 20.0]]], dtype=np.float32))
    counts = np.full((1, 4, 8), -1.0, dtype=np.float32)
    counts[0, 0, 4] = 40
    cells = share_out(blocks, Denoised(counts), SIDE)
    assert cells.deviation is None and (cells.values >= 0).all() and np.isclose(cells.values.sum(), 15)


def test_a_measurement_anew_has_the_noise_of_each_part():
    truth = np.zeros((3, 400, 400), dtype=np.int64)
    measured = measure_again(truth, SCALES, np.random.default_rng(1))
    assert measured.slices.shape == (3, 100, 100) and measured.map is not None and measured.map.shape == (1, 400, 400)
    for values, scale in ((measured.slices, SCALES.cell), (measured.map, SCALES.map)):
        assert scale is not None and np.isclose(values.var(), noise_variance(scale), rtol=0.06)
    assert measured.totals.variance == noise_variance(SCALES.total)
    alone = measure_again(truth, Scales(Fraction(6), Fraction(12)), np.random.default_rng(1))
    assert alone.map is None and alone.slices.shape == truth.shape


def test_a_map_tells_single_cells_where_blocks_alone_do_not_and_blocks_stay_as_good():
    truth = city()
    measured = measure_again(truth, SCALES, np.random.default_rng(2))
    assert SCALES.map is not None
    ready = [partial(shrink, earlier=[], scale=scale) for scale in (SCALES.cell, SCALES.map)]
    found = estimate_night(measured, SCALES, *ready).published()
    evenly = spread_evenly(shrink(measured.slices, [], SCALES.cell).values, SIDE)

    def error(values: np.ndarray) -> float:
        return float(np.abs(values - truth)[truth > 5].mean())

    assert error(found.values) < 0.6 * error(evenly)
    off = [np.abs(block_sums(values - truth, SIDE)).mean() for values in (found.values, evenly)]
    assert off[0] < 1.05 * off[1]


def test_without_a_map_a_night_is_its_slices_settled_by_totals():
    truth = city(2)
    scales = Scales(Fraction(2), Fraction(1, 2))
    measured = Measurement(truth.astype(np.int32) + 1, Totals(truth.sum((1, 2)), noise_variance(scales.total)))
    as_they_are = partial(none, earlier=[], scale=scales.cell)
    found = estimate_night(measured, scales, as_they_are, as_they_are).published()
    assert np.allclose(found.values.sum((1, 2)), truth.sum((1, 2)), rtol=0.01)


def test_noisy_blocks_are_shared_out_as_the_estimate_of_the_whole_period_is():
    values = np.zeros((2, 4, 4), dtype=np.float32)
    values[0, 0, 0], values[1, 0, 1] = 3, 1
    shared = share_noisy(np.array([[[80]], [[-40]]], dtype=np.int32), values, SIDE)
    assert np.allclose(shared[:, 0, 0], [60, -30]) and np.allclose(shared.sum((1, 2)), [80, -40])
    noisy = np.arange(12).reshape(1, 3, 4)
    assert share_noisy(noisy, noisy, 1) is noisy


def test_parts_that_change_from_slice_to_slice_are_seen_through_the_noise_and_those_that_stay_are_not():
    random, scale = np.random.default_rng(3), Fraction(4)
    rates = np.broadcast_to(random.gamma(1.0, 60, (1, 40, 40)), (24, 40, 40))
    found = []
    for change in (0.0, 0.05, 0.2):
        blocks = random.poisson(rates * (random.gamma(1 / change, change, rates.shape) if change else 1))
        noisy = measure_again(blocks, Scales(scale, scale), random).slices
        found.append(change_of_parts(noisy, np.broadcast_to(blocks.mean(0), blocks.shape), scale))
    assert found[0] < 0.003 and np.allclose(found[1:], (0.05, 0.2), rtol=0.15)
    nothing = measure_again(np.zeros_like(blocks), Scales(scale, scale), random).slices
    assert 0 <= change_of_parts(nothing, np.zeros(blocks.shape), scale) <= 1
    assert change_of_parts(noisy[:1], blocks[:1], scale) == change_of_parts(noisy[:, :1], blocks[:, :1], scale) == 0


def test_a_few_crowds_that_stay_do_not_speak_for_the_many_places_that_change():
    random, scale = np.random.default_rng(7), Fraction(8)
    rates = random.gamma(1.0, 60, (40, 40))
    rates[:6, :6] *= 40
    change = np.where(rates > 800, 1e-4, 0.1)
    blocks = random.poisson(rates * random.gamma(1 / change, change, (24, 40, 40)))
    noisy = measure_again(blocks, Scales(scale, scale), random).slices
    assert change_of_parts(noisy, np.broadcast_to(blocks.mean(0), blocks.shape), scale) > 0.07


def test_few_blocks_whose_parts_stay_are_seldom_thought_to_change():
    random, scale = np.random.default_rng(8), Fraction(40)
    found = []
    for _ in range(60):
        blocks = random.poisson(np.broadcast_to(random.gamma(1.0, 70, (3, 3)), (28, 3, 3)))
        noisy = measure_again(blocks, Scales(scale, scale), random).slices
        found.append(change_of_parts(noisy, np.broadcast_to(blocks.mean(0), blocks.shape), scale))
    assert np.mean(np.array(found) > 0.05) < 0.2


def test_events_are_scattered_by_their_parts_and_none_is_lost():
    random = np.random.default_rng(4)
    parts = parts_of(random.gamma(0.5, 1, (2, 48, 48)), SIDE)
    blocks = random.poisson(400, (2, 12, 12))
    truth = scatter(blocks, parts, SIDE, random)
    assert np.array_equal(block_sums(truth, SIDE), blocks)
    assert np.corrcoef(truth.ravel(), (parts * np.repeat(np.repeat(blocks, SIDE, 1), SIDE, 2)).ravel())[0, 1] > 0.99
    empty = scatter(np.zeros_like(blocks), parts_of(np.zeros_like(parts), SIDE), SIDE, random)
    assert not empty.any()


def test_varied_parts_still_add_up_and_vary_by_as_much_as_was_asked():
    random = np.random.default_rng(5)
    even = np.full((40, 32, 32), 1 / SIDE**2)
    assert np.array_equal(vary_parts(even, SIDE, 0.0, random), even)
    varied = vary_parts(even, SIDE, 0.02, random)
    assert np.allclose(block_sums(varied, SIDE), 1)
    halves = block_sums(varied, SIDE // 2)
    # Four halves share a block, and each of them changes on its own and with its four cells, which change more.
    assert np.isclose(halves.var() / halves.mean() ** 2, 0.75 * (2**GROWTH + 4**GROWTH / 4) * 0.02, rtol=0.1)


def test_slices_that_noise_alone_sets_apart_get_totals_alike():
    random, scales = np.random.default_rng(6), Scales(Fraction(40), Fraction(80))
    truth = np.full((28, 6, 6), 200)
    measured = measure_again(truth, scales, random)

    def unsure(noisy: np.ndarray) -> Denoised:
        return Denoised(np.full(noisy.shape, 150.0, dtype=np.float32), np.full(noisy.shape, 1e4, dtype=np.float32))

    found = estimate_night(measured, scales, unsure, unsure).published().values.sum((1, 2))
    weighed = measured.totals.with_cells(measured.slices, scales.cell).values
    assert np.abs(found - 7_200).mean() < 0.6 * np.abs(weighed - 7_200).mean()


def test_the_map_is_taken_as_measured_where_the_slices_show_that_its_estimate_is_wrong():
    """A crowd in one cell of the first block, which the map's estimate took for noise, and slices that count it."""
    scale, shape = Fraction(100), (1, 8, 8)
    quiet = Denoised(np.full(shape, 50.0, np.float32), np.full(shape, 20.0, np.float32))
    noisy = np.full(shape, 50)
    noisy[0, 1, 1] = 2_000
    blocks = Denoised(np.full((4, 2, 2), 200.0, np.float32), np.full((4, 2, 2), 30.0, np.float32))
    assert np.array_equal(settle_map(quiet, blocks, noisy, scale, SIDE).values, quiet.values), "the slices say what the map says"
    blocks.values[:, 0, 0] += 500
    after = settle_map(quiet, blocks, noisy, scale, SIDE)
    assert 0.85 * 2_000 < after.values[0, 1, 1] < 2_200 and after.deviation is not None
    assert after.deviation[0, 1, 1] == pytest.approx(noise_variance(scale) ** 0.5, rel=0.1), "as sure as it was measured"
    for ours, theirs in ((after.values, quiet.values), (after.deviation, quiet.deviation)):
        assert theirs is not None and np.array_equal(ours[:, 4:], theirs[:, 4:]), "other blocks stay"
    assert after.values[0, :4, :4].sum() == pytest.approx(blocks.values[:, 0, 0].sum(), rel=0.05)


def test_a_map_whose_noise_would_drown_the_difference_stays_as_it_is():
    scale, shape = Fraction(100), (1, 8, 8)
    quiet = Denoised(np.full(shape, 5.0, np.float32), np.full(shape, 1.0, np.float32))
    blocks = Denoised(np.full((4, 2, 2), 100.0, np.float32), np.full((4, 2, 2), 1.0, np.float32))
    noisy = np.random.default_rng(0).integers(-300, 300, shape)
    assert np.array_equal(settle_map(quiet, blocks, noisy, scale, SIDE).values, quiet.values)
