"""The Spark session: the cluster's own where there is one, an embedded local one elsewhere."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

SPARK_ERRORS = (PySparkException, Py4JJavaError)
"""What Spark raises: an error of the JVM that PySpark knows, or one that it does not."""

CLASSES = Path(sys.prefix) / "heathaze-classes.jsa"
"""The classes of a local session's JVM, kept by `make setup`: with them it starts in half the time."""


def start_spark(timezone: str = "UTC", **settings: str) -> SparkSession:
    """Return a session that reads and writes Delta, with `timezone` for times that carry no offset.

    On Databricks the running session is used as it is. Elsewhere: `local[*]`, Delta's jar from Maven (cached
    after the first time), no web UI, and no log unless HEATHAZE_SPARK_LOG names a file for it: what Spark logs may quote
    rows, and rows are about people.
    """
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        spark = SparkSession.builder.getOrCreate()
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for name in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):  # these quote rows on standard error
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        builder = SparkSession.builder.appName("heathaze")
        for name, value in {**_local_settings(), **settings}.items():
            builder = builder.config(name, value)
        with _quiet():
            spark = _with_delta(builder).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", timezone)
    return spark


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the JVM that is started meanwhile inherit a standard error that is not ours."""
    log = os.open(os.environ.get("HEATHAZE_SPARK_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    ours = os.dup(2)
    os.dup2(log, 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(log)


def _with_delta(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add Delta's jars: those that Ivy has cached, or by a look-up in Maven, which is slower and prints a page."""
    from delta import configure_spark_with_delta_pip

    cached = Path.home() / ".ivy2.5.2" / "jars"
    jars = [*cached.glob(f"io.delta_delta-*{version('delta-spark')}.jar"), *cached.glob("org.antlr_antlr4-runtime-*.jar")]
    if len(jars) < 3:
        return configure_spark_with_delta_pip(builder)
    return builder.config("spark.jars", ",".join(str(jar) for jar in jars))


def java_options() -> str:
    """Options for the JVM of a local session. It leaves kept classes alone where they do not fit, after an upgrade."""
    return f'-XX:SharedArchiveFile="{CLASSES}" -Xlog:disable' if CLASSES.exists() else ""


def keep_classes() -> None:
    """Write `CLASSES`: those of a session that writes and reads a Delta table."""
    with tempfile.TemporaryDirectory(dir=CLASSES.parent) as folder:
        kept = Path(folder) / CLASSES.name
        spark = start_spark(**{"spark.driver.extraJavaOptions": f'-XX:ArchiveClassesAtExit="{kept}" -Xlog:disable'})
        spark.range(1_000).groupBy((col("id") % 7).alias("id")).count().write.format("delta").save(f"{folder}/table")
        spark.read.format("delta").load(f"{folder}/table").toArrow()
        gateway: Any = spark.sparkContext._gateway
        jvm = gateway.proc
        spark.stop()
        # It ends when its standard input does, and writes the classes then.
        jvm.stdin.close()
        jvm.wait()
        if kept.exists():
            kept.replace(CLASSES)


def _local_settings() -> dict[str, str]:
    cores = os.cpu_count() or 2
    return {
        "spark.master": "local[*]",
        "spark.driver.memory": os.environ.get("HEATHAZE_DRIVER_MEMORY", "4g"),
        "spark.driver.extraJavaOptions": java_options(),
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(4 * cores),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), "heathaze-warehouse"),
        "spark.databricks.delta.snapshotPartitions": "2",
    }


if __name__ == "__main__":
    keep_classes()
