from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from heathaze.errors import InputError
from heathaze.evaluate import synthetic
from heathaze.evaluate.synthetic import BLOCK_USERS, SCHEMA, SHAPES, City, batches, synthesize
from heathaze.grid import METRES_PER_DEGREE, Grid

SMALL = City(users=3_000, events_per_user=10)
MONDAY, SATURDAY = date(2026, 11, 16), date(2026, 11, 14)


def events_of(city: City) -> pa.Table:
    return pa.concat_tables(batches(city))


def counts_of_users(events: pa.Table, users: int) -> np.ndarray:
    """Events of every user, the most active first, users without events included."""
    seen = np.sort(pc.value_counts(events["user_id"]).field("counts").to_numpy())[::-1]
    return np.pad(seen, (0, users - len(seen)))


def hours_of(events: pa.Table) -> np.ndarray:
    return pc.hour(events["event_time"]).to_numpy()


def night_places(city: City) -> dict[str, tuple[float, float]]:
    """The median position of each user between 3 and 6 in the morning, for users seen at least 5 times then."""
    events = events_of(city)
    hours = hours_of(events)
    asleep = events.filter(pa.array((hours >= 3) & (hours < 6)))
    medians = asleep.group_by("user_id").aggregate(
        [("lat", "approximate_median"), ("lon", "approximate_median"), ("lat", "count")]
    )
    return {
        row["user_id"]: (row["lat_approximate_median"], row["lon_approximate_median"])
        for row in medians.to_pylist()
        if row["lat_count"] >= 5
    }


def cells_of(city: City, events: pa.Table) -> np.ndarray:
    rows, cols = round(city.plane.height_metres / 30), round(city.plane.width_metres / 30)
    grid = Grid(city.south, city.west, city.north, city.east, rows, cols)
    cells = grid.cells_of(events["lat"].to_numpy(), events["lon"].to_numpy())
    return np.bincount(cells[cells >= 0], minlength=grid.cells)


def test_same_settings_give_the_same_events():
    assert events_of(SMALL).equals(events_of(SMALL))


@pytest.mark.parametrize("other", [{"seed": 1}, {"shape": "corridors"}, {"first_day": MONDAY}])
def test_another_seed_shape_or_day_gives_other_events(other):
    assert not events_of(SMALL).equals(events_of(replace(SMALL, **other)))


def test_nights_written_one_by_one_are_the_nights_written_at_once():
    together = events_of(replace(SMALL, days=3))
    one_by_one = [events_of(replace(SMALL, first_day=SMALL.first_day + timedelta(days=i))) for i in range(3)]
    assert together.equals(pa.concat_tables(one_by_one))


def test_a_user_sleeps_at_the_same_home_every_night_and_other_seeds_move_it():
    city = replace(SMALL, events_per_user=100, first_day=MONDAY)
    monday, tuesday = night_places(city), night_places(replace(city, first_day=date(2026, 11, 17)))
    elsewhere = night_places(replace(city, seed=1))
    assert share_within_100_metres(monday, tuesday) > 0.95
    assert share_within_100_metres(monday, elsewhere) < 0.2


def share_within_100_metres(one: dict, other: dict) -> float:
    both = sorted(one.keys() & other.keys())
    assert len(both) > 30
    apart = np.array([one[user] for user in both]) - np.array([other[user] for user in both])
    return float(np.mean(np.hypot(*apart.T) * METRES_PER_DEGREE < 100))


def test_a_user_does_not_depend_on_how_many_others_there_are():
    small, large = replace(SMALL, users=BLOCK_USERS), replace(SMALL, users=BLOCK_USERS + 500)
    assert next(batches(small)).equals(next(batches(large)))
    plan = synthetic._plan(SMALL)
    few, many = (synthetic._block(SMALL, plan, 0, users) for users in (10, 500))
    assert np.array_equal(few.places, many.places[:10]) and np.array_equal(few.activity, many.activity[:10])


@pytest.mark.parametrize("tail", [1.0, 1.5, 3.0])
def test_the_mean_is_the_declared_one_with_the_cap_counted_in(tail):
    city = City(users=20_000, events_per_user=20, tail=tail, max_events_per_user=500)
    counts = counts_of_users(events_of(city), city.users)
    assert counts.max() <= 500
    error = counts.std() / np.sqrt(city.users)
    assert abs(counts.mean() - 20) < 4 * error < 2


def test_few_users_make_most_events_and_a_larger_exponent_spreads_them():
    city = City(users=20_000, events_per_user=20)
    share = {tail: top_share(replace(city, tail=tail)) for tail in (1.5, 4.0)}
    assert share[1.5] > 0.5
    assert share[4.0] < 0.4


def top_share(city: City) -> float:
    counts = counts_of_users(events_of(city), city.users)
    return counts[: city.users // 20].sum() / counts.sum()


def test_events_lie_within_the_days_and_on_each_of_them():
    city = replace(SMALL, days=2)
    times = events_of(city)["event_time"]
    start = datetime(2026, 11, 14, tzinfo=timezone.utc)
    assert start <= pc.min(times).as_py() and pc.max(times).as_py() < start + timedelta(days=2)
    assert sorted(pc.unique(pc.day(times)).to_pylist()) == [14, 15]


def test_each_batch_is_in_order_of_time_and_in_the_schema():
    for table in batches(SMALL):
        assert table.schema == SCHEMA
        assert np.all(np.diff(table["event_time"].cast(pa.int64()).to_numpy()) >= 0)
        assert all(column.null_count == 0 for column in table.columns)


def test_user_ids_are_numbers_of_seven_digits():
    ids = pc.unique(events_of(SMALL)["user_id"]).to_pylist()
    assert all(len(user) == 8 and user[0] == "u" and 0 <= int(user[1:]) < SMALL.users for user in ids)


@pytest.mark.parametrize("shape", SHAPES)
def test_venues_are_crowded_while_most_cells_are_empty(shape):
    city = City(shape=shape)
    cells = cells_of(city, events_of(city))
    assert 0.75 < np.mean(cells == 0) < 0.97
    assert np.sort(cells)[-20] > 300
    assert np.median(cells[cells > 0]) <= 5


@pytest.mark.parametrize("shape", SHAPES)
def test_about_one_in_a_hundred_points_lies_outside(shape):
    city = City(shape=shape)
    events = events_of(city)
    assert 0.008 < 1 - cells_of(city, events).sum() / events.num_rows < 0.012


def test_shapes_are_different_cities():
    found = {}
    for shape in SHAPES:
        city = City(shape=shape, users=10_000)
        cells = cells_of(city, events_of(city))
        found[shape] = cells / np.linalg.norm(cells)
    assert max(found[a] @ found[b] for a in SHAPES for b in SHAPES if a < b) < 0.3


def test_weekends_are_later_than_weekdays_unless_told_otherwise():
    def before_nine(city: City) -> float:
        hours = hours_of(events_of(city))
        return float(np.mean((hours >= 6) & (hours < 9)))

    city = City(users=10_000)
    monday, saturday = before_nine(replace(city, first_day=MONDAY)), before_nine(replace(city, first_day=SATURDAY))
    even = before_nine(replace(city, first_day=SATURDAY, weekly=False))
    assert saturday < 0.5 * monday
    assert even == pytest.approx(monday, rel=0.1)


def test_written_parquet_is_what_the_batches_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "ROWS_PER_FILE", 10_000)
    calls = []
    rows = synthesize(SMALL, tmp_path / "city", progress=lambda done, total: calls.append((done, total)))
    files = sorted((tmp_path / "city").iterdir())
    assert len(files) == len(calls) > 1 and calls[-1] == (3_000, 3_000)
    written = pa.concat_tables(pq.read_table(file) for file in files)
    assert rows == written.num_rows and written.equals(events_of(SMALL))


def test_written_delta_is_readable(tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic, "ROWS_PER_FILE", 10_000)
    rows = synthesize(SMALL, tmp_path / "city", "delta")
    table = DeltaTable(str(tmp_path / "city"))
    assert [(f.name, f.type.type) for f in table.schema().fields] == [
        ("user_id", "string"),
        ("event_time", "timestamp"),
        ("lat", "double"),
        ("lon", "double"),
    ]
    by = [("event_time", "ascending"), ("lat", "ascending")]
    written = pa.concat_tables(pq.read_table(uri) for uri in table.file_uris())
    assert written.num_rows == rows
    assert written.cast(SCHEMA).sort_by(by).equals(events_of(SMALL).sort_by(by))


def test_a_city_without_events_is_still_a_table(tmp_path):
    city = City(users=1, events_per_user=1e-9)
    assert synthesize(city, tmp_path / "city") == 0
    assert pq.read_table(tmp_path / "city").schema.equals(SCHEMA)


def test_a_folder_in_use_is_refused_and_kept(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    for out in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(InputError, match="Remove it or name another"):
            synthesize(SMALL, out)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_an_unknown_format_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(InputError, match="parquet, delta"):
        synthesize(SMALL, tmp_path / "city", "csv")
    assert not (tmp_path / "city").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"users": 0},
        {"events_per_user": 0.0},
        {"events_per_user": float("nan")},
        {"events_per_user": 2_000.0},
        {"days": 0},
        {"first_day": date(1900, 1, 1)},
        {"south": 37.9},
        {"east": -122.53},
        {"north": 37.701},
        {"west": -179.0},
        {"tail": 0.1},
        {"max_events_per_user": 30},
        {"seed": -1},
        {"shape": "ring"},
    ],
)
def test_settings_that_make_no_city_are_refused(wrong):
    with pytest.raises(InputError, match="must be"):
        City(**wrong)
