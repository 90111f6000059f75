"""What the partition methods share: cutting a side into blocks, measuring disjoint parts, spreading a total over its cells."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from heathaze.evaluate.meter import Meter

SMALL = Fraction(1, 50)
"""The share of epsilon for the number of events of each slice, where a method needs it."""


def measure_totals(counts: np.ndarray, meter: Meter) -> tuple[np.ndarray, Fraction]:
    """The events of each slice, at least 1, measured with a SMALL share; and the epsilon that is left."""
    share = meter.epsilon * SMALL
    noisy = meter.laplace(counts.sum((1, 2)), share)
    return np.maximum(noisy, 1).astype(float), meter.epsilon - share


def per_event(epsilon: Fraction, meter: Meter) -> float:
    """The epsilon that one event gets: what the papers' rules of thumb, made for one event per person, call epsilon."""
    return float(epsilon / meter.unit)


def cut(size: int, parts: int) -> np.ndarray:
    """The block of each cell of a side cut into `parts` blocks of nearly equal width."""
    return np.arange(size) * parts // size


def starts(size: int, parts: int) -> np.ndarray:
    """The first cell of each block of `cut`."""
    return -(-np.arange(parts) * size // parts)


def widths(size: int, parts: int) -> np.ndarray:
    """The cells of each block of `cut`."""
    return np.diff(np.append(starts(size, parts), size))


def measure_parts(counts: np.ndarray, labels: np.ndarray, epsilon: Fraction, meter: Meter) -> np.ndarray:
    """The totals of disjoint parts with noise, each spread evenly over its cells. `labels`: the part of each cell, from 0."""
    parts = labels.ravel()
    sizes = np.bincount(parts)
    totals = np.bincount(parts, counts.ravel(), len(sizes)).astype(np.int64)
    noisy = meter.laplace(totals, epsilon)
    return (noisy / np.maximum(sizes, 1)).astype(np.float32)[labels]


def block_sums(counts: np.ndarray, most: tuple[int, ...]) -> np.ndarray:
    """Sums over blocks, at most so many along each axis."""
    for axis, parts in enumerate(most):
        size = counts.shape[axis]
        if parts < size:
            counts = np.add.reduceat(counts, starts(size, parts), axis=axis)
    return counts


def spread_blocks(totals: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The totals of the blocks of `block_sums`, spread evenly over the cells of each."""
    for axis, size in enumerate(shape):
        width = widths(size, totals.shape[axis])
        across = [-1 if other == axis else 1 for other in range(totals.ndim)]
        totals = np.repeat(totals / width.reshape(across), width, axis=axis)
    return totals.astype(np.float32)
