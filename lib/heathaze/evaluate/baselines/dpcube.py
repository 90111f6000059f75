"""DPCube: Xiao, Xiong, Yuan 2010, "Differentially private data release through multidimensional partitioning" (SDM workshop).

Noisy cells say where the map is even, a kd-tree cuts it there, and the totals of its parts are measured again. Epsilon: half
for the cells, half for the totals. Both measurements of a part (its noisy total, and the sum of its noisy cells) are weighted
by their variances, and the result is spread evenly over its cells.

A part is cut as long as its noisy cells vary more than noise alone would (the paper's test of evenness, with the threshold
taken from the known variance of the noise), at the one of a few places along rows or columns that explains most of the
variance. Slices have trees of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import log

import numpy as np

from heathaze.evaluate.meter import Meter
from heathaze.learn.denoiser import noise_fourth_moment, noise_variance

PLACES = np.arange(1, 8) / 8
"""Where a part may be cut, as shares of its side."""

SURE = 3.0
"""A part is uneven when its variance is so many standard errors above that of noise."""


@dataclass(frozen=True)
class _Tables:
    """Prefix sums of the noisy cells and of their squares, per slice."""

    first: np.ndarray
    second: np.ndarray


def dpcube(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Parts of a kd-tree on noisy cells, measured twice."""
    half = meter.epsilon / 2
    noisy = meter.laplace(counts, half)
    labels, boxes = _partition(noisy, Fraction(meter.unit) / half)
    totals = np.bincount(labels.ravel(), counts.ravel(), len(boxes)).astype(np.int64)
    again = meter.laplace(totals, half)
    sizes = _sizes(boxes)
    of_cells = np.bincount(labels.ravel(), noisy.ravel(), len(boxes))
    best = (sizes * again + of_cells) / (sizes + 1)
    return (best / sizes).astype(np.float32)[labels]


def _partition(noisy: np.ndarray, scale: Fraction) -> tuple[np.ndarray, np.ndarray]:
    """The part of each cell, and the boxes (slice, top, bottom, left, right) of the parts."""
    tables = _Tables(_prefix_sums(noisy), _prefix_sums(noisy**2))
    slices, rows, cols = noisy.shape
    boxes = np.array([[number, 0, rows, 0, cols] for number in range(slices)])
    done = []
    while len(boxes):
        uneven, cut_rows, cut_cols = _where_to_cut(boxes, tables, scale)
        done.append(boxes[~uneven])
        boxes = _halves(boxes[uneven], cut_rows[uneven], cut_cols[uneven])
    parts = np.concatenate(done)
    return _paint(parts, noisy.shape), parts


def _where_to_cut(boxes: np.ndarray, tables: _Tables, scale: Fraction) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which boxes are uneven, and the row or the column (the other is -1) at which each is cut best."""
    variance, fourth = noise_variance(scale), noise_fourth_moment(scale)
    size, total = _sizes(boxes), _sums(tables.first, boxes)
    spread = _sums(tables.second, boxes) - total**2 / size
    sampling = np.sqrt(size * max(fourth - variance**2, 0))

    height, width = boxes[:, 2] - boxes[:, 1], boxes[:, 4] - boxes[:, 3]
    gains, places = [], []
    for share in PLACES:
        row = boxes[:, 1] + np.maximum(1, (height * share).astype(int))
        col = boxes[:, 3] + np.maximum(1, (width * share).astype(int))
        for is_row, place, side in ((True, row, height), (False, col, width)):
            one = boxes.copy()
            one[:, 2 if is_row else 4] = place
            part, mass = np.minimum(_sizes(one), size - 1), _sums(tables.first, one)
            gain = mass**2 / np.maximum(part, 1) + (total - mass) ** 2 / np.maximum(size - part, 1) - total**2 / size
            gains.append(np.where(side > 1, gain, -np.inf))
            places.append(np.stack([place if is_row else np.full_like(place, -1), np.full_like(place, -1) if is_row else place]))
    best = np.argmax(gains, axis=0)
    gain = np.take_along_axis(np.array(gains), best[None], 0)[0]
    rows, cols = np.array(places)[best, :, np.arange(len(boxes))].T
    # Either the cells vary more than noise, or the means of two sides differ; 2 ln N is what the best of N cuts gains by chance.
    vary = spread - (size - 1) * variance > SURE * sampling
    differ = gain > 2 * log(len(gains) * len(boxes)) * variance
    return (vary | differ) & (size > 1), rows, cols


def _halves(boxes: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    one, other = boxes.copy(), boxes.copy()
    by_row = rows >= 0
    one[by_row, 2] = other[by_row, 1] = rows[by_row]
    one[~by_row, 4] = other[~by_row, 3] = cols[~by_row]
    return np.concatenate([one, other])


def _sizes(boxes: np.ndarray) -> np.ndarray:
    return (boxes[:, 2] - boxes[:, 1]) * (boxes[:, 4] - boxes[:, 3])


def _prefix_sums(values: np.ndarray) -> np.ndarray:
    return np.pad(values, [(0, 0), (1, 0), (1, 0)]).cumsum(1).cumsum(2)


def _sums(table: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    number, top, bottom, left, right = boxes.T
    found = table[number, bottom, right] - table[number, top, right] - table[number, bottom, left] + table[number, top, left]
    return found.astype(float)


def _paint(boxes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The number of the box that covers each cell: differences at the corners, summed up. The boxes cover each cell once."""
    edges = np.zeros((shape[0], shape[1] + 1, shape[2] + 1), dtype=np.int64)
    number, top, bottom, left, right = boxes.T
    label = np.arange(len(boxes))
    for row, col, sign in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
        np.add.at(edges, (number, row, col), sign * label)
    return edges.cumsum(1).cumsum(2)[:, :-1, :-1]
