"""AG, the adaptive grid: Qardaji, Yang, Li 2013, "Differentially private grids for geospatial data" (ICDE).

Each slice is cut into coarse blocks, and each block again, the finer the more events it seems to hold; both levels are combined
by constrained inference. Epsilon: 1/50 for n of each slice; of the rest a share ALPHA for the first level and the other for the
second. At user level the rules see epsilon / k.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, sqrt

import numpy as np

from heathaze.evaluate.baselines.parts import cut, measure_totals, per_event, starts, widths
from heathaze.evaluate.baselines.uniform_grid import C
from heathaze.evaluate.meter import Meter

C2 = 5
"""The paper's constant of the second level."""

ALPHA = Fraction(1, 2)
"""The share of the first level."""

LEAST = 10
"""The first level has at least so many blocks along a side."""


def ag(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Two levels of blocks, the second adapted to the noisy counts of the first, made consistent, spread evenly."""
    totals, rest = measure_totals(counts, meter)
    first = rest * ALPHA
    second = rest - first

    outer = np.empty(counts.shape, dtype=np.int64)
    grids = []
    blocks = 0
    for number, total in enumerate(totals):
        m = max(LEAST, ceil(sqrt(total * per_event(rest, meter) / C) / 4))
        rows, cols = (min(m, side) for side in counts.shape[1:])
        grids.append((blocks, rows, cols))
        outer[number] = blocks + cut(counts.shape[1], rows)[:, None] * cols + cut(counts.shape[2], cols)
        blocks += rows * cols
    coarse = meter.laplace(_sums(counts, outer, blocks), first)

    wanted = np.ceil(np.sqrt(np.maximum(coarse, 0) * per_event(second, meter) / C2)).clip(1).astype(np.int64)
    inner = np.empty(counts.shape, dtype=np.int64)
    owner, used = [], 0
    for number, (offset, rows, cols) in enumerate(grids):
        m = wanted[offset : offset + rows * cols].reshape(rows, cols)
        labels, sizes = _divide(counts.shape[1:], m)
        inner[number] = used + labels
        owner.append(offset + np.repeat(np.arange(rows * cols), sizes.ravel()))
        used += int(sizes.sum())
    fine = meter.laplace(_sums(counts, inner, used), second)

    parent = np.concatenate(owner)
    parts = np.bincount(parent, minlength=blocks)
    below = np.bincount(parent, fine, blocks)
    # Weights by variance: 1 / first^2 of the block itself against parts / second^2 of the sum of its parts.
    weight = parts / (parts + float(second / first) ** 2)
    fine = fine + (weight * (coarse - below) / parts)[parent]
    return (fine / np.bincount(inner.ravel(), minlength=used)).astype(np.float32)[inner]


def _sums(counts: np.ndarray, labels: np.ndarray, parts: int) -> np.ndarray:
    return np.bincount(labels.ravel(), counts.ravel(), parts).astype(np.int64)


def _divide(shape: tuple[int, ...], m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The part of each cell when block (i, j) is cut into m[i, j] x m[i, j], no finer than cells; and the parts of each block."""
    block = [cut(size, parts) for size, parts in zip(shape, m.shape, strict=True)]
    place = [np.arange(size) - starts(size, parts)[cut(size, parts)] for size, parts in zip(shape, m.shape, strict=True)]
    width = [widths(size, parts) for size, parts in zip(shape, m.shape, strict=True)]
    down, across = np.minimum(m, width[0][:, None]), np.minimum(m, width[1])
    sizes = down * across
    offset = np.cumsum(sizes.ravel()).reshape(sizes.shape) - sizes
    row = place[0][:, None] * down[block[0]][:, block[1]] // width[0][block[0]][:, None]
    col = place[1] * across[block[0]][:, block[1]] // width[1][block[1]]
    return offset[block[0]][:, block[1]] + row * across[block[0]][:, block[1]] + col, sizes
