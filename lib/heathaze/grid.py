"""The public grid: a box of latitude and longitude cut into rows x cols cells, and a period cut into slices.

Everything here comes from the policy. Row 0 is the southernmost, column 0 the westernmost, and
cell = row * cols + col. Boxes, cells and slices are half open: they hold their south, west and first edges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from itertools import accumulate
from zoneinfo import ZoneInfo

import numpy as np

METRES_PER_DEGREE = 111_195.0
"""Length of one degree of latitude on a sphere of radius 6,371 km."""


@dataclass(frozen=True)
class Grid:
    """The declared cells of a release."""

    south: float
    west: float
    north: float
    east: float
    rows: int
    cols: int

    @property
    def cells(self) -> int:
        return self.rows * self.cols

    @property
    def height_metres(self) -> float:
        return (self.north - self.south) * METRES_PER_DEGREE

    @property
    def width_metres(self) -> float:
        return (self.east - self.west) * METRES_PER_DEGREE * math.cos(math.radians((self.south + self.north) / 2))

    def cells_of(self, lat: np.ndarray, lon: np.ndarray) -> np.ndarray:
        """The cell of each point, -1 outside the box; the same arithmetic as the Spark side, to the bit."""
        inside = (lat >= self.south) & (lat < self.north) & (lon >= self.west) & (lon < self.east)
        with np.errstate(invalid="ignore"):
            row = np.floor((np.where(inside, lat, self.south) - self.south) * self.rows_per_degree)
            col = np.floor((np.where(inside, lon, self.west) - self.west) * self.cols_per_degree)
        row = np.minimum(row, self.rows - 1).astype(np.int64)
        col = np.minimum(col, self.cols - 1).astype(np.int64)
        return np.where(inside, row * self.cols + col, -1)

    @property
    def rows_per_degree(self) -> float:
        return self.rows / (self.north - self.south)

    @property
    def cols_per_degree(self) -> float:
        return self.cols / (self.east - self.west)


@dataclass(frozen=True)
class Period:
    """One period of a dataset: `days` local days from `first`, cut into equal slices of local time."""

    first: date
    days: int
    slices: int
    zone: str

    @property
    def name(self) -> str:
        return self.first.isoformat()

    @property
    def edges(self) -> list[datetime]:
        """The slices + 1 instants, in UTC, at which slices begin and the period ends.

        Edges are times of the local clock, so a day of 23 or 25 hours has one shorter or longer slice and no
        event of it falls between two periods.
        """
        zone = ZoneInfo(self.zone)
        midnight = datetime(self.first.year, self.first.month, self.first.day)
        step = timedelta(days=self.days) / self.slices
        edges = [(midnight + step * i).replace(tzinfo=zone).astimezone(timezone.utc) for i in range(self.slices + 1)]
        return list(accumulate(edges, max))

    @property
    def start(self) -> datetime:
        return self.edges[0]

    @property
    def end(self) -> datetime:
        return self.edges[-1]
