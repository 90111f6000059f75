"""HB, hierarchies with the best fan-out: Qardaji, Yang, Li 2013, "Understanding hierarchical methods for differentially private
histograms" (PVLDB), made consistent as in Hay, Rastogi, Miklau, Suciu 2010.

All levels below the root are measured, with equal shares of epsilon. The fan-out b along each side is that of the least b h^2,
with h the levels: the paper's measure of the mean variance of a range query (section 5.1). It depends on the shape only.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from heathaze.evaluate.baselines.tree import measure_levels, pyramid
from heathaze.evaluate.meter import Meter


def hb(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """A tree over rows and columns for every slice ("striped")."""
    b = best_fan(max(counts.shape[1:]))
    return _measure(counts, (1, b, b), meter)


def hb3d(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """One tree over slices, rows and columns: sums over time are measured as well."""
    b = best_fan(max(counts.shape))
    return _measure(counts, (b, b, b), meter)


def best_fan(side: int) -> int:
    """The fan-out of the least b h^2 for a side of so many cells."""
    return min(range(2, max(side, 2) + 1), key=lambda b: b * _height(side, b) ** 2)


def _height(side: int, b: int) -> int:
    """Measured levels: those below the root, of which there is at least one."""
    levels = 1
    while side > b:
        side, levels = -(-side // b), levels + 1
    return levels


def _measure(counts: np.ndarray, fan: tuple[int, ...], meter: Meter) -> np.ndarray:
    levels = pyramid(counts, fan)
    below_root = levels[:-1] or levels
    return measure_levels(below_root, [Fraction(1)] * len(below_root), fan, meter)
