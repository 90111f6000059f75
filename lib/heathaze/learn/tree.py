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
    """The estimate with block sums settled, and rho of every size of block, coarse to fine: all slices, then each slice.

    A correction is the same multiple of the variance in all cells of a smallest block, so that sums of those are all it takes.
    """
    least = 1e-9
    values, spread, totals = (_sums(tensor, FINEST) for tensor in (mean, np.maximum(variance, np.float32(least)), noisy))
    area = _sums(np.ones((1, *mean.shape[1:]), dtype=np.float32), FINEST)
    shift = np.zeros(values.shape)
    shares: list[float] = []
    if len(mean) > 1:
        claimed = spread.sum(0, keepdims=True)
        residual = (totals - values).sum(0, keepdims=True)
        all_slices, shares = _descend(residual, claimed, area * noise_variance * len(mean))
        shift = shift + all_slices
    each, apart = _descend(totals - values - spread * shift, spread, area * noise_variance)
    factors = (shift + each).astype(np.float32)
    settled = np.empty(mean.shape, dtype=np.float32)
    for number, out in enumerate(settled):
        out[:] = mean[number] + np.maximum(variance[number], np.float32(least)) * _spread(factors[number], FINEST, out.shape)
    return settled, shares + apart


def _descend(residual: np.ndarray, spread: np.ndarray, area: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Multiples of the variances by which the smallest blocks are corrected.

    All three are sums over smallest blocks: `residual` of noisy less estimated values, `spread` of claimed variances, `area` of
    noise variances.
    """
    side = 1 << (max(residual.shape[1:]) - 1).bit_length()
    factors, shares = np.zeros(residual.shape), []
    while side >= 1:
        claimed, left, noise = (_sums(part, side) for part in (spread, residual - spread * factors, area))
        alone = np.maximum(noise - claimed, 0.05 * noise)
        weight = claimed / alone**2
        excess, known = float(np.sum((left**2 - alone) * weight)), float(np.sum(claimed * weight))
        # Two standard errors are taken off: blocks that only seem to be wrong are left alone.
        doubt = 2 * float(np.sqrt(2 * np.sum((alone * weight) ** 2)))
        rho = max(0.0, (excess - doubt) / known)
        shares.append(rho)
        if rho > 0:
            gain = rho * claimed / (rho * claimed + alone)
            correction = gain * left / claimed
            factors = factors + np.stack([_spread(image, side, residual.shape[1:]) for image in correction])
        side //= 2
    return factors, shares


def _sums(tensor: np.ndarray, side: int) -> np.ndarray:
    """Sums over blocks of each slice, float64."""
    slices, height, width = tensor.shape
    out = np.empty((slices, -(-height // side), -(-width // side)))
    for image, into in zip(tensor, out, strict=True):
        padded = np.pad(image, ((0, -height % side), (0, -width % side)))
        into[:] = padded.reshape(into.shape[0], side, into.shape[1], side).sum((1, 3), dtype=np.float64)
    return out


def _spread(blocks: np.ndarray, side: int, shape: tuple[int, ...]) -> np.ndarray:
    """One slice of blocks as cells."""
    return np.repeat(np.repeat(blocks, side, 0), side, 1)[: shape[0], : shape[1]]
