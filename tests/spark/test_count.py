from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from heathaze.collect.count import all_slices, cell_of, coarser, count, place, slice_of
from heathaze.grid import Grid, Period

GRIDS = [
    Grid(40.0, -74.0, 40.1, -73.9, 8, 8),
    Grid(40.0123, -73.987, 40.0871, -73.9321, 7, 13),
    Grid(40.03, -73.97, 40.07, -73.93, 1, 1000),
    Grid(40.0, -74.0, 40.1, -73.9, 576, 576),
    Grid(-1.62, -1.62, -0.52, -0.52, 49, 49),
]
"""In the last box a point just inside the northern edge is rounded up to it, and division places points otherwise."""
NORMAL = Period(date(2026, 1, 5), 1, 24, "UTC")
SHORT = Period(date(2026, 3, 29), 1, 24, "Europe/Paris")
LONG = Period(date(2026, 10, 25), 1, 24, "Europe/Paris")


def sample_of(spark: SparkSession, times: list[datetime], lat: np.ndarray, lon: np.ndarray) -> DataFrame:
    columns = {
        "user_id": pa.array(["u"] * len(times)),
        "event_time": pa.array(times, pa.timestamp("us", "UTC")),
        "lat": pa.array(lat),
        "lon": pa.array(lon),
    }
    return spark.createDataFrame(pa.table(columns))


def points_of(grid: Grid, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random points of the box, every edge of rows and columns with its float neighbours, and the box's corners."""
    lat, lon = rng.uniform(grid.south, grid.north, 500), rng.uniform(grid.west, grid.east, 500)
    rows = grid.south + np.arange(grid.rows + 1) / grid.rows_per_degree
    cols = grid.west + np.arange(grid.cols + 1) / grid.cols_per_degree
    edges_lat = np.concatenate([rows, np.nextafter(rows, -90), np.nextafter(rows, 90), [grid.north]])
    edges_lon = np.concatenate([cols, np.nextafter(cols, -180), np.nextafter(cols, 180), [grid.east]])
    size = max(len(edges_lat), len(edges_lon))
    lat = np.concatenate([lat, np.resize(edges_lat, size), [grid.south, np.nextafter(grid.north, -90)]])
    lon = np.concatenate([lon, np.resize(edges_lon, size), [grid.west, np.nextafter(grid.east, -180)]])
    inside = grid.cells_of(lat, lon) >= 0
    return lat[inside], lon[inside]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: f"{grid.rows}x{grid.cols}")
def test_a_point_has_the_cell_of_the_numpy_grid_to_the_last_bit(spark, grid):
    lat, lon = points_of(grid, np.random.default_rng(7))
    placed = sample_of(spark, [NORMAL.start] * len(lat), lat, lon).select(cell_of(grid).alias("cell"), "lat", "lon").toArrow()
    found = placed["cell"].to_numpy()
    assert np.array_equal(found, grid.cells_of(placed["lat"].to_numpy(), placed["lon"].to_numpy()))
    assert {0, grid.cells - 1} <= set(found.tolist())


def test_counts_are_those_of_numpy_and_add_up_to_the_rows(spark):
    grid, rng = GRIDS[0], np.random.default_rng(3)
    lat, lon = points_of(grid, rng)
    seconds = rng.integers(0, 86_400, len(lat))
    times = [NORMAL.start + timedelta(seconds=int(second)) for second in seconds]
    placed = place(sample_of(spark, times, lat, lon), grid, NORMAL)
    histogram = count(placed.groupBy("user_id").agg(F.collect_list("place").alias("places")), grid).toArrow()
    reference = np.zeros((24, grid.cells), dtype=int)
    np.add.at(reference, (seconds // 3600, grid.cells_of(lat, lon)), 1)
    dense = np.zeros_like(reference)
    dense[histogram["slice"].to_numpy(), histogram["cell"].to_numpy()] = histogram["count"].to_numpy()
    assert np.array_equal(dense, reference)
    assert dense.sum() == len(lat)
    assert histogram.num_rows == np.count_nonzero(reference), "one row per cell that is not empty"
    assert histogram.column_names == ["slice", "cell", "count"]


@pytest.mark.parametrize(
    ("period", "hours", "missing"), [(NORMAL, 24, set()), (SHORT, 23, {2}), (LONG, 25, set())], ids=["24h", "23h", "25h"]
)
def test_a_slice_is_an_hour_of_the_local_clock_whatever_the_length_of_the_day(spark, period, hours, missing):
    assert period.end - period.start == timedelta(hours=hours)
    quarters = [period.start + timedelta(minutes=15 * i) for i in range(4 * hours)]
    edges = [period.start + timedelta(hours=i) for i in range(1, hours)]
    times = [*quarters, *(edge - timedelta(microseconds=1) for edge in edges), period.end - timedelta(microseconds=1)]
    there = np.full(len(times), 40.05), np.full(len(times), -73.95)
    found = sample_of(spark, times, *there).select(slice_of(period).alias("slice"), "event_time").toArrow().to_pylist()
    assert len(found) == len(times)
    for row in found:
        assert row["slice"] == row["event_time"].astimezone(ZoneInfo(period.zone)).hour
    assert {row["slice"] for row in found} == set(range(24)) - missing


def test_slices_of_a_period_of_several_days_go_on_over_midnight(spark):
    period = Period(date(2026, 1, 5), 3, 6, "UTC")
    times = [datetime(2026, 1, 5 + day, hour, 59, 59, 999_999, tzinfo=timezone.utc) for day in range(3) for hour in (11, 23)]
    there = np.full(6, 40.05), np.full(6, -73.95)
    found = sample_of(spark, times, *there).select("event_time", slice_of(period).alias("slice")).toArrow().sort_by("event_time")
    assert found["slice"].to_pylist() == [0, 1, 2, 3, 4, 5]


def test_larger_squares_and_all_slices_together_hold_what_their_cells_hold(spark):
    grid, random = Grid(40.0, -74.0, 40.1, -73.9, 8, 12), np.random.default_rng(3)
    exact = random.poisson(0.3, (3, 8, 12))
    slices, rows, cols = np.nonzero(exact)
    kinds = {"slice": pa.int32(), "cell": pa.int32(), "count": pa.int64()}
    columns = (slices, rows * grid.cols + cols, exact[slices, rows, cols])
    histogram = spark.createDataFrame(pa.table([pa.array(c, k) for c, k in zip(columns, kinds.values(), strict=True)], [*kinds]))

    def dense(frame: DataFrame, shape: tuple[int, ...]) -> np.ndarray:
        found = np.zeros(shape, dtype=int)
        for row in frame.toArrow().to_pylist():
            assert found.reshape(len(found), -1)[row["slice"], row["cell"]] == 0, "each square is there once"
            found.reshape(len(found), -1)[row["slice"], row["cell"]] = row["count"]
        return found

    squares = exact.reshape(3, 2, 4, 3, 4).sum((2, 4))
    assert np.array_equal(dense(coarser(histogram, grid, 4), squares.shape), squares)
    assert np.array_equal(dense(all_slices(histogram), (1, 8, 12)), exact.sum(0, keepdims=True))
