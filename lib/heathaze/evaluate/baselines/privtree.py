"""PrivTree: Zhang, Xiao, Xie 2016, "PrivTree: a differentially private algorithm for hierarchical decompositions" (SIGMOD).

A quadtree per slice, split wherever a noisy count is above 0, to any depth, with noise that does not grow with the depth: the
count of a node is biased downwards by DELTA per level (and held at -DELTA at least), so that one event can tip few of the
splits on its path. Epsilon: half for the splits, half for the totals of the leaves, which are spread evenly.

The law of the splits is the paper's: noise of scale lambda = (2 beta - 1) / (beta - 1) / epsilon for a fan-out of beta, and
delta = lambda ln(beta), whatever the depth. The biased counts do not depend on earlier noise, so the noise of all possible
nodes can be drawn in one call; that of nodes which never come to be is not looked at. At user level epsilon is divided by k
(group privacy).
"""

from __future__ import annotations

from fractions import Fraction
from math import log

import numpy as np

from heathaze.evaluate.baselines.tree import find_leaves, measure_leaves, pyramid
from heathaze.evaluate.meter import Meter

FAN = (1, 2, 2)
BETA = 4
"""Children of a node."""

SENSITIVITY = Fraction(2 * BETA - 1, BETA - 1)
"""What one event can move in all biased counts of a path together, by the paper's theorem 3.1."""


def privtree(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Leaves of an adaptive quadtree; a map of one cell is measured as it is."""
    levels = pyramid(counts, FAN)
    if len(levels) == 1:
        return meter.laplace(counts, meter.epsilon).astype(np.float32)
    half = meter.epsilon / 2
    delta = float(SENSITIVITY * meter.unit / half) * log(BETA)
    inner = levels[1:]
    depths = reversed(range(len(inner)))
    biased = [np.maximum(level - depth * delta, -delta) for level, depth in zip(inner, depths, strict=True)]
    noisy = meter.laplace(np.concatenate([level.ravel() for level in biased]), half, SENSITIVITY)
    parts = np.split(noisy, np.cumsum([level.size for level in inner])[:-1])
    splits = [part.reshape(level.shape) > 0 for part, level in zip(parts, inner, strict=True)]
    return measure_leaves(levels, find_leaves(splits, FAN, counts.shape), FAN, half, meter)
