"""Sums over boxes of a tensor, many at once, from its prefix sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count

import numpy as np

CHUNK = 4096
"""Boxes that are looked up together: what they need stays in the processor's cache."""
SIGN = np.array([-1.0, 1.0])
"""Of the begin and the end of an edge."""


def prefix_sum(values: Sequence[np.ndarray] | np.ndarray, power: int = 1) -> np.ndarray:
    """F[t, r, c] = the sum of values[:t, :r, :c], to a power, float64, one longer than `values` along each axis."""
    slices, (rows, cols) = len(values), values[0].shape
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

    def look_up(part: slice) -> None:
        times, time_shares = _nodes(slices[part], shape[0])
        heights, height_shares = _nodes(rows[part], shape[1])
        widths, beyond = _below(cols[part], shape[2])
        width_shares = np.stack([SIGN * (1 - beyond), SIGN * beyond], axis=2).reshape(-1, 4)
        places = (times[:, :, None] * shape[1] + heights[:, None, :])[..., None] * shape[2] + widths[:, None, None, :]
        for prefix, out in zip(prefixes, sums, strict=True):
            # Neighbouring columns are looked up as one number of twice the size, for half as many look-ups.
            pairs = np.ndarray(prefix.size - 1, np.complex128, prefix.data, strides=(8,))
            found = pairs[places].view(np.float64)
            lines = np.einsum("ntrc,nc->ntr", found, width_shares)
            out[part] = np.einsum("nt,nt->n", np.einsum("ntr,nr->nt", lines, height_shares), time_shares)

    _by_parts(look_up, len(slices))
    return sums


def whole_sums(prefix: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Sums over boxes of whole cells: low (within) and high (beyond) are n x 3 indices of slice, row and column."""
    flat, sums = prefix.ravel(), np.zeros(len(low))

    def look_up(part: slice) -> None:
        times, heights, widths = np.stack([low[part], high[part]]).transpose(2, 0, 1)
        for time, height, width in np.ndindex(2, 2, 2):
            places = (times[time] * prefix.shape[1] + heights[height]) * prefix.shape[2] + widths[width]
            sums[part] += SIGN[time] * SIGN[height] * SIGN[width] * flat.take(places)

    _by_parts(look_up, len(low))
    return sums


def _by_parts(work: Callable[[slice], None], size: int) -> None:
    """Chunk by chunk, several at a time where there are many: memory answers two cores faster than one."""
    parts = [slice(start, start + CHUNK) for start in range(0, size, CHUNK)]
    if len(parts) < 4:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(max_workers=min(8, cpu_count() or 1)) as pool:
        list(pool.map(work, parts))


def share_powers(edges: np.ndarray, power: int) -> np.ndarray:
    """Along one axis: the sum over cells of the share that lies between the edges (n x 2), to a power."""
    first, last = np.floor(edges[:, 0]), np.ceil(edges[:, 1]) - 1
    ends = (first + 1 - edges[:, 0]) ** power + (edges[:, 1] - last) ** power
    return np.where(first >= last, (edges[:, 1] - edges[:, 0]) ** power, ends + last - first - 1)


def _nodes(edges: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes of F along one axis that the edges lie on or between, and their weights in F(end) - F(begin)."""
    whole = np.rint(edges)
    if (whole == edges).all():
        return whole.astype(np.int64), np.broadcast_to(SIGN, edges.shape)
    below, beyond = _below(edges, size)
    return np.concatenate([below, below + 1], axis=1), np.concatenate([SIGN * (1 - beyond), SIGN * beyond], axis=1)


def _below(edges: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The node below each edge, never the last one, and how far beyond it the edge lies."""
    below = np.minimum(edges.astype(np.int64), size - 2)
    return below, edges - below
