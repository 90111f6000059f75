from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import reduce

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy import stats

from heathaze.collect.bound import COLUMNS, BoundSettings, bound
from heathaze.collect.count import all_slices, coarser, count, place
from heathaze.collect.entropy import NoiseKey
from heathaze.collect.noise import NoiseSettings, noisy_totals, noisy_values
from heathaze.collect.pipeline import _totals
from heathaze.grid import Grid, Period
from heathaze.policy import Privacy

K = 3
TRIALS = 10_000
MIDNIGHT = datetime(2026, 1, 5, tzinfo=timezone.utc)
PERIOD = Period(MIDNIGHT.date(), 1, 1, "UTC")
GRID = Grid(40.0, -74.0, 40.1, -73.9, 2, 2)
CENTRES = [(40.025, -73.975), (40.025, -73.925), (40.075, -73.975), (40.075, -73.925)]
CANARYS_CELL = 3
EPSILONS = ["0.2", "1", "3"]

OTHERS = {"a": [0, 0], "b": [0, 1, 0, 1, 0, 1, 0], "c": [2], "d": [1, 1, 1]}
CANARY = {"canary": [CANARYS_CELL] * 50}


def events_of(spark: SparkSession, cells_of: dict[str, list[int]]) -> DataFrame:
    rows = [
        (user, MIDNIGHT + timedelta(seconds=i), *CENTRES[cell])
        for user, cells in cells_of.items()
        for i, cell in enumerate(cells)
    ]
    kinds = [pa.string(), pa.timestamp("us", "UTC"), pa.float64(), pa.float64()]
    columns = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    return spark.createDataFrame(pa.table(columns, names=COLUMNS))


def histograms(spark: SparkSession, cases: list[tuple[dict[str, list[int]], int, int]]) -> list[np.ndarray]:
    """The counts that the real stages make of each (events, k, salt), in one job."""
    counted = [
        count(bound(place(events_of(spark, events), GRID, PERIOD), BoundSettings(k, salt, GRID.cells)), GRID).withColumn(
            "case", F.lit(i)
        )
        for i, (events, k, salt) in enumerate(cases)
    ]
    dense = np.zeros((len(cases), GRID.cells), dtype=int)
    for row in reduce(DataFrame.unionByName, counted).toArrow().to_pylist():
        dense[row["case"], row["cell"]] = row["count"]
    return list(dense)


SALTS = [0, 1, -(2**62)]


@pytest.fixture(scope="module")
def neighbours(spark: SparkSession) -> dict[str, np.ndarray]:
    """Histograms without and with the canary for each salt, and with a canary of whom too many events were kept."""
    both = OTHERS | CANARY
    cases = [(events, K, salt) for salt in SALTS for events in (OTHERS, both)]
    *made, too_many = histograms(spark, [*cases, (both, K + 2, SALTS[0])])
    # Only the canary is kept too often: the others stay as they are in the neighbour.
    too_many[:CANARYS_CELL] = made[0][:CANARYS_CELL]
    return {"without": np.array(made[0::2]), "with": np.array(made[1::2]), "too many": too_many}


def test_one_user_changes_the_counts_by_exactly_k_for_every_salt(neighbours):
    difference = neighbours["with"] - neighbours["without"]
    assert np.abs(difference).sum(axis=1).tolist() == [K] * len(SALTS)
    assert difference[:, CANARYS_CELL].tolist() == [K] * len(SALTS)
    assert neighbours["without"].sum(axis=1).tolist() == [sum(min(K, len(cells)) for cells in OTHERS.values())] * len(SALTS)


def test_one_user_changes_the_totals_of_slices_by_k_in_sum_and_their_noise_is_of_that_scale(spark):
    """The canary's events lie in all four slices."""
    hours = Period(MIDNIGHT.date(), 1, 4, "UTC")

    def spread(user: str, events: int) -> list[tuple[object, ...]]:
        return [(user, MIDNIGHT + timedelta(hours=6 * (i % 4)), *CENTRES[0]) for i in range(events)]

    others, canary, totals = [*spread("a", 5), *spread("b", 2)], spread("canary", 50), []
    for events in (others, others + canary):
        frame = spark.createDataFrame(events, "user_id string, event_time timestamp, lat double, lon double")
        placed = place(frame, GRID, hours)
        totals.append(_totals(count(bound(placed, BoundSettings(K, SALTS[0], 4 * GRID.cells)), GRID), 4))
    change = np.abs(np.subtract(*totals))
    assert change.sum() == K
    privacy, key = privacy_of("1"), NoiseKey(bytes(range(32)))
    noisy = [noisy_totals(one, privacy, key) for one in totals]
    assert np.array_equal(np.abs(np.subtract(*noisy)), change), "the same key draws the same noise"
    assert Fraction(K) / privacy.totals_scale == Fraction(privacy.epsilon) * Fraction(privacy.shares.totals)


def test_one_user_changes_larger_squares_and_the_map_of_all_slices_by_k_each(spark):
    """The canary's events lie in all four slices and cells."""
    hours = Period(MIDNIGHT.date(), 1, 4, "UTC")

    def spread(user: str, events: int) -> list[tuple[object, ...]]:
        return [(user, MIDNIGHT + timedelta(hours=6 * (i % 4)), *CENTRES[i // 4 % 4]) for i in range(events)]

    made = []
    for events in (spread("a", 5), spread("a", 5) + spread("canary", 50)):
        frame = spark.createDataFrame(events, "user_id string, event_time timestamp, lat double, lon double")
        histogram = count(bound(place(frame, GRID, hours), BoundSettings(K, SALTS[0], 4 * GRID.cells)), GRID)
        made.append([Counter(), Counter()])
        for found, counted in zip(made[-1], (coarser(histogram, GRID, 2), all_slices(histogram)), strict=True):
            for row in counted.toArrow().to_pylist():
                found[row["slice"], row["cell"]] += row["count"]
    for without, with_canary in zip(*made, strict=True):
        assert sum(abs(with_canary[where] - without[where]) for where in without | with_canary) == K


Kernel = Callable[[np.ndarray, Fraction, int], np.ndarray]


def fresh_keys(histogram: np.ndarray, scale: Fraction, seed: int) -> np.ndarray:
    """The real kernel, TRIALS times with a key for each: trials x cells."""
    (cell,) = np.nonzero(histogram)
    secrets = (hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(TRIALS))
    return np.array(
        [noisy_values(0, cell, histogram[cell], NoiseSettings(scale, NoiseKey(secret), GRID, 1)) for secret in secrets]
    )


def one_key(histogram: np.ndarray, scale: Fraction, seed: int) -> np.ndarray:
    """The real kernel with one key on a grid that repeats the histogram TRIALS times: the same law, faster."""
    wide = Grid(GRID.south, GRID.west, GRID.north, GRID.east, TRIALS, GRID.cells)
    exact = np.tile(histogram, TRIALS)
    settings = NoiseSettings(scale, NoiseKey(hashlib.sha256(b"one %d" % seed).digest()), wide, 1)
    return noisy_values(0, np.arange(exact.size), exact, settings).reshape(TRIALS, GRID.cells)


def float_noise(histogram: np.ndarray, scale: Fraction, seed: int) -> np.ndarray:
    return histogram + np.random.default_rng(seed).laplace(0, float(scale), (TRIALS, GRID.cells))


def no_noise_on_empty_cells(histogram: np.ndarray, scale: Fraction, seed: int) -> np.ndarray:
    return np.where(histogram > 0, one_key(histogram, scale, seed), 0)


def measured_loss(values: np.ndarray, histogram: np.ndarray, change: int) -> tuple[float, float]:
    """The log-ratio that a change by `change` makes in the tails of the noise, and its standard error.

    Magnitudes from 1 on are geometric with mean 1 / (1 - a), and the log-ratio of neighbouring values is -log a.
    """
    noise = np.abs(values - histogram).ravel()
    noise = noise[noise >= 1]
    mean = noise.mean()
    return -change * np.log(1 - 1 / mean), change / np.sqrt(noise.size * mean * (mean - 1))


def bounds(times: int) -> tuple[float, float]:
    """Clopper-Pearson bounds of a probability, each wrong once in 1000 times."""
    low = stats.beta.ppf(0.001, times, TRIALS - times + 1) if times else 0.0
    high = stats.beta.ppf(0.999, times + 1, TRIALS - times) if times < TRIALS else 1.0
    return float(low), float(high)


def violations(epsilon: float, values: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> list[str]:
    """Every proof that the two outputs are not epsilon-indistinguishable; for a right mechanism there is none."""
    change = int(np.abs(exact["with"] - exact["without"]).sum())
    seen = {name: outputs[:, CANARYS_CELL] for name, outputs in values.items()}
    low, high = int(exact["without"][CANARYS_CELL]), int(exact["with"][CANARYS_CELL])
    events: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    for t in range(low, high + 1):
        events[f"at least {t}"] = lambda y, t=t: y >= t
        events[f"at most {t}"] = lambda y, t=t: y <= t
        events[f"equal to {t}"] = lambda y, t=t: y == t
    # fl(3 + x) lies on the grid of x in [-4, -2]; a number near 0 that does not cannot have come from the count 3.
    events["off the floats around the other count"] = lambda y: (np.abs(y) < 1) & (y * 2.0**51 % 1 != 0)
    found = []
    for name, event in events.items():
        for one, other in (("with", "without"), ("without", "with")):
            at_least, at_most = bounds(int(event(seen[one]).sum()))[0], bounds(int(event(seen[other]).sum()))[1]
            if at_least > np.exp(epsilon) * at_most:
                found.append(f"{name} is too likely {one} the canary")
    if all(np.issubdtype(outputs.dtype, np.integer) for outputs in values.values()):
        loss, error = measured_loss(
            np.concatenate(list(values.values())), np.repeat([exact["without"], exact["with"]], TRIALS, axis=0), change
        )
        if loss - 4 * error > epsilon:
            found.append("the noise is too small for the change")
    else:
        found.append("values are not whole numbers")
    return found


def privacy_of(epsilon: str) -> Privacy:
    return Privacy(epsilon=Decimal(epsilon), max_events_per_user=K, declared_event_count=1000)


def claimed(epsilon: str) -> float:
    """Epsilon that the histogram is charged."""
    privacy = privacy_of(epsilon)
    return float(privacy.epsilon * privacy.shares.histogram)


def run(kernel: Kernel, exact: dict[str, np.ndarray], scale: Fraction) -> dict[str, np.ndarray]:
    return {name: kernel(histogram, scale, seed) for seed, (name, histogram) in enumerate(exact.items())}


@pytest.fixture(scope="module")
def exact(neighbours: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"without": neighbours["without"][0], "with": neighbours["with"][0]}


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_nothing_tells_with_from_without_the_canary_beyond_epsilon(exact, epsilon):
    values = run(fresh_keys, exact, privacy_of(epsilon).histogram_scale)
    assert violations(claimed(epsilon), values, exact) == []


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_claim_is_tight_so_the_noise_is_not_larger_than_it_must_be(exact, epsilon):
    values = run(one_key, exact, privacy_of(epsilon).histogram_scale)
    assert violations(0.75 * claimed(epsilon), values, exact) != []


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_two_events_too_many_of_a_user_are_found_out(neighbours, exact, epsilon):
    wrong = exact | {"with": neighbours["too many"]}
    assert wrong["with"][CANARYS_CELL] == K + 2
    values = run(one_key, wrong, privacy_of(epsilon).histogram_scale)
    found = violations(claimed(epsilon), values, wrong)
    assert any("too likely" in proof for proof in found) and "the noise is too small for the change" in found


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_noise_one_and_a_half_times_too_small_is_found_out_from_the_outputs_alone(exact, epsilon):
    values = run(one_key, exact, privacy_of(epsilon).histogram_scale / Fraction(3, 2))
    assert any("too likely" in proof for proof in violations(claimed(epsilon), values, exact))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_noise_of_four_fifths_of_the_scale_is_found_out_from_its_tails(exact, epsilon):
    values = run(one_key, exact, privacy_of(epsilon).histogram_scale * Fraction(4, 5))
    assert "the noise is too small for the change" in violations(claimed(epsilon), values, exact)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_float_noise_of_the_right_scale_is_found_out_by_one_value(exact, epsilon):
    values = run(float_noise, exact, privacy_of(epsilon).histogram_scale)
    found = violations(claimed(epsilon), values, exact)
    assert "off the floats around the other count is too likely without the canary" in found


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_empty_cells_without_noise_are_found_out(exact, epsilon):
    values = run(no_noise_on_empty_cells, exact, privacy_of(epsilon).histogram_scale)
    assert "equal to 0 is too likely without the canary" in violations(claimed(epsilon), values, exact)
