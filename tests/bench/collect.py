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
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from heathaze.collect import bound as bounding
from heathaze.collect import entropy
from heathaze.collect import events as incoming
from heathaze.collect.count import count, place
from heathaze.collect.private import PrivateTables
from heathaze.evaluate.synthetic import City, batches
from heathaze.policy import load_policy
from heathaze.session import start_spark

POLICY = load_policy(Path(__file__).parents[2] / "conf" / "nightly.toml")
DAY = date(2026, 11, 14)
GRID = POLICY.grid.build()
USERS = 500_000
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
        ways = {"window": _plain, "window_of_places": _plain_places, "heathaze": _filtered}
        times: dict[str, list[float]] = {name: [] for name in ways}
        histograms = {}
        for _ in range(2):  # alternating, so that a slow minute of the machine hits both
            for name, sample_of in ways.items():
                began = time.monotonic()
                histograms[name] = _bound_and_count(events, sample_of, f"{name}-{millions}")
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
    _bound_and_count(_city(spark, 10), _filtered, "warm-up")
    for millions in (10, 20, 40):
        events = _city(spark, millions)
        began = time.monotonic()
        _bound_and_count(events, _filtered, f"growth-{millions}")
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


def _plain(events: DataFrame, tables: PrivateTables, settings: bounding.BoundSettings) -> DataFrame:
    """The reference: row_number over the user's events in the order of their hashes, and nothing else."""
    _window(events, settings).select(*bounding.COLUMNS).write.format("delta").save(f"{tables.root}/plain")
    sample = events.sparkSession.read.format("delta").load(f"{tables.root}/plain")
    return place(sample, GRID, POLICY.period_of(DAY.isoformat()))


def _plain_places(events: DataFrame, tables: PrivateTables, settings: bounding.BoundSettings) -> DataFrame:
    return _written(tables, _window(events, settings).select(*bounding.PLACED), "plain")


def _window(events: DataFrame, settings: bounding.BoundSettings) -> DataFrame:
    first_k = Window.partitionBy("user_id").orderBy("hash")
    ranked = events.withColumn("hash", bounding._hash(settings.salt)).withColumn("rank", F.row_number().over(first_k))
    return ranked.where(F.col("rank") <= settings.max_events_per_user)


def _filtered(events: DataFrame, tables: PrivateTables, settings: bounding.BoundSettings) -> DataFrame:
    heavy = bounding.thresholds(bounding.counted_part(events), settings).cache()
    sample = _written(tables, bounding.bound(bounding.drop_hopeless(events, heavy, settings), settings), "filtered")
    assert not bounding.is_anyone_starved(sample, heavy, settings)
    heavy.unpersist()
    return sample


def _written(tables: PrivateTables, sample: DataFrame, name: str) -> DataFrame:
    tables.append_once("sample", sample.withColumn("entry", F.lit(name)), token=name)
    return tables.read("sample", sample.sparkSession)


def _bound_and_count(
    events: DataFrame, sample_of: Callable[[DataFrame, PrivateTables, bounding.BoundSettings], DataFrame], name: str
) -> DataFrame:
    """Bound, materialise, check and count, as the pipeline does; returns the histogram as it was written."""
    shutil.rmtree(WORK / name, ignore_errors=True)
    tables = PrivateTables(str(WORK / name))
    partitions = bounding.PARTITIONS_PER_CORE * events.sparkSession.sparkContext.defaultParallelism
    k = POLICY.privacy.max_events_per_user
    settings = bounding.BoundSettings(k, salt=12345, kept=bounding.PLACED, partitions=partitions)
    sample = sample_of(events, tables, settings)
    bounding.check_bound(sample, settings.max_events_per_user)
    histogram = count(sample)
    tables.append_once("histogram", histogram.withColumn("entry", F.lit("bench")), token="bench")
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
