from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from heathaze.grid import Grid, Period

CITY = Grid(37.70, -122.52, 37.88, -122.292, 576, 576)
GRIDS = [CITY, Grid(40.0, -74.0, 40.1, -73.9, 8, 13), Grid(-90.0, -180.0, 90.0, 180.0, 7, 11), Grid(-1.0, -1.0, 1.0, 1.0, 1, 1)]
LOS_ANGELES = "America/Los_Angeles"
SPRING, AUTUMN = date(2026, 3, 8), date(2026, 11, 1)


def exact_place(grid: Grid, lat: float, lon: float) -> tuple[Fraction, Fraction] | None:
    """Rows and columns from the south-west corner, in exact arithmetic; None outside."""
    if not (math.isfinite(lat) and math.isfinite(lon)):
        return None
    if not (grid.south <= lat < grid.north and grid.west <= lon < grid.east):
        return None
    south, west, north, east = map(Fraction, (grid.south, grid.west, grid.north, grid.east))
    return (Fraction(lat) - south) / (north - south) * grid.rows, (Fraction(lon) - west) / (east - west) * grid.cols


def exact_cell(grid: Grid, lat: float, lon: float) -> int:
    place = exact_place(grid, lat, lon)
    return -1 if place is None else math.floor(place[0]) * grid.cols + math.floor(place[1])


def is_near_an_edge(grid: Grid, lat: float, lon: float) -> bool:
    """Whether the point is within float rounding of a line between cells, where either side is right."""
    place = exact_place(grid, lat, lon)
    return place is not None and any(abs(x - round(x)) < Fraction(1, 10**10) for x in place)


@pytest.mark.parametrize("grid", GRIDS)
def test_cells_are_those_of_exact_arithmetic(grid):
    rng = np.random.default_rng(1)
    height, width = grid.north - grid.south, grid.east - grid.west
    lat = grid.south + height * rng.uniform(-0.2, 1.2, 2_000)
    lon = grid.west + width * rng.uniform(-0.2, 1.2, 2_000)
    cells = grid.cells_of(lat, lon)
    clear = np.array([not is_near_an_edge(grid, *point) for point in zip(lat, lon, strict=True)])
    exact = np.array([exact_cell(grid, *point) for point in zip(lat, lon, strict=True)])
    assert clear.mean() > 0.99 and 0 < np.mean(exact < 0) < 0.8
    assert np.array_equal(cells[clear], exact[clear])


def test_every_cell_is_found_at_its_centre():
    grid = GRIDS[1]
    row, col = np.divmod(np.arange(grid.cells), grid.cols)
    lat = grid.south + (row + 0.5) * (grid.north - grid.south) / grid.rows
    lon = grid.west + (col + 0.5) * (grid.east - grid.west) / grid.cols
    assert np.array_equal(grid.cells_of(lat, lon), np.arange(grid.cells))


def test_row_0_is_south_and_column_0_is_west():
    grid = GRIDS[1]
    lat, lon = np.array([40.001, 40.001, 40.099, 40.099]), np.array([-73.999, -73.901, -73.999, -73.901])
    assert grid.cells_of(lat, lon).tolist() == [0, grid.cols - 1, grid.cells - grid.cols, grid.cells - 1]


@pytest.mark.parametrize("grid", GRIDS)
def test_the_box_holds_its_south_and_west_edges_and_not_the_others(grid):
    lat, lon = (grid.south + grid.north) / 2, (grid.west + grid.east) / 2
    below, above = (lambda x: np.nextafter(x, -np.inf)), (lambda x: np.nextafter(x, np.inf))
    inside = [(grid.south, lon), (lat, grid.west), (below(grid.north), lon), (lat, below(grid.east)), (grid.south, grid.west)]
    outside = [(below(grid.south), lon), (lat, below(grid.west)), (grid.north, lon), (lat, grid.east), (above(grid.north), lon)]
    assert np.all(grid.cells_of(*np.array(inside).T) >= 0)
    assert np.all(grid.cells_of(*np.array(outside).T) == -1)


def test_a_cell_holds_its_south_and_west_edges():
    grid = Grid(0.0, 0.0, 4.0, 8.0, 4, 8)  # edges are whole numbers: no rounding
    lat, lon = np.array([1.0, np.nextafter(1.0, 0), 1.5, 1.5]), np.array([2.5, 2.5, 2.0, np.nextafter(2.0, 0)])
    assert grid.cells_of(lat, lon).tolist() == [1 * 8 + 2, 0 * 8 + 2, 1 * 8 + 2, 1 * 8 + 1]


@pytest.mark.parametrize("grid", GRIDS)
def test_the_last_point_before_the_far_edges_lies_in_the_last_cell(grid):
    """Rounding up must not make a row or a column that the grid does not have."""
    lat, lon = np.array([np.nextafter(grid.north, -np.inf)]), np.array([np.nextafter(grid.east, -np.inf)])
    assert grid.cells_of(lat, lon).tolist() == [grid.cells - 1]


def test_cells_do_not_decrease_along_a_row_or_a_column():
    lon = np.sort(np.random.default_rng(2).uniform(CITY.west, CITY.east, 10_000))
    assert np.all(np.diff(CITY.cells_of(np.full(10_000, 37.8), lon)) >= 0)
    lat = np.sort(np.random.default_rng(3).uniform(CITY.south, CITY.north, 10_000))
    assert np.all(np.diff(CITY.cells_of(lat, np.full(10_000, -122.4))) >= 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308, -1e308])
def test_what_is_no_place_lies_outside(bad):
    good_lat, good_lon = 37.8, -122.4
    cells = CITY.cells_of(np.array([bad, good_lat, bad, good_lat]), np.array([good_lon, bad, bad, good_lon]))
    assert cells[:3].tolist() == [-1, -1, -1] and cells[3] >= 0


def test_no_points_have_no_cells():
    assert CITY.cells_of(np.array([]), np.array([])).shape == (0,)


def test_cell_numbers_do_not_overflow_on_the_largest_grid():
    grid = Grid(0.0, 0.0, 1.0, 1.0, 2**14, 2**14)
    cells = grid.cells_of(np.array([np.nextafter(1.0, 0)]), np.array([np.nextafter(1.0, 0)]))
    assert cells.dtype == np.int64 and cells.tolist() == [2**28 - 1]


def hours_between(edges: list[datetime]) -> list[float]:
    return [(b - a) / timedelta(hours=1) for a, b in pairwise(edges)]


def test_a_normal_day_is_cut_into_equal_slices_from_local_midnight():
    period = Period(date(2026, 11, 14), 1, 8, LOS_ANGELES)
    assert period.edges[0] == period.start == datetime(2026, 11, 14, 8, tzinfo=timezone.utc)
    assert period.edges[-1] == period.end == datetime(2026, 11, 15, 8, tzinfo=timezone.utc)
    assert hours_between(period.edges) == [3.0] * 8


@pytest.mark.parametrize(
    ("day", "slices", "hours"),
    [
        (SPRING, 8, [2, 3, 3, 3, 3, 3, 3, 3]),
        (AUTUMN, 8, [4, 3, 3, 3, 3, 3, 3, 3]),
        (SPRING, 24, [1, 1, 0] + [1] * 21),
        (AUTUMN, 24, [1, 2] + [1] * 22),
        (SPRING, 1, [23]),
        (AUTUMN, 1, [25]),
    ],
)
def test_the_day_the_clock_changes_has_one_shorter_or_longer_slice(day, slices, hours):
    assert hours_between(Period(day, 1, slices, LOS_ANGELES).edges) == hours


@pytest.mark.parametrize("slices", [8, 24, 48, 288])
@pytest.mark.parametrize("first", [date(2026, 3, 6), date(2026, 10, 30), date(2026, 11, 13)])
def test_edges_never_go_back_and_consecutive_days_leave_no_gap(first, slices):
    days = [Period(first + timedelta(days=i), 1, slices, LOS_ANGELES) for i in range(4)]
    for one, following in pairwise(days):
        assert one.end == following.start
    for day in days:
        assert len(day.edges) == slices + 1
        assert day.edges == sorted(day.edges)
        assert day.start < day.end


# Clocks that change at midnight itself: there the day's first moment is skipped, or happens twice.
@pytest.mark.parametrize(
    ("zone", "day"),
    [("Africa/Cairo", date(2026, 4, 24)), ("America/Havana", date(2026, 3, 8)), ("America/Havana", date(2026, 11, 1))],
)
def test_days_leave_no_gap_where_the_clock_changes_at_midnight(zone, day):
    midnight = datetime(day.year, day.month, day.day)
    offsets = {(midnight + timedelta(hours=h)).replace(tzinfo=ZoneInfo(zone)).utcoffset() for h in (-6, 6)}
    assert len(offsets) == 2
    days = [Period(day + timedelta(days=i), 1, 24, zone) for i in (-1, 0, 1)]
    assert [one.end for one in days[:-1]] == [one.start for one in days[1:]]
    assert all(one.edges == sorted(one.edges) for one in days)
    assert days[-1].end - days[0].start in (timedelta(hours=71), timedelta(hours=73))


def test_a_week_that_holds_a_clock_change_is_an_hour_shorter_or_longer():
    week = [Period(first, 7, 7, LOS_ANGELES) for first in (date(2026, 3, 5), date(2026, 10, 29), date(2026, 11, 12))]
    assert [(one.end - one.start) / timedelta(hours=1) for one in week] == [167, 169, 168]


def test_edges_are_in_utc_and_the_name_is_the_first_day():
    period = Period(AUTUMN, 1, 8, LOS_ANGELES)
    assert {edge.tzinfo for edge in period.edges} == {timezone.utc}
    assert period.name == "2026-11-01"
