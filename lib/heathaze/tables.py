"""The only file that knows Delta.

`Tables("some/folder")` keeps every table in a folder, or under any URI that Spark and delta-rs know;
`Tables("catalog.schema")` keeps them in a catalog. Jobs are the same for both.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import functions as F

from heathaze.errors import HeathazeError, InputError, storage_error
from heathaze.schemas import LEDGER, PUBLIC, SCHEMA_VERSION, TableSchema
from heathaze.session import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DESCRIPTION = "heathaze, schema version "
"""A table's description carries its schema version: Spark and delta-rs both write and read it."""

_UNCHARGED = "run the same command again: nothing was charged"
"""What to do where the ledger could not be written."""

_ATTEMPTS = 20
"""Tries of one append against concurrent ones."""


_PLAIN = deltalake.WriterProperties(
    compression="UNCOMPRESSED", default_column_properties=deltalake.ColumnProperties(dictionary_enabled=False)
)
"""Tensors hold noise, which hardly shrinks, and are read far more often than written: 8 times as fast without compression."""


class Tables:
    """The tables that any stage may read, and where they are kept."""

    schemas: Mapping[str, TableSchema] = PUBLIC

    def __init__(self, root: str):
        self.root = root.rstrip("/") or "/"
        self.in_catalog = is_catalog_name(root, parts=2)
        if not self.in_catalog and Path(self.root).is_file():
            raise InputError(f"--tables must name a folder or catalog.schema, but {root} is a file.")

    def address(self, name: str) -> str:
        """Path or full name of a table."""
        schema = self.schemas[name]
        return f"{self.root}.{schema.name}" if self.in_catalog else f"{self.root}/{schema.name}"

    def exists(self, name: str, spark: SparkSession | None = None) -> bool:
        address = self.address(name)
        if self.in_catalog:
            assert spark is not None
            return spark.catalog.tableExists(address)
        return deltalake.DeltaTable.is_deltatable(address)

    def create(self, name: str, spark: SparkSession | None = None) -> None:
        """Make the table if it is not there; refuse one of another schema version."""
        if self.exists(name, spark):
            self._check_version(name, spark)
            return
        schema, address = self.schemas[name], self.address(name)
        properties = {} if schema.indexed else {"delta.dataSkippingNumIndexedCols": "0"}
        properties |= {"delta.isolationLevel": "Serializable"} if schema.serializable else {}
        description = f"{_DESCRIPTION}{SCHEMA_VERSION}"
        if not self.in_catalog:
            try:
                with _writing(address):
                    deltalake.DeltaTable.create(
                        address,
                        _arrow_schema(schema),
                        mode="error",
                        partition_by=schema.partition or None,
                        description=description,
                        configuration=properties,
                    )
            except DeltaError:
                if not self.exists(name):  # else another process made it
                    raise
            self._check_version(name)
            return
        assert spark is not None
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {address.rpartition('.')[0]}")
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {address} ({schema.columns}) USING delta COMMENT '{description}'"
            + (f" PARTITIONED BY ({schema.partition})" if schema.partition else "")
            + (f" TBLPROPERTIES ({listed})" if listed else "")
        )

    def check_versions(self, spark: SparkSession) -> None:
        """Refuse a place whose tables another version of heathaze wrote, before anything is done there."""
        for name in self.schemas:
            if self.exists(name, spark):
                self._check_version(name, spark)

    def read(self, name: str, spark: SparkSession) -> DataFrame:
        """The whole table as a DataFrame."""
        if not self.exists(name, spark):
            raise InputError(f"there is no table '{name}' in {self.root} yet: run the stage that writes it first.")
        self._check_version(name, spark)
        return spark.table(self.address(name)) if self.in_catalog else spark.read.format("delta").load(self.address(name))

    def append_once(self, name: str, frame: DataFrame, token: str) -> None:
        """Append `frame` unless an append with this token was committed before: one commit, exactly once.

        Of two processes that append with the same token at once, one commits and the other finds it done.
        """
        self._append(name, frame, token, mark=token)

    def _append(self, name: str, frame: DataFrame, token: str, mark: str) -> None:
        schema = self.schemas[name]
        self.create(name, frame.sparkSession)
        writer = frame.select(*schema.column_names).write.format("delta").mode("append")
        if schema.partition:
            writer = writer.partitionBy(schema.partition)
        writer = writer.option("txnAppId", token).option("txnVersion", 1).option("userMetadata", mark)
        try:
            with _writing(f"{self.address(name)} or the scratch folder of Spark"):
                writer.saveAsTable(self.address(name)) if self.in_catalog else writer.save(self.address(name))
        except SPARK_ERRORS as error:
            if not re.search("ConcurrentTransactionException|DELTA_CONCURRENT_TRANSACTION", str(error)):
                raise

    def append_rows_once(self, name: str, rows: list[dict[str, Any]], token: str, spark: SparkSession | None = None) -> bool:
        """The same for a handful of rows, in a folder without a Spark job; returns whether this call committed them."""
        if self.in_catalog:
            assert spark is not None
            # Delta skips an append whose token is committed without a word, so the commit carries a mark of its own.
            mark = f"{token} {uuid.uuid4().hex}"
            self._append(name, spark.createDataFrame(rows, self.schemas[name].columns), token, mark)
            return mark in self._marks(name, token, spark)
        self.create(name)
        once = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(token, 1)])
        arrow = pa.Table.from_pylist(rows, schema=_arrow_schema(self.schemas[name]))
        for _ in range(_ATTEMPTS):
            table = deltalake.DeltaTable(self.address(name))
            if table.transaction_version(token) is not None:
                return False
            try:
                with _writing(self.address(name)):
                    deltalake.write_deltalake(table, arrow, mode="append", commit_properties=once, writer_properties=_PLAIN)
                return True
            except CommitFailedError:  # another process committed meanwhile: look again
                continue
        raise HeathazeError(f"the table '{name}' was changed by others {_ATTEMPTS} times in a row: run again.")

    def is_committed(self, name: str, token: str, spark: SparkSession | None = None) -> bool:
        """Whether an append with this token was committed."""
        if not self.exists(name, spark):
            return False
        self._check_version(name, spark)
        if not self.in_catalog:
            return deltalake.DeltaTable(self.address(name)).transaction_version(token) is not None
        assert spark is not None
        return bool(self._marks(name, token, spark))

    def _marks(self, name: str, token: str, spark: SparkSession) -> list[str]:
        """The marks of the commits to a catalog table with this token: the token, and for rows what tells their call."""
        history = spark.sql(f"DESCRIBE HISTORY {self.address(name)}")
        same = history.where(F.substring_index(history["userMetadata"], " ", 1) == token)
        return [row["userMetadata"] for row in same.select("userMetadata").collect()]

    def storage(self, name: str, spark: SparkSession | None = None) -> str:
        """Where the files of a table are: what `load_rows` reads without a JVM."""
        if not self.in_catalog:
            return self.address(name)
        assert spark is not None
        detail = spark.sql(f"DESCRIBE DETAIL {self.address(name)}").first()
        assert detail is not None
        return str(detail["location"]).removeprefix("file:")

    def load(
        self, name: str, where: pc.Expression | None = None, columns: list[str] | None = None, spark: SparkSession | None = None
    ) -> pa.Table:
        """Rows of a table, without a Spark job; no rows where there is no table yet."""
        if not self.exists(name, spark):
            schema = _arrow_schema(self.schemas[name])
            return schema.empty_table().select(columns or schema.names)
        self._check_version(name, spark)
        return load_rows(self.storage(name, spark), where, columns)

    def load_singly(
        self, name: str, part: str, columns: list[str], spark: SparkSession | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one partition of a table, one by one, without a Spark job."""
        schema = self.schemas[name]
        if self.exists(name, spark):
            self._check_version(name, spark)
            yield from load_singly(self.storage(name, spark), pc.field(schema.partition) == part, columns)

    def ledger_log(self, spark: SparkSession | None = None) -> ConditionalLog:
        """The ledger's table, to which a row is added only if none was added since it was read."""
        if not self.in_catalog:
            return _FolderLog(self.address("ledger"))
        assert spark is not None, "a ledger in a catalog is written through Spark"
        self.create("ledger", spark)
        return _CatalogLog(self.address("ledger"), spark)

    def _check_version(self, name: str, spark: SparkSession | None = None) -> None:
        address = self.address(name)
        if self.in_catalog:
            assert spark is not None
            row = spark.sql(f"DESCRIBE DETAIL {address}").first()
            description = row["description"] if row is not None else None
        else:
            description = deltalake.DeltaTable(address).metadata().description
        check_schema_version(name, description)


@contextmanager
def _writing(place: str, *afterwards: str) -> Iterator[None]:
    """Name `place` where it is full or closed; other errors stay what they are."""
    try:
        yield
    except (DeltaError, OSError, *SPARK_ERRORS) as error:
        fault = storage_error(error, place, *afterwards)
        if fault is None:
            raise
        raise fault from None


_ARROW_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "array<bigint>": pa.list_(pa.int64()),
    "timestamp": pa.timestamp("us", "UTC"),
}


def _arrow_schema(schema: TableSchema) -> pa.Schema:
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in (column.split() for column in schema.columns.split(", "))])


def check_schema_version(name: str, description: str | None) -> None:
    """Refuse a table that another version of heathaze wrote."""
    found = (description or "").removeprefix(_DESCRIPTION)
    if found != str(SCHEMA_VERSION):
        raise InputError(
            f"the table '{name}' must have schema version {SCHEMA_VERSION}, but it has {found or 'none'}. "
            "Point --tables at a new place, or use the version of heathaze that wrote it."
        )


def load_rows(storage: str, where: pc.Expression | None = None, columns: list[str] | None = None) -> pa.Table:
    """Rows of the table whose files are at `storage`: each rank of a training job reads its own."""
    return _dataset(storage).to_table(filter=where, columns=columns)


def load_singly(storage: str, partitions: pc.Expression, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of some partitions one by one: large values are copied once, where a column would be grown again and again."""
    for fragment in _dataset(storage).get_fragments(partitions):
        file = fragment.filesystem.open_input_file(fragment.path)
        yield from pq.ParquetFile(file, pre_buffer=False).iter_batches(batch_size=1, columns=columns, use_threads=False)


def _dataset(storage: str) -> ds.Dataset:
    # A folder is mapped into memory; through delta-rs every byte would be copied twice more.
    local = fs.SubTreeFileSystem(storage, fs.LocalFileSystem(use_mmap=True)) if Path(storage).is_dir() else None
    return deltalake.DeltaTable(storage).to_pyarrow_dataset(filesystem=local)


def append_arrow(storage: str, rows: pa.Table) -> None:
    """Append rows to a Delta table that is not one of heathaze's own, such as synthetic events."""
    deltalake.write_deltalake(storage, rows, mode="append")


def is_catalog_name(text: str, parts: int) -> bool:
    """Whether `text` reads as catalog.schema (2 parts) or catalog.schema.table (3), and is no path."""
    return bool(re.fullmatch(rf"\w+(\.\w+){{{parts - 1}}}", text)) and not Path(text).exists()


class ConditionalLog(Protocol):
    """A small table to which rows are added one at a time, each conditional on everything before it."""

    def read(self) -> list[dict[str, Any]]:
        """All rows, in the order of their sequence, and remember where the table stood."""

    def add(self, row: dict[str, Any]) -> bool:
        """Add a row if the table still stands where `read` saw it; otherwise change nothing and return False."""


class _FolderLog:
    """The log as a Delta table written by delta-rs from the snapshot that was read.

    Appends never conflict, so a row is added by rewriting the (small) table: that removes the file the snapshot holds, and
    of two writers that remove the same file Delta lets one commit. The table always holds a file to remove, because
    its first commit writes the row of sequence 0.
    """

    def __init__(self, address: str):
        self._address = address
        self._table: deltalake.DeltaTable | None = None
        self._rows: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        if not deltalake.DeltaTable.is_deltatable(self._address):
            return []
        self._table = deltalake.DeltaTable(self._address)
        check_schema_version("ledger", self._table.metadata().description)
        rows = self._table.to_pyarrow_table().to_pylist()
        self._rows = sorted(rows, key=lambda row: row["sequence"])
        return [row for row in self._rows if row["sequence"] > 0]  # two processes may have begun the table at once

    def add(self, row: dict[str, Any]) -> bool:
        if self._table is None:
            self._begin()
            return False
        sequence = self._rows[-1]["sequence"]
        rows = [*self._rows, {**row, "sequence": int(sequence) + 1}]
        try:
            with _writing(f"the ledger {self._address}", _UNCHARGED):
                deltalake.write_deltalake(self._table, pa.Table.from_pylist(rows, schema=_arrow_schema(LEDGER)), mode="overwrite")
        except CommitFailedError:
            return False
        return True

    def _begin(self) -> None:
        first = dict.fromkeys(LEDGER.column_names, "")
        try:
            with _writing(f"the ledger {self._address}", _UNCHARGED):
                deltalake.write_deltalake(
                    self._address,
                    pa.Table.from_pylist([{**first, "sequence": 0}], schema=_arrow_schema(LEDGER)),
                    mode="error",
                    description=f"{_DESCRIPTION}{SCHEMA_VERSION}",
                )
        except (DeltaError, OSError) as error:
            if not deltalake.DeltaTable.is_deltatable(self._address):  # else another process began it
                raise InputError(f"the ledger {self._address} cannot be written: {error}.") from None


class _CatalogLog:
    """The log as a catalog table written by one Spark statement whose own snapshot holds the condition.

    MERGE inserts sequence m + 1 only where its snapshot has no such row yet; of two concurrent MERGEs that both saw none,
    Serializable isolation lets one commit.
    """

    def __init__(self, address: str, spark: SparkSession):
        self._address, self._spark = address, spark
        self._next = 1

    def read(self) -> list[dict[str, Any]]:
        rows = self._spark.table(self._address).orderBy("sequence").toJSON().collect()
        entries = [json.loads(row) for row in rows]
        self._next = entries[-1]["sequence"] + 1 if entries else 1
        return entries

    def add(self, row: dict[str, Any]) -> bool:
        source = self._spark.createDataFrame([{**row, "sequence": self._next}], LEDGER.columns)
        view = f"heathaze_charge_{row['entry']}"
        source.createOrReplaceTempView(view)
        columns = ", ".join(LEDGER.column_names)
        try:
            done = self._spark.sql(
                f"MERGE INTO {self._address} AS t USING {view} AS s ON t.sequence = s.sequence "
                f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({', '.join('s.' + c for c in LEDGER.column_names)})"
            ).first()
        except SPARK_ERRORS as error:
            if re.search(r"Concurrent\w*Exception|DELTA_CONCURRENT", f"{type(error).__name__} {error}"):
                return False
            raise
        finally:
            self._spark.catalog.dropTempView(view)
        return done is not None and done["num_inserted_rows"] == 1
