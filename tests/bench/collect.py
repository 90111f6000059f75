"""The private side: the sampler against numpy's, the bound against the plain window, cost against rows."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import date
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from heathaze.collect import bound as bounding
from heathaze.collect import entropy
from heathaze.collect import events as incoming
from heathaze.collect.count import cell_of, count, place, slice_of
from heathaze.collect.private import PrivateTables
from heathaze.evaluate.synthetic import City, batches
from heathaze.policy import load_policy
from heathaze.session import start_spark

POLICY = load_policy(Path(__file__).parents[2] / "conf" / "nightly.toml")
DAY = date(2026, 11, 14)
GRID = POLICY.grid.build()
USERS = 500_000
SALT = 12345
WORK = Path(tempfile.gettempdir()) / "heathaze-bench"


def sampler() -> list[dict[str, Any]]:
    """Exact noise on 576 x 576 x 96 cells, against numpy's float Laplace on the same number of cells, one core."""
    cells = 576 * 576 * 96
    rows = []
    for scale in (Fraction(1000, 47), Fraction(5), Fraction(250), Fraction(1000)):
        key, exact = entropy.NoiseKey.draw(), entropy.sampler(scale)
        ours = _best(lambda exact=exact, key=key: exact.sample(key, entropy.CELLS, 0, cells))
        numpys = _best(lambda scale=scale: np.random.default_rng().laplace(0, float(scale), cells))
        rows.append({"scale": f"{float(scale):g}", "exact_s": ours, "numpy_s": numpys, "ratio": round(ours / numpys, 2)})
    return rows


def bound() -> list[dict[str, Any]]:
    """bound + count on 20 M and 50 M power-law rows, against the plain row_number window in the same session.

    The plain window keeps events as they are and places them on the grid when it counts; "window of places" is the same window
    with one of our steps, placing before the shuffle.
    """
    spark = start_spark("UTC", **{"spark.driver.memory": "6g"})
    rows = []
    for millions in (20, 50):
        events = _city(spark, millions)
        ways = {"window": _plain, "window_of_places": _plain_places, "heathaze": _bounded}
        times: dict[str, list[float]] = {name: [] for name in ways}
        histograms = {}
        for _ in range(2):  # alternating, so that a slow minute of the machine hits both
            for name, way in ways.items():
                began = time.monotonic()
                histograms[name] = _bound_and_count(events, way, f"{name}-{millions}")
                times[name].append(time.monotonic() - began)
        ours = histograms["heathaze"]
        different = sum(h.exceptAll(ours).count() + ours.exceptAll(h).count() for h in histograms.values())
        best = {name: min(values) for name, values in times.items()}
        seconds = {f"{name}_s": round(value, 1) for name, value in best.items()}
        ratios = {f"of_{name}": round(best["heathaze"] / value, 2) for name, value in best.items() if name != "heathaze"}
        rows.append({"rows": f"{millions} M", **seconds, **ratios, "different_cells": different})
    spark.stop()
    return rows


def growth() -> list[dict[str, Any]]:
    """bound + count on 10, 20 and 40 M rows: seconds per million rows and peak memory of the JVM."""
    spark = start_spark("UTC", **{"spark.driver.memory": "6g"})
    rows = []
    _bound_and_count(_city(spark, 10), _bounded, "warm-up")
    for millions in (10, 20, 40):
        events = _city(spark, millions)
        began = time.monotonic()
        _bound_and_count(events, _bounded, f"growth-{millions}")
        seconds = time.monotonic() - began
        rows.append(
            {
                "rows": f"{millions} M",
                "seconds": round(seconds, 1),
                "seconds_per_million": round(seconds / millions, 2),
                "jvm_live_mb": _live_memory(spark),
            }
        )
    spark.stop()
    return rows


def _city(spark: SparkSession, millions: int) -> DataFrame:
    """Usable events of a city with 500,000 users, written once, as a log is: each file holds everybody's next few minutes."""
    folder = WORK / f"log-{millions}"
    if not (folder / "_DONE").exists():
        shutil.rmtree(folder, ignore_errors=True)
        _write_log(City(users=USERS, events_per_user=millions * 1e6 / USERS, first_day=DAY), folder, files=2 * millions)
        (folder / "_DONE").touch()
    period = POLICY.period_of(DAY.isoformat())
    source = incoming.find_source(spark, str(folder), POLICY, period)
    return place(incoming.usable(incoming.read_source(spark, source, POLICY, period), GRID, period), GRID, period)


def _write_log(city: City, folder: Path, files: int) -> None:
    """The events of a city in files of about equal size, one after the other in time."""
    folder.mkdir(parents=True)
    first, *others = batches(city)
    edges = np.quantile(_micros(first), np.arange(1, files) / files)
    held: list[list[pa.Table]] = [[] for _ in range(files)]
    for table in (first, *others):  # each is in order of time
        cuts = [0, *np.searchsorted(_micros(table), edges).tolist(), table.num_rows]
        for mine, (start, stop) in zip(held, pairwise(cuts), strict=True):
            mine.append(table.slice(start, stop - start))
    for number, tables in enumerate(held):
        pq.write_table(pa.concat_tables(tables).sort_by("event_time"), folder / f"part-{number:05d}.parquet")


def _micros(table: pa.Table) -> np.ndarray:
    return table["event_time"].cast("int64").to_numpy()


def _plain(events: DataFrame, folder: Path) -> DataFrame:
    """The reference: row_number over the user's events in the order of their hashes, and nothing else."""
    sample = _saved(_window(events).select(*bounding.COLUMNS), folder)
    return _checked_and_counted(sample.select("user_id", *_slice_and_cell()))


def _plain_places(events: DataFrame, folder: Path) -> DataFrame:
    return _checked_and_counted(_saved(_window(events).select("user_id", *_slice_and_cell()), folder))


def _window(events: DataFrame) -> DataFrame:
    first_k = Window.partitionBy("user_id").orderBy("hash")
    hashed = events.withColumn("hash", F.xxhash64(F.lit(SALT), *bounding.COLUMNS))
    return hashed.withColumn("rank", F.row_number().over(first_k)).where(F.col("rank") <= POLICY.privacy.max_events_per_user)


def _slice_and_cell() -> list[Column]:
    return [slice_of(POLICY.period_of(DAY.isoformat())).alias("slice"), cell_of(GRID).alias("cell")]


def _saved(sample: DataFrame, folder: Path) -> DataFrame:
    sample.write.format("delta").save(f"{folder}/plain")
    return sample.sparkSession.read.format("delta").load(f"{folder}/plain")


def _checked_and_counted(sample: DataFrame) -> DataFrame:
    most = sample.groupBy("user_id").agg(F.count(F.lit(1)).alias("kept")).agg(F.max("kept").alias("most")).first()
    assert most is not None and most["most"] <= POLICY.privacy.max_events_per_user
    return sample.groupBy("slice", "cell").agg(F.count(F.lit(1)).alias("count"))


def _bounded(events: DataFrame, folder: Path) -> DataFrame:
    """What the pipeline does."""
    spark, tables = events.sparkSession, PrivateTables(str(folder))
    partitions = bounding.PARTITIONS_PER_CORE * spark.sparkContext.defaultParallelism
    places = GRID.cells * POLICY.period.slices
    settings = bounding.BoundSettings(POLICY.privacy.max_events_per_user, SALT, places, partitions)
    bounding.make_room(spark, settings)
    tables.append_once("sample", bounding.bound(events, settings).withColumn("entry", F.lit("bench")), token="sample")
    sample = tables.read("sample", spark).where(F.col("entry") == "bench")
    bounding.check_bound(sample, settings.max_events_per_user)
    return count(sample, GRID)


def _bound_and_count(events: DataFrame, way: Callable[[DataFrame, Path], DataFrame], name: str) -> DataFrame:
    """Bound, materialise, check and count, one way or another; returns the histogram as it was written."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    tables = PrivateTables(str(folder))
    tables.append_once("histogram", way(events, folder).withColumn("entry", F.lit("bench")), token="bench")
    return tables.read("histogram", events.sparkSession).select("slice", "cell", "count")


def _best(work: Callable[[], object], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return round(min(seconds), 3)


def _live_memory(spark: SparkSession) -> int:
    """Memory of the JVM that is in use after a collection."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return int((runtime.totalMemory() - runtime.freeMemory()) >> 20)
