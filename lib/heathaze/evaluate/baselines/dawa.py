"""DAWA: Li, Hay, Miklau 2014, "A data- and workload-aware algorithm for range queries under differential privacy" (PVLDB).

Each slice is laid out along a Hilbert curve and cut into stretches that seem even. Epsilon: a quarter for the cut, the rest for
the totals of the stretches, which are spread evenly.

The cost of a stretch is the sum of |count - mean|, measured with noise, plus the noise that its total will get; the cheapest
cut is taken. As in public code of DAWA, single cells need no noise (their deviation is 0 for every data set) and a noisy
deviation below 0 counts as 0. Candidates are stretches of 4, 16, 64, ... cells that start at multiples of their length, so that
the cheapest cut is found by one pass up a tree; public code has powers of two at every place. The workload is taken to be the
cells: the paper's second stage for other workloads (a weighted tree over the stretches) is left out.

Sensitivity: one event is in one stretch of each of LEVELS lengths, whose deviation it changes by less than 2: 2 LEVELS in sum.
Public code draws noise as for one stretch (2 / epsilon). That is not enough where single cells have no noise and deviations are
cut at 0: a lone event on an empty map makes each of the stretches around its cell less even, and the cut that isolates it is
likelier by a factor for every one of them (exp(8.5 epsilon) at 18 levels, even with noise of scale 4 / epsilon). So all
deviations are charged here; few and long levels keep that affordable.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from heathaze.evaluate.baselines.tree import coarsen, find_leaves, measure_leaves, pyramid, refine
from heathaze.evaluate.meter import Meter

SHARE = Fraction(1, 4)
"""Of epsilon, for the cut."""

FAN = (1, 4)
LEVELS = 5
"""Lengths of stretches above the single cell: 4 to 1024 cells."""


def dawa(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Even stretches along a Hilbert curve; a map of one cell is measured as it is."""
    order = hilbert_order(*counts.shape[1:])
    line = counts.reshape(len(counts), -1)[:, order]
    levels = pyramid(line, FAN)[: LEVELS + 1]
    share = meter.epsilon * SHARE if len(levels) > 1 else Fraction(0)
    rest = meter.epsilon - share
    splits = _cut(levels, share, float(meter.unit / rest), meter) if share else []
    estimate = np.empty(line.shape, dtype=np.float32)
    estimate[:, order] = measure_leaves(levels, find_leaves(splits, FAN, line.shape), FAN, rest, meter)
    return estimate.reshape(counts.shape)


def _cut(levels: list[np.ndarray], epsilon: Fraction, price: float, meter: Meter) -> list[np.ndarray]:
    """Whether each stretch longer than a cell is worse than the best cut of it; `price`: the cost of one more total."""
    every = np.concatenate([level.ravel() for level in _deviations(levels)])
    deviations = meter.laplace(every, epsilon, 2 * (len(levels) - 1))
    parts = np.split(deviations, np.cumsum([level.size for level in levels[1:]])[:-1])
    splits = []
    best = np.full((1, levels[0].shape[1]), price)
    for part, level in zip(parts, levels[1:], strict=True):
        cost = np.maximum(part.reshape(level.shape), 0) + price
        apart = coarsen(best, FAN)
        splits.append(cost > apart)
        best = np.minimum(cost, apart)
    return splits


def _deviations(levels: list[np.ndarray]) -> list[np.ndarray]:
    """The sum of |count - mean| of every stretch, by level above the cells."""
    line = levels[0]
    sizes = np.ones((1, line.shape[1]))
    found = []
    for number, level in enumerate(levels[1:], start=1):
        sizes = coarsen(sizes, FAN)
        length = (1, FAN[1] ** number)
        gap = refine((level / sizes).astype(np.float32), length, line.shape)
        np.abs(line - gap, out=gap)
        found.append(np.add.reduceat(gap, np.arange(0, line.shape[1], length[1]), axis=1, dtype=float))
    return found


def hilbert_order(rows: int, cols: int) -> np.ndarray:
    """The cells, by flat index, in the order in which the Hilbert curve of the next power of two meets them."""
    side = 1 << max(rows - 1, cols - 1, 1).bit_length()
    y, x = np.indices((rows, cols))
    place = np.zeros((rows, cols), dtype=np.int64)
    half = side // 2
    while half:
        right, up = (x & half) > 0, (y & half) > 0
        place += half * half * ((3 * right) ^ up)
        mirrored = right & ~up
        x, y = np.where(mirrored, side - 1 - x, x), np.where(mirrored, side - 1 - y, y)
        x, y = np.where(up, x, y), np.where(up, y, x)
        half //= 2
    return np.argsort(place, axis=None)
