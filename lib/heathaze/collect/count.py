"""count: events to their places on the public grid, and bounded places to exact counts, sparse."""

from __future__ import annotations

from itertools import pairwise

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from heathaze.grid import Grid, Period


def place(events: DataFrame, grid: Grid, period: Period) -> DataFrame:
    """The events with their place, slice x cells + cell, which is all that is needed of them once they are chosen.

    Sensitivity: row by row, by the public grid and period.
    """
    return events.withColumn("place", slice_of(period).cast("bigint") * grid.cells + cell_of(grid))


def count(sample: DataFrame, grid: Grid) -> DataFrame:
    """slice, cell, count of the cells that hold an event.

    Sensitivity: each event falls in one cell, so a sample that changes by at most k places when one user comes or goes gives
    counts that change by at most k in sum: L1 sensitivity k.
    """
    counted = sample.select(F.explode("places").alias("place")).groupBy("place").agg(F.count(F.lit(1)).alias("count"))
    cell = F.col("place") % grid.cells
    time_slice = (F.col("place") - cell) / grid.cells  # whole, and far below 2^53
    return counted.select(time_slice.cast("int").alias("slice"), cell.cast("int").alias("cell"), "count")


def coarser(histogram: DataFrame, grid: Grid, side: int) -> DataFrame:
    """slice, cell, count of squares of `side` x `side` cells of the grid, numbered as the cells of a grid that much coarser.

    Sensitivity: each cell lies in one square, so the L1 sensitivity of the counts stays k.
    """
    col = F.col("cell") % grid.cols
    row = (F.col("cell") - col) / grid.cols  # whole
    square = F.floor(row / side) * (grid.cols // side) + F.floor(col / side)
    return histogram.groupBy("slice", square.cast("int").alias("cell")).agg(F.sum("count").alias("count"))


def all_slices(histogram: DataFrame) -> DataFrame:
    """slice, cell, count of the whole period: the counts of each cell over all slices, as those of slice 0.

    Sensitivity: each event falls in one cell, whatever its slice, so the L1 sensitivity of the counts stays k.
    """
    summed = histogram.groupBy("cell").agg(F.sum("count").alias("count"))
    return summed.select(F.lit(0).alias("slice"), "cell", "count")


def cell_of(grid: Grid) -> Column:
    """The cell of a point inside the box; the arithmetic of `Grid.cells_of`, to the bit."""
    row = F.least(F.floor((F.col("lat") - grid.south) * grid.rows_per_degree), F.lit(grid.rows - 1))
    col = F.least(F.floor((F.col("lon") - grid.west) * grid.cols_per_degree), F.lit(grid.cols - 1))
    return (row * grid.cols + col).cast("int")


def slice_of(period: Period) -> Column:
    """The slice of a time inside the period."""
    micros = F.unix_micros("event_time")
    edges = [round(edge.timestamp()) * 1_000_000 for edge in period.edges]
    widths = {b - a for a, b in pairwise(edges)}
    if len(widths) == 1:
        return F.floor((micros - edges[0]) / widths.pop()).cast("int")
    # A day on which the clock changes: count the edges passed.
    passed = [(micros >= edge).cast("int") for edge in edges[1:-1]]
    return sum(passed, F.lit(0))
