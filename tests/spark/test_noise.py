from __future__ import annotations

import hashlib
import json
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from heathaze.collect import entropy
from heathaze.collect.entropy import NoiseKey
from heathaze.collect.noise import NoiseSettings, add_noise, noisy_event_count, noisy_totals, noisy_values
from heathaze.collect.pipeline import _with_map
from heathaze.grid import Grid
from heathaze.policy import Privacy, Shares
from heathaze.tables import Tables

GRID = Grid(40.0, -74.0, 40.1, -73.9, 5, 7)
SLICES = 4
SETTINGS = NoiseSettings(Fraction(300, 98), NoiseKey(bytes(range(32))), GRID, SLICES)

Counts = dict[tuple[int, int], int]


def histogram_of(spark: SparkSession, counts: Counts) -> DataFrame:
    slices, cells = zip(*counts, strict=True) if counts else ([], [])
    columns = [pa.array(slices, pa.int32()), pa.array(cells, pa.int32()), pa.array(counts.values(), pa.int64())]
    return spark.createDataFrame(pa.table(columns, names=["slice", "cell", "count"]))


def values_of(noisy: DataFrame | pa.Table) -> dict[int, np.ndarray]:
    rows = (noisy if isinstance(noisy, pa.Table) else noisy.toArrow()).to_pylist()
    assert len({row["slice"] for row in rows}) == len(rows)
    return {row["slice"]: np.frombuffer(row["values"], "<i4") for row in rows}


def dense(counts: Counts) -> np.ndarray:
    exact = np.zeros((SLICES, GRID.cells), dtype=int)
    for place, number in counts.items():
        exact[place] = number
    return exact


FULL: Counts = {(0, 0): 1, (0, 34): 7, (2, 3): 1_000_000, (3, 17): 2, (3, 18): 5}


def draws() -> np.ndarray:
    """What the sampler draws for the whole tensor with the key of SETTINGS."""
    drawn = entropy.sampler(SETTINGS.scale).sample(SETTINGS.key, entropy.CELLS, 0, SLICES * GRID.cells)
    return drawn.reshape(SLICES, GRID.cells)


@pytest.mark.parametrize("counts", [{}, FULL], ids=["empty", "full"])
def test_every_cell_of_every_slice_holds_its_count_and_its_own_draw(spark, counts):
    values = values_of(add_noise(histogram_of(spark, counts), SETTINGS))
    assert sorted(values) == list(range(SLICES))
    found = np.array([values[number] for number in range(SLICES)])
    assert np.array_equal(found - dense(counts), draws())


def test_no_two_cells_share_a_draw_and_another_key_draws_other_noise():
    noise = draws().ravel()
    assert len(Counter(noise.tolist())) > 5
    other = NoiseSettings(SETTINGS.scale, NoiseKey(bytes(32)), GRID, SLICES)
    nothing = np.array([], dtype=int)
    slices = [noisy_values(number, nothing, nothing, SETTINGS) for number in range(SLICES)]
    assert len({values.tobytes() for values in slices}) == SLICES
    assert not np.array_equal(noisy_values(0, nothing, nothing, other), slices[0])


def test_noise_is_the_same_to_the_byte_when_drawn_again_and_laid_out_otherwise(spark):
    histogram = histogram_of(spark, FULL)
    first = {row["slice"]: row["values"] for row in add_noise(histogram, SETTINGS).toArrow().to_pylist()}
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "3")
        again = add_noise(histogram.repartition(3, "cell").sortWithinPartitions(F.desc("count")), SETTINGS)
        assert {row["slice"]: row["values"] for row in again.toArrow().to_pylist()} == first
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


def written(tables: Tables, entry: str) -> tuple[Counter, list[list[int]], list[str]]:
    """Rows by slice, the slices that each data file holds, and what the log says of the files but for name, size and time."""
    rows = tables.load("noisy").filter(pc.field("entry") == entry)
    folder = Path(tables.address("noisy"))
    files = sorted((folder / f"entry={entry}").glob("*.parquet"))
    actions = [json.loads(line) for log in sorted((folder / "_delta_log").glob("*.json")) for line in log.open()]
    stats = [action["add"].get("stats") for action in actions if "add" in action and f"entry={entry}/" in action["add"]["path"]]
    assert len(stats) == len(files)
    slices = sorted(pq.ParquetFile(file).read(["slice"])["slice"].to_pylist() for file in files)
    return Counter(rows["slice"].to_pylist()), slices, sorted(map(str, stats))


@pytest.mark.parametrize("of_map", [None, NoiseSettings(Fraction(25), SETTINGS.key, GRID, 1, entropy.MAP)], ids=["slices", "map"])
def test_rows_files_and_statistics_are_the_same_for_an_empty_and_a_full_night(spark, tmp_path, of_map):
    tables = Tables(str(tmp_path))
    crowded = {(number, cell): 10_000 + cell for number in (0, 1, 3) for cell in range(GRID.cells)}
    for entry, counts in (("empty", {}), ("full", crowded)):
        texts = ("dataset", "period", "measurement", "scale", "total_scale", "statements", "map_scale")
        columns = {name: F.lit("") for name in texts} | {
            "entry": F.lit(entry),
            "starts_at": F.timestamp_seconds(F.lit(0)),
            "rows": F.lit(GRID.rows),
            "cols": F.lit(GRID.cols),
            "noisy_total": F.lit(0).cast("bigint"),
            "noisy_event_count": F.lit(0).cast("bigint"),
        }
        histogram = histogram_of(spark, counts)
        noisy = _with_map(add_noise(histogram, SETTINGS), histogram, of_map)
        tables.append_once("noisy", noisy.withColumns(columns), token=entry)
    empty, full = written(tables, "empty"), written(tables, "full")
    assert empty == full
    assert empty[0] == Counter(range(SLICES))
    assert deltalake.DeltaTable(tables.address("noisy")).version() == 2
    sizes = [None if of_map is None else 4 * GRID.cells] + [None] * (SLICES - 1)
    for entry in ("empty", "full"):
        maps = tables.load("noisy", pc.field("entry") == entry).sort_by("slice")["map"].to_pylist()
        assert [None if one is None else len(one) for one in maps] == sizes


WIDE = Grid(40.0, -74.0, 40.1, -73.9, 200, 200)


def has_law(noise: np.ndarray, scale: float) -> bool:
    """Whether mean and variance are those of discrete Laplace noise, within five standard errors (a variance within 6 %)."""
    variance = 2 * scale**2 - 1 / 6
    mean_is_right = abs(noise.mean()) < 5 * np.sqrt(variance / noise.size)
    return bool(mean_is_right and abs(noise.var() / variance - 1) < 5 * np.sqrt(5 / noise.size))


def test_noise_of_a_large_grid_has_mean_zero_and_the_declared_variance(spark):
    settings = NoiseSettings(Fraction(25, 2), NoiseKey(bytes(range(1, 33))), WIDE, 2)
    values = values_of(add_noise(histogram_of(spark, {}), settings))
    noise = np.concatenate([values[0], values[1]])
    assert noise.size == 2 * WIDE.cells
    assert has_law(noise, 12.5)
    assert not has_law(noise, 12.5 * 0.95) and not has_law(noise, 12.5 * 1.05)
    assert not has_law(noise + 1, 12.5)
    assert abs(np.corrcoef(values[0], values[1])[0, 1]) < 5 / np.sqrt(WIDE.cells)


def test_values_beyond_int32_saturate_and_keep_their_neighbours():
    cell, count = np.array([3, 4]), np.array([2**40, 5])
    values = noisy_values(0, cell, count, SETTINGS)
    assert values.dtype == np.dtype("<i4")
    assert values[3] == 2**31 - 1
    assert values[4] == 5 + draws()[0, 4]


def keys(number: int) -> list[NoiseKey]:
    return [NoiseKey(hashlib.sha256(b"%d" % i).digest()) for i in range(number)]


PRIVACY = Privacy(
    epsilon=Decimal("0.5"),
    max_events_per_user=3,
    max_counted_per_user=40,
    shares=Shares(Decimal("0.9"), Decimal("0.06"), Decimal("0.04")),
)


@pytest.mark.parametrize(
    ("measure", "scale"),
    [(lambda *one: noisy_totals([7, one[0]], *one[1:])[1], 3 / (0.5 * 0.06)), (noisy_event_count, 40 / (0.5 * 0.04))],
    ids=["total", "event_count"],
)
def test_totals_and_N_get_noise_of_their_own_share_and_sensitivity(measure, scale):
    drawn = np.array([measure(1_000, PRIVACY, key) - 1_000 for key in keys(1_500)])
    spread = np.abs(drawn).mean() / scale
    tolerance = 4 / np.sqrt(len(drawn))
    assert abs(spread - 1) < tolerance < 0.15
    assert abs(drawn.mean()) < 5 * scale * np.sqrt(2 / len(drawn))


def test_noise_of_totals_of_N_and_of_the_first_cell_are_independent():
    few = keys(1_000)
    nothing = np.array([], dtype=int)
    one_cell = Grid(40.0, -74.0, 40.1, -73.9, 1, 1)
    cells = [noisy_values(0, nothing, nothing, NoiseSettings(PRIVACY.histogram_scale, key, one_cell, 1))[0] for key in few]
    totals = np.array([noisy_totals([0, 0], PRIVACY, key) for key in few]).T
    drawn = np.array([*totals, [noisy_event_count(0, PRIVACY, key) for key in few], cells])
    correlation = np.corrcoef(drawn)
    assert np.abs(correlation - np.eye(4)).max() < 5 / np.sqrt(len(few))
