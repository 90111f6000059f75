"""rho: how fine to measure, chosen before any data is touched, from the number of events and epsilon.

For the squares of snh, the side of a cell: ParamSelect as it is shipped. How its law was found, and what it was held against,
is in `heathaze.evaluate.paramselect`. For a map in slices, the sides of the blocks of cells that are measured as
one, and how epsilon is divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from math import exp, isfinite, log, log2

import numpy as np

from heathaze.errors import InputError


@dataclass(frozen=True)
class PowerLaw:
    """rho = exp(a) n^b epsilon^c, metres."""

    a: float
    b: float
    c: float

    def predict(self, n: float, epsilon: float, entropy: float | None = None) -> float:
        return exp(self.a + self.b * log(n) + self.c * log(epsilon))


SHIPPED = PowerLaw(a=7.411, b=-0.4043, c=-0.4046)


def select_rho(n: float, epsilon: float, unit: int = 1) -> float:
    """The side of a cell, metres, for about `n` events, of which up to `unit` of one person may be in the counts.

    Every argument is public: `n` is declared, guessed, or an earlier release's noisy n; never counted.
    """
    if not (isfinite(n) and n >= 1 and isfinite(epsilon) and epsilon > 0 and unit >= 1):
        raise InputError(f"a side of cells needs n >= 1, epsilon > 0 and unit >= 1, but found {n}, {epsilon} and {unit}.")
    # The noise is that of one event at epsilon / unit.
    return SHIPPED.predict(n, float(epsilon) / unit)


@dataclass(frozen=True)
class Measuring:
    """How a map in slices is measured: sides in cells, and how epsilon is divided."""

    block: int
    """Side of the blocks that are published."""
    slice_block: int
    """Side of the larger ones in which slices are measured beside a map of the whole period; 0: there is no such map."""
    histogram: Decimal
    totals: Decimal
    map: Decimal


EVENT, EVENT_DAYS, EVENT_HOURS = 0.1, 1.5, 0.14
"""At event level, with strength as how many noise scales of events a mean cell holds, in all slices or in one: the map of the
whole period is measured in blocks with the side (EVENT / strength) ^ 1/2, slices of a day or more in those with the side
(EVENT_DAYS / strength) ^ 1/2, and shorter ones in EVENT_HOURS / strength. Coarser blocks hide more than they tell, finer ones
drown. Where in a block people are changes little from day to day, but from hour to hour they go to work and home, so that blocks
must be small as soon as the noise lets them. Fitted by hand to the cabs at epsilon 0.05 and 0.2 (days) and to synthetic cities
of the seeds 4 and 6 at the same (hours): public data, truth known."""

CLEAR = 1 / 16
"""At event level: where a mean cell of a slice holds so many noise scales of events, cells are measured, and there is no map."""

USER, KEPT = 1.4, 0.36
"""At user level: the same law for the map, of what bounding leaves of the events of a synthetic city; slices in blocks
(2 x slices) ^ 1/2 times as large. Small boxes suffer from what bounding leaves out, whatever the noise; large ones gain.
Fitted by hand to synthetic cities of the seed 4 at epsilon 0.25, 1 and 4, and to Gowalla."""

MAP_SHARE = 0.042
"""At user level, the share of epsilon for the map is this times slices ^ 1/2, 0.3 at most: the more slices there are, the more a
map of all together is worth. Fitted by hand to the same data."""

TOTALS_BESIDE_CELLS = Decimal("0.01")
"""At event level, the share of epsilon for the totals of slices where cells are measured and there is no map: on the cabs at
epsilon 0.8, first draw, twice as much makes cells and boxes of every size worse by 1 to 5 %, and only whole slices better. Chosen
with the truth of that draw in view."""

FEWEST, FEWEST_OF_SLICES = 16, 3
"""Blocks along the shorter side of the grid, at least: fewer make no map; of slices beside a map, fewer are enough."""


def select_measuring(n: float, epsilon: float, unit: int, grid: tuple[int, int], slices: int, days: int = 1) -> Measuring:
    """How to measure about `n` events, of which up to `unit` of one person may be in the counts, on a grid of rows x cols cells
    in so many slices of a period of so many days.

    Every argument is public, as for `select_rho`. The weaker the signal, the larger the blocks; a single slice shows less than
    all together, so that it is measured in larger blocks than the map of the whole period. Where cells of single slices can be
    told apart, they are measured, and there is no map.
    """
    strength = max(n, 1.0) / (grid[0] * grid[1]) * epsilon / unit
    if unit == 1:
        wanted, of_slice = (EVENT / strength) ** 0.5, strength / slices
        wanted_of_slices = (EVENT_DAYS / of_slice) ** 0.5 if days >= slices else EVENT_HOURS / of_slice
        if of_slice > CLEAR:
            wanted_of_slices = 1.0
        shares = Decimal("0.54"), Decimal("0.06"), Decimal("0.4")
    else:
        wanted = (USER / (KEPT * strength)) ** 0.5
        wanted_of_slices = max(1.0, wanted) * (2 * slices) ** 0.5
        whole = min(Decimal("0.3"), Decimal(str(round(MAP_SHARE * slices**0.5, 2))))
        shares = Decimal("0.75") - whole, Decimal("0.25"), whole
    block = _power_of_two(wanted, grid)
    rows, cols = grid
    sides = [side for side in range(block, min(grid) // FEWEST_OF_SLICES + 1, block) if rows % side == cols % side == 0]
    slice_block = min(sides, key=lambda side: abs(log2(side / wanted_of_slices)), default=block)
    if slices == 1 or slice_block == block or (unit > 1 and block == 1):
        beside_cells = TOTALS_BESIDE_CELLS if unit == 1 else Decimal("0.02")
        totals = beside_cells if block == 1 else Decimal("0.1")
        return Measuring(block, 0, 1 - totals, totals, Decimal(0))
    return Measuring(block, slice_block, *shares)


def _power_of_two(wanted: float, grid: tuple[int, int]) -> int:
    """Of the powers of two that divide the grid, the one nearest to the wanted side that leaves enough blocks."""
    rows, cols = grid
    side = 1
    while side * 2**0.5 < wanted and rows % (2 * side) == cols % (2 * side) == 0 and min(grid) >= FEWEST * 2 * side:
        side *= 2
    return side


def block_sums(counts: np.ndarray, side: int) -> np.ndarray:
    """Counts of square blocks of cells; the side divides rows and cols."""
    slices, rows, cols = counts.shape
    return counts.reshape(slices, rows // side, side, cols // side, side).sum((2, 4))


def spread_evenly(blocks: np.ndarray, side: int) -> np.ndarray:
    """Blocks as cells that share the count of their block evenly: what an answer by shares of areas says of them."""
    return blocks if side == 1 else np.repeat(np.repeat(blocks / np.float32(side * side), side, 1), side, 2)
