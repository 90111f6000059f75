"""noise: exact discrete Laplace on every cell of the declared grid, drawn inside the tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from heathaze.collect import entropy
from heathaze.collect.entropy import NoiseKey, draw_single
from heathaze.grid import Grid
from heathaze.policy import Privacy


@dataclass(frozen=True)
class NoiseSettings:
    """What the noise of one release depends on."""

    scale: Fraction
    """Scale of the noise of a cell: k / (epsilon * share of the histogram)."""
    key: NoiseKey
    """The key of this release."""
    grid: Grid
    """Every cell of it gets noise."""
    slices: int
    """Number of time slices; every one is written."""
    domain: int = entropy.CELLS
    """Of the keystream: no two tables share a word of it."""


def add_noise(histogram: DataFrame, settings: NoiseSettings) -> DataFrame:
    """slice, values: the dense noisy counts of every slice, as little-endian int32.

    Sensitivity: the histogram has L1 sensitivity k; independent discrete Laplace noise of scale k / epsilon' on every
    cell, empty ones too, makes the output epsilon'-differentially private. Rows, files and their layout depend on the
    grid and the number of slices alone.
    """
    spark = histogram.sparkSession
    every_slice = spark.range(settings.slices).select(
        F.col("id").cast("int").alias("slice"), F.lit(-1).alias("cell"), F.lit(0).cast("bigint").alias("count")
    )
    # A fixed number of partitions: a number chosen from the data's size would show in the files.
    partitions = min(settings.slices, spark.sparkContext.defaultParallelism)
    grouped = histogram.select("slice", "cell", "count").unionByName(every_slice).repartition(partitions, "slice")
    return grouped.groupBy("slice").applyInArrow(_kernel(settings), "slice int, values binary").select("slice", "values")


def _kernel(settings: NoiseSettings) -> Callable[[pa.Table], pa.Table]:
    def noisy_slice(rows: pa.Table) -> pa.Table:
        number = rows["slice"][0].as_py()
        cell, count = rows["cell"].to_numpy(), rows["count"].to_numpy()
        values = noisy_values(number, cell[cell >= 0], count[cell >= 0], settings)
        return pa.table({"slice": pa.array([number], pa.int32()), "values": pa.array([values.tobytes()], pa.binary())})

    return noisy_slice


def noisy_values(number: int, cell: np.ndarray, count: np.ndarray, settings: NoiseSettings) -> np.ndarray:
    """Noisy counts of all cells of slice `number`, from the exact counts of its non-empty cells.

    The cell's index in the whole tensor is the counter of its noise. Values beyond int32 saturate (post-processing).
    """
    cells = settings.grid.cells
    exact = np.zeros(cells, dtype=np.int64)
    exact[cell] = count
    noise = entropy.sampler(settings.scale).sample(settings.key, settings.domain, number * cells, cells)
    limits = np.iinfo(np.int32)
    return np.clip(exact + noise, limits.min, limits.max).astype("<i4")


def noisy_totals(totals: Sequence[int], privacy: Privacy, key: NoiseKey) -> list[int]:
    """The number of events of every slice with noise; their sum is n.

    Sensitivity: each event lies in one slice, so one user changes the totals by at most k in sum; the noise of each has scale
    k / (epsilon * their share).
    """
    return [total + draw_single(privacy.totals_scale, key, entropy.TOTALS, number) for number, total in enumerate(totals)]


def noisy_event_count(clipped_count: int, privacy: Privacy, key: NoiseKey) -> int:
    """N with noise; `clipped_count` counts at most max_counted_per_user events of each user.

    Sensitivity: one user changes it by at most max_counted_per_user.
    """
    assert privacy.event_count_scale is not None, "N is declared, so it is not measured"
    return clipped_count + draw_single(privacy.event_count_scale, key, entropy.EVENT_COUNT)
