"""shrink: the classical denoiser. Empirical Bayes, no training, seconds.

Each count is drawn towards what is expected of it, the more so the less the signal varies around that expectation (James and
Stein; Efron and Morris). The expectation is made in the same way, coarse to fine: neighbours in space, then the cell's mean over
all slices and nights, then the mean of the same slice of earlier nights, then the neighbourhood of the cell tonight, and last the
cell itself. The law of the noise is known, so all variances of the signal follow from the noisy tensors alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from scipy.ndimage import uniform_filter

from heathaze.learn.denoiser import Denoised, noise_fourth_moment, noise_variance

BLOCKS = (31, 15, 7, 3)
"""Sides of the neighbourhoods, in cells, coarse to fine."""

BINS, LEAST = 400, 500
"""Variances of the signal are pooled in groups of cells with like expectations: at most so many, of at least so many cells."""


def shrink(tonight: np.ndarray, earlier: Sequence[np.ndarray], scale: Fraction) -> Denoised:
    """Shrinkage towards neighbours in space, the mean over time, and the same slice of earlier nights."""
    noise = noise_variance(scale)
    fourth = noise_fourth_moment(scale)
    tonight = tonight.astype(np.float32)
    nights = [tonight, *(night.astype(np.float32) for night in earlier if night.shape == tonight.shape)]
    slices = len(tonight)

    over_time = sum(night.sum(0) for night in nights) / (slices * len(nights))
    expected = _smooth(over_time, noise / (slices * len(nights)))
    prior = np.broadcast_to(expected, tonight.shape)
    if len(nights) > 1:
        same_slice = sum(nights[1:], np.zeros_like(tonight)) / (len(nights) - 1)
        prior = _draw_towards(same_slice, prior, noise / (len(nights) - 1), fourth / (len(nights) - 1) ** 2)[0]
    prior = _with_neighbours(tonight, prior, noise)
    values, variance = _draw_towards(tonight, prior, noise, fourth)
    return Denoised(values, np.sqrt(variance).astype(np.float32))


def _smooth(mean: np.ndarray, noise: float) -> np.ndarray:
    """The mean map, each neighbourhood drawn towards the coarser one by how much they really differ."""
    side = min(mean.shape)
    blocks = [block for block in BLOCKS if block <= side] or [1]
    estimate = uniform_filter(mean, blocks[0])
    for block in [*blocks[1:], 1]:
        local = uniform_filter(mean, block)
        local_noise = noise / block**2
        spread = uniform_filter((local - estimate) ** 2, max(3, block)) - local_noise
        signal = np.maximum(spread, 0)
        estimate = estimate + signal / (signal + local_noise) * (local - estimate)
    return estimate


def _with_neighbours(tonight: np.ndarray, prior: np.ndarray, noise: float) -> np.ndarray:
    """The prior, corrected by what the cells around (not the cell itself) show tonight."""
    side = 3
    around = side * side - 1
    correction = np.empty_like(tonight)
    for number, residual in enumerate(tonight - prior):
        correction[number] = (uniform_filter(residual, side) * side * side - residual) / around
    groups = _groups(prior)
    covered = _mean_by_group(groups, correction * (tonight - prior))
    spread = _mean_by_group(groups, correction**2)
    gain = np.clip(covered / np.maximum(spread, noise / around * 0.5), 0, 1)
    return (prior + gain[groups] * correction).astype(np.float32)


def _draw_towards(observed: np.ndarray, prior: np.ndarray, noise: float, fourth: float) -> tuple[np.ndarray, np.ndarray]:
    """Observed values drawn towards the prior, and the variance that remains.

    The signal's variance around the prior is estimated per cell over the slices, itself drawn towards the mean of cells with like
    expectations as far as cells of a group really differ in it.
    """
    slices = len(observed)
    residual = observed - prior
    own = (residual**2).mean(0) - noise
    level = prior.mean(0)
    groups = _groups(level)
    pooled = np.maximum(_mean_by_group(groups, own), 0)
    sampling = (fourth - noise**2 + 2 * pooled**2 + 4 * pooled * noise) / slices
    apart = (own - pooled[groups]) ** 2
    # Two standard errors are taken off: a group whose cells only seem to differ is treated as one.
    doubt = 2 * np.sqrt(_mean_by_group(groups, apart**2) / np.bincount(groups.ravel(), minlength=len(pooled)).clip(1))
    between = np.maximum(_mean_by_group(groups, apart) - sampling - doubt, 0)
    trust = between / (between + sampling)
    signal = np.maximum(pooled[groups] + trust[groups] * (own - pooled[groups]), 0)
    weight = (signal / (signal + noise)).astype(np.float32)
    values = prior + weight * residual
    return values.astype(np.float32), np.broadcast_to(weight * noise, observed.shape)


def _groups(level: np.ndarray) -> np.ndarray:
    """Cells in groups of like level, by rank, each large enough for its variance to be known."""
    flat = level.ravel()
    bins = int(np.clip(flat.size // LEAST, 1, BINS))
    shares = np.arange(1, bins) / bins
    # Hot cells are few and matter most: the top of the scale is cut finer.
    shares = np.concatenate([shares, 1 - np.geomspace(1 / bins, max(20 / flat.size, 1e-5), 24)]) if bins == BINS else shares
    return np.searchsorted(np.unique(np.quantile(flat, shares)), level)


def _mean_by_group(groups: np.ndarray, values: np.ndarray) -> np.ndarray:
    size = int(groups.max()) + 1
    total = np.bincount(groups.ravel(), values.ravel(), size)
    return total / np.maximum(np.bincount(groups.ravel(), minlength=size), 1)
