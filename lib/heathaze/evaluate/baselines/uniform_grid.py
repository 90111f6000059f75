"""UG, the uniform grid: Qardaji, Yang, Li 2013, "Differentially private grids for geospatial data" (ICDE).

Each slice is cut into m x m blocks, m = sqrt(n epsilon / 10) with n the events of the slice: few blocks lose detail, many drown
in noise. Epsilon: 1/50 for n of each slice, the rest for the totals of the blocks. At user level the rule sees epsilon / k.
"""

from __future__ import annotations

from math import ceil, sqrt

import numpy as np

from heathaze.evaluate.baselines.parts import cut, measure_parts, measure_totals, per_event
from heathaze.evaluate.meter import Meter

C = 10
"""The paper's constant: the smaller, the finer the grid."""


def ug(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Noisy totals of m x m blocks, each spread evenly."""
    totals, rest = measure_totals(counts, meter)
    labels = np.empty(counts.shape, dtype=np.int64)
    used = 0
    for number, total in enumerate(totals):
        m = max(1, ceil(sqrt(total * per_event(rest, meter) / C)))
        rows, cols = (min(m, side) for side in counts.shape[1:])
        labels[number] = used + cut(counts.shape[1], rows)[:, None] * cols + cut(counts.shape[2], cols)
        used += rows * cols
    return measure_parts(counts, labels, rest, meter)
