"""An estimate of cells brought together with the totals of whole slices, which were measured apart.

Cells say where events are, and the sum of all of them adds up the noise of all; the total of a slice has the noise of one draw.
Let Q be the claimed variance of an estimated total, A that of the measured total's noise and R = measured - estimated total.
Both err independently, so R has the variance rho Q + A, where rho is how much more the estimate errs than it claims: read off
all slices, and never below 1. The total is corrected by the share rho Q / (rho Q + A) of R, spread over the cells in
proportion to their deviations: cells which are well known stay as they are, and the many cold cells, which err a little and
alike, bear more of it than their variances would say.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from heathaze.learn.denoiser import Denoised, discrete_laplace, noise_variance

LEAST = 1e-6
"""Deviation of a cell that is taken as the least: no claim is 0."""


@dataclass(frozen=True)
class Totals:
    """Noisy totals of all slices."""

    values: np.ndarray
    """Whole numbers, one per slice."""
    scale: Fraction
    """Of the noise of one of them."""


def settle_totals(denoised: Denoised, totals: Totals) -> Denoised:
    """The estimate with the measured totals; deviations are of cells, and stay as they are."""
    values, deviation = denoised.values, denoised.deviation

    def spread(number: int) -> np.ndarray:
        """Deviations of one slice; counts that nobody knows more of vary like Poisson's."""
        known = np.sqrt(np.maximum(values[number], 0)) if deviation is None else deviation[number]
        return np.maximum(known, np.float32(LEAST))

    slices = range(len(values))
    claimed = np.array([np.sum(np.square(spread(number)), dtype=np.float64) for number in slices])
    residual = totals.values - np.array([np.sum(values[number], dtype=np.float64) for number in slices])
    noise = noise_variance(totals.scale)
    weight = claimed / (claimed + noise) ** 2
    # Two standard errors are taken off: few slices that only seem to be wrong are left alone.
    doubt = 2 * np.sqrt(2 * np.sum(((claimed + noise) * weight) ** 2))
    rho = max(1.0, float((np.sum((residual**2 - noise) * weight) - doubt) / np.sum(claimed * weight)))
    wanted = rho * claimed / (rho * claimed + noise) * residual
    multiple = wanted / np.array([np.sum(spread(number), dtype=np.float64) for number in slices])
    settled = np.stack([values[number] + spread(number) * np.float32(multiple[number]) for number in slices])
    return Denoised(settled, deviation)


def measured_again(truth: np.ndarray, scale: Fraction, random: np.random.Generator) -> Totals:
    """The totals of a plausible truth with noise of the same law. It protects nobody."""
    exact = truth.sum((1, 2), dtype=np.int64)
    return Totals(exact + discrete_laplace(random, float(scale), exact.shape), scale)
