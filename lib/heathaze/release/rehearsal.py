"""How sure published answers are, without the truth: the night is rehearsed.

A plausible truth is drawn from the published estimate and its deviations, noise of the declared law is added to it, and it is
denoised and refined exactly as the night was. In a rehearsal the truth is known, so the error of every size of box can be looked
at. It reads noisy tables only, so it is free, and its random numbers protect nobody.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heathaze.learn.denoiser import Denoised, noise_variance
from heathaze.learn.maps import Measurement, Scales, measure_again
from heathaze.policy import Refine
from heathaze.release.refine import finish
from heathaze.release.uncertainty import ErrorModel, Rehearsal
from heathaze.rho import spread_evenly

Again = Callable[[Measurement], Denoised]
"""Denoises another measurement as the night's was."""


def rehearse(denoised: Denoised, noisy: np.ndarray, scales: Scales, again: Again, settings: Refine, seed: int) -> ErrorModel:
    """The error model of a night, from its estimate and its noisy tensor.

    Where the night's estimate lies further off its own noisy sums than a rehearsal's does, its intervals are made wider.
    """
    random = np.random.default_rng(seed)
    truth = plausible(denoised, random)
    rehearsed = measure_again(truth, scales, random)
    result = again(rehearsed)
    run = Rehearsal(truth, spread_evenly(rehearsed.slices, scales.side), finish(result.values, settings), result.deviation)
    tonight = (spread_evenly(noisy, scales.side), finish(denoised.values, settings), denoised.deviation)
    return ErrorModel.fit([run], noise_variance(scales.cell) / scales.side**2, tonight)


def plausible(denoised: Denoised, random: np.random.Generator) -> np.ndarray:
    """Whole counts with the means and deviations of an estimate.

    Where the deviation is above that of a Poisson count, the rate varies by a gamma law; without deviations, counts are Poisson.
    """
    mean = np.maximum(denoised.values, 0).astype(np.float64)
    extra = np.zeros_like(mean) if denoised.deviation is None else np.square(denoised.deviation, dtype=np.float64) - mean
    varies = (extra > 1e-9) & (mean > 1e-9)
    shape = np.where(varies, mean**2 / np.where(varies, extra, 1.0), 1.0)
    rate = np.where(varies, random.gamma(shape) * np.where(varies, extra / np.maximum(mean, 1e-9), 0.0), mean)
    counts = random.poisson(np.minimum(rate, 1e9))
    if denoised.deviation is None:
        return counts
    # A count that is known better than a Poisson count is drawn around its mean instead.
    sure = (mean > 20) & (extra < 0)
    near = np.rint(mean + denoised.deviation * random.standard_normal(mean.shape))
    return np.where(sure, np.maximum(near, 0), counts).astype(np.int64)
