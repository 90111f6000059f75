"""The private side, stage by stage: charge before touch, then bound, count, noise.

Every stage finishes with one commit that happens exactly once per ledger entry, so any of them can be killed at any moment
and run again, by one process or by two at once. What is committed first is what holds: one key, one histogram, one
noisy table.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from heathaze.collect import bound as bounding
from heathaze.collect import events as incoming
from heathaze.collect import noise as noising
from heathaze.collect.count import all_slices, coarser, count, place
from heathaze.collect.entropy import MAP, KeyStore, NoiseKey, self_check
from heathaze.collect.ledger import Entry, Ledger
from heathaze.collect.private import PrivateTables
from heathaze.errors import InputError, KeyDestroyed
from heathaze.grid import Grid, Period
from heathaze.policy import Policy


@dataclass(frozen=True)
class Collection:
    """What one night's private side works with."""

    spark: SparkSession
    policy: Policy
    period: Period
    tables: PrivateTables
    keys: KeyStore
    say: Callable[[str], None]
    """Called with one sentence as each step begins; never with anything from the data."""
    files: Path | None = None
    """Folder for the gate's Data Docs; none: no page is kept."""
    granted: set[str] = field(default_factory=set)
    """Entries that this run charged itself; what another run charged, before it or at the same time, is not among them."""

    @property
    def grid(self) -> Grid:
        return self.policy.grid.build()

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.tables.ledger_log(self.spark))


def run_gate_events(night: Collection, events_address: str) -> None:
    """Judge the shape of the events: columns and types, never values. Nothing is charged yet."""
    from heathaze.release.gate import judge_events, require
    from heathaze.release.pipeline import record

    night.say("judging the shape of the events")
    night.tables.check_versions(night.spark)
    assert night.files is not None, "the gate keeps its Data Docs in a folder"
    source = incoming.find_source(night.spark, events_address, night.policy, night.period)
    events = incoming.read_source(night.spark, source, night.policy, night.period)
    docs = night.files / "gates" / f"{night.policy.dataset.name}-{night.period.name}-events"
    verdict = judge_events(events, docs)
    record(night.tables, night.policy, night.period.name, verdict, spark=night.spark)
    require(verdict)


def run_bound(night: Collection, events_address: str) -> Entry:
    """Check the input's shape, charge the ledger, then bound each user's events into the private sample."""
    night.say("checking the shape of the events")
    source = incoming.find_source(night.spark, events_address, night.policy, night.period)
    incoming.read_source(night.spark, source, night.policy, night.period)
    night.say("testing the noise sampler")
    _check_sampler(night.policy)
    night.say("charging the ledger")
    night.tables.check_versions(night.spark)
    night.keys.prepare()
    _destroy_spent_keys(night)
    entry, source = _charge(night, source)
    if is_released(night, entry) or _is_done(night, "histogram", entry):
        return entry
    key = _key(night, entry)
    if key is None:
        return entry
    salt = key.salt()
    partitions = bounding.PARTITIONS_PER_CORE * night.spark.sparkContext.defaultParallelism
    places = night.grid.cells * night.period.slices
    settings = bounding.BoundSettings(night.policy.privacy.max_events_per_user, salt, places, partitions)
    night.say(f"keeping at most {settings.max_events_per_user} events of each user")
    events = incoming.read_source(night.spark, source, night.policy, night.period)
    _write_sample(night, entry, events, settings)
    if source.kind in ("parquet", "csv"):
        now = incoming.find_source(night.spark, events_address, night.policy, night.period)
        if now.version != source.version:
            raise InputError(f"the events at {events_address} changed while they were read: run again when they are complete.")
    return entry


def run_count(night: Collection, entry: Entry) -> None:
    """Check the bound on the sample as it was written, then count it on the public grid."""
    if is_released(night, entry) or _is_done(night, "histogram", entry):
        return
    if not _is_done(night, "sample", entry):
        raise InputError(f"the events of {entry.dataset}/{entry.period} are not bounded yet: run bound first.")
    night.say("checking the bound on what was written")
    sample = night.tables.read("sample", night.spark).where(F.col("entry") == entry.entry)
    bounding.check_bound(sample, night.policy.privacy.max_events_per_user)
    night.say("counting events on the grid")
    histogram = count(sample, night.grid).withColumn("entry", F.lit(entry.entry))
    night.tables.append_once("histogram", histogram, token=_token(entry, "histogram"))


def run_noise(night: Collection, entry: Entry) -> None:
    """Add noise to every cell, and to the map of the period where there is one, and write them; then the key is destroyed."""
    if not is_released(night, entry):
        if not _is_done(night, "histogram", entry):
            raise InputError(f"the events of {entry.dataset}/{entry.period} are not counted yet: run count first.")
        privacy, key = night.policy.privacy, _key(night, entry)
        if key is None:
            return
        night.say("testing the noise sampler")
        _check_sampler(night.policy)
        grid, side = night.policy.grid.of_slices(), night.policy.grid.coarser
        night.say(f"drawing noise for {grid.cells * night.period.slices:,} cells")
        histogram = night.tables.read("histogram", night.spark).where(F.col("entry") == entry.entry)
        settings = noising.NoiseSettings(privacy.histogram_scale, key, grid, night.period.slices)
        totals = noising.noisy_totals(_totals(histogram, night.period.slices), privacy, key)
        event_count = privacy.declared_event_count
        if event_count is None:
            event_count = noising.noisy_event_count(_counter(night, entry, "clipped_event_count"), privacy, key)
        every_slice = list(zip(range(night.period.slices), night.period.edges[:-1], totals, strict=True))
        slices = night.spark.createDataFrame(every_slice, "slice int, starts_at timestamp, noisy_total bigint")
        counted = histogram if side == 1 else coarser(histogram, night.grid, side)
        noisy = noising.add_noise(counted, settings).join(F.broadcast(slices), on="slice", how="inner")
        of_map = None if privacy.map_scale is None else noising.NoiseSettings(privacy.map_scale, key, night.grid, 1, MAP)
        noisy = _with_map(noisy, histogram, of_map).select(
            "slice",
            "starts_at",
            "values",
            "noisy_total",
            F.lit(entry.entry).alias("entry"),
            F.lit(entry.dataset).alias("dataset"),
            F.lit(entry.period).alias("period"),
            F.lit(entry.measurement).alias("measurement"),
            F.lit(grid.rows).alias("rows"),
            F.lit(grid.cols).alias("cols"),
            F.lit(str(privacy.histogram_scale)).alias("scale"),
            F.lit(str(privacy.totals_scale)).alias("total_scale"),
            F.lit(event_count).cast("bigint").alias("noisy_event_count"),
            F.lit(json.dumps(statements(night.policy))).alias("statements"),
            F.lit(None if privacy.map_scale is None else str(privacy.map_scale)).cast("string").alias("map_scale"),
            "map",
        )
        night.tables.append_once("noisy", noisy, token=_token(entry, "noisy"))
    night.keys.destroy(entry.entry)


def _check_sampler(policy: Policy) -> None:
    """Test the noise sampler at the scale of cells, and at that of the map where there is one."""
    self_check(policy.privacy.histogram_scale)
    if policy.privacy.map_scale is not None:
        self_check(policy.privacy.map_scale)


def _with_map(noisy: DataFrame, histogram: DataFrame, settings: noising.NoiseSettings | None) -> DataFrame:
    """The noisy slices with a column `map`: in slice 0 the noisy counts of the whole period; null where there is no such map."""
    if settings is None:
        return noisy.withColumn("map", F.lit(None).cast("binary"))
    noisy_map = noising.add_noise(all_slices(histogram), settings).withColumnRenamed("values", "map")
    return noisy.join(F.broadcast(noisy_map), on="slice", how="left")


def statements(policy: Policy) -> list[dict[str, str]]:
    """What each stage that touches people's data does, and with which sensitivity: from the docstrings of the code that ran."""
    stages = [incoming.usable, place, bounding.bound, count, noising.add_noise, noising.noisy_totals]
    if policy.privacy.map_scale is not None:
        stages[4:4] = [coarser, all_slices]
    if policy.privacy.max_counted_per_user is not None:
        stages.append(noising.noisy_event_count)
    told = []
    for stage in stages:
        text = " ".join((inspect.getdoc(stage) or "").split())
        does, _, sensitivity = text.partition("Sensitivity: ")
        told.append({"stage": stage.__name__, "does": does.strip(), "sensitivity": sensitivity})
    return told


def is_released(night: Collection, entry: Entry) -> bool:
    """Whether the noisy table of this entry is committed: then nothing of the private side runs again."""
    return _is_done(night, "noisy", entry)


def _charge(night: Collection, source: incoming.Source) -> tuple[Entry, incoming.Source]:
    """Charge this release, or take up an unfinished charge for an earlier version of the same Delta table.

    A table that grows all day has a new version after a crash; its old one can still be read, so nothing is spent twice.
    """
    earlier = night.ledger.find(night.policy, night.period.name)
    table, _, _ = source.version.rpartition(":")
    is_same_table = earlier is not None and source.kind in ("delta", "table") and earlier.input_version.startswith(f"{table}:")
    if earlier is not None and is_same_table and not is_released(night, earlier):
        pinned = incoming.Source(source.address, source.kind, earlier.input_version)
        incoming.read_source(night.spark, pinned, night.policy, night.period)
        return earlier, pinned
    entry, is_new = night.ledger.charge(night.policy, night.period.name, source.version)
    if is_new:
        night.granted.add(entry.entry)
    return entry, source


def _key(night: Collection, entry: Entry) -> NoiseKey | None:
    """The key of this entry; None where another run has released it and destroyed the key just now."""
    try:
        return night.keys.key_of(entry.entry)
    except KeyDestroyed:
        if is_released(night, entry):
            return None
        raise


def _destroy_spent_keys(night: Collection) -> None:
    """Destroy keys that a crash left behind after their noisy tables were committed."""
    for entry_id in night.keys.living():
        if night.tables.is_committed("noisy", f"{entry_id}:noisy", night.spark):
            night.keys.destroy(entry_id)


def _write_sample(night: Collection, entry: Entry, events: DataFrame, settings: bounding.BoundSettings) -> None:
    """Materialise the sample, and count what was dropped."""
    usable = place(incoming.usable(events, night.grid, night.period), night.grid, night.period)
    if not _is_done(night, "sample", entry):
        bounding.make_room(night.spark, settings)
        sample = bounding.bound(usable, settings).withColumn("entry", F.lit(entry.entry))
        night.tables.append_once("sample", sample, token=_token(entry, "sample"))
    _write_tallies(night, entry, events)
    if night.policy.privacy.max_counted_per_user is not None:
        _write_counters(night, entry, "event_count", {"clipped_event_count": _clipped_event_count(usable, night.policy)})


def _write_tallies(night: Collection, entry: Entry, events: DataFrame) -> None:
    """Count what was dropped and why, into the private counters."""
    seen = events.where(incoming.is_during(night.period)).agg(*incoming.tallies(night.grid)).first()
    assert seen is not None
    rows = events.count()
    counters = {**seen.asDict(), "rows_in_input": rows, "dropped_outside_period": rows - seen["rows_of_period"]}
    _write_counters(night, entry, "rows", counters)


def _clipped_event_count(usable: DataFrame, policy: Policy) -> int:
    """Usable events, at most `max_counted_per_user` of each user."""
    per_user = usable.groupBy("user_id").agg(F.count(F.lit(1)).alias("events"))
    return _total(per_user.select(F.least("events", F.lit(policy.privacy.max_counted_per_user)).alias("count")))


def _totals(histogram: DataFrame, slices: int) -> list[int]:
    """Events of each slice; at most one number per slice comes to the driver."""
    found = {row["slice"]: int(row["total"]) for row in histogram.groupBy("slice").agg(F.sum("count").alias("total")).collect()}
    return [found.get(number, 0) for number in range(slices)]


def _total(counts: DataFrame) -> int:
    row = counts.agg(F.coalesce(F.sum("count"), F.lit(0)).alias("total")).first()
    assert row is not None
    return int(row["total"])


def _write_counters(night: Collection, entry: Entry, group: str, values: dict[str, int]) -> None:
    rows = [{"entry": entry.entry, "name": name, "value": int(value)} for name, value in values.items()]
    night.tables.append_rows_once("counters", rows, _token(entry, group), night.spark)


def _counter(night: Collection, entry: Entry, name: str) -> int:
    counters = night.tables.read("counters", night.spark)
    row = counters.where((F.col("entry") == entry.entry) & (F.col("name") == name)).first()
    assert row is not None
    return int(row["value"])


def _token(entry: Entry, stage: str) -> str:
    return f"{entry.entry}:{stage}"


def _is_done(night: Collection, table: str, entry: Entry) -> bool:
    return night.tables.is_committed(table, _token(entry, table), night.spark)
