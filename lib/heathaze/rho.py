"""rho: how fine to measure, chosen before any data is touched, from the number of events and epsilon.

For the squares of snh, the side of a cell: ParamSelect as it is shipped. How its law was found, and what it was held against,
is in `heathaze.evaluate.paramselect`. For a map in slices, the side of the blocks of cells that are measured as one.
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


STRENGTH, SLOPE = 0.8, 0.575
"""Single cells are measured where a mean cell holds this many noise scales of events in all slices together; of weaker cells,
blocks with the side (STRENGTH / strength) ^ SLOPE. Coarser ones hide more than they tell, finer ones drown. Fitted by hand
to the best sides of the synthetic cities of `make bench BENCH=blocks`, of the cabs and of Gowalla: public data, truth known."""


KEPT, COARSER = 0.36, 0.6
"""At user level: the part of the events of a synthetic city that bounding leaves, and by how many doublings of the side blocks
are coarser than the law. Small boxes suffer from what bounding leaves out, whatever the noise; large ones gain."""

FEWEST = 16
"""Blocks along the shorter side of the grid, at least: fewer make no map."""


def select_block(n: float, epsilon: float, unit: int, grid: tuple[int, int]) -> int:
    """The side, in cells, of the blocks to measure: of the powers of two that divide the grid, the one nearest to the law.

    Slices tell of each other, so that only their sum counts. Every argument is public, as for `select_rho`.
    """
    rows, cols = grid
    left, coarser = (KEPT, COARSER) if unit > 1 else (1.0, 0.0)
    strength = left * max(n, 1.0) / (rows * cols) * epsilon / unit
    wanted = max(0.0, SLOPE * log2(STRENGTH / strength) + coarser)
    side = 1
    while log2(side) + 0.5 < wanted and rows % (2 * side) == cols % (2 * side) == 0 and min(grid) >= FEWEST * 2 * side:
        side *= 2
    return side


def select_totals(side: int) -> Decimal:
    """The share of epsilon for the totals of slices where blocks of this side are measured.

    Where single cells can be told apart, they need it more. The larger the blocks that stand for them, the less there is to be
    seen of small boxes, and the more large ones gain from totals: a fiftieth for every doubling, up to a tenth.
    """
    return Decimal("0.02") * min(5, 1 + round(log2(side)))


def block_sums(counts: np.ndarray, side: int) -> np.ndarray:
    """Counts of square blocks of cells; the side divides rows and cols."""
    slices, rows, cols = counts.shape
    return counts.reshape(slices, rows // side, side, cols // side, side).sum((2, 4))


def spread_evenly(blocks: np.ndarray, side: int) -> np.ndarray:
    """Blocks as cells that share the count of their block evenly: what an answer by shares of areas says of them."""
    return blocks if side == 1 else np.repeat(np.repeat(blocks / np.float32(side * side), side, 1), side, 2)
