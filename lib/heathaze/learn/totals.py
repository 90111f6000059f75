"""An estimate of cells brought together with the totals of whole slices, which were measured apart.

Cells say where events are, and the sum of all of them adds up the noise of all; the total of a slice has the noise of one draw.
Few cells still add up to less noise than a total that got a small part of epsilon, so both are weighed by their variances; and
totals that noise alone sets apart are drawn together.

Let Q be the claimed variance of an estimated total, A that of the measured total's noise and R = measured - estimated total.
Both err independently, so R has the variance rho Q + A, where rho is how much more the estimate errs than it claims: read off
all slices, and never below 1. The total is corrected by the share rho Q / (rho Q + A) of R, spread over the cells in
proportion to their leeways, as corrections of blocks are (`tree`): the many cold cells, which err a little and alike, bear more
of it than their variances would say.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from heathaze.learn.denoiser import Denoised, discrete_laplace, noise_variance
from heathaze.learn.tree import LEAST, leeway


@dataclass(frozen=True)
class Totals:
    """Noisy totals of all slices."""

    values: np.ndarray
    """One per slice."""
    variance: float
    """Of the noise of one of them."""

    def with_cells(self, noisy: np.ndarray, scale: Fraction) -> Totals:
        """These totals and the sums of the noisy cells, which were measured apart from them, as one."""
        summed = noisy[0].size * noise_variance(scale)
        share = summed / (summed + self.variance)
        return Totals(share * self.values + (1 - share) * noisy.sum((1, 2), dtype=np.int64), share * self.variance)

    def drawn_together(self) -> Totals:
        """These totals moved towards their mean by as much of their spread as noise explains: James and Stein's estimate. Where
        slices differ by far more than the noise, they stay; three and fewer say too little of their spread."""
        slices = len(self.values)
        if slices < 4:
            return self
        mean, spread = float(self.values.mean()), float(self.values.var(ddof=1))
        share = min(1.0, (slices - 3) / (slices - 1) * self.variance / max(spread, LEAST))
        return Totals(self.values + share * (mean - self.values), self.variance * (1 - share + share / slices))


def settle_totals(denoised: Denoised, totals: Totals) -> Denoised:
    """The estimate with the measured totals; deviations are of cells, and stay as they are."""
    values, deviation = denoised.values, denoised.deviation

    def variance(number: int) -> np.ndarray:
        """Of one slice; counts that nobody knows more of vary like Poisson's."""
        return np.maximum(values[number], 0) if deviation is None else np.square(deviation[number])

    slices = range(len(values))
    claimed = np.array([np.sum(variance(number), dtype=np.float64) for number in slices]) + LEAST
    residual = totals.values - np.array([np.sum(values[number], dtype=np.float64) for number in slices])
    noise = totals.variance
    weight = claimed / (claimed + noise) ** 2
    # Two standard errors are taken off: few slices that only seem to be wrong are left alone.
    doubt = 2 * np.sqrt(2 * np.sum(((claimed + noise) * weight) ** 2))
    rho = max(1.0, float((np.sum((residual**2 - noise) * weight) - doubt) / np.sum(claimed * weight)))
    wanted = rho * claimed / (rho * claimed + noise) * residual

    def settled(number: int) -> np.ndarray:
        bears = leeway(variance(number))
        return values[number] + bears * np.float32(wanted[number] / np.sum(bears, dtype=np.float64))

    return Denoised(np.stack([settled(number) for number in slices]), deviation)


def measured_again(truth: np.ndarray, scale: Fraction, random: np.random.Generator) -> Totals:
    """The totals of a plausible truth with noise of the same law. It protects nobody."""
    exact = truth.sum((1, 2), dtype=np.int64)
    return Totals(exact + discrete_laplace(random, float(scale), exact.shape), noise_variance(scale))
