from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.conftest import policy_text

from heathaze.cli import main
from heathaze.collect import bound as bounding
from heathaze.collect import pipeline
from heathaze.collect.private import PrivateTables

MIDNIGHT = datetime(2026, 1, 5, tzinfo=timezone.utc)
ID = "CANARY-5f3a"
LAT, LON, FAR_LAT = 40.0512345678, -73.9587654321, 12.3456789012

KEPT_PER_USER, USERS = 3, 5_003
ROWS = {"usable": 5 * USERS, "impossible": 10_007, "nobody": 10_009, "outside": 10_037, "other_day": 10_039}
EXACT_COUNTS = {
    *ROWS.values(),
    sum(ROWS.values()),
    sum(ROWS.values()) - ROWS["other_day"],
    KEPT_PER_USER * USERS,
    USERS,
}
"""What operators may know and nobody else: rows read, rows dropped by reason, rows kept, users."""


def events() -> pa.Table:
    """Usable and unusable rows; every id and every coordinate of them can be recognised."""
    number = np.concatenate([np.repeat(np.arange(USERS), 5), *(np.arange(ROWS[name]) % 100 for name in list(ROWS)[1:])])
    kind = np.repeat(np.arange(5), list(ROWS.values()))
    lat = np.choose(kind, [LAT, np.nan, LAT, FAR_LAT, LAT])
    lon = np.full(len(kind), LON)
    seconds = np.where(kind == 4, -86_400, 0) + np.arange(len(kind)) % 86_400
    users = pa.array([None if k == 2 else f"{ID}-{n}" for k, n in zip(kind, number, strict=True)])
    times = pa.array(seconds * 1_000_000 + int(MIDNIGHT.timestamp()) * 1_000_000).cast(pa.timestamp("us", "UTC"))
    return pa.table({"user_id": users, "event_time": times, "lat": lat, "lon": lon})


def secrets_in(content: bytes) -> list[str]:
    """Ids and coordinates that `content` gives away, as text or as the bytes of a float."""
    patterns = {"an id": ID.encode()}
    for name, value in {"the latitude": LAT, "the longitude": LON, "the latitude outside": FAR_LAT}.items():
        patterns |= {name: str(value).encode(), f"{name} as a float": struct.pack("<d", value)}
        patterns |= {f"most digits of {name}": str(value).encode()[:-3]}
    return [name for name, pattern in patterns.items() if pattern in content]


def counts_in(text: str) -> set[int]:
    """Exact counts of raw rows that a text gives away, with or without separators."""
    numbers = re.findall(r"(?<![\w.])\d[\d,_]*+(?!\w|\.\d)", text)
    return EXACT_COUNTS & {int(re.sub("[,_]", "", number)) for number in numbers}


def content_of(file: Path) -> bytes:
    """A file's bytes and, because pages are compressed, the values of its columns."""
    content = file.read_bytes()
    if file.suffix == ".parquet":
        content += repr(pq.ParquetFile(file).read().to_pylist()).encode()
    return content


def public_files(tables: Path) -> list[Path]:
    return [file for file in tables.rglob("*") if file.is_file() and tables / "private" not in file.parents]


def operational_text(tables: Path) -> str:
    """The text of every public Delta log but for sizes and times of files, which are those of noise."""
    logs = [file for file in public_files(tables) if file.suffix == ".json"]
    text = "\n".join(file.read_text() for file in logs)
    return re.sub(r'\\?"(size|modificationTime|timestamp|inCommitTimestamp|\w*Bytes|\w*Ms)\\?":\\?"?\d+', "", text)


class Watched:
    """All that a command prints or logs."""

    def __init__(self, capfd: pytest.CaptureFixture[str], records: list[str]):
        self._capfd, self._records = capfd, records

    def run(self, *arguments: str) -> tuple[int, str]:
        self._capfd.readouterr()
        self._records.clear()
        code = main(arguments)
        out, err = self._capfd.readouterr()
        return code, "\n".join([out, err, *self._records])


@pytest.fixture
def watched(
    spark: SparkSession, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Watched]:
    """Watches standard output and error, and every record that any logger handles, whether it is propagated or not."""
    records: list[str] = []
    call = logging.Logger.callHandlers

    def remember(self: logging.Logger, record: logging.LogRecord) -> None:
        records.append(f"{record.getMessage()} {record.exc_info} {record.__dict__}")
        call(self, record)

    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(logging.Logger, "callHandlers", remember)
    monkeypatch.setattr("heathaze.session._local_settings", lambda: {})
    before = spark.conf.get("spark.sql.session.timeZone")
    yield Watched(capfd, records)
    spark.conf.set("spark.sql.session.timeZone", before)


def collect_arguments(place: Path) -> list[str]:
    (place / "policy.toml").write_text(policy_text(k=KEPT_PER_USER))
    given = {"policy": place / "policy.toml", "events": place / "events", "period": MIDNIGHT.date(), "tables": place / "tables"}
    return ["collect", *(part for name, value in given.items() for part in (f"--{name}", str(value)))]


def write_events(place: Path, table: pa.Table | None = None) -> None:
    (place / "events").mkdir()
    pq.write_table(events() if table is None else table, place / "events" / "part.parquet")


def assert_nothing_public(place: Path, text: str) -> None:
    assert secrets_in(text.encode()) == []
    assert counts_in(text) == set()
    for file in public_files(place / "tables"):
        assert secrets_in(content_of(file)) == [], file
    assert counts_in(operational_text(place / "tables")) == set()


def test_a_release_its_rerun_and_the_budget_give_nothing_away(watched, tmp_path):
    write_events(tmp_path)
    arguments = collect_arguments(tmp_path)
    code, text = watched.run(*arguments)
    assert code == 0 and "charged epsilon 1.0" in text
    again, more = watched.run(*arguments, "--json")
    assert again == 0 and json.loads(more[more.index("{") : more.rindex("}") + 1])["epsilon"] == "0"
    budget, listing = watched.run("budget", "--tables", str(tmp_path / "tables"))
    assert budget == 0 and "epsilon 1 of 5 spent" in listing
    assert len(public_files(tmp_path / "tables")) > 5
    assert_nothing_public(tmp_path, text + more + listing)

    events = b"".join(content_of(file) for file in (tmp_path / "events").rglob("*.parquet"))
    assert {"an id", "the latitude", "the longitude"} <= set(secrets_in(events)), "the search finds what is there"
    private = b"".join(content_of(file) for file in (tmp_path / "tables" / "private").rglob("*.parquet"))
    assert set(secrets_in(private)) == {"an id"}, "the private sample needs ids, but no coordinates"
    counters = PrivateTables(str(tmp_path / "tables")).load("counters")["value"].to_pylist()
    assert len(counts_in(" ".join(map(str, counters)))) == 6


def test_the_search_finds_ids_coordinates_and_counts_in_every_form():
    assert secrets_in(f"no such user: {ID}-17".encode()) == ["an id"]
    assert "the latitude" in secrets_in(str(LAT).encode())
    assert secrets_in(b"lat=40.0512346") == [] and secrets_in(b"lat=40.0512345") == ["most digits of the latitude"]
    assert "the longitude as a float" in secrets_in(np.array([0.0, LON]).tobytes())
    assert counts_in(f"dropped {ROWS['nobody']:,} rows") == {ROWS["nobody"]}
    assert counts_in(f'"numOutputRows":"{ROWS["usable"]}"') == {ROWS["usable"]}
    assert counts_in(f"1{ROWS['nobody']} {ROWS['nobody']}.5 entry a{ROWS['nobody']}b") == set()


FEW = events().slice(0, 40)


def headless_csv(place: Path) -> None:
    (place / "events").mkdir()
    (place / "events" / "part.csv").write_text(f"{ID}-1,2026-01-05 00:00:00,{LAT},{LON}\n" * 3)


def corrupt_parquet(place: Path) -> None:
    (place / "events").mkdir()
    (place / "events" / "part.parquet").write_bytes(f"PAR1 {ID} {LAT}".encode() * 20)


def torn_parquet(place: Path) -> None:
    """A file with a good footer whose pages were overwritten: found out only while reading."""
    write_events(place, FEW)
    path = place / "events" / "part.parquet"
    content = bytearray(path.read_bytes())
    content[4:200] = (f"{ID} {LAT} " * 20).encode()[:196]
    path.write_bytes(content)


def text_as_latitude(place: Path) -> None:
    write_events(place, FEW.set_column(2, "lat", pa.array([f"{ID} {LAT}"] * len(FEW))))


def number_as_user(place: Path) -> None:
    write_events(place, FEW.set_column(0, "user_id", pa.array([LAT] * len(FEW))))


def other_names(place: Path) -> None:
    write_events(place, FEW.rename_columns([f"{ID}-name", "event_time", "lat", "lon"]))


def corrupt_delta(place: Path) -> None:
    (place / "events" / "_delta_log").mkdir(parents=True)
    (place / "events" / "_delta_log" / "00000000000000000000.json").write_text(f'{{"add": "{ID} {LAT}')


@pytest.mark.parametrize(
    "spoil", [headless_csv, corrupt_parquet, torn_parquet, text_as_latitude, number_as_user, other_names, corrupt_delta]
)
def test_events_that_cannot_be_read_are_not_quoted(watched, tmp_path, spoil):
    spoil(tmp_path)
    code, text = watched.run(*collect_arguments(tmp_path))
    assert code in (1, 3)
    assert "Error: " in text
    assert_nothing_public(tmp_path, text)


def failing(error: Exception) -> Callable[..., None]:
    def stage(*arguments: object) -> None:
        raise error

    return stage


class UnknownError(Exception):
    """Something that quotes a row, both when it is printed and when it is shown."""

    def __repr__(self) -> str:
        return f"UnknownError({ID}, {LAT})"

    __str__ = __repr__


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"could not convert {ID} at {LAT}, {LON}: row 10007 of 25015"),
        UnknownError(),
        KeyError(f"{ID}-17"),
        AssertionError(f"{ID} {LAT}"),
        MemoryError(f"while holding {ID}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_unexpected_error_that_quotes_a_row_is_not_shown(watched, tmp_path, monkeypatch, error):
    write_events(tmp_path, FEW)
    monkeypatch.setattr(pipeline, "_write_sample", failing(error))
    code, text = watched.run(*collect_arguments(tmp_path))
    assert code == 3
    assert f"{type(error).__name__}: an error that heathaze does not know" in text
    assert_nothing_public(tmp_path, text)


def test_an_error_that_was_caused_by_one_that_quotes_a_row_is_not_shown(watched, tmp_path, monkeypatch):
    def stage(*arguments: object) -> None:
        try:
            raise ValueError(f"{ID} {LAT}")
        except ValueError as error:
            error.add_note(f"seen at {LON}")
            raise RuntimeError(f"because of {ID}") from error

    write_events(tmp_path, FEW)
    monkeypatch.setattr(pipeline, "_write_sample", stage)
    code, text = watched.run(*collect_arguments(tmp_path))
    assert code == 3 and "RuntimeError" in text
    assert_nothing_public(tmp_path, text)


def quote_in_a_worker(events: DataFrame, settings: object) -> DataFrame:
    """A task of Python that fails with a row in its message."""

    def quote(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raise ValueError(f"cannot place {batch.to_pylist()[0]}")
        yield from ()

    return events.mapInArrow(quote, "user_id string, places array<bigint>")


def quote_by_raising(events: DataFrame, settings: object) -> DataFrame:
    """A task of the JVM that fails with an id in its message."""
    return events.withColumn("places", F.array(F.raise_error(F.col("user_id")).cast("bigint")))


def quote_by_casting(events: DataFrame, settings: object) -> DataFrame:
    """A task of the JVM that fails on a value, which Spark logs together with the place in the query."""
    return events.withColumn("places", F.array(F.col("user_id").cast("bigint")))


@pytest.mark.parametrize("stage", [quote_in_a_worker, quote_by_raising, quote_by_casting])
def test_a_task_that_fails_on_a_row_does_not_show_it(watched, tmp_path, monkeypatch, stage):
    write_events(tmp_path, FEW)
    monkeypatch.setattr(bounding, "bound", stage)
    code, text = watched.run(*collect_arguments(tmp_path))
    assert code == 3 and "an error that heathaze does not know" in text
    assert_nothing_public(tmp_path, text)


def test_a_sample_with_too_many_events_of_a_user_is_refused_without_a_word_about_the_user(watched, tmp_path, monkeypatch):
    write_events(tmp_path, FEW)
    monkeypatch.setattr(bounding, "bound", lambda events, settings: events.withColumn("places", F.array("place")))
    code, text = watched.run(*collect_arguments(tmp_path))
    assert code == 3 and "BoundViolated: no user may have more than 3 events" in text
    assert not (tmp_path / "tables" / "noisy").exists(), "no noise is drawn"
    assert_nothing_public(tmp_path, text)


def test_events_that_change_while_they_are_read_are_not_quoted(watched, tmp_path, monkeypatch):
    write_events(tmp_path, FEW)
    later = MIDNIGHT + timedelta(hours=1)
    late = pa.table({"user_id": [ID], "event_time": pa.array([later], pa.timestamp("us", "UTC")), "lat": [LAT], "lon": [LON]})
    monkeypatch.setattr(pipeline, "_write_sample", lambda *arguments: pq.write_table(late, tmp_path / "events" / "late.parquet"))
    code, text = watched.run(*collect_arguments(tmp_path))
    assert code == 1 and "changed while they were read" in text
    assert_nothing_public(tmp_path, text)
