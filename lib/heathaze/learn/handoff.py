"""How noisy tensors reach the learners: straight from Delta's files, no JVM, each rank its own slices."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heathaze.errors import InputError
from heathaze.tables import Tables, load_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Night:
    """One measured night, by name; its tensor is read where it is needed."""

    entry: str
    """Ledger entry of the measurement."""
    period: str
    """First day of the period."""
    slices: int
    """Number of time slices."""
    scale: Fraction
    """Scale of the noise of one cell."""
    totals: tuple[int, ...]
    """Noisy number of events of each slice."""
    total_scale: Fraction
    """Scale of the noise of one of them."""
    map_scale: Fraction | None = None
    """Scale of the noise of one cell of the map of the whole period; None where there is none."""


def nights_until(tables: Tables, dataset: str, measurement: str, period: str, spark: SparkSession | None = None) -> list[Night]:
    """The measured nights of a dataset up to `period`, oldest first; of a night measured twice, the newer measurement.

    Nights of another measurement (another grid, k or epsilon) are left out: their noise has another law.
    """
    same = (pc.field("dataset") == dataset) & (pc.field("measurement") == measurement) & (pc.field("period") <= period)
    columns = ["entry", "period", "slice", "scale", "noisy_total", "total_scale", "map_scale"]
    rows = tables.load("noisy", same, columns, spark).sort_by("slice")
    order = {entry: i for i, entry in enumerate(_charged_order(tables, spark))}
    nights: dict[str, Night] = {}
    for entry, group in sorted(_by_entry(rows).items(), key=lambda item: order.get(item[0], -1)):
        first = group[0]
        scale, total_scale = (Fraction(first[name]) for name in ("scale", "total_scale"))
        totals = tuple(row["noisy_total"] for row in group)
        map_scale = Fraction(first["map_scale"]) if first["map_scale"] else None
        nights[first["period"]] = Night(entry, first["period"], len(group), scale, totals, total_scale, map_scale)
    return [nights[name] for name in sorted(nights)]


def read_night(storage: str, night: Night) -> np.ndarray:
    """The tensor of one night: slices x rows x cols, int32."""
    return read_slices(storage, [(night.entry, number) for number in range(night.slices)])


def read_map(storage: str, night: Night, shape: tuple[int, int]) -> np.ndarray:
    """The map of the whole period of one night, as a tensor of one slice: 1 x rows x cols, int32."""
    rows = load_rows(storage, (pc.field("entry") == night.entry) & (pc.field("slice") == 0), ["map"])
    content = rows["map"][0].as_buffer() if len(rows) and rows["map"][0].is_valid else None
    if content is None:
        raise InputError(f"the noisy table must hold the map of entry {night.entry}, but it does not.")
    return np.frombuffer(content, dtype="<i4").reshape(1, *shape).astype(np.int32)


def read_slices(storage: str, wanted: list[tuple[str, int]]) -> np.ndarray:
    """The named slices, in the order named, as one array of int32."""
    entries = sorted({entry for entry, _ in wanted})
    where = pc.field("entry").isin(entries) & pc.field("slice").isin(sorted({number for _, number in wanted}))
    rows = load_rows(storage, where, ["entry", "slice", "rows", "cols", "values"])
    found = dict(zip(zip(rows["entry"].to_pylist(), rows["slice"].to_pylist(), strict=True), range(len(rows)), strict=True))
    missing = [key for key in wanted if key not in found]
    if missing:
        raise InputError(f"the noisy table must hold slice {missing[0][1]} of entry {missing[0][0]}, but it does not.")
    height, width = rows["rows"][0].as_py(), rows["cols"][0].as_py()
    tensor = np.empty((len(wanted), height, width), dtype=np.int32)
    for i, key in enumerate(wanted):
        tensor[i] = np.frombuffer(rows["values"][found[key]].as_buffer(), dtype="<i4").reshape(height, width)
    return tensor


def shared_out(nights: list[Night], rank: int, size: int) -> list[tuple[str, int]]:
    """The slices of all nights that one rank reads: every size-th, so that each rank sees all hours and nights."""
    every = [(night.entry, number) for night in nights for number in range(night.slices)]
    return every[rank::size] if len(every) >= size else every


def _by_entry(rows: pa.Table) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        groups.setdefault(row["entry"], []).append(row)
    return groups


def _charged_order(tables: Tables, spark: SparkSession | None) -> list[str]:
    ledger = tables.load("ledger", columns=["sequence", "entry"], spark=spark).to_pylist()
    return [row["entry"] for row in sorted(ledger, key=lambda row: row["sequence"])]
