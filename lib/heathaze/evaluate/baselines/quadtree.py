"""Quadtree with a geometric budget: Cormode, Procopiuc, Srivastava, Shen, Yu 2012, "Differentially private spatial
decompositions" (ICDE).

A tree of fan-out 2 x 2 per slice, from the whole map down to the cells. Epsilon grows by the cube root of 2 from each level to
the next finer one, which the paper shows to be best for range queries; the levels are combined by least squares. No pruning.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from heathaze.evaluate.baselines.tree import measure_levels, pyramid
from heathaze.evaluate.meter import Meter

FAN = (1, 2, 2)


def quadtree(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """All levels measured, the finer the better, and made consistent."""
    levels = pyramid(counts, FAN)
    weights = [Fraction(2 ** (-height / 3)).limit_denominator(10**6) for height in range(len(levels))]
    return measure_levels(levels, weights, FAN, meter)
