"""Events as they come in: what they must look like, which version of them is read, which rows are usable."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from heathaze.errors import InputError
from heathaze.policy import Policy
from heathaze.session import SPARK_ERRORS
from heathaze.tables import is_catalog_name

if TYPE_CHECKING:
    from heathaze.grid import Grid, Period

_NUMBERS = (T.DoubleType, T.FloatType, T.DecimalType)
_IDS = (T.StringType, T.LongType, T.IntegerType, T.ShortType)
_TIMES = (T.TimestampType, T.TimestampNTZType)


@dataclass(frozen=True)
class Source:
    """Where events come from, and which version of them."""

    address: str
    """Path, URI or catalog name."""
    kind: str
    """delta, table, parquet or csv."""
    version: str
    """What the ledger calls this state of the input; equal versions mean equal rows."""


def find_source(spark: SparkSession, address: str, policy: Policy, period: Period) -> Source:
    """What `address` holds, and its version now. Reads no event."""
    kind = _kind_of(address)
    try:
        if kind in ("delta", "table"):
            return Source(address, kind, _delta_version(spark, address, kind))
        version = _fingerprint(spark, address, _partition_filter(policy, period))
    except SPARK_ERRORS as error:
        raise InputError(f"the events at {address} cannot be read as {kind}: {_reason(error)}.") from None
    if policy.dataset.partition and version.startswith("files:0:"):
        raise _no_partition(address, policy, period)
    return Source(address, kind, version)


def read_source(spark: SparkSession, source: Source, policy: Policy, period: Period) -> DataFrame:
    """The events of `source` as user_id, event_time, lat, lon; raises InputError where columns or types are wrong.

    Sensitivity: adding or removing one user adds or removes that user's rows only.
    """
    try:
        events = _open(spark, source)
    except SPARK_ERRORS as error:
        raise InputError(f"the events at {source.address} cannot be read as {source.kind}: {_reason(error)}.") from None
    if policy.dataset.partition:
        events = _one_partition(events, source, policy, period)
    columns = _checked_columns(events, source, policy)
    return events.select(
        columns["user"].cast("string").alias("user_id"),
        columns["time"].cast("timestamp").alias("event_time"),
        columns["lat"].cast("double").alias("lat"),
        columns["lon"].cast("double").alias("lon"),
    )


def has_user() -> Column:
    """Whether the row names a user."""
    return F.col("user_id").isNotNull() & (F.col("user_id") != "")


def has_place() -> Column:
    """Whether the coordinates exist on Earth; NaN compares above every number in Spark."""
    return F.coalesce(F.col("lat").between(-90, 90) & F.col("lon").between(-180, 180), F.lit(False))


def is_inside(grid: Grid) -> Column:
    """Whether the point lies in the box of the grid."""
    lat, lon = F.col("lat"), F.col("lon")
    return (lat >= grid.south) & (lat < grid.north) & (lon >= grid.west) & (lon < grid.east)


def is_during(period: Period) -> Column:
    """Whether the event lies in the period."""
    return (F.col("event_time") >= F.lit(period.start)) & (F.col("event_time") < F.lit(period.end))


def usable(events: DataFrame, grid: Grid, period: Period) -> DataFrame:
    """The rows that may be sampled: a user, a place in the box, a time in the period.

    Dropping comes before sampling, so that rows which count for nothing never take the place of rows that count.
    Sensitivity: row by row, so adding or removing one user adds or removes that user's rows only.
    """
    return events.where(is_during(period) & is_inside(grid) & has_user())


def tallies(grid: Grid) -> list[Column]:
    """Counters of the rows of the period: private, for the operator's private table alone."""
    place, inside = has_place(), F.coalesce(is_inside(grid), F.lit(False))
    return [
        F.count(F.lit(1)).alias("rows_of_period"),
        F.count_if(~has_user()).alias("dropped_without_user"),
        F.count_if(has_user() & ~place).alias("dropped_impossible_place"),
        F.count_if(has_user() & place & ~inside).alias("dropped_outside_box"),
    ]


def _kind_of(address: str) -> str:
    if is_catalog_name(address, parts=3) or (is_catalog_name(address, parts=2) and not _suffix(address)):
        return "table"
    path = Path(address.removeprefix("file:"))
    is_local = "://" not in address
    if is_local and not path.exists():
        raise InputError(f"the events must be a Delta table, Parquet or CSV, but there is nothing at {address}.")
    if is_local and (path / "_delta_log").is_dir():
        return "delta"
    if _suffix(address):
        return _suffix(address)
    if is_local:
        suffixes = {_suffix(name) for _, _, names in os.walk(path) for name in names if not name.startswith(("_", "."))}
        if len(suffixes) == 1 and suffixes != {""}:
            return suffixes.pop()
        raise InputError(
            f"the events must be a Delta table, Parquet or CSV, but the files in {address} are "
            + ("of different kinds." if suffixes - {""} else "none of these.")
        )
    return "delta"


def _suffix(name: str) -> str:
    for suffix, kind in ((".parquet", "parquet"), (".csv", "csv"), (".csv.gz", "csv")):
        if name.endswith(suffix):
            return kind
    return ""


def _open(spark: SparkSession, source: Source) -> DataFrame:
    if source.kind in ("delta", "table"):
        reader = spark.read.format("delta").option("versionAsOf", source.version.rpartition(":")[2])
        return reader.table(source.address) if source.kind == "table" else reader.load(source.address)
    if source.kind == "parquet":
        return spark.read.parquet(source.address)
    # All columns as text: a value that does not parse becomes null and is dropped, never an error with the value in it.
    _check_headers(source.address)
    return spark.read.option("header", True).option("enforceSchema", False).csv(source.address)


def _check_headers(address: str) -> None:
    """Spark takes the columns of further CSV files by their place, so all files must begin with the same line."""
    path = Path(address.removeprefix("file:"))
    files = [one for one in sorted(path.rglob("*")) if _suffix(one.name)] if path.is_dir() else []
    headers = set()
    for file in files:
        with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
            headers.add(lines.readline().strip())
    if len(headers) > 1:
        raise InputError(f"the CSV files in {address} must have the same columns in the same order, but they differ.")


def _delta_version(spark: SparkSession, address: str, kind: str) -> str:
    from delta.tables import DeltaTable

    table = DeltaTable.forName(spark, address) if kind == "table" else DeltaTable.forPath(spark, address)
    latest = table.history(1).select("version").first()
    identity = table.detail().select("id").first()
    assert latest is not None and identity is not None
    return f"delta:{identity['id']}:{latest['version']}"


def _fingerprint(spark: SparkSession, address: str, path_part: str) -> str:
    """Names, sizes and times of the files, without opening one."""
    files = spark.read.format("binaryFile").option("recursiveFileLookup", True).load(address)
    if path_part:
        files = files.where(F.col("path").contains(path_part))
    stamp = F.xxhash64("path", "length", F.unix_micros("modificationTime"))
    total = files.select(F.sum(stamp.cast("decimal(38,0)")).alias("sum"), F.count(F.lit(1)).alias("files")).first()
    assert total is not None
    return f"files:{total['files']}:{total['sum']}"


def _partition_filter(policy: Policy, period: Period) -> str:
    return f"/{policy.dataset.partition}={period.name}/" if policy.dataset.partition else ""


def _one_partition(events: DataFrame, source: Source, policy: Policy, period: Period) -> DataFrame:
    """The partition of the period; whether it exists is shape, and is read from the listing, not from rows."""
    name = policy.dataset.partition
    if name not in events.columns:
        raise InputError(f"the events at {source.address} must be partitioned by '{name}', but have no such column.")
    chosen = events.where(F.col(name).cast("string") == period.name)
    if not chosen.inputFiles():  # for files, the fingerprint has told already
        raise _no_partition(source.address, policy, period)
    return chosen


def _no_partition(address: str, policy: Policy, period: Period) -> InputError:
    return InputError(
        f"the events at {address} must have a partition {policy.dataset.partition}={period.name}, but there is none. "
        "Wait until it is written, or check --period."
    )


def _checked_columns(events: DataFrame, source: Source, policy: Policy) -> dict[str, Column]:
    wanted = {part: getattr(policy.dataset, part) for part in ("user", "time", "lat", "lon")}
    missing = [name for name in wanted.values() if name not in events.columns]
    if missing:
        raise InputError(
            f"the events at {source.address} must have the columns {', '.join(wanted.values())}, but "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing. Name your columns in [dataset] of the policy."
        )
    if source.kind == "csv":
        kinds = {"user": "string", "time": "timestamp", "lat": "double", "lon": "double"}
        return {part: F.col(f"`{name}`").try_cast(kinds[part]) for part, name in wanted.items()}
    allowed = {"user": (_IDS, "text or whole numbers"), "time": (_TIMES, "timestamps")}
    for part, name in wanted.items():
        kinds_allowed, words = allowed.get(part, (_NUMBERS, "floating point or decimal numbers"))
        found = events.schema[name].dataType
        if not isinstance(found, kinds_allowed):
            raise InputError(
                f"the column '{name}' of the events at {source.address} must hold {words}, but it holds {found.simpleString()}."
            )
    return {part: F.col(f"`{name}`") for part, name in wanted.items()}


def _reason(error: Exception) -> str:
    """The kind of a Spark error without its text, which may quote rows."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return condition or type(error).__name__
