"""In the manner of Private-PGM: McKenna, Sheldon, Miklau 2019, "Graphical-model based estimation and inference for differential
privacy" (ICML).

Per slice three marginals are measured: rows, columns, and the joint of row blocks and column blocks. Epsilon: a quarter, a
quarter, a half. With these cliques the distribution of largest entropy is a product: events of the block x share of the row
within its block row x share of the column within its block column.

Simplified against Private-PGM: its loss is minimised in closed form (weighted least squares on the blocks, then the nearest
non-negative table of the same total) and not by mirror descent over the non-negative table at once; cliques are fixed.
"""

from __future__ import annotations

import numpy as np

from heathaze.evaluate.baselines.parts import block_sums, cut, starts, widths
from heathaze.evaluate.meter import Meter

BLOCKS = 32
"""Row blocks and column blocks of the joint, at most."""


def pgm(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Blocks, rows and columns, combined."""
    slices, rows, cols = counts.shape
    quarter = meter.epsilon / 4
    by_row = meter.laplace(counts.sum(2), quarter).astype(float)
    by_col = meter.laplace(counts.sum(1), quarter).astype(float)
    joint = meter.laplace(block_sums(counts, (slices, BLOCKS, BLOCKS)), 2 * quarter).astype(float)

    blocks = _agree(joint, block_sums(by_row, (slices, BLOCKS)), block_sums(by_col, (slices, BLOCKS)), rows, cols)
    blocks = _nearest_nonnegative(blocks.reshape(slices, -1)).reshape(joint.shape)
    in_row = _shares(by_row, blocks.sum(2))
    in_col = _shares(by_col, blocks.sum(1))
    row_block, col_block = cut(rows, joint.shape[1]), cut(cols, joint.shape[2])
    estimate = blocks.astype(np.float32)[:, row_block][:, :, col_block]
    estimate *= in_row.astype(np.float32)[:, :, None]
    estimate *= in_col.astype(np.float32)[:, None, :]
    return estimate


def _agree(joint: np.ndarray, by_row: np.ndarray, by_col: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """The blocks nearest to the measured joint, rows and columns, each weighted by its variance (that of a joint block being 1).

    The best change of a block is minus the sum of one force per block row and one per block column: a linear system in those.
    """
    down, across = joint.shape[1:]
    # A marginal cell has half the joint's epsilon, so four times its variance, and a block row adds up several of them.
    row_variance, col_variance = 4.0 * widths(rows, down), 4.0 * widths(cols, across)
    system = np.block(
        [
            [np.diag(row_variance) + across * np.eye(down), np.ones((down, across))],
            [np.ones((across, down)), np.diag(col_variance) + down * np.eye(across)],
        ]
    )
    gaps = np.concatenate([joint.sum(2) - by_row, joint.sum(1) - by_col], axis=1)
    force = np.linalg.solve(system, gaps.T).T
    return joint - force[:, :down, None] - force[:, None, down:]


def _nearest_nonnegative(tables: np.ndarray) -> np.ndarray:
    """The nearest table (per row of the array) without negatives and with the same total, 0 where the total is negative."""
    total = np.maximum(tables.sum(1, keepdims=True), 0)
    falling = -np.sort(-tables, axis=1)
    levels = (np.cumsum(falling, axis=1) - total) / np.arange(1, tables.shape[1] + 1)
    last = np.maximum((falling > levels).sum(1, keepdims=True) - 1, 0)
    return np.maximum(tables - np.take_along_axis(levels, last, 1), 0)


def _shares(measured: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """The share of each row (or column) in its block, after the block's total has been made what it is known to be."""
    size, parts = measured.shape[1], totals.shape[1]
    block, width, first = cut(size, parts), widths(size, parts), starts(size, parts)
    known = measured + ((totals - np.add.reduceat(measured, first, axis=1)) / width)[:, block]
    kept = np.maximum(known, 0)
    sums = np.add.reduceat(kept, first, axis=1)[:, block]
    return np.where(sums > 0, kept / np.where(sums > 0, sums, 1), 1 / width[block])
