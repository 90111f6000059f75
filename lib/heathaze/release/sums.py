"""Sums over boxes of a tensor, many at once, from its prefix sums."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

CHUNK = 4096
"""Boxes that are looked up together: what they need stays in the processor's cache."""


def prefix_sum(values: np.ndarray, power: int = 1) -> np.ndarray:
    """F[t, r, c] = the sum of values[:t, :r, :c], to a power, float64, one longer than `values` along each axis."""
    slices, rows, cols = values.shape
    total = np.zeros((rows, cols))
    prefix = np.empty((slices + 1, rows + 1, cols + 1))
    prefix[0], prefix[:, 0], prefix[:, :, 0] = 0, 0, 0
    for number in range(slices):
        total += values[number] if power == 1 else values[number] ** power
        image = prefix[number + 1, 1:, 1:]
        np.cumsum(total, axis=0, out=image)
        np.cumsum(image, axis=1, out=image)
    return prefix


def box_sums(prefixes: Sequence[np.ndarray], slices: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> list[np.ndarray]:
    """Sums over boxes, for each of some tensors of one shape. Edges are n x 2, in cells, and may cut them.

    A cell counts by the share of it that lies in the box: F is interpolated between its nodes, linearly along each axis.
    """
    sums = [np.empty(len(slices)) for _ in prefixes]
    shape = prefixes[0].shape

    def look_up(start: int) -> None:
        part = slice(start, start + CHUNK)
        found = [_nodes(edges[part], size) for edges, size in zip((slices, rows, cols), shape, strict=True)]
        (times, time_shares), (heights, height_shares), (widths, width_shares) = found
        places = (times[:, :, None] * shape[1] + heights[:, None, :])[..., None] * shape[2] + widths[:, None, None, :]
        for prefix, out in zip(prefixes, sums, strict=True):
            lines = np.einsum("ntrc,nc->ntr", prefix.ravel().take(places), width_shares)
            out[part] = np.einsum("nt,nt->n", np.einsum("ntr,nr->nt", lines, height_shares), time_shares)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy lets go of the interpreter while it looks up
        list(pool.map(look_up, range(0, len(slices), CHUNK)))
    return sums


def whole_sums(prefix: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Sums over boxes of whole cells: low (within) and high (beyond) are n x 3 indices of slice, row and column."""
    sums = np.zeros(len(low))
    for corner in np.ndindex(2, 2, 2):
        place = [(low, high)[end][:, axis] for axis, end in enumerate(corner)]
        sums += (-1) ** (3 - sum(corner)) * prefix[place[0], place[1], place[2]]
    return sums


def share_powers(edges: np.ndarray, power: int) -> np.ndarray:
    """Along one axis: the sum over cells of the share that lies between the edges (n x 2), to a power."""
    first, last = np.floor(edges[:, 0]), np.ceil(edges[:, 1]) - 1
    ends = (first + 1 - edges[:, 0]) ** power + (edges[:, 1] - last) ** power
    return np.where(first >= last, (edges[:, 1] - edges[:, 0]) ** power, ends + last - first - 1)


def _nodes(edges: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of F along one axis that the edges lie on or between, and their weights in F(end) - F(begin)."""
    below = edges.astype(np.int64)
    beyond, sign = edges - below, np.array([-1.0, 1.0])
    if not beyond.any():
        return below, np.broadcast_to(sign, below.shape)
    nodes = np.concatenate([below, np.minimum(below + 1, size - 1)], axis=1)
    return nodes, np.concatenate([sign * (1 - beyond), sign * beyond], axis=1)
