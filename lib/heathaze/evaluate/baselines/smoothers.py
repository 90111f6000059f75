"""Means over square blocks and Gaussian filters of the noisy cells, slice by slice, with the width chosen on the noisy cells
alone.

All of epsilon goes into one measurement of every cell, the same draw as `identity`'s; the rest is post-processing. The width is
that of least estimated risk (Stein 1981; Mallows 1973): for a linear smoother S and noise of known variance v, |S y - y|^2 + 2
v trace(S) - N v is an unbiased estimate of the total squared error, whatever the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from scipy.ndimage import gaussian_filter, gaussian_filter1d

from heathaze.evaluate.baselines.simple import identity
from heathaze.evaluate.baselines.tree import coarsen, refine
from heathaze.evaluate.meter import Meter
from heathaze.learn.denoiser import noise_variance

SIDES = (1, 2, 3, 4, 6, 8, 12, 16, 20)
"""Sides of the blocks, in cells; 1 is no smoothing."""

WIDTHS = (0.0, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0, 11.3, 16.0, 20.0)
"""Standard deviations of the Gaussian, in cells; 0 is no smoothing."""

REACH = 3.0
"""The Gaussian is cut off after so many standard deviations."""


def block(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Means over square blocks; one side for the whole tensor, the one of least estimated risk."""
    noisy = identity(counts, meter)
    return _least_risk(noisy, SIDES, _block_means, _block_trace, meter)


def gaussian(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Gaussian filter per slice; one width for the whole tensor, the one of least estimated risk."""
    noisy = identity(counts, meter)
    return _least_risk(noisy, WIDTHS, _gaussian_filter, _gaussian_trace, meter)


def block_oracle(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """ORACLE: the block means whose side is chosen with the truth known. No release can do this; it bounds `block`."""
    return _least_error(counts, identity(counts, meter), SIDES, _block_means)


def gaussian_oracle(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """ORACLE: the Gaussian filter whose width is chosen with the truth known. No release can do this; it bounds `gaussian`."""
    return _least_error(counts, identity(counts, meter), WIDTHS, _gaussian_filter)


def _least_error(
    counts: np.ndarray, noisy: np.ndarray, widths: Sequence[float], smooth: Callable[[np.ndarray, float], np.ndarray]
) -> np.ndarray:
    """The smoothed tensor of least absolute error at the records, each cell weighing as much as it has events."""

    def error_at_records(estimate: np.ndarray) -> float:
        return float((counts * np.abs(estimate - counts)).sum())

    return min((smooth(noisy, width) for width in widths), key=error_at_records)


def _least_risk(
    noisy: np.ndarray,
    widths: Sequence[float],
    smooth: Callable[[np.ndarray, float], np.ndarray],
    trace: Callable[[tuple[int, ...], float], float],
    meter: Meter,
) -> np.ndarray:
    variance = noise_variance(Fraction(meter.unit) / meter.epsilon)

    def risk(width: float) -> float:
        gap = (smooth(noisy, width) - noisy).ravel().astype(float)
        return float(gap @ gap) + 2 * variance * trace(noisy.shape, width)

    return smooth(noisy, min(widths, key=risk))


def _block_means(noisy: np.ndarray, side: float) -> np.ndarray:
    fan = (1, int(side), int(side))
    sizes = coarsen(np.ones((1, *noisy.shape[1:]), dtype=np.float32), fan)
    return refine(coarsen(noisy, fan) / sizes, fan, noisy.shape)


def _block_trace(shape: tuple[int, ...], side: float) -> float:
    """The mean of a block gives each of its cells the weight 1 / size: 1 per block."""
    return shape[0] * float(np.prod([-(-cells // int(side)) for cells in shape[1:]]))


def _gaussian_filter(noisy: np.ndarray, width: float) -> np.ndarray:
    return gaussian_filter(noisy, (0, width, width), truncate=REACH) if width else noisy


def _gaussian_trace(shape: tuple[int, ...], width: float) -> float:
    """The filter is a product of one along rows and one along columns, and so is its trace, edges included."""
    if not width:
        return float(np.prod(shape))
    return shape[0] * float(np.prod([np.trace(gaussian_filter1d(np.eye(cells), width, truncate=REACH)) for cells in shape[1:]]))
