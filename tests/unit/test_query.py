"""Counts in boxes and their intervals, hotspots, forecasts, and how a release is opened."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy.ndimage import uniform_filter
from scipy.optimize import minimize
from tests.conftest import policy_text
from tests.nights import candidate_of, draw_noise

from heathaze.errors import InputError
from heathaze.grid import Period
from heathaze.learn.denoiser import Denoised, noise_variance
from heathaze.policy import parse_policy
from heathaze.release import query
from heathaze.release.forecast import theta
from heathaze.release.manifest import make_manifest
from heathaze.release.publish import publish
from heathaze.release.query import Release, chain, count, forecast, hotspots, open_chain, open_release
from heathaze.release.rehearsal import plausible
from heathaze.release.sums import box_sums, prefix_sum, share_powers, whole_sums
from heathaze.release.uncertainty import ErrorModel, NoiseLaw, chance_of
from heathaze.tables import Tables

SCALE = Fraction(5)
VARIANCE = noise_variance(SCALE)
Sizes = tuple[int, int, int]


def release_of(
    values: np.ndarray, noisy: np.ndarray | None = None, deviation: np.ndarray | None = None, gamma: float = 1.0, **manifest: Any
) -> Release:
    """A release in memory, one day over a tenth of a degree."""
    slices, rows, cols = values.shape
    policy = parse_policy(policy_text(slices=slices, rows=rows, cols=cols))
    noisy = np.zeros(values.shape) if noisy is None else noisy
    candidate = candidate_of(policy, "2026-11-14", noisy, values / gamma, deviation, gamma)
    period = manifest.pop("period", candidate.period)
    made = dataclasses.replace(candidate, period=period, scale=SCALE)
    return Release(
        "toy", made.refined, made.noisy, made.deviation, made.grid, tuple(period.edges), SCALE, gamma,
        {**make_manifest(made, []), **manifest},
    )  # fmt: skip


def shares(low: float, high: float, size: int) -> np.ndarray:
    """The share of each cell that lies between two edges."""
    cells = np.arange(size)
    return np.clip(np.minimum(high, cells + 1) - np.maximum(low, cells), 0, 1)


# Sums over boxes


def test_box_sums_count_cut_cells_by_their_share() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(5, 7, 9))
    edges = [np.sort(random.uniform(0, size, (300, 2)), axis=1) for size in values.shape]
    for axis, size in enumerate(values.shape):
        edges[axis][:20] = np.rint(edges[axis][:20])  # on edges of cells
        edges[axis][20:25] = (0, size)  # and the whole
        edges[axis][25:30, 1] = edges[axis][25:30, 0] + 1e-3  # and within one cell
        edges[axis] = np.minimum(edges[axis], size)
    squares = values**2
    found = box_sums([prefix_sum(values), prefix_sum(values, 2)], *edges)
    for number in range(300):
        weights = [shares(*edges[axis][number], size) for axis, size in enumerate(values.shape)]
        for tensor, sums in ((values, found[0]), (squares, found[1])):
            assert sums[number] == pytest.approx(np.einsum("trc,t,r,c->", tensor, *weights), abs=1e-9)


def test_powers_of_shares_are_those_of_the_cells() -> None:
    random = np.random.default_rng(1)
    edges = np.sort(random.uniform(0, 6, (200, 2)), axis=1)
    edges[:50] = np.sort(random.integers(0, 7, (50, 2)), axis=1)
    for power in (1, 2, 4):
        expected = [(shares(*pair, 6) ** power).sum() for pair in edges]
        assert share_powers(edges, power) == pytest.approx(expected)


# The law of the noise


def law_of_sum(scale: float, draws: int) -> np.ndarray:
    """P(sum = -reach..reach), by convolving the law of one draw with itself."""
    a = np.exp(-1 / scale)
    one = (1 - a) / (1 + a) * a ** np.abs(np.arange(-int(40 * scale), int(40 * scale) + 1))
    law = one
    for _ in range(draws - 1):
        law = np.convolve(law, one)
    return law


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(5), Fraction(1000, 47)])
@pytest.mark.parametrize("draws", [1, 2, 3, 7])
def test_the_interval_of_a_whole_sum_is_the_shortest_that_holds_90_percent(scale: Fraction, draws: int) -> None:
    whole = np.array([float(draws)])
    half = NoiseLaw(scale).half_width(whole, whole)[0]
    assert half == pytest.approx(round(half), abs=1e-9)
    law = law_of_sum(float(scale), draws)
    middle, reach = len(law) // 2, round(half)
    assert law[middle - reach : middle + reach + 1].sum() >= 0.9
    assert reach == 0 or law[middle - reach + 1 : middle + reach].sum() < 0.9


def test_the_law_of_large_sums_goes_on_where_the_exact_one_ends() -> None:
    law = NoiseLaw(SCALE)
    around = law.quantile(np.array([63.0, 64.0, 65.0, 66.0]))
    step = 1 / np.sqrt(64 * law.variance)  # of whole numbers
    assert np.ptp(around) < step
    assert law.quantile(np.array([1e6]))[0] == pytest.approx(1.64485, abs=1e-4)


@pytest.mark.parametrize("scale", [Fraction(3), Fraction(2000)])
def test_the_interval_of_a_weighted_sum_holds_90_percent(scale: Fraction) -> None:
    random = np.random.default_rng(2)
    for weights in ([0.4], [1, 0.3, 0.3, 0.1], [1] * 9 + [0.5] * 12 + [0.25] * 4):
        w = np.array(weights)
        off = draw_noise((20_000, len(w)), float(scale), random) @ w
        half = NoiseLaw(scale).half_width(np.array([(w**2).sum()]), np.array([(w**4).sum()]))[0]
        assert np.mean(np.abs(off) <= half) == pytest.approx(0.9, abs=0.02)
        assert np.mean(np.abs(off) <= 0.8 * half) < 0.88


def test_noisy_answers_hold_the_truth_in_90_percent() -> None:
    random = np.random.default_rng(3)
    truth = random.poisson(4, (8, 60, 60))
    release = release_of(np.zeros(truth.shape), truth + draw_noise(truth.shape, 5, random), gamma=1.5)
    corner = random.uniform(0, 50, (2, 4000))
    lat, lon = 40 + corner[0] / 600, -74 + corner[1] / 600
    boxes = release.boxes(lat, lon, lat + 5.5 / 600, lon + 3.2 / 600, "2026-11-14T04:30", "2026-11-14T12:00")
    answers = count(release, boxes, noisy=True)
    (expected,) = box_sums([prefix_sum(1.5 * truth)], *boxes.axes)
    assert np.mean((answers.low <= expected) & (expected <= answers.high)) == pytest.approx(0.9, abs=0.025)
    assert set(answers.basis) == {"noisy sum; interval from the exact law of the noise"}


# The error model


def warm_city(seed: int, shape: Sizes = (4, 80, 80), bias: float = 0.8) -> tuple[np.ndarray, ...]:
    """truth, noisy, estimate, deviation: a smoother that claims too much and sees only a part of the events."""
    places = np.random.default_rng(0)
    north, east = np.mgrid[0 : shape[1], 0 : shape[2]]
    heat = np.full(shape[1:], 0.02)
    for _ in range(25):
        row, col, width = places.uniform(0, shape[1]), places.uniform(0, shape[2]), places.uniform(1, 5)
        heat += places.gamma(1, 15) * np.exp(-((north - row) ** 2 + (east - col) ** 2) / 2 / width**2)
    random = np.random.default_rng(seed)
    truth = random.poisson(heat, shape)
    noisy = truth + draw_noise(shape, float(SCALE), random)
    smooth = np.maximum(uniform_filter(noisy.astype(np.float64), (1, 3, 3)), 0)
    return truth, noisy, bias * smooth, 0.2 * np.sqrt(smooth)


def cold_city(seed: int, shape: Sizes = (4, 40, 40)) -> tuple[np.ndarray, ...]:
    """Hardly any events, and an estimate that knows."""
    random = np.random.default_rng(seed)
    truth = random.poisson(0.003, shape)
    return truth, truth + draw_noise(shape, float(SCALE), random), np.full(shape, 0.003), np.zeros(shape)


def boxes_in(truth: np.ndarray, size: Sizes, at_records: bool, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    shape, sizes = np.array(truth.shape), np.array(size)
    low = random.integers(0, shape - sizes + 1, (1500, 3))
    if at_records:
        cells = random.choice(truth.size, 1500, p=truth.ravel() / truth.sum())
        low = np.stack(np.unravel_index(cells, truth.shape), axis=1) - random.integers(0, sizes, (1500, 3))
        low = np.clip(low, 0, shape - sizes)
    return low, low + sizes


def judged(
    model: ErrorModel, city: tuple[np.ndarray, ...], size: Sizes, at_records: bool = False, claims: bool = True
) -> dict[str, np.ndarray]:
    """Sums and answers of many boxes of one size."""
    low, high = boxes_in(city[0], size, at_records, np.random.default_rng(9))
    truth, noisy, estimate = (whole_sums(prefix_sum(tensor), low, high) for tensor in city[:3])
    claimed = np.sqrt(np.maximum(whole_sums(prefix_sum(city[3], 2), low, high), 0)) if claims else None
    area, length = np.full(len(low), float(size[1] * size[2])), np.full(len(low), float(size[0]))
    made = model.answer(estimate, noisy, claimed, area, length)
    return {"truth": truth, "noisy": noisy, "estimate": estimate, **made._asdict()}


def held(found: dict[str, np.ndarray]) -> float:
    return float(np.mean((found["low"] - 1e-6 <= found["truth"]) & (found["truth"] <= found["high"] + 1e-6)))


def off(found: dict[str, np.ndarray], name: str) -> float:
    return float(np.sqrt(np.mean((found[name] - found["truth"]) ** 2)))


@pytest.fixture(scope="module")
def warm_model() -> ErrorModel:
    """Learnt in one rehearsal."""
    return ErrorModel.fit([warm_city(1)], VARIANCE)


@pytest.fixture(scope="module")
def warm_cities() -> list[tuple[np.ndarray, ...]]:
    """Other draws of the same city."""
    return [warm_city(seed) for seed in range(20, 32)]


@pytest.mark.parametrize("at_records", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 1), (1, 3, 3), (2, 4, 4), (3, 6, 5), (1, 64, 64), (4, 80, 80)])
def test_intervals_learnt_in_a_rehearsal_hold_the_truth_of_another_draw(
    warm_model: ErrorModel, warm_cities: list[tuple[np.ndarray, ...]], size: Sizes, at_records: bool
) -> None:
    cities = warm_cities if size[1] > 16 else warm_cities[:2]  # of large boxes, one city has but one
    if size == (4, 80, 80):
        cities = [*warm_cities, *(warm_city(seed) for seed in range(50, 100))]
    coverage = np.mean([held(judged(warm_model, city, size, at_records)) for city in cities])
    assert 0.85 <= coverage <= 0.95


def test_what_the_denoiser_claims_would_not_hold(warm_cities: list[tuple[np.ndarray, ...]], warm_model: ErrorModel) -> None:
    """The same boxes with the claimed deviations alone: the model is what makes the intervals hold."""
    city = warm_cities[0]
    low, high = boxes_in(city[0], (1, 3, 3), True, np.random.default_rng(9))
    truth, estimate, claim = (whole_sums(prefix_sum(city[i], power), low, high) for i, power in ((0, 1), (2, 1), (3, 2)))
    assert np.mean(np.abs(estimate - truth) <= 1.645 * np.sqrt(np.maximum(claim, 0))) < 0.5


@pytest.mark.parametrize("size", [(1, 1, 1), (1, 4, 4), (2, 8, 8), (1, 16, 16), (4, 32, 32), (4, 80, 80)])
def test_the_answer_is_no_worse_than_estimate_or_noisy_sum(
    warm_model: ErrorModel, warm_cities: list[tuple[np.ndarray, ...]], size: Sizes
) -> None:
    for at_records in (False, True):
        found = [judged(warm_model, city, size, at_records) for city in warm_cities]
        whole = {name: np.concatenate([one[name] for one in found]) for name in found[0]}
        assert off(whole, "answer") <= 1.05 * min(off(whole, "estimate"), off(whole, "noisy"))


def test_large_boxes_are_answered_by_the_noisy_sum_where_the_estimate_is_biased(
    warm_model: ErrorModel, warm_cities: list[tuple[np.ndarray, ...]]
) -> None:
    assert judged(warm_model, warm_cities[0], (4, 64, 64))["weight"].max() < 0.02
    assert judged(warm_model, warm_cities[0], (1, 1, 1))["weight"].mean() > 0.8


def test_large_boxes_are_answered_by_the_estimate_where_nearly_nothing_is_there() -> None:
    model = ErrorModel.fit([cold_city(1)], VARIANCE)
    found = [judged(model, cold_city(seed), (4, 40, 40)) for seed in range(2, 30)]
    assert all((one["weight"] == 1).all() for one in found)
    assert np.mean([held(one) for one in found]) >= 0.85


def test_without_deviations_the_model_goes_by_the_estimate(warm_cities: list[tuple[np.ndarray, ...]]) -> None:
    truth, noisy, estimate, _ = warm_city(1)
    model = ErrorModel.fit([(truth, noisy, estimate, None)], VARIANCE)
    for at_records in (False, True):
        coverage = np.mean([held(judged(model, city, (1, 3, 3), at_records, claims=False)) for city in warm_cities[:3]])
        assert 0.85 <= coverage <= 0.97


def test_an_empty_rehearsal_can_be_learnt_from() -> None:
    shape = (2, 12, 17)
    noise = draw_noise(shape, float(SCALE), np.random.default_rng(0))
    model = ErrorModel.fit([(np.zeros(shape), noise, np.zeros(shape), np.zeros(shape))], VARIANCE)
    found = model.answer(np.zeros(1), np.array([50.0]), np.zeros(1), np.array([204.0]), np.array([2.0]))
    assert found.answer[0] == 0 and np.isfinite([found.low[0], found.high[0]]).all()


def test_several_rehearsals_are_taken_together(warm_cities: list[tuple[np.ndarray, ...]]) -> None:
    model = ErrorModel.fit([warm_city(seed) for seed in (1, 2, 3)], VARIANCE, boxes=1500)
    coverage = np.mean([held(judged(model, city, (1, 8, 8))) for city in warm_cities])
    assert 0.85 <= coverage <= 0.95


def test_what_rehearsals_lack_is_seen_in_the_noisy_sums_of_the_night() -> None:
    """Rehearsed by an estimate that sees all events, asked of one that sees half of them."""
    nights = [warm_city(seed, bias=0.5) for seed in range(20, 24)]
    blind = ErrorModel.fit([warm_city(1, bias=1.0)], VARIANCE)
    warned = [ErrorModel.fit([warm_city(1, bias=1.0)], VARIANCE, night[1:]) for night in nights]
    for size in ((1, 4, 4), (1, 8, 8), (2, 16, 16)):
        without = [judged(blind, night, size, at_records=True) for night in nights]
        found = [judged(model, night, size, at_records=True) for model, night in zip(warned, nights, strict=True)]
        assert np.mean([held(one) for one in without]) < 0.7
        assert 0.8 <= np.mean([held(one) for one in found]) <= 0.97
        assert np.mean([off(one, "answer") for one in found]) < np.mean([off(one, "answer") for one in without])


def test_a_night_like_its_rehearsal_changes_little(warm_model: ErrorModel, warm_cities: list[tuple[np.ndarray, ...]]) -> None:
    night = warm_cities[0]
    warned = ErrorModel.fit([warm_city(1)], VARIANCE, night[1:])
    for size in ((1, 1, 1), (1, 8, 8), (4, 64, 64)):
        before, after = (judged(model, night, size) for model in (warm_model, warned))
        assert np.mean(after["high"] - after["low"]) == pytest.approx(np.mean(before["high"] - before["low"]), rel=0.25)


def test_that_a_box_around_a_record_holds_more_than_it_seems_to_is_not_taken_for_a_mistake_of_the_night() -> None:
    """The rate of every cell is known, and the night is drawn as its rehearsal was: there is nothing to make wider."""
    random = np.random.default_rng(4)
    heat = np.broadcast_to(random.gamma(0.1, 3, (60, 60)), (4, 60, 60))

    def city() -> tuple[np.ndarray, ...]:
        truth = random.poisson(heat)
        return truth, truth + draw_noise(truth.shape, float(SCALE), random), heat, np.sqrt(heat)

    rehearsed, night = city(), city()
    alone, beside = ErrorModel.fit([rehearsed], VARIANCE), ErrorModel.fit([rehearsed], VARIANCE, night[1:])
    for size in ((1, 1, 1), (1, 2, 2), (2, 4, 4)):
        before, after = (judged(model, night, size) for model in (alone, beside))
        assert np.mean(after["high"] - after["low"]) == pytest.approx(np.mean(before["high"] - before["low"]), rel=0.2)


def test_claims_that_many_boxes_share_leave_no_bin_of_them_empty() -> None:
    for seed in range(20, 30):
        random = np.random.default_rng(seed)
        runs = []
        for _ in range(2):
            truth = (random.random((2, 16, 16)) < 0.3).astype(int)
            noisy = truth + random.integers(-3, 4, truth.shape)
            estimate = np.where(random.random(truth.shape) < 0.05, 0.3, 0.1)
            runs.append((truth, noisy, estimate, np.sqrt(estimate)))
        text = json.dumps(ErrorModel.fit(runs, VARIANCE, boxes=400).to_json())
        assert "NaN" not in text, seed


def test_a_model_is_the_same_after_json(warm_model: ErrorModel, warm_cities: list[tuple[np.ndarray, ...]]) -> None:
    text = json.dumps(warm_model.to_json())
    assert len(text) < 6000
    again = ErrorModel.from_json(json.loads(text))
    for size in ((1, 2, 2), (3, 20, 20)):
        before, after = (judged(model, warm_cities[0], size) for model in (warm_model, again))
        # A level that lies on the border of two bins may fall into the other one when the border is rounded.
        assert np.mean(np.isclose(before["low"], after["low"], rtol=5e-3, atol=0.05)) > 0.99
    with pytest.raises(InputError, match="version"):
        ErrorModel.from_json({**json.loads(text), "version": 0})


# Counts


def test_an_answer_says_what_it_stands_on(warm_model: ErrorModel) -> None:
    truth, noisy, estimate, deviation = warm_city(40)
    release = release_of(3.0 * estimate, noisy, deviation, gamma=3.0, uncertainty=warm_model.to_json())
    lat, lon = 40 + 10 / 800, -74 + 10 / 800
    boxes = release.boxes(lat, lon, [lat + side / 800 for side in (1, 14, 64)], [lon + side / 800 for side in (1, 14, 64)])
    answers = count(release, boxes)
    small, middle, large = answers.basis
    assert small.endswith("; interval from a rehearsal on noisy data") and middle.startswith("combined (weight 0.")
    assert large == "noisy sum; interval from a rehearsal on noisy data"
    assert answers.answer[2] == pytest.approx(3 * noisy[:, 10:74, 10:74].sum(), rel=0.01)
    assert answers.low[2] < 3 * truth[:, 10:74, 10:74].sum() < answers.high[2]


def test_nothing_is_below_0_where_the_policy_promises_it() -> None:
    shape = (2, 30, 30)
    noise = draw_noise(shape, float(SCALE), np.random.default_rng(4))
    model = ErrorModel.fit([(np.zeros(shape), noise, np.zeros(shape), np.zeros(shape))], VARIANCE)
    release = release_of(np.zeros(shape), noise - 2, np.ones(shape), uncertainty=model.to_json())
    for made in (release, dataclasses.replace(release, manifest={**release.manifest, "uncertainty": None})):
        answers = count(made, made.boxes())
        assert answers.answer[0] >= 0 and answers.low[0] >= 0
    assert count(release, release.boxes(), noisy=True).answer[0] < 0
    policy = {**release.manifest["policy"], "refine": {"non_negative": False}}
    free = dataclasses.replace(release, manifest={**release.manifest, "policy": policy, "uncertainty": None})
    assert count(free, free.boxes()).low[0] < 0


def test_without_model_and_deviation_the_interval_is_the_noisy_sum_s() -> None:
    truth = np.full((2, 10, 10), 20.0)
    release = release_of(truth, truth + draw_noise(truth.shape, 5, np.random.default_rng(5)))
    boxes = release.boxes()
    plain, noisy = count(release, boxes), count(release, boxes, noisy=True)
    assert plain.answer[0] == truth.sum()
    assert (plain.low[0], plain.high[0]) == (min(noisy.low[0], truth.sum()), max(noisy.high[0], truth.sum()))
    assert "exact law of the noise" in plain.basis[0]


def test_half_a_cell_errs_by_half_the_cell() -> None:
    release = release_of(np.full((1, 10, 10), 8.0), deviation=np.full((1, 10, 10), 2.0), gamma=2.0)
    answers = count(release, release.boxes(40.01, -73.99, 40.02, [-73.98, -73.985]))
    assert answers.answer == pytest.approx([8, 4])
    assert answers.high - answers.answer == pytest.approx([1.645 * 4, 1.645 * 2], rel=1e-3)


def test_a_border_that_misses_a_cell_s_edge_by_rounding_lies_on_it() -> None:
    release = release_of(np.ones((2, 576, 576)))
    third = release.boxes(40.0, -74.0, 40.0 + 0.1 / 576 * 3, -74 + 0.1 / 576 * 3)
    assert third.rows.tolist() == [[0.0, 3.0]] and third.cols.tolist() == [[0.0, 3.0]]


def test_slices_of_a_day_of_25_hours_are_found_by_the_clock() -> None:
    period = Period(date(2026, 11, 1), 1, 8, "America/New_York")
    release = release_of(np.ones((8, 4, 4)), period=period)
    zoned = {**release.manifest["policy"], "dataset": {"timezone": "America/New_York"}}
    release = dataclasses.replace(release, manifest={**release.manifest, "policy": zoned})
    # The clock shows 01:00 to 02:00 twice: the first slice lasts four hours, and 02:00 is three quarters through it.
    boxes = release.boxes(start="2026-11-01T02:00", end="2026-11-01T04:30")
    assert boxes.slices.tolist() == [[0.75, 1.5]]
    assert count(release, boxes).answer[0] == pytest.approx(0.75 * 16)


def test_a_slice_in_the_skipped_hour_is_empty_of_time() -> None:
    period = Period(date(2026, 3, 8), 1, 24, "America/New_York")
    release = release_of(np.ones((24, 4, 4)), period=period)
    boxes = release.boxes(start="2026-03-08T05:00Z", end="2026-03-09T04:00Z")
    assert boxes.slices.tolist() == [[0, 24]] and len(set(period.edges)) == 24


@pytest.mark.parametrize(
    ("box", "said"),
    [
        ({"south": float("nan")}, "must be numbers"),
        ({"south": 40.05, "north": 40.05}, "south must be below north, but they are 40.05 and 40.05"),
        ({"west": -73.9, "east": -74.0}, "west must be below east"),
        ({"south": [40.0, 50.0], "north": [40.1, 51.0]}, "query 1: a box must meet the grid of toy"),
        ({"start": "2026-11-15", "end": "2026-11-16"}, "must meet the period"),
        ({"start": "2026-13-01"}, "must read as"),
    ],
)
def test_boxes_that_cannot_be_answered_are_refused(box: dict[str, Any], said: str) -> None:
    release = release_of(np.ones((2, 4, 4)))
    with pytest.raises(InputError, match=said):
        release.boxes(**box, label=lambda i: f"query {i}: ")


# Hotspots


def test_the_nearest_hotspot_is_the_one_found_by_looking_at_every_cell() -> None:
    random = np.random.default_rng(6)
    values = random.gamma(0.2, 10, (6, 40, 30))
    release = release_of(values)
    up, across = release.metres
    lat, lon = random.uniform(39.995, 40.105, 400), random.uniform(-74.005, -73.895, 400)
    nu, side = random.choice([15.0, 30.0, 60.0], 400), random.uniform(1600, 5000, 400)
    found = hotspots(release, lat, lon, nu, side, start="2026-11-14T05:00", end="2026-11-14T12:00")
    north, east = np.mgrid[0:40, 0:30]
    rows, cols = 40 + (north + 0.5) / 400, -74 + (east + 0.5) / 300
    tested = release.values[1:3]
    outcomes = set()
    for number in range(400):
        y, x = (rows - lat[number]) * up, (cols - lon[number]) * across
        usable = (np.abs(y) <= side[number] / 2) & (np.abs(x) <= side[number] / 2) & (tested.max(0) >= nu[number])
        assert found.is_found[number] == usable.any()
        outcomes.add(bool(usable.any()))
        if usable.any():
            row, col = found.row[number], found.col[number]
            assert found.distance[number] == pytest.approx(np.hypot(y, x)[usable].min(), rel=1e-6)
            assert usable[row, col] and found.value[number] == tested[:, row, col].max()
            assert release.values[found.slice[number], row, col] == found.value[number] and found.slice[number] in (1, 2)
    assert outcomes == {True, False}


def test_a_hotspot_in_the_corner_of_the_square_is_found_behind_a_nearer_one_beside_it() -> None:
    values = np.zeros((1, 50, 50))
    values[0, 25 + 6, 25] = 9  # 6 cells north of the point
    values[0, 25 + 5, 25 + 5] = 9  # in the corner of a square of 11 cells, and further
    release = release_of(values)
    height = release.grid.height_metres / 50
    point = 40 + 25.5 * 0.002, -74 + 25.5 * 0.002
    anywhere, in_square = hotspots(release, *point, 9, 20 * height), hotspots(release, *point, 9, 11 * height)
    assert (anywhere.row[0], anywhere.col[0]) == (31, 25) and (in_square.row[0], in_square.col[0]) == (30, 30)
    assert 6 * height == pytest.approx(anywhere.distance[0]) and anywhere.distance[0] < in_square.distance[0]


def test_the_chance_of_a_hotspot_is_how_often_a_count_so_known_reaches_nu() -> None:
    random, mean, deviation = np.random.default_rng(0), np.array([30.0, 4.0, 40.0, 3.0]), np.array([9.0, 3.0, 2.0, 1.7])
    least = np.array([26.0, 6.0, 41.0, 3.0])
    drawn = plausible(Denoised(np.tile(mean, (200_000, 1, 1)), np.tile(deviation, (200_000, 1, 1))), random)
    assert chance_of(mean, deviation, least) == pytest.approx((drawn[:, 0] >= least).mean(0), abs=0.01)
    assert (np.diff(chance_of(np.full(50, 5.0), np.full(50, 4.0), np.arange(1.0, 51))) < 0).all()


def test_a_hotspot_comes_with_its_chance_in_units_of_the_sample() -> None:
    values = np.zeros((1, 5, 5))
    values[0, 2, 2] = 60.0
    known = dataclasses.replace(release_of(values, gamma=3.0), deviation_slices=np.full((1, 5, 5), 6.0))
    found = hotspots(known, 40.05, -73.95, 45, 1e5)
    assert found.chance.tolist() == [pytest.approx(float(chance_of(np.array([20.0]), np.array([6.0]), np.array([15.0]))[0]))]
    assert 0.5 < found.chance[0] < 0.95
    silent = dataclasses.replace(known, deviation_slices=None)
    assert np.isnan(hotspots(silent, 40.05, -73.95, 45, 1e5).chance).all()
    assert np.isnan(hotspots(known, 40.05, -73.95, 100, 1e5).chance).all()


def test_where_no_cell_is_hot_there_is_no_hotspot() -> None:
    found = hotspots(release_of(np.ones((2, 5, 5))), 40.05, -73.95, 2)
    assert not found.is_found[0] and np.isnan(found.distance[0]) and (found.row[0], found.slice[0]) == (-1, -1)


def test_a_noisy_hotspot_is_one_of_the_noisy_tensor() -> None:
    noisy = np.zeros((1, 5, 5))
    noisy[0, 4, 4] = 10
    found = hotspots(release_of(np.zeros((1, 5, 5)), noisy, gamma=3.0), 40.05, -73.95, 30, 1e5, noisy=True)
    assert (found.row[0], found.col[0], found.value[0]) == (4, 4, 30)


# Forecasts


def plain_theta(series: np.ndarray, horizon: int) -> np.ndarray:
    """As Assimakopoulos and Nikolopoulos wrote it: the mean of the trend and of the smoothed series with doubled curvature."""
    length = len(series)
    steps = np.arange(length)
    slope, level = np.polyfit(steps, series, 1)
    doubled = 2 * series - (level + slope * steps)

    def smoothed(parameters: np.ndarray) -> tuple[float, float]:
        weight, state, error = parameters[0], parameters[1], 0.0
        for value in doubled:
            error += (value - state) ** 2
            state += weight * (value - state)
        return error, state

    starts = [(weight, doubled[0]) for weight in (0.05, 0.3, 0.6, 0.95)]
    fits = [minimize(lambda p: smoothed(p)[0], start, bounds=[(1e-4, 0.9999), (None, None)]) for start in starts]
    best = min(fits, key=lambda fit: fit.fun)
    ahead = np.arange(length, length + horizon)
    return (level + slope * ahead + smoothed(best.x)[1]) / 2


@pytest.mark.parametrize("seed", range(6))
def test_theta_without_a_season_is_close_to_its_two_lines(seed: int) -> None:
    """Smoothing the doubled line and smoothing the series itself differ only in how the weight is chosen."""
    random = np.random.default_rng(seed)
    series = 50 + 0.3 * np.arange(60) + np.cumsum(random.normal(0, 1, 60)) + random.normal(0, 1, 60)
    assert theta(series, 1, 8).values[0] == pytest.approx(plain_theta(series, 8), abs=1.2)


def test_theta_smooths_with_the_weight_of_least_squared_error() -> None:
    random = np.random.default_rng(7)
    series = 20 + np.cumsum(random.normal(0, 1, 80)) + random.normal(0, 1, 80)

    def error(parameters: np.ndarray, last: bool = False) -> float:
        weight, state, total = parameters[0], parameters[1], 0.0
        for value in series:
            total += (value - state) ** 2
            state += weight * (value - state)
        return state if last else total

    starts = [(weight, series[0]) for weight in (0.1, 0.4, 0.8)]
    fits = [minimize(error, start, bounds=[(1e-4, 0.9999), (None, None)], tol=1e-12) for start in starts]
    best = min(fits, key=lambda fit: fit.fun).x
    half_slope = np.polyfit(np.arange(80), series, 1)[0] / 2
    lead = (1 - (1 - best[0]) ** 80) / best[0]
    expected = error(best, last=True) + half_slope * (np.arange(5) + lead)
    assert theta(series, 1, 5).values[0] == pytest.approx(expected, abs=1e-3)


def test_a_line_goes_on_with_half_its_slope() -> None:
    line = 10 + 4.0 * np.arange(30)
    assert theta(line, 1, 3).values[0] == pytest.approx(line[-1] + 2.0 * np.arange(1, 4), rel=1e-3)


@pytest.mark.parametrize("value", [0.0, 7.25, 1e6 / 3])
@pytest.mark.parametrize(("length", "period"), [(1, 1), (2, 1), (3, 8), (40, 8)])
def test_a_constant_series_stays_what_it_is(value: float, length: int, period: int) -> None:
    made = theta(np.full(length, value), period, 5)
    assert (made.values == value).all()
    assert made.seasons == ("no season: the series is constant",)


def test_a_short_series_goes_on_near_its_last_values() -> None:
    made = theta(np.array([[10.0, 12.0], [30.0, 30.5]]), 8, 2)
    assert made.values[:, 0] == pytest.approx([12, 30.5], abs=1.5)
    assert all("2 steps are too few" in season for season in made.seasons)


def seasonal(length: int, by: Callable[[np.ndarray, np.ndarray], np.ndarray], seed: int = 8) -> np.ndarray:
    figure = np.tile(np.array([0.3, 0.2, 0.5, 1.0, 1.4, 1.9, 1.6, 1.1]), length // 8 + 2)
    trend = 100 + 0.5 * np.arange(length + 8)
    return by(trend, figure[: length + 8]) + np.random.default_rng(seed).normal(0, 1, length + 8)


@pytest.mark.parametrize(
    ("by", "kind"),
    [
        (lambda trend, figure: trend * figure, "multiplicative"),
        (lambda trend, figure: trend + 200 * (figure - 1), "additive"),
    ],
)
def test_a_season_is_found_and_goes_on(by: Callable[[np.ndarray, np.ndarray], np.ndarray], kind: str) -> None:
    series = seasonal(64, by)
    made = theta(series[:64], 8, 8)
    assert made.seasons[0].startswith(f"season of 8 steps, {kind}, 100 %")
    assert made.values[0] == pytest.approx(series[64:], abs=12)
    assert theta(series[:64], 1, 8).values[0] != pytest.approx(series[64:], abs=60)


def test_of_the_season_of_noise_little_is_taken() -> None:
    noise = np.random.default_rng(9).normal(100, 5, (1000, 104))
    made, plain = theta(noise[:, :96], 8, 8), theta(noise[:, :96], 1, 8)
    shares = [float(season.split(", ")[2].split(" %")[0]) if season.startswith("season") else 0.0 for season in made.seasons]
    assert np.mean(shares) < 35
    assert "no season of 8 steps: nothing of it is beyond chance" in made.seasons
    off, without = (np.abs(one.values - noise[:, 96:]).mean() for one in (made, plain))
    assert off < 1.02 * without


def test_a_strong_season_of_less_than_three_weeks_is_taken() -> None:
    """The autocorrelation test sees none in 17 days; two weeks of strong days are enough to go on by."""
    random = np.random.default_rng(12)
    days = 300 * (1 + 0.3 * np.sin(2 * np.pi * (np.arange(24) % 7) / 7 + random.uniform(0, 6, (200, 1))))
    days *= np.exp(random.normal(0, 0.08, days.shape))
    off, without = (np.abs(theta(days[:, :17], season, 7).values - days[:, 17:]).mean() for season in (7, 1))
    assert off < 0.6 * without


def test_an_odd_season_is_found_too() -> None:
    week = np.tile([5.0, 6, 6, 7, 9, 14, 12], 6)
    assert theta(week, 7, 7).values[0] == pytest.approx(week[:7], rel=1e-6)


def test_many_series_are_forecast_as_each_alone() -> None:
    random = np.random.default_rng(10)
    many = np.stack([seasonal(56, lambda t, f: t * f, 1)[:56], random.normal(50, 9, 56), np.full(56, 3.0), random.poisson(1, 56)])
    together = theta(many, 8, 6)
    for number, series in enumerate(many):
        alone = theta(series, 8, 6)
        assert together.values[number] == pytest.approx(alone.values[0], rel=1e-9, abs=1e-9)
        assert together.seasons[number] == alone.seasons[0]


@pytest.mark.parametrize(
    ("series", "period", "horizon", "said"),
    [
        (np.ones(9), 4, 0, "horizon must be at least 1"),
        (np.ones(9), 0, 1, "season must be at least 1"),
        (np.ones((1, 0)), 1, 1, "at least one value"),
        (np.array([1, np.nan]), 1, 1, "finite"),
    ],
)
def test_what_cannot_be_forecast_is_refused(series: np.ndarray, period: int, horizon: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        theta(series, period, horizon)


# Opening


def publish_night(tables: Tables, day: str, published_at: str = "2026-12-01", **changes: Any) -> str:
    policy = parse_policy(policy_text(slices=4, rows=changes.pop("rows", 6), cols=5))
    values = np.random.default_rng(int(day[-2:])).gamma(1, 2, (4, policy.grid.build().rows, 5))
    deviation = None if changes.pop("is_silent", False) else 0.1 * values
    candidate = candidate_of(policy, day, np.rint(values) - 1, values, deviation, 2.0)
    manifest = {**make_manifest(candidate, []), "published_at": published_at, **changes}
    publish(tables, candidate, manifest, "")
    return str(manifest["release"])


def test_an_open_release_holds_what_was_published_without_a_copy(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    name = publish_night(tables, "2026-11-14")
    release = open_release(tables, "latest")
    values = np.random.default_rng(14).gamma(1, 2, (4, 6, 5))
    assert release.name == name and release.gamma == 2.0 and release.scale == Fraction(150, 49)
    assert release.values.dtype == np.float32 and release.values == pytest.approx(2 * values, rel=1e-6)
    assert release.noisy.dtype == np.int32 and (release.noisy == np.rint(values) - 1).all()
    assert release.deviation_slices is not None and np.asarray(release.deviation_slices) == pytest.approx(0.1 * values, rel=1e-6)
    assert not any(image.flags.owndata or image.flags.writeable for image in release.value_slices)
    assert len(release.edges) == 5 and release.model is None
    answers = count(release, release.boxes())
    assert answers.answer[0] == pytest.approx(2 * values.sum(), rel=1e-6)


def test_a_release_without_deviations_is_opened_too(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    publish_night(tables, "2026-11-14", is_silent=True)
    assert open_release(tables).deviation_slices is None


def test_slices_in_any_order_are_put_in_place() -> None:
    images = [np.full((2, 3), number, dtype="<f4") for number in range(4)]
    schema = pa.schema([("slice", pa.int32()), ("values", pa.binary())])
    order = [2, 0, 3, 1]
    rows = pa.table({"slice": order, "values": [images[i].tobytes() for i in order]}, schema).to_batches(max_chunksize=1)
    found = query._slices(rows, "values", "<f4", (4, 2, 3))
    assert found is not None and (np.asarray(found) == np.stack(images)).all()
    for wrong in ((5, 2, 3), (4, 2, 2)):
        with pytest.raises(InputError, match="but it holds others"):
            query._slices(rows, "values", "<f4", wrong)


def test_a_chain_ends_at_a_gap_and_takes_the_newest_release_of_a_period(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    publish_night(tables, "2026-11-09")
    publish_night(tables, "2026-11-11", rows=7)
    second = publish_night(tables, "2026-11-12")
    publish_night(tables, "2026-11-13", published_at="2026-12-01", release="toy-2026-11-13-old")
    third = publish_night(tables, "2026-11-13", published_at="2026-12-02", release="toy-2026-11-13-new")
    fourth = publish_night(tables, "2026-11-14")
    assert [one.release for one in chain(tables)] == [second, third, fourth]
    assert [one.release for one in chain(tables, nights=2)] == [third, fourth]
    assert [one.release for one in chain(tables, third)] == [second, third]


def test_a_forecast_is_made_of_the_nights_in_a_row(tmp_path: Path) -> None:
    tables = Tables(str(tmp_path))
    names = [publish_night(tables, f"2026-11-{day}") for day in (12, 13, 14)]
    last = open_release(tables)
    made = forecast(open_chain(tables), last.boxes(), horizon=2)
    past = [one.values.sum((1, 2)) for one in open_chain(tables)]
    assert made.past[0] == pytest.approx(np.concatenate(past), rel=1e-5)
    assert list(made.releases) == names and len(made.times) == 12
    assert made.ahead[0] == pytest.approx(theta(made.past, 4, 2).values[0])
    assert [time.isoformat() for time in made.coming] == ["2026-11-15T00:00:00+00:00", "2026-11-15T06:00:00+00:00"]
    some = forecast(open_chain(tables), last.boxes(), 1, start="2026-11-12T06:00", end="2026-11-14T12:00")
    assert some.past[0] == pytest.approx(made.past[0, 1:10]) and some.coming[0].hour == 12


def test_a_release_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no release 'latest'"):
        open_release(Tables(str(tmp_path)))
