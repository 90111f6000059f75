from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrameWriter, SparkSession
from tests.conftest import policy_text

from heathaze.collect import pipeline
from heathaze.collect.entropy import MAP, KeyStore, NoiseKey
from heathaze.collect.ledger import Entry
from heathaze.collect.noise import NoiseSettings, noisy_event_count, noisy_totals, noisy_values
from heathaze.collect.pipeline import Collection, run_bound, run_count, run_noise
from heathaze.collect.private import PrivateTables
from heathaze.errors import BudgetExhausted, InputError, KeyDestroyed
from heathaze.policy import Policy, parse_policy
from heathaze.schemas import NOISY

MIDNIGHT = datetime(2026, 1, 5, tzinfo=timezone.utc)
PERIOD, EMPTY = "2026-01-05", "2026-01-09"
EVENTS_OF = {"u1": 12, "u2": 3, "u3": 1, "u4": 40, "u5": 4}
K, CAP_OF_COUNT = 3, 10


def events(of: dict[str, int] = EVENTS_OF) -> pa.Table:
    rows = [(user, i) for user, number in of.items() for i in range(number)]
    return pa.table(
        {
            "user_id": [user for user, _ in rows],
            "event_time": pa.array([MIDNIGHT + timedelta(minutes=31 * i) for _, i in rows], pa.timestamp("us", "UTC")),
            "lat": [40.003 + 0.002 * i for _, i in rows],
            "lon": [-73.997 + 0.002 * i for _, i in rows],
        }
    )


def policy_of(measured: bool = False, **settings: str | int) -> Policy:
    text = policy_text(**settings)
    if measured:
        text = text.replace("declared_event_count = 1000", f"max_counted_per_user = {CAP_OF_COUNT}")
        text += "[privacy.shares]\nhistogram = 0.9\ntotals = 0.06\nevent_count = 0.04\n"
    return parse_policy(text)


def night_of(
    spark: SparkSession, policy: Policy, tables: Path | str, period: str = PERIOD, keys: Path | None = None
) -> Collection:
    private = PrivateTables(str(tables))
    store = KeyStore(keys or private.default_key_directory())
    return Collection(spark, policy, policy.period_of(period), private, store, lambda step: None)


def collect(night: Collection, address: str) -> Entry:
    entry = run_bound(night, address)
    run_count(night, entry)
    run_noise(night, entry)
    return entry


class Killed(Exception):
    """Stands for the end of the process."""


def kill(*arguments: object) -> None:
    raise Killed


@dataclass(frozen=True)
class Released:
    """A night that was released with N measured, and the key that it was released with."""

    night: Collection
    address: str
    entry: Entry
    key: bytes
    noisy: pa.Table


@pytest.fixture(scope="module")
def released(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Released:
    place = tmp_path_factory.mktemp("released")
    (place / "events").mkdir()
    pq.write_table(events(), place / "events" / "part.parquet")
    night = night_of(spark, policy_of(measured=True), place / "tables")
    entry = run_bound(night, str(place / "events"))
    run_count(night, entry)
    key = (place / "tables" / "private" / "keys" / entry.entry).read_bytes()
    run_noise(night, entry)
    return Released(night, str(place / "events"), entry, key, night.tables.load("noisy").sort_by("slice"))


def exact_counts(night: Collection, entry: Entry) -> np.ndarray:
    exact = np.zeros((night.period.slices, night.grid.cells), dtype=int)
    for row in night.tables.load("histogram").to_pylist():
        if row["entry"] == entry.entry:
            exact[row["slice"], row["cell"]] = row["count"]
    return exact


def counters_of(night: Collection) -> dict[str, int]:
    return {row["name"]: row["value"] for row in night.tables.load("counters").to_pylist()}


def test_the_noisy_table_has_one_row_per_slice_with_all_that_the_reader_needs(released):
    noisy, policy, entry = released.noisy, released.night.policy, released.entry
    assert noisy.column_names == NOISY.column_names
    assert noisy["slice"].to_pylist() == [0, 1, 2, 3]
    assert noisy["starts_at"].to_pylist() == [MIDNIGHT + timedelta(hours=6 * i) for i in range(4)]
    for name, value in {
        "entry": entry.entry,
        "dataset": "toy",
        "period": PERIOD,
        "measurement": policy.measurement_hash,
        "rows": 8,
        "cols": 8,
        "scale": "10/3",
        "total_scale": "50",
        "statements": json.dumps(pipeline.statements(policy)),
    }.items():
        assert noisy[name].to_pylist() == [value] * 4, name
    assert [len(values.as_py()) for values in noisy["values"]] == [4 * 64] * 4
    assert len(set(noisy["noisy_event_count"].to_pylist())) == 1


def test_noisy_values_are_the_bounded_counts_plus_the_noise_of_the_entrys_key(released):
    night, key, noisy = released.night, NoiseKey(released.key), released.noisy
    exact = exact_counts(night, released.entry)
    kept = sum(min(K, number) for number in EVENTS_OF.values())
    assert exact.sum() == kept
    settings = NoiseSettings(night.policy.privacy.histogram_scale, key, night.grid, night.period.slices)
    for number, values in enumerate(noisy["values"].to_pylist()):
        (cells,) = np.nonzero(exact[number])
        assert values == noisy_values(number, cells, exact[number][cells], settings).tobytes()
    totals = exact.reshape(len(exact), -1).sum(1).tolist()
    assert len(set(totals)) > 1
    assert noisy["noisy_total"].to_pylist() == noisy_totals(totals, night.policy.privacy, key)


def test_a_map_of_the_whole_period_is_measured_beside_larger_blocks_each_with_noise_of_its_own(spark, tmp_path):
    shares = "[privacy.shares]\nhistogram = 0.5\ntotals = 0.25\nmap = 0.25\n"
    policy = parse_policy(policy_text().replace("cols = 8", "cols = 8\nslice_block = 4") + shares)
    pq.write_table(events(), tmp_path / "events.parquet")
    night = night_of(spark, policy, tmp_path / "tables")
    entry = run_bound(night, str(tmp_path / "events.parquet"))
    run_count(night, entry)
    key = NoiseKey((tmp_path / "tables" / "private" / "keys" / entry.entry).read_bytes())
    run_noise(night, entry)
    noisy = night.tables.load("noisy").sort_by("slice")
    exact = exact_counts(night, entry)
    blocks = exact.reshape(4, 2, 4, 2, 4).sum((2, 4)).reshape(4, 4)
    assert noisy["rows"].to_pylist() == noisy["cols"].to_pylist() == [2] * 4
    assert (noisy["scale"][0].as_py(), noisy["map_scale"][0].as_py()) == ("6", "12")
    settings = NoiseSettings(policy.privacy.histogram_scale, key, policy.grid.of_slices(), 4)
    for number, values in enumerate(noisy["values"].to_pylist()):
        assert values == noisy_values(number, np.arange(4), blocks[number], settings).tobytes()
    of_map = NoiseSettings(policy.privacy.map_scale, key, night.grid, 1, MAP)
    (only, *none) = noisy["map"].to_pylist()
    assert only == noisy_values(0, np.arange(64), exact.sum(0), of_map).tobytes() and none == [None] * 3
    told = {statement["stage"]: statement["sensitivity"] for statement in json.loads(noisy["statements"][0].as_py())}
    assert all("L1 sensitivity of the counts stays k" in told[stage] for stage in ("coarser", "all_slices"))


def test_measured_N_counts_at_most_the_declared_number_of_each_user_and_gets_noise(released):
    clipped = sum(min(CAP_OF_COUNT, number) for number in EVENTS_OF.values())
    counters = counters_of(released.night)
    assert counters["clipped_event_count"] == clipped
    assert counters["rows_in_input"] == counters["rows_of_period"] == sum(EVENTS_OF.values())
    noisy = noisy_event_count(clipped, released.night.policy.privacy, NoiseKey(released.key))
    assert released.noisy["noisy_event_count"][0].as_py() == noisy


def test_the_key_is_destroyed_once_the_noisy_table_is_committed(released):
    with pytest.raises(KeyDestroyed):
        released.night.keys.key_of(released.entry.entry)
    root = Path(released.night.tables.root)
    files = [file for file in root.rglob("*") if file.is_file()]
    assert len(files) > 10
    for file in files:
        content = file.read_bytes()
        assert released.key not in content and released.key.hex().encode() not in content, file


def assert_nothing_changed(released: Released, entry: Entry) -> None:
    assert entry == released.entry
    assert len(released.night.ledger.entries()) == 1
    assert released.night.tables.load("noisy").sort_by("slice").equals(released.noisy)
    assert deltalake.DeltaTable(released.night.tables.address("noisy")).version() == 1


def test_a_second_run_charges_nothing_and_returns_the_same_bytes(released):
    assert_nothing_changed(released, collect(released.night, released.address))


def test_other_settings_right_of_the_noise_charge_nothing(released):
    policy = replace(released.night.policy, denoise=replace(released.night.policy.denoise, method="none"))
    assert policy.hash != released.night.policy.hash
    assert_nothing_changed(released, collect(replace(released.night, policy=policy), released.address))


@pytest.fixture
def copied(released: Released, tmp_path: Path) -> Released:
    """The released night in a place of its own, to which more can be charged."""
    for name, source in (("tables", released.night.tables.root), ("events", released.address)):
        shutil.copytree(source, tmp_path / name)
    night = replace(
        released.night, tables=PrivateTables(str(tmp_path / "tables")), keys=KeyStore(tmp_path / "tables" / "private" / "keys")
    )
    return replace(released, night=night, address=str(tmp_path / "events"))


def test_changed_events_or_another_k_are_a_new_charge_with_a_new_key(copied, monkeypatch):
    monkeypatch.setattr(pipeline, "_write_sample", lambda *arguments: None)
    pq.write_table(events({"late": 1}), f"{copied.address}/late.parquet")
    changed = run_bound(copied.night, copied.address)
    other_k = run_bound(replace(copied.night, policy=policy_of(measured=True, k=4)), copied.address)
    entries = copied.night.ledger.entries()
    assert [entry.entry for entry in entries] == [copied.entry.entry, changed.entry, other_k.entry]
    assert entries[1].input_version == entries[2].input_version != copied.entry.input_version
    assert len({copied.key, *(copied.night.keys.key_of(entry.entry)._secret for entry in entries[1:])}) == 3


def test_events_that_change_while_they_are_read_are_refused_and_can_be_charged_again(copied, monkeypatch):
    monkeypatch.setattr(
        pipeline,
        "_write_sample",
        lambda *arguments: pq.write_table(events({"late": 1}), f"{copied.address}/{uuid.uuid4()}.parquet"),
    )
    pq.write_table(events({"early": 1}), f"{copied.address}/early.parquet")
    with pytest.raises(InputError, match="changed while they were read"):
        run_bound(copied.night, copied.address)
    assert len(copied.night.ledger.entries()) == 2


@dataclass(frozen=True)
class Unfinished:
    """A night on a Delta table without a usable row of that night, killed after the charge and again before its key was
    destroyed; the table grew in between."""

    night: Collection
    address: str
    charged: Entry
    key: bytes


@pytest.fixture(scope="module")
def unfinished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Unfinished:
    place = tmp_path_factory.mktemp("unfinished")
    address = str(place / "events")
    deltalake.write_deltalake(address, events())
    night = night_of(spark, policy_of(), place / "tables", EMPTY)
    with pytest.MonkeyPatch.context() as crash, pytest.raises(Killed):
        crash.setattr(pipeline, "_write_sample", kill)
        run_bound(night, address)
    (charged,) = night.ledger.entries()
    key = (place / "tables" / "private" / "keys" / charged.entry).read_bytes()
    deltalake.write_deltalake(address, events({"late": 7}), mode="append")
    with pytest.MonkeyPatch.context() as crash, pytest.raises(Killed):
        crash.setattr(KeyStore, "destroy", kill)
        collect(night, address)
    return Unfinished(night, address, charged, key)


def test_a_night_without_a_usable_row_is_released_like_any_other(unfinished, released):
    night = unfinished.night
    noisy = night.tables.load("noisy").sort_by("slice")
    assert noisy.schema.equals(released.noisy.schema)
    assert noisy["slice"].to_pylist() == [0, 1, 2, 3]
    assert noisy["noisy_event_count"].to_pylist() == [1000] * 4
    assert noisy["scale"].to_pylist() == ["150/49"] * 4
    values = np.frombuffer(b"".join(noisy["values"].to_pylist()), "<i4")
    assert len(values) == 4 * 64 and np.count_nonzero(values) > 128, "empty cells have noise"
    assert exact_counts(night, unfinished.charged).sum() == 0
    assert counters_of(night)["dropped_outside_period"] == sum(EVENTS_OF.values())


def test_an_unfinished_release_goes_on_at_its_version_and_key_though_the_table_has_grown(unfinished):
    night = unfinished.night
    assert night.ledger.entries() == [unfinished.charged]
    assert counters_of(night)["rows_in_input"] == sum(EVENTS_OF.values())
    assert night.keys.key_of(unfinished.charged.entry)._secret == unfinished.key


def test_a_run_that_finds_its_sample_committed_by_another_run_goes_on(unfinished, monkeypatch):
    monkeypatch.setattr(PrivateTables, "is_committed", lambda *arguments: False)
    assert run_bound(unfinished.night, unfinished.address) == unfinished.charged


@pytest.fixture
def resumed(unfinished: Unfinished, tmp_path: Path) -> Collection:
    """The unfinished night in a place of its own."""
    shutil.copytree(unfinished.night.tables.root, tmp_path / "tables")
    return night_of(unfinished.night.spark, unfinished.night.policy, tmp_path / "tables", EMPTY)


def test_noise_that_was_committed_before_a_crash_is_not_drawn_again_and_its_key_is_destroyed(unfinished, resumed, monkeypatch):
    noisy = resumed.tables.load("noisy")
    run_noise(resumed, unfinished.charged)
    assert resumed.tables.load("noisy").equals(noisy)
    with pytest.raises(KeyDestroyed):
        resumed.keys.key_of(unfinished.charged.entry)
    monkeypatch.setattr(pipeline, "_write_sample", lambda *arguments: None)
    assert run_bound(resumed, unfinished.address) != unfinished.charged, "once released, the grown table is a new release"
    assert len(resumed.ledger.entries()) == 2


def test_no_key_of_a_committed_release_outlives_the_next_run(unfinished, resumed, monkeypatch):
    monkeypatch.setattr(pipeline, "_write_sample", lambda *arguments: None)
    run_bound(resumed, unfinished.address)
    with pytest.raises(KeyDestroyed):
        resumed.keys.key_of(unfinished.charged.entry)


@pytest.fixture(scope="module")
def catalog(spark: SparkSession) -> Iterator[str]:
    """A place in the session's catalog that is dropped afterwards."""
    schema = f"hz{uuid.uuid4().hex[:8]}"
    yield f"spark_catalog.{schema}"
    for name in (schema, f"{schema}_private"):
        spark.sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture(scope="module")
def in_catalog(released: Released, catalog: str, tmp_path_factory: pytest.TempPathFactory) -> Released:
    """The same night released into the catalog, in a window that has room for three."""
    night = night_of(released.night.spark, policy_of(cap="3"), catalog, keys=tmp_path_factory.mktemp("keys"))
    entry = collect(night, released.address)
    return Released(night, released.address, entry, b"", noisy_in_catalog(night))


def noisy_in_catalog(night: Collection) -> pa.Table:
    return night.spark.table(night.tables.address("noisy")).toArrow().sort_by("slice")


def test_a_night_in_a_catalog_is_released_with_public_and_private_tables_apart(in_catalog, catalog):
    noisy, spark = in_catalog.noisy, in_catalog.night.spark
    assert noisy.column_names == NOISY.column_names
    assert noisy["slice"].to_pylist() == [0, 1, 2, 3]
    assert set(noisy["entry"].to_pylist()) == {in_catalog.entry.entry}
    assert [len(values) for values in noisy["values"].to_pylist()] == [256] * 4
    assert {table.name for table in spark.catalog.listTables(catalog)} == {"ledger", "noisy"}
    assert {table.name for table in spark.catalog.listTables(f"{catalog}_private")} == {"sample", "histogram", "counters"}
    with pytest.raises(KeyDestroyed):
        in_catalog.night.keys.key_of(in_catalog.entry.entry)


def test_a_second_run_in_a_catalog_charges_nothing_and_appends_nothing(in_catalog):
    night = in_catalog.night
    assert collect(night, in_catalog.address) == in_catalog.entry
    night.tables.append_once("noisy", night.spark.table(night.tables.address("noisy")), f"{in_catalog.entry.entry}:noisy")
    assert noisy_in_catalog(night).equals(in_catalog.noisy)
    assert night.ledger.entries() == [in_catalog.entry]


@pytest.fixture(scope="module")
def crowd(in_catalog: Released) -> list[str]:
    """What four threads met that charged the catalog's ledger at once, each for a day of its own."""
    night = in_catalog.night

    def charge(day: int) -> str:
        try:
            night.ledger.charge(night.policy, f"2026-01-1{day}", "files:1:1")
        except BudgetExhausted:
            return "refused"
        except Exception as error:
            return type(error).__name__
        return "granted"

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(charge, range(4)))


def test_threads_that_charge_a_catalog_at_once_are_granted_exactly_what_the_cap_leaves(in_catalog, crowd):
    assert sorted(crowd) == ["granted", "granted", "refused", "refused"]
    rows = in_catalog.night.spark.table(in_catalog.night.tables.address("ledger")).orderBy("sequence").collect()
    granted = [f"2026-01-1{day}" for day, met in enumerate(crowd) if met == "granted"]
    assert sorted(row["period"] for row in rows) == [PERIOD, *granted]
    assert [row["sequence"] for row in rows] == [1, 2, 3]


def conflict(spark: SparkSession, name: str) -> Callable[..., None]:
    """Lets the JVM throw Delta's exception `name`, as a commit that lost does."""
    kind = name.removeprefix("Concurrent").removesuffix("Exception").upper()
    thrown = getattr(spark._jvm.io.delta.exceptions, name)(f"[DELTA_CONCURRENT_{kind}] {name}: another commit came first")
    return lambda *arguments: spark._jvm.scala.util.Failure(thrown).get()


def test_a_charge_whose_commit_lost_to_another_is_not_added_and_no_error(in_catalog, monkeypatch):
    log = in_catalog.night.tables.ledger_log(in_catalog.night.spark)
    (*_, row) = log.read()
    monkeypatch.setattr(SparkSession, "sql", conflict(in_catalog.night.spark, "ConcurrentAppendException"))
    assert log.add(row) is False


def test_an_append_whose_commit_lost_to_one_with_the_same_token_is_done(released, monkeypatch):
    monkeypatch.setattr(DataFrameWriter, "save", conflict(released.night.spark, "ConcurrentTransactionException"))
    frame = released.night.spark.createDataFrame(released.noisy)
    released.night.tables.append_once("noisy", frame, f"{released.entry.entry}:noisy")


def test_a_ledger_in_a_catalog_is_serializable_from_its_first_commit(spark, catalog):
    tables = PrivateTables(f"{catalog}_private")
    tables.create("ledger", spark)
    properties = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {catalog}_private.ledger").collect()}
    assert properties.get("delta.isolationLevel") == "Serializable"
