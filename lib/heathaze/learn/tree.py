"""Estimates of cells brought together with the noisy sums of blocks of cells, coarse to fine.

A denoiser is sure of small things and may be off by a little everywhere, which adds up in large boxes; noisy sums are the
other way round. Let V be the sum of the claimed variances of a block's cells, A the noise variance of its noisy sum and
R = noisy sum - estimated sum. Where the cells err independently, as claimed, R has variance A - V, because an estimate already
leans on the noise of its own cells. What R has beyond that is error that cells share; its variance is taken to be rho V with
one rho per size of block, and R measures it with the gain rho V / (rho V + A - V). The correction is spread over the cells in
proportion to their variances: cells that are well known stay as they are. First all slices together, for errors that stay,
then each slice.
"""

from __future__ import annotations

import numpy as np

FINEST = 8
"""Side of the smallest block in cells; below it the estimate of the cells has seen the neighbours already."""


def settle(mean: np.ndarray, variance: np.ndarray, noisy: np.ndarray, noise_variance: float) -> tuple[np.ndarray, list[float]]:
    """The estimate with block sums settled, and rho of every size of block, coarse to fine: all slices, then each slice."""
    values = mean.astype(np.float64)
    spread = np.maximum(variance, 1e-9).astype(np.float64)
    shares: list[float] = []
    if len(mean) > 1:
        together, claimed = values.sum(0, keepdims=True), spread.sum(0, keepdims=True)
        total = noisy.sum(0, keepdims=True, dtype=np.float64)
        settled, shares = _descend(together, claimed, total, noise_variance * len(mean))
        values += spread / claimed * (settled - together)
    values, apart = _descend(values, spread, noisy, noise_variance)
    return values.astype(np.float32), shares + apart


def _descend(values: np.ndarray, spread: np.ndarray, noisy: np.ndarray, noise: float) -> tuple[np.ndarray, list[float]]:
    side = 1 << (max(values.shape[1:]) - 1).bit_length()
    shares = []
    while side >= FINEST:
        claimed, residual = _sums(spread, side), _sums(noisy - values, side)
        area = _sums(np.ones((1, *values.shape[1:])), side) * noise
        alone = np.maximum(area - claimed, 0.05 * area)
        weight = claimed / alone**2
        excess, known = float(np.sum((residual**2 - alone) * weight)), float(np.sum(claimed * weight))
        # Two standard errors are taken off: blocks that only seem to be wrong are left alone.
        doubt = 2 * float(np.sqrt(2 * np.sum((alone * weight) ** 2)))
        rho = max(0.0, (excess - doubt) / known)
        shares.append(rho)
        if rho > 0:
            gain = rho * claimed / (rho * claimed + alone)
            values = values + spread * _spread(gain * residual / claimed, side, values.shape)
        side //= 2
    return values, shares


def _sums(image: np.ndarray, side: int) -> np.ndarray:
    slices, height, width = image.shape
    padded = np.pad(image, ((0, 0), (0, -height % side), (0, -width % side)))
    return padded.reshape(slices, padded.shape[1] // side, side, padded.shape[2] // side, side).sum((2, 4), dtype=np.float64)


def _spread(blocks: np.ndarray, side: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.repeat(np.repeat(blocks, side, 1), side, 2)[:, : shape[1], : shape[2]]
