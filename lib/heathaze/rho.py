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


STRENGTH, SLOPE = 0.8, 0.575
"""At event level, single cells are measured where a mean cell holds this many noise scales of events in all slices together; of
weaker cells, blocks with the side (STRENGTH / strength) ^ SLOPE. Coarser ones hide more than they tell, finer ones drown. Fitted
by hand to the best sides of the synthetic cities of `make bench BENCH=blocks` and of the cabs: public data, truth known."""

KEPT, OF_MAP = 0.36, 1.4
"""At user level: the part of the events of a synthetic city that bounding leaves; and the strength from which on single cells are
measured. Of weaker cells, the map of the whole period is measured in blocks with the side (OF_MAP / strength) ^ 1/2, and slices
in blocks (2 x slices) ^ 1/2 times as large. Fitted by hand to the best sides of synthetic cities of the seed 4 at epsilon 0.25, 1
and 4, and of Gowalla."""

FEWEST, FEWEST_OF_SLICES = 16, 3
"""Blocks along the shorter side of the grid, at least: fewer make no map; of slices beside a map, fewer are enough."""


def select_measuring(n: float, epsilon: float, unit: int, grid: tuple[int, int], slices: int) -> Measuring:
    """How to measure about `n` events, of which up to `unit` of one person may be in the counts, on a grid of rows x cols cells.

    Every argument is public, as for `select_rho`. At event level slices tell of each other through the denoiser, and blocks stand
    for cells in all of them alike. At user level, noise is so much stronger that a map of all slices together is measured apart.
    """
    rows, cols = grid
    strength = max(n, 1.0) / (rows * cols) * epsilon / unit
    if unit == 1:
        block = _power_of_two(SLOPE * log2(STRENGTH / strength), grid)
        totals = Decimal("0.02") * min(5, 1 + round(log2(block)))
        return Measuring(block, 0, 1 - totals, totals, Decimal(0))
    block = _power_of_two(log2(OF_MAP / (KEPT * strength)) / 2, grid)
    wanted = log2(block) + log2(2 * slices) / 2
    sides = [side for side in range(2 * block, min(grid) // FEWEST_OF_SLICES + 1, block) if rows % side == cols % side == 0]
    if block == 1 or slices == 1 or not sides:
        totals = Decimal("0.02") if block == 1 else Decimal("0.1")
        return Measuring(block, 0, 1 - totals, totals, Decimal(0))
    slice_block = min(sides, key=lambda side: abs(log2(side) - wanted))
    return Measuring(block, slice_block, Decimal("0.63"), Decimal("0.25"), Decimal("0.12"))


def _power_of_two(wanted: float, grid: tuple[int, int]) -> int:
    """Of the powers of two that divide the grid, the one nearest to 2 ^ wanted that leaves enough blocks."""
    rows, cols = grid
    side = 1
    while log2(side) + 0.5 < wanted and rows % (2 * side) == cols % (2 * side) == 0 and min(grid) >= FEWEST * 2 * side:
        side *= 2
    return side


def block_sums(counts: np.ndarray, side: int) -> np.ndarray:
    """Counts of square blocks of cells; the side divides rows and cols."""
    slices, rows, cols = counts.shape
    return counts.reshape(slices, rows // side, side, cols // side, side).sum((2, 4))


def spread_evenly(blocks: np.ndarray, side: int) -> np.ndarray:
    """Blocks as cells that share the count of their block evenly: what an answer by shares of areas says of them."""
    return blocks if side == 1 else np.repeat(np.repeat(blocks / np.float32(side * side), side, 1), side, 2)
