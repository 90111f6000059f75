from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.conftest import policy_text

from heathaze.collect import pipeline
from heathaze.collect.bound import BoundSettings
from heathaze.collect.entropy import KeyStore
from heathaze.collect.events import find_source, read_source, usable
from heathaze.collect.private import PrivateTables
from heathaze.errors import InputError
from heathaze.policy import Policy, parse_policy

MIDNIGHT = datetime(2026, 1, 5, tzinfo=timezone.utc)
PERIOD = "2026-01-05"
KINDS = {"user_id": pa.string(), "event_time": pa.timestamp("us", "UTC"), "lat": pa.float64(), "lon": pa.float64()}
NAN, INF = math.nan, math.inf

Event = tuple[str | None, datetime | None, float | None, float | None]

GOOD: list[Event] = [
    (f"u{i % 7}", MIDNIGHT + timedelta(minutes=11 * i), 40.001 + 0.0007 * i, -73.999 + 0.0007 * i) for i in range(130)
]

DROPPED: dict[str, list[Event]] = {
    "dropped_without_user": [
        (None, MIDNIGHT, 40.05, -73.95),
        *[("", MIDNIGHT, 40.05, -73.95)] * 2,
        (None, MIDNIGHT, NAN, 500.0),
    ],
    "dropped_impossible_place": [
        ("v", MIDNIGHT, lat, lon)
        for lat, lon in [
            (None, -73.95),
            (40.05, None),
            (NAN, -73.95),
            (40.05, NAN),
            (INF, -73.95),
            (40.05, -INF),
            (90.1, -73.95),
            (40.05, 180.1),
            (-1e300, 1e300),
        ]
    ],
    "dropped_outside_box": [
        ("v", MIDNIGHT, lat, lon)
        for lat, lon in [(39.9999, -73.95), (40.1, -73.95), (40.05, -73.9), (40.05, -74.0001), (0.0, 0.0)]
    ],
    "dropped_outside_period": [
        ("v", time, 40.05, -73.95)
        for time in [
            None,
            MIDNIGHT - timedelta(microseconds=1),
            MIDNIGHT + timedelta(days=1),
            MIDNIGHT + timedelta(days=365),
            datetime(1970, 1, 1, tzinfo=timezone.utc),
            datetime(1815, 6, 18, tzinfo=timezone.utc),
        ]
    ],
}
EDGES: list[Event] = [
    ("edge", MIDNIGHT, 40.0, -74.0),
    ("edge", MIDNIGHT + timedelta(days=1) - timedelta(microseconds=1), 40.0999999999, -73.9000000001),
    (" ", MIDNIGHT, 40.05, -73.95),
]


def table_of(events: list[Event]) -> pa.Table:
    columns = zip(*events, strict=True)
    return pa.table({name: pa.array(c, kind) for (name, kind), c in zip(KINDS.items(), columns, strict=True)})


def write_parquet(folder: Path, events: pa.Table, name: str = "part.parquet") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(events, folder / name)
    return str(folder)


def policy_with(**dataset: str) -> Policy:
    """The toy policy with other names for the dataset's columns or another zone."""
    lines = "\n".join(f'{key} = "{value}"' for key, value in dataset.items())
    return parse_policy(policy_text().replace("[period]", f"{lines}\n[period]"))


def read(spark: SparkSession, address: str, policy: Policy) -> DataFrame:
    period = policy.period_of(PERIOD)
    return read_source(spark, find_source(spark, address, policy, period), policy, period)


def rows_of(frame: DataFrame) -> list[tuple]:
    return sorted(zip(*(column.to_pylist() for column in frame.toArrow().columns), strict=True))


def usable_rows(spark: SparkSession, address: str, policy: Policy) -> list[tuple]:
    return rows_of(usable(read(spark, address, policy), policy.grid.build(), policy.period_of(PERIOD)))


@pytest.fixture
def in_zone(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Sets the session's zone, as starting the session for a policy does."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda zone: spark.conf.set("spark.sql.session.timeZone", zone)
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    """A schema of the session's catalog that is dropped afterwards."""
    name = f"toy{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE SCHEMA {name}")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


def test_parquet_csv_delta_and_catalog_tables_give_the_same_usable_rows(spark, toy_policy, tmp_path, schema):
    bad = [event for events in DROPPED.values() for event in events]
    events = table_of(GOOD + EDGES + bad)
    addresses = {"parquet": write_parquet(tmp_path / "parquet", events), "csv": str(tmp_path / "csv")}
    (tmp_path / "csv").mkdir()
    text = events.set_column(1, "event_time", events["event_time"].cast(pa.string()))
    pa.csv.write_csv(text, tmp_path / "csv" / "events.csv")
    deltalake.write_deltalake(addresses.setdefault("delta", str(tmp_path / "delta")), events)
    spark.read.parquet(addresses["parquet"]).write.format("delta").saveAsTable(f"{schema}.events")
    addresses["two parts"], addresses["three parts"] = f"{schema}.events", f"spark_catalog.{schema}.events"
    addresses["one file"] = str(tmp_path / "parquet" / "part.parquet")
    expected = sorted(GOOD + EDGES)
    for kind, address in addresses.items():
        assert usable_rows(spark, address, toy_policy()) == expected, kind


def test_rows_are_dropped_and_counted_exactly_in_the_private_counters(spark, toy_policy, tmp_path):
    policy = toy_policy(k=1000)
    events = GOOD + EDGES + [event for events in DROPPED.values() for event in events]
    address = write_parquet(tmp_path / "events", table_of(events))
    tables = PrivateTables(str(tmp_path / "tables"))
    night = pipeline.Collection(spark, policy, policy.period_of(PERIOD), tables, KeyStore(tmp_path / "keys"), lambda step: None)
    entry, _ = night.ledger.charge(policy, PERIOD, "files:1:1")
    settings = BoundSettings(1000, 1, night.grid.cells * night.period.slices)
    pipeline._write_sample(night, entry, read(spark, address, policy), settings)

    counters = {row["name"]: row["value"] for row in tables.load("counters").to_pylist()}
    assert counters == {
        "rows_in_input": len(events),
        "rows_of_period": len(events) - len(DROPPED["dropped_outside_period"]),
        **{reason: len(rows) for reason, rows in DROPPED.items()},
    }
    sample = [
        (row["user_id"], *divmod(place, night.grid.cells)) for row in tables.load("sample").to_pylist() for place in row["places"]
    ]
    users, times, lat, lon = zip(*(GOOD + EDGES), strict=True)
    slices = [night.period.edges.index(max(edge for edge in night.period.edges if edge <= time)) for time in times]
    expected = sorted(zip(users, slices, night.grid.cells_of(np.array(lat), np.array(lon)).tolist(), strict=True))
    assert sorted(sample) == expected
    assert Path(tables.address("counters")).is_relative_to(tmp_path / "tables" / "private")


def test_columns_may_have_other_names_and_types(spark, tmp_path):
    events = pa.table(
        {
            "Längengrad": pa.array([-73.95, -73.5]),
            "user id": pa.array([7, 8], pa.int64()),
            "wgs.lat": pa.array([40, 40], pa.decimal128(9, 6)),
            "at": pa.array([MIDNIGHT, MIDNIGHT], pa.timestamp("us", "UTC")),
            "lat": pa.array(["not", "this"]),
        }
    )
    policy = policy_with(user="user id", time="at", lat="wgs.lat", lon="Längengrad")
    found = read(spark, write_parquet(tmp_path / "events", events), policy)
    assert found.columns == list(KINDS)
    assert rows_of(found) == [("7", MIDNIGHT, 40.0, -73.95), ("8", MIDNIGHT, 40.0, -73.5)]


def test_times_without_an_offset_are_read_in_the_zone_of_the_policy(spark, tmp_path, in_zone):
    in_zone("America/New_York")
    policy = policy_with(timezone="America/New_York")
    midnight = datetime(2026, 1, 5, tzinfo=ZoneInfo("America/New_York"))
    clock = [datetime(2026, 1, 5), datetime(2026, 1, 5, 23, 59, 59), datetime(2026, 1, 4, 23, 59, 59), datetime(2026, 1, 6)]
    wall = table_of([("u", MIDNIGHT, 40.05, -73.95)] * 4).set_column(1, "event_time", pa.array(clock, pa.timestamp("us")))
    assert read(spark, write_parquet(tmp_path / "ntz", wall), policy).schema["event_time"].dataType.simpleString() == "timestamp"
    expected = [midnight, midnight + timedelta(days=1) - timedelta(seconds=1)]
    assert [row[1] for row in usable_rows(spark, str(tmp_path / "ntz"), policy)] == expected

    (tmp_path / "csv").mkdir()
    stamps = ["2026-01-05 00:00:00", "2026-01-05T23:59:59", "2026-01-04 23:59:59.999999", "2026-01-05T03:00:00Z"]
    stamps += ["2026-01-05T05:00:00.5Z", "2026-01-05 12:00:00+02:00"]
    lines = ["user_id,event_time,lat,lon", *(f"u,{stamp},40.05,-73.95" for stamp in stamps)]
    (tmp_path / "csv" / "a.csv").write_text("\n".join(lines) + "\n")
    found = [row[1] for row in usable_rows(spark, str(tmp_path / "csv"), policy)]
    assert found == [
        midnight,
        midnight + timedelta(milliseconds=500),
        midnight + timedelta(hours=5),
        midnight + timedelta(days=1) - timedelta(seconds=1),
    ]


def test_csv_values_that_do_not_parse_become_unusable_rows_and_no_error(spark, toy_policy, tmp_path):
    lines = [
        "user_id,event_time,lat,lon,more",
        "u,2026-01-05 01:00:00,40.05,-73.95,x",
        "u,2026-01-05 01:00:00,forty,-73.95,x",
        "u,2026-01-05 01:00:00,40.05,,x",
        "u,yesterday,40.05,-73.95,x",
        "u",
        "u,2026-01-05 01:00:00,40.05,-73.95,x,y,z",
        '"u,2026-01-05 01:00:00,40.05,-73.95',
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert usable_rows(spark, str(tmp_path / "a.csv"), toy_policy()) == [("u", MIDNIGHT + timedelta(hours=1), 40.05, -73.95)] * 2


def test_csv_files_with_columns_in_another_order_are_refused(spark, toy_policy, tmp_path):
    rest = "2026-01-05 01:00:00,40.05,-73.95"
    (tmp_path / "a.csv").write_text(f"user_id,session,event_time,lat,lon\nuser,s1,{rest}\n")
    (tmp_path / "b.csv").write_text(f"session,user_id,event_time,lat,lon\ns2,user,{rest}\ns3,user,{rest}\n")
    with pytest.raises(InputError, match="same columns in the same order"):
        read(spark, str(tmp_path), toy_policy())


PARTITIONED = {"day=2026-01-04": GOOD[:2], "day=2026-01-05": GOOD[:5], "day=2026-01-06": GOOD[:3]}


def write_partitions(folder: Path, kind: str) -> str:
    for day, events in PARTITIONED.items():
        if kind == "parquet":
            write_parquet(folder / day, table_of(events))
        elif kind == "csv":
            (folder / day).mkdir(parents=True)
            pa.csv.write_csv(table_of(events), folder / day / "part.csv")
        else:
            days = pa.array([day.removeprefix("day=")] * len(events))
            dated = table_of(events).append_column("day", days)
            deltalake.write_deltalake(str(folder), dated, mode="append", partition_by=["day"])
    return str(folder)


@pytest.mark.parametrize("kind", ["parquet", "csv", "delta"])
def test_only_the_partition_of_the_period_is_read(spark, tmp_path, kind):
    address = write_partitions(tmp_path / "events", kind)
    assert read(spark, address, policy_with(partition="day")).count() == 5
    assert read(spark, address, policy_with()).count() == 10


def test_events_without_the_partition_column_are_refused(spark, tmp_path):
    deltalake.write_deltalake(str(tmp_path / "delta"), table_of(GOOD))
    with pytest.raises(InputError, match="must be partitioned by 'day', but have no such column"):
        read(spark, str(tmp_path / "delta"), policy_with(partition="day"))
    with pytest.raises(InputError, match="must have a partition day=2026-01-05, but there is none"):
        read(spark, write_parquet(tmp_path / "files", table_of(GOOD)), policy_with(partition="day"))


@pytest.mark.parametrize("kind", ["parquet", "csv", "delta"])
def test_a_partition_that_is_not_written_yet_is_refused(spark, tmp_path, kind):
    address = write_partitions(tmp_path / "events", kind)
    policy = policy_with(partition="day")
    later = policy.period_of("2026-01-07")
    with pytest.raises(InputError, match="must have a partition day=2026-01-07, but there is none"):
        read_source(spark, find_source(spark, address, policy, later), policy, later)


def version_of(spark: SparkSession, address: str, policy: Policy) -> str:
    return find_source(spark, address, policy, policy.period_of(PERIOD)).version


def test_version_of_files_changes_with_any_of_them_and_not_otherwise(spark, toy_policy, tmp_path):
    address = write_parquet(tmp_path / "events", table_of(GOOD))
    seen = [version_of(spark, address, toy_policy())]
    assert version_of(spark, address, toy_policy()) == seen[0]
    (tmp_path / "events" / "_SUCCESS").touch()
    assert version_of(spark, address, toy_policy()) == seen[0], "a marker is no event"

    write_parquet(tmp_path / "events", table_of(GOOD[:3]), "more.parquet")
    seen.append(version_of(spark, address, toy_policy()))
    (tmp_path / "events" / "more.parquet").rename(tmp_path / "events" / "renamed.parquet")
    seen.append(version_of(spark, address, toy_policy()))
    os.utime(tmp_path / "events" / "renamed.parquet", (1, 1))
    seen.append(version_of(spark, address, toy_policy()))
    with (tmp_path / "events" / "renamed.parquet").open("ab") as file:
        file.write(b"x")
    os.utime(tmp_path / "events" / "renamed.parquet", (1, 1))
    seen.append(version_of(spark, address, toy_policy()))
    assert len(set(seen)) == 5
    (tmp_path / "events" / "renamed.parquet").unlink()
    assert version_of(spark, address, toy_policy()) == seen[0]


def test_version_of_partitioned_files_is_that_of_the_periods_partition(spark, tmp_path):
    address, policy = write_partitions(tmp_path / "events", "parquet"), policy_with(partition="day")
    before = version_of(spark, address, policy)
    write_parquet(tmp_path / "events" / "day=2026-01-06", table_of(GOOD), "late.parquet")
    assert version_of(spark, address, policy) == before
    write_parquet(tmp_path / "events" / "day=2026-01-05", table_of(GOOD), "late.parquet")
    assert version_of(spark, address, policy) != before


def test_version_of_a_delta_table_is_pinned_while_the_table_grows(spark, toy_policy, tmp_path):
    policy, address = toy_policy(), str(tmp_path / "delta")
    period = policy.period_of(PERIOD)
    deltalake.write_deltalake(address, table_of(GOOD))
    source = find_source(spark, address, policy, period)
    assert find_source(spark, address, policy, period) == source
    deltalake.write_deltalake(address, table_of(GOOD[:4]), mode="append")
    grown = find_source(spark, address, policy, period)
    assert grown.version != source.version
    assert read_source(spark, source, policy, period).count() == len(GOOD)
    assert read_source(spark, grown, policy, period).count() == len(GOOD) + 4


def test_two_delta_tables_at_the_same_version_are_different_inputs(spark, toy_policy, tmp_path):
    for name in ("one", "other"):
        deltalake.write_deltalake(str(tmp_path / name), table_of(GOOD))
    assert version_of(spark, str(tmp_path / "one"), toy_policy()) != version_of(spark, str(tmp_path / "other"), toy_policy())
