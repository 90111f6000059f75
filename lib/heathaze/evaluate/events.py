"""Public events for the yardstick: read, placed on the grid, counted, and bounded as a release would bound them.

For public and synthetic data only: everything here is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from heathaze.errors import InputError
from heathaze.grid import Period
from heathaze.policy import Policy


@dataclass(frozen=True)
class Events:
    """Public events inside the grid and the period; one entry per event."""

    user: np.ndarray
    """Number of the user."""
    slice: np.ndarray
    cell: np.ndarray


def read_events(path: str, policy: Policy, first: date | None = None) -> tuple[Events, Period]:
    """Public events from Parquet or CSV; the period begins on `first`, or on the first day of the data.

    As in a release, events without a user, a time or a place in the grid are left out.
    """
    table = _read(path, policy)
    if not len(table):
        raise InputError(f"the events at {path} must hold users, times and places, but no row has all of them.")
    micros = _micros(table["time"], policy.dataset.timezone)
    period = policy.period_of((first or _day_of(int(micros.min()), policy.dataset.timezone)).isoformat())
    edges = np.array([round(edge.timestamp() * 1e6) for edge in period.edges])
    number = np.searchsorted(edges, micros, side="right") - 1
    cell = policy.grid.fine().cells_of(table["lat"].to_numpy(), table["lon"].to_numpy())
    inside = (cell >= 0) & (number >= 0) & (number < period.slices)
    if not inside.any():
        last = _day_of(int(micros.max()), policy.dataset.timezone)
        raise InputError(
            f"some event must lie in the grid and in the {period.days} days from {period.name}, but none of {path} does; its "
            f"last day is {last}. Change --period or the policy's [grid]."
        )
    user = pc.rank(table["user"], tiebreaker="dense").to_numpy()
    return Events(user[inside], number[inside], cell[inside]), period


def counts_of(events: Events, shape: tuple[int, int, int]) -> np.ndarray:
    """Exact counts, slices x rows x cols."""
    flat = events.slice * (shape[1] * shape[2]) + events.cell
    return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)


def bounded(events: Events, k: int, seed: int) -> Events:
    """At most k events of each user, uniformly."""
    order = np.lexsort((np.random.default_rng((seed, 5)).random(len(events.user)), events.user))
    user = events.user[order]
    first = np.flatnonzero(np.r_[True, user[1:] != user[:-1]]) if len(user) else np.zeros(0, dtype=np.int64)
    rank = np.arange(len(user)) - np.repeat(first, np.diff(np.r_[first, len(user)]))
    kept = np.sort(order[rank < k])
    return Events(events.user[kept], events.slice[kept], events.cell[kept])


def _read(path: str, policy: Policy) -> pa.Table:
    """The rows that have a user and a time, in columns user, time, lat and lon."""
    place, columns = Path(path), policy.dataset
    if not place.exists():
        raise InputError(f"--events must name a Parquet or CSV file or folder, but {path} does not exist.")
    if (place / "_delta_log").is_dir():
        raise InputError(f"--events must be Parquet or CSV, but {path} is a Delta table. Write the public events as Parquet.")
    names = [one.name for one in place.rglob("*") if one.is_file()] if place.is_dir() else [place.name]
    kind = "csv" if any(name.endswith((".csv", ".csv.gz")) for name in names) else "parquet"
    wanted = {"user": columns.user, "time": columns.time, "lat": columns.lat, "lon": columns.lon}
    try:
        source = ds.dataset(path, format=kind)
        missing = [name for name in wanted.values() if name not in source.schema.names]
        if missing:
            raise InputError(
                f"the events must have the columns {', '.join(wanted.values())}, but {', '.join(missing)} "
                f"{'is' if len(missing) == 1 else 'are'} missing. Name your columns in [dataset] of the policy."
            )
        table = source.to_table(columns={part: ds.field(name) for part, name in wanted.items()})
        user = pc.cast(table["user"], pa.string())
        lat, lon = (pc.fill_null(pc.cast(table[part], pa.float64()), float("nan")) for part in ("lat", "lon"))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # its text may quote rows
        raise InputError(
            f"--events must be Parquet or CSV, with numbers as latitudes and longitudes, but {path} cannot be read as {kind}."
        ) from None
    if not pa.types.is_timestamp(table["time"].type):
        raise InputError(
            f"the column '{columns.time}' of the events must hold timestamps, but it holds {table['time'].type}. "
            "Write them as 2026-11-14T08:30:00Z."
        )
    table = pa.table({"user": user, "time": table["time"], "lat": lat, "lon": lon})
    return table.filter(pc.and_(pc.is_valid(table["time"]), pc.not_equal(pc.fill_null(table["user"], ""), "")))


def _micros(times: pa.ChunkedArray, zone: str) -> np.ndarray:
    """Microseconds since 1970; times without an offset are of the policy's zone."""
    if times.type.tz is None:
        times = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="latest")
    return pc.cast(pc.cast(times, pa.timestamp("us", "UTC"), safe=False), pa.int64()).to_numpy()


def _day_of(micros: int, zone: str) -> date:
    """The local day of a moment."""
    return datetime.fromtimestamp(micros / 1e6, timezone.utc).astimezone(ZoneInfo(zone)).date()
