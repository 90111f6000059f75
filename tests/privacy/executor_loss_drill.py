"""Bound a toy sample on a small cluster of processes and kill -9 an executor while the result is written.

A program of its own, run by test_executor_loss.py: `executor_loss_drill.py FOLDER`. FOLDER/events holds the events;
every drill writes its rows to a folder of its own there, and one line of JSON on standard output says what happened.
The control runs until it has broken the bound, three times at most.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from heathaze.collect.bound import BoundSettings, bound
from heathaze.session import start_spark

K = 10
WRITERS = 7
"""Tasks of the stage that writes; a number that no other stage has."""

CONTROL_ATTEMPTS = 3

PLACES = 86_400
"""An event's place is its second of the day."""


def bound_by_rand(events: DataFrame, settings: BoundSettings) -> DataFrame:
    """What `bound` must not do: the same window in an order that is drawn again whenever a task runs again."""
    first_k = Window.partitionBy("user_id").orderBy("draw")
    ranked = events.select("user_id", "place", F.rand(settings.salt).alias("draw")).withColumn(
        "rank", F.row_number().over(first_k)
    )
    kept = ranked.where(F.col("rank") <= settings.max_events_per_user)
    return kept.groupBy("user_id").agg(F.collect_list("place").alias("places"))


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the killer time to strike between two tasks."""
    time.sleep(0.7)
    yield from batches


class Killer(threading.Thread):
    """Kills one executor as soon as some of the writing tasks have finished."""

    def __init__(self, spark: SparkSession):
        super().__init__(daemon=True)
        self._tracker = spark.sparkContext.statusTracker()
        self.stop = threading.Event()
        self.killed_after = 0
        self.attempts = 1

    def run(self) -> None:
        while not self.stop.wait(0.05):
            for number in self._tracker.getActiveStageIds():
                stage = self._tracker.getStageInfo(number)
                if stage is None:
                    continue
                self.attempts = max(self.attempts, stage.currentAttemptId + 1)
                if stage.numTasks == WRITERS and stage.numCompletedTasks >= 2 and not self.killed_after:
                    executors()[0].kill()
                    self.killed_after = stage.numCompletedTasks


def executors() -> list[psutil.Process]:
    """The JVMs of the executors, which are descendants of this process."""
    children = psutil.Process().children(recursive=True)
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if any("CoarseGrainedExecutorBackend" in part for part in child.cmdline())]


def drill(spark: SparkSession, folder: Path, name: str, choose: Callable[..., DataFrame], kill: bool) -> dict[str, object]:
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3:  # the driver and two executors
        time.sleep(0.1)
    # Rows that come out of a shuffle come in the order in which its blocks arrive, which is another one in every run.
    events = spark.read.parquet(str(folder / "events")).repartition(5, "event_time")
    events = events.withColumn("place", F.unix_seconds("event_time") % PLACES)
    sample = choose(events, BoundSettings(max_events_per_user=K, salt=7, places=PLACES))
    # A user's events go to different writers, so that some may come from tasks that ran again and some from before.
    kept = sample.select("user_id", F.explode("places").alias("place"))
    written = kept.repartition(WRITERS, "place").mapInArrow(slowly, kept.schema)
    killer = Killer(spark)
    if kill:
        killer.start()
    begin = time.monotonic()
    written.write.parquet(str(folder / name))
    killer.stop.set()
    seconds = round(time.monotonic() - begin, 1)
    return {"name": name, "killed_after": killer.killed_after, "attempts": killer.attempts, "seconds": seconds}


def kept(written: Path) -> Counter[str]:
    """Events of each user in what a drill has written."""
    return Counter(pq.read_table(written, columns=["user_id"])["user_id"].to_pylist())


def start_cluster(folder: Path) -> SparkSession:
    """Two executors in processes of their own; what they leave behind lies in `folder`."""
    home = folder / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    os.environ["SPARK_HOME"] = str(home)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    fewer_compilers = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return start_spark(
        **{
            "spark.master": "local-cluster[2,1,1024]",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "1g",
            "spark.local.dir": str(folder),
            "spark.driver.extraJavaOptions": fewer_compilers,
            "spark.executor.extraJavaOptions": fewer_compilers,
            "spark.speculation": "true",
            "spark.sql.files.minPartitionNum": "6",
            "spark.sql.shuffle.partitions": "6",
            "spark.sql.adaptive.coalescePartitions.enabled": "false",
        }
    )


def main(folder: Path) -> None:
    spark = start_cluster(folder)
    print(json.dumps(drill(spark, folder, "undisturbed", bound, kill=False)), flush=True)
    print(json.dumps(drill(spark, folder, "bound", bound, kill=True)), flush=True)
    for attempt in range(CONTROL_ATTEMPTS):
        name = f"rand_{attempt}"
        print(json.dumps(drill(spark, folder, name, bound_by_rand, kill=True)), flush=True)
        if max(kept(folder / name).values()) > K:
            break
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
