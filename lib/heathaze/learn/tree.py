"""Estimates of cells brought together with the noisy sums of blocks of cells, coarse to fine.

A denoiser is sure of small things and may be off by a little everywhere, which adds up in large boxes; noisy sums are the
other way round. Let V be the sum of the claimed variances of a block's cells, A the noise variance of its noisy sum and
R = noisy sum - estimated sum. Where the cells err independently, as claimed, R has variance A - V, because an estimate already
leans on the noise of its own cells. What R has beyond that is error that cells share. It is taken to be alike in all cells but
for their leeway, the root of the deviation: with L the sum of a block's leeways its variance is rho L^2, with one rho per size of
block, and R measures it with the gain rho L^2 / (rho L^2 + A - V). The correction is spread over the cells in proportion to
their leeways. First all slices together, for errors that stay, then each slice.

A shared error is mostly a prior that is a little too high where hardly anything is, and no single cell shows it. By variances the
hot cells, which are right, would bear nearly all of its correction, and by deviations still much of it.
"""

from __future__ import annotations

import numpy as np

FINEST = 8
"""Side of the smallest block in cells; below it the estimate of the cells has seen the neighbours already."""

DOUBT = 1.5
"""Standard errors that are taken off what blocks seem to be wrong by: those that only seem so are left alone."""

LEAST = 1e-12
"""Variance of a cell that is taken as the least: no claim is 0."""


def leeway(variance: np.ndarray) -> np.ndarray:
    """How much of an error that cells share each of them bears, float32: the root of its deviation."""
    return np.asarray(np.sqrt(np.sqrt(np.maximum(variance, np.float32(LEAST)))))


def settle(mean: np.ndarray, variance: np.ndarray, noisy: np.ndarray, noise_variance: float) -> tuple[np.ndarray, list[float]]:
    """The estimate with block sums settled, and rho of every size of block, coarse to fine: all slices, then each slice.

    A correction is the same multiple of the leeway in all cells of a smallest block, so that sums of those are all it takes.
    """
    values, claimed, totals = (area_sums(tensor, FINEST) for tensor in (mean, variance, noisy))
    bears = np.concatenate([area_sums(leeway(image)[None], FINEST) for image in variance])
    area = area_sums(np.ones((1, *mean.shape[1:]), dtype=np.float32), FINEST)
    shift = np.zeros(values.shape)
    shares: list[float] = []
    if len(mean) > 1:
        residual, claims, all_bear = (part.sum(0, keepdims=True) for part in (totals - values, claimed, bears))
        all_slices, shares = _descend(residual, claims, all_bear, area * noise_variance * len(mean))
        shift = shift + all_slices
    each, apart = _descend(totals - values - bears * shift, claimed, bears, area * noise_variance)
    factors = (shift + each).astype(np.float32)
    settled = np.empty(mean.shape, dtype=np.float32)
    for number, out in enumerate(settled):
        out[:] = mean[number] + leeway(variance[number]) * spread_areas(factors[number], FINEST, out.shape)
    return settled, shares + apart


def _descend(residual: np.ndarray, claims: np.ndarray, bears: np.ndarray, area: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Multiples of the leeways by which the smallest blocks are corrected.

    All four are sums over smallest blocks: `residual` of noisy less estimated values, `claims` of claimed variances, `bears` of
    leeways, `area` of noise variances.
    """
    side = 1 << (max(residual.shape[1:]) - 1).bit_length()
    factors, shares = np.zeros(residual.shape), []
    while side >= 1:
        claimed, borne, left, noise = (area_sums(part, side) for part in (claims, bears, residual - bears * factors, area))
        alone = np.maximum(noise - claimed, 0.05 * noise)
        square = borne**2
        weight = square / alone**2
        excess, known = float(np.sum((left**2 - alone) * weight)), float(np.sum(square * weight))
        doubt = DOUBT * float(np.sqrt(2 * np.sum((alone * weight) ** 2)))
        rho = max(0.0, (excess - doubt) / known)
        shares.append(rho)
        if rho > 0:
            gain = rho * square / (rho * square + alone)
            correction = gain * left / borne
            factors = factors + np.stack([spread_areas(image, side, residual.shape[1:]) for image in correction])
        side //= 2
    return factors, shares


def area_sums(tensor: np.ndarray, side: int) -> np.ndarray:
    """Sums over blocks of each slice, float64."""
    slices, height, width = tensor.shape
    out = np.empty((slices, -(-height // side), -(-width // side)))
    for image, into in zip(tensor, out, strict=True):
        padded = np.pad(image, ((0, -height % side), (0, -width % side)))
        into[:] = padded.reshape(into.shape[0], side, into.shape[1], side).sum((1, 3), dtype=np.float64)
    return out


def spread_areas(blocks: np.ndarray, side: int, shape: tuple[int, ...]) -> np.ndarray:
    """One slice of blocks as cells."""
    return np.repeat(np.repeat(blocks, side, 0), side, 1)[: shape[0], : shape[1]]
