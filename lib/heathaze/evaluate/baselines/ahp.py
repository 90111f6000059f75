"""AHP: Zhang, Chen, Xu, Meng, Xie 2014, "Towards accurate histogram publication under differential privacy" (SDM).

Cells of like count are averaged together, wherever they are. Epsilon: a share for noisy counts, which only say what is alike
(small ones are taken for 0, all are sorted, neighbours in the order join a cluster while that lowers the expected error); the
rest for the totals of the clusters, which are spread evenly. The whole tensor is one histogram. Noisy counts are whole numbers,
so the greedy pass goes over distinct values, equal ones together. Shares as in the authors' code for small epsilon.
"""

from __future__ import annotations

from fractions import Fraction
from math import log

import numpy as np

from heathaze.evaluate.baselines.parts import measure_parts, per_event
from heathaze.evaluate.meter import Meter

SHARE = Fraction(17, 20)
"""Of epsilon, for what is alike."""

ETA = 0.35
"""Noisy counts up to ETA ln(cells) / epsilon are taken for 0."""


def ahp(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Means of clusters of like noisy counts."""
    share = meter.epsilon * SHARE
    noisy = meter.laplace(counts, share)
    noisy[noisy <= ETA * log(counts.size) / per_event(share, meter)] = 0
    values, index, sizes = np.unique(noisy, return_inverse=True, return_counts=True)
    rest = meter.epsilon - share
    clusters = _cluster(values.astype(float), sizes.astype(float), 2 / per_event(rest, meter) ** 2)
    return measure_parts(counts, clusters[index.reshape(counts.shape)], rest, meter)


def _cluster(values: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
    """The cluster of each value, values ascending. `noise`: the variance of one total.

    A value joins the open cluster unless the error of both apart would be no larger, where a value apart may count on the
    company that suits it best among those that follow.
    """
    n, total, square = (np.cumsum(np.insert(part, 0, 0)) for part in (sizes, sizes * values, sizes * values**2))
    clusters = np.zeros(len(values), dtype=np.int64)
    first = 0

    def error(last: int) -> float:
        size, mass = n[last] - n[first], total[last] - total[first]
        return square[last] - square[first] - mass**2 / size + noise / size

    for next_one in range(1, len(values)):
        size, mass = n[next_one + 1 :] - n[next_one], total[next_one + 1 :] - total[next_one]
        apart = sizes[next_one] * ((values[next_one] - mass / size) ** 2 + noise / size**2).min()
        clusters[next_one] = clusters[next_one - 1]
        if error(next_one + 1) >= error(next_one) + apart:
            clusters[next_one] += 1
            first = next_one
    return clusters
