"""MWEM: Hardt, Ligett, McSherry 2012, "A simple and practical algorithm for differentially private data release" (NIPS).

Starting from an even spread, each round picks the box that the estimate answers worst (exponential mechanism), measures it, and
re-weights the estimate until it fits all boxes measured so far. Every round passes over the whole domain, and each box says
little of single cells, so it runs on blocks: their totals are spread evenly over their cells. The workload is random boxes, the
same for every data set.

Epsilon: 1/50 for the number of events; the rest in equal parts to the rounds, half of each for the choice and half for the
measurement.
"""

from __future__ import annotations

import numpy as np

from heathaze.evaluate.baselines.parts import SMALL, block_sums, spread_blocks
from heathaze.evaluate.meter import Meter

MOST = (24, 64, 64)
"""At most so many blocks along slices, rows and columns."""

RUNS_AT = "24 x 64 x 64 blocks at most"
BOXES, ROUNDS, SWEEPS = 4000, 80, 10
"""Boxes of the workload; rounds; passes over the measured boxes after each round."""


def mwem(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Multiplicative weights on blocks."""
    truth = block_sums(counts, MOST)
    share = meter.epsilon * SMALL
    total = max(1.0, float(meter.laplace(np.atleast_1d(counts.sum()), share)[0]))
    each = (meter.epsilon - share) / (2 * ROUNDS)

    low, high = _random_boxes(truth.shape, meter)
    answers = _answer(truth, low, high)
    estimate = np.full(truth.shape, total / truth.size)
    measured: list[tuple[tuple[slice, ...], float]] = []
    for _ in range(ROUNDS):
        worst = meter.choose(np.abs(answers - _answer(estimate, low, high)), each)
        box = tuple(slice(a, b) for a, b in zip(low[worst], high[worst], strict=True))
        measured.append((box, float(meter.laplace(answers[worst : worst + 1], each)[0])))
        _fit(estimate, measured, total)
    return spread_blocks(estimate, counts.shape)


def _fit(estimate: np.ndarray, measured: list[tuple[tuple[slice, ...], float]], total: float) -> None:
    """Multiplicative weights, in place: the weight of a box changes by its error over twice the total."""
    for _ in range(SWEEPS):
        for box, answer in measured:
            step = (answer - estimate[box].sum()) / (2 * total)
            estimate[box] *= np.exp(np.clip(step, -10, 10))
            estimate *= total / estimate.sum()


def _random_boxes(shape: tuple[int, ...], meter: Meter) -> tuple[np.ndarray, np.ndarray]:
    """First and past-the-last corners of boxes with sides from one block to the whole axis."""
    ends = np.sort(meter.random.integers(0, np.array(shape) + 1, (2, BOXES, len(shape))), axis=0)
    low = np.minimum(ends[0], np.array(shape) - 1)
    return low, np.maximum(ends[1], low + 1)


def _answer(blocks: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Sums over boxes, by one table of prefix sums."""
    table = np.pad(blocks, [(1, 0)] * 3).cumsum(0).cumsum(1).cumsum(2)
    corners = np.stack([low, high])
    total = np.zeros(len(low), dtype=table.dtype)
    for i, j, k in np.ndindex(2, 2, 2):
        sign = 1 if (i + j + k) % 2 else -1
        total += sign * table[corners[i, :, 0], corners[j, :, 1], corners[k, :, 2]]
    return total
