"""squares: how many events lie in a square, from the networks of snh and the noisy grid that they learned from. numpy alone.

    squares = Squares(unpack(content))
    answer = squares.count(lat=37.79, lon=-122.41, side=60)
    print(answer.count, answer.low, answer.high, answer.by)
    many = squares.counts(lats, lons, sides)

When a release is opened, each network is evaluated once, at four places of every cell; a query then looks up the four places
around its centre in the two sizes next to its own. Everything is made from the noisy grid and public facts, so any number of
questions may be asked.

The networks answer squares as people ask about them: mostly around events. Squares that tile a city are better added up by
`rectangle`, which does not lean that way. Intervals hold 90 % and speak of all errors: noise, what the networks made of it, and
that events do not lie evenly in a cell.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import Any

import numpy as np

from heathaze.errors import InputError
from heathaze.grid import Grid
from heathaze.learn.denoiser import noise_variance
from heathaze.learn.snh_places import (
    PART,
    Cells,
    Places,
    answer,
    answer_as_published,
    in_parts,
    look,
    prefix,
    see,
    see_wider,
    unevenness,
)
from heathaze.release.sums import share_powers

NORMAL = 1.645
"""Deviations to either side that hold 90 % of a normal law."""

BYTES_PER_CELL = 600
"""What learning from a cell, or opening it, takes at the most."""

BLOCKS = (2, 4, 8, 16, 32, 64)
"""Sides of the blocks, in cells, on which sums of learned cells are held against noisy ones."""

BY = ("networks", "scaled", "cells", "noisy")
"""How an answer was made: by the networks; by the one of the nearest size, scaled by area; from learned or from noisy cells."""


@dataclass(frozen=True)
class SquareRelease:
    """What a release of squares consists of."""

    grid: Grid
    """The public grid."""
    scale: Fraction
    """Of the noise of a cell."""
    noisy: np.ndarray
    """rows x cols, whole numbers."""
    architecture: str
    """local or paper."""
    sides: tuple[float, ...]
    """Side of the squares of each network, metres."""
    smallest: float
    """Side of the smallest square that the networks are for."""
    largest: float
    """Side of the largest."""
    weights: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Answer:
    """The count of one square or rectangle."""

    count: float
    low: float
    """Lower end of the 90 % interval."""
    high: float
    """Upper end."""
    by: str
    """One of BY."""


@dataclass(frozen=True)
class Answers:
    """The counts of many squares."""

    count: np.ndarray
    low: np.ndarray
    high: np.ndarray
    by: np.ndarray
    """Numbers of BY."""

    @staticmethod
    def empty(number: int) -> Answers:
        return Answers(np.empty(number), np.empty(number), np.empty(number), np.empty(number, dtype=np.int8))

    def __len__(self) -> int:
        return len(self.count)

    def __getitem__(self, number: int) -> Answer:
        return Answer(float(self.count[number]), float(self.low[number]), float(self.high[number]), BY[self.by[number]])

    def take_over(self, numbers: np.ndarray, others: Answers, chosen: np.ndarray | slice) -> None:
        """Replace some answers by chosen ones of others."""
        for mine, theirs in ((self.count, others.count), (self.low, others.low), (self.high, others.high), (self.by, others.by)):
            mine[numbers] = theirs[chosen]


def plan_grid(south: float, west: float, north: float, east: float, rho: float, memory: int | None = None) -> Grid:
    """The grid over a box whose cells are squares of at most `rho` metres; refused where `memory` bytes cannot hold it."""
    if not (isfinite(rho) and rho > 0):
        raise InputError(f"the side of a cell must be above 0 metres, but it is {rho}.")
    if not (south < north and west < east):
        raise InputError(f"a box needs south < north and west < east, but it is {south}, {west}, {north}, {east}.")
    box = Grid(south, west, north, east, 1, 1)
    rows, cols = ceil(box.height_metres / rho), ceil(box.width_metres / rho)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if memory is None else memory
    if rows * cols * BYTES_PER_CELL > memory:
        fits = (box.height_metres * box.width_metres * BYTES_PER_CELL / memory) ** 0.5
        raise InputError(
            f"cells of {rho:g} m make a grid of {rows} x {cols} = {rows * cols:,} cells, but {memory / 1e9:.1f} GB hold at most "
            f"{memory // BYTES_PER_CELL:,}. Choose cells of at least {ceil(fits * 10) / 10:g} m, or a smaller box."
        )
    return Grid(south, west, north, east, rows, cols)


def pack(published: SquareRelease) -> bytes:
    """A release as bytes, the same bytes for the same release."""
    head = {
        "grid": asdict(published.grid),
        "scale": str(published.scale),
        "architecture": published.architecture,
        "sides": published.sides,
        "smallest": published.smallest,
        "largest": published.largest,
    }
    # Noise fills the low bytes and hardly the high ones: apart, they are packed as small as noise can be.
    planes = published.noisy.astype("<i4").view(np.uint8).reshape(-1, 4).T
    narrow = np.float16 if published.architecture == "paper" else np.float32
    arrays: dict[str, Any] = {name: value.astype(narrow) for name, value in published.weights.items()}
    arrays |= {"head": np.frombuffer(json.dumps(head).encode(), np.uint8), "noisy": np.ascontiguousarray(planes)}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def unpack(content: bytes) -> SquareRelease:
    """The release that `pack` made bytes of."""
    with np.load(io.BytesIO(content)) as file:
        head = json.loads(file["head"].tobytes())
        grid = Grid(**head["grid"])
        noisy = np.ascontiguousarray(file["noisy"].T).view("<i4").reshape(grid.rows, grid.cols).astype(np.int64)
        weights = {name: file[name].astype(np.float32) for name in file.files if name not in ("head", "noisy")}
    return SquareRelease(
        grid,
        Fraction(head["scale"]),
        noisy,
        head["architecture"],
        tuple(head["sides"]),
        head["smallest"],
        head["largest"],
        weights,
    )


class Squares:
    """A release of squares, open for queries."""

    def __init__(self, published: SquareRelease):
        self.published = published
        grid = published.grid
        self._rows, self._cols = grid.rows, grid.cols
        self._rows_per_degree, self._cols_per_degree = grid.rows_per_degree, grid.cols_per_degree
        self._rows_per_metre, self._cols_per_metre = grid.rows / grid.height_metres, grid.cols / grid.width_metres
        self._variance = noise_variance(published.scale)
        self._sides, self._sizes = np.array(published.sides), len(published.sides)
        self._step = published.sides[1] - published.sides[0]
        self._noisy_sums = prefix(published.noisy)
        # Squares of counts, free of the noise's own square: not cut at 0, or their sums would be biased.
        self._square_sums = prefix(published.noisy**2 - self._variance)
        self._unevenness = unevenness(published.noisy, self._variance)
        self._cells: Cells | None = None
        if published.architecture == "paper":
            self._tabulate_paper()
        else:
            self._cells, _ = look(published.noisy, published.scale, published.weights)
            self._blocks, self._factors = _trust(self._cells, self._variance)
            self._tabulate(self._cells)
        self._flat, self._flat_reach = self._table.reshape(-1), self._reach.reshape(-1)

    def _tabulate(self, cells: Cells) -> None:
        """Counts at four places of every cell, and how far the interval reaches below and above, one mean for each cell."""
        rows, cols, sizes = 2 * self._rows, 2 * self._cols, self._sizes
        self._table = np.empty((rows, cols, sizes), dtype=np.float32)
        self._reach = np.empty((self._rows, self._cols, sizes, 2), dtype=np.float32)
        places = Places((np.arange(rows) + 0.5) / 2, (np.arange(cols) + 0.5) / 2, lattice=True)

        def part(span: slice) -> None:
            band = Places(places.rows[2 * span.start : 2 * span.stop], places.cols, lattice=True)
            wider = see_wider(cells, band)
            for size, side in enumerate(self._sides):
                height, width = side * self._rows_per_metre, side * self._cols_per_metre
                low, middle, high = np.moveaxis(
                    answer(see(cells, band, height, width, wider), self.published.weights, size), -1, 0
                )
                self._table[2 * span.start : 2 * span.stop, :, size] = middle
                for end, reach in enumerate((middle - low, high - middle)):
                    self._reach[span, :, size, end] = reach.reshape(-1, 2, self._cols, 2).mean((1, 3))

        in_parts(part, self._rows, max(1, PART // (4 * self._cols)))

    def _tabulate_paper(self) -> None:
        rows, cols, shape = 2 * self._rows, 2 * self._cols, (self._rows, self._cols)
        places = (np.arange(rows) + 0.5) / 2, (np.arange(cols) + 0.5) / 2
        weights = self.published.weights
        self._table = np.stack([answer_as_published(*places, shape, weights, k) for k in range(len(self._sides))], axis=-1)
        self._reach = np.empty((*shape, len(self._sides), 2), dtype=np.float32)
        self._reach[:] = NORMAL * weights["paper.deviations"][:, None]

    def count(self, lat: float, lon: float, side: float) -> Answer:
        """The count of the square of `side` metres around a place."""
        grid, sides = self.published.grid, self.published.sides
        row, col = (lat - grid.south) * self._rows_per_degree, (lon - grid.west) * self._cols_per_degree
        if not (0 <= row < self._rows and 0 <= col < self._cols and 0 < side <= self.published.largest):
            return self.counts(lat, lon, side)[0]
        near = min(max(side, sides[0]), sides[-1])
        area = (side / near) ** 2
        along = (near - sides[0]) / self._step
        size = min(int(along), self._sizes - 2)
        last_row, last_col = 2 * self._rows - 1, 2 * self._cols - 1
        up, right = min(max(2 * row - 0.5, 0.0), last_row), min(max(2 * col - 0.5, 0.0), last_col)
        south, west = min(int(up), last_row - 1), min(int(right), last_col - 1)
        up, right, more = up - south, right - west, along - size
        start = (south * (last_col + 1) + west) * self._sizes + size
        get, across, north = self._flat.item, self._sizes, (last_col + 1) * self._sizes
        count = 0.0
        for node, weight in ((start, 1 - more), (start + 1, more)):
            lower = get(node) * (1 - right) + get(node + across) * right
            upper = get(node + north) * (1 - right) + get(node + north + across) * right
            count += weight * (lower * (1 - up) + upper * up)
        count = float(max(count, 0.0) * area)
        cell = ((int(row) * self._cols + int(col)) * self._sizes + size + round(more)) * 2
        reach = self._flat_reach.item
        low, high = max(count - reach(cell) * area, 0.0), count + reach(cell + 1) * area
        return Answer(count, float(floor(low)), float(ceil(high)), BY[int(side < self.published.smallest)])

    def counts(self, lat: np.ndarray | float, lon: np.ndarray | float, side: np.ndarray | float) -> Answers:
        """The counts of many squares; each argument is a number or an array."""
        lat, lon, side = (np.atleast_1d(part).astype(np.float64) for part in np.broadcast_arrays(lat, lon, side))
        grid = self.published.grid
        row, col = (lat - grid.south) * self._rows_per_degree, (lon - grid.west) * self._cols_per_degree
        tall, wide = side * self._rows_per_metre / 2, side * self._cols_per_metre / 2
        edges = row - tall, col - wide, row + tall, col + wide
        self._check(*edges)
        found = Answers.empty(len(lat))

        def part(span: slice) -> None:
            self._look_up(row[span], col[span], side[span], found, span)

        in_parts(part, len(lat))
        outside = (row < 0) | (row >= self._rows) | (col < 0) | (col >= self._cols)
        # A square beyond the trained sizes may be better known as a sum of cells; one whose centre lies outside is only that.
        other = np.flatnonzero(outside | (side > self.published.largest))
        if len(other):
            boxes = self._boxes(*(edge[other] for edge in edges))
            better = outside[other] | (boxes.high - boxes.low < found.high[other] - found.low[other])
            found.take_over(other[better], boxes, better)
        return found

    def _look_up(self, row: np.ndarray, col: np.ndarray, side: np.ndarray, found: Answers, span: slice) -> None:
        near = np.clip(side, self._sides[0], self._sides[-1])
        area = (side / near) ** 2
        along = (near - self._sides[0]) / self._step
        size = np.minimum(along.astype(np.int64), self._sizes - 2)
        last_row, last_col = 2 * self._rows - 1, 2 * self._cols - 1
        up, right = np.clip(2 * row - 0.5, 0, last_row), np.clip(2 * col - 0.5, 0, last_col)
        south, west = np.minimum(up.astype(np.int64), last_row - 1), np.minimum(right.astype(np.int64), last_col - 1)
        up, right, more = up - south, right - west, along - size
        start = (south * (last_col + 1) + west) * self._sizes + size
        count = np.zeros(len(side))
        for down, row_weight in ((0, 1 - up), ((last_col + 1) * self._sizes, up)):
            for across, col_weight in ((0, 1 - right), (self._sizes, right)):
                node = start + down + across
                count += row_weight * col_weight * (self._flat[node] * (1 - more) + self._flat[node + 1] * more)
        count = np.maximum(count, 0) * area
        inside = np.clip(row, 0, self._rows - 1).astype(np.int64), np.clip(col, 0, self._cols - 1).astype(np.int64)
        cell = ((inside[0] * self._cols + inside[1]) * self._sizes + size + np.rint(more).astype(np.int64)) * 2
        found.count[span] = count
        found.low[span] = np.floor(np.maximum(count - self._flat_reach[cell] * area, 0))
        found.high[span] = np.ceil(count + self._flat_reach[cell + 1] * area)
        found.by[span] = (side < self.published.smallest) | (side > self.published.largest)

    def rectangle(self, south: float, west: float, north: float, east: float) -> Answer:
        """The count of one box."""
        return self.rectangles(south, west, north, east)[0]

    def rectangles(
        self, south: np.ndarray | float, west: np.ndarray | float, north: np.ndarray | float, east: np.ndarray | float
    ) -> Answers:
        """The counts of boxes, each from learned or from noisy cells, whichever is expected to be nearer to the truth."""
        grid = self.published.grid
        south, west, north, east = (
            np.atleast_1d(part).astype(np.float64) for part in np.broadcast_arrays(south, west, north, east)
        )
        edges = (
            *((south - grid.south) * self._rows_per_degree, (west - grid.west) * self._cols_per_degree),
            *((north - grid.south) * self._rows_per_degree, (east - grid.west) * self._cols_per_degree),
        )
        self._check(*edges)
        return self._boxes(*edges)

    def _boxes(self, south: np.ndarray, west: np.ndarray, north: np.ndarray, east: np.ndarray) -> Answers:
        """Boxes with edges in cells; what they have outside the grid counts nothing."""
        south, north = np.clip(south, 0, self._rows), np.clip(north, 0, self._rows)
        west, east = np.clip(west, 0, self._cols), np.clip(east, 0, self._cols)
        boxes = Places((south + north) / 2, (west + east) / 2)
        tall, wide = north - south, east - west
        count, by = boxes.sums(self._noisy_sums, tall, wide), np.full(len(south), BY.index("noisy"), dtype=np.int8)
        shares = [share_powers(np.stack(edges, axis=1), 2) for edges in ((south, north), (west, east))]
        variance = self._variance * shares[0] * shares[1]
        if self._cells is not None:
            size = np.maximum(tall * wide, 1)
            # Beyond the largest block a constant error of the mean would grow with the area.
            factor = np.interp(np.log(size), self._blocks, self._factors) * np.maximum(1, size / np.exp(self._blocks[-1]))
            learned = np.maximum(boxes.sums(self._cells.variance_sums, tall, wide), 0) * factor
            is_nearer = learned < variance
            count = np.where(is_nearer, boxes.sums(self._cells.mean_sums, tall, wide), count)
            variance, by = np.minimum(learned, variance), np.where(is_nearer, BY.index("cells"), by).astype(np.int8)
        cut = np.zeros(len(south))
        for edge in (south, north):
            cut += _cut(edge) * Places(np.floor(edge) + 0.5, boxes.cols).sums(self._square_sums, 1.0, wide)
        for edge in (west, east):
            cut += _cut(edge) * Places(boxes.rows, np.floor(edge) + 0.5).sums(self._square_sums, tall, 1.0)
        count, reach = np.maximum(count, 0), NORMAL * np.sqrt(variance + self._unevenness * np.maximum(cut, 0))
        return Answers(count, np.floor(np.maximum(count - reach, 0)), np.ceil(count + reach), by)

    def _check(self, south: np.ndarray, west: np.ndarray, north: np.ndarray, east: np.ndarray) -> None:
        broken = ~((north > south) & (east > west) & np.isfinite(north - south) & np.isfinite(east - west))
        if broken.any():
            raise InputError(
                f"a query needs numbers for its place and a side above 0, but {np.count_nonzero(broken):,} of {len(broken):,} "
                f"have not, the first is number {int(np.argmax(broken)) + 1}."
            )
        outside = (north <= 0) | (south >= self._rows) | (east <= 0) | (west >= self._cols)
        if outside.any():
            grid = self.published.grid
            raise InputError(
                f"a query must lie in the box of the release, {grid.south} to {grid.north} north and {grid.west} to {grid.east} "
                f"east, but {np.count_nonzero(outside):,} of {len(outside):,} lie outside, the first is number "
                f"{int(np.argmax(outside)) + 1}."
            )


def _cut(edge: np.ndarray) -> np.ndarray:
    """w (1 - w) of the share w of a cell on one side of an edge: 0 where the edge lies between cells."""
    share = edge - np.floor(edge)
    return share * (1 - share)


def _trust(cells: Cells, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """By what factor the variance of a sum of learned cells exceeds the sum of their variances: (logarithms of sizes, factors).

    Were all cells' errors independent and their variances right, noisy minus learned would have the variance of the noise less
    that of the learned, on blocks of any size. What is there beyond that, and one standard error more, is charged to the learned.
    """
    own = np.maximum(cells.square - cells.mean.astype(np.float64) ** 2, 0)
    off, known = prefix(cells.noisy - cells.mean.astype(np.float64)), prefix(own)
    blocks = [block for block in BLOCKS if 4 * block <= min(cells.noisy.shape)] or [1]
    factors = []
    for block in blocks:
        rows, cols = (np.arange(block / 2, side - block / 2 + 0.5, block) for side in cells.noisy.shape)
        places = Places(rows, cols, lattice=True)
        mine = places.sums(known, block, block)
        excess = places.sums(off, block, block) ** 2 - (block**2 * variance - mine)
        more = excess.sum() + excess.std() * excess.size**0.5
        factors.append(1 + max(0.0, more / max(float(mine.sum()), 1e-9)))
    return np.log(np.square(blocks, dtype=np.float64)), np.maximum.accumulate(factors)
